"""What users do with tables and partitions: it is checked and completed here, and carried out by the catalog.

The lake table of a table is made and changed before the table itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from fluss.errors import ErrorCode, FlussError
from fluss.row.partition_names import parse_partition_value
from fluss.schema.cluster_info import ConfigChange
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Column
from fluss.schema.serde import table_to_json
from fluss.schema.table import (
    PartitionSpec,
    TablePath,
    check_partition_spec,
    ordered_values,
    partition_name,
    qualified_partition_name,
)
from fluss.schema.table_options import AUTO_PARTITION_PREFIX, LAKE_ENABLED, LAKE_FORMAT, LakeFormat
from fluss.server.coordinator.auto_partitioner import AutoPartitioner, AutoPartitionRule
from fluss.server.coordinator.catalog import Catalog
from fluss.server.coordinator.dynamic_configs import CLUSTER_LAKE_PREFIX, DynamicConfigs
from fluss.server.coordinator.lake_snapshots import LakeSnapshots
from fluss.server.coordinator.lake_tiering import LakeTiering
from fluss.server.coordinator.nodes import ServerTags
from fluss.server.coordinator.settings import CoordinatorSettings
from fluss.server.coordinator.table_descriptors import (
    changed,
    with_added_columns,
    with_changed_properties,
    with_defaults,
)
from fluss.server.coordinator.table_validation import (
    TableLimits,
    check_bucket_count,
    check_lake_bucket_key,
    check_replicas,
    validate_table,
)
from fluss.server.model import Clock, Table

if TYPE_CHECKING:
    from fluss.lake.lake_tables import LakeTables


# The system keeps it; users never create or drop it.
# File systems take names of 255 bytes, and an id goes with it.
_PARTITION_NAME_CHARS_MAX: Final = 230
_HISTORICAL_PARTITION: Final = "__historical__"


class TableService:
    """Creates, describes and alters tables; creates and drops partitions. Belongs to the event loop."""

    def __init__(
        self,
        catalog: Catalog,
        configs: DynamicConfigs,
        tags: ServerTags,
        auto_partitioner: AutoPartitioner,
        settings: CoordinatorSettings,
        clock: Clock,
        lake: LakeCatalog,
        lake_snapshots: LakeSnapshots,
        tiering: LakeTiering,
    ) -> None:
        self._catalog = catalog
        self._configs = configs
        self._tags = tags
        self._auto_partitioner = auto_partitioner
        self._settings = settings
        self._clock = clock
        self._lake = lake
        self._lake_snapshots = lake_snapshots
        self._tiering = tiering

    def table_json(self, table: Table) -> bytes:
        """Return the descriptor that clients get. That of a lake table tells where the lake is, without its secrets."""
        if not LAKE_ENABLED.of(table.descriptor.properties):
            return self._catalog.table_json(table)
        properties = {**table.descriptor.properties, **self._configs.lake().table_properties}
        return table_to_json(changed(table.descriptor, properties=properties))

    def remote_data_dir(self, number: int) -> str | None:
        """Return where remote files of a table or partition of this id are put; None without remote storage."""
        locations = self._settings.remote_locations
        return locations[number % len(locations)] if locations else None

    # Tables

    async def create(self, path: TablePath, descriptor: TableDescriptor, *, ignore_if_exists: bool) -> None:
        """Create a table from what a user has given; what is missing gets the defaults of the server.

        Its lake table is made first. If the table itself cannot be made then, the next try takes the one that is there.
        """
        descriptor = self._complete(descriptor)
        if self._catalog.table_by_path(path) is None:
            self._catalog.existing_database(path.database_name)
            await self._lake.create(path, descriptor)
        table = await self._catalog.create_table(
            path,
            descriptor,
            ignore_if_exists=ignore_if_exists,
            partitions_at_once=self._auto_partitioner.partitions_at_once(descriptor),
        )
        if table is not None:
            self._tiering.look_at(table)
            await self._auto_partitioner.look_at(table)

    def _complete(self, descriptor: TableDescriptor) -> TableDescriptor:
        """Return what is stored for what was sent, or refuse it."""
        self._check_allowed(descriptor)
        descriptor = with_defaults(descriptor, self._settings, self._configs.lake())
        validate_table(descriptor, self._limits())
        check_lake_bucket_key(descriptor)
        check_replicas(descriptor, self._tags.assignable_count)
        return descriptor

    def _check_allowed(self, descriptor: TableDescriptor) -> None:
        kind, is_allowed = "a log table", self._settings.log_tables_allowed
        if descriptor.has_primary_key():
            kind, is_allowed = "a primary-key table", self._settings.kv_tables_allowed
        if not is_allowed:
            raise FlussError(f"Creating {kind} is not allowed on this cluster", ErrorCode.INVALID_TABLE_EXCEPTION)

    def _limits(self) -> TableLimits:
        return TableLimits(self._settings.bucket_count_max, self._configs.lake())

    async def add_columns(self, path: TablePath, columns: Iterable[Column], *, ignore_if_not_exists: bool) -> None:
        """Add columns at the end, to the lake table first. They are read when the table is known to exist."""
        before = self._catalog.table_by_path(path)
        if before is not None:
            columns = list(columns)
            # Refused before anything happens to the lake, where it could not be taken back.
            with_added_columns(before, columns, self._configs.lake())
            await self._lake.add_columns(path, before.descriptor, columns)
        await self._catalog.alter_table(
            path,
            lambda table: with_added_columns(table, columns, self._configs.lake()),
            ignore_if_not_exists=ignore_if_not_exists,
        )

    async def alter_properties(
        self, path: TablePath, changes: Iterable[ConfigChange], *, ignore_if_not_exists: bool
    ) -> None:
        """Change properties. The changes are read when the table is known to exist."""
        made: list[ConfigChange] = []

        def change(table: Table) -> Table:
            if not made:
                made.extend(changes)
            return with_changed_properties(table, made, self._limits(), now_ms=self._clock())

        before = self._catalog.table_by_path(path)
        if before is not None:
            await self._alter_lake(before, change(before))
        table = await self._catalog.alter_table(path, change, ignore_if_not_exists=ignore_if_not_exists)
        if table is None:
            return
        self._tiering.look_at(table)
        if any(each.key.startswith(AUTO_PARTITION_PREFIX) for each in made):
            await self._auto_partitioner.look_at(table)

    async def _alter_lake(self, before: Table, after: Table) -> None:
        """Bring properties to the lake table, which is made now if the lake was switched on."""
        if after is before:
            return
        was_on = LAKE_ENABLED.of(before.descriptor.properties)
        if not was_on and LAKE_ENABLED.of(after.descriptor.properties):
            if await self._lake.switch_on(after):
                # The lake table that it had is gone: what it had come to says nothing about the new one.
                await self._lake_snapshots.forget(after)
            return
        old, new = _all_properties(before), _all_properties(after)
        changed_values = {key: value for key, value in new.items() if old.get(key) != value}
        try:
            await self._lake.alter_properties(before.path, before.descriptor, changed_values, old.keys() - new.keys())
        except FlussError as error:
            # A user of the lake has dropped the lake table. Then the lake can be switched off all the same.
            if error.error_code != ErrorCode.TABLE_NOT_EXIST or LAKE_ENABLED.of(after.descriptor.properties):
                raise

    # Partitions

    def partitioned_table(self, path: TablePath) -> Table:
        """Return a table that has partitions. Raises code 7 if it does not exist, and 37 if it has none."""
        table = self._catalog.existing_table(path)
        check_partitioned(table)
        return table

    async def create_partition(self, table: Table, spec: PartitionSpec, *, ignore_if_exists: bool) -> None:
        keys = table.descriptor.partition_keys
        check_partition_spec(spec, keys, creating=True)
        rule = AutoPartitionRule.of(table.descriptor, self._settings.time_zone)
        values = ordered_values(spec, keys)
        rule.check_new_values(values, self._clock())
        for key, value in zip(keys, values, strict=True):
            if not (rule.has_pattern and keys.index(key) == rule.key_index):
                parse_partition_value(value, table.descriptor.schema.column(key).data_type)
        name = partition_name(spec, keys)
        if len(name) > _PARTITION_NAME_CHARS_MAX:
            raise FlussError(
                f"The values of a partition have together {len(name)} characters, at most {_PARTITION_NAME_CHARS_MAX} "
                "are allowed: it has a directory of that name",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )
        if not await self._create_if_absent(table, name) and not ignore_if_exists:
            raise FlussError(
                f"Partition '{qualified_partition_name(spec, keys)}' already exists for table {table.path}",
                ErrorCode.PARTITION_ALREADY_EXISTS,
            )

    async def _create_if_absent(self, table: Table, name: str) -> bool:
        if name in self._catalog.partitions_of(table.table_id):
            return False
        check_bucket_count(table.bucket_count, self._settings.bucket_count_max)
        check_replicas(table.descriptor, self._tags.assignable_count)
        count_max = self._settings.partition_count_max
        return bool(await self._catalog.create_partitions(table.table_id, [name], count_max=count_max))

    async def drop_partition(self, table: Table, spec: PartitionSpec, *, ignore_if_not_exists: bool) -> None:
        keys = table.descriptor.partition_keys
        check_partition_spec(spec, keys, creating=False)
        if _HISTORICAL_PARTITION in spec.spec_map.values():
            raise FlussError(
                f"Partition '{_HISTORICAL_PARTITION}' belongs to the system and cannot be dropped",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )
        dropped = await self._catalog.drop_partitions(table.table_id, [partition_name(spec, keys)])
        if not dropped and not ignore_if_not_exists:
            raise FlussError(
                f"Partition '{qualified_partition_name(spec, keys)}' does not exist for table {table.path}",
                ErrorCode.PARTITION_NOT_EXISTS,
            )


def _all_properties(table: Table) -> dict[str, str]:
    return {**table.descriptor.properties, **table.descriptor.custom_properties}


def check_partitioned(table: Table) -> None:
    """Refuse a table without partitions (code 37)."""
    if not table.is_partitioned:
        raise FlussError(f"Table {table.path} is not partitioned", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION)


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
