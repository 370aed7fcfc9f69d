"""Shows which values indexed rows hold, and that the reader says what is wrong with the others.
Rows of nulls, values that do not fit, damage made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fluss.errors import CorruptRecordError, FlussError
from fluss.row.indexed import decode_row, encode_row
from fluss.schema.type_parser import parse_type
from fluss.schema.types import DataType


def types_of(*texts: str) -> list[DataType]:
    return [parse_type(text) for text in texts]


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
