"""The rows of a part of a table, as Fluss has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from fluss import FlussTable
from fluss.client.bulk import LogRange, read_ranges, rows_at
from fluss.schema.predicate import Predicate
from fluss.spark.read.planner import Split


def split_rows(
    table: FlussTable, split: Split, columns: Sequence[str] | None = None, predicate: Predicate | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, blocking; those of a log in their order. Closing the iterator ends all fetching.

    Batches for whose rows the predicate can be ruled out may be left out; other rows are not looked at.
    """
    bucket = split.bucket(table.get_table_info().table_id)
    if split.kind == "rows":
        yield from rows_at(table, bucket, split.stop, columns=columns)
        return
    ranges = [LogRange(bucket, split.start, split.stop)]
    for run in read_ranges(table, ranges, columns=columns, predicate=predicate):
        yield run.batch
