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

_TIMEOUT_S = 600


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


@pytest.mark.parametrize(
    "how",
    [
        {},
        pytest.param({"guarantee": "at-least-once"}, marks=pytest.mark.slow),
        pytest.param({"output_mode": "update"}, marks=pytest.mark.slow),
        pytest.param({"output_mode": "update", "guarantee": "at-least-once"}, marks=pytest.mark.slow),
    ],
)
def test_a_sink_that_was_created_again_under_a_checkpoint_is_refused_or_accepted(
    fs: FlussSpark, database: str, checkpoint: str, how: dict[str, Any]
) -> None:
    source, sink = f"{database}.source", f"{database}.sink"
    fs.catalog.create_table(source, "id BIGINT", bucket_count=1)

    def create() -> None:
        fs.catalog.create_table(sink, "id BIGINT", primary_keys=["id"], bucket_count=1)

    def run(**options: Any) -> None:
        query = fs.write_stream(
            fs.read_stream(source), sink, checkpoint=checkpoint, trigger="available-now", **how, **options
        )
        assert query.awaitTermination(_TIMEOUT_S)

    create()
    fs.write(fs.spark.range(2), source)
    run()
    fs.catalog.drop_table(sink)
    create()
    fs.write(fs.spark.range(2, 3), source)
    with pytest.raises(Exception, match=r"sink was dropped and created again .* 'sink\.on-table-change'=accept"):
        run()
    assert fs.read(sink).count() == 0
    run(sink_on_table_change="accept")
    assert [row.id for row in fs.read(sink).collect()] == [2]
    fs.write(fs.spark.range(3, 4), source)
    run()
    assert sorted(row.id for row in fs.read(sink).collect()) == [2, 3]
