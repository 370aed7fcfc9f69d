"""Shows that mistakes are told at once, once, and in a sentence: before tasks begin, or without repeating them.

Also that what Spark does not take for a mistake is none: names of columns in another case, servers that come back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from fluss.errors import ErrorCode, FlussError
from fluss.spark import FlussSpark
from fluss.testing.cluster import ServerProcess

T = TypeVar("T")


@pytest.fixture
def fs(spark: SparkSession, bootstrap_servers: str) -> FlussSpark:
    return FlussSpark(spark, bootstrap_servers=bootstrap_servers)


def failed_tasks(spark: SparkSession, write: Callable[[], None]) -> tuple[FlussError, int]:
    """Return the error of something, and how many tasks Spark has seen fail."""
    context = spark.sparkContext
    group = f"group-{id(write)}"
    context.setJobGroup(group, "a write that fails")
    try:
        with pytest.raises(FlussError) as failure:
            write()
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    tracker = context.statusTracker()
    stages = [stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds]
    return failure.value, sum(info.numFailedTasks for stage in stages if (info := tracker.getStageInfo(stage)))


def test_rows_that_do_not_fit_end_a_write_with_a_sentence_and_no_second_attempt(fs: FlussSpark, database: str) -> None:
    table = f"{database}.t"
    fs.catalog.create_table(table, "id BIGINT NOT NULL, s STRING NOT NULL", bucket_count=1)
    rows = fs.spark.sql("SELECT id, IF(id = 3, NULL, 'x') AS s FROM range(0, 4, 1, 2)")
    error, failures = failed_tasks(fs.spark, lambda: fs.write(rows, table))
    assert error.message == (
        "Column 's' is non-nullable but contains null (1 of them); remove these rows, or declare it nullable"
    )
    assert failures == 0
    # The task whose rows fit has written them once.
    assert sorted(row.id for row in fs.read(table).collect()) == [0, 1]


@pytest.mark.slow
def test_a_task_that_gives_up_at_its_first_row_leaves_the_others_unread(fs: FlussSpark, database: str) -> None:
    table = f"{database}.t"
    fs.catalog.create_table(table, "id BIGINT NOT NULL, s STRING NOT NULL", bucket_count=1)
    rows = fs.spark.sql("SELECT id, IF(id = 0, NULL, repeat('x', 100)) AS s FROM range(0, 2000000, 1, 1)")
    error, failures = failed_tasks(fs.spark, lambda: fs.write(rows, table))
    assert "Column 's' is non-nullable but contains null" in error.message
    assert failures == 0
    assert fs.read(table).count() == 0


def test_a_missing_partition_ends_a_write_at_once(fs: FlussSpark, database: str) -> None:
    table = f"{database}.t"
    fs.catalog.create_table(table, "id BIGINT, day STRING", partition_keys=["day"], bucket_count=1)
    rows = fs.spark.sql("SELECT 1L AS id, 'monday' AS day")
    # Much longer than the test may take: nothing waits for the partition.
    error, failures = failed_tasks(fs.spark, lambda: fs.write(rows, table, request_timeout=3_600_000))
    assert error.error_code == ErrorCode.PARTITION_NOT_EXISTS
    assert "partition 'monday'" in error.message
    assert "create it first" in error.message
    assert "The table has no partitions yet" in error.message
    assert failures == 0


def test_a_stream_ends_with_the_sentence_of_its_task(fs: FlussSpark, database: str, checkpoint: str) -> None:
    source, sink = f"{database}.source", f"{database}.sink"
    fs.catalog.create_table(source, "id BIGINT", bucket_count=1)
    fs.catalog.create_table(sink, "id BIGINT NOT NULL", bucket_count=1)
    fs.write(fs.spark.sql("SELECT CAST(NULL AS BIGINT) AS id"), source)
    query = fs.write_stream(fs.read_stream(source), sink, checkpoint=checkpoint, trigger="available-now")
    with pytest.raises(Exception, match="Column 'id' is non-nullable but contains null"):
        query.awaitTermination(300)
    assert fs.read(sink).count() == 0


def test_a_partition_that_was_dropped_after_the_plan_is_named(fs: FlussSpark, database: str) -> None:
    table = f"{database}.t"
    fs.catalog.create_table(table, "id BIGINT, day STRING", partition_keys=["day"], bucket_count=1)
    fs.catalog.add_partition(table, {"day": "monday"})
    fs.write(fs.spark.sql("SELECT 1L AS id, 'monday' AS day"), table)
    # With this much patience it would take an hour.
    rows = fs.read(table, scan_poll_timeout="1 h")
    assert rows.count() == 1
    fs.catalog.drop_partition(table, {"day": "monday"})
    with pytest.raises(Exception, match=rf"The partition 'monday' of {table} was dropped since the read was planned"):
        rows.collect()


def test_a_wrong_filter_is_refused_when_a_table_is_named(
    fs: FlussSpark, spark: SparkSession, bootstrap_servers: str, database: str
) -> None:
    table = f"{database}.t"
    fs.catalog.create_table(table, "id BIGINT", bucket_count=1)
    for read in (fs.read, fs.read_stream):
        with pytest.raises(FlussError, match="there is no column 'nosuch'"):
            read(table, filter="nosuch > 1")
    options = {"bootstrap.servers": bootstrap_servers, "table": table, "scan.filter": "id >"}
    with pytest.raises(AnalysisException, match="The filter is wrong"):
        spark.read.format("fluss").options(**options).load()
    fs.attach(database)
    with pytest.raises(AnalysisException, match="there is no column 'nosuch'"):
        fs.sql(f"SELECT * FROM {table} WITH (`scan.filter` = 'nosuch > 1')").collect()
    fs.detach(database)


def test_columns_are_found_in_any_case_unless_the_session_tells_them_apart(
    fs: FlussSpark, spark: SparkSession, bootstrap_servers: str, database: str
) -> None:
    table = f"{database}.t"
    columns = "Id BIGINT, Name STRING, v INT, s STRUCT<City: STRING, Zip: INT>"
    fs.catalog.create_table(table, columns, primary_keys=["Id"], bucket_count=1)
    place = "named_struct('zip', 7, 'CITY', 'x') AS S"
    fs.write(spark.sql(f"SELECT 1L AS id, 'one' AS NAME, 1 AS v, {place}"), table, sequence_column="V")
    assert fs.read(table).select("s.City", "s.Zip").collect() == [("x", 7)]
    fs.upsert(spark.sql("SELECT 1L AS ID, 'two' AS name"), table, target_columns=["name"])
    fs.write(spark.sql("SELECT 2L AS iD, 'x' AS name, 1 AS V, '-D' AS Kind"), table, change_type_column="kind")
    rows = fs.read(table, columns=["NAME", "ID"], filter="ID = 1 AND nAme LIKE 't%'")
    assert rows.columns == ["Name", "Id"]
    assert [tuple(row) for row in rows.collect()] == [("two", 1)]
    options = {"bootstrap.servers": bootstrap_servers, "table": table}
    named = spark.read.format("fluss").schema("NAME STRING, id BIGINT NOT NULL").options(**options).load()
    assert [row.asDict() for row in named.collect()] == [{"NAME": "two", "id": 1}]
    fs.delete(spark.sql("SELECT 1L AS ID"), table)
    assert fs.read(table).count() == 0
    with pytest.raises(FlussError, match="Two of the columns"):
        fs.write(spark.createDataFrame([(1, 2, "x", 3)], "Id BIGINT, id BIGINT, name STRING, v INT"), table)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(FlussError, match="Column 'ID' not found"):
            fs.read(table, columns=["ID"])
        with pytest.raises(FlussError, match="no column 'Id'; columns are 'id'"):
            fs.write(spark.sql("SELECT 1L AS id, 'one' AS Name, 1 AS v"), table)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_comments_are_set_or_refused(fs: FlussSpark, database: str) -> None:
    fs.attach(database)
    fs.catalog.create_table(f"{database}.t", "id BIGINT", comment="old")
    for name in (f"{database}.t", f"fluss.{database}.t"):
        with pytest.raises(FlussError, match="comment of a table is set when it is created"):
            fs.sql(f"COMMENT ON TABLE {name} IS 'new'")
    fs.sql(f"COMMENT ON DATABASE {database} IS 'all of it'")
    assert fs.catalog.database_info(database).database_descriptor.comment == "all of it"
    fs.sql(f"COMMENT ON SCHEMA fluss.{database} IS NULL")
    assert not fs.catalog.database_info(database).database_descriptor.comment
    fs.detach(database)


@pytest.mark.slow
def test_a_server_that_is_away_at_the_start_of_queries_is_waited_for(spark: SparkSession, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "server", "-D", "durability=os") as server:
        fs = FlussSpark(spark, bootstrap_servers=f"127.0.0.1:{server.port}", request_timeout=600_000)
        fs.catalog.create_database("d")
        fs.catalog.create_table("d.t", "id BIGINT", bucket_count=1)
        fs.write(spark.range(3), "d.t")
        rows = fs.read("d.t")

        def absent(call: Callable[[], T]) -> T:
            """Do something that begins while the server is away, for longer than a second or two."""
            server.kill()
            back = threading.Timer(4, server.restart)
            back.start()
            try:
                return call()
            finally:
                back.join()

        assert absent(rows.count) == 3
        assert absent(lambda: fs.read("d.t").count()) == 3
        query = absent(
            lambda: fs.write_stream(fs.read_stream("d.t"), "d.t", checkpoint=str(tmp_path / "c"), trigger="once")
        )
        assert query.awaitTermination(300)
        assert fs.read("d.t").count() == 6


def test_what_waiting_does_not_help_against_is_told_at_once(spark: SparkSession, fs: FlussSpark, database: str) -> None:
    with pytest.raises(FlussError, match="does not exist"):
        fs.read(f"{database}.nothing", request_timeout=3_600_000)
    nowhere = FlussSpark(spark, bootstrap_servers="no-such-host.invalid:9123", request_timeout=3_600_000)
    with pytest.raises(FlussError, match="no-such-host"):
        nowhere.read("a.b")


def test_texts_are_no_longer_than_their_columns(fs: FlussSpark, database: str) -> None:
    fs.attach(database)
    fs.sql(f"CREATE TABLE {database}.t (id INT, v VARCHAR(3), c CHAR(2))")
    fs.sql(f"INSERT INTO {database}.t VALUES (1, 'abc', 'x'), (2, 'äöü   ', NULL), (3, '', 'xy   ')")
    stored = fs.sql(f"SELECT v, c FROM {database}.t ORDER BY id")
    assert [tuple(row) for row in stored.collect()] == [("abc", "x"), ("äöü", None), ("", "xy")]
    for values, complaint in (
        ("(4, 'abcdef', 'x')", "Column 'v' takes texts of at most 3 characters, and there is one of 6"),
        ("(4, 'abc', 'xyz')", "Column 'c' takes texts of at most 2 characters, and there is one of 3"),
    ):
        with pytest.raises(FlussError, match=complaint):
            fs.sql(f"INSERT INTO {database}.t VALUES {values}")
    assert [row.data_type for row in fs.sql(f"DESCRIBE {database}.t").collect()] == ["int", "varchar(3)", "string"]
    (created,) = fs.sql(f"SHOW CREATE TABLE {database}.t").first()
    assert "v VARCHAR(3)" in created
    fs.sql(f"ALTER TABLE {database}.t ADD COLUMNS (w VARCHAR(1))")
    with pytest.raises(FlussError, match="Column 'w' takes texts of at most 1 characters"):
        fs.write(fs.spark.sql("SELECT 5 AS id, 'ab' AS w"), f"{database}.t")
    with pytest.raises(FlussError, match="use STRING inside of other types"):
        fs.sql(f"CREATE TABLE {database}.u (a ARRAY<VARCHAR(3)>)")
    fs.detach(database)
