"""Batch reads with Spark: exactly the rows asked for, of logs, primary-key tables, their changes and times.
Shown with small tables of a server process, compared as Arrow, while others write and while tables grow."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StructType

from fluss import blocking
from tests.integration.keyed_tables import in_background

ROWS = pa.schema([("id", pa.int64()), ("user", pa.int32()), ("name", pa.string()), ("price", pa.float64())])
Load = Callable[..., DataFrame]


class Tables:
    """Makes tables of a database, and writes to them."""

    def __init__(self, connection: blocking.FlussConnection, database: str) -> None:
        self._connection = connection
        self._database = database
        self.admin = connection.get_admin()

    def create(self, name: str, schema: pa.Schema = ROWS, keys: tuple[str, ...] = (), **descriptor: Any) -> Any:
        path = blocking.TablePath(self._database, name)
        described = blocking.TableDescriptor(blocking.Schema(schema, primary_keys=list(keys)), **descriptor)
        self.admin.create_table(path, described)
        return self._connection.get_table(path)


@pytest.fixture
def tables(connection: blocking.FlussConnection, database: str) -> Tables:
    return Tables(connection, database)


@pytest.fixture
def load(spark: SparkSession, bootstrap_servers: str, database: str) -> Load:
    """Read a table of the database: ``load("t", scan__columns="a")``."""

    def load(table: str, schema: StructType | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("fluss").option("bootstrap.servers", bootstrap_servers)
        for key, value in options.items():
            reader = reader.option(key.replace("__", ".").replace("_", "-"), value)
        reader = reader if schema is None else reader.schema(schema)
        return reader.option("table", f"{database}.{table}").load()

    return load


def append(table: Any, ids: range, **columns: Any) -> None:
    arrays = {
        "id": list(ids),
        "user": [each % 10 for each in ids],
        "name": [f"n{each}" for each in ids],
        "price": [each / 2 for each in ids],
        **columns,
    }
    writer = table.new_append().create_writer()
    writer.write_arrow_batch(pa.RecordBatch.from_pydict(arrays, schema=table.arrow_schema))
    writer.flush()


def upsert(table: Any, rows: list[list[Any]]) -> None:
    writer = table.new_upsert().create_writer()
    for row in rows:
        writer.upsert(row)
    writer.flush()


def delete(table: Any, keys: list[dict[str, Any]]) -> None:
    writer = table.new_upsert().create_writer()
    for key in keys:
        writer.delete(key)
    writer.flush()


def rows(frame: DataFrame, *order: str) -> Any:
    table = frame.toArrow()
    return table.sort_by([(name, "ascending") for name in order or table.column_names[:1]]).to_pylist()


# Log tables


def test_one_relation_that_is_scanned_twice_gives_each_scan_its_own_rows(
    tables: Tables, load: Load, spark: SparkSession
) -> None:
    append(tables.create("orders", bucket_count=2), range(400))
    frame = load("orders")
    assert (frame.where("user = 5").count(), frame.count()) == (40, 400)
    frame.createOrReplaceTempView("orders_view")
    counts = spark.sql(
        "SELECT (SELECT count(*) FROM orders_view WHERE user = 5), (SELECT count(*) FROM orders_view),"
        " (SELECT count(*) FROM orders_view WHERE user = 7 AND id > 100)"
    ).collect()[0]
    assert tuple(counts) == (40, 400, 30)
    assert frame.where("user = 5").unionAll(frame.where("user = 7 AND id > 100")).count() == 70
    joined = frame.alias("a").join(frame.alias("b"), functions.expr("a.id = b.id")).where("a.user = 5 AND b.price >= 0")
    assert joined.count() == 40
    assert spark.catalog.dropTempView("orders_view")


def test_a_data_frame_keeps_its_rows_while_the_table_grows(tables: Tables, load: Load) -> None:
    table = tables.create("growing", bucket_count=2)
    append(table, range(100))
    frame = load("growing")
    assert frame.count() == 100
    append(table, range(100, 150))
    assert frame.count() == 100
    assert frame.agg(functions.max("id")).collect()[0][0] == 99
    assert load("growing").count() == 150


def test_columns_are_chosen_by_option_or_by_schema_and_filtered_by_others(tables: Tables, load: Load) -> None:
    append(tables.create("chosen"), range(50))
    chosen = load("chosen", scan__columns="price,id", scan__filter="user = 3 AND name LIKE 'n1%'")
    assert chosen.columns == ["price", "id"]
    assert rows(chosen, "id") == [{"price": 6.5, "id": 13}]
    by_schema = load("chosen", StructType.fromDDL("name STRING, user INT"))
    assert rows(by_schema.where("name = 'n7'")) == [{"name": "n7", "user": 7}]
    # Without a column there is only a number to tell.
    assert load("chosen", StructType([]), scan__filter="id < 20").count() == 20


def test_tasks_have_at_most_so_many_records(tables: Tables, load: Load) -> None:
    append(tables.create("split", bucket_count=1), range(100))
    frame = load("split", scan__maxRecordsPerPartition=30)
    counts = [row[0] for row in frame.groupBy(functions.spark_partition_id()).count().select("count").collect()]
    assert sorted(counts) == [25, 25, 25, 25]
    assert rows(frame.select("id")) == [{"id": each} for each in range(100)]


def test_partitions_and_empty_tables(tables: Tables, load: Load) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    table = tables.create("days", schema, partition_keys=["day"], bucket_count=2)
    assert load("days").count() == 0
    for day in ("mon", "tue"):
        tables.admin.create_partition(table.table_path, {"day": day})
        writer = table.new_append().create_writer()
        for each in range(10):
            writer.append([each, day])
        writer.flush()
    assert rows(load("days", scan__partitions="day=tue").select("day").distinct()) == [{"day": "tue"}]
    assert load("days", scan__filter="day = 'mon' AND id >= 4").count() == 6


def test_a_time_range_has_the_records_of_these_times(tables: Tables, load: Load) -> None:
    table = tables.create("timed", bucket_count=1)
    times_ms = []
    for begin in range(0, 40, 10):
        append(table, range(begin, begin + 10))
        times_ms.append(int(time.time() * 1000) + 1)
        time.sleep(0.01)
    ranged = load(
        "timed", scan__incremental__start__timestamp=times_ms[0], scan__incremental__end__timestamp=times_ms[2]
    )
    assert [row["id"] for row in rows(ranged)] == list(range(10, 30))
    start = datetime.fromtimestamp(times_ms[2] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    assert load("timed", scan__incremental__start__timestamp=start).count() == 10


# Primary-key tables

KEYED = pa.schema([("name", pa.string()), ("id", pa.int32()), ("price", pa.int64())])


def test_rows_of_a_primary_key_table_are_those_of_one_moment(tables: Tables, load: Load) -> None:
    table = tables.create("keyed", KEYED, ("id",), bucket_count=2)
    upsert(table, [[f"n{each}", each, 0] for each in range(500)])
    delete(table, [{"id": each} for each in range(100)])
    frame = load("keyed", scan__target_task_bytes="1kb")
    expected = [{"name": f"n{each}", "id": each, "price": 0} for each in range(100, 500)]

    def write(is_over: Callable[[], bool]) -> None:
        version = 1
        while not is_over():
            upsert(table, [[f"v{version}", each, version] for each in range(0, 600, 7)])
            delete(table, [{"id": each} for each in range(3, 600, 11)])
            version += 1

    # The plan is made by the first action.
    assert frame.count() == 400
    with in_background(write):
        assert rows(frame, "id") == expected
        assert frame.agg(functions.sum("price")).collect()[0][0] == 0
    assert rows(frame, "id") == expected
    assert load("keyed").agg(functions.max("price")).collect()[0][0] > 0


def test_filters_on_values_see_the_rows_as_they_are(tables: Tables, load: Load) -> None:
    table = tables.create("filtered", KEYED, ("id",), bucket_count=2)
    upsert(table, [["old", each, 1] for each in range(20)])
    upsert(table, [["new", each, 2] for each in range(5)])
    filtered = load("filtered", scan__filter="price = 1", scan__columns="name")
    assert rows(filtered) == [{"name": "old"}] * 15
    assert rows(load("filtered", scan__filter="id = 3")) == [{"name": "new", "id": 3, "price": 2}]


def changed(tables: Tables, name: str, **descriptor: Any) -> tuple[Any, int]:
    """Make changes of every kind, and return when the later ones began."""
    table = tables.create(name, KEYED, ("id",), bucket_count=1, **descriptor)
    upsert(table, [["a", 1, 10], ["b", 2, 20], ["c", 3, 30]])
    time.sleep(0.01)
    later_ms = int(time.time() * 1000)
    time.sleep(0.01)
    upsert(table, [["d", 2, 21]])
    delete(table, [{"id": 3}])
    upsert(table, [["e", 4, 40]])
    delete(table, [{"id": 4}])
    return table, later_ms


def test_a_time_range_of_a_primary_key_table_has_the_last_state_of_what_was_written(tables: Tables, load: Load) -> None:
    _, later_ms = changed(tables, "window")
    found = load("window", scan__incremental__start__timestamp=later_ms)
    assert rows(found) == [{"name": "d", "id": 2, "price": 21}]
    before = load(
        "window",
        scan__incremental__start__timestamp=0,
        scan__incremental__end__timestamp=later_ms,
        scan__filter="price > 10",
        scan__columns="name",
    )
    assert rows(before) == [{"name": "b"}, {"name": "c"}]


def test_changes_come_with_what_they_are_where_they_stand_and_when_they_were(tables: Tables, load: Load) -> None:
    _, later_ms = changed(tables, "changes")
    found = load("changes$changelog")
    assert found.columns == ["_change_type", "_log_offset", "_commit_timestamp", "name", "id", "price"]
    changes = rows(found, "_log_offset")
    assert [(row["_change_type"], row["_log_offset"], row["name"], row["id"]) for row in changes] == [
        ("insert", 0, "a", 1),
        ("insert", 1, "b", 2),
        ("insert", 2, "c", 3),
        ("update_before", 3, "b", 2),
        ("update_after", 4, "d", 2),
        ("delete", 5, "c", 3),
        ("insert", 6, "e", 4),
        ("delete", 7, "e", 4),
    ]
    assert all((row["_commit_timestamp"].timestamp() * 1000 > later_ms) is (row["_log_offset"] > 2) for row in changes)
    deletes = load("changes", scan__changelog="true", scan__columns="id", scan__filter="_change_type = 'delete'")
    assert rows(deletes) == [{"id": 3}, {"id": 4}]


def test_the_binlog_has_one_row_for_each_change(tables: Tables, load: Load) -> None:
    changed(tables, "events")
    # Cut everywhere, also between the two records of an update.
    found = load("events$binlog", scan__maxRecordsPerPartition=1)
    assert found.columns == ["_change_type", "_log_offset", "_commit_timestamp", "before", "after"]
    a, b, c, d, e = (
        {"name": name, "id": id_, "price": price}
        for name, id_, price in (("a", 1, 10), ("b", 2, 20), ("c", 3, 30), ("d", 2, 21), ("e", 4, 40))
    )
    expected = [
        ("insert", 0, None, a),
        ("insert", 1, None, b),
        ("insert", 2, None, c),
        ("update", 3, b, d),
        ("delete", 5, c, None),
        ("insert", 6, None, e),
        ("delete", 7, e, None),
    ]
    events = rows(found, "_log_offset")
    assert [(row["_change_type"], row["_log_offset"], row["before"], row["after"]) for row in events] == expected
    assert rows(load("events$binlog", scan__columns="_change_type").distinct())[0] == {"_change_type": "delete"}


@pytest.mark.slow
def test_the_binlog_of_a_changelog_without_old_rows_has_none(tables: Tables, load: Load) -> None:
    changed(tables, "wal", properties={"table.changelog.image": "WAL"})
    events = rows(load("wal$binlog"), "_log_offset")
    assert [(row["_change_type"], row["before"] is None, row["after"] is None) for row in events] == [
        ("update", True, False),
        ("update", True, False),
        ("update", True, False),
        ("update", True, False),
        ("delete", False, True),
        ("update", True, False),
        ("delete", False, True),
    ]


@pytest.mark.slow
def test_a_log_table_has_a_changelog_of_inserts(tables: Tables, load: Load) -> None:
    append(tables.create("logged", bucket_count=1), range(3))
    found = rows(load("logged$changelog", scan__columns="_log_offset,_change_type,id"))
    assert found == [{"_log_offset": each, "_change_type": "insert", "id": each} for each in range(3)]


# Errors


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"table": "nobody"}, "does not exist"),
        ({"scan__columns": "nobody"}, "Column 'nobody' not found"),
        ({"scan__filter": "nobody = 1"}, "there is no column 'nobody'"),
        ({"scan__partitions": "day=mon"}, "has no partitions to choose from"),
        ({"scan__mode": "lake"}, "The lake has nothing of"),
        ({"table": "wrong$binlog"}, "it has no \\$binlog"),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_read_is_said_in_a_sentence(
    tables: Tables, load: Load, options: dict[str, str], text: str
) -> None:
    append(tables.create("wrong"), range(3))
    with pytest.raises(Exception, match=text):
        load(**{"table": "wrong", **options}).count()


@pytest.mark.slow
def test_a_table_that_was_replaced_is_not_read_by_an_old_plan(tables: Tables, load: Load) -> None:
    table = tables.create("replaced")
    append(table, range(10))
    frame = load("replaced")
    assert frame.count() == 10
    tables.admin.drop_table(table.table_path)
    append(tables.create("replaced"), range(20))
    with pytest.raises(Exception, match="was dropped and created again since the read was planned"):
        frame.count()
    assert load("replaced").count() == 20


@pytest.mark.slow
def test_many_batches_of_all_sizes_arrive_whole(tables: Tables, load: Load) -> None:
    table = tables.create("sizes", bucket_count=3)
    begin = 0
    for size in (1, 3, 200_000, 17, 50_000, 5, 16_384, 1):
        append(table, range(begin, begin + size))
        begin += size
    frame = load("sizes")
    assert frame.select("id").distinct().count() == begin
    assert frame.agg(functions.sum("price")).collect()[0][0] == sum(range(begin)) / 2
    assert load("sizes").limit(5).count() == 5
