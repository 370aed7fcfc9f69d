"""FlussSpark end to end: what is written through it is read through it, in batches and in streams, by a real server.

Tables are created by its own catalog; results are compared as Arrow.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from fluss.errors import FlussError
from fluss.spark import FlussSpark, session
from fluss.spark.session import has_read_limits, running

LOG_COLUMNS = "id BIGINT NOT NULL, price DECIMAL(10, 2), name STRING COMMENT 'what it is', day STRING"


@pytest.fixture
def fs(spark: SparkSession, bootstrap_servers: str) -> FlussSpark:
    return FlussSpark(spark, bootstrap_servers=bootstrap_servers)


@pytest.fixture
def log_table(fs: FlussSpark, database: str) -> str:
    """A log table of two partitions with six rows."""
    table = f"{database}.orders"
    fs.catalog.create_table(table, LOG_COLUMNS, partition_keys=["day"], bucket_count=2)
    for day in ("2026-01-01", "2026-01-02"):
        fs.catalog.add_partition(table, {"day": day})
    rows = "SELECT id, id * 1.5 AS price, concat('n', id) AS name, concat('2026-01-0', id % 2 + 1) AS day FROM range(6)"
    fs.write(fs.spark.sql(rows), table)
    return table


@pytest.fixture
def keyed_table(fs: FlussSpark, database: str) -> str:
    """A primary-key table with the rows 0, 1 and 2."""
    table = f"{database}.items"
    fs.catalog.create_table(table, "id BIGINT, name STRING, stock INT", primary_keys=["id"], bucket_count=2)
    fs.upsert(fs.spark.sql("SELECT id, concat('n', id) AS name, int(id) AS stock FROM range(3)"), table)
    return table


def sorted_rows(rows: DataFrame, by: str = "id") -> pa.Table:
    return rows.toArrow().sort_by(by)


def items(*rows: tuple[int, str | None, int | None]) -> pa.Table:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("stock", pa.int32())])
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def test_a_log_is_read_as_it_was_written_whole_and_in_part(fs: FlussSpark, log_table: str) -> None:
    everything = sorted_rows(fs.read(log_table))
    assert everything["name"].to_pylist() == [f"n{number}" for number in range(6)]
    assert fs.read(log_table).schema == StructType.fromDDL(LOG_COLUMNS)
    chosen = fs.read(log_table, columns=["name", "id"], filter="price > 3", partitions={"day": "2026-01-02"})
    assert sorted_rows(chosen).to_pydict() == {"name": ["n3", "n5"], "id": [3, 5]}


def test_rows_with_a_key_are_updated_and_deleted(fs: FlussSpark, keyed_table: str) -> None:
    fs.upsert(fs.spark.sql("SELECT 1L AS id, 'new' AS name"), keyed_table, target_columns=["name"])
    fs.delete(fs.spark.sql("SELECT 2L AS id, 'whatever' AS more"), keyed_table)
    assert sorted_rows(fs.read(keyed_table)).equals(items((0, "n0", 0), (1, "new", 1)))
    changes = fs.changelog(keyed_table, columns=["_change_type", "id"], filter="id = 2")
    assert sorted(row["_change_type"] for row in changes.toArrow().to_pylist()) == ["delete", "insert"]


def test_a_stream_carries_a_table_into_another(
    fs: FlussSpark, log_table: str, keyed_table: str, checkpoint: str
) -> None:
    def run() -> None:
        limit = 2 if has_read_limits() else None
        rows = fs.read_stream(log_table, columns=["id", "name"], max_rows=limit)
        query = fs.write_stream(rows, keyed_table, checkpoint=checkpoint, trigger="available-now", query_name="copy")
        assert query.awaitTermination(600)
        assert fs.backlog(query) == 0

    run()
    assert sorted_rows(fs.read(keyed_table)).equals(items(*((number, f"n{number}", None) for number in range(6))))


def test_mistakes_are_plain_errors_before_spark_begins(fs: FlussSpark, database: str) -> None:
    log, keyed = f"{database}.log", f"{database}.keyed"
    fs.catalog.create_table(log, "id BIGINT, name STRING")
    fs.catalog.create_table(keyed, "id BIGINT, name STRING", primary_keys=["id"])
    rows = fs.spark.sql("SELECT 1L AS id, 'x' AS name")
    mistakes: dict[str, Callable[[], object]] = {
        "names no table": lambda: fs.read("nowhere"),
        "does not exist": lambda: fs.read(f"{log}x"),
        "Column 'nobody' not found": lambda: fs.read(log, columns=["nobody"]),
        "did you mean 'scan.filter'": lambda: fs.read(log, scan_filtr="x"),
        "given twice": lambda: fs.read(log, filter="id = 1", scan_filter="id = 2"),
        "has no primary key": lambda: fs.upsert(rows, log),
        "The keys have no column 'id'": lambda: fs.delete(rows.select("name"), keyed),
        "The rows have no column 'when'": lambda: fs.write(rows, keyed, sequence_column="when"),
        "the DataFrame has no such column": lambda: fs.write(rows.select("id"), keyed, target_columns=["name"]),
        "needs a directory for its progress": lambda: fs.write_stream(rows, keyed),
    }
    for problem, mistake in mistakes.items():
        with pytest.raises(FlussError, match=problem):
            mistake()


@pytest.mark.slow
def test_times_are_given_in_the_zone_of_the_session_or_with_one(fs: FlussSpark, log_table: str) -> None:
    # The session of these tests is in New York.
    now = datetime.now(UTC)
    there = now.astimezone(ZoneInfo("America/New_York")).replace(tzinfo=None)
    hour = timedelta(hours=1)
    for start in (now - hour, there - hour, int((now - hour).timestamp() * 1000), str(there - hour)):
        assert fs.read_incremental(log_table, start).count() == 6
        assert fs.read_incremental(log_table, start, now + hour).count() == 6
    assert fs.read_incremental(log_table, there - 2 * hour, there - hour).count() == 0
    assert fs.changelog(log_table, now - hour, now + hour).count() == 6
    stream = fs.read_stream(log_table, timestamp=there - hour)
    query = stream.writeStream.format("memory").queryName("hour").trigger(availableNow=True).start()
    assert query.awaitTermination(600)
    assert fs.spark.table("hour").count() == 6
    fs.spark.catalog.dropTempView("hour")


@pytest.mark.slow
def test_options_of_the_session_hold_for_every_query_but_time_ranges(
    spark: SparkSession, bootstrap_servers: str, log_table: str
) -> None:
    here = spark.newSession()
    here.conf.set("spark.sql.fluss.bootstrap.servers", bootstrap_servers)
    here.conf.set("spark.sql.fluss.scan.columns", "id")
    here.conf.set("spark.sql.fluss.sink.delivery-guarantee", "at-least-once")
    here.conf.set("spark.sql.fluss.scan.incremental.start.timestamp", "2036-01-01")
    fs = FlussSpark(here)
    assert fs.read(log_table).columns == ["id"]
    assert fs.read(log_table).count() == 6
    assert fs.read(log_table, columns=["name"]).columns == ["name"]
    assert FlussSpark(here, scan_columns="day").read(log_table).columns == ["day"]
    here.conf.set("spark.sql.fluss.scan.colums", "id")
    with pytest.raises(FlussError, match=r"Unknown option 'scan.colums'; did you mean 'scan.columns'"):
        fs.read(log_table)


@pytest.mark.slow
def test_rows_of_one_key_are_written_in_the_order_of_the_sequence_column(
    fs: FlussSpark, keyed_table: str, checkpoint: str, tmp_path: Path
) -> None:
    # Each key has a hundred versions, scattered over eight tasks; the last one in sequence is the right one.
    versions = fs.spark.sql("""
        SELECT id % 10 AS id, concat('v', id div 10) AS name, int(id div 10) AS stock, id div 10 AS version
        FROM range(0, 1000, 1, 1) ORDER BY hash(id)
    """).repartition(8)
    fs.write(versions, keyed_table, sequence_column="version")
    assert sorted_rows(fs.read(keyed_table)).equals(items(*((number, "v99", 99) for number in range(10))))

    fs.delete(fs.read(keyed_table), keyed_table)
    assert fs.read(keyed_table).count() == 0
    versions.write.parquet(str(tmp_path / "versions"))
    stream = fs.spark.readStream.schema(versions.schema).parquet(str(tmp_path / "versions"))
    query = fs.write_stream(
        stream, keyed_table, checkpoint=checkpoint, sequence_column="version", shuffle=3, trigger="available-now"
    )
    assert query.awaitTermination(600)
    assert sorted_rows(fs.read(keyed_table)).equals(items(*((number, "v99", 99) for number in range(10))))


@pytest.mark.slow
def test_change_types_say_what_happens_to_a_row(fs: FlussSpark, keyed_table: str) -> None:
    changes = fs.spark.sql("""
        SELECT * FROM VALUES ('+I', 5L, 'five', 1), ('-D', 0L, NULL, 2), ('-U', 1L, 'n1', 3), ('+U', 1L, 'one', 4)
        AS changes(kind, id, name, number)
    """)
    fs.write(changes, keyed_table, change_type_column="kind", sequence_column="number")
    found = sorted_rows(fs.read(keyed_table, columns=["id", "name"])).to_pydict()
    assert found == {"id": [1, 2, 5], "name": ["one", "n2", "five"]}


@pytest.mark.slow
def test_tables_are_created_from_whatever_has_columns(fs: FlussSpark, database: str) -> None:
    arrow = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("ms"))])
    struct = StructType.fromDDL("id BIGINT NOT NULL, at TIMESTAMP_NTZ")
    assert isinstance(struct, StructType)
    frame = fs.spark.createDataFrame([], struct)
    for name, columns in {"arrow": arrow, "struct": struct, "text": struct.toDDL(), "frame": frame}.items():
        fs.catalog.create_table(f"{database}.{name}", columns, comment=name, properties={"table.log.ttl": "3 d"})
        info = fs.catalog.table_info(f"{database}.{name}")
        assert (info.comment, info.properties["table.log.ttl"]) == (name, "3 d")
        nullable = name == "frame"
        assert fs.catalog.table_schema(f"{database}.{name}")["id"].nullable is nullable
    assert fs.catalog.list_tables(database) == ["arrow", "frame", "struct", "text"]
    assert str(fs.catalog.table_info(f"{database}.arrow").schema.column("at").data_type) == "timestamp(3)"
    fs.catalog.alter_table(f"{database}.text", add_columns="note STRING", set_properties={"table.log.ttl": "4 d"})
    assert fs.catalog.table_schema(f"{database}.text").names == ["id", "at", "note"]
    fs.catalog.drop_table(f"{database}.text")
    assert not fs.catalog.table_exists(f"{database}.text")


@pytest.mark.slow
def test_a_session_that_runs_is_used_and_adapted(spark: SparkSession) -> None:
    assert session() is spark
    before = spark.conf.get("spark.sql.shuffle.partitions") or ""
    try:
        with pytest.warns(UserWarning, match=r"spark.master cannot be changed while it runs"):
            assert session(cores=1, config={"spark.sql.shuffle.partitions": 5}) is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "5"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        running.check_usable(spark)


def run_script(script: str, *arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, in a directory that must stay empty."""
    directory.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK", "JAVA"))}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


@pytest.mark.slow
def test_a_session_starts_in_silence_and_leaves_nothing_behind(tmp_path: Path) -> None:
    script = """
from fluss.spark import session
spark = session(cores=1, config={"spark.driver.memory": "1g"})
print(spark.sparkContext.master, spark.range(3).count())
try:
    spark.sql("SELECT * FROM nowhere")
except Exception as error:
    print(error.getCondition())
"""
    done = run_script(script, directory=tmp_path / "work")
    assert done.stdout.split() == ["local[1,4]", "3", "TABLE_OR_VIEW_NOT_FOUND"]
    assert done.stderr == ""
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.slow
def test_a_java_that_cannot_start_says_why(tmp_path: Path) -> None:
    script = """
from fluss.spark import session
try:
    session(cores=1, config={"spark.driver.memory": "900000g"})
except Exception as error:
    print(type(error).__name__, error)
"""
    done = run_script(script, directory=tmp_path / "work")
    assert done.stdout.startswith("FlussError")
    assert "could not start Spark" in done.stdout
    assert "heap" in done.stdout


CLUSTER_SCRIPT = """
import sys
from fluss.spark import FlussSpark, session

spark = session("cluster", master="local-cluster[2,1,1024]", config={"spark.driver.memory": "1g"})
fs = FlussSpark(spark, bootstrap_servers=sys.argv[1])
database, checkpoint = sys.argv[2:]
fs.catalog.create_table(f"{database}.log", "id BIGINT, name STRING", bucket_count=4)
fs.catalog.create_table(f"{database}.keyed", "id BIGINT, name STRING", primary_keys=["id"], bucket_count=2)
fs.write(spark.sql("SELECT id, concat('n', id) AS name FROM range(0, 1000, 1, 4)"), f"{database}.log")
print("read", fs.read(f"{database}.log", filter="id >= 500").count())
rows = fs.read_stream(f"{database}.log")
query = fs.write_stream(rows, f"{database}.keyed", checkpoint=checkpoint, trigger="available-now", sequence_column="id")
query.awaitTermination(600)
print("attached", fs.attach(database))
spark.sql(f"INSERT INTO {database}.keyed SELECT id + 1000, name FROM {database}.log WHERE id < 10")
print("keyed", spark.sql(f"SELECT count(*), max(id) FROM {database}.keyed").first())
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print("executors", executors)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_everything_works_with_executors_of_their_own(
    fs: FlussSpark, bootstrap_servers: str, database: str, checkpoint: str, tmp_path: Path
) -> None:
    done = run_script(CLUSTER_SCRIPT, bootstrap_servers, database, checkpoint, directory=tmp_path / "work")
    assert done.stdout.splitlines() == [
        "read 500",
        f"attached ['{database}.keyed', '{database}.log']",
        "keyed Row(count(1)=1010, max(id)=1009)",
        "executors 2",
    ]
    assert sorted_rows(fs.read(f"{database}.keyed"))["id"].to_pylist() == list(range(1010))
