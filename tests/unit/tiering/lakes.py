"""Tables with a lake, for tests: made, written, and compared with what the lake has of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import pyarrow as pa
from pyiceberg.table import Table as IcebergTable

import fluss
from fluss import FlussTable
from fluss.client.bulk import reopened, wait_for
from fluss.lake.schema_mapping import SYSTEM_COLUMNS
from fluss.tiering.round_plan import lake_tables_of

LAKE = {"table.datalake.enabled": "true"}


class LakeCluster:
    """A connection to a server that has a lake. A context manager."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.connection = wait_for(fluss.FlussConnection.create(bootstrap_servers))
        self.admin = self.connection.get_admin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()

    def create(
        self,
        name: str,
        columns: pa.Schema,
        *,
        primary_keys: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        buckets: int = 2,
        properties: Mapping[str, str] | None = None,
        **more: Any,
    ) -> FlussTable:
        """Create a table with a lake."""
        descriptor = fluss.TableDescriptor(
            fluss.Schema(columns, primary_keys=list(primary_keys)),
            partition_keys=list(partition_keys),
            bucket_count=buckets,
            properties={**LAKE, **(properties or {})},
            **more,
        )
        wait_for(self.admin.create_table(name, descriptor, False))
        return self.table(name)

    def table(self, name: str) -> FlussTable:
        """Return a table as it is now."""
        return wait_for(self.connection.get_table(name))

    def append(self, name: str, rows: pa.Table) -> None:
        """Append rows, and wait until they are stored."""
        writer = self.table(name).new_append().create_writer()
        writer.write_arrow(rows)
        wait_for(writer.flush())

    def upsert(
        self, name: str, rows: Sequence[Mapping[str, Any]] = (), deletes: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Upsert rows and delete keys, and wait until that is done."""
        writer = self.table(name).new_upsert().create_writer()
        for row in rows:
            writer.upsert(row)
        for key in deletes:
            writer.delete(key)
        wait_for(writer.flush())


def lake_table(table: FlussTable) -> IcebergTable:
    """Load the lake table of a table."""
    return lake_tables_of(reopened(table).get_table_info()).load(table.table_path)


def lake_rows(table: FlussTable, *, system: bool = False) -> list[dict[str, Any]]:
    """Return what the lake has, read by pyiceberg alone."""
    rows = lake_table(table).scan().to_arrow()
    if not system:
        rows = rows.drop_columns([name for name in SYSTEM_COLUMNS if name in rows.schema.names])
    return ordered(rows.to_pylist())


def ordered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)
