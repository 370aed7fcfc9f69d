"""Shows that indexed rows have exactly the published bytes and that no damage gets past the reader.
Golden vectors both ways, round trips of random types, every truncation and bit flip of small rows, random bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, FlussError
from fluss.row.indexed import decode_row, encode_row
from fluss.schema.type_text import parse_type
from fluss.schema.types import BinaryType, DataType
from fluss.testing.strategies import internal_rows, row_types
from tests.unit.row.damage import bit_flips, decodes_or_refuses, truncations
from tests.unit.row.vectors import row_of, stored, vector_id, vectors_of

VECTORS = vectors_of("indexed-row")


def types_of(*texts: str) -> list[DataType]:
    return [parse_type(text) for text in texts]


def read_back(value: Any, data_type: DataType) -> Any:
    """A BINARY(n) comes back with all of its n bytes."""
    return value.ljust(data_type.length, b"\0") if isinstance(data_type, BinaryType) else stored(value, data_type)


@pytest.mark.parametrize("vector", VECTORS, ids=vector_id)
def test_golden_rows_have_their_bytes_both_ways(vector: dict[str, Any]) -> None:
    types, values = row_of(vector)
    data = bytes.fromhex(vector["expected_hex"])
    assert encode_row(types, values) == data
    assert decode_row(types, data) == tuple(map(read_back, values, types))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_rows_of_any_types_survive_a_round_trip(data: st.DataObject) -> None:
    types = data.draw(row_types(columns_max=10))
    values = data.draw(internal_rows(types))
    encoded = encode_row(types, values)
    assert decode_row(types, encoded) == values
    assert decode_row(types, memoryview(b"x" + encoded)[1:]) == values


def test_length_words_of_nulls_stay_at_the_end_as_zeros() -> None:
    data = encode_row(types_of("STRING", "STRING", "BYTES"), [None, "ab", None])
    assert data.hex(" ") == "05 02 00 00 00 00 00 00 00 00 00 00 00 61 62"


@pytest.mark.parametrize(("text", "value"), [("CHAR(2)", "é!"), ("BINARY(2)", b"abc")])
def test_values_longer_than_their_declared_bytes_are_not_written(text: str, value: Any) -> None:
    with pytest.raises(FlussError, match="declare the column with a larger length") as caught:
        encode_row(types_of(text), [value])
    assert caught.value.error_code == -2


def test_null_in_a_not_null_column_is_refused_both_ways() -> None:
    with pytest.raises(FlussError, match="column 0 is null"):
        encode_row(types_of("INT NOT NULL"), [None])
    with pytest.raises(CorruptRecordError, match="column 0 is null"):
        decode_row(types_of("INT NOT NULL"), b"\x01")


@pytest.mark.parametrize(
    ("types", "data", "reason"),
    [
        (["INT"], "000000", "needs 4 bytes"),
        (["STRING"], "00000000", "needs 4 bytes"),
        (["STRING"], "00ffffffff", "needs -1 bytes"),
        (["STRING"], "000200000041", "needs 2 bytes"),
        (["STRING"], "0001000000ff", "not UTF-8"),
        (["CHAR(2)"], "00ff00", "not UTF-8"),
        (["CHAR(9)"], "0061", "needs 9 bytes"),
        (["DECIMAL(20,0)"], "0000000000", "has 0 bytes"),
        (["DECIMAL(2,0)"], "006400000000000000", "more digits"),
        (["TIMESTAMP(6)"], "00000000000000000040420f00", "1000000 nanoseconds"),
        (["ARRAY<INT>"], "0000000000", "first field alone has 4"),
        (["INT"], "000000000000", "1 bytes behind its last field"),
    ],
)
def test_the_reader_names_what_is_wrong(types: list[str], data: str, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason):
        decode_row(types_of(*types), bytes.fromhex(data))


@pytest.mark.parametrize("vector", VECTORS, ids=vector_id)
def test_every_truncation_is_refused_and_bit_flips_decode_or_are_refused(vector: dict[str, Any]) -> None:
    types, _ = row_of(vector)
    data = bytes.fromhex(vector["expected_hex"])
    for damaged in truncations(data):
        assert not decodes_or_refuses(lambda sample: decode_row(types, sample), damaged), damaged.hex()
    for damaged in bit_flips(data):
        decodes_or_refuses(lambda sample: decode_row(types, sample), damaged)


@settings(max_examples=100, deadline=None)
@given(row_types(columns_max=4), st.binary(max_size=60))
def test_random_bytes_decode_or_are_refused(types: list[DataType], data: bytes) -> None:
    decodes_or_refuses(lambda damaged: decode_row(types, damaged), data)
