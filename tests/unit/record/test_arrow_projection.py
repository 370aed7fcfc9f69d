"""A projected batch is the one that decoding, selecting columns and encoding would give, without decoding anything.
Random nested batches in every codec, foreign layouts, and every bit flip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.arrow_batch import ColumnProjection, decode_arrow_batch, encode_arrow_batch, project_batch
from fluss.record.arrow_ipc import BodyCodec, build_metadata, parse_message
from fluss.record.compression import NO_COMPRESSION, ArrowCompression
from fluss.record.log_batch import MAGIC_V0, MAGIC_V1, MAGIC_V2, LogBatch, build_batch, read_batch, verify_crc
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

TWO_COLUMNS = pa.schema([("a", pa.int32()), ("b", pa.string())])


def project(batch: LogBatch, schema: pa.Schema, wanted: list[int]) -> LogBatch:
    """Project, join the parts, and check what every projected batch must fulfil."""
    projected = read_batch(b"".join(project_batch(batch, ColumnProjection.of(schema, wanted))))
    verify_crc(projected)
    kept = ("magic", "base_offset", "commit_timestamp", "leader_epoch", "schema_id", "attributes", "last_offset_delta")
    kept += ("writer_id", "batch_sequence", "record_count")
    assert all(getattr(projected.header, name) == getattr(batch.header, name) for name in kept)
    assert projected.header.statistics_length == 0
    assert projected.change_type_bytes == batch.change_type_bytes
    return projected


@given(arrow_batches(rows_max=30), st.data())
def test_projecting_is_decoding_and_selecting(drawn: tuple[object, pa.RecordBatch], data: st.DataObject) -> None:
    _, batch = drawn
    columns = range(batch.num_columns)
    wanted = sorted(data.draw(st.sets(st.sampled_from(columns), min_size=1)))
    changes = np.full(batch.num_rows, 3, np.uint8) if data.draw(st.booleans()) else None
    expected = select(batch, wanted)
    for compression in ALL_COMPRESSIONS:
        stored = read_batch(encode_arrow_batch(batch, 9, compression, change_types=changes, base_offset=4))
        projected = project(stored, batch.schema, wanted)
        assert decode_arrow_batch(projected, expected.schema).equals(expected)
        if batch.num_rows:
            message = pa.py_buffer(bytes(projected.arrow_message))
            assert pa.ipc.read_record_batch(message, expected.schema).equals(expected)
            assert parse_message(projected.arrow_message).codec == parse_message(stored.arrow_message).codec


@pytest.mark.parametrize("compression", ALL_COMPRESSIONS, ids=COMPRESSION_IDS)
def test_large_batches_are_projected(compression: ArrowCompression) -> None:
    batch = wide_batch(40_000)
    stored = read_batch(encode_arrow_batch(batch, 1, compression))
    for wanted in ([0], [1, 2, 3], [0, 2, 4], [0, 1, 2, 3, 4]):
        expected = select(batch, wanted)
        assert decode_arrow_batch(project(stored, batch.schema, wanted), expected.schema).equals(expected)


@pytest.mark.parametrize("magic", [MAGIC_V0, MAGIC_V1, MAGIC_V2])
@pytest.mark.parametrize("row_count", [0, 3])
def test_readers_that_know_the_oldest_header_only_are_served(magic: int, row_count: int) -> None:
    batch = nested_batch().slice(0, row_count)
    stored = read_batch(
        build_batch(
            [batch.serialize()] if row_count else [],
            schema_id=9,
            record_count=row_count,
            append_only=True,
            base_offset=7,
            magic=magic,
            statistics=b"statistics" if row_count and magic > MAGIC_V0 else b"",
        )
    )
    projection = ColumnProjection.of(batch.schema, [1, 3])
    projected = read_batch(b"".join(project_batch(stored, projection, as_v0=True)))
    verify_crc(projected)
    assert (projected.header.magic, projected.header.base_offset) == (MAGIC_V0, 7)
    expected = select(batch, [1, 3])
    assert decode_arrow_batch(projected, expected.schema).equals(expected)


def test_neighbouring_columns_move_as_one_run_that_is_not_copied() -> None:
    batch = wide_batch(100)
    stored = read_batch(encode_arrow_batch(batch, 1, NO_COMPRESSION))
    parts = project_batch(stored, ColumnProjection.of(batch.schema, [0, 2, 3, 4]))
    header, change_types, metadata, *runs = parts
    assert (len(header), len(change_types), len(metadata) % 8) == (48, 0, 0)
    assert len(runs) == 2
    memory = np.frombuffer(stored.data, np.uint8)
    assert all(np.shares_memory(np.frombuffer(run, np.uint8), memory) for run in runs)


def test_statistics_are_dropped_and_offsets_kept() -> None:
    batch = nested_batch()
    for magic in (1, 2):
        stored = build_batch(
            [batch.serialize()],
            schema_id=1,
            record_count=3,
            append_only=False,
            change_types=np.array([1, 2, 3], np.uint8),
            magic=magic,
            statistics=b"statistics",
            base_offset=100,
            commit_timestamp=200,
            writer_id=3,
            batch_sequence=4,
        )
        projected = project(read_batch(stored), batch.schema, [1, 3])
        assert projected.change_types.tolist() == [1, 2, 3]
        assert decode_arrow_batch(projected, select(batch, [1, 3]).schema).equals(select(batch, [1, 3]))


def test_a_batch_without_records_passes_unchanged() -> None:
    stored = read_batch(build_batch(schema_id=1, record_count=0, append_only=False, writer_id=1, batch_sequence=2))
    (part,) = project_batch(stored, ColumnProjection.of(TWO_COLUMNS, [1]))
    assert part is stored.data


@pytest.mark.parametrize("alignment", [8, 64])
@pytest.mark.parametrize("codec", [None, *BodyCodec])
def test_buffers_keep_the_padding_and_the_codec_of_their_writer(codec: BodyCodec | None, alignment: int) -> None:
    batch = nested_batch()
    message = memoryview(batch.serialize()) if codec is None else memoryview(pyarrow_message(batch, codec))
    if codec is not None:
        message = memoryview(hollow_buffers(message))
    parsed = parse_message(message)
    body = message[parsed.body_offset :]
    parts = [bytes(body[offset : offset + length]) for offset, length in parsed.buffers.tolist()]
    aligned = message_of(parsed, parts, alignment=alignment)
    stored = read_batch(build_batch([aligned], schema_id=1, record_count=3, append_only=True))
    for wanted in ([0], [1, 2], [0, 3], [3]):
        projected = project(stored, batch.schema, wanted)
        message_out = parse_message(projected.arrow_message)
        assert message_out.codec == codec
        assert (message_out.buffers[:, 0] % alignment == 0).all()
        assert decode_arrow_batch(projected, select(batch, wanted).schema).equals(select(batch, wanted))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([], "no column is selected"),
        ([1, 0], "ascending and distinct"),
        ([0, 0], "ascending and distinct"),
        ([-1], "positions go from 0 to 1"),
        ([-1, 0], "positions go from 0 to 1"),
        ([2], "has 2 columns, positions go from 0 to 1"),
        ([0, 2**70], "has 2 columns"),
    ],
)
def test_positions_that_make_no_projection_are_refused(wanted: list[int], message: str) -> None:
    with pytest.raises(FlussError, match=message) as caught:
        ColumnProjection.of(TWO_COLUMNS, wanted)
    assert caught.value.error_code == ErrorCode.INVALID_COLUMN_PROJECTION


def test_a_batch_of_another_schema_is_refused() -> None:
    stored = read_batch(encode_arrow_batch(nested_batch(), 1, NO_COMPRESSION))
    with pytest.raises(CorruptRecordError, match="nodes"):
        project_batch(stored, ColumnProjection.of(TWO_COLUMNS, [0]))


@pytest.mark.parametrize("offsets", [[0, 8, 0], [8, 0, 16], [0, 0, 8]])
def test_buffers_that_overlap_or_go_back_are_refused(offsets: list[int]) -> None:
    buffers = np.stack((offsets, [8, 8, 8]), axis=1)
    message = build_metadata(1, np.array([[1, 0]]), buffers, None, 24) + bytes(24)
    stored = read_batch(build_batch([message], schema_id=1, record_count=1, append_only=True))
    with pytest.raises(CorruptRecordError, match="overlap"):
        project_batch(stored, ColumnProjection.of(pa.schema([("x", pa.string())]), [0]))


@pytest.mark.parametrize("compression", ALL_COMPRESSIONS, ids=COMPRESSION_IDS)
def test_any_damage_is_a_refusal_or_a_batch(compression: ArrowCompression) -> None:
    compression = replace(compression, buffer_bytes_min=30)
    batch = select(nested_batch(), [0, 1, 3])
    valid = bytes(encode_arrow_batch(batch, 1, compression, change_types=np.ones(3, np.uint8)))
    projection = ColumnProjection.of(batch.schema, [0, 2])
    schema = select(batch, [0, 2]).schema

    def project_and_decode(data: bytes) -> None:
        projected = read_batch(b"".join(project_batch(read_batch(data), projection)))
        verify_crc(projected)
        decode_arrow_batch(projected, schema, bytes_max=2**20)

    assert count_refusals(project_and_decode, valid) > 4 * len(valid)
