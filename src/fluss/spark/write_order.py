"""The order in which rows reach a table: rows of one key in one task, one after the other.

Tasks write at the same time, so the order of two rows is only sure if one task has both. For a table with keys that
takes a shuffle, and Spark's own hash of the key columns does it: two rows with the same key go to the same task, and
which task that is does not matter. Each task then has rows of many buckets. To bring the rows of one bucket together
instead, every row would have to go through Python once more, to be hashed as Fluss does.

Rows of a key that come from one task stay in their order in any case. So a shuffle is worth its price only if they come
from several, and then something must say in which order they were: a sequence column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.functions import col

from fluss.errors import FlussError
from fluss.schema.schema import shown_names
from fluss.schema.table import TableInfo
from fluss.spark.pandas_warning import ignored_pandas_warning
from fluss.spark.sql.text import quoted_name

_BATCH_ROWS: Final = 65_536


def ordered_for(rows: DataFrame, info: TableInfo, *, sequence_column: str | None, tasks: int | None) -> DataFrame:
    """Return rows as they are to be written to a table.

    ``tasks`` is the number of tasks to divide them among, by key; None leaves them where they are, and so does a table
    without keys. With a sequence column each task writes in its order; it is left out if the table does not have it.
    """
    keys = info.primary_keys or ([*info.partition_keys, *info.bucket_keys] if info.bucket_keys else [])
    for name in [*keys, *([] if sequence_column is None else [sequence_column])]:
        if name not in rows.columns:
            raise FlussError(f"The rows have no column '{name}'; columns are {shown_names(rows.columns)}")
    if tasks is not None and keys:
        rows = rows.repartition(tasks, *(col(quoted_name(key)) for key in keys))
    if sequence_column is None:
        return rows
    rows = _sorted_rows(rows, sequence_column)
    return rows if sequence_column in info.schema.column_names else rows.drop(col(quoted_name(sequence_column)))


def _sorted_rows(rows: DataFrame, column: str) -> DataFrame:
    if not rows.isStreaming:
        return rows.sortWithinPartitions(col(quoted_name(column)))
    # Spark refuses to sort a stream, also the rows of one task. So each task sorts what it has of a micro-batch.
    with ignored_pandas_warning():
        return rows.mapInArrow(SortedTask(column), rows.schema)


@dataclass(frozen=True)
class SortedTask:
    """Sorts the rows of one task by a column, in memory. Equal ones stay in their order, nulls come first."""

    column: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        collected: Sequence[pa.RecordBatch] = list(batches)
        if collected:
            table = pa.Table.from_batches(collected)
            order = pc.sort_indices(table, sort_keys=[(self.column, "ascending")], null_placement="at_start")
            yield from table.take(order).combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)
