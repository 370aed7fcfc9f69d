"""Stored values carry their schema id, alone and by the batch, and damaged ones are refused.
Random values against the scalar twin, lies in the header one by one, then systematic damage."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, FlussError, SizeLimitError
from fluss.record.value_batch import (
    decode_value,
    decode_value_batch,
    encode_value,
    encode_value_batch,
    prefix_schema_id,
    split_values,
)
from fluss.row.encoded import EncodedRows
from tests.damage import count_refusals
from tests.golden.vectors import expected_bytes, vector
from tests.unit.record.row_layouts import encoded_rows

schema_ids = st.integers(0, 2**15 - 1)


def read_batch(data: bytes | bytearray) -> list[tuple[int, bytes]]:
    ids, rows = split_values(decode_value_batch(data))
    return list(zip(ids.tolist(), rows.to_list(), strict=True))


@given(encoded_rows(st.lists(st.binary(max_size=50), max_size=10)), schema_ids)
def test_columns_of_values_are_those_of_the_scalar_twin(rows: EncodedRows, schema_id: int) -> None:
    values = prefix_schema_id(rows, schema_id)
    assert values.to_list() == [encode_value(schema_id, row) for row in rows.to_list()]
    ids, rows_read = split_values(values)
    assert ids.dtype == np.int16
    assert ids.tolist() == [schema_id] * len(rows)
    assert rows_read.to_list() == rows.to_list()


@given(st.lists(st.tuples(schema_ids, st.binary(max_size=50)), max_size=10))
def test_values_of_several_schemas_share_a_batch(values: list[tuple[int, bytes]]) -> None:
    assert read_batch(encode_value_batch(EncodedRows.from_list([encode_value(*value) for value in values]))) == values


@pytest.mark.parametrize("data", [b"", b"\1"])
def test_a_value_too_short_for_its_schema_id_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptRecordError, match=f"of {len(data)} bytes is too short"):
        decode_value(data)
    with pytest.raises(CorruptRecordError, match=f"stored value 1, of {len(data)} bytes, is too short"):
        split_values(EncodedRows.from_list([b"\1\0row", data]))


@pytest.mark.parametrize(
    ("header", "error", "message"),
    [
        ((22, 1, 2), CorruptRecordError, "format version 1"),
        ((21, 0, 2), CorruptRecordError, "announces 25 bytes, 26 were received"),
        ((-1, 0, 2), CorruptRecordError, "announces 3 bytes"),
        ((2**31 - 1, 0, 2), SizeLimitError, "announces 2147483651 bytes, the limit is 2147483647"),
        ((22, 0, -2), CorruptRecordError, "announces -2 stored values"),
        ((22, 0, 3), CorruptRecordError, "announces 3 stored values, its 17 bytes cannot hold"),
        ((22, 0, 1), CorruptRecordError, "8 bytes follow the last of 1 stored values"),
    ],
)
def test_every_lie_in_a_header_is_named(header: tuple[int, int, int], error: type[FlussError], message: str) -> None:
    batch = bytearray(expected_bytes(vector("kv.value_batch.rust_test")))
    struct.pack_into("<ibi", batch, 0, *header)
    with pytest.raises(error, match=message):
        decode_value_batch(batch)


def test_damage_is_read_or_refused_and_nothing_else() -> None:
    assert count_refusals(read_batch, expected_bytes(vector("kv.value_batch.two_schemas"))) > 100


def test_a_batch_that_cannot_be_described_is_refused_before_it_is_built() -> None:
    values = EncodedRows(np.zeros(1, np.uint8), np.array([0, 0]), np.array([2**30, 2**30]))
    with pytest.raises(FlussError, match="scan fewer rows"):
        encode_value_batch(values)
