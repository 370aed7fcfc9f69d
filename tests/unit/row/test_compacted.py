"""Shows which values compacted rows and keys hold, and that the reader says what is wrong with the others.
Keys and nested values of random types, values that do not fit, damage made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, FlussError
from fluss.row.compacted import (
    decode_fields,
    decode_nested,
    decode_row,
    encode_fields,
    encode_nested,
    encode_row,
)
from fluss.row.values import Timestamp
from fluss.schema.type_parser import parse_type
from fluss.schema.types import ArrayType, DataType, IntType
from fluss.testing.strategies import data_types, internal_rows, internal_values, row_types


def types_of(*texts: str) -> list[DataType]:
    return [parse_type(text) for text in texts]


@given(row_types(columns_max=5, nested=False, nullable=False), st.data())
def test_keys_survive_a_round_trip(types: list[DataType], data: st.DataObject) -> None:
    values = data.draw(internal_rows(types))
    assert decode_fields(types, encode_fields(types, values)) == values


@given(data_types().map(ArrayType), st.data())
def test_a_nested_value_is_the_row_without_null_bits_and_length(data_type: ArrayType, data: st.DataObject) -> None:
    value = data.draw(internal_values(data_type.not_null()))
    body = encode_nested(data_type, value)
    assert encode_row([data_type], [value]).endswith(body)
    assert decode_nested(data_type, body) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TINYINT", 128),
        ("SMALLINT", -(2**15) - 1),
        ("INT", 2**31),
        ("BIGINT", 2**63),
        ("FLOAT", 1e300),
        ("DECIMAL(5,2)", 100_000),
        ("DECIMAL(38,0)", 10**38),
        ("STRING", "\ud800"),
        ("TIMESTAMP(3)", Timestamp(2**63)),
        ("ARRAY<TINYINT>", [300]),
        ("ARRAY<INT NOT NULL>", [None]),
        ("MAP<STRING,INT>", [(None, 1)]),
        ("ROW<a INT NOT NULL>", (None,)),
        ("INT NOT NULL", None),
    ],
)
def test_values_that_their_type_cannot_hold_are_not_written(text: str, value: Any) -> None:
    with pytest.raises(FlussError) as caught:
        encode_row(types_of(text), [value])
    assert caught.value.error_code == -2


def test_null_in_a_key_is_refused() -> None:
    with pytest.raises(FlussError, match="key column 1 is null"):
        encode_fields(types_of("INT", "STRING"), [1, None])


def test_a_null_bit_on_a_not_null_column_is_damage() -> None:
    with pytest.raises(CorruptRecordError, match="column 1 is null, but its type is int NOT NULL"):
        decode_row(types_of("INT", "INT NOT NULL"), bytes.fromhex("0201"))


def test_bytes_behind_the_last_field_are_damage() -> None:
    with pytest.raises(CorruptRecordError, match="1 bytes behind its last field"):
        decode_row(types_of("INT"), bytes.fromhex("000102"))
    with pytest.raises(CorruptRecordError, match="another schema"):
        decode_fields(types_of("INT"), bytes.fromhex("0102"))


def test_rows_without_columns_are_empty() -> None:
    assert encode_row([], []) == b""
    assert decode_row([], b"") == ()


@pytest.mark.parametrize(
    ("text", "data", "reason"),
    [
        ("STRING", "00ffffffff0f", "needs -1 bytes"),
        ("STRING", "00ffffffff07", "needs 2147483647 bytes"),
        ("STRING", "0002ff41", "not UTF-8"),
        ("BYTES", "0003ab", "only 1 are left"),
        ("DECIMAL(20,0)", "0000", "has 0 bytes"),
        ("DECIMAL(20,0)", "0011" + "00" * 17, "has 17 bytes"),
        ("DECIMAL(20,0)", "0009" + "7f" * 9, "more digits"),
        ("DECIMAL(2,0)", "0064", "more digits"),
        ("TIMESTAMP(6)", "0000c0843d", "1000000 nanoseconds"),
        ("TIMESTAMP(6)", "0000ffffffff0f", "-1 nanoseconds"),
        ("DOUBLE", "00000000", "needs 8 bytes"),
        ("ARRAY<INT>", "0003000000", "first field alone has 4"),
        ("ROW<a INT>", "000100", "ends inside"),
        ("INT", "", "needs 1 bytes"),
    ],
)
def test_the_reader_names_what_is_wrong(text: str, data: str, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason):
        decode_row(types_of(text), bytes.fromhex(data))


def test_the_deepest_allowed_type_decodes() -> None:
    data_type: DataType = IntType()
    value: Any = 7
    for _ in range(31):
        data_type, value = ArrayType(parse_type(f"ROW<a {data_type}>")), [(value,)]
    data_type, value = ArrayType(data_type), [value]
    assert decode_row([data_type], encode_row([data_type], [value])) == (value,)


def test_the_wrong_number_of_values_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="shorter"):
        encode_row(types_of("INT", "INT"), [1])
