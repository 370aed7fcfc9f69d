"""Batch writes with Spark: appended, upserted, changed, deleted and overwritten rows, and writes that must not happen.
Shown with DataFrames of several tasks into tables of a server process, which are read back with the client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from fluss import blocking

Write = Callable[..., None]
ROWS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("price", pa.decimal128(10, 2))])


@pytest.fixture
def create(connection: blocking.FlussConnection, database: str) -> Callable[..., Any]:
    def create(
        name: str, schema: pa.Schema | blocking.Schema = ROWS, keys: tuple[str, ...] = (), **descriptor: Any
    ) -> Any:
        made = schema if isinstance(schema, blocking.Schema) else blocking.Schema(schema, primary_keys=list(keys))
        path = blocking.TablePath(database, name)
        connection.get_admin().create_table(path, blocking.TableDescriptor(made, **descriptor))
        return connection.get_table(path)

    return create


@pytest.fixture
def write(bootstrap_servers: str, database: str) -> Write:
    """Write to a table of the database: ``write(df, "t", sink__target_columns="id,a")``."""

    def write(frame: DataFrame, table: str, mode: str = "append", **options: Any) -> None:
        writer = frame.write.format("fluss").mode(mode).option("bootstrap.servers", bootstrap_servers)
        for key, value in options.items():
            writer = writer.option(key.replace("__", ".").replace("_", "-"), value)
        writer.option("table", f"{database}.{table}").save()

    return write


def numbers(spark: SparkSession, count: int, tasks: int = 4) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr(
        "id", "concat('n', id) AS name", "CAST(id AS DECIMAL(10,2)) AS price"
    )


def rows(table: Any) -> Any:
    found = table.to_arrow()
    return found.sort_by([(name, "ascending") for name in found.column_names[:1]]).to_pylist()


def test_numbers_are_assigned_as_spark_stores_them(spark: SparkSession, create: Any, write: Write) -> None:
    columns = [("id", pa.int32()), ("ratio", pa.float64()), ("price", pa.decimal128(10, 2)), ("count", pa.int32())]
    table = create("numbers", pa.schema(columns))
    write(spark.sql("SELECT 1L AS id, 1 / CAST(4 AS DECIMAL(10, 2)) AS ratio, 0.5D AS price, 7.00 AS count"), "numbers")
    assert rows(table) == [{"id": 1, "ratio": 0.25, "price": Decimal("0.50"), "count": 7}]
    with pytest.raises(PySparkException, match="Column 'count' has a value that does not fit int32"):
        write(spark.sql("SELECT 2 AS id, 7.5 AS count"), "numbers")


def test_rows_of_all_tasks_are_appended_once(spark: SparkSession, create: Any, write: Write) -> None:
    table = create("t", bucket_count=3, bucket_keys=["id"])
    frame = numbers(spark, 50_000)
    write(frame, "t")
    assert table.to_arrow().sort_by("id").equals(frame.toArrow().sort_by("id").cast(table.arrow_schema))


def test_changes_are_applied_in_their_order_and_partial_updates_leave_the_rest(
    spark: SparkSession, create: Any, write: Write
) -> None:
    table = create("t", keys=("id",), bucket_count=2)
    write(numbers(spark, 1000), "t")
    changes = [
        (1, "first", "update_after"),
        (1, "last", "+U"),
        (2, None, "delete"),
        (3, "gone", "update_before"),
        (4, None, "-D"),
        (4, "back", "insert"),
        (5, "brief", "+I"),
        (5, None, "-D"),
    ]
    frame = spark.createDataFrame(changes, "id LONG, name STRING, op STRING").coalesce(1)
    write(frame, "t", sink__change_type_column="op")
    write(spark.sql("SELECT 6L AS id, 'renamed' AS name, 'x' AS price"), "t", sink__target_columns="name")
    found = {row["id"]: row["name"] for row in rows(table)}
    assert len(found) == 998
    assert {key: found.get(key) for key in range(1, 8)} == {
        1: "last", 2: None, 3: "n3", 4: "back", 5: None, 6: "renamed", 7: "n7"
    }  # fmt: skip
    assert {row["id"]: row["price"] for row in rows(table)}[6] == 6


def test_a_write_that_cannot_be_leaves_no_trace(spark: SparkSession, create: Any, write: Write) -> None:
    table = create("t", keys=("id",), bucket_count=1)
    with pytest.raises(PySparkException, match=r"has no column 'nmae' to write to.*'name'"):
        write(spark.sql("SELECT 1L AS id, 'a' AS nmae"), "t")
    # The last of many rows has no key.
    keyless = numbers(spark, 20_000, 1).withColumn("id", functions.expr("nullif(id, 19999)"))
    with pytest.raises(PySparkException, match="'id' is non-nullable but contains null"):
        write(keyless, "t")
    assert table.to_arrow().num_rows == 0


@pytest.mark.slow
def test_an_overwritten_table_has_the_new_rows_and_no_others(spark: SparkSession, create: Any, write: Write) -> None:
    table = create("t", keys=("id",), bucket_count=3)
    write(numbers(spark, 3000), "t")
    new = numbers(spark, 4000).where("id % 3 = 0").withColumn("name", functions.lit("new"))
    write(new, "t", "overwrite")
    assert table.to_arrow().sort_by("id").equals(new.toArrow().sort_by("id").cast(table.arrow_schema))
    log = create("log")
    with pytest.raises(PySparkException, match=r"log table, whose rows cannot be taken back.*sink\.allow-overwrite"):
        write(new, "log", "overwrite")
    write(new, "log", "overwrite", sink__allow_overwrite="true")
    assert log.to_arrow().num_rows == 1334


@pytest.mark.slow
def test_rows_go_to_their_partitions(
    spark: SparkSession, create: Any, write: Write, connection: blocking.FlussConnection
) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string()), ("name", pa.string())])
    for name, keys in (("log", ()), ("keyed", ("id", "day"))):
        table = create(name, schema, keys, bucket_count=2, partition_keys=["day"])
        for day in ("mon", "tue"):
            connection.get_admin().create_partition(table.table_path, {"day": day})
        frame = spark.range(0, 5000, 1, 3).selectExpr("id", "if(id % 2 = 0, 'mon', 'tue') AS day", "'x' AS name")
        write(frame, name)
        assert table.to_arrow(partitions="mon").num_rows == 2500
        assert table.to_arrow().sort_by("id").equals(frame.toArrow().sort_by("id").cast(table.arrow_schema))
    write(frame.where("day = 'mon'"), "keyed", "overwrite")
    assert table.to_arrow().num_rows == 2500


@pytest.mark.slow
def test_values_of_an_auto_increment_column_are_left_to_the_server(
    spark: SparkSession, create: Any, write: Write
) -> None:
    builder = blocking.Schema.builder().column("name", blocking.DataTypes.string())
    builder = builder.column("number", blocking.DataTypes.bigint()).primary_key(["name"])
    table = create("t", builder.enable_auto_increment("number").build(), bucket_count=1)
    write(spark.sql("SELECT concat('n', id) AS name FROM range(100)"), "t")
    found = table.to_arrow()
    assert found.num_rows == 100
    assert len(set(found["number"].to_pylist())) == 100
    with pytest.raises(PySparkException, match="is an auto increment column"):
        write(spark.sql("SELECT 'a' AS name, 1L AS number"), "t")
    with pytest.raises(PySparkException, match="cannot be overwritten: rows with an auto increment column"):
        write(spark.sql("SELECT 'a' AS name"), "t", "overwrite")


@pytest.mark.slow
def test_deletes_can_be_ignored(spark: SparkSession, create: Any, write: Write) -> None:
    table = create("t", keys=("id",), bucket_count=1)
    write(numbers(spark, 10), "t")
    deletes = spark.sql("SELECT id, 'delete' AS op FROM range(5)")
    write(deletes, "t", sink__change_type_column="op", sink__ignore_delete="true")
    assert len(rows(table)) == 10
    write(deletes, "t", sink__change_type_column="op")
    assert [row["id"] for row in rows(table)] == [5, 6, 7, 8, 9]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
@pytest.mark.parametrize("keys", [(), ("id",)])
def test_a_batch_write_can_be_exactly_once_although_its_tasks_fail(
    spark: SparkSession, create: Any, write: Write, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    table = create("t", keys=keys, bucket_count=2)
    frame = numbers(spark, 40_000, 3)
    location = str(tmp_path / "records")

    def failing(batches: Any) -> Any:
        task = TaskContext.get()
        assert task is not None
        for number, batch in enumerate(batches):
            if number == task.attemptNumber() and number < 2:
                raise RuntimeError("injected")
            yield batch

    broken = frame.mapInArrow(failing, frame.schema)
    write(broken, "t", sink__delivery_guarantee="exactly-once", checkpointLocation=location)
    found = Counter(table.to_arrow()["id"].to_pylist())
    assert found == Counter(range(40_000))
    assert list(Path(location).rglob("*.json")) == [], "the records are gone when the write is done"
    with pytest.raises(PySparkException, match="must know where it is"):
        write(frame, "t", sink__delivery_guarantee="exactly-once")
