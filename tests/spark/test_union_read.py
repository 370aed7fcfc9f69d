"""Spark sees a table and its lake as one: by the source, by its own reader of Parquet, and as a stream."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from fluss.client.bulk import wait_for
from fluss.spark import FlussSpark
from fluss.spark.read import native_lake
from fluss.testing.cluster import ServerProcess
from tests.integration.keyed_tables import Tables, delete, tables_of, upsert

LAKE = {"table.datalake.enabled": "true"}
ROWS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("small", pa.int16())])


@pytest.fixture(scope="module")
def tables(lake_server: ServerProcess) -> Iterator[Tables]:
    with tables_of(lake_server) as made:
        yield made


@pytest.fixture
def fs(spark: SparkSession, lake_server: ServerProcess) -> FlussSpark:
    return FlussSpark(spark, bootstrap_servers=f"127.0.0.1:{lake_server.port}")


def rows(frame: DataFrame) -> list[tuple]:
    return sorted(map(tuple, frame.collect()))


def plan_of(frame: DataFrame) -> str:
    return frame._jdf.queryExecution().executedPlan().toString()


def test_tables_are_read_with_their_lake(
    fs: FlussSpark, tables: Tables, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.lake_tiering import tier

    table = tables.create(ROWS, ("id",), bucket_count=2, properties=LAKE)
    name = str(table.table_path)
    upsert(table, [[number, "old", number] for number in range(100)])
    tier(table)
    upsert(table, [[number, "new", number] for number in range(90, 110)])
    delete(table, [[number] for number in range(5)])
    expected = rows(fs.read(name, mode="fluss"))
    assert len(expected) == 105
    assert rows(fs.read(name)) == expected
    assert fs.read(name).where("name = 'old'").count() == 85
    assert fs.read(f"{name}$lake").count() == 100
    monkeypatch.setattr(native_lake, "NATIVE_ROWS_MIN", 1)
    native = fs.read(name)
    assert "parquet" in plan_of(native).lower()
    assert "LocalTableScan" in plan_of(native), "a few keys that have changed are read on the driver"
    assert rows(native) == expected
    monkeypatch.setattr(native_lake, "_FEW_CHANGES", 0)
    assert "LocalTableScan" not in plan_of(fs.read(name))
    assert rows(fs.read(name)) == expected
    assert native.schema.simpleString() == fs.read(name, mode="fluss").schema.simpleString()
    assert native.where("id = 95").select("name").collect() == [("new",)]
    assert rows(fs.read(name, columns=["name"], filter="id >= 88 AND name <> 'x'")) == sorted(
        [("old",)] * 2 + [("new",)] * 20
    )
    # The second round deletes rows from the first files by their positions.
    tier(table)
    assert rows(fs.read(name)) == expected == rows(fs.read(name, mode="lake"))


@pytest.mark.parametrize("keys", [(), ("id", "name")], ids=["log", "keys"])
def test_an_export_has_what_is_in_fluss_and_what_is_in_the_lake(
    fs: FlussSpark, tables: Tables, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    from tests.lake_tiering import tier

    table = tables.create(ROWS, keys, partition_keys=["name"], bucket_count=2, properties=LAKE)

    def put(ids: range, name: str, small: int) -> None:
        if keys:
            upsert(table, [[number, name, small] for number in ids])
            return
        writer = table.new_append().create_writer()
        writer.write_arrow(pa.table({"id": ids, "name": [name] * len(ids), "small": [small] * len(ids)}, ROWS))
        wait_for(writer.flush())

    for name in ("gone", "here", "new"):
        wait_for(tables.admin.create_partition(table.table_path, {"name": name}))
    for name in ("gone", "here"):
        put(range(50), name, 1)
    tier(table)
    wait_for(tables.admin.drop_partition(table.table_path, {"name": "gone"}))
    put(range(40, 60), "here", 2)
    put(range(5), "new", 3)

    def exported(name: str, **options: object) -> list[tuple]:
        report = fs.export(str(table.table_path), str(tmp_path / name), **options)
        found = pq.read_table(tmp_path / name, partitioning="hive").select(["id", "name", "small"]).to_pylist()
        assert report.rows == len(found)
        return sorted(tuple(map(row.get, ROWS.names)) for row in found)

    everything = rows(fs.read(str(table.table_path)))
    assert len(everything) == (115 if keys else 125)
    assert exported("all") == everything
    assert exported("some", filter="id >= 45 AND name <> 'new'") == [
        row for row in everything if row[0] >= 45 and row[1] != "new"
    ]
    manifest = json.loads((tmp_path / "all" / "_SUCCESS").read_text())
    assert {each["partition"] for each in manifest["log"]} == {"here", "new"}
    assert manifest["lake_snapshot"] is not None


def test_rows_that_only_the_lake_has_are_not_changed_in_part(
    fs: FlussSpark, tables: Tables, spark: SparkSession, lake_server: ServerProcess
) -> None:
    from tests.lake_tiering import tier

    table = tables.create(ROWS, ("id", "name"), partition_keys=["name"], bucket_count=1, properties=LAKE)
    name = str(table.table_path)
    for day in ("gone", "here"):
        wait_for(tables.admin.create_partition(table.table_path, {"name": day}))
        upsert(table, [[number, day, 1] for number in range(10)])
    tier(table)
    wait_for(tables.admin.drop_partition(table.table_path, {"name": "gone"}))
    before = rows(fs.read(name))
    assert len(before) == 20
    new = spark.sql("SELECT id, 'here' AS name, 5S AS small FROM range(3)")
    source = spark.sql("SELECT 4L AS id")
    creating = FlussSpark(
        spark,
        bootstrap_servers=f"127.0.0.1:{lake_server.port}",
        **{"client.writer.create-missing-partitions": True},
    )

    def merge(on: str, where: str | None = None) -> None:
        creating.merge(name, source, on).when_matched_delete(where).when_not_matched_insert(
            {"id": "source.id", "name": "'here'", "small": "9"}
        ).execute()

    for change in (
        lambda: fs.write(new, name, mode="overwrite"),
        lambda: creating.write(new, name, mode="overwrite"),
        lambda: creating.delete(table=name, where="id = 4"),
        lambda: creating.delete(spark.sql("SELECT 'gone' AS NAME, 4 AS id UNION SELECT 'here', 99"), name),
        lambda: creating.delete(spark.sql("SELECT 99L AS id, 'gone' AS name"), name),
        lambda: creating.sql(f"DELETE FROM fluss.{name} WHERE id = 4"),
        lambda: creating.spark.sql(f"DELETE FROM fluss.{name} WHERE id = 4"),
        lambda: creating.update(name, {"small": "small + 1"}),
        lambda: merge("target.id = source.id"),
    ):
        with pytest.raises(Exception, match=r"in its lake only"):
            change()
        assert rows(fs.read(name)) == before
    # What does not concern these rows is done, and so is what is said to be about Fluss only.
    creating.delete(spark.sql("SELECT 'here' AS NAME, 4 AS id, 'gone' AS other"), name)
    creating.spark.sql(f"DELETE FROM fluss.{name} WHERE id = 5 AND name = 'here'")
    creating.update(name, {"small": "small + 1"}, where="name = 'here' AND id < 2")
    merge("target.id = source.id AND target.name = 'here'")
    merge("target.id = source.id", "target.name = 'here'")
    left = [(number, "here", 2 if number < 2 else 1) for number in range(10) if number not in (4, 5)]
    assert rows(fs.read(name, mode="fluss")) == left
    fs.write(new, name, mode="overwrite", **{"client.lake.read": "off"})
    assert rows(fs.read(name, mode="fluss")) == [(number, "here", 5) for number in range(3)]
    assert [row for row in rows(fs.read(name)) if row[1] == "gone"] == [row for row in before if row[1] == "gone"]
    assert [each.partition_name for each in wait_for(tables.admin.list_partition_infos(table.table_path))] == ["here"]


def test_rows_that_are_all_in_the_lake_are_counted_without_being_read(fs: FlussSpark, tables: Tables) -> None:
    from tests.lake_tiering import tier

    table = tables.create_log(ROWS, bucket_count=2, properties=LAKE)

    def put(ids: range) -> None:
        writer = table.new_append().create_writer()
        writer.write_arrow(pa.table({"id": ids, "name": ["n"] * len(ids), "small": [1] * len(ids)}, ROWS))
        wait_for(writer.flush())

    put(range(100))
    tier(table)
    counted = fs.read(str(table.table_path)).groupBy().count()
    assert counted.collect() == [(100,)]
    assert "LocalTableScan" in plan_of(counted)
    put(range(5))
    counted = fs.read(str(table.table_path)).groupBy().count()
    assert counted.collect() == [(105,)]
    assert "LocalTableScan" not in plan_of(counted)


def test_changed_rows_on_the_driver_are_those_of_the_source(
    fs: FlussSpark, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.lake_tiering import tier

    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("n", pa.int32()),
            ("flag", pa.bool_()),
            ("amount", pa.float64()),
            ("price", pa.decimal128(15, 2)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us")),
            ("text", pa.string()),
            ("instant", pa.timestamp("us", "UTC")),
            ("small", pa.int16()),
        ]
    )
    table = tables.create(schema, ("id",), bucket_count=2, properties=LAKE)
    name = str(table.table_path)

    def values(number: int, text: str | None) -> list[object]:
        if text is None:
            return [number, *[None] * 9]
        at = datetime(1969, 12, 31, 23, 59, 59, 999_999 - number)
        price, instant = Decimal(number) / 4, at.replace(tzinfo=UTC)
        return [number, -number, number % 2 == 0, number / 3, price, at.date(), at, text, instant, number]

    upsert(table, [values(number, "old") for number in range(40)])
    tier(table)
    upsert(table, [values(number, "new") for number in range(35, 45)])
    upsert(table, [values(number, None) for number in (3, 41)])
    delete(table, [[number] for number in (0, 36, 44)])
    upsert(table, [values(36, "again")])
    monkeypatch.setattr(native_lake, "NATIVE_ROWS_MIN", 1)
    for columns in (schema.names[:8], ["at", "id"], schema.names):
        expected = fs.read(name, mode="fluss", columns=columns)
        for bytes_max in (16 << 20, 0):
            monkeypatch.setattr(native_lake, "_FEW_BYTES_MAX", bytes_max)
            frame = fs.read(name, columns=columns)
            is_whole = bytes_max > 0 and "instant" not in columns
            # A scan of the source is one of Python.
            assert ("BatchScan" in plan_of(frame)) is not is_whole
            assert sorted(map(str, frame.collect())) == sorted(map(str, expected.collect()))
            assert frame.schema.simpleString() == expected.schema.simpleString()
    assert fs.read(name, columns=["text"]).where("text = 'new'").count() == 7


@pytest.mark.slow
def test_log_tables_are_read_with_their_lake(
    fs: FlussSpark, tables: Tables, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fluss.client.kernel.runtime import wait_for
    from tests.lake_tiering import tier

    schema = pa.schema([("id", pa.int64()), ("day", pa.string())])
    table = tables.create_log(schema, partition_keys=["day"], bucket_count=2, properties=LAKE)
    name = str(table.table_path)
    for day in ("1", "2"):
        wait_for(tables.admin.create_partition(table.table_path, {"day": day}))
        writer = table.new_append().create_writer()
        writer.write_arrow(pa.table({"id": range(100), "day": [day] * 100}, schema))
        wait_for(writer.flush())
        if day == "1":
            tier(table)
    expected = rows(fs.read(name, mode="fluss"))
    wait_for(tables.admin.drop_partition(table.table_path, {"day": "1"}))
    for rows_min in (1, 1 << 40):
        monkeypatch.setattr(native_lake, "NATIVE_ROWS_MIN", rows_min)
        frame = fs.read(name)
        assert rows(frame) == expected
        assert frame.count() == 200
        assert frame.where("day = '1'").count() == 100
        assert rows(fs.read(name, partitions={"day": "1"})) == [(number, "1") for number in range(100)]
        assert len(frame.limit(150).collect()) == 150
    view = f"u_{secrets.token_hex(4)}"
    fs.attach(table.table_path.database_name, [table.table_path.table_name], name=view)
    assert spark.sql(f"SELECT count(*) FROM {view}.{table.table_path.table_name}").collect() == [(200,)]
    fs.detach(view)


@pytest.mark.slow
def test_a_stream_begins_with_the_lake_and_goes_on_in_the_log(
    fs: FlussSpark, tables: Tables, spark: SparkSession, checkpoint: str
) -> None:
    from fluss.client.kernel.runtime import wait_for
    from tests.lake_tiering import tier

    table = tables.create_log(ROWS, bucket_count=2, properties=LAKE)
    name = str(table.table_path)

    def append(first: int) -> None:
        writer = table.new_append().create_writer()
        numbers = range(first, first + 50)
        writer.write_arrow(pa.table({"id": numbers, "name": ["x"] * 50, "small": [n % 7 for n in numbers]}, ROWS))
        wait_for(writer.flush())

    found: list[int] = []

    def run() -> None:
        """Read what there is, and end; each time the query goes on from its checkpoint."""
        stream = fs.read_stream(name, max_rows=40).writeStream.option("checkpointLocation", checkpoint)
        query = stream.foreachBatch(lambda frame, _: found.extend(row.id for row in frame.select("id").collect()))
        query.trigger(availableNow=True).start().awaitTermination(300)

    append(0)
    tier(table)
    append(50)
    run()
    assert sorted(found) == list(range(100))
    append(100)
    tier(table)
    append(150)
    run()
    assert sorted(found) == list(range(200))
