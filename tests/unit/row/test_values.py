"""Shows that internal values and Arrow columns carry the same information, and that what does not fit is refused.
Round trips of random types and slices, hand-made arrays with garbage under nulls, values at and beyond every limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError
from fluss.row.values import DAY_MS, Timestamp, arrow_from_internal, internal_from_arrow
from fluss.schema.arrow import arrow_type
from fluss.schema.type_parser import parse_type
from fluss.schema.types import DataType
from fluss.testing.strategies import data_types, internal_values

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@given(data_types(max_leaves=8), st.data())
def test_columns_of_any_type_survive_a_round_trip(data_type: DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(internal_values(data_type), max_size=6))
    array = arrow_from_internal(values, data_type)
    array.validate(full=True)
    assert array.type == arrow_type(data_type)
    assert internal_from_arrow(array, data_type) == values
    start = data.draw(st.integers(0, len(values)))
    size = data.draw(st.integers(0, len(values) - start))
    assert internal_from_arrow(array.slice(start, size), data_type) == values[start : start + size]


@pytest.mark.parametrize(
    ("text", "value", "scalar"),
    [
        ("DECIMAL(5,2)", 1230, "12.30"),
        ("DECIMAL(38,10)", -(10**37) - 1, "-1000000000000000000000000000.0000000001"),
        ("DATE", -1, "1969-12-31"),
        ("TIME(0)", 3_661_000, "01:01:01"),
        ("TIME(9)", 3_661_002, "01:01:01.002000000"),
        ("TIMESTAMP(0)", Timestamp(-1000), "1969-12-31 23:59:59"),
        ("TIMESTAMP(3)", Timestamp(-1), "1969-12-31 23:59:59.999"),
        ("TIMESTAMP(6)", Timestamp(-1, 999_000), "1969-12-31 23:59:59.999999"),
        ("TIMESTAMP_LTZ(9)", Timestamp(0, 1), "1970-01-01 00:00:00.000000001Z"),
    ],
)
def test_arrow_shows_the_value_that_was_meant(text: str, value: Any, scalar: str) -> None:
    data_type = parse_type(text)
    array = arrow_from_internal([value], data_type)
    assert array.cast(pa.string())[0].as_py() == scalar
    assert internal_from_arrow(array, data_type) == [value]


def test_digits_finer_than_the_arrow_unit_are_cut_off_towards_the_past() -> None:
    for text, value, kept in [
        ("TIME(0)", 1999, 1000),
        ("TIMESTAMP(0)", Timestamp(-1, 5), Timestamp(-1000)),
        ("TIMESTAMP(3)", Timestamp(-1, 5), Timestamp(-1)),
        ("TIMESTAMP(6)", Timestamp(-1, 1999), Timestamp(-1, 1000)),
    ]:
        data_type = parse_type(text)
        assert internal_from_arrow(arrow_from_internal([value], data_type), data_type) == [kept]


def test_finer_times_of_other_writers_are_read_as_milliseconds() -> None:
    array = pa.array([1_999, 2_000], pa.int64()).view(pa.time64("us"))
    assert internal_from_arrow(array, parse_type("TIME(6)")) == [1, 2]


@pytest.mark.parametrize("text", ["TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP_LTZ(9)"])
def test_timestamps_reach_exactly_to_the_ends_of_64_bits(text: str) -> None:
    data_type = parse_type(text)
    for number in (INT64_MIN, INT64_MAX):
        array = pa.array([number], pa.int64()).view(arrow_type(data_type))
        (value,) = internal_from_arrow(array, data_type)
        assert arrow_from_internal([value], data_type).equals(array)
        beyond = Timestamp(value.millis + (1 if number > 0 else -1), value.nanos)
        with pytest.raises(CorruptRecordError):
            arrow_from_internal([beyond], data_type)


def test_seconds_beyond_64_bit_milliseconds_are_refused() -> None:
    data_type = parse_type("TIMESTAMP(0)")
    array = pa.array([0, INT64_MAX // 1000 + 1], pa.int64()).view(pa.timestamp("s"))
    with pytest.raises(CorruptRecordError, match="index 1 is beyond the 64-bit range"):
        internal_from_arrow(array, data_type)
    assert internal_from_arrow(array[:1], data_type) == [Timestamp(0)]


@pytest.mark.parametrize(
    ("text", "value", "reason"),
    [
        ("TINYINT", 128, "does not fit a column of type tinyint"),
        ("BIGINT", 2**63, "does not fit a column of type bigint"),
        ("DATE", 2**31, "does not fit a column of type date"),
        ("STRING", "\ud800", "surrogates"),
        ("BINARY(3)", b"ab", "has 2 bytes"),
        ("TIME(3)", DAY_MS, "outside the day: 86400000 ms"),
        ("TIME(0)", -1, "outside the day"),
        ("TIMESTAMP(9)", Timestamp(9_223_372_036_855), "beyond the 64-bit range of Arrow's ns"),
        ("TIMESTAMP(6)", Timestamp(0, 1_000_000), "1000000 nanoseconds"),
        ("TIMESTAMP(6)", Timestamp(2**63), "does not fit 64 bits"),
        ("DECIMAL(5,2)", 100_000, "too many digits"),
        ("DECIMAL(38,0)", -(10**38), "too many digits"),
        ("INT NOT NULL", None, "Null value at index 0"),
        ("ARRAY<INT NOT NULL>", [1, None], "Null value at index 1"),
        ("MAP<STRING,INT>", [(None, 1)], "Null value at index 0"),
        ("ROW<a INT,b INT NOT NULL>", (1, None), "Null in field 1"),
        ("ARRAY<BINARY(2)>", [b"abc"], "has 3 bytes"),
    ],
)
def test_what_arrow_cannot_hold_is_refused(text: str, value: Any, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason):
        arrow_from_internal([value], parse_type(text))


def test_a_null_row_may_have_fields_that_are_never_null() -> None:
    data_type = parse_type("ROW<a INT NOT NULL, b ROW<c STRING NOT NULL> NOT NULL>")
    values = [None, (1, ("x",)), None]
    array = arrow_from_internal(values, data_type)
    assert array.null_count == 2
    assert internal_from_arrow(array, data_type) == values


def with_nulls(array: pa.Array, valid: list[bool]) -> pa.Array:
    """Hide some values without touching what lies under them."""
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    children = [array.values] if pa.types.is_list(array.type) or pa.types.is_map(array.type) else None
    if pa.types.is_struct(array.type):
        children = [array.field(i) for i in range(array.type.num_fields)]
    buffers = array.buffers()[1 : array.type.num_buffers]
    return pa.Array.from_buffers(array.type, len(array), [bitmap, *buffers], children=children)


def test_garbage_under_nulls_is_not_looked_at() -> None:
    times = pa.array([-1, 1000], pa.int32()).view(pa.time32("ms"))
    assert internal_from_arrow(with_nulls(times, [False, True]), parse_type("TIME(3)")) == [None, 1000]
    lists = pa.ListArray.from_arrays([0, 1, 2], times)
    assert internal_from_arrow(with_nulls(lists, [False, True]), parse_type("ARRAY<TIME(3)>")) == [None, [1000]]
    maps = pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "b"]), times)
    assert internal_from_arrow(with_nulls(maps, [False, True]), parse_type("MAP<STRING,TIME(3)>")) == [
        None,
        [("b", 1000)],
    ]
    rows = pa.StructArray.from_arrays([times], names=["a"])
    assert internal_from_arrow(with_nulls(rows, [False, True]), parse_type("ROW<a TIME(3)>")) == [None, (1000,)]


def test_content_that_is_no_value_of_its_type_is_damage() -> None:
    offsets = pa.py_buffer(np.array([0, 2], np.int32))
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    with pytest.raises(CorruptRecordError, match="not UTF-8"):
        internal_from_arrow(text, parse_type("STRING"))
    time = pa.array([86_400], pa.int32()).view(pa.time32("s"))
    with pytest.raises(CorruptRecordError, match="outside the day: 86400 s"):
        internal_from_arrow(time, parse_type("TIME(0)"))
    decimal = pa.Array.from_buffers(pa.decimal128(3, 1), 1, [None, pa.py_buffer((1000).to_bytes(16, "little"))])
    with pytest.raises(CorruptRecordError, match="too many digits"):
        internal_from_arrow(decimal, parse_type("DECIMAL(3,1)"))


def test_empty_columns_have_their_type() -> None:
    for text in ("INT", "DECIMAL(38,2)", "DECIMAL(5,2)", "TIMESTAMP(6)", "ROW<>", "ARRAY<ROW<a INT>>", "MAP<INT,INT>"):
        data_type = parse_type(text)
        array = arrow_from_internal([], data_type)
        assert (array.type, len(array)) == (arrow_type(data_type), 0)
        assert internal_from_arrow(array, data_type) == []


def test_nan_stays_nan_and_is_not_null() -> None:
    array = arrow_from_internal([float("nan"), None], parse_type("DOUBLE"))
    assert array.null_count == 1
    assert str(internal_from_arrow(array, parse_type("DOUBLE"))) == "[nan, None]"
