"""The rows of a part of a table, as Fluss and its lake have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, assert_never

import pyarrow as pa

from fluss import FlussTable
from fluss.client.bulk import LogRange, read_ranges, rows_at, rows_with_changes
from fluss.schema.predicate import Predicate
from fluss.spark.read.planner import Split

if TYPE_CHECKING:
    from fluss.lake.fluss_rows import LakeRows


def split_rows(
    table: FlussTable,
    split: Split,
    columns: Sequence[str] | None = None,
    predicate: Predicate | None = None,
    lake: LakeRows | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, blocking; those of a log in their order. Closing the iterator ends all fetching.

    Batches for whose rows the predicate can be ruled out may be left out; other rows are not looked at. ``lake`` is
    that of the plan which the part is of.
    """
    info = table.get_table_info()
    bucket = split.bucket(info.table_id)
    names = info.schema.column_names if columns is None else columns
    match split.kind:
        case "log":
            ranges = [LogRange(bucket, split.start, split.stop)]
            for run in read_ranges(table, ranges, columns=columns, predicate=predicate):
                yield run.batch
        case "rows":
            yield from rows_at(table, bucket, split.stop, columns=columns)
        case "lake":
            assert lake is not None, "it comes with the files"
            for batch in lake.batches(split.files):
                yield batch.select(names)
        case "merged":
            assert lake is not None, "it comes with the files"
            changes = LogRange(bucket, split.start, split.stop)
            yield from rows_with_changes(table, lake, split.files, changes, names)
        case _:
            assert_never(split.kind)
