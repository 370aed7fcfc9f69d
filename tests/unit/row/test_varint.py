"""Shows that variable-length integers come back from between other bytes and that damaged ones are refused.
Round trips over both widths, and hand-made damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, FlussError
from fluss.row.varint import decode_varint32, decode_varint64, encode_varint32, encode_varint64

INT32S = st.integers(-(2**31), 2**31 - 1)
INT64S = st.integers(-(2**63), 2**63 - 1)


@given(INT32S, INT64S, st.binary(max_size=3), st.binary(max_size=3))
def test_numbers_survive_a_round_trip_between_other_bytes(narrow: int, wide: int, before: bytes, after: bytes) -> None:
    for encode, decode, number in (
        (encode_varint32, decode_varint32, narrow),
        (encode_varint64, decode_varint64, wide),
    ):
        data = before + encode(number) + after
        assert decode(data, len(before)) == (number, len(data) - len(after))


@given(INT32S.filter(lambda number: number < 0), INT64S.filter(lambda number: number < 0))
def test_negative_numbers_take_the_full_length(narrow: int, wide: int) -> None:
    assert len(encode_varint32(narrow)) == 5
    assert len(encode_varint64(wide)) == 10


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**40])
def test_numbers_beyond_32_bits_are_refused_by_the_writer(number: int) -> None:
    with pytest.raises(FlussError, match="does not fit 32 bits"):
        encode_varint32(number)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
def test_numbers_beyond_64_bits_are_refused_by_the_writer(number: int) -> None:
    with pytest.raises(FlussError, match="does not fit 64 bits"):
        encode_varint64(number)


def test_groups_of_zeros_at_the_end_are_accepted() -> None:
    assert decode_varint32(bytes.fromhex("8000")) == (0, 2)
    assert decode_varint32(bytes.fromhex("8180808000")) == (1, 5)
    assert decode_varint64(bytes.fromhex("81808080808080808000")) == (1, 10)


@pytest.mark.parametrize("data", ["", "80", "ffff", "80808080"])
def test_data_that_ends_inside_a_varint_is_refused(data: str) -> None:
    with pytest.raises(CorruptRecordError, match="ends inside"):
        decode_varint32(bytes.fromhex(data))
    with pytest.raises(CorruptRecordError, match="ends inside"):
        decode_varint64(bytes.fromhex(data))


def test_varints_with_more_bytes_than_their_width_needs_are_refused() -> None:
    with pytest.raises(CorruptRecordError, match="longer than 5 bytes"):
        decode_varint32(bytes.fromhex("808080808001"))
    with pytest.raises(CorruptRecordError, match="longer than 10 bytes"):
        decode_varint64(bytes.fromhex("8080808080808080808001"))


@pytest.mark.parametrize("data", ["ffffffff10", "ffffffff1f", "808080807f"])
def test_bits_beyond_32_are_refused(data: str) -> None:
    with pytest.raises(CorruptRecordError, match="bits beyond its 32"):
        decode_varint32(bytes.fromhex(data))


@pytest.mark.parametrize("data", ["ffffffffffffffffff02", "8080808080808080807f"])
def test_bits_beyond_64_are_refused(data: str) -> None:
    with pytest.raises(CorruptRecordError, match="bits beyond its 64"):
        decode_varint64(bytes.fromhex(data))
