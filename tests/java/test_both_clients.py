"""The Java client and ours read what the other has written, on a cluster of Apache Fluss and on our server.
Shown with keys of every type over seven buckets, rows of every type, changelogs, prefixes and partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from fluss import EARLIEST_OFFSET, Column, DataTypes, TableDescriptor, TablePath, blocking
from fluss.schema.schema import schema_from_columns
from fluss.schema.types import DataType
from tests.integration.every_type import COLUMNS, FULL_ROW
from tests.java.peer import JavaPeer, to_java

BUCKETS = 7
# Values whose bytes end below and above 0x7f: clients that hash the last bytes wrongly choose another bucket for some.
KEY_KINDS: dict[str, tuple[DataType, list[Any]]] = {
    "boolean": (DataTypes.boolean(), [True, False]),
    "tinyint": (DataTypes.tinyint(), [-128, -1, 0, 1, 127]),
    "smallint": (DataTypes.smallint(), [-32768, -300, 0, 127, 128, 32767]),
    "int": (DataTypes.int(), [-(2**31), -1, 0, 127, 128, 300, 20_000, 2_097_151, 2**31 - 1]),
    "bigint": (DataTypes.bigint(), [-(2**63), -1, 0, 127, 128, 1_000_000, 2**40, 2**63 - 1]),
    "float": (DataTypes.float(), [-1.5, 0.0, 0.25, 3.0e38]),
    "double": (DataTypes.double(), [-1.5, 0.0, 0.1, 1e300]),
    "string": (DataTypes.string(), ["a", "größe", "\N{GRINNING FACE}", "x" * 50, "é"]),
    "char": (DataTypes.char(8), ["a", "abcdefgh"]),
    "bytes": (DataTypes.bytes(), [b"\x00", b"\xff\x80", b"abcd\x80", bytes(range(250, 256))]),
    "decimal": (DataTypes.decimal(10, 2), [Decimal("-12345678.90"), Decimal("0.00"), Decimal("1.28")]),
    "long_decimal": (DataTypes.decimal(38, 10), [Decimal("-1.0000000000"), Decimal("12345678901234567890.0123456789")]),
    "date": (DataTypes.date(), [date(1969, 12, 31), date(1970, 5, 9), date(2024, 2, 29)]),
    "time": (DataTypes.time(3), [time(0), time(12, 0, 0, 128_000), time(23, 59, 59, 999_000)]),
    "timestamp": (DataTypes.timestamp(6), [datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2024, 2, 29, 1)]),
    "timestamp_3": (DataTypes.timestamp(3), [datetime(1970, 1, 1, 0, 0, 0, 128_000), datetime(2024, 2, 29, 1)]),
    "timestamp_ltz": (DataTypes.timestamp_ltz(6), [datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC)]),
}


def create(
    connection: blocking.FlussConnection, name: str, columns: Sequence[Column], keys: Sequence[str], **descriptor: Any
) -> blocking.FlussTable:
    path = TablePath("fluss", name)
    schema = schema_from_columns(list(columns), list(keys))
    connection.get_admin().create_table(path, TableDescriptor(schema, **descriptor))
    return connection.get_table(path)


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_keys_of_every_type_are_found_by_the_other_client(
    ours: blocking.FlussConnection, java: JavaPeer, table_name: str, kind: str
) -> None:
    """Each client writes half of the keys; then both look all of them up, each in the bucket where it expects it."""
    data_type, values = KEY_KINDS[kind]
    columns = [Column("key", data_type), Column("writer", DataTypes.string())]
    table = create(ours, table_name, columns, ["key"], bucket_count=BUCKETS)
    keys = [to_java(value, data_type) for value in values]
    with table.new_upsert().create_writer() as writer:
        for value in values[::2]:
            writer.upsert([value, "python"])
    java.upsert(f"fluss.{table_name}", [[key, "java"] for key in keys[1::2]])
    lookuper = table.new_lookup().create_lookuper()
    by_python = [lookuper.lookup([value]) for value in values]
    assert [None if row is None else row["writer"] for row in by_python] == expected_writers(values)
    by_java = java.lookup(f"fluss.{table_name}", [[key] for key in keys])
    assert [None if row is None else row[1] for row in by_java] == expected_writers(values)
    assert table.new_scan().to_arrow().num_rows == len(values)


def expected_writers(values: Sequence[Any]) -> list[str]:
    return ["java" if number % 2 else "python" for number in range(len(values))]


SCALARS = [column for column in COLUMNS if not column.data_type.is_nested]


def test_rows_of_every_type_arrive_unchanged(ours: blocking.FlussConnection, java: JavaPeer, table_name: str) -> None:
    """A log table, written by both and read by both."""
    table = create(ours, table_name, SCALARS, [], bucket_count=1)
    # The Java client cannot read a fraction of a millisecond of a time before 1970, whoever has written it.
    values = FULL_ROW | {"timestamp": datetime(2024, 2, 29, 23, 59, 59, 999_999)}
    row = [values[column.name] for column in SCALARS]
    in_java = [to_java(value, column.data_type) for value, column in zip(row, SCALARS, strict=True)]
    nulls = [None] * len(row)
    with table.new_append().create_writer() as writer:
        writer.append(row)
        writer.append(nulls)
    java.append(f"fluss.{table_name}", [in_java, nulls])
    records = java.read(f"fluss.{table_name}", 4)
    assert [offset for _, _, offset, _, _ in records] == [0, 1, 2, 3]
    assert {change for *_, change, _ in records} == {"+A"}
    assert [found for *_, found in records] == [in_java, nulls, in_java, nulls]
    found = table.new_scan().to_arrow().to_pylist()
    # What the same row is that went through our client alone.
    assert found[0] == found[2]
    assert found[1] == found[3] == dict.fromkeys((column.name for column in SCALARS), None)


def test_changes_are_the_same_for_both(ours: blocking.FlussConnection, java: JavaPeer, table_name: str) -> None:
    columns = [Column("id", DataTypes.int()), Column("name", DataTypes.string())]
    table = create(ours, table_name, columns, ["id"], bucket_count=1)
    java.upsert(f"fluss.{table_name}", [[1, "a"], [2, "b"]])
    with table.new_upsert().create_writer() as writer:
        writer.upsert([1, "c"])
    java.delete(f"fluss.{table_name}", [[2, None]])
    changes = [("+I", [1, "a"]), ("+I", [2, "b"]), ("-U", [1, "a"]), ("+U", [1, "c"]), ("-D", [2, "b"])]
    assert [(change, row) for *_, change, row in java.read(f"fluss.{table_name}", 5)] == changes
    scanner = table.new_scan().create_changelog_scanner()
    scanner.subscribe(0, EARLIEST_OFFSET)
    found = scanner.to_arrow().to_pylist()
    names = {"insert": "+I", "update_before": "-U", "update_after": "+U", "delete": "-D"}
    assert [(names[row["_change_type"]], [row["id"], row["name"]]) for row in found] == changes
    assert table.new_scan().to_arrow().to_pylist() == [{"id": 1, "name": "c"}]


def test_prefixes_and_partitions_mean_the_same(ours: blocking.FlussConnection, java: JavaPeer, table_name: str) -> None:
    columns = [
        Column("customer", DataTypes.bigint()),
        Column("order", DataTypes.int()),
        Column("day", DataTypes.string()),
        Column("text", DataTypes.string()),
    ]
    keys = ["customer", "order", "day"]
    table = create(ours, table_name, columns, keys, bucket_count=3, bucket_keys=["customer"], partition_keys=["day"])
    ours.get_admin().create_partition(table.table_path, {"day": "2024-01-01"})
    java.upsert(f"fluss.{table_name}", [[7, number, "2024-01-01", "java"] for number in range(3)])
    with table.new_upsert().create_writer() as writer:
        writer.upsert([7, 3, "2024-01-01", "python"])
        writer.upsert([300, 1, "2024-01-01", "python"])
    prefix = ["customer", "day"]
    (found,) = java.prefix_lookup(f"fluss.{table_name}", prefix, [[7, "2024-01-01"]])
    assert sorted(row[1] for row in found) == [0, 1, 2, 3]
    rows = table.new_lookup().lookup_by(prefix).create_lookuper().lookup([7, "2024-01-01"])
    assert sorted(row["order"] for row in rows) == [0, 1, 2, 3]
    (found,) = java.prefix_lookup(f"fluss.{table_name}", prefix, [[300, "2024-01-01"]])
    assert [row[3] for row in found] == ["python"]


def test_a_table_of_the_java_client_is_ours_too(
    ours: blocking.FlussConnection, java: JavaPeer, table_name: str, have_noticed: Callable[[int], None]
) -> None:
    java.create_table(
        f"fluss.{table_name}",
        {"id": "INT NOT NULL", "price": "DECIMAL(12, 3)", "tags": "ARRAY<STRING>"},
        keys=["id"],
        buckets=2,
        properties={"table.log.ttl": "3 d"},
    )
    table = ours.get_table(TablePath("fluss", table_name))
    have_noticed(table.get_table_info().table_id)
    assert [str(column.data_type) for column in table.get_table_info().schema.columns] == [
        "int NOT NULL",
        "decimal(12,3)",
        "array<string>",
    ]
    java.upsert(f"fluss.{table_name}", [[1, "1.500", ["a", None]], [2, None, None]])
    rows = table.new_scan().to_arrow().sort_by("id").to_pylist()
    assert rows == [
        {"id": 1, "price": Decimal("1.500"), "tags": ["a", None]},
        {"id": 2, "price": None, "tags": None},
    ]
    java.call("drop_table", table=f"fluss.{table_name}")
    assert not ours.get_admin().table_exists(TablePath("fluss", table_name))
