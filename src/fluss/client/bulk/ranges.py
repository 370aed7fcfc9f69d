"""Ranges of logs: exactly the records between two offsets of each bucket, the same ones whenever they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import NamedTuple

from fluss.client.fluss_table import FlussTable, TableContext, context_of
from fluss.client.kernel.decode import ScanColumns
from fluss.client.scan.fetch.fetcher import OffsetOutOfRangeError
from fluss.client.scan.fetch.pipeline import ScanPipeline
from fluss.client.scan.records import RecordRun
from fluss.errors import ErrorCode, FlussError
from fluss.schema.predicate import BoundPredicate, Predicate
from fluss.schema.schema import shown_names
from fluss.schema.table import TableBucket, TableInfo
from fluss.schema.table_options import LogFormat


class LogRange(NamedTuple):
    """The records of one bucket from the offset ``start`` up to and without ``stop``."""

    bucket: TableBucket
    start: int
    stop: int


def read_ranges(
    table: FlussTable,
    ranges: Sequence[LogRange],
    *,
    columns: Sequence[str] | None = None,
    predicate: Predicate | None = None,
    idle_timeout_s: float | None = None,
) -> Generator[RecordRun, None, None]:
    """Yield the records of ranges, blocking: those of a bucket in their order, buckets side by side.

    ``columns`` are cut out by the servers where the log format allows it. Servers leave out batches for which the
    ``predicate`` holds nowhere, as far as they can tell; other records for which it does not hold are returned. The
    ranges of a bucket are read in the order in which they are given. A range that begins before the first record its
    bucket still has is a FlussError (code 19). So is one whose records do not come for ``idle_timeout_s``, by default
    ``request-timeout`` (code 25), for instance because it ends behind the last one. Closing the iterator ends all
    fetching.
    """
    context = context_of(table)
    info = context.info
    for each in ranges:
        if each.bucket.table_id != info.table_id:
            raise FlussError(
                f"{each.bucket} belongs to another table: {info.table_path} has the table id {info.table_id}; it may "
                "have been dropped and created again"
            )
        if each.start < 0:
            raise ValueError(f"a range begins at an offset, got {each.start}")
    return _read(context, ranges, scan_columns(info, columns), _bound(info, predicate), idle_timeout_s)


def scan_columns(info: TableInfo, columns: Sequence[str] | None) -> ScanColumns:
    """Return columns by name; None stands for all of them."""
    if columns is None:
        return ScanColumns(info.schema_id, info.schema)
    names = info.schema.column_names
    for name in columns:
        if name not in names:
            raise FlussError(f"Column '{name}' of {info.table_path} not found; columns are {shown_names(names)}")
    return ScanColumns(info.schema_id, info.schema, [info.schema.index_of(name) for name in columns])


def _bound(info: TableInfo, predicate: Predicate | None) -> BoundPredicate | None:
    # Only batches of columns have statistics to decide by.
    return None if predicate is None or info.log_format is not LogFormat.ARROW else predicate.bind(info.schema)


def _read(
    context: TableContext,
    ranges: Sequence[LogRange],
    columns: ScanColumns,
    predicate: BoundPredicate | None,
    idle_timeout_s: float | None,
) -> Generator[RecordRun, None, None]:
    for found in _rounds(ranges):
        pipeline = ScanPipeline(context.cluster, context.runtime, context.info, columns, predicate=predicate)
        with contextlib.closing(pipeline), _out_of_range_by_code():
            yield from pipeline.begin_bounded(found, idle_timeout_s=idle_timeout_s).runs()


def _rounds(ranges: Sequence[LogRange]) -> list[Mapping[TableBucket, tuple[int, int]]]:
    """Return what is read at the same time: one range of a bucket, the next one of it in the next round."""
    rounds: list[dict[TableBucket, tuple[int, int]]] = []
    counts: dict[TableBucket, int] = {}
    for bucket, start, stop in ranges:
        if start >= stop:
            continue
        number = counts[bucket] = counts.get(bucket, -1) + 1
        if number == len(rounds):
            rounds.append({})
        rounds[number][bucket] = start, stop
    return list(rounds)


@contextlib.contextmanager
def _out_of_range_by_code() -> Iterator[None]:
    """Give records that are no longer there the code that servers have for it."""
    try:
        yield
    except OffsetOutOfRangeError as error:
        raise FlussError(error.message, ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION) from error
