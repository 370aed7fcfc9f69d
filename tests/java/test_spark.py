"""Spark with a cluster of Apache Fluss: tables are copied there and back, and streams outlive a rolling restart.
Also the programs of the guide about Spark, which start no server here but have the cluster."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import fluss
from fluss import TablePath, blocking, embedded
from fluss.spark import FlussSpark
from fluss.testing.waiting import eventually
from tests.java.cluster import JavaCluster
from tests.java.elsewhere import stand_in
from tests.pages import PAGES, needs_spark, program_of, promised_lines
from tests.spark.conftest import spark, spark_home, spark_sessions

__all__ = ["spark", "spark_home", "spark_sessions"]

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(15, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("name", pa.string()),
    ]
)


def orders(count: int) -> pa.Table:
    return pa.table(
        {
            "id": range(count),
            "price": [Decimal(number) / 4 for number in range(count)],
            "at": [datetime(2024, 1, 1, 0, 0, number % 60, tzinfo=UTC) for number in range(count)],
            "name": [None if number % 7 == 0 else f"name {number}" for number in range(count)],
        },
        schema=ORDERS,
    )


@pytest.mark.parametrize("keys", [[], ["id"]], ids=["log", "keyed"])
def test_tables_are_copied_up_and_down(
    spark: SparkSession,
    cluster: JavaCluster,
    our_server: embedded.EmbeddedServer,
    database: str,
    connection: blocking.FlussConnection,
    keys: list[str],
) -> None:
    """From our server to the cluster, where no such table is, and from there to our server under another name."""
    with blocking.FlussConnection.create(our_server.config()) as here:
        here.get_admin().create_database(database)
        path = TablePath(database, "orders")
        schema = fluss.Schema(ORDERS, primary_keys=keys)
        here.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=3))
        table = here.get_table(path)
        with (table.new_upsert() if keys else table.new_append()).create_writer() as writer:
            (writer.upsert_arrow if keys else writer.write_arrow)(orders(5000))
        up = FlussSpark(spark, bootstrap_servers=our_server.bootstrap_servers)
        report = up.copy(f"{database}.orders", f"{database}.orders", target_cluster=cluster.bootstrap_servers)
        assert report.rows == 5000
        there = connection.get_table(path).new_scan().to_arrow().sort_by("id")
        assert there == orders(5000).cast(there.schema)
        down = FlussSpark(spark, bootstrap_servers=cluster.bootstrap_servers)
        down.copy(f"{database}.orders", f"{database}.back", target_cluster=our_server.bootstrap_servers)
        back = here.get_table(TablePath(database, "back")).new_scan().to_arrow().sort_by("id")
        assert back == there.cast(back.schema)
        here.get_admin().drop_database(database, cascade=True)


class Feed:
    """Appends orders, some every moment, until it is told to stop."""

    def __init__(self, table: blocking.FlussTable) -> None:
        self.rows = 0
        self._table = table
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed")

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        writer = self._table.new_append().create_writer()
        while not self._is_over.wait(0.2):
            for number in range(self.rows, self.rows + 20):
                writer.append([number, Decimal(1), None, "x"])
            writer.flush()
            self.rows += 20


def test_a_stream_outlives_a_rolling_restart(
    spark: SparkSession, cluster: JavaCluster, connection: blocking.FlussConnection, database: str, tmp_path: Path
) -> None:
    admin = connection.get_admin()
    for name, keys in (("source", []), ("target", ["id"])):
        schema = fluss.Schema(ORDERS, primary_keys=keys)
        admin.create_table(TablePath(database, name), fluss.TableDescriptor(schema, bucket_count=3))
    target = connection.get_table(TablePath(database, "target"))
    fs = FlussSpark(spark, bootstrap_servers=cluster.bootstrap_servers)
    with Feed(connection.get_table(TablePath(database, "source"))) as feed:
        rows = fs.read_stream(f"{database}.source")
        query = fs.write_stream(rows, f"{database}.target", checkpoint=str(tmp_path / "checkpoint"))
        try:
            for number in cluster.server_ids:
                seen = target.new_scan().to_arrow().num_rows
                cluster.stop_server(number)
                cluster.start_server(number)
                eventually(
                    lambda seen=seen: query.exception() or target.new_scan().to_arrow().num_rows > seen + 20,
                    "that the stream goes on",
                    timeout_s=300,
                )
                assert query.exception() is None
        finally:
            query.stop()
            query.awaitTermination(60)
    # What has come meanwhile is written by the next run, which goes on where this one was.
    query = fs.write_stream(
        fs.read_stream(f"{database}.source"),
        f"{database}.target",
        checkpoint=str(tmp_path / "checkpoint"),
        trigger="available-now",
    )
    query.awaitTermination(300)
    assert sorted(target.new_scan().to_arrow()["id"].to_pylist()) == list(range(feed.rows))


# Programs that need what Apache Fluss 0.9 does not have.
NOT_THERE: dict[str, str] = {}
PROGRAMS = [
    pytest.param(
        program_of(page),
        id=page.stem,
        marks=pytest.mark.skip(reason=NOT_THERE[page.stem]) if page.stem in NOT_THERE else (),
    )
    for page in PAGES
    if needs_spark(program_of(page))
]


@pytest.fixture
def on_cluster(cluster: JavaCluster) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # Kept by the patch, so that they are what they were afterwards.
        patch.setattr(embedded, "EmbeddedServer", embedded.EmbeddedServer)
        patch.setattr(embedded, "start", embedded.start)
        stand_in(cluster.bootstrap_servers)
        yield


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_of_the_guide_print_what_they_promise(program: str, spark: SparkSession, on_cluster: None) -> None:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(program, "program", "exec"), {"__name__": "__main__"})
    finally:
        for query in spark.streams.active:
            query.stop()
    assert printed.getvalue().splitlines() == promised_lines(program)
