"""Shows that nothing is lost without a word: what a stream or a sink cannot do exactly it refuses, and says why.

With real queries, into tables that are dropped and created under them.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from fluss import TablePath, blocking
from fluss.spark import FlussSpark
from tests.unit.spark.read.day_table import DayTable

_TIMEOUT_S = 180


@pytest.fixture
def fs(spark: SparkSession, bootstrap_servers: str) -> FlussSpark:
    return FlussSpark(spark, bootstrap_servers=bootstrap_servers)


def test_a_partition_dropped_with_rows_that_a_stream_has_not_read_ends_it(
    fs: FlussSpark, connection: blocking.FlussConnection, database: str, checkpoint: str
) -> None:
    table = DayTable(connection, TablePath(database, "t"), days=["a", "b"], bucket_count=1)
    table.write([1], day="a")
    table.write([2], day="b")
    rows: list[int] = []

    def keep(batch: DataFrame, _: int) -> None:
        rows.extend(row.id for row in batch.collect())

    def run(**options: Any) -> None:
        writer = fs.read_stream(table.path, **options).writeStream.foreachBatch(keep).trigger(availableNow=True)
        assert writer.option("checkpointLocation", checkpoint).start().awaitTermination(_TIMEOUT_S)

    run()
    table.write([3, 4], day="b")
    table.drop_day("b")
    with pytest.raises(StreamingQueryException, match=r"partition b: what was not read yet, from offset 1 up to 3"):
        run()
    table.write([5], day="a")
    run(scan_on_data_loss="skip")
    assert sorted(rows) == [1, 2, 5]
