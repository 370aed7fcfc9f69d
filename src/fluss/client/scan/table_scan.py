"""The beginning of a scan: which columns, which rows, and how they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.decode import ScanColumns
from fluss.client.kernel.runtime import Runtime, run_as_called
from fluss.client.scan.batch_scanner import BatchScanner
from fluss.client.scan.frames import polars_frame, require_library
from fluss.client.scan.log_scanner import LogScanner
from fluss.client.scan.progress import progress_bar
from fluss.client.scan.records import RecordBatch, ScanRecord, require_pandas
from fluss.client.scan.table_buckets import PartitionChoices, check_bucket_id, checked_choices
from fluss.client.scan.table_read import TableReadOptions
from fluss.client.scan.union_read import begin_read
from fluss.errors import FlussError
from fluss.integers import int32
from fluss.schema.predicate import BoundPredicate, Filter
from fluss.schema.schema import shown_names
from fluss.schema.table import TableBucket, TableInfo
from fluss.schema.table_options import STATISTICS_COLUMNS, LogFormat
from fluss.schema.value_objects import string_list

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from fluss.filter.row_filter import RowFilter


class TableScan:
    """Collects what a scan is to return; then one of the ``create_`` methods makes a scanner of it.

    Or one of the ``to_`` methods reads the whole table at once. Every other method changes the scan and returns it.
    Columns and filters are checked when something is made of them.
    """

    def __init__(self, cluster: Cluster, runtime: Runtime, table_info: TableInfo) -> None:
        self._cluster = cluster
        self._runtime = runtime
        self._info = table_info
        self._projection: Sequence[int | str] | None = None
        self._projection_kind = "indices"
        self._filters: list[Filter] = []
        self._limit: int | None = None
        self._is_aligned = True

    def project(self, indices: Sequence[int]) -> TableScan:
        """Return these columns, by position, in this order; a column may be named more than once."""
        if isinstance(indices, str | bytes) or not isinstance(indices, Iterable):
            raise TypeError(f"indices must be a sequence of int, got {type(indices).__name__}")
        given = list(indices)
        if any(isinstance(index, str) for index in given):
            raise TypeError("a column index must be int, got str; project_by_name takes names")
        positions = [int32("a column index", index) for index in given]
        for position in positions:
            if position < 0:
                raise OverflowError(f"a column index cannot be negative, got {position}")
        self._projection, self._projection_kind = positions, "indices"
        return self

    def project_by_name(self, names: Sequence[str]) -> TableScan:
        """Return these columns, by name, in this order."""
        if names is None:
            raise TypeError("names must be a sequence of str, got None")
        self._projection, self._projection_kind = string_list("names", names), "names"
        return self

    def filter(self, predicate: Filter) -> TableScan:
        """Return only rows for which the condition holds. Several calls add conditions, of which all must hold.

        A condition is an object (``(col("price") > 10) & col("name").starts_with("a")``), a text in SQL
        (``"price > 10 AND name LIKE 'a%'"``), or an expression of pyarrow, polars or pyiceberg. As in SQL, a
        comparison with NULL is unknown, and a row is returned only if its condition is true. NaN equals itself and is
        above all other numbers, as for Spark; only expressions of pyarrow follow the rules of pyarrow.

        The columns of a condition need not be among those that are returned. Servers leave out batches that cannot
        have a row for which it holds, if the table has statistics (``table.statistics.columns``), and the client leaves
        out the other rows; scanners go on behind them. A changelog is filtered change by change, each by its own row:
        a row that an update takes out of the filter is returned as ``-U`` without its ``+U``, and one that it brings
        in as ``+U`` without its ``-U``.
        """
        from fluss.filter.row_filter import check_filter

        check_filter(predicate)
        self._filters.append(predicate)
        return self

    def limit(self, n: int) -> TableScan:
        """Read at most so many rows; for ``create_bucket_batch_scanner``, ``to_arrow`` and the like."""
        number = int32("n", n)
        if number <= 0:
            raise FlussError(f"Scan limit must be positive, got {number}")
        self._limit = number
        return self

    def with_fixed_schema(self, fixed_schema: bool) -> TableScan:
        """Say whether rows written with another schema are returned with the columns of this table (the default).

        Columns they lack are null then. Otherwise they keep the columns they were written with, as long as no columns
        are chosen. Methods that return a single table always use the columns of this table.
        """
        if not isinstance(fixed_schema, bool):
            raise TypeError(f"fixed_schema must be bool, got {type(fixed_schema).__name__}")
        self._is_aligned = fixed_schema
        return self

    async def create_log_scanner(self) -> LogScanner[ScanRecord]:
        """Return a scanner for records, one by one. For a table with a primary key it reads the changes."""
        if self._info.has_primary_key() and self._info.log_format is not LogFormat.ARROW:
            self._refuse_format("The changelog")
        return self._log_scanner(is_batch_scanner=False)

    async def create_record_batch_log_scanner(self) -> LogScanner[RecordBatch]:
        """Return a scanner for batches and tables of Arrow. Only log tables have one."""
        if self._info.has_primary_key():
            raise FlussError(
                f"Batch scanners are unsupported for {self._info.table_path}, which has a primary key: "
                "batches do not say how a row has changed; use create_log_scanner(), or create_changelog_scanner()"
            )
        return self._log_scanner(is_batch_scanner=True)

    async def create_changelog_scanner(self) -> LogScanner[RecordBatch]:
        """Return a scanner for changes as Arrow: batches and tables of rows, and what each row means.

        Tables have three more columns in front: ``_change_type`` (insert, update_before, update_after or delete),
        ``_log_offset`` and ``_commit_timestamp``. Batches say it with ``RecordBatch.change_types``.
        """
        return self._log_scanner(is_batch_scanner=True, is_changelog=True)

    async def create_batch_scanner(self) -> LogScanner[RecordBatch]:
        """Return a scanner for batches: the older name of ``create_record_batch_log_scanner``."""
        return await self.create_record_batch_log_scanner()

    def create_bucket_batch_scanner(self, bucket: TableBucket) -> BatchScanner:
        """Return a scanner for at most ``limit`` rows of one bucket, with a filter for those that it keeps."""
        if not isinstance(bucket, TableBucket):
            raise TypeError(f"bucket must be a TableBucket, got {type(bucket).__name__}")
        if self._limit is None:
            raise FlussError("A bucket batch scanner requires a limit; call limit(n) first")
        self._check_bucket(bucket)
        if not self._info.has_primary_key() and self._info.log_format is not LogFormat.ARROW:
            self._refuse_format("A limited scan")
        columns = self._columns()
        return BatchScanner._create(
            self._cluster, self._runtime, self._info, bucket, self._limit, columns, self._pushed_down(columns)
        )

    # The whole table at once

    def to_arrow(self, partitions: PartitionChoices = None, *, progress: bool = False) -> pa.Table:
        """Read the whole table and return it: the rows it has now, or all that a log table holds up to now.

        ``partitions`` chooses some of them, by name or by values of partition columns; otherwise all that exist now
        are read. With ``limit`` it is at most so many rows, which may be any of them. Rows of a bucket stand together;
        those of a table with a primary key are in no useful order.

        Rows of a table with a primary key are those of one moment in each bucket, the moments of all buckets being as
        close together as the servers allow; the rows do not change while they are read. All that was acknowledged
        before the call is among them. A server before 1.0 cannot return current rows, so all changes are read instead
        and the last of each row counts, which takes longer. If the oldest changes are no longer there, they are read
        from the last snapshot on, in remote storage: this machine has to be able to read it, and needs RocksDB for it
        (``pip install "flussbett[server]"``).

        A table that has a lake is read from there as far as the lake goes, and from Fluss behind it
        (``client.lake.read``): records and partitions that Fluss no longer has are among the rows. Rows of the lake
        come first; those of a log bucket stay in their order.

        ``progress`` shows how far the read is, if there is a terminal or a notebook.
        """
        return run_as_called(self.to_arrow_async(partitions, progress=progress))

    async def to_arrow_async(self, partitions: PartitionChoices = None, *, progress: bool = False) -> pa.Table:
        """Like ``to_arrow``, without blocking the event loop."""
        options = self._read_options(partitions, progress)
        begin = begin_read(self._cluster, self._runtime, self._info, options)
        read = await self._runtime.bridge(begin, cancels=True)
        return pa.Table.from_batches(await read.all_rows(), schema=options.columns.arrow_schema)

    def to_pandas(self, partitions: PartitionChoices = None, *, progress: bool = False) -> pd.DataFrame:
        """Read as ``to_arrow`` does, and return a pandas DataFrame."""
        return run_as_called(self.to_pandas_async(partitions, progress=progress))

    async def to_pandas_async(self, partitions: PartitionChoices = None, *, progress: bool = False) -> pd.DataFrame:
        """Like ``to_pandas``, without blocking the event loop."""
        require_pandas()
        return (await self.to_arrow_async(partitions, progress=progress)).to_pandas()

    def to_polars(self, partitions: PartitionChoices = None, *, progress: bool = False) -> pl.DataFrame:
        """Read as ``to_arrow`` does, and return a polars DataFrame."""
        return run_as_called(self.to_polars_async(partitions, progress=progress))

    async def to_polars_async(self, partitions: PartitionChoices = None, *, progress: bool = False) -> pl.DataFrame:
        """Like ``to_polars``, without blocking the event loop."""
        require_library("polars", "A data frame")
        return polars_frame(await self.to_arrow_async(partitions, progress=progress))

    def to_arrow_batch_reader(
        self, partitions: PartitionChoices = None, *, progress: bool = False
    ) -> pa.RecordBatchReader:
        """Return a reader over what ``to_arrow`` returns, for tables that do not fit into memory.

        Rows are fetched as they are read. If a server has lost the rows of a moment before their end (code 66),
        because it was restarted or the reader has paused for minutes, the reader fails. Only servers before 1.0 make it
        keep all rows of a table with a primary key in memory.
        """
        options = self._read_options(partitions, progress)
        read = self._runtime.run(begin_read(self._cluster, self._runtime, self._info, options))
        return pa.RecordBatchReader.from_batches(options.columns.arrow_schema, read.batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Read as ``to_arrow_batch_reader`` does, for everything that takes Arrow data: ``pa.table(scan)``."""
        return self.to_arrow_batch_reader().__arrow_c_stream__(requested_schema)

    def _batches(self, partitions: PartitionChoices) -> Iterator[pa.RecordBatch]:
        """Yield the rows, beginning to read when the first is asked for."""
        options = self._read_options(partitions)
        read = self._runtime.run(begin_read(self._cluster, self._runtime, self._info, options))
        yield from read.batches()

    def _read_options(self, partitions: PartitionChoices, progress: bool = False) -> TableReadOptions:
        columns = self._columns()
        return TableReadOptions(
            columns,
            self._pushed_down(columns),
            self._limit,
            checked_choices(self._info, partitions),
            progress=progress_bar(f"reading {self._info.table_path}") if progress else None,
        )

    def __repr__(self) -> str:
        return f"TableScan(table={self._info.table_path})"

    def _log_scanner(self, *, is_batch_scanner: bool, is_changelog: bool = False) -> LogScanner[Any]:
        if self._limit is not None:
            raise FlussError(
                "Log scanners do not support limit pushdown; use create_bucket_batch_scanner(), or leave limit() out"
            )
        columns = self._columns()
        return LogScanner._create(
            self._cluster,
            self._runtime,
            self._info,
            columns,
            predicate=self._pushed_down(columns),
            is_batch_scanner=is_batch_scanner,
            is_changelog=is_changelog,
            is_aligned=self._is_aligned,
        )

    def _columns(self) -> ScanColumns:
        schema = self._info.schema
        return ScanColumns(self._info.schema_id, schema, self._positions(), self._row_filter())

    def _row_filter(self) -> RowFilter | None:
        if not self._filters:
            return None
        # Scans without a condition do not load what reads them.
        from fluss.filter.row_filter import RowFilter

        return RowFilter.of(self._filters, self._info.schema)

    def _positions(self) -> list[int] | None:
        schema = self._info.schema
        names = schema.column_names
        if self._projection is None:
            return None
        if not self._projection:
            raise FlussError(f"Column {self._projection_kind} cannot be empty")
        positions = []
        for column in self._projection:
            if isinstance(column, str):
                if column not in names:
                    raise FlussError(f"Column '{column}' not found; columns are {shown_names(names)}")
                positions.append(schema.index_of(column))
            elif column < len(names):
                positions.append(column)
            else:
                raise FlussError(f"Column index {column} out of range: the table has {len(names)} columns")
        return positions

    def _pushed_down(self, columns: ScanColumns) -> BoundPredicate | None:
        """Return what servers may know of the filter, if batches have bounds for them to decide by.

        A filter that can skip nothing would only cost them time.
        """
        info, row_filter = self._info, columns.row_filter
        if row_filter is None or info.log_format is not LogFormat.ARROW:
            return None
        with_bounds = STATISTICS_COLUMNS.of(info.properties) or ""
        names = info.schema.column_names if with_bounds.strip() == "*" else map(str.strip, with_bounds.split(","))
        return None if row_filter.columns.isdisjoint(names) else row_filter.bound_predicate()

    def _check_bucket(self, bucket: TableBucket) -> None:
        info = self._info
        if bucket.table_id != info.table_id:
            raise FlussError(f"{bucket} belongs to another table: {info.table_path} has the table id {info.table_id}")
        check_bucket_id(info, bucket.bucket_id)
        if info.is_partitioned() is (bucket.partition_id is None):
            kind = "a" if info.is_partitioned() else "not a"
            raise FlussError(f"{info.table_path} is {kind} partitioned table, which {bucket} does not fit")

    def _refuse_format(self, what: str) -> NoReturn:
        raise FlussError(
            f"{what} is not supported for the log format {self._info.log_format} of {self._info.table_path}; "
            f"it needs the log format ARROW"
        )
