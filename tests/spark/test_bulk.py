"""Files into tables, tables into files, and tables into tables: every row once, and what does not fit is named.

A real session and a real server; small tables that are compared as Arrow.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv
from pyarrow import parquet as pq
from pyspark.sql import SparkSession

from fluss import blocking
from fluss.errors import FlussError
from fluss.spark import FlussSpark
from fluss.spark.bulk import Progress, UnfitInputError
from fluss.spark.bulk.jobs import BulkJob
from fluss.spark.bulk.states import LoadTaskResult

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.decimal128(15, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("name", pa.string()),
    ]
)
DAYS = pa.schema(
    [
        pa.field("day", pa.string(), nullable=False),
        pa.field("id", pa.int32(), nullable=False),
        ("tags", pa.list_(pa.int32())),
    ]
)
Create = Callable[..., str]


@pytest.fixture
def fs(spark: SparkSession, bootstrap_servers: str) -> FlussSpark:
    return FlussSpark(spark, bootstrap_servers=bootstrap_servers)


@pytest.fixture
def create(connection: blocking.FlussConnection, database: str) -> Create:
    """Create a table in the database of the test, and return its whole name."""

    def create_table(
        name: str,
        schema: pa.Schema,
        primary_keys: list[str] | None = None,
        *,
        partitions: list[str] | None = None,
        **more: object,
    ) -> str:
        descriptor = blocking.TableDescriptor(
            blocking.Schema(schema, primary_keys=primary_keys),
            bucket_count=3,
            **more,  # type: ignore[arg-type]
        )
        path = blocking.TablePath(database, name)
        admin = connection.get_admin()
        admin.create_table(path, descriptor)
        for value in partitions or ():
            admin.create_partition(path, {"day": value})
        return str(path)

    return create_table


def orders(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        [
            pa.array(numbers, pa.int64()),
            pa.array([Decimal(number) / 4 for number in numbers], pa.decimal128(15, 2)),
            pa.array([number * 1_000_001 for number in numbers], pa.timestamp("us", tz="UTC")),
            pa.array([f"order {number}" if number % 7 else None for number in numbers]),
        ],
        schema=ORDERS,
    )


def rows_of(connection: blocking.FlussConnection, table: str) -> pa.Table:
    return connection.get_table(blocking.TablePath(*table.split("."))).to_arrow().combine_chunks()


def append(connection: blocking.FlussConnection, table: str, rows: pa.Table) -> None:
    writer = connection.get_table(blocking.TablePath(*table.split("."))).new_append().create_writer()
    writer.write_arrow(rows)
    writer.flush()


def upsert(connection: blocking.FlussConnection, table: str, rows: pa.Table) -> None:
    writer = connection.get_table(blocking.TablePath(*table.split("."))).new_upsert().create_writer()
    for row in rows.to_pylist():
        writer.upsert(row)
    writer.flush()


def test_files_of_every_format_are_loaded_together(
    fs: FlussSpark, connection: blocking.FlussConnection, create: Create, tmp_path: Path
) -> None:
    table = create("orders", ORDERS)
    pq.write_table(orders(0, 1000), tmp_path / "a.parquet", row_group_size=100)
    csv.write_csv(orders(1000, 1000), tmp_path / "b.csv")
    rows = orders(2000, 1000).to_pylist()
    (tmp_path / "c.json").write_text("\n".join(json.dumps(row, default=str) for row in rows))
    with pa.ipc.new_file(tmp_path / "d.arrow", ORDERS) as writer:
        writer.write_table(orders(3000, 1000), max_chunksize=100)
    told: list[Progress] = []
    report = fs.bulk_load(tmp_path, table, progress=told.append)
    assert (report.files, report.rows, report.rows_found) == (4, 4000, 0)
    assert rows_of(connection, table).sort_by("id").equals(orders(0, 4000))
    assert (told[-1].rows_done, told[-1].fraction) == (4000, 1.0)


def test_a_row_that_does_not_fit_is_named_and_ends_the_load(fs: FlussSpark, create: Create, tmp_path: Path) -> None:
    table = create("orders", ORDERS)
    (tmp_path / "a.csv").write_text("id,name\n1,a\n2,b\nthree,c\n")
    with pytest.raises(UnfitInputError, match=r"a\.csv, line 4: .*invalid value 'three'"):
        fs.bulk_load(tmp_path, table)


def fail(item: int) -> LoadTaskResult:
    raise ValueError(f"item {item} is too large\nand too heavy")


@pytest.mark.slow
def test_a_load_of_rows_with_keys_goes_on_with_batches_of_the_same_size_only(
    fs: FlussSpark, create: Create, bootstrap_servers: str, tmp_path: Path
) -> None:
    table = create("kept", DAYS, ["id"])
    rows = [{"day": "mon", "id": number, "tags": [number]} for number in range(20)]
    pq.write_table(pa.Table.from_pylist(rows, DAYS), tmp_path / "days.parquet")
    account = str(tmp_path / "account")
    assert fs.bulk_load(tmp_path / "days.parquet", table, resume_dir=account).rows_found == 0
    other = FlussSpark(fs.spark, bootstrap_servers=bootstrap_servers, writer_batch_size="4000")
    with pytest.raises(FlussError, match="another 'writer"):
        other.bulk_load(tmp_path / "days.parquet", table, resume_dir=account)
    assert fs.bulk_load(tmp_path / "days.parquet", table, resume_dir=account).rows_found == 20


@pytest.mark.slow
def test_what_tasks_say_when_they_fail_for_good_comes_back_as_a_sentence(spark: SparkSession) -> None:
    with pytest.raises(FlussError, match="weigh failed: ValueError: item 7 is too large"):
        BulkJob("weigh", fail, [7], [1]).run(spark)


def test_what_was_exported_can_be_loaded_again(
    fs: FlussSpark, connection: blocking.FlussConnection, create: Create, tmp_path: Path
) -> None:
    table = create("days", DAYS, ["day", "id"], partition_keys=["day"], partitions=["mon", "tue"])
    rows = pa.Table.from_pylist(
        [{"day": day, "id": number, "tags": [number] * 3} for day in ("mon", "tue") for number in range(50)], DAYS
    )
    upsert(connection, table, rows)
    target = tmp_path / "export"
    report = fs.export(table, str(target))
    assert (report.rows, report.files) == (100, 2)
    assert sorted(path.name for path in target.iterdir()) == ["_SUCCESS", "day=mon", "day=tue"]
    manifest = json.loads((target / "_SUCCESS").read_text())
    assert (manifest["rows"], len(manifest["files"])) == (100, 2)
    with pytest.raises(FlussError, match="overwrite=True"):
        fs.export(table, str(target))
    again = create("again", DAYS, ["day", "id"], partition_keys=["day"])
    assert fs.bulk_load(str(target), again).rows == 100
    keys = [("day", "ascending"), ("id", "ascending")]
    assert rows_of(connection, again).sort_by(keys).equals(rows)


def test_tables_are_copied_and_compared(
    fs: FlussSpark, connection: blocking.FlussConnection, create: Create, database: str
) -> None:
    log = create("orders", ORDERS, bucket_keys=["id"], custom_properties={"owner": "me"})
    append(connection, log, orders(0, 500))
    keyed = create("days", DAYS, ["day", "id"], partition_keys=["day"], partitions=["mon", "tue"])
    for tag in (1, 2):
        rows = [{"day": "mon", "id": number, "tags": [tag]} for number in range(40)]
        upsert(connection, keyed, pa.Table.from_pylist(rows, DAYS))
    target = f"{database}_copy"
    try:
        report = fs.copy(database, target)
        assert [(table.rows, table.rows_found) for table in report.tables] == [(40, 0), (500, 0)]
        assert all(check.is_equal for table in report.tables for check in table.checks or ())
        assert rows_of(connection, f"{target}.orders").sort_by("id").equals(orders(0, 500))
        copied = rows_of(connection, f"{target}.days").sort_by("id")
        assert copied.equals(pa.Table.from_pylist(rows, DAYS))
        admin = connection.get_admin()
        info = admin.get_table_info(blocking.TablePath(target, "orders"))
        assert (info.bucket_keys, info.custom_properties["owner"]) == (["id"], "me")
        assert len(admin.list_partition_infos(blocking.TablePath(target, "days"))) == 2
        assert fs.copy(database, target).rows_found == 540
    finally:
        connection.get_admin().drop_database(target, ignore_if_not_exists=True)


def every_type() -> pa.Table:
    """Two rows with a value of every type, and one of nulls."""
    inner = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
    values: dict[str, tuple[pa.DataType, list[object]]] = {
        "boolean": (pa.bool_(), [True, False]),
        "tinyint": (pa.int8(), [-128, 127]),
        "smallint": (pa.int16(), [-1, 1]),
        "bigint": (pa.int64(), [-(2**63), 2**63 - 1]),
        "float": (pa.float32(), [0.5, float("inf")]),
        "double": (pa.float64(), [-0.0, 1e300]),
        "bytes": (pa.binary(), [b"", b"\x00\xff"]),
        "binary": (pa.binary(3), [b"abc", b"\x00\x01\x02"]),
        "decimal": (pa.decimal128(38, 18), [Decimal("-1.5"), Decimal("12345678901234567890.123456789012345678")]),
        "date": (pa.date32(), [-1, 20000]),
        "time_s": (pa.time32("s"), [0, 86399]),
        # Rows with a key have times of day in milliseconds.
        "time_ns": (pa.time64("ns"), [1_000_000, 86_399_999_000_000]),
        "timestamp_s": (pa.timestamp("s"), [-1, 2_000_000_000]),
        "timestamp_ns": (pa.timestamp("ns"), [-1, 2_000_000_000_000_000_001]),
        "instant_ns": (pa.timestamp("ns", tz="UTC"), [-1, 2_000_000_000_000_000_001]),
        "array": (pa.list_(pa.list_(pa.int64())), [[], [[1, None], None]]),
        "map": (pa.map_(pa.string(), pa.decimal128(5, 2)), [[("a", Decimal("1.25"))], []]),
        "row": (inner, [{"a": 1, "b": ["x", None]}, {"a": None, "b": None}]),
    }
    columns = {"id": pa.array([1, 2, 3], pa.int32())}
    columns |= {name: pa.array([*given, None], data_type) for name, (data_type, given) in values.items()}
    return pa.table(columns)


@pytest.mark.slow
@pytest.mark.parametrize("primary_keys", [None, ["id"]])
def test_every_type_survives_an_export_a_load_and_a_copy(
    fs: FlussSpark,
    connection: blocking.FlussConnection,
    create: Create,
    tmp_path: Path,
    primary_keys: list[str] | None,
) -> None:
    rows = every_type()
    source = create("source", rows.schema, primary_keys)
    pq.write_table(rows, tmp_path / "rows.parquet")
    with pa.ipc.new_file(tmp_path / "rows.arrow", rows.schema) as writer:
        writer.write_table(rows)
    fs.bulk_load(tmp_path / "rows.arrow", source)
    stored = rows_of(connection, source).sort_by("id")
    assert stored.to_pylist() == rows.to_pylist()
    from_parquet = create("from_parquet", rows.schema, primary_keys)
    fs.bulk_load(tmp_path / "rows.parquet", from_parquet)
    fs.export(source, str(tmp_path / "export"))
    loaded = create("loaded", rows.schema, primary_keys)
    fs.bulk_load(tmp_path / "export", loaded)
    copied = source.replace("source", "copied")
    fs.copy(source, copied)
    for table in (from_parquet, loaded, copied):
        assert rows_of(connection, table).sort_by("id").equals(stored)
