"""What a task does: reads its splits of a table, and returns them as Spark takes them.

records or rows -> those of the time range -> with what they mean -> filter -> joined or cut -> columns for Spark

The view ``$binlog`` shows changes as events, one for each insert, update and delete:

| column            | meaning                                                                                  |
|-------------------|------------------------------------------------------------------------------------------|
| _change_type      | insert, update or delete                                                                 |
| _log_offset       | the position in the log of the bucket; of an update, that of the row before it           |
| _commit_timestamp | when the server appended it                                                              |
| before            | the row before an update or a delete; null for an insert                                 |
| after             | the row after an insert or an update; null for a delete                                  |

Columns and values are those of the virtual ``$binlog`` tables of Flink SQL. A changelog with the image WAL does not
have the rows before updates: there ``before`` is null, and what is called an update may be an insert. In the log an
update is two records, the row before and the row after it, which follow each other in one batch. A range of offsets has
an update if it has its first record. So one that ends between the two needs the record behind its end, and one that
begins between them leaves its first record out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import StructType

from fluss import FlussTable
from fluss.buffers import Int64Array, UInt8Array
from fluss.client.bulk import (
    NOT_IN_LOG,
    ChangelogFold,
    LogRange,
    RecordRun,
    changelog_batch,
    changelog_schema,
    partitions_of,
    read_ranges,
    rows_at,
    rows_with_changes,
    scan_columns,
)
from fluss.errors import ErrorCode, FlussError, RequestTimeoutError
from fluss.row.arrow_arrays import narrowest_column, number_array, string_array
from fluss.schema.offsets import ChangeType
from fluss.schema.predicate import Predicate
from fluss.schema.schema import Column, Schema, schema_from_columns, shown_names
from fluss.schema.table import TableBucket, TableInfo
from fluss.schema.types import BigIntType, StringType, TimestampLtzType
from fluss.spark.connections import Retry, open_table
from fluss.spark.conversion import ToSpark
from fluss.spark.query_options import ReadOptions
from fluss.spark.read.planner import ReadView, Split
from fluss.spark.read.snapshot import partition_may_match
from fluss.spark.type_mapping import AFTER, BEFORE, CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET

if TYPE_CHECKING:
    from fluss.filter.row_filter import RowFilter
    from fluss.lake.fluss_rows import LakeRows
    from fluss.lake.scans import LakeFile


_CHANGE_COLUMNS: Final = (CHANGE_TYPE, LOG_OFFSET, COMMIT_TIMESTAMP)
# Spark takes as long for a batch of 1,000 rows as for a much larger one; from so many rows on it makes no difference.
_BATCH_ROWS_MIN: Final = 16_384
_BATCH_ROWS_MAX: Final = 131_072
_BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
# Changes that are folded at a time, unless one bucket has more.
_FOLD_ROWS: Final = 262_144
_INSERT, _UPDATE, _DELETE = range(3)
_EVENT_NAMES: Final = ("insert", "update", "delete")
_EVENTS: Final = {ChangeType.Insert: _INSERT, ChangeType.UpdateAfter: _UPDATE, ChangeType.Delete: _DELETE}
_NOTHING: Final = -1
_TIMESTAMP: Final = pa.timestamp("ms", "UTC")
logger = logging.getLogger(__name__)

# Reads the record at an offset of a bucket; None if there is no such record (any more).
ReadRecord = Callable[[int], "RecordRun | None"]


@dataclass(frozen=True)
class SplitRead:
    """Reads parts of a table on an executor. It is made on the driver, and sent.

    ``schema`` is what Spark expects, except that it may want other ``names``, in other upper and lower case. With a
    ``table_id`` the table must still be the one with this id.
    """

    options: ReadOptions
    schema: StructType
    view: ReadView
    table_id: int | None = None
    names: tuple[str, ...] | None = None
    # Reads files of the lake, if there are some among the splits.
    lake: LakeRows | None = None

    def read(self, splits: Sequence[Split]) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of parts, blocking. Closing the iterator ends all fetching."""
        connection, path = self.options.connection, self.options.table.path
        # As long as a task waits for rows.
        retry = Retry(f"The cluster of {path}", self.options.poll_timeout_s, limit_key="scan.poll.timeout")
        table = retry.call(lambda _: open_table(connection, path))
        info = table.get_table_info()
        if self.table_id is not None and info.table_id != self.table_id:
            raise FlussError(
                f"{info.table_path} was dropped and created again since the read was planned; read it again",
                ErrorCode.TABLE_NOT_EXIST,
            )
        try:
            yield from _counted(_TaskRead(self, table, info).batches(splits), f"{path}, {len(splits)} splits")
        except RequestTimeoutError as error:
            raise RequestTimeoutError(f"{error.message}; 'scan.poll.timeout' says how long a task waits") from error
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            raise FlussError(_dropped(table, splits) or error.message, error.error_code) from error


def _counted(batches: Generator[pa.RecordBatch, None, None], what: str) -> Iterator[pa.RecordBatch]:
    """Pass batches on, and say in the end how much that was, and how long a task has waited for it."""
    rows = byte_count = batch_count = 0
    waited_s = 0.0
    with closing(batches):
        try:
            while True:
                begun_s = time.perf_counter()
                batch = next(batches, None)
                waited_s += time.perf_counter() - begun_s
                if batch is None:
                    return
                rows += batch.num_rows
                byte_count += batch.nbytes
                batch_count += 1
                yield batch
        finally:
            figures = f"{byte_count} bytes in {batch_count} batches, waited for {waited_s:.3f} s"
            logger.info("read %d rows of %s: %s", rows, what, figures)


def _dropped(table: FlussTable, splits: Sequence[Split]) -> str | None:
    """Say which partitions of a read have been dropped; None if all of them are there."""
    existing = {partition.partition_id for partition in partitions_of(table)}
    names = {
        str(split.partition_name): None
        for split in splits
        if split.kind != "lake" and split.partition_id not in existing
    }
    if not names:
        return None
    plural = "s" if len(names) > 1 else ""
    verb = "were" if plural else "was"
    return (
        f"The partition{plural} {shown_names(list(names))} of {table.table_path} {verb} dropped since the read was "
        "planned; read the table again"
    )


def filter_schema(info: TableInfo, view: ReadView) -> Schema:
    """Return the columns that a filter can name: those of the table, and for its changes what they mean."""
    if view != "changelog":
        return info.schema
    # Columns have ids in a schema either all or none, and those of the table keep theirs.
    next_id = info.schema.highest_field_id + 1
    change_columns = [
        Column(CHANGE_TYPE, StringType(nullable=False), column_id=next_id),
        Column(LOG_OFFSET, BigIntType(nullable=False), column_id=next_id + 1),
        Column(COMMIT_TIMESTAMP, TimestampLtzType(3), column_id=next_id + 2),
    ]
    return schema_from_columns([*change_columns, *info.schema.columns])


def view_filter(options: ReadOptions, info: TableInfo, view: ReadView) -> RowFilter | None:
    """Return the condition on the rows of a view, if there is one."""
    if options.filter is not None and view == "binlog":
        raise FlussError("'scan.filter' cannot be used with $binlog, whose rows are inside others; use a where clause")
    return options.row_filter(filter_schema(info, view))


def view_hint(options: ReadOptions, info: TableInfo, view: ReadView) -> RowFilter | None:
    """Return the condition on the rows of a view that Spark has told, as far as it is of use here."""
    return None if view == "binlog" else options.row_hint(filter_schema(info, view))


def table_filter(row_filter: RowFilter | None, info: TableInfo) -> RowFilter | None:
    """Return a condition if it is on columns of the table only: then servers and partitions can be asked about it."""
    if row_filter is None or not row_filter.columns <= set(info.schema.column_names):
        return None
    return row_filter


def both_filters(first: RowFilter | None, second: RowFilter | None) -> RowFilter | None:
    """Return a filter that keeps what two filters keep."""
    if first is None or second is None:
        return first or second
    return first.both(first, second)


def table_columns(schema: StructType, view: ReadView, row_filter: RowFilter | None, info: TableInfo) -> list[str]:
    """Return the columns of the table that it takes to return the columns of a view, at least one."""
    names = info.schema.column_names
    if view == "binlog" and {BEFORE, AFTER} & set(schema.names):
        return names
    wanted = dict.fromkeys([*schema.names, *sorted(row_filter.columns if row_filter else ())])
    if view == "changelog":
        wanted = {name: None for name in wanted if name not in _CHANGE_COLUMNS}
    elif view == "binlog":
        wanted = {}
    # Rows without columns cannot be fetched.
    return list(wanted) or [narrowest_column(info.schema)]


class _TaskRead:
    """One task at work."""

    def __init__(self, read: SplitRead, table: FlussTable, info: TableInfo) -> None:
        self._table = table
        self._info = info
        self._view = read.view
        self._start_ms = read.options.incremental_start_ms
        self._end_ms = read.options.incremental_end_ms
        hint = view_hint(read.options, info, read.view)
        row_filter = both_filters(view_filter(read.options, info, read.view), hint)
        self._columns = table_columns(read.schema, read.view, row_filter, info)
        self._filter = row_filter
        pushed = table_filter(row_filter, info)
        self._predicate = None if pushed is None else pushed.predicate()
        used = {*read.schema.names, *(row_filter.columns if row_filter else ())}
        self._has_change_columns = read.view == "changelog" and not used.isdisjoint(_CHANGE_COLUMNS)
        self._hint = table_filter(hint, info)
        self._lake = read.lake
        self._limit = read.options.hinted_limit
        self._timeout_s = read.options.poll_timeout_s
        self._to_spark = ToSpark(read.schema)
        self._names = None if read.names is None or list(read.names) == read.schema.names else list(read.names)

    def batches(self, splits: Sequence[Split]) -> Generator[pa.RecordBatch, None, None]:
        # A stream plans its splits without knowing what Spark will tell.
        left = [split for split in splits if partition_may_match(self._info, split.partition_name, self._hint)]
        for batch in _resized(self._limited(self._filtered(self._rows(left)))):
            converted = self._to_spark(batch)
            yield converted if self._names is None else converted.rename_columns(self._names)

    def _limited(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._limit is None:
            yield from batches
            return
        left = self._limit
        for batch in batches:
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return

    def _filtered(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._filter is None:
            yield from batches
            return
        for batch in batches:
            yield self._filter.filter(batch)

    # Parts

    def _rows(self, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
        files: list[LakeFile] = []
        logs: list[Split] = []
        for split in splits:
            match split.kind:
                case "rows":
                    yield from map(self._as_inserts, self._rows_at(split))
                case "merged":
                    yield from self._merged(split)
                case "lake":
                    files += split.files
                case "log":
                    logs.append(split)
                case _:
                    assert_never(split.kind)
        if files:
            assert self._lake is not None, "it comes with the files"
            for batch in self._lake.batches(files):
                yield batch.select(self._columns)
        match self._view:
            case "binlog":
                yield from self._events(logs)
            case "upserts":
                yield from self._folded(logs)
            case "changelog" if self._has_change_columns:
                for run in self._runs(logs):
                    yield run.with_changes()
            case _:
                for run in self._runs(logs):
                    yield run.batch

    def _rows_at(self, split: Split) -> Iterator[pa.RecordBatch]:
        bucket, columns = self._bucket(split), self._columns
        return rows_at(self._table, bucket, split.stop, columns=columns, idle_timeout_s=self._timeout_s)

    def _merged(self, split: Split) -> Iterator[pa.RecordBatch]:
        assert self._lake is not None, "it comes with the files"
        changes = LogRange(self._bucket(split), split.start, split.stop)
        return rows_with_changes(
            self._table, self._lake, split.files, changes, self._columns, idle_timeout_s=self._timeout_s
        )

    def _as_inserts(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as a view of changes has them: with no place in the log, and without a time."""
        if self._view == "binlog":
            return inserted_batch(rows)
        return changelog_batch(rows, NOT_IN_LOG, NOT_IN_LOG, None) if self._has_change_columns else rows

    def _runs(self, splits: Sequence[Split], columns: Sequence[str] | None = None) -> Iterator[RecordRun]:
        """Read logs, without what is not of the time range."""
        # Other views fold or pair changes, so there no change may be left out.
        predicate = self._predicate if self._view in ("log", "changelog") else None
        ranges = [LogRange(self._bucket(split), split.start, split.stop) for split in splits]
        for run in self._read_log(ranges, columns or self._columns, predicate):
            if self._start_ms is not None and run.timestamp_ms < self._start_ms:
                continue
            if self._end_ms is not None and run.timestamp_ms >= self._end_ms:
                continue
            yield run

    def _read_log(
        self, ranges: Sequence[LogRange], columns: Sequence[str], predicate: Predicate | None = None
    ) -> Generator[RecordRun, None, None]:
        return read_ranges(self._table, ranges, columns=columns, predicate=predicate, idle_timeout_s=self._timeout_s)

    def _folded(self, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
        """Return the last state of each key that was changed and not deleted, a few buckets at a time."""
        columns = scan_columns(self._info, self._columns)
        with_keys = columns.with_columns(self._info.physical_primary_keys)
        names = [column.name for column in with_keys.columns]
        for group in _groups(splits, _FOLD_ROWS):
            fold = ChangelogFold(columns, with_keys, self._info.physical_primary_keys)
            for run in self._runs(group, names):
                fold.add(run)
            for run in fold.rows():
                yield run.batch

    def _events(self, splits: Sequence[Split]) -> Iterator[pa.RecordBatch]:
        by_bucket: dict[TableBucket, list[Split]] = {}
        for split in splits:
            by_bucket.setdefault(self._bucket(split), []).append(split)
        for run in self._runs(splits):
            part = next(each for each in by_bucket[run.bucket] if each.start <= run.base_offset < each.stop)
            read_record = partial(self._record, run.bucket)
            yield binlog_batch(run, start=part.start, stop=part.stop, read_record=read_record)

    def _record(self, bucket: TableBucket, offset: int) -> RecordRun | None:
        """Read a single record; one that has expired was the last of its batch."""
        try:
            with closing(self._read_log([LogRange(bucket, offset, offset + 1)], self._columns)) as runs:
                return next(runs, None)
        except FlussError as error:
            if error.error_code != ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
                raise
            return None

    def _bucket(self, split: Split) -> TableBucket:
        return split.bucket(self._info.table_id)


def _groups(splits: Sequence[Split], rows_max: int) -> Iterator[list[Split]]:
    """Put parts together as long as they have no more than so many rows."""
    group: list[Split] = []
    row_count = 0
    for split in splits:
        if group and row_count + split.weight > rows_max:
            yield group
            group, row_count = [], 0
        group.append(split)
        row_count += split.weight
    if group:
        yield group


def _resized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches that are too small, and cut those that are too large."""
    pending: list[pa.RecordBatch] = []
    row_count = byte_count = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        pending.append(batch)
        row_count += batch.num_rows
        byte_count += batch.nbytes
        if row_count >= _BATCH_ROWS_MIN or byte_count >= _BATCH_BYTES_MAX:
            yield from _cut(_joined(pending))
            pending, row_count, byte_count = [], 0, 0
    if pending:
        yield from _cut(_joined(pending))


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    bytes_per_row = max(1, batch.nbytes // batch.num_rows)
    rows_max = max(1, min(_BATCH_ROWS_MAX, _BATCH_BYTES_MAX // bytes_per_row))
    if batch.num_rows <= rows_max:
        yield batch
        return
    for begin in range(0, batch.num_rows, rows_max):
        yield batch.slice(begin, rows_max)


# Changes as events


def binlog_batch(run: RecordRun, *, start: int, stop: int, read_record: ReadRecord) -> pa.RecordBatch:
    """Return the events of consecutive changes inside the range from ``start`` to ``stop``."""
    rows, types = run.batch, run.change_types
    assert rows is not None
    if types is None:
        types = np.full(run.count, ChangeType.Insert, np.uint8)
    if run.base_offset + run.count == stop and types[-1] == ChangeType.UpdateBefore:
        after = read_record(stop)
        if after is not None and after.change_types is not None:
            rows = pa.concat_batches([rows, after.batch])
            types = np.concatenate([types, after.change_types])
    positions = np.flatnonzero(types != ChangeType.UpdateBefore)
    if run.base_offset == start > 0 and types[0] == ChangeType.UpdateAfter:
        before = read_record(start - 1)
        if before is not None and before.change_types is not None and before.change_types[0] == ChangeType.UpdateBefore:
            positions = positions[1:]
    return _events(rows, types, positions, run.base_offset, run.timestamp_ms)


def _events(
    rows: pa.RecordBatch, types: UInt8Array, positions: Int64Array, base_offset: int, timestamp_ms: int
) -> pa.RecordBatch:
    own_types = types[positions]
    previous = positions - 1
    has_before = (own_types == ChangeType.UpdateAfter) & (previous >= 0)
    has_before &= types[np.maximum(previous, 0)] == ChangeType.UpdateBefore
    is_delete = own_types == ChangeType.Delete
    before = np.where(has_before, previous, np.where(is_delete, positions, _NOTHING))
    after = np.where(is_delete, _NOTHING, positions)
    offsets = base_offset + np.where(has_before, previous, positions)
    events = np.full(len(types), _INSERT, np.int32)
    for change_type, event in _EVENTS.items():
        events[types == change_type] = event
    timestamps = number_array(np.full(len(positions), timestamp_ms, np.int64)).view(_TIMESTAMP)
    return _batch(rows, events[positions], offsets, timestamps, before, after)


def inserted_batch(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows that were not read from a log as events: inserts without a place in it, and without a time."""
    count = rows.num_rows
    offsets, before = np.full(count, NOT_IN_LOG, np.int64), np.full(count, _NOTHING, np.int64)
    inserts = np.full(count, _INSERT, np.int32)
    return _batch(rows, inserts, offsets, pa.nulls(count, _TIMESTAMP), before, np.arange(count))


def _batch(
    rows: pa.RecordBatch,
    events: npt.NDArray[np.int32],
    offsets: Int64Array,
    timestamps: pa.Array,
    before: Int64Array,
    after: Int64Array,
) -> pa.RecordBatch:
    arrays = [
        string_array(_EVENT_NAMES).take(number_array(events)),
        number_array(offsets.astype(np.int64)),
        timestamps,
        _images(rows, before),
        _images(rows, after),
    ]
    image = _image_type(rows.schema)
    schema = pa.schema([*changelog_schema(pa.schema([])), (BEFORE, image), (AFTER, image)])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _images(rows: pa.RecordBatch, positions: Int64Array) -> pa.Array:
    """Return rows as structs, null where there is no position."""
    is_null = positions == _NOTHING
    taken = rows.take(number_array(positions, is_null))
    validity = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    buffers = [validity if is_null.any() else None]
    return pa.Array.from_buffers(_image_type(rows.schema), len(positions), buffers, children=taken.columns)


def _image_type(rows: pa.Schema) -> pa.DataType:
    """Return the type of a row inside another: where there is none, none of its columns has a value."""
    return pa.struct([field.with_nullable(True) for field in rows])
