"""Streams in update mode, such as those of an aggregation: of each micro-batch, the rows that have changed.

Spark lets Python data sources have streams in append and in complete mode only. But it can call a function with every
micro-batch, and a micro-batch can be written like any other rows. When Spark repeats one, it has the same number; as a
transaction with that number it is written exactly once, as by the stream of a data source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from fluss.spark.option_table import Use
from fluss.spark.options import applicable_options, write_options

_CHECKPOINT_LOCATION: Final = "checkpointLocation"
# A checkpoint belongs to one query, so its micro-batches need no other name.
_TRANSACTIONS: Final = "micro-batches"


def update_writer(rows: DataFrame, options: Mapping[str, str], provider: str) -> DataStreamWriter:
    """Return the writer of a stream in update mode; ``options`` are those of a streaming write to the data source."""
    checked = write_options(options, is_stream=True)
    is_exact = checked.delivery_guarantee == "exactly-once"
    location = checked.checkpoint_location
    assert location is not None, "every stream of a FlussSpark has one"
    every_batch = applicable_options(options, Use.BATCH_WRITE)

    def write(batch: DataFrame, number: int) -> None:
        of_batch = {"sink.transaction": f"{_TRANSACTIONS}/{number}"} if is_exact else {}
        batch.write.format(provider).mode("append").options(**every_batch, **of_batch).save()

    return rows.writeStream.outputMode("update").option(_CHECKPOINT_LOCATION, location).foreachBatch(write)
