"""Compressed bodies can be read by pyarrow and by readers that know fewer LZ4 frames, and cannot be bombs.
pyarrow reads everything written here; what other writers do is imitated; lengths lie in every way."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from fluss.errors import CorruptRecordError, ErrorCode, FlussError, SizeLimitError
from fluss.record import compression as compression_module
from fluss.record.arrow_ipc import BodyCodec, parse_message
from fluss.record.compression import (
    NO_COMPRESSION,
    ArrowCompression,
    compress_message,
    examine_buffers,
    lz4_frame,
)
from fluss.schema.table_options import LOG_ARROW_COMPRESSION_TYPE, LOG_ARROW_COMPRESSION_ZSTD_LEVEL, CompressionType
from fluss.testing.strategies import arrow_batches
from tests.unit.record.arrow_support import ALL_COMPRESSIONS, COMPRESSION_IDS, pyarrow_message, wide_batch

LZ4 = ArrowCompression(CompressionType.LZ4_FRAME)
ZSTD = ArrowCompression(CompressionType.ZSTD)


def one_column(data: bytes) -> pa.RecordBatch:
    """Return a batch whose only large buffer is ``data``."""
    return pa.record_batch({"data": pa.array([data], pa.binary())})


def data_buffer(message: pa.Buffer | bytes) -> memoryview:
    view = memoryview(message)
    parsed = parse_message(view)
    offset, length = parsed.buffers[2].tolist()
    return view[parsed.body_offset + offset :][:length]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, ArrowCompression(CompressionType.ZSTD, 3)),
        ({LOG_ARROW_COMPRESSION_TYPE.key: "NONE"}, NO_COMPRESSION),
        ({LOG_ARROW_COMPRESSION_TYPE.key: " lz4_frame "}, LZ4),
        ({LOG_ARROW_COMPRESSION_TYPE.key: "LZ4_FRAME", LOG_ARROW_COMPRESSION_ZSTD_LEVEL.key: "nonsense"}, LZ4),
        (
            {LOG_ARROW_COMPRESSION_TYPE.key: "zstd", LOG_ARROW_COMPRESSION_ZSTD_LEVEL.key: "22"},
            ArrowCompression(CompressionType.ZSTD, 22),
        ),
        ({LOG_ARROW_COMPRESSION_ZSTD_LEVEL.key: "1"}, ArrowCompression(CompressionType.ZSTD, 1)),
    ],
)
def test_compression_follows_the_table_properties(properties: dict[str, str], expected: ArrowCompression) -> None:
    assert ArrowCompression.from_properties(properties) == expected


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({LOG_ARROW_COMPRESSION_TYPE.key: "GZIP"}, "one of NONE, LZ4_FRAME, ZSTD, got 'GZIP'"),
        ({LOG_ARROW_COMPRESSION_TYPE.key: ""}, "got ''"),
        ({LOG_ARROW_COMPRESSION_ZSTD_LEVEL.key: "0"}, "between 1 and 22, got 0"),
        ({LOG_ARROW_COMPRESSION_ZSTD_LEVEL.key: "23"}, "between 1 and 22, got 23"),
        ({LOG_ARROW_COMPRESSION_ZSTD_LEVEL.key: "fast"}, "whole number, got 'fast'"),
    ],
)
def test_properties_that_mean_nothing_are_refused(properties: dict[str, str], message: str) -> None:
    with pytest.raises(FlussError, match=message) as caught:
        ArrowCompression.from_properties(properties)
    assert caught.value.error_code == ErrorCode.INVALID_CONFIG_EXCEPTION


@pytest.mark.parametrize("length", [0, 1, 100, 65_535, 65_536, 65_537, 131_072, 262_144, 262_145, 600_001])
@pytest.mark.parametrize("kind", ["text", "noise"])
def test_lz4_frames_are_made_of_independent_blocks_that_pyarrow_reads(length: int, kind: str) -> None:
    if kind == "text":
        data = (b"the quick brown fox " * (length // 20 + 1))[:length]
    else:
        data = np.random.default_rng(0).bytes(length)
    frame = b"".join(lz4_frame(memoryview(data)))
    block_bytes = 65_536 if length <= 65_536 else 262_144
    assert frame[:7].hex() == {65_536: "04224d18604082", 262_144: "04224d186050fb"}[block_bytes]
    assert frame[4] & 0x20, "bit 5 of the flags says that blocks are independent"
    assert frame[4] & 0x1D == 0, "no checksums, no content size, no dictionary"
    assert pa.Codec("lz4").decompress(frame, length, asbytes=True) == data
    blocks = []
    position = 7
    while size := struct.unpack_from("<I", frame, position)[0]:
        block = frame[position + 4 : position + 4 + (size & 0x7FFF_FFFF)]
        stored = size >> 31
        room = min(block_bytes, length - sum(map(len, blocks)))
        blocks.append(block if stored else pa.Codec("lz4_raw").decompress(block, room, asbytes=True))
        position += 4 + len(block)
    assert position + 4 == len(frame)
    assert b"".join(blocks) == data
    assert all(len(block) == block_bytes for block in blocks[:-1])


def test_the_frames_of_pyarrow_itself_are_linked_and_therefore_not_used() -> None:
    linked = pa.Codec("lz4").compress(b"x" * 100_000, asbytes=True)
    assert not linked[4] & 0x20


@given(arrow_batches(rows_max=60))
def test_pyarrow_reads_what_is_compressed_here(drawn: tuple[object, pa.RecordBatch]) -> None:
    _, batch = drawn
    for compression in ALL_COMPRESSIONS:
        message = compress_message(batch.serialize(), compression)
        assert parse_message(memoryview(message)).codec == compression.codec
        assert pa.ipc.read_record_batch(pa.py_buffer(message), batch.schema).equals(batch)


@pytest.mark.parametrize("compression", ALL_COMPRESSIONS, ids=COMPRESSION_IDS)
@pytest.mark.parametrize("row_count", [1, 100, 30_000])
def test_large_and_small_bodies_come_back(compression: ArrowCompression, row_count: int) -> None:
    batch = wide_batch(row_count)
    plain = batch.serialize()
    message = compress_message(plain, compression)
    assert pa.ipc.read_record_batch(pa.py_buffer(message), batch.schema).equals(batch)
    if row_count == 30_000 and compression != NO_COMPRESSION:
        assert len(message) < 0.7 * len(plain)


def test_a_higher_level_makes_bodies_smaller() -> None:
    plain = wide_batch(20_000).serialize()
    fast, small = (compress_message(plain, ArrowCompression(CompressionType.ZSTD, level)) for level in (1, 15))
    assert len(small) < len(fast)


@pytest.mark.parametrize("compression", [LZ4, ZSTD], ids=["LZ4", "ZSTD"])
def test_buffers_that_do_not_shrink_are_stored_as_they_are(compression: ArrowCompression) -> None:
    noise = np.random.default_rng(0).bytes(70_000)
    stored = data_buffer(compress_message(one_column(noise).serialize(), compression))
    assert stored[:8] == b"\xff" * 8
    assert stored[8:] == noise
    framed = data_buffer(compress_message(one_column(b"a" * 70_000).serialize(), compression))
    assert struct.unpack("<q", framed[:8]) == (70_000,)
    assert len(framed) < 1000
    assert not data_buffer(compress_message(one_column(b"").serialize(), compression)), "an empty buffer stays empty"


def test_threads_and_one_thread_make_the_same_bytes() -> None:
    plain = wide_batch(30_000).serialize()
    threads = pa.cpu_count()
    try:
        pa.set_cpu_count(4)
        threaded = [compress_message(plain, compression) for compression in (LZ4, ZSTD)]
        pa.set_cpu_count(1)
        assert [compress_message(plain, compression) for compression in (LZ4, ZSTD)] == threaded
    finally:
        pa.set_cpu_count(threads)


def test_threads_that_compress_bodies_of_their_own_wake_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = wide_batch(30_000).serialize()
    expected = compress_message(plain, ZSTD)
    pools: list[ThreadPoolExecutor] = []
    thread_pool, threads = compression_module._thread_pool, pa.cpu_count()

    def noted_pool() -> ThreadPoolExecutor:
        pools.append(thread_pool())
        return pools[-1]

    monkeypatch.setattr(compression_module, "_thread_pool", noted_pool)
    try:
        pa.set_cpu_count(2)
        compress_message(plain, ZSTD)
        assert len(pools) == 1
        # As many as there are processors are at it already.
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda _: compress_message(plain, ZSTD), range(40))) == [expected] * 40
        assert not compression_module._busy
        monkeypatch.setattr(compression_module, "_busy", {object()})
        pools.clear()
        assert compress_message(plain, ZSTD) == expected
        assert not pools
    finally:
        pa.set_cpu_count(threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_compresses_with_threads_of_its_own() -> None:
    script = """
import os, signal
import numpy as np, pyarrow as pa
from fluss.record.compression import ArrowCompression, compress_message
pa.set_cpu_count(2)
plain = pa.record_batch({"x": np.arange(200_000)}).serialize()
expected = compress_message(plain, ArrowCompression())
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(0 if compress_message(plain, ArrowCompression()) == expected else 1)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=600, check=False).returncode == 0


@pytest.mark.parametrize("codec", BodyCodec)
def test_lengths_after_decompression_are_known_before_it(codec: BodyCodec) -> None:
    batch = wide_batch(5000)
    plain = parse_message(memoryview(batch.serialize()))
    for message in (
        pyarrow_message(batch, codec),
        memoryview(compress_message(batch.serialize(), LZ4 if codec == BodyCodec.LZ4_FRAME else ZSTD)),
    ):
        contents = examine_buffers(message, parse_message(message), bytes_max=2**30)
        assert contents.lengths.tolist() == plain.buffers[:, 1].tolist()
        assert contents.framed.any()


@pytest.mark.parametrize("compression", [LZ4, ZSTD], ids=["LZ4", "ZSTD"])
def test_the_most_compressible_data_is_not_mistaken_for_a_bomb(compression: ArrowCompression) -> None:
    message = memoryview(compress_message(one_column(bytes(2**24)).serialize(), compression))
    assert examine_buffers(message, parse_message(message), bytes_max=2**25).lengths[2] == 2**24


@pytest.mark.parametrize("compression", [LZ4, ZSTD], ids=["LZ4", "ZSTD"])
def test_bombs_are_refused_before_they_go_off(compression: ArrowCompression) -> None:
    message = bytearray(compress_message(one_column(bytes(2**20)).serialize(), compression))
    parsed = parse_message(memoryview(message))
    with pytest.raises(SizeLimitError, match="at most 1048575 are allowed"):
        examine_buffers(memoryview(message), parsed, bytes_max=2**20 - 1)
    prefix = parsed.body_offset + int(parsed.buffers[2, 0])
    for claim in (2**40, 2**63 - 1, -2, -(2**63)):
        struct.pack_into("<q", message, prefix, claim)
        with pytest.raises(CorruptRecordError, match=f"Buffer 2 .* claims to hold {claim} bytes"):
            examine_buffers(memoryview(message), parsed, bytes_max=2**62)


def test_a_compressed_buffer_without_room_for_its_length_is_refused() -> None:
    message = memoryview(compress_message(one_column(bytes(1000)).serialize(), ZSTD))
    parsed = parse_message(message)
    parsed_lying = parsed.buffers.copy()
    parsed_lying[2, 1] = 7
    lying = type(parsed)(1, parsed.nodes, parsed_lying, parsed.codec, parsed.body_offset, parsed.body_length)
    with pytest.raises(CorruptRecordError, match=r"Buffer 2 .* has 7 bytes"):
        examine_buffers(message, lying, bytes_max=2**20)
