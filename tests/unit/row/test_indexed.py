"""Indexed rows hold the values of all types, a batch is decoded like row by row, and damage gets the same verdict.
Values that do not fit, random batches against the scalar codec, every bit flip and every cut of rows of all types."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from fluss.errors import CorruptRecordError, FlussError
from fluss.row import indexed
from fluss.row.encoded import EncodedRows
from fluss.row.indexed import decode_row, decode_rows, encode_row
from fluss.schema.type_parser import parse_type
from fluss.schema.types import CharType, DataType, IntType, StringType
from fluss.testing.strategies import arrow_batches, row_types
from tests.damage import bit_flips, truncations
from tests.unit.row.test_compacted_columns import (
    ALL_TYPES,
    ALL_VALUES,
    assert_same_arrays,
    assert_same_verdict,
    columns_of,
    rows_of,
)


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


# The scalar codec takes "aé", whose three bytes fill a CHAR(3).
WIDE_ROW = indexed.encode_row(ALL_TYPES, ALL_VALUES)


def is_accepted(rows: Sequence[bytes], types: Sequence[DataType]) -> bool:
    return assert_same_verdict(rows, types, decode_rows, indexed.decode_row)


@given(row_types(columns_max=8).flatmap(arrow_batches))
def test_a_batch_decodes_to_itself(types_and_batch: tuple[list[DataType], pa.RecordBatch]) -> None:
    types, batch = types_and_batch
    encoded = [indexed.encode_row(types, row) for row in rows_of(batch.columns, types)]
    assert_same_arrays(decode_rows(EncodedRows.from_list(encoded), types), batch.columns, types)


def test_ten_thousand_rows_with_nulls_at_all_places_decode_to_themselves() -> None:
    rng = np.random.default_rng(5)
    scalars = [(t, v) for t, v in zip(ALL_TYPES, ALL_VALUES, strict=True) if not t.is_nested]
    types = [t for t, _ in scalars]
    patterns: list[tuple[Any, ...]] = [tuple(v if rng.random() < 0.7 else None for _, v in scalars) for _ in range(40)]
    encoded = [indexed.encode_row(types, pattern) for pattern in patterns]
    picks = rng.integers(0, len(patterns), 10_000)
    columns = decode_rows(EncodedRows.from_list([encoded[i] for i in picks]), types)
    assert_same_arrays(columns, columns_of([patterns[i] for i in picks], types), types)


def test_the_zeros_behind_a_char_are_padding() -> None:
    types = [CharType(4), StringType()]
    rows = [indexed.encode_row(types, row) for row in (("", "a"), ("ab", "b"), ("abcd", None), (None, "d"))]
    rows.append(bytes((0, 0, 0, 0, 0)) + b"a\0b\0")
    texts, _ = decode_rows(EncodedRows.from_list(rows), types)
    assert texts.to_pylist() == ["", "ab", "abcd", None, "a\0b"]


@pytest.mark.parametrize("first", range(len(ALL_TYPES)), ids=lambda first: str(ALL_TYPES[first]))
def test_every_bit_flip_of_a_row_gets_the_same_verdict_as_in_the_scalar_codec(first: int) -> None:
    types, values = (2 * ALL_TYPES)[first : first + 3], (2 * ALL_VALUES)[first : first + 3]
    row = indexed.encode_row(types, values)
    verdicts = {is_accepted([row, damaged], types) for damaged in bit_flips(row)}
    assert verdicts == {True, False}


def test_every_null_bit_and_every_cut_of_a_wide_row_gets_the_same_verdict_as_in_the_scalar_codec() -> None:
    assert is_accepted([WIDE_ROW, WIDE_ROW], ALL_TYPES)
    for damaged in islice(bit_flips(WIDE_ROW), -(-len(ALL_TYPES) // 8) * 8):
        is_accepted([WIDE_ROW, damaged], ALL_TYPES)
    for damaged in truncations(WIDE_ROW):
        assert not is_accepted([damaged, WIDE_ROW], ALL_TYPES)


def test_no_rows_and_no_columns_are_nothing() -> None:
    assert [column.to_pylist() for column in decode_rows(EncodedRows.from_list([]), [IntType(), StringType()])] == [
        [],
        [],
    ]
    assert decode_rows(EncodedRows.from_list([b"", b""]), []) == []
