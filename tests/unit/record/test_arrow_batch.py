"""Arrow record batches survive the trip through log batches, and a log batch that lies never reaches Arrow's kernels.
Random nested batches in every codec, layouts of other writers, then lies one by one and every bit flip."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from fluss.errors import CorruptRecordError, FlussError, SizeLimitError
from fluss.record.arrow_batch import decode_arrow_batch, encode_arrow_batch
from fluss.record.arrow_ipc import BodyCodec, parse_message
from fluss.record.batch_columns import BatchColumns
from fluss.record.compression import NO_COMPRESSION, ArrowCompression
from fluss.record.log_batch import LogBatch, build_batch, read_batch, verify_crc
from fluss.schema.table_options import CompressionType
from fluss.testing.strategies import arrow_batches
from tests.damage import count_refusals
from tests.unit.record.arrow_support import (
    ALL_COMPRESSIONS,
    COMPRESSION_IDS,
    hollow_buffers,
    message_of,
    nested_batch,
    pyarrow_message,
    select,
    wide_batch,
)

ZSTD = ArrowCompression(CompressionType.ZSTD)

# Enough bytes that a trusted batch is checked quickly.
LARGE_ROW_COUNT = 60_000

Decode = Callable[..., pa.RecordBatch]


def decode_columns(batch: LogBatch, schema: pa.Schema, **options: Any) -> pa.RecordBatch:
    """Decode one column alone, then the others."""
    columns = BatchColumns(batch, schema, **options)
    last = len(schema) - 1
    arrays = [columns.column(last), *columns.columns(range(last))]
    return pa.RecordBatch.from_arrays([*arrays[1:], arrays[0]], schema=schema)


DECODERS = pytest.mark.parametrize("decode", [decode_arrow_batch, decode_columns], ids=lambda decode: decode.__name__)


def log_batch_of(message: bytes | memoryview, record_count: int) -> bytearray:
    return build_batch([message], schema_id=1, record_count=record_count, append_only=True)


@given(arrow_batches())
def test_any_batch_comes_back(drawn: tuple[object, pa.RecordBatch]) -> None:
    _, batch = drawn
    change_types = (np.arange(batch.num_rows) % 5).astype(np.uint8)
    for compression, changes in product(ALL_COMPRESSIONS, (None, change_types)):
        encoded = encode_arrow_batch(batch, 7, compression, writer_id=5, batch_sequence=6, change_types=changes)
        log_batch = read_batch(encoded)
        verify_crc(log_batch)
        facts = log_batch.header
        assert (facts.magic, facts.schema_id, facts.writer_id, facts.batch_sequence) == (0, 7, 5, 6)
        assert facts.record_count == batch.num_rows
        assert facts.is_append_only == (changes is None)
        if changes is not None:
            assert log_batch.change_types.tolist() == change_types.tolist()
        for trusted in (False, True):
            assert decode_arrow_batch(log_batch, batch.schema, trusted=trusted).equals(batch)
            if batch.num_rows:
                assert decode_columns(log_batch, batch.schema, trusted=trusted, trusted_bytes_min=0).equals(batch)
        if batch.num_rows:
            oracle = pa.ipc.read_record_batch(pa.py_buffer(bytes(log_batch.arrow_message)), batch.schema)
            assert oracle.equals(batch)


@pytest.mark.parametrize("compression", ALL_COMPRESSIONS, ids=COMPRESSION_IDS)
def test_a_slice_is_encoded_without_the_rows_around_it(compression: ArrowCompression) -> None:
    batch = wide_batch(50_000)
    part = batch.slice(12_345, 67)
    encoded = encode_arrow_batch(part, 1, compression)
    assert len(encoded) < 6000
    assert decode_arrow_batch(read_batch(encoded), batch.schema).equals(part)


def test_a_batch_without_rows_is_a_header() -> None:
    empty = nested_batch().slice(0, 0)
    for changes in (None, np.empty(0, np.uint8)):
        encoded = encode_arrow_batch(empty, 1, ZSTD, writer_id=3, batch_sequence=4, change_types=changes)
        assert len(encoded) == 48
        assert decode_arrow_batch(read_batch(encoded), empty.schema).equals(empty)


def test_uncompressed_columns_are_views_of_the_batch() -> None:
    batch = wide_batch(1000)
    encoded = encode_arrow_batch(batch, 1, NO_COMPRESSION)
    memory = np.frombuffer(encoded, np.uint8)
    decoded = decode_arrow_batch(read_batch(encoded), batch.schema)
    buffers = [buffer for column in decoded.columns for buffer in column.buffers() if buffer is not None]
    assert len(buffers) >= 6
    assert all(np.shares_memory(np.frombuffer(buffer, np.uint8), memory) for buffer in buffers)


@DECODERS
@pytest.mark.parametrize("compression", ALL_COMPRESSIONS, ids=COMPRESSION_IDS)
@pytest.mark.parametrize("shift", range(9))
def test_columns_are_aligned_wherever_the_batch_lies(compression: ArrowCompression, shift: int, decode: Decode) -> None:
    batch = wide_batch(40)
    data = bytes(shift) + encode_arrow_batch(batch, 1, compression, change_types=np.ones(40, np.uint8))
    decoded = decode(read_batch(data, shift), batch.schema)
    assert decoded.equals(batch)
    buffers = [buffer for column in decoded.columns for buffer in column.buffers() if buffer is not None]
    assert all(buffer.address % 8 == 0 for buffer in buffers)


@DECODERS
@pytest.mark.parametrize("codec", BodyCodec)
@pytest.mark.parametrize("row_count", [5, 5000])
def test_empty_buffers_behind_a_length_prefix_are_understood(codec: BodyCodec, row_count: int, decode: Decode) -> None:
    batch = pa.record_batch(
        {
            "number": pa.array(range(row_count), pa.int64()),
            "empty": pa.array([""] * row_count),
            "null": pa.array([None] * row_count, pa.binary()),
            "lists": pa.array([[]] * row_count, pa.list_(pa.string())),
        }
    )
    message = hollow_buffers(pyarrow_message(batch, codec))
    for trusted in (False, True):
        decoded = decode(read_batch(log_batch_of(message, row_count)), batch.schema, trusted=trusted)
        assert decoded.equals(batch)


@DECODERS
@pytest.mark.parametrize("codec", BodyCodec)
def test_bodies_with_frames_of_other_writers_are_decoded(codec: BodyCodec, decode: Decode) -> None:
    batch = wide_batch(30_000)
    encoded = log_batch_of(pyarrow_message(batch, codec), 30_000)
    assert decode(read_batch(encoded), batch.schema).equals(batch)


@DECODERS
def test_buffers_aligned_to_64_bytes_are_decoded(decode: Decode) -> None:
    batch = nested_batch()
    message = memoryview(batch.serialize())
    parsed = parse_message(message)
    body = message[parsed.body_offset :]
    parts = [bytes(body[offset : offset + length]) for offset, length in parsed.buffers.tolist()]
    encoded = log_batch_of(message_of(parsed, parts, alignment=64), 3)
    assert decode(read_batch(encoded), batch.schema).equals(batch)


def test_columns_that_log_batches_cannot_hold_are_refused_when_encoding() -> None:
    batch = pa.record_batch({"x": pa.array(["a"], pa.large_string())})
    with pytest.raises(FlussError, match="'x' contains the Arrow type large_string"):
        encode_arrow_batch(batch, 1, ZSTD)


@DECODERS
def test_a_batch_of_another_schema_is_refused(decode: Decode) -> None:
    batch = nested_batch()
    log_batch = read_batch(encode_arrow_batch(batch, 1, ZSTD))
    with pytest.raises(CorruptRecordError, match="nodes"):
        decode(log_batch, select(batch, [0, 1]).schema)
    with pytest.raises(CorruptRecordError, match="damaged"):
        decode(log_batch, pa.schema([batch.schema.field(i) for i in (1, 0, 2, 3)]))


@DECODERS
def test_the_message_must_have_as_many_records_as_the_header_says(decode: Decode) -> None:
    message = memoryview(nested_batch().serialize())
    with pytest.raises(CorruptRecordError, match="has 2 records, its Arrow message has 3"):
        decode(read_batch(log_batch_of(message, 2)), nested_batch().schema)


@DECODERS
def test_decompression_stops_at_the_limit(decode: Decode) -> None:
    batch = pa.record_batch({"zeros": pa.array(np.zeros(100_000))})
    log_batch = read_batch(encode_arrow_batch(batch, 1, ZSTD))
    assert decode(log_batch, batch.schema, bytes_max=800_000).equals(batch)
    with pytest.raises(SizeLimitError, match="800000 bytes, at most 799999"):
        decode(log_batch, batch.schema, bytes_max=799_999)


@DECODERS
@pytest.mark.parametrize("codec", BodyCodec)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_frame_that_is_shorter_or_longer_than_it_claims_is_refused(
    codec: BodyCodec, change: int, decode: Decode
) -> None:
    batch = pa.record_batch({"x": pa.array(np.arange(1000))})
    encoded = bytearray(log_batch_of(pyarrow_message(batch, codec), 1000))
    message = read_batch(encoded).arrow_message
    parsed = parse_message(message)
    position = 48 + parsed.body_offset + int(parsed.buffers[1, 0])
    struct.pack_into("<q", encoded, position, 8000 + change)
    with pytest.raises(CorruptRecordError, match="damaged"):
        decode(read_batch(encoded), batch.schema)


Lie = Callable[[memoryview, np.ndarray, np.ndarray], None]


@cache
def large_batch() -> tuple[bytes, pa.Schema]:
    """Encode the columns "text" and "list"."""
    batch = select(wide_batch(LARGE_ROW_COUNT), [3, 4])
    return bytes(encode_arrow_batch(batch, 1, NO_COMPRESSION)), batch.schema


def large_lying_batch(lie: Lie) -> tuple[bytearray, pa.Schema]:
    """Let ``lie`` change the body, the nodes or the buffers of a large batch in place."""
    valid, schema = large_batch()
    encoded = bytearray(valid)
    message = read_batch(encoded).arrow_message
    parsed = parse_message(message)
    lie(message[parsed.body_offset :], parsed.nodes, parsed.buffers)
    return encoded, schema


def lie_text_offset_goes_back(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    struct.pack_into("<i", body, int(buffers[1, 0]) + 4 * 1000, 0)


def lie_text_offset_is_negative(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    struct.pack_into("<i", body, int(buffers[1, 0]) + 4 * 1000, -(2**31))


def lie_text_offset_is_huge(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    struct.pack_into("<i", body, int(buffers[1, 0]) + 4 * 1000, 2**31 - 1)


def lie_last_text_offset(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    struct.pack_into("<i", body, int(buffers[1, 0]) + 4 * LARGE_ROW_COUNT, 2**31 - 1)


def lie_list_offset_goes_back(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    struct.pack_into("<i", body, int(buffers[4, 0]) + 4 * 59_000, 1)


def lie_list_child_is_short(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    nodes[2, 0] -= 1


def lie_list_child_is_huge(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    nodes[2, 0] = 2**62


def lie_offsets_are_cut(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    buffers[1, 1] -= 4


def lie_data_is_cut(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    buffers[2, 1] -= 1


def lie_validity_is_cut(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    buffers[0, 1] -= 1


def lie_validity_is_missing(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    buffers[0, 1] = 0


def lie_more_nulls(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    nodes[0, 1] += 1


def lie_fewer_nulls(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    nodes[0, 1] -= 1


def lie_all_nulls(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
    nodes[0, 1] = LARGE_ROW_COUNT


LIES = [lie for name, lie in sorted(globals().items()) if name.startswith("lie_")]


@DECODERS
@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_lie_that_would_touch_foreign_memory_is_refused_even_when_trusted(
    lie: Lie, trusted: bool, decode: Decode
) -> None:
    encoded, schema = large_lying_batch(lie)
    with pytest.raises(CorruptRecordError):
        decode(read_batch(encoded), schema, trusted=trusted)


@DECODERS
def test_nulls_that_are_not_counted_are_read_as_values(decode: Decode) -> None:
    def lie(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
        nodes[0, 1] = 0

    encoded, schema = large_lying_batch(lie)
    for trusted in (False, True):
        assert decode(read_batch(encoded), schema, trusted=trusted).column(0).null_count == 0


@DECODERS
@pytest.mark.parametrize("compression", ALL_COMPRESSIONS, ids=COMPRESSION_IDS)
@pytest.mark.parametrize("entries", [[None, {"key": "a"}], [{"key": None}, {"key": "a"}]], ids=["entry", "key"])
def test_nulls_among_the_entries_of_a_map_are_refused(
    entries: list[object], compression: ArrowCompression, decode: Decode
) -> None:
    entry_type = pa.struct({"key": pa.string(), "value": pa.int32()})
    batch = pa.record_batch({"map": pa.array([entries] * 3, pa.list_(entry_type))})
    encoded = read_batch(encode_arrow_batch(batch, 1, compression))
    with pytest.raises(CorruptRecordError, match="no nulls"):
        decode(encoded, pa.schema({"map": pa.map_(pa.string(), pa.int32())}))


@pytest.mark.parametrize("row_count", [1, 40, 300, 70_000])
def test_columns_that_are_decompressed_together_are_aligned(row_count: int) -> None:
    numbers = np.arange(row_count) % 100
    columns = {"truth": numbers % 3 == 0, "byte": numbers.astype(np.int8), "long": numbers, "float": numbers / 7}
    batch = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
    encoded = read_batch(encode_arrow_batch(batch, 1, replace(ZSTD, buffer_bytes_min=1)))
    decoded = BatchColumns(encoded, batch.schema).columns(range(4))
    assert decoded == batch.columns
    assert all(array.buffers()[1].address % 8 == 0 for array in decoded)


@DECODERS
def test_only_trust_skips_the_check_of_text(decode: Decode) -> None:
    def lie(body: memoryview, nodes: np.ndarray, buffers: np.ndarray) -> None:
        body[int(buffers[2, 0]) + 3] = 0xFF

    encoded, schema = large_lying_batch(lie)
    with pytest.raises(CorruptRecordError, match="UTF8"):
        decode(read_batch(encoded), schema)
    assert decode(read_batch(encoded), schema, trusted=True).num_rows == LARGE_ROW_COUNT


@pytest.mark.parametrize("row_count", [1, 7, 8, 9, 64, 65])
def test_quick_checks_accept_nulls_at_every_place(row_count: int) -> None:
    for step in (1, 2, 3):
        values = [None if i % step == 0 else i for i in range(row_count)]
        batch = pa.record_batch(
            {"x": pa.array(values, pa.int64()), "y": pa.array([v and str(v) for v in values], pa.string())}
        )
        log_batch = read_batch(encode_arrow_batch(batch, 1, NO_COMPRESSION))
        assert decode_arrow_batch(log_batch, batch.schema, trusted=True, trusted_bytes_min=0).equals(batch)


@DECODERS
@pytest.mark.parametrize("compression", ALL_COMPRESSIONS, ids=COMPRESSION_IDS)
def test_any_damage_is_a_refusal_or_a_batch_that_can_be_used(compression: ArrowCompression, decode: Decode) -> None:
    compression = replace(compression, buffer_bytes_min=8)
    batch = select(nested_batch(), [1, 2])
    valid = bytes(encode_arrow_batch(batch, 1, compression, change_types=np.ones(3, np.uint8)))

    def decode_and_use(data: bytes) -> None:
        damaged = read_batch(data)
        trusted = decode(damaged, batch.schema, bytes_max=2**20, trusted=True, trusted_bytes_min=0)
        for column in trusted.columns:
            column.drop_null()
            column.take(pa.array([2, 0, 1]))
            pa.concat_arrays([column, column])
        decode(damaged, batch.schema, bytes_max=2**20).to_pylist()

    assert count_refusals(decode_and_use, valid) > 5 * len(valid)
