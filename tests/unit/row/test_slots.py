"""Arrays, maps and aligned rows are read by offset and length only; nulls are not looked at, and no slot leads astray.
Round trips, hand-made arrays, slots that overlap, every cut through the fixed part of a row, random bytes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, FlussError
from fluss.row import compacted, indexed
from fluss.row.slots import (
    NestedRowCodec,
    decode_aligned_row,
    decode_array,
    decode_map,
    encode_aligned_row,
    encode_array,
    encode_map,
)
from fluss.schema.type_parser import parse_type
from fluss.schema.types import ArrayType, DataType, IntType, MapType
from fluss.testing.strategies import data_types, internal_rows, internal_values, row_types
from tests.damage import count_refusals, is_refused, truncations
from tests.golden.vectors import Vector, expected_bytes, types_of, vector_id, vectors_of

COMPACTED = NestedRowCodec(compacted.encode_row, compacted.decode_row)
INDEXED = NestedRowCodec(indexed.encode_row, indexed.decode_row)


def decode(text: str, data: str | bytes) -> list[Any]:
    return decode_array(parse_type(text), bytes.fromhex(data) if isinstance(data, str) else data, COMPACTED)


@given(data_types(), st.data(), st.sampled_from([COMPACTED, INDEXED]))
def test_arrays_of_any_type_survive_a_round_trip(element: DataType, data: st.DataObject, rows: NestedRowCodec) -> None:
    values = data.draw(st.lists(internal_values(element), max_size=40))
    encoded = encode_array(element, values, rows)
    assert len(encoded) % 8 == 0
    assert decode_array(element, encoded, rows) == values


@given(st.builds(MapType, data_types(nullable=False), data_types()), st.data(), st.sampled_from([COMPACTED, INDEXED]))
def test_maps_survive_a_round_trip_with_order_and_duplicates(
    data_type: MapType, data: st.DataObject, rows: NestedRowCodec
) -> None:
    entry = st.tuples(internal_values(data_type.key_type), internal_values(data_type.value_type))
    entries = data.draw(st.lists(entry, max_size=4))
    entries += entries[:1]
    assert decode_map(data_type, encode_map(data_type, entries, rows), rows) == entries


def test_rows_inside_an_array_have_the_format_of_the_row_around_it() -> None:
    element, values = parse_type("ROW<x INT,y STRING>"), [(5, "hi")]
    assert bytes.fromhex("0005026869") in encode_array(element, values, COMPACTED)
    assert bytes.fromhex("00020000000500000068 69") in encode_array(element, values, INDEXED)


def test_garbage_in_the_slot_of_a_null_is_not_looked_at() -> None:
    assert decode("STRING", "01000000 01000000 ffffffffffffff7f") == [None]
    assert decode("ARRAY<INT>", "01000000 01000000 ffffffffffffffff") == [None]


def test_decimals_padded_to_eight_bytes_are_read() -> None:
    # Some released clients reserve 8 bytes for a short wide decimal instead of 16.
    data = "02000000 00000000 0100000018000000 0100000020000000 7b00000000000000 8500000000000000"
    assert decode("DECIMAL(30,2)", data) == [123, -123]


def test_short_bytes_outside_their_slot_are_read() -> None:
    assert decode("BYTES", "01000000 00000000 0200000010000000 abcd000000000000") == [b"\xab\xcd"]


def test_an_array_without_padding_at_its_end_is_read() -> None:
    assert decode("TINYINT", "02000000 00000000 0102") == [1, 2]


def test_null_where_the_element_type_forbids_it_is_refused_both_ways() -> None:
    with pytest.raises(CorruptRecordError, match="Element 0 of an array is null"):
        decode("INT NOT NULL", "01000000 01000000 00000000 00000000")
    with pytest.raises(FlussError, match="Element 1 of an array is null") as caught:
        encode_array(parse_type("INT NOT NULL"), [1, None], COMPACTED)
    assert caught.value.error_code == -2


@pytest.mark.parametrize(
    ("text", "data", "reason"),
    [
        ("INT", "0000", "has 2 bytes"),
        ("INT", "ffffffff00000000", "claims -1 elements"),
        ("BOOLEAN", "ffffff7f00000000", "claims 2147483647 elements"),
        ("BIGINT", "01000000 00000000 00000000", "claims 1 elements"),
        ("STRING", "01000000 00000000 0000000000000088", "claims to hold 8 bytes"),
        ("STRING", "01000000 00000000 0900000010000000 6161616161616161", "outside the variable part"),
        ("STRING", "01000000 00000000 ffffffff10000000 6161616161616161", "outside the variable part"),
        ("STRING", "01000000 00000000 0800000008000000 6161616161616161", "outside the variable part"),
        ("STRING", "01000000 00000000 0800000010000000 ff61616161616161", "not UTF-8"),
        ("DECIMAL(30,2)", "01000000 00000000 0000000010000000 0000000000000000", "has 0 bytes"),
        ("TIMESTAMP(6)", "01000000 00000000 40420f0010000000 0000000000000000", "1000000 nanoseconds"),
        ("TIMESTAMP(6)", "01000000 00000000 0000000011000000 0000000000000000", "outside the variable part"),
        ("ROW<a INT>", "01000000 00000000 0300000010000000 0007070000000000", "behind its last field"),
    ],
)
def test_the_reader_names_what_is_wrong(text: str, data: str, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason):
        decode(text, data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("0000", "a map has 2 bytes"),
        ("ffffffff" + "00" * 16, "key array of -1 bytes"),
        ("11000000" + "00" * 16, "key array of 17 bytes"),
        ("08000000 0000000000000000 01000000 00000000 0100000000000000", "0 keys and 1 values"),
        ("10000000 01000000 01000000 0000000000000000 01000000 00000000 0100000000000000", "is null"),
    ],
)
def test_damaged_maps_are_refused(data: str, reason: str) -> None:
    map_type = parse_type("MAP<INT,INT>")
    assert isinstance(map_type, MapType)
    with pytest.raises(CorruptRecordError, match=reason):
        decode_map(map_type, bytes.fromhex(data), COMPACTED)


def test_slots_that_share_one_region_are_refused() -> None:
    region = b"a string of 24 bytes....".ljust(24)
    slot = struct.pack("<ii", 24, 24)
    twice = struct.pack("<ii", 2, 0) + slot + slot + region
    with pytest.raises(CorruptRecordError, match="some regions overlap"):
        decode("STRING", twice)


def aliasing_bomb(depth: int, width: int) -> tuple[DataType, bytes]:
    """Nest arrays whose slots all point at the one array inside: width ** depth elements in a few kilobytes."""
    data_type: DataType = IntType()
    body = encode_array(IntType(), [7] * width, COMPACTED)
    for _ in range(depth):
        data_type = ArrayType(data_type)
        header = struct.pack("<i", width) + bytes(4 * ((width + 31) // 32))
        start = (len(header) + 8 * width + 7) // 8 * 8
        body = (header + struct.pack("<ii", len(body), start) * width).ljust(start, b"\0") + body
    return data_type, body


def test_many_slots_that_point_at_one_nested_value_are_refused() -> None:
    data_type, bomb = aliasing_bomb(depth=8, width=50)
    assert len(bomb) < 5_000
    # Followed to the end, it would be 50 ** 9 numbers: a reader that tries does not come back.
    with pytest.raises(CorruptRecordError, match="some regions overlap"):
        decode_array(data_type, bomb, COMPACTED)


SAMPLES: list[tuple[str, list[Any]]] = [
    ("STRING", ["a", None, "longer than seven", ""]),
    ("DECIMAL(30,2)", [123, None, -(10**29)]),
    ("ARRAY<ARRAY<STRING>>", [[["deep, and long enough"], None], None]),
    ("MAP<STRING,ROW<a INT,b BYTES>>", [[("key", (1, b"12345678")), ("k2", None)], []]),
]


@pytest.mark.parametrize("rows", [COMPACTED, INDEXED], ids=["compacted", "indexed"])
@pytest.mark.parametrize(("text", "values"), SAMPLES)
def test_truncations_and_bit_flips_decode_or_are_refused(text: str, values: list[Any], rows: NestedRowCodec) -> None:
    element = parse_type(text)
    data = encode_array(element, values, rows)
    assert decode_array(element, data, rows) == values
    assert count_refusals(lambda damaged: decode_array(element, damaged, rows), data) > 2 * len(data)


@given(data_types(), st.integers(0, 3), st.binary(max_size=80))
def test_random_bytes_decode_or_are_refused(element: DataType, count: int, rest: bytes) -> None:
    # A small count gets the reader past the first check more often than random bytes would.
    data = struct.pack("<i", count) + rest
    for rows in (COMPACTED, INDEXED):
        is_refused(lambda damaged, rows=rows: decode_array(element, damaged, rows), data)


@given(row_types(columns_min=0, nested=False), st.data())
def test_aligned_rows_of_any_scalar_types_survive_a_round_trip(types: list[DataType], data: st.DataObject) -> None:
    values = data.draw(internal_rows(types))
    encoded = encode_aligned_row(types, values)
    assert len(encoded) % 8 == 0
    assert decode_aligned_row(types, encoded) == values


@pytest.mark.parametrize(("field_count", "null_bytes"), [(0, 8), (1, 8), (56, 8), (57, 16), (120, 16), (121, 24)])
def test_null_bits_of_an_aligned_row_take_whole_words_after_one_header_byte(field_count: int, null_bytes: int) -> None:
    types = [IntType()] * field_count
    nulls = encode_aligned_row(types, [None] * field_count)
    assert len(nulls) == null_bytes + 8 * field_count
    assert nulls[0] == 0
    assert int.from_bytes(nulls[:null_bytes], "little") == (2**field_count - 1) << 8
    assert decode_aligned_row(types, nulls) == (None,) * field_count


def test_null_is_allowed_in_an_aligned_row_of_any_type() -> None:
    types = [parse_type("STRING NOT NULL")]
    assert decode_aligned_row(types, encode_aligned_row(types, [None])) == (None,)


def test_nested_types_are_refused_in_aligned_rows_both_ways() -> None:
    types = [parse_type("ARRAY<INT>")]
    with pytest.raises(FlussError, match="no fields of type array<int>"):
        encode_aligned_row(types, [[1]])
    with pytest.raises(FlussError, match="no fields of type array<int>"):
        decode_aligned_row(types, bytes(8) + struct.pack("<ii", 8, 16) + bytes(8))


def test_slots_of_an_aligned_row_that_share_one_region_are_refused() -> None:
    slot = struct.pack("<ii", 9, 24)
    with pytest.raises(CorruptRecordError, match="some regions overlap"):
        decode_aligned_row([parse_type("STRING")] * 2, bytes(8) + slot + slot + b"123456789".ljust(16, b"\0"))


@pytest.mark.parametrize("of", vectors_of("aligned-row", "key-paimon"), ids=vector_id)
def test_every_cut_through_the_fixed_part_is_refused(of: Vector) -> None:
    types = types_of(of)
    fixed_bytes = 8 + 8 * len(types)
    for damaged in truncations(expected_bytes(of)[:fixed_bytes]):
        assert is_refused(lambda data: decode_aligned_row(types, data), damaged), damaged.hex()


@given(row_types(columns_max=4, nested=False), st.binary(max_size=80))
def test_random_bytes_of_an_aligned_row_decode_or_are_refused(types: list[DataType], data: bytes) -> None:
    is_refused(lambda damaged: decode_aligned_row(types, damaged), data)
