"""Shows that streaming queries read every row of a table once, whatever the trigger, across restarts.

By running real queries into a collecting sink while tables grow, gain and lose partitions, and lose old segments.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from fluss import TablePath, blocking
from fluss.spark.read.stream_lag import backlog
from fluss.spark.session import has_read_limits
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually
from tests.unit.spark.read.day_table import DayTable

_TIMEOUT_S = 600

Row = dict[str, Any]


def _possible(options: dict[str, str]) -> dict[str, str]:
    """Return options without limits where Spark has none."""
    return options if has_read_limits() else {key: text for key, text in options.items() if not key.startswith("max")}


class _Stream:
    """A query with its checkpoint, which may be started again and again. What its batches read is kept by number."""

    def __init__(self, spark: SparkSession, servers: str, table: DayTable, checkpoint: str, **options: str) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._options = {"bootstrap.servers": servers, "table": str(table.path), **_possible(options)}
        self.batches: dict[int, pa.Table] = {}

    def start(self, trigger: dict[str, Any] | None = None, **options: str) -> StreamingQuery:
        self._options |= _possible(options)
        writer = self._source().writeStream.foreachBatch(self._keep).option("checkpointLocation", self._checkpoint)
        return (writer.trigger(**trigger) if trigger else writer).start()

    def _source(self) -> DataFrame:
        return self._spark.readStream.format("fluss").options(**self._options).load()

    def _keep(self, batch: DataFrame, number: int) -> None:
        self.batches[number] = batch.toArrow()

    def run(self, trigger: dict[str, Any] | None = None, **options: str) -> StreamingQuery:
        """Read everything there is, with a trigger that ends by itself or not; return the query, which is over."""
        query = self.start(trigger, **options)
        try:
            if trigger is None or "processingTime" in trigger:
                query.processAllAvailable()
            else:
                assert query.awaitTermination(_TIMEOUT_S)
        finally:
            query.stop()
        return query

    @property
    def rows(self) -> list[Row]:
        return [row for number in sorted(self.batches) for row in self.batches[number].to_pylist()]

    @property
    def ids(self) -> Counter[int]:
        return Counter(row["id"] for row in self.rows)


@pytest.mark.skipif(not has_read_limits(), reason="Spark before 4.2 has no limits")
def test_limited_batches_read_a_growing_partitioned_table_across_a_restart(
    spark: SparkSession, bootstrap_servers: str, connection: blocking.FlussConnection, database: str, checkpoint: str
) -> None:
    table = DayTable(connection, TablePath(database, "t"), days=["a", "b"])
    table.write(range(20), day="a")
    table.write(range(20, 30), day="b")
    stream = _Stream(spark, bootstrap_servers, table, checkpoint, maxRowsPerTrigger="12")
    query = stream.run({"availableNow": True})
    assert [batch.num_rows for batch in stream.batches.values()] == [12, 12, 6]
    assert [progress.numInputRows for progress in query.recentProgress[:3]] == [12, 12, 6]
    assert [backlog(progress) for progress in query.recentProgress[:3]] == [18, 6, 0]
    table.write(range(30, 40), day="a")
    table.add_day("c")
    table.write(range(40, 50), day="c")
    table.drop_day("b")
    stream.run({"availableNow": True}, maxRowsPerTrigger="1000")
    assert stream.ids == Counter(range(50))
    assert sum(progress.numInputRows for progress in stream.run({"availableNow": True}).recentProgress) == 0


def test_a_table_with_keys_is_read_in_full_and_then_its_changes(
    spark: SparkSession, bootstrap_servers: str, connection: blocking.FlussConnection, database: str, checkpoint: str
) -> None:
    table = DayTable(connection, TablePath(database, "t"), keys=["id"])
    table.write(range(10), text="old")
    table.delete([0])
    stream = _Stream(spark, bootstrap_servers, table, checkpoint)
    query = stream.start()
    try:
        query.processAllAvailable()
        assert {row["id"]: row["text"] for row in stream.rows} == dict.fromkeys(range(1, 10), "old")
        stream.batches.clear()
        table.write([1, 10], text="new")
        table.delete([2])
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted((row["id"], row["text"]) for row in stream.rows) == [(1, "new"), (10, "new")]


# The whole matrix


@pytest.fixture(scope="module")
def trimming_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that deletes expired records within a moment."""
    arguments = (
        *("-D", "durability=os"),
        *("-D", "log.retention.check-interval=100ms"),
        *("-D", "log.retention.roll-active-segment.enabled=true"),
    )
    with ServerProcess(tmp_path_factory.mktemp("trimming"), *arguments) as running:
        yield running


@pytest.fixture(scope="module")
def trimming_connection(trimming_server: ServerProcess) -> Iterator[blocking.FlussConnection]:
    config = blocking.Config({"bootstrap.servers": trimming_server.bootstrap_servers})
    with blocking.FlussConnection.create(config) as opened:
        yield opened


def _expire(table: DayTable, days: Sequence[str]) -> None:
    """Have everything deleted that a table holds, and wait for it."""
    table.admin.alter_table(table.path, set_properties={"table.log.ttl": "1ms"})

    def is_empty(day: str) -> bool:
        latest, earliest = (
            table.admin.list_partition_offsets(table.path, day, [0, 1], end) for end in ("latest", "earliest")
        )
        return earliest == latest

    for day in days:
        eventually(partial(is_empty, day))
    table.admin.alter_table(table.path, set_properties={"table.log.ttl": "7d"})


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("mode", "keys"),
    [
        ("full", ()),
        ("earliest", ()),
        ("latest", ()),
        ("timestamp", ()),
        ("offsets", ()),
        ("full", ("id",)),
        ("latest", ("id",)),
    ],
    ids=["full", "earliest", "latest", "timestamp", "offsets", "full-of-keys", "latest-of-keys"],
)
@pytest.mark.parametrize(
    "trigger",
    [None, {"processingTime": "100 milliseconds"}, {"once": True}, {"availableNow": True}],
    ids=["default", "processing-time", "once", "available-now"],
)
def test_every_start_and_trigger_reads_everything_once_on_a_table_that_changes(
    spark: SparkSession,
    trimming_server: ServerProcess,
    trimming_connection: blocking.FlussConnection,
    checkpoint: str,
    mode: str,
    trigger: dict[str, Any] | None,
    keys: Sequence[str],
) -> None:
    database = f"matrix_{secrets.token_hex(6)}"
    trimming_connection.get_admin().create_database(database)
    table = DayTable(trimming_connection, TablePath(database, "t"), keys=keys, days=["a", "b"])
    table.write(range(10), day="a")
    _expire(table, ["a", "b"])
    table.write(range(10, 20), day="a")
    time.sleep(0.01)
    options = {"maxRowsPerTrigger": "7", "scan.partition.discovery.interval": "0s", "scan.startup.mode": mode}
    if mode == "timestamp":
        options["scan.startup.timestamp"] = str(int(time.time() * 1000))
    elif mode == "offsets":
        offsets = table.admin.list_partition_offsets(table.path, "a", [0, 1], "latest")
        options["scan.startup.offsets"] = json.dumps({f"a:{bucket}": offset for bucket, offset in offsets.items()})
    first = {"full": 0 if keys else 10, "earliest": 10}.get(mode, 20)
    stream = _Stream(spark, trimming_server.bootstrap_servers, table, checkpoint, **options)
    if mode == "latest":
        # Whatever is written before the first batch is not for it.
        stream.run(trigger)
    table.write(range(20, 30), day="b")
    stream.run(trigger)
    table.add_day("c")
    table.write(range(30, 45), day="c")
    table.write(range(45, 50), day="a")
    stream.run(trigger)
    _expire(table, ["a", "b", "c"])
    table.drop_day("b")
    table.write(range(50, 60), day="a")
    stream.run(trigger, **{"maxRowsPerTrigger": "1000"})
    table.write(range(60, 62), day="c")
    stream.run(trigger)
    assert stream.ids == Counter(range(first, 62))
    if has_read_limits() and (trigger is None or "once" not in trigger):
        assert max(batch.num_rows for batch in stream.batches.values()) <= 10


@pytest.mark.slow
def test_a_retention_gap_stops_a_query_with_a_sentence_and_can_be_skipped(
    spark: SparkSession,
    trimming_server: ServerProcess,
    trimming_connection: blocking.FlussConnection,
    checkpoint: str,
) -> None:
    database = f"gap_{secrets.token_hex(6)}"
    trimming_connection.get_admin().create_database(database)
    table = DayTable(trimming_connection, TablePath(database, "t"), days=["a"])
    table.write(range(10), day="a")
    stream = _Stream(spark, trimming_server.bootstrap_servers, table, checkpoint)
    stream.run({"availableNow": True})
    table.write(range(10, 20), day="a")
    _expire(table, ["a"])
    table.write(range(20, 30), day="a")
    with pytest.raises(StreamingQueryException, match=r"partition a: what was not read yet.*'scan\.on-data-loss'=skip"):
        stream.run({"availableNow": True})
    stream.run({"availableNow": True}, **{"scan.on-data-loss": "skip"})
    assert stream.ids == Counter([*range(10), *range(20, 30)])


@pytest.mark.slow
def test_a_table_created_again_stops_a_query_with_a_sentence(
    spark: SparkSession, bootstrap_servers: str, connection: blocking.FlussConnection, database: str, checkpoint: str
) -> None:
    table = DayTable(connection, TablePath(database, "t"))
    table.write(range(10))
    stream = _Stream(spark, bootstrap_servers, table, checkpoint)
    query = stream.start()
    query.processAllAvailable()
    table.admin.drop_table(table.path)
    table = DayTable(connection, TablePath(database, "t"))
    with pytest.raises(StreamingQueryException, match="was dropped and created again"):
        query.awaitTermination(_TIMEOUT_S)
    with pytest.raises(StreamingQueryException, match="begin with a new checkpoint"):
        stream.run()


@pytest.mark.slow
def test_a_batch_that_failed_reads_the_same_rows_again(
    spark: SparkSession, bootstrap_servers: str, connection: blocking.FlussConnection, database: str, checkpoint: str
) -> None:
    table = DayTable(connection, TablePath(database, "t"), keys=["id"])
    table.write(range(10), text="old")
    stream = _Stream(spark, bootstrap_servers, table, checkpoint)

    class Fails(_Stream):
        def _keep(self, batch: DataFrame, number: int) -> None:
            super()._keep(batch, number)
            raise RuntimeError("on purpose")

    failing = Fails(spark, bootstrap_servers, table, checkpoint)
    with pytest.raises(StreamingQueryException, match="on purpose"):
        failing.run()
    table.write(range(5), text="new")
    table.delete([9])
    stream.run()
    by_id = sorted(failing.rows, key=lambda row: row["id"])
    assert sorted(stream.batches[0].to_pylist(), key=lambda row: row["id"]) == by_id
    assert [row["text"] for row in by_id] == ["old"] * 10
    assert {row["id"]: row["text"] for row in stream.rows[10:]} == dict.fromkeys(range(5), "new")
