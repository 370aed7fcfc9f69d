"""A table of a connection: where scans, writes and lookups begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from fluss.client.consume.consumer import Consumer, ConsumerOptions, IfLost, OnAssign, OnRevoke
from fluss.client.consume.consumer_info import ConsumerInfo, consumer_infos, drop_consumer
from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import Runtime, run_as_called
from fluss.client.lookup.lookup_client import LookupClient
from fluss.client.lookup.lookupers import TableLookup
from fluss.client.scan.frames import duckdb_relation, lazy_polars_frame
from fluss.client.scan.table_buckets import PartitionChoices, checked_choices
from fluss.client.scan.table_scan import TableScan
from fluss.client.write.writers import AppendWriter, TableAppend, TableUpsert
from fluss.errors import FlussError
from fluss.schema.offsets import OffsetSpec
from fluss.schema.predicate import Filter
from fluss.schema.table import TableInfo, TablePath
from fluss.schema.value_objects import ServerMade

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

    from fluss.client.write.writer_client import WriterClient


@dataclass(frozen=True, slots=True, eq=False)
class TableContext:
    """What everything that is made of one table works with."""

    cluster: Cluster
    runtime: Runtime
    info: TableInfo
    # The clients that all tables of a connection share. They are made when they are first needed.
    writer_client: Callable[[], WriterClient]
    lookup_client: Callable[[], LookupClient]


class FlussTable(ServerMade):
    """A table with the schema it had when ``FlussConnection.get_table`` returned it."""

    _context: TableContext
    _info: TableInfo

    @classmethod
    def _create(cls, context: TableContext) -> FlussTable:
        return cls._with_fields(_context=context, _info=context.info)

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
        return TableScan(self._context.cluster, self._context.runtime, self._info)

    def new_append(self) -> TableAppend:
        """Begin to append rows. Only log tables take them."""
        if self.has_primary_key():
            raise FlussError(
                f"Append is only supported for log tables, and {self.table_path} has a primary key; use new_upsert()"
            )
        return TableAppend(self._context.writer_client, self._info)

    def new_append_writer(self) -> AppendWriter:
        """Return a writer for rows: the older name of ``new_append().create_writer()``. It may also be awaited."""
        return self.new_append().create_writer()

    def new_upsert(
        self, columns: Sequence[str] | None = None, column_indices: Sequence[int] | None = None
    ) -> TableUpsert:
        """Begin to upsert and delete rows. Only tables with a primary key take them.

        ``columns`` or ``column_indices`` choose the columns of a partial update, as the methods of the result do.
        """
        self._require_key("Upsert")
        return TableUpsert(self._context.writer_client, self._info, columns, column_indices)

    def new_lookup(self) -> TableLookup:
        """Begin to look rows up by their keys. Only tables with a primary key have them."""
        self._require_key("Lookup")
        return TableLookup(self._context.lookup_client, self._info)

    def _require_key(self, operation: str) -> None:
        if not self.has_primary_key():
            raise FlussError(
                f"{operation} is only supported for primary key tables, and {self.table_path} is a log table"
            )

    # Consumers

    def consumer(
        self,
        name: str,
        *,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,
        start: OffsetSpec | str = "earliest",
        auto_commit: bool = True,
        if_lost: IfLost = "fail",
        on_assign: OnAssign | None = None,
        on_revoke: OnRevoke | None = None,
    ) -> Consumer:
        """Return a consumer of the table's log, or changelog, that goes on where the one of this name has come to.

        Several of the same name, in any processes, share the buckets; see ``Consumer`` for what is promised.
        ``columns`` and ``filter`` are those of a scan. ``start`` is where a name begins that has no positions yet:
        ``"earliest"``, ``"latest"``, or ``OffsetSpec.timestamp(ms)``; partitions that come later are read from their
        beginning.
        ``auto_commit`` says whether polls commit what earlier ones returned; otherwise ``Consumer.commit`` does.
        ``if_lost`` says what happens when records are gone that were not read: ``"fail"``, or go on at ``"earliest"``
        or ``"latest"``.

        ``on_assign(bucket, epoch)`` is called in a poll before a bucket is read; it may return the offset to begin at,
        which a sink has stored that wants every record exactly once. ``on_revoke(buckets)`` is called in a poll before
        buckets go to other members, which is the time to commit. Both may be coroutine functions if polls are awaited.
        """
        if if_lost not in ("fail", "earliest", "latest"):
            raise FlussError(f"if_lost must be 'fail', 'earliest' or 'latest', got {if_lost!r}")
        options = ConsumerOptions(OffsetSpec.of(start), auto_commit, if_lost, on_assign, on_revoke)
        context = self._context
        scan = self._scan(columns, filter, None)
        return Consumer._create(context.cluster, context.runtime, self._info, scan, name, options)

    async def consumers(self) -> list[ConsumerInfo]:
        """Return all consumers of the table: their members, and where they are in each bucket."""
        context = self._context
        return await context.runtime.bridge(consumer_infos(context.cluster, context.runtime, self._info))

    async def drop_consumer(self, name: str, *, force: bool = False) -> None:
        """Forget the positions of a consumer. One that has members is refused unless ``force``."""
        context = self._context
        await context.runtime.bridge(drop_consumer(context.cluster, context.runtime, self._info, name, force=force))

    # The whole table at once

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: Filter | None = None,
        partitions: PartitionChoices = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> pa.Table:
        """Read the whole table: the rows it has now, or all that a log table holds up to now.

        ``columns`` are the columns to return, by default all; ``filter`` is a condition on the rows, such as
        ``col("price") > 10`` or ``"price > 10"`` (see ``TableScan.filter``). ``partitions`` and ``limit`` are those of
        ``TableScan.to_arrow``, which also says what is consistent. ``progress`` shows how far the read is, if there is
        a terminal or a notebook.
        """
        coroutine = self.to_arrow_async(columns, filter=filter, partitions=partitions, limit=limit, progress=progress)
        return run_as_called(coroutine)

    async def to_arrow_async(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: Filter | None = None,
        partitions: PartitionChoices = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> pa.Table:
        """Like ``to_arrow``, without blocking the event loop."""
        return await self._scan(columns, filter, limit).to_arrow_async(partitions, progress=progress)

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: Filter | None = None,
        partitions: PartitionChoices = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> pd.DataFrame:
        """Read as ``to_arrow`` does, and return a pandas DataFrame."""
        coroutine = self.to_pandas_async(columns, filter=filter, partitions=partitions, limit=limit, progress=progress)
        return run_as_called(coroutine)

    async def to_pandas_async(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: Filter | None = None,
        partitions: PartitionChoices = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> pd.DataFrame:
        """Like ``to_pandas``, without blocking the event loop."""
        return await self._scan(columns, filter, limit).to_pandas_async(partitions, progress=progress)

    def to_polars(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: Filter | None = None,
        partitions: PartitionChoices = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> pl.DataFrame:
        """Read as ``to_arrow`` does, and return a polars DataFrame; ``scan_polars`` is the lazy way."""
        coroutine = self.to_polars_async(columns, filter=filter, partitions=partitions, limit=limit, progress=progress)
        return run_as_called(coroutine)

    async def to_polars_async(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: Filter | None = None,
        partitions: PartitionChoices = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> pl.DataFrame:
        """Like ``to_polars``, without blocking the event loop."""
        return await self._scan(columns, filter, limit).to_polars_async(partitions, progress=progress)

    def to_arrow_batch_reader(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: Filter | None = None,
        partitions: PartitionChoices = None,
        limit: int | None = None,
        progress: bool = False,
    ) -> pa.RecordBatchReader:
        """Return a reader over what ``to_arrow`` returns, for tables that do not fit into memory.

        Rows are fetched as they are read; ``TableScan.to_arrow_batch_reader`` says more.
        """
        return self._scan(columns, filter, limit).to_arrow_batch_reader(partitions, progress=progress)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Read as ``to_arrow_batch_reader`` does, for everything that takes Arrow data.

        So ``pa.table(orders)`` and ``pl.DataFrame(orders)`` work, and ``duckdb.sql("select ... from orders")``, where
        ``orders`` is the variable that holds this table.
        """
        return self.new_scan().__arrow_c_stream__(requested_schema)

    # Lazily

    def scan_polars(self, *, partitions: PartitionChoices = None) -> pl.LazyFrame:
        """Return a lazy frame of polars: only columns and rows that a query needs are read, when it is collected.

        Conditions that compare columns with values are applied while reading, the others by polars. ``partitions``
        chooses some; conditions on partition columns leave out the others, too. Every ``collect`` reads anew.
        """
        checked_choices(self._info, partitions)
        return lazy_polars_frame(self._info.schema, partial(self._batches, partitions))

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None, *, partitions: PartitionChoices = None
    ) -> duckdb.DuckDBPyRelation:
        """Return a relation of duckdb: only columns and rows that a query needs are read, each time that it runs.

        It belongs to ``connection``, or to duckdb's default one. In SQL it goes by the name of its variable, or by
        that of ``relation.create_view("name")``. ``partitions`` chooses some of them.
        """
        checked_choices(self._info, partitions)
        return duckdb_relation(self._info.schema, partial(self._batches, partitions), connection)

    def _batches(
        self,
        partitions: PartitionChoices,
        columns: Sequence[str] | None,
        condition: Filter | None,
        limit: int | None,
    ) -> Iterator[pa.RecordBatch]:
        return self._scan(columns, condition, limit)._batches(partitions)

    def _scan(self, columns: Sequence[str] | None, condition: Filter | None, limit: int | None) -> TableScan:
        scan = self.new_scan()
        if columns is not None:
            scan = scan.project_by_name(columns)
        if condition is not None:
            scan = scan.filter(condition)
        return scan if limit is None else scan.limit(limit)

    def __repr__(self) -> str:
        return f"FlussTable(path={self.table_path})"

    def _repr_html_(self) -> str:
        return self._info._repr_html_()


def context_of(table: FlussTable) -> TableContext:
    """Return what a table works with, for the bulk operations of the library."""
    return table._context
