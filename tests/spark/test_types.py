"""Values of every type go from a table through Spark into another table and stay what they were, and Spark sees what
they mean. Shown with a session whose zone is New York: the client compares both tables, SQL looks at single values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from fluss import Column, DataField, DataTypes, Schema, TableDescriptor, TablePath, blocking
from fluss.schema.schema import schema_from_columns
from tests.integration import every_type
from tests.integration.every_type import FULL_ROW

X = DataField("x", DataTypes.int())
# Booleans, numbers, texts, bytes and a decimal of few digits; what is tried here in every precision follows.
SCALARS = every_type.COLUMNS[:12]
COLUMNS = (
    *SCALARS,
    Column("long_decimal", DataTypes.decimal(38, 18)),
    Column("date", DataTypes.date()),
    *(Column(f"time_{precision}", DataTypes.time(precision)) for precision in (0, 3, 6, 9)),
    *(Column(f"timestamp_{precision}", DataTypes.timestamp(precision)) for precision in (0, 3, 6, 9)),
    *(Column(f"instant_{precision}", DataTypes.timestamp_ltz(precision)) for precision in (0, 3, 6, 9)),
    Column("array", DataTypes.array(DataTypes.array(DataTypes.string()))),
    Column("full_array", DataTypes.array(DataTypes.timestamp_ltz(3).not_null())),
    Column("map", DataTypes.map(DataTypes.string(), DataTypes.row([DataField("d", DataTypes.decimal(38, 18))]))),
    Column("row", DataTypes.row([X, DataField("inner", DataTypes.row([X, DataField("t", DataTypes.time(3))]))])),
    Column("full_row", DataTypes.row([DataField("x", DataTypes.int().not_null())])),
)
MOMENT = dt.datetime(1969, 12, 31, 23, 59, 59)
INSTANT = dt.datetime(2026, 7, 1, 3, 30, 15, tzinfo=dt.UTC)
FULL: dict[str, Any] = {
    **{column.name: FULL_ROW[column.name] for column in SCALARS},
    "long_decimal": Decimal("12345678901234567890.012345678901234567"),
    "date": dt.date(1582, 10, 14),
    "time_0": dt.time(23, 59, 59),
    **{f"time_{precision}": dt.time(0, 0, 0, 123_000) for precision in (3, 6, 9)},
    "timestamp_0": MOMENT,
    "timestamp_3": MOMENT.replace(microsecond=999_000),
    **{f"timestamp_{precision}": MOMENT.replace(microsecond=999_999) for precision in (6, 9)},
    "instant_0": INSTANT,
    "instant_3": INSTANT.replace(microsecond=1_000),
    **{f"instant_{precision}": INSTANT.replace(microsecond=1) for precision in (6, 9)},
    "array": [["a", None], None, []],
    "full_array": [INSTANT, INSTANT.replace(year=1900)],
    "map": {"k": {"d": Decimal("0.000000000000000001")}, "l": None},
    "row": {"x": None, "inner": {"x": 1, "t": dt.time(12, 0, 0, 1_000)}},
    "full_row": {"x": 7},
}
ROWS: tuple[dict[str, Any], ...] = (
    {"id": 1, **FULL},
    {"id": 2, **dict.fromkeys(FULL)},
    {"id": 3, **FULL, "row": {"x": 2, "inner": None}, "map": {}, "array": [], "string": ""},
)


def _create(connection: blocking.FlussConnection, path: TablePath, *, is_keyed: bool) -> None:
    key = Column("id", DataTypes.int().not_null())
    schema = schema_from_columns([key, *COLUMNS], ["id"] if is_keyed else [])
    connection.get_admin().create_table(path, TableDescriptor(schema, bucket_count=2))


def _fill(connection: blocking.FlussConnection, path: TablePath, *, is_keyed: bool) -> None:
    table = connection.get_table(path)
    if is_keyed:
        upserts = table.new_upsert().create_writer()
        for row in ROWS:
            upserts.upsert(row)
        upserts.flush()
    else:
        appends = table.new_append().create_writer()
        for row in ROWS:
            appends.append(row)
        appends.flush()


def _rows(connection: blocking.FlussConnection, path: TablePath) -> pa.Table:
    return connection.get_table(path).to_arrow().sort_by("id").combine_chunks()


def _frame(spark: SparkSession, bootstrap_servers: str, path: TablePath) -> DataFrame:
    return spark.read.format("fluss").option("bootstrap.servers", bootstrap_servers).load(str(path))


def _copy(frame: DataFrame, bootstrap_servers: str, path: TablePath) -> None:
    writer = frame.write.format("fluss").option("bootstrap.servers", bootstrap_servers)
    writer.mode("append").save(str(path))


@pytest.mark.parametrize("is_keyed", [False, True], ids=["log table", "primary-key table"])
def test_values_of_every_type_survive_the_way_through_spark(
    spark: SparkSession,
    connection: blocking.FlussConnection,
    bootstrap_servers: str,
    database: str,
    is_keyed: bool,
) -> None:
    source, sink = TablePath(database, "source"), TablePath(database, "sink")
    for path in (source, sink):
        _create(connection, path, is_keyed=is_keyed)
    _fill(connection, source, is_keyed=is_keyed)
    frame = _frame(spark, bootstrap_servers, source)
    _copy(frame, bootstrap_servers, sink)
    written, copied = _rows(connection, source), _rows(connection, sink)
    assert written.num_rows == len(ROWS)
    assert copied.schema == written.schema
    for name in written.column_names:
        assert copied[name].equals(written[name]), name
    # What Spark itself makes of the rows, other columns of nested types included.
    in_spark = frame.orderBy("id").toArrow()
    assert in_spark["map"].to_pylist() == written["map"].to_pylist()
    assert in_spark["full_row"].to_pylist() == written["full_row"].to_pylist()


def test_spark_sees_what_values_mean(
    spark: SparkSession, connection: blocking.FlussConnection, bootstrap_servers: str, database: str
) -> None:
    path = TablePath(database, "t")
    _create(connection, path, is_keyed=False)
    _fill(connection, path, is_keyed=False)
    frame = _frame(spark, bootstrap_servers, path).where("id = 1")
    shown = frame.selectExpr(
        "cast(instant_3 as string)",
        "cast(timestamp_6 as string)",
        "cast(date as string)",
        "cast(time_3 as string)",
        "cast(long_decimal as string)",
        "cast(map['k'].d as string)",
        "row.inner.x",
        "cast(full_array[0] as string)",
        "hex(binary)",
        "unix_micros(instant_6)",
    ).collect()
    assert tuple(shown[0]) == (
        # The evening before, in New York.
        "2026-06-30 23:30:15.001",
        "1969-12-31 23:59:59.999999",
        "1582-10-14",
        "00:00:00.123",
        "12345678901234567890.012345678901234567",
        "0.000000000000000001",
        1,
        "2026-06-30 23:30:15",
        "0001FF",
        1782876615000001,
    )


@pytest.mark.slow
@pytest.mark.parametrize("view", ["changelog", "binlog"])
def test_changes_have_values_of_every_type(
    spark: SparkSession, connection: blocking.FlussConnection, bootstrap_servers: str, database: str, view: str
) -> None:
    path = TablePath(database, "t")
    _create(connection, path, is_keyed=True)
    _fill(connection, path, is_keyed=True)
    options = {"bootstrap.servers": bootstrap_servers, "table": f"{path}${view}"}
    changes = spark.read.format("fluss").options(**options).load()
    after = changes.select("after.*") if view == "binlog" else changes.drop("_log_offset", "_commit_timestamp")
    rows = _rows(connection, path)
    in_spark = after.orderBy("id").toArrow()
    for name in ("id", "long_decimal", "map", "row", "full_row", "time_3", "date"):
        assert in_spark[name].to_pylist() == rows[name].to_pylist()


def test_rows_that_spark_makes_are_written_as_what_they_mean(
    spark: SparkSession, connection: blocking.FlussConnection, bootstrap_servers: str, database: str
) -> None:
    schema = (
        Schema.builder()
        .column("id", DataTypes.bigint())
        .column("instant", DataTypes.timestamp_ltz(3))
        .column("local", DataTypes.timestamp(0))
        .column("amount", DataTypes.decimal(5, 2))
        .column("items", DataTypes.array(DataTypes.row([X])))
        .column("pairs", DataTypes.map(DataTypes.string(), DataTypes.date()))
        .column("missing", DataTypes.string())
        .build()
    )
    path = TablePath(database, "t")
    connection.get_admin().create_table(path, TableDescriptor(schema, bucket_count=1))
    frame = spark.sql(
        "SELECT 1 AS id, TIMESTAMP '2026-06-30 23:30:15.0019' AS instant, "
        "TIMESTAMP_NTZ '1969-12-31 23:59:58.9' AS local, 12 AS amount, array(named_struct('x', 5)) AS items, "
        "map('k', DATE '2026-01-01') AS pairs"
    )
    _copy(frame, bootstrap_servers, path)
    assert _rows(connection, path).to_pylist() == [
        {
            "id": 1,
            "instant": INSTANT.replace(microsecond=1_000),
            "local": dt.datetime(1969, 12, 31, 23, 59, 58),
            "amount": Decimal("12.00"),
            "items": [{"x": 5}],
            "pairs": [("k", dt.date(2026, 1, 1))],
            "missing": None,
        }
    ]
