"""A DataFrame on its way into a sink: the order of its rows, its trigger, and streams in update mode.

Tasks write at the same time, so the order of two rows is only sure if one task has both. For a table with keys that
takes a shuffle, and Spark's own hash of the key columns does it: two rows with the same key go to the same task, and
which task that is does not matter. Each task then has rows of many buckets. To bring the rows of one bucket together
instead, every row would have to go through Python once more, to be hashed as Fluss does. Rows of a key that come from
one task stay in their order in any case. So a shuffle is worth its price only if they come from several, and then
something must say in which order they were: a sequence column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.streaming.readwriter import DataStreamWriter

from fluss.errors import FlussError
from fluss.filter.lexer import quoted_name
from fluss.schema.schema import shown_names
from fluss.schema.table import TableInfo, matching_name
from fluss.spark.connections import await_table
from fluss.spark.query_options import applicable_options, write_options
from fluss.spark.session.noise import ignored_pandas_warning, plain_errors
from fluss.spark.source_options import Use
from fluss.spark.write.sink_table import SinkTable, check_sink_table

# Nothing: one micro-batch after the other. A time between them. 'available-now' or 'once': what there is, then stop.
Trigger: TypeAlias = str | timedelta | None

_BATCH_ROWS: Final = 65_536
_ADAPTIVE: Final = "spark.sql.adaptive.streaming.stateless.enabled"
_AVAILABLE_NOW: Final = ("available-now", "availablenow", "available_now")
_CHECKPOINT_LOCATION: Final = "checkpointLocation"
# A checkpoint belongs to one query, so its micro-batches need no other name.
_TRANSACTIONS: Final = "micro-batches"


# The order of rows


def ordered_for(
    rows: DataFrame,
    info: TableInfo,
    *,
    sequence_column: str | None,
    tasks: int | None,
    is_case_sensitive: bool = True,
) -> DataFrame:
    """Return rows as they are to be written to a table.

    ``tasks`` is the number of tasks to divide them among, by key; None leaves them where they are, and so does a table
    without keys. With a sequence column each task writes in its order; it is left out if the table does not have it.
    """
    keys = info.primary_keys or ([*info.partition_keys, *info.bucket_keys] if info.bucket_keys else [])

    def found(name: str) -> str:
        column = matching_name(name, rows.columns, is_case_sensitive=is_case_sensitive)
        if column is None:
            raise FlussError(f"The rows have no column '{name}'; columns are {shown_names(rows.columns)}")
        return column

    keys = [found(key) for key in keys]
    sequence = None if sequence_column is None else found(sequence_column)
    if tasks is not None and keys:
        rows = rows.repartition(tasks, *(col(quoted_name(key)) for key in keys))
    if sequence is None:
        return rows
    rows = _sorted_rows(rows, sequence)
    is_written = matching_name(sequence, info.schema.column_names, is_case_sensitive=is_case_sensitive) is not None
    return rows if is_written else rows.drop(col(quoted_name(sequence)))


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


# Streams


def triggered(writer: DataStreamWriter, trigger: Trigger) -> DataStreamWriter:
    """Set the trigger of a stream."""
    match trigger:
        case None:
            return writer
        case timedelta():
            return writer.trigger(processingTime=f"{round(trigger.total_seconds() * 1000)} milliseconds")
        case str() if trigger.lower() in _AVAILABLE_NOW:
            return writer.trigger(availableNow=True)
        case str() if trigger.lower() == "once":
            return writer.trigger(once=True)
        case str():
            return writer.trigger(processingTime=trigger)
    raise TypeError(
        f"a trigger is 'available-now', 'once', a time such as '5 seconds' or a timedelta, got {type(trigger).__name__}"
    )


@contextmanager
def same_tasks(spark: SparkSession) -> Iterator[None]:
    """Have queries that are started here repeat a micro-batch with the same tasks, whatever its sizes look like.

    A query has the settings that the session has when it starts, so others are not affected.
    """
    before = spark.conf.get(_ADAPTIVE, None)
    spark.conf.set(_ADAPTIVE, False)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_ADAPTIVE)
        else:
            spark.conf.set(_ADAPTIVE, before)


def update_writer(rows: DataFrame, options: Mapping[str, str], provider: str) -> DataStreamWriter:
    """Return the writer of a stream in update mode; ``options`` are those of a streaming write to the data source.

    Spark lets Python data sources have streams in append and in complete mode only. But it can call a function with
    every micro-batch, and a micro-batch can be written like any other rows. When Spark repeats one, it has the same
    number; as a transaction with that number it is written exactly once, as by the stream of a data source.
    """
    checked = write_options(options, is_stream=True)
    is_exact = checked.delivery_guarantee == "exactly-once"
    location = checked.checkpoint_location
    assert location is not None, "every stream of a FlussSpark has one"
    every_batch = applicable_options(options, Use.BATCH_WRITE)

    def write(batch: DataFrame, number: int) -> None:
        info = await_table(checked.connection, checked.table.path).get_table_info()
        check_sink_table(checked, SinkTable.of(info))
        of_batch = {"sink.transaction": f"{_TRANSACTIONS}/{number}"} if is_exact else {}
        with plain_errors():
            batch.write.format(provider).mode("append").options(**every_batch, **of_batch).save()

    return rows.writeStream.outputMode("update").option(_CHECKPOINT_LOCATION, location).foreachBatch(write)
