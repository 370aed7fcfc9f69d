"""Columns of every type and a row worth writing to them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from fluss import Column, DataField, DataTypes, Schema
from fluss.schema.schema import schema_from_columns

COLUMNS = (
    Column("boolean", DataTypes.boolean()),
    Column("tinyint", DataTypes.tinyint()),
    Column("smallint", DataTypes.smallint()),
    Column("int", DataTypes.int()),
    Column("bigint", DataTypes.bigint()),
    Column("float", DataTypes.float()),
    Column("double", DataTypes.double()),
    Column("char", DataTypes.char(8)),
    Column("string", DataTypes.string()),
    Column("binary", DataTypes.binary(3)),
    Column("bytes", DataTypes.bytes()),
    Column("decimal", DataTypes.decimal(10, 2)),
    Column("long_decimal", DataTypes.decimal(38, 10)),
    Column("date", DataTypes.date()),
    Column("time", DataTypes.time(3)),
    Column("timestamp", DataTypes.timestamp(6)),
    Column("timestamp_ltz", DataTypes.timestamp_ltz(6)),
    Column("array", DataTypes.array(DataTypes.array(DataTypes.string()))),
    Column("map", DataTypes.map(DataTypes.string(), DataTypes.row([DataField("x", DataTypes.decimal(20, 1))]))),
    Column("row", DataTypes.row([DataField("x", DataTypes.int()), DataField("y", DataTypes.array(DataTypes.date()))])),
)
# Those that can be part of a key.
KEY_NAMES = [column.name for column in COLUMNS if not column.data_type.is_nested]
FULL_ROW: dict[str, Any] = {
    "boolean": True,
    "tinyint": -128,
    "smallint": 32767,
    "int": -(2**31),
    "bigint": 2**63 - 1,
    "float": 0.5,
    "double": -1e300,
    "char": "abc",
    "string": "größe \N{GRINNING FACE}",
    "binary": b"\x00\x01\xff",
    "bytes": b"",
    "decimal": Decimal("-12345678.90"),
    "long_decimal": Decimal("1234567890123456789012345678.0123456789"),
    "date": date(1969, 12, 31),
    "time": time(23, 59, 59, 999000),
    "timestamp": datetime(1969, 12, 31, 23, 59, 59, 999999),
    "timestamp_ltz": datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC),
    "array": [["a", None], None, []],
    "map": [("k", {"x": Decimal("1.5")}), ("l", None)],
    "row": {"x": None, "y": [date(2020, 1, 1), None]},
}


def schema_of_every_type(*front: Column, primary_keys: list[str] | None = None) -> Schema:
    """Return a schema with these columns behind some others."""
    return schema_from_columns([*front, *COLUMNS], primary_keys or [])
