"""INDEXED and COMPACTED log bodies keep rows and change types exactly, in place on the way in.
Random bodies are compared with a plain loop; then lies one by one, and systematic damage."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError
from fluss.record.log_batch import decode_row_body, encode_row_body
from fluss.row.encoded import EncodedRows
from tests.damage import count_refusals


def change_types(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)


@given(st.lists(st.tuples(st.integers(0, 4), st.binary(max_size=200)), max_size=20))
@settings(max_examples=100)
def test_bodies_are_what_a_plain_loop_writes_and_read_back(records: list[tuple[int, bytes]]) -> None:
    rows = EncodedRows.from_list([row for _, row in records])
    types = change_types(*(change_type for change_type, _ in records))
    body = encode_row_body(rows, types)
    assert bytes(body) == b"".join(struct.pack("<iB", 1 + len(row), kind) + row for kind, row in records)
    rows_read, types_read = decode_row_body(body, len(records))
    assert rows_read.to_list() == [row for _, row in records]
    assert types_read.tolist() == types.tolist()


def test_rows_are_described_in_place() -> None:
    body = bytes(encode_row_body(EncodedRows.from_list([b"first", b"second"]), change_types(1, 4)))
    rows, _ = decode_row_body(body, 2)
    assert np.shares_memory(rows.data, np.frombuffer(body, np.uint8))
    assert rows.data[rows.starts[1] : rows.ends[1]].tobytes() == b"second"


def test_an_unknown_change_type_is_refused() -> None:
    body = bytearray(encode_row_body(EncodedRows.from_list([b"a", b"b"]), change_types(0, 0)))
    body[10] = 5
    with pytest.raises(CorruptRecordError, match="record 1 of 2, at byte 6, has the change type 5, only 0 to 4"):
        decode_row_body(body, 2)


def test_a_record_without_a_change_type_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="has the length 0, at least 1"):
        decode_row_body(struct.pack("<i", 0) + struct.pack("<iB", 2, 1) + b"x", 2)


def test_damage_is_read_or_refused_and_nothing_else() -> None:
    body = bytes(encode_row_body(EncodedRows.from_list([b"abc", b"", b"defgh"]), change_types(0, 2, 3)))
    assert count_refusals(lambda data: decode_row_body(data, 3), body) > 100
