"""Batch statistics hold the true bounds and null counts of the chosen columns, and lies are named.
Random batches against Python's own min and max, every kind of value, lies one by one, and systematic damage."""

from __future__ import annotations

import math
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, FlussError
from fluss.record.log_batch import MAGIC_V1, build_batch, read_batch
from fluss.record.statistics import collect_statistics, supports_statistics
from fluss.row.values import Timestamp, arrow_from_internal, internal_from_arrow
from fluss.schema.type_parser import parse_type
from fluss.schema.types import CharType, DataType
from fluss.testing.strategies import arrow_batches, scalar_types
from tests.damage import count_refusals
from tests.golden.vectors import expected_bytes, types_of, vector, vectors_of
from tests.unit.record.statistics_model import ColumnStatistics, decode_statistics

supported_types = scalar_types().filter(supports_statistics)
GOLDEN = vector("stats.three_columns")


def batch_of(types: list[DataType], rows: list[list[Any]]) -> pa.RecordBatch:
    columns = [arrow_from_internal([row[index] for row in rows], data_type) for index, data_type in enumerate(types)]
    return pa.RecordBatch.from_arrays(columns, [f"c{index}" for index in range(len(types))])


def statistics_of(type_text: str, values: list[Any]) -> ColumnStatistics:
    data_type = parse_type(type_text)
    block = collect_statistics(batch_of([data_type], [[value] for value in values]), [data_type], [0])
    statistics = decode_statistics(block, [data_type])
    assert statistics is not None
    return statistics.columns[0]


@given(st.lists(supported_types, min_size=1, max_size=5).flatmap(lambda types: arrow_batches(types)), st.data())
def test_bounds_and_null_counts_are_those_of_the_values(
    drawn: tuple[list[DataType], pa.RecordBatch], data: st.DataObject
) -> None:
    types, batch = drawn
    chosen = data.draw(st.permutations(range(len(types))))[: data.draw(st.integers(1, len(types)))]
    statistics = decode_statistics(collect_statistics(batch, types, chosen), types)
    if not batch.num_rows:
        assert statistics is None
        return
    assert statistics is not None
    assert list(statistics.columns) == chosen
    for index, column in statistics.columns.items():
        values = [value for value in internal_from_arrow(batch.column(index), types[index]) if value is not None]
        assert column.null_count == batch.num_rows - len(values)
        if isinstance(types[index], CharType):
            values = []
        assert (column.minimum, column.maximum) == (min(values, default=None), max(values, default=None))


@pytest.mark.parametrize(
    ("type_text", "values", "minimum", "maximum"),
    [
        ("BOOLEAN", [True, None, False], False, True),
        ("STRING", ["z", "é", "\U0001f600", "\uffff"], "z", "\U0001f600"),  # bytes, not UTF-16 units
        ("DECIMAL(30,2)", [-(10**29), 5, None], -(10**29), 5),
        ("DECIMAL(5,2)", [-1, 2], -1, 2),
        ("TIME(9)", [1, 86_399_999], 1, 86_399_999),
        ("TIMESTAMP(9)", [Timestamp(-1, 999_999), Timestamp(-1, 3)], Timestamp(-1, 3), Timestamp(-1, 999_999)),
        ("TIMESTAMP_LTZ(0)", [Timestamp(-5000), Timestamp(7000)], Timestamp(-5000), Timestamp(7000)),
        ("FLOAT", [1.5, -math.inf, math.inf], -math.inf, math.inf),
    ],
)
def test_every_kind_of_value_is_ordered_as_agreed(
    type_text: str, values: list[Any], minimum: Any, maximum: Any
) -> None:
    column = statistics_of(type_text, values)
    assert (column.minimum, column.maximum) == (minimum, maximum)
    assert column.null_count == values.count(None)


@pytest.mark.parametrize("type_text", ["FLOAT", "DOUBLE"])
def test_bounds_of_a_column_with_nan_are_unknown(type_text: str) -> None:
    column = statistics_of(type_text, [1.0, math.nan, None])
    assert (column.null_count, column.minimum, column.maximum) == (1, None, None)


@pytest.mark.parametrize("zeros", [[0.0], [-0.0], [0.0, -0.0]])
def test_a_bound_of_zero_covers_both_zeros(zeros: list[float]) -> None:
    column = statistics_of("DOUBLE", zeros)
    assert math.copysign(1, column.minimum) == -1
    assert math.copysign(1, column.maximum) == 1


def test_bounds_of_a_char_column_are_unknown() -> None:
    column = statistics_of("CHAR(3)", ["abc", None, "xyz"])
    assert (column.null_count, column.minimum, column.maximum) == (1, None, None)


def test_a_slice_of_a_batch_has_its_own_bounds() -> None:
    types = [parse_type("INT"), parse_type("STRING")]
    batch = batch_of(types, [[9, "z"], [None, "b"], [2, "c"], [-9, "a"]]).slice(1, 2)
    statistics = decode_statistics(collect_statistics(batch, types, [0, 1]), types)
    assert statistics is not None
    assert statistics.columns[0] == ColumnStatistics(types[0], 1, 2, 2)
    assert statistics.columns[1] == ColumnStatistics(types[1], 0, "b", "c")


def test_nothing_is_written_about_nothing() -> None:
    types = [parse_type("INT")]
    assert collect_statistics(batch_of(types, []), types, [0]) == b""
    assert collect_statistics(batch_of(types, [[1]]), types, []) == b""


@pytest.mark.parametrize("type_text", ["BYTES", "BINARY(3)", "ARRAY<INT>", "MAP<INT,INT>", "ROW<a INT>"])
def test_types_without_statistics_are_refused_with_a_hint(type_text: str) -> None:
    types = [parse_type(type_text)]
    assert not supports_statistics(types[0])
    batch = pa.RecordBatch.from_arrays([arrow_from_internal([None], types[0])], ["payload"])
    with pytest.raises(FlussError, match=r"'payload' of type .* cannot have statistics.*table\.statistics\.columns"):
        collect_statistics(batch, types, [0])


def test_the_block_travels_in_a_log_batch() -> None:
    types = [parse_type("INT")]
    block = collect_statistics(batch_of(types, [[1], [2]]), types, [0])
    batch = read_batch(
        build_batch([b"rows"], schema_id=1, record_count=2, append_only=True, magic=MAGIC_V1, statistics=block)
    )
    statistics = decode_statistics(batch.statistics, types)
    assert statistics is not None
    assert statistics.columns[0] == ColumnStatistics(types[0], 0, 1, 2)


@pytest.mark.parametrize("data", [b"", b"\2\1\0junk", b"\0\1\0", b"\1\0\0", b"\1\xff\xff"])
def test_a_block_that_says_nothing_is_no_statistics(data: bytes) -> None:
    assert decode_statistics(data, [parse_type("INT")]) is None


@pytest.mark.parametrize(
    ("position", "form", "value", "message"),
    [
        (1, "<h", 3000, "too short: its column indexes need 6000 bytes at byte 3, 90 follow"),
        (3, "<h", 3, "name the column 3 of a schema with 3 columns"),
        (3, "<h", -1, "name the column -1 of a schema"),
        (3, "<h", 1, "name a column twice: \\[1, 1, 2\\]"),
        (9, "<i", -1, "count -1 nulls"),
        (21, "<i", -1, "give the minimums a size of -1 bytes"),
        (21, "<i", 2**31 - 1, "the minimums need 2147483647 bytes at byte 25, 68 follow"),
        (21, "<i", 24, "aligned row of 3 fields has at least 32 bytes"),
        (57, "<i", 33, "the maximums need 33 bytes at byte 61, 32 follow"),
    ],
)
def test_every_lie_in_a_block_is_named(position: int, form: str, value: int, message: str) -> None:
    block = bytearray(expected_bytes(GOLDEN))
    struct.pack_into(form, block, position, value)
    with pytest.raises(CorruptRecordError, match=message):
        decode_statistics(block, types_of(GOLDEN))


def test_bytes_behind_the_block_and_unsupported_columns_are_refused() -> None:
    types, block = types_of(GOLDEN), expected_bytes(GOLDEN)
    with pytest.raises(CorruptRecordError, match="2 bytes follow the maximums"):
        decode_statistics(block + b"\0\0", types)
    with pytest.raises(CorruptRecordError, match="name the column 1, whose type bytes has none"):
        decode_statistics(block, [types[0], parse_type("BYTES"), types[2]])


def test_damage_is_read_or_refused_and_nothing_else() -> None:
    for of in vectors_of("statistics"):
        types = types_of(of)
        assert count_refusals(lambda data, types=types: decode_statistics(data, types), expected_bytes(of)) > 100
    wide = [parse_type(text) for text in ("DECIMAL(30,2)", "TIMESTAMP(9)", "STRING", "TIME(3)", "FLOAT")]
    batch = batch_of(wide, [[10**28, Timestamp(5, 6), "longer than seven", 7, 1.5], [None, None, "", 9, -2.0]])
    block = collect_statistics(batch, wide, range(5))
    assert count_refusals(lambda data: decode_statistics(data, wide), block) > 100
