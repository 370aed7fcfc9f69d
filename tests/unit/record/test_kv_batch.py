"""KV batches: whole columns and single rows give the same bytes, and every header and boundary lie is found.
Random puts and deletes through both writers, lies one by one, then systematic damage."""

from __future__ import annotations

import struct
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import ChecksumError, CorruptRecordError, ErrorCode, FlussError, SizeLimitError
from fluss.record.framing import crc32c
from fluss.record.kv_batch import (
    HEADER_BYTES,
    KvBatch,
    encode_kv_batch,
    encode_kv_records,
    sealed_kv_header,
)
from fluss.row.encoded import EncodedRows
from fluss.row.varint import encode_varint32
from tests.damage import bit_flips, count_refusals
from tests.golden.vectors import expected_bytes, vector
from tests.unit.record.row_layouts import encoded_rows

# Length and magic lie before the checksum; it guards all that lies behind it.
CRC_POSITION = 5
# The lengths around which a key length grows by a byte.
KEY_LENGTHS = [1, 2, 127, 128, 129, 16_383, 16_384, 2_097_151, 2_097_152]

records_strategy = st.lists(st.tuples(st.binary(min_size=1, max_size=200), st.none() | st.binary(min_size=1)))


def columns_of(records: list[tuple[bytes, bytes | None]]) -> tuple[EncodedRows, EncodedRows, np.ndarray]:
    keys = EncodedRows.from_list([key for key, _ in records])
    rows = EncodedRows.from_list([row or b"" for _, row in records])
    return keys, rows, np.array([row is None for _, row in records], np.bool_)


def encode(records: list[tuple[bytes, bytes | None]], **header: int) -> bytearray:
    return encode_kv_batch(*columns_of(records), **{"schema_id": 1, **header})


def build(records: list[tuple[bytes, bytes | None]], **header: int) -> bytearray:
    """Write a batch record by record, as its description says."""
    body = bytearray()
    for key, row in records:
        payload = encode_varint32(len(key)) + key + (row or b"")
        body += struct.pack("<i", len(payload)) + payload
    fields = {"schema_id": 1, "writer_id": -1, "batch_sequence": -1, **header}
    return bytearray(
        with_crc(
            struct.pack(
                "<ibIhbqii",
                0,
                0,
                0,
                fields["schema_id"],
                0,
                fields["writer_id"],
                fields["batch_sequence"],
                len(records),
            )
            + body
        )
    )


def decode(batch: bytes | bytearray) -> list[tuple[bytes, bytes | None]]:
    parsed = KvBatch.parse(batch)
    parsed.verify_crc()
    keys, rows, is_delete = parsed.records()
    return [
        (key, None if deleted else row)
        for key, row, deleted in zip(keys.to_list(), rows.to_list(), is_delete, strict=True)
    ]


def with_crc(batch: bytes | bytearray) -> bytes:
    """Make a damaged batch believable: its length and checksum are right again."""
    fixed = bytearray(batch)
    struct.pack_into("<i", fixed, 0, len(fixed) - 4)
    struct.pack_into("<I", fixed, CRC_POSITION, crc32c(bytes(fixed[CRC_POSITION + 4 :])))
    return bytes(fixed)


@given(records_strategy, st.integers(0, 2**15 - 1), st.integers(-1, 2**63 - 1), st.integers(-1, 2**31 - 1))
def test_columns_and_single_rows_give_the_same_bytes_which_read_back(
    records: list[tuple[bytes, bytes | None]], schema_id: int, writer_id: int, batch_sequence: int
) -> None:
    header = {"schema_id": schema_id, "writer_id": writer_id, "batch_sequence": batch_sequence}
    batch = encode(records, **header)
    assert batch == build(records, **header)
    assert decode(batch) == records
    # A header that is made later, for records that are there already.
    body = encode_kv_records(*columns_of(records)).data.tobytes()
    assert sealed_kv_header(body, record_count=len(records), **header) + body == batch
    parsed = KvBatch.parse(batch)
    assert (parsed.schema_id, parsed.writer_id, parsed.batch_sequence) == (schema_id, writer_id, batch_sequence)
    assert parsed.record_count == len(records)


@given(encoded_rows(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=8)), st.data())
def test_columns_may_lie_anywhere_in_their_buffers(rows: EncodedRows, data: st.DataObject) -> None:
    deletes = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    expected = [(row, None if deleted else row) for row, deleted in zip(rows.to_list(), deletes.tolist(), strict=True)]
    assert decode(encode_kv_batch(rows, rows, deletes, schema_id=1)) == expected


def test_the_row_of_a_delete_is_not_written() -> None:
    keys, rows = EncodedRows.from_list([b"k1", b"k2"]), EncodedRows.from_list([b"old", b"new"])
    batch = encode_kv_batch(keys, rows, np.array([True, False]), schema_id=1)
    assert b"old" not in batch
    assert decode(batch) == [(b"k1", None), (b"k2", b"new")]


@pytest.mark.parametrize("deletes", [None, np.array([True, False])])
def test_a_put_cannot_become_a_delete_by_accident(deletes: np.ndarray | None) -> None:
    rows = EncodedRows.from_list([b"row", b""])
    with pytest.raises(AssertionError, match="an empty row is a delete"):
        encode_kv_batch(EncodedRows.from_list([b"a", b"b"]), rows, deletes, schema_id=1)


def test_keys_without_rows_are_all_deleted() -> None:
    assert decode(encode_kv_batch(EncodedRows.from_list([b"a", b"b"]), None, schema_id=1)) == [
        (b"a", None),
        (b"b", None),
    ]
    assert decode(encode_kv_batch(EncodedRows.from_list([]), None, schema_id=1)) == []


@pytest.mark.parametrize("key_length", KEY_LENGTHS)
def test_long_keys_have_longer_key_lengths(key_length: int) -> None:
    records = [(b"k", b"row"), (bytes(key_length), b"row"), (b"l", None)]
    batch = encode(records)
    assert batch == build(records)
    assert decode(batch) == records


def test_keys_and_rows_are_views_of_the_batch() -> None:
    batch = bytes(encode([(b"key", b"row"), (b"other", None)]))
    keys, rows, _ = KvBatch.parse(batch).records()
    memory = np.frombuffer(batch, np.uint8)
    assert np.shares_memory(keys.data, memory)
    assert np.shares_memory(rows.data, memory)


@pytest.mark.parametrize(
    ("position", "form", "value", "error", "message"),
    [
        (0, "<i", -1, CorruptRecordError, "announces 3 bytes, its header alone has 28"),
        (0, "<i", -(2**31), CorruptRecordError, "announces -2147483644 bytes"),
        (0, "<i", 43, CorruptRecordError, "announces 47 bytes, 48 were received"),
        (0, "<i", 45, CorruptRecordError, "announces 49 bytes, 48 were received"),
        (0, "<i", 2**31 - 1, SizeLimitError, "announces 2147483651 bytes, the limit is"),
        (4, "<b", 1, CorruptRecordError, "format version 1, this version reads only 0"),
        (4, "<b", -1, CorruptRecordError, "format version -1"),
        (24, "<i", -1, CorruptRecordError, "announces -1 records"),
        (24, "<i", 3, CorruptRecordError, "1 of 3|2 of 3|cannot hold|cut off"),
        (24, "<i", 1, CorruptRecordError, "7 bytes follow the last of 1"),
        (24, "<i", 2**31 - 1, CorruptRecordError, "announces 2147483647 KV records, its 20 bytes cannot hold"),
        (28, "<i", 0, CorruptRecordError, "record 0 of 2, at byte 0 of 20, has the length 0, at least 2"),
        (32, "<B", 0, CorruptRecordError, "record 0 of 2, at byte 28 of its batch, has no key"),
        (32, "<B", 9, CorruptRecordError, "has a key of 9 bytes, only 8 follow"),
        (45, "<B", 0x82, CorruptRecordError, "record 1 of 2, at byte 41 of its batch, has a key of"),
        (
            45,
            "3s",
            b"\x80\x80\x80",
            CorruptRecordError,
            "record 1 of 2, at byte 41 of its batch, has no readable key length",
        ),
        (
            32,
            "6s",
            b"\x80" * 6,
            CorruptRecordError,
            "record 0 of 2, at byte 28 of its batch, has no readable key length",
        ),
        (32, "5s", b"\xff\xff\xff\xff\x1f", CorruptRecordError, "has no readable key length"),
        (32, "5s", b"\xff\xff\xff\xff\x0f", CorruptRecordError, "has a key of 4294967295 bytes, only 4 follow"),
    ],
)
def test_every_lie_in_a_batch_is_named(
    position: int, form: str, value: Any, error: type[FlussError], message: str
) -> None:
    batch = bytearray(expected_bytes(vector("kv.batch.no_writer")))
    struct.pack_into(form, batch, position, value)
    with pytest.raises(error, match=message):
        KvBatch.parse(batch).records()


def test_a_batch_above_the_limit_is_refused() -> None:
    batch = encode([(b"key", b"row")])
    assert KvBatch.parse(batch, size_max=len(batch)).record_count == 1
    with pytest.raises(SizeLimitError, match=f"announces {len(batch)} bytes, the limit is {len(batch) - 1}"):
        KvBatch.parse(batch, size_max=len(batch) - 1)


def test_a_second_batch_behind_the_first_is_refused() -> None:
    batch = encode([(b"key", b"row")])
    with pytest.raises(CorruptRecordError, match="were received"):
        KvBatch.parse(batch + batch)


def test_a_header_that_is_cut_off_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="of 27 bytes is shorter than its 28-byte header"):
        KvBatch.parse(bytes(27))


def test_a_flipped_bit_in_or_behind_the_checksum_is_noticed() -> None:
    batch = bytes(encode([(b"key", b"row"), (b"other", None)]))
    one_bit_per_byte = islice(bit_flips(batch), 8 * CRC_POSITION + 4, None, 8)
    for damaged in one_bit_per_byte:
        with pytest.raises(ChecksumError, match="checksum"):
            KvBatch.parse(damaged).verify_crc()


def test_damage_is_read_or_refused_and_nothing_else() -> None:
    batch = bytes(encode([(b"key", b"row"), (bytes(200), None), (b"x", b"yz")]))
    assert count_refusals(decode, batch) > len(batch) * 8
    # Behind a checksum that was made to fit, the boundaries must hold by themselves.
    assert count_refusals(lambda data: decode(with_crc(data) if len(data) > HEADER_BYTES else data), batch) > len(batch)


def test_a_batch_that_cannot_be_described_is_refused_before_it_is_built() -> None:
    rows = EncodedRows(np.zeros(1, np.uint8), np.array([0, 0]), np.array([2**30, 2**30]))
    with pytest.raises(FlussError, match="write fewer rows") as refusal:
        encode_kv_batch(EncodedRows.from_list([b"a", b"b"]), rows, schema_id=1)
    assert refusal.value.error_code == ErrorCode.CLIENT_ERROR
