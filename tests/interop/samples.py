"""Columns of every type with values worth carrying from one client to another, as Python rows and as Arrow data."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

UTC = dt.UTC


@dataclass(frozen=True)
class Column:
    """Name, Arrow type, and one value per row; the last value is always null."""

    name: str
    type: pa.DataType
    values: tuple[Any, ...]


def _column(name: str, type_: pa.DataType, *values: Any) -> Column:
    assert len(values) == 3, "every column has as many values, so that they make rows"
    return Column(name, type_, (*values, None))


# Times stay at whole milliseconds and timestamps after 1970 below the millisecond: the official clients refuse others.
SCALARS = (
    _column("flag", pa.bool_(), True, False, True),
    _column("tiny", pa.int8(), -128, 0, 127),
    _column("small", pa.int16(), -(2**15), 300, 2**15 - 1),
    _column("medium", pa.int32(), -(2**31), 70_000, 2**31 - 1),
    _column("large", pa.int64(), -(2**63), 2**40, 2**63 - 1),
    _column("single", pa.float32(), -1.5, 0.0, float("inf")),
    _column("double", pa.float64(), 0.1, -1e300, 5e-324),
    _column("text", pa.string(), "", "grüße 🚿", "x" * 300),
    _column("blob", pa.binary(), b"", b"\x00\xff\x7f", bytes(range(256))),
    _column("price", pa.decimal128(10, 2), Decimal("12.34"), Decimal("-99999999.99"), Decimal("0.01")),
    _column(
        "wide", pa.decimal128(38, 4), Decimal("-123456789012345678901234.5678"), Decimal("1.0000"), Decimal("0.5000")
    ),
    _column("day", pa.date32(), dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)),
    _column("time_s", pa.time32("s"), dt.time(0), dt.time(1, 2, 3), dt.time(23, 59, 59)),
    _column("time_ms", pa.time32("ms"), dt.time(0), dt.time(1, 2, 3, 4000), dt.time(23, 59, 59, 999000)),
    _column("time_us", pa.time64("us"), dt.time(0), dt.time(1, 2, 3, 4000), dt.time(23, 59, 59, 999000)),
    _column("time_ns", pa.time64("ns"), dt.time(0), dt.time(1, 2, 3, 4000), dt.time(23, 59, 59, 999000)),
    _column("at_s", pa.timestamp("s"), *(dt.datetime(y, 1, 2, 3, 4, 5) for y in (1900, 1970, 2024))),
    _column("at_ms", pa.timestamp("ms"), *(dt.datetime(y, 1, 2, 3, 4, 5, 6000) for y in (1955, 1970, 2038))),
    _column("at_us", pa.timestamp("us"), *(dt.datetime(y, 1, 2, 3, 4, 5, 678901) for y in (1971, 2024, 9000))),
    _column("at_ns", pa.timestamp("ns"), *(dt.datetime(y, 1, 2, 3, 4, 5, 678901) for y in (1971, 2024, 2200))),
    _column("moment_s", pa.timestamp("s", "UTC"), *(dt.datetime(y, 1, 1, tzinfo=UTC) for y in (1960, 1970, 2024))),
    _column(
        "moment_us", pa.timestamp("us", "UTC"), *(dt.datetime(y, 1, 1, 2, 3, 4, 5, UTC) for y in (1971, 2024, 2100))
    ),
)

_POINT = pa.struct([("x", pa.int32()), ("label", pa.string())])

NESTED = (
    _column("fixed", pa.binary(4), b"abcd", b"\x00\x00\x00\x00", b"\xff\xfe\xfd\xfc"),
    _column("numbers", pa.list_(pa.int32()), [1, None, 3], [], [2**31 - 1]),
    _column("words", pa.list_(pa.string()), ["a", None, "longer than seven bytes"], [], [""]),
    _column("matrix", pa.list_(pa.list_(pa.int64())), [[1], [], None], [], [[2**40]]),
    _column("counts", pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", None)], [], [("longer than seven", -1)]),
    _column("point", _POINT, {"x": 1, "label": "one"}, {"x": None, "label": None}, {"x": -1, "label": ""}),
    _column("points", pa.list_(_POINT), [{"x": 1, "label": "a"}, None], [], [{"x": None, "label": "b"}]),
    _column("by_name", pa.map_(pa.string(), _POINT), [("k", {"x": 1, "label": None})], [], [("n", None)]),
    _column("prices", pa.list_(pa.decimal128(30, 2)), [Decimal("1.23"), None], [], [Decimal("-1.00")]),
    _column("moments", pa.list_(pa.timestamp("us")), [dt.datetime(2024, 1, 1, 1, 1, 1, 123456)], [], [None]),
)


def schema_of(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([pa.field("id", pa.int32()), *(pa.field(column.name, column.type) for column in columns)])


def rows_of(columns: tuple[Column, ...]) -> list[dict[str, Any]]:
    """Return one row per value, numbered by ``id``; the last one is all null."""
    count = len(columns[0].values)
    return [{"id": i, **{column.name: column.values[i] for column in columns}} for i in range(count)]


def batch_of(columns: tuple[Column, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows_of(columns), schema=schema_of(columns))


# A small table for tests that are not about types.
EVENTS = pa.schema([("id", pa.int32()), ("name", pa.string()), ("score", pa.float64())])


def events(first: int, last: int) -> list[dict[str, Any]]:
    """Return the rows ``first`` to ``last``, both included."""
    return [{"id": i, "name": f"name-{i}", "score": i / 4} for i in range(first, last + 1)]


def event_batch(first: int, last: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(events(first, last), schema=EVENTS)
