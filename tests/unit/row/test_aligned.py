"""Shows which values aligned rows hold, and that no slot can lead the reader astray.
Round trips, rows of nulls, slots that overlap, every cut through the fixed part, random bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, FlussError
from fluss.row.slots import decode_aligned_row, encode_aligned_row
from fluss.schema.type_parser import parse_type
from fluss.schema.types import DataType, IntType
from fluss.testing.strategies import internal_rows, row_types
from tests.damage import is_refused, truncations
from tests.golden.vectors import Vector, expected_bytes, types_of, vector_id, vectors_of


@settings(max_examples=100, deadline=None)
@given(row_types(columns_min=0, nested=False), st.data())
def test_rows_of_any_scalar_types_survive_a_round_trip(types: list[DataType], data: st.DataObject) -> None:
    values = data.draw(internal_rows(types))
    encoded = encode_aligned_row(types, values)
    assert len(encoded) % 8 == 0
    assert decode_aligned_row(types, encoded) == values


@pytest.mark.parametrize(("field_count", "null_bytes"), [(0, 8), (1, 8), (56, 8), (57, 16), (120, 16), (121, 24)])
def test_null_bits_take_whole_words_after_one_header_byte(field_count: int, null_bytes: int) -> None:
    types = [IntType()] * field_count
    nulls = encode_aligned_row(types, [None] * field_count)
    assert len(nulls) == null_bytes + 8 * field_count
    assert nulls[0] == 0
    assert int.from_bytes(nulls[:null_bytes], "little") == (2**field_count - 1) << 8
    assert decode_aligned_row(types, nulls) == (None,) * field_count


def test_null_is_allowed_whatever_the_type_says() -> None:
    types = [parse_type("STRING NOT NULL")]
    assert decode_aligned_row(types, encode_aligned_row(types, [None])) == (None,)


def test_nested_types_are_refused_both_ways() -> None:
    types = [parse_type("ARRAY<INT>")]
    with pytest.raises(FlussError, match="no fields of type array<int>"):
        encode_aligned_row(types, [[1]])
    with pytest.raises(FlussError, match="no fields of type array<int>"):
        decode_aligned_row(types, bytes(8) + struct.pack("<ii", 8, 16) + bytes(8))


def test_slots_that_share_one_region_are_refused() -> None:
    slot = struct.pack("<ii", 9, 24)
    with pytest.raises(CorruptRecordError, match="some regions overlap"):
        decode_aligned_row([parse_type("STRING")] * 2, bytes(8) + slot + slot + b"123456789".ljust(16, b"\0"))


@pytest.mark.parametrize("of", vectors_of("aligned-row", "key-paimon"), ids=vector_id)
def test_every_cut_through_the_fixed_part_is_refused(of: Vector) -> None:
    types = types_of(of)
    fixed_bytes = 8 + 8 * len(types)
    for damaged in truncations(expected_bytes(of)[:fixed_bytes]):
        assert is_refused(lambda data: decode_aligned_row(types, data), damaged), damaged.hex()


@settings(max_examples=100, deadline=None)
@given(row_types(columns_max=4, nested=False), st.binary(max_size=80))
def test_random_bytes_decode_or_are_refused(types: list[DataType], data: bytes) -> None:
    is_refused(lambda damaged: decode_aligned_row(types, damaged), data)
