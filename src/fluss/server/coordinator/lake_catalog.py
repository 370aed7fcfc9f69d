"""The lake tables that belong to tables of the cluster: they are made and changed before the cluster's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from fluss.errors import ErrorCode, FlussError
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Column
from fluss.schema.table import TablePath
from fluss.schema.table_options import LAKE_ENABLED, LAKE_FORMAT, LakeFormat
from fluss.server.coordinator.dynamic_configs import CLUSTER_LAKE_PREFIX, DynamicConfigs
from fluss.server.model import Table

if TYPE_CHECKING:
    from fluss.lake.lake_tables import LakeTables

T = TypeVar("T")


class LakeCatalog:
    """The catalog of the lake that the options ``datalake.*`` describe. It is asked in threads.

    Iceberg tables are made here. Those of other formats are left to their tiering service.
    """

    def __init__(self, configs: DynamicConfigs) -> None:
        self._configs = configs
        # Opened when it is first needed, and again when the options have changed.
        self._opened: tuple[Mapping[str, str], LakeTables] | None = None

    async def create(self, path: TablePath, descriptor: TableDescriptor) -> None:
        """Make the lake table of a new table that has its lake switched on.

        Raises code 54 if there is one that does not fit, 15 if there cannot be one, and 40 if the lake does not answer.
        """
        if LAKE_ENABLED.of(descriptor.properties) and self._is_iceberg(descriptor):
            await self._ask(lambda tables: tables.create(path, descriptor, must_be_empty=True))

    async def switch_on(self, table: Table) -> bool:
        """Make the lake table of a table, or take the one that it had, and return whether it has nothing yet.

        Raises what ``create`` does.
        """
        descriptor = table.descriptor
        if not self._is_iceberg(descriptor):
            return False
        made = await self._ask(
            lambda tables: tables.create(table.path, descriptor, must_be_empty=False, table_id=table.table_id)
        )
        return made.metadata.current_snapshot() is None

    async def add_columns(self, path: TablePath, descriptor: TableDescriptor, columns: Sequence[Column]) -> None:
        """Add columns to the lake table, if there is or was one."""
        if self._has_lake_table(descriptor):
            await self._ask(lambda tables: tables.add_columns(path, columns))

    async def alter_properties(
        self, path: TablePath, descriptor: TableDescriptor, changed: Mapping[str, str], removed: Collection[str]
    ) -> None:
        """Change properties of the lake table, too, if there is or was one."""
        if self._has_lake_table(descriptor):
            await self._ask(lambda tables: tables.alter_properties(path, changed, removed))

    def _has_lake_table(self, descriptor: TableDescriptor) -> bool:
        """Whether a table has its lake switched on, or had it: then its copy goes on following it."""
        is_known = LAKE_ENABLED.key in descriptor.properties and self._configs.lake().lake_format is not None
        return is_known and self._is_iceberg(descriptor)

    def _is_iceberg(self, descriptor: TableDescriptor) -> bool:
        return LAKE_FORMAT.of(descriptor.properties) is LakeFormat.ICEBERG

    async def _ask(self, action: Callable[[LakeTables], T]) -> T:
        prefix = f"{CLUSTER_LAKE_PREFIX}{LakeFormat.ICEBERG}."
        options = {
            key.removeprefix(prefix): text for key, text in self._configs.values().items() if key.startswith(prefix)
        }
        return await asyncio.to_thread(self._ask_in_thread, options, action)

    def _ask_in_thread(self, options: Mapping[str, str], action: Callable[[LakeTables], T]) -> T:
        try:
            # Loaded when there is a lake: it is optional, and takes a second.
            from fluss.lake.lake_tables import LakeTables
        except ImportError as error:
            raise FlussError(
                f"The server cannot reach an Iceberg lake: {error}", ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION
            ) from None
        opened = self._opened
        if opened is None or opened[0] != options:
            opened = self._opened = options, LakeTables.open(options)
        return action(opened[1])
