"""Rows of any schema are packed alike by the compiled function and by the plain one, and come out as Arrow.

Hypothesis draws schemas and rows; the plain conversion of values and Arrow are the oracles. The rest are rows that
users get wrong, and classes that count as something else.
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.client.write.blocks import Block
from fluss.client.write.row_compiler import RowSink, append_function, delete_function
from fluss.client.write.row_layout import DELETE_MARK, RowLayout
from fluss.errors import FlussError
from fluss.row.python_values import from_internal, to_internal
from fluss.row.values import arrow_from_internal
from fluss.schema.schema import Column, Schema, schema_from_columns
from fluss.schema.types import DataField, DataType, DataTypes
from fluss.testing.strategies import data_types, internal_rows, row_types, scalar_types


class Way:
    """Takes the place of everything that an append function leads to, and keeps what arrives there."""

    def __init__(self, layout: RowLayout, *, deletes: bool = False) -> None:
        self.block = Block(None, None, 0)
        self.block.limit_bytes = 2**60
        self.keys: list[Any] = []
        unexpected = pytest.fail
        ways = RowSink(self, {}, self._find, lambda row: None, unexpected, unexpected)
        self._append = delete_function(layout, ways) if deletes else append_function(layout, ways)

    def _find(self, key: Any) -> Way:
        self.keys.append(key)
        return self

    def pack(self, row: Any) -> bytes | None:
        """Return the packed row, or None if the row is not an ordinary one."""
        return self.block.rows.pop() if self._append(row) is not None else None


def schema_of(types: list[DataType]) -> Schema:
    return schema_from_columns([Column(f"c{i}", data_type) for i, data_type in enumerate(types)])


def arrow_of(rows: list[tuple[Any, ...]], types: list[DataType]) -> pa.RecordBatch:
    """Convert rows of users one value at a time."""
    columns = [
        arrow_from_internal([to_internal(row[i], data_type, "") for row in rows], data_type)
        for i, data_type in enumerate(types)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(types).to_arrow())


@given(st.data())
def test_both_ways_of_packing_agree_and_the_rows_come_out_as_arrow(data: st.DataObject) -> None:
    types = data.draw(row_types(columns_max=10))
    layout = RowLayout(schema_of(types))
    way = Way(layout)
    internal = data.draw(st.lists(internal_rows(types), min_size=1, max_size=8))
    rows = [tuple(from_internal(value, t) for value, t in zip(row, types, strict=True)) for row in internal]
    packed_rows = [layout.pack_any(row)[0] for row in rows]
    for row, packed in zip(rows, packed_rows, strict=True):
        by_name = {f"c{i}": value for i, value in enumerate(row)}
        for form in (row, list(row), by_name):
            assert way.pack(form) == packed
        assert layout.pack_any(OrderedDict(reversed(by_name.items())))[0] == packed
    batch = layout.to_arrow(packed_rows)
    batch.validate(full=True)
    assert batch.equals(arrow_of(rows, types))


@given(st.data())
def test_both_ways_of_packing_deletes_agree_and_only_the_key_is_left(data: st.DataObject) -> None:
    types = [*data.draw(row_types(columns_max=5)), *data.draw(st.lists(scalar_types(nullable=False), min_size=1))]
    key_names = data.draw(st.permutations([f"c{i}" for i, t in enumerate(types) if not t.is_nested and not t.nullable]))
    layout = RowLayout(schema_of(types), delete_keys=key_names)
    row = [from_internal(value, t) for value, t in zip(data.draw(internal_rows(types)), types, strict=True)]
    by_name = {name: row[int(name[1:])] for name in key_names}
    packed = layout.pack_delete(by_name)[0]
    way = Way(layout, deletes=True)
    for form in (by_name, list(by_name.values()), tuple(by_name.values())):
        assert way.pack(form) == packed
        assert layout.pack_delete(form)[0] == packed
    upserted = Way(layout).pack(row)
    assert upserted == layout.pack_any(row)[0]
    batch = layout.to_arrow([packed, upserted, packed])
    assert batch.column(DELETE_MARK).to_pylist() == [True, False, True]
    expected = arrow_of([tuple(row)], types)
    for i, name in enumerate(expected.schema.names):
        kept = expected.column(i) if name in by_name else pa.nulls(1, expected.column(i).type)
        assert pa.concat_arrays([kept, expected.column(i), kept]) == batch.column(i)
    assert DELETE_MARK not in layout.to_arrow([upserted]).schema.names


class Text(str):
    __slots__ = ()


class Colour(enum.IntEnum):
    RED = 1


ODD_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 127, 128, 2**15, 2**31 - 1, 2**31, -(2**63), 2**63, 10**400),
    *(0.0, -0.0, 1.5, 1e300, math.inf, math.nan, Decimal("1.25"), Decimal("NaN"), Decimal("1E+99"), 1j),
    *("", "x", "ß" * 40, "\ud800", Text("t"), np.str_("n"), b"", b"xy", bytearray(b"xy"), memoryview(b"xy")),
    *(date(2024, 2, 29), time(1, 2, 3), time(1, 2, 3, 4000), time(1, 2, 3, 4), timedelta(1)),
    *(datetime(2024, 5, 1, 1, 2, 3, 456789), datetime.min, datetime.max, datetime(1969, 12, 31, 23, 59, 59, 1)),
    *(datetime(2024, 5, 1, tzinfo=UTC), datetime.max.replace(tzinfo=timezone(timedelta(hours=-14)))),
    *(datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), pd.Timestamp("2024-05-01 00:00:00.123456789")),
    *(
        pd.NaT,
        pd.NA,
        np.datetime64("2024-05-01"),
        np.datetime64("NaT"),
        np.timedelta64(1, "D"),
        np.int64(5),
        np.int8(5),
    ),
    *(np.float32(0.1), np.bool_(True), np.array(1.0), np.array([1, 2]), Colour.RED, object()),
    *([], [1], [None], ["a"], (1, "a"), {}, {"a": 1}, {1: 2}, {"f0": 1}, [(1, 2)], {1}),
]


@given(st.one_of(scalar_types(), data_types(max_leaves=3)))
def test_the_compiled_way_takes_nothing_that_the_plain_way_refuses(data_type: DataType) -> None:
    layout = RowLayout(schema_of([data_type]))
    way = Way(layout)
    for value in ODD_VALUES:
        packed = way.pack([value])
        try:
            expected = layout.pack_any([value])[0]
        except FlussError:
            assert packed is None
            continue
        assert packed in (None, expected)
        # As text, because NaN is not equal to itself.
        assert str(layout.to_arrow([expected])) == str(arrow_of([(value,)], [data_type]))


def test_ordinary_values_of_every_type_are_packed_by_the_compiled_function() -> None:
    values = {
        DataTypes.boolean(): True,
        DataTypes.tinyint(): -128,
        DataTypes.bigint(): 2**63 - 1,
        DataTypes.float(): 0.1,
        DataTypes.double(): 3,
        DataTypes.char(3): "abc",
        DataTypes.string(): "text",
        DataTypes.binary(2): b"ab",
        DataTypes.bytes(): b"bytes",
        DataTypes.decimal(10, 2): Decimal("1.25"),
        DataTypes.date(): date(2024, 1, 1),
        DataTypes.time(3): time(1, 2, 3, 4000),
        DataTypes.timestamp(3): datetime(2024, 1, 1, 1, 2, 3, 4567),
        DataTypes.timestamp_ltz(9): datetime(2024, 1, 1, tzinfo=UTC),
        DataTypes.array(DataTypes.int()): [1, None],
        DataTypes.map(DataTypes.string(), DataTypes.int()): {"a": 1},
        DataTypes.row([DataField("x", DataTypes.int())]): {"x": 1},
    }
    for data_type, value in values.items():
        for nullable in (True, False):
            way = Way(RowLayout(schema_of([data_type.with_nullable(nullable)])))
            assert way.pack([value]) is not None, data_type
            assert (way.pack([None]) is not None) == nullable


@pytest.mark.parametrize("column_count", [1, 8, 9, 17, 33, 64, 65, 100])
def test_null_bits_of_tables_of_any_width_reach_their_columns(column_count: int) -> None:
    types: list[DataType] = [DataTypes.int() if i % 3 else DataTypes.string() for i in range(column_count)]
    layout = RowLayout(schema_of(types))
    rows = [
        tuple(None if (i + shift) % 5 == 0 else (i if i % 3 else str(i)) for i in range(column_count))
        for shift in range(6)
    ]
    packed = [layout.pack_any(row)[0] for row in rows]
    assert [Way(layout).pack(row) for row in rows] == packed
    assert layout.to_arrow(packed).equals(arrow_of(rows, types))


@pytest.mark.parametrize("column_count", [1, 7, 8, 9, 63, 64, 65])
def test_the_mark_of_a_delete_is_no_null_bit_of_a_column(column_count: int) -> None:
    layout = RowLayout(schema_of([DataTypes.int()] * column_count), delete_keys=["c0"])
    rows = [
        layout.pack_any([None] * column_count)[0],
        layout.pack_delete([5])[0],
        layout.pack_any([1] * column_count)[0],
    ]
    assert Way(layout, deletes=True).pack([5]) == rows[1]
    batch = layout.to_arrow(rows)
    assert batch.column(DELETE_MARK).to_pylist() == [False, True, False]
    assert batch.column(0).to_pylist() == [None, 5, 1]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (1, "Row must be a dict, list, or tuple; got int"),
        ({"id": 1}, "Missing value for non-nullable field 'region'"),
        ({}, "Missing value for non-nullable field 'region'"),
        ({"region": "EU", "id": 1, "name": "x"}, "Unknown field 'name'. Expected: 'region', 'id'"),
        ([1], "Expected 2 elements, got 1; the columns are 'region', 'id'"),
        (["EU", None], "Field 'id': null is not allowed"),
        ([1, "EU"], "Field 'region': expected str, got int"),
    ],
)
def test_a_key_that_does_not_fit_is_refused_with_the_reason(key: Any, message: str) -> None:
    schema = Schema(
        pa.schema([("id", pa.int32()), ("name", pa.string()), ("region", pa.string())]), primary_keys=["region", "id"]
    )
    layout = RowLayout(schema, delete_keys=["region", "id"])
    assert Way(layout, deletes=True).pack(key) is None
    with pytest.raises(FlussError) as caught:
        layout.pack_delete(key)
    assert message in caught.value.message
    assert Way(layout, deletes=True).pack(["EU", 1]) == layout.pack_delete({"id": 1, "region": "EU"})[0]


ORDERS = Schema(
    pa.schema([pa.field("id", pa.int32(), nullable=False), ("name", pa.string()), ("day", pa.date32())]),
)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("abc", "Row must be a dict, list, or tuple; got str"),
        (None, "Row must be a dict, list, or tuple; got NoneType"),
        ({1, 2, 3}, "Row must be a dict, list, or tuple; got set"),
        (pd.Series([1, 2, 3]), "Row must be a dict, list, or tuple; got Series"),
        ({1: 2}, "Dict keys must be strings; got int"),
        ({"id": 1, "nme": "x"}, "Unknown field 'nme'. Expected: 'id', 'name', 'day'"),
        ({"id": 1, "name": "x", "day": None, "more": 1}, "Unknown field 'more'"),
        ([1, "x"], "Expected 3 elements, got 2"),
        ((1, "x", None, 4), "Expected 3 elements, got 4"),
        ({"name": "x"}, "Missing value for non-nullable field 'id'"),
        ({"id": None, "name": "x"}, "Field 'id': null is not allowed"),
        ([True, "x", None], "Field 'id': expected int, got bool"),
        ([2**31, "x", None], "Field 'id': 2147483648 is out of range for int"),
        ([1, b"x", None], "Field 'name': expected str, got bytes"),
        ([1, "\ud800", None], "Field 'name': the text cannot be stored as UTF-8"),
        ([1, "x", datetime(2024, 1, 1)], "Field 'day': expected date, got datetime"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_the_reason(row: Any, message: str) -> None:
    layout = RowLayout.of(ORDERS)
    assert Way(layout).pack(row) is None
    with pytest.raises(FlussError) as caught:
        layout.pack_any(row)
    assert message in caught.value.message
    assert caught.value.error_code == -2


class ByPosition:
    """What a row object of another generation of the API looks like."""

    def __init__(self, *values: Any) -> None:
        self.values = list(values)


def test_subclasses_partial_dicts_and_row_objects_count_as_what_they_are() -> None:
    layout = RowLayout.of(ORDERS)
    point = namedtuple("Point", "a b c")
    expected = layout.pack_any([1, None, None])[0]
    for row in (
        {"id": 1},
        OrderedDict(id=1),
        point(1, None, None),
        ByPosition(1, None, None),
        [np.int32(1), pd.NA, pd.NaT],
        {"id": Colour.RED},
    ):
        assert layout.pack_any(row)[0] == expected


def test_the_partition_of_a_row_is_the_same_both_ways() -> None:
    schema = Schema(
        pa.schema([("id", pa.int32()), ("region", pa.string()), ("day", pa.date32()), ("amount", pa.float64())])
    )
    row = {"id": 1, "region": "EU", "day": date(2024, 1, 15), "amount": 1.5}
    plain, one, several = RowLayout(schema), RowLayout(schema, ["region"]), RowLayout(schema, ["day", "region"])
    assert one.pack_any(row) == (plain.pack_any(row)[0], "EU")
    assert several.pack_any(row) == (plain.pack_any(row)[0], "2024-01-15$EU")
    for layout in (one, several):
        way = Way(layout)
        packed = way.pack(row)
        assert (packed, layout.partition_name(way.keys[0])) == layout.pack_any(row)
        with pytest.raises(FlussError, match="Partition value shouldn't be null"):
            layout.pack_any({"id": 1})
        way.pack([1, None, None, None])
        with pytest.raises(FlussError, match="Partition value shouldn't be null"):
            layout.partition_name(way.keys[1])


def test_column_names_are_never_read_as_source_text() -> None:
    names = ["'", '"', "\\", "a\nb", "')\n    import os", "v0", "größe", "{row}"]
    layout = RowLayout(schema_from_columns([Column(name, DataTypes.int()) for name in names]))
    row = {name: index for index, name in enumerate(names)}
    packed = layout.pack_any(row)[0]
    assert Way(layout).pack(row) == packed
    assert layout.to_arrow([packed]).to_pylist() == [row]
