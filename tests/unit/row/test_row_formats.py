"""What all row formats promise: any row comes back, and no damage gets past the reader.
Random types and values, every truncation and bit flip of the golden rows, random bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.row import compacted, indexed, slots
from fluss.schema.types import DataType
from fluss.testing.strategies import internal_rows, row_types
from tests.damage import count_refusals, is_refused, truncations
from tests.golden.vectors import Vector, expected_bytes, types_of, vectors_of


@dataclass(frozen=True)
class RowFormat:
    encode: Callable[[Sequence[DataType], Sequence[Any]], bytes]
    decode: Callable[[Sequence[DataType], bytes], tuple[Any, ...]]
    samples: list[Vector]


COMPACTED = RowFormat(compacted.encode_row, compacted.decode_row, vectors_of("compacted-row", "compacted-row-nested"))
KEY = RowFormat(
    compacted.encode_fields,
    compacted.decode_fields,
    [of for of in vectors_of("key-compacted") if "expected_hex" in of],
)
INDEXED = RowFormat(indexed.encode_row, indexed.decode_row, vectors_of("indexed-row"))
ALIGNED = RowFormat(slots.encode_aligned_row, slots.decode_aligned_row, vectors_of("aligned-row", "key-paimon"))


def samples_of(*formats: RowFormat) -> list[Any]:
    return [pytest.param(row_format, of, id=of["id"]) for row_format in formats for of in row_format.samples]


@given(row_types(columns_max=10), st.data())
def test_rows_of_any_types_survive_a_round_trip(types: list[DataType], data: st.DataObject) -> None:
    values = data.draw(internal_rows(types))
    for row_format in (COMPACTED, INDEXED):
        encoded = row_format.encode(types, values)
        assert row_format.decode(types, encoded) == values
        assert row_format.decode(types, memoryview(b"x" + encoded)[1:]) == values


@pytest.mark.parametrize(("row_format", "of"), samples_of(COMPACTED, KEY, INDEXED))
def test_every_truncation_is_refused(row_format: RowFormat, of: Vector) -> None:
    types = types_of(of)
    for damaged in truncations(expected_bytes(of)):
        assert is_refused(lambda data: row_format.decode(types, data), damaged), damaged.hex()


@pytest.mark.parametrize(("row_format", "of"), samples_of(COMPACTED, KEY, INDEXED, ALIGNED))
def test_every_injury_decodes_or_is_refused(row_format: RowFormat, of: Vector) -> None:
    types = types_of(of)
    count_refusals(lambda data: row_format.decode(types, data), expected_bytes(of))


@given(row_types(columns_max=4), st.binary(max_size=60))
def test_random_bytes_decode_or_are_refused(types: list[DataType], data: bytes) -> None:
    for row_format in (COMPACTED, KEY, INDEXED):
        is_refused(lambda damaged, row_format=row_format: row_format.decode(types, damaged), data)
