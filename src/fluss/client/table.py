"""A table of a connection: where scans and writes begin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import pyarrow as pa

from fluss.client.cluster import Cluster
from fluss.client.runtime import Runtime
from fluss.client.scan.table_scan import TableScan
from fluss.client.write.append_writer import AppendWriter
from fluss.client.write.table_append import TableAppend
from fluss.client.write.writer_client import WriterClient
from fluss.errors import FlussError
from fluss.schema.server_made import ServerMade
from fluss.schema.table import TableInfo, TablePath


class FlussTable(ServerMade):
    """A table with the schema it had when ``FlussConnection.get_table`` returned it."""

    _cluster: Cluster
    _runtime: Runtime
    _writer_client: Callable[[], WriterClient]
    _info: TableInfo

    @classmethod
    def _create(
        cls, cluster: Cluster, runtime: Runtime, writer_client: Callable[[], WriterClient], info: TableInfo
    ) -> FlussTable:
        return cls._with_fields(_cluster=cluster, _runtime=runtime, _writer_client=writer_client, _info=info)

    @property
    def table_path(self) -> TablePath:
        """The name of the table."""
        return self._info.table_path

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the whole table; the fields of a primary key are not nullable."""
        return self._info.schema.to_arrow()

    def get_table_info(self) -> TableInfo:
        """Return how the table was when this object was obtained."""
        return self._info

    def get_table_path(self) -> TablePath:
        """Return the name of the table."""
        return self._info.table_path

    def has_primary_key(self) -> bool:
        """Whether rows have a key; if not, it is a log table."""
        return self._info.has_primary_key()

    def new_scan(self) -> TableScan:
        """Begin a scan: choose columns and conditions, then create a scanner."""
        return TableScan(self._cluster, self._runtime, self._info)

    def new_append(self) -> TableAppend:
        """Begin to append rows. Only log tables take them."""
        if self.has_primary_key():
            raise FlussError(
                f"Append is only supported for log tables, and {self.table_path} has a primary key; use new_upsert()"
            )
        return TableAppend(self._writer_client, self._info)

    def new_append_writer(self) -> AppendWriter:
        """Return a writer for rows: the older name of ``new_append().create_writer()``. It may also be awaited."""
        return self.new_append().create_writer()

    def new_upsert(self, columns: Sequence[str] | None = None, column_indices: Sequence[int] | None = None) -> NoReturn:
        """Begin to upsert rows. Only tables with a primary key take them, and this version does not write to those."""
        self._refuse_key_operation("Upsert")

    def new_lookup(self) -> NoReturn:
        """Begin to look rows up. Only tables with a primary key can, and this version does not read those."""
        self._refuse_key_operation("Lookup")

    def _refuse_key_operation(self, operation: str) -> NoReturn:
        if not self.has_primary_key():
            raise FlussError(
                f"{operation} is only supported for primary key tables, and {self.table_path} is a log table"
            )
        raise FlussError(f"{operation} on {self.table_path}: this version does not support primary-key tables yet")

    def __repr__(self) -> str:
        return f"FlussTable(path={self.table_path})"
