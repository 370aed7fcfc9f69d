"""Log batches: checksum, column projection, and Arrow bodies in every codec, on a batch of 20 columns and 2 MB."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from benchmarks.micro.timing import best_seconds
from fluss.record.arrow_batch import ColumnProjection, decode_arrow_batch, encode_arrow_batch, project_batch
from fluss.record.compression import ArrowCompression
from fluss.record.framing import crc32c
from fluss.record.log_batch import read_batch
from fluss.schema.table_options import CompressionType

ROW_COUNT = 12_500
COLUMN_COUNT = 20
WANTED = [3, 15]
CRC_BYTES = 2 << 20


def measure() -> list[tuple[str, float, str, str]]:
    """Return (what, value, unit, target) per path."""
    batch = _batch()
    results = [_measure_crc()]
    for kind in CompressionType:
        results += _measure_projection(batch, ArrowCompression(kind))
    for kind in CompressionType:
        results += _measure_codec(batch, ArrowCompression(kind))
    return results


def _batch() -> pa.RecordBatch:
    """Ten columns of numbers, ten of short text: 2.2 MB without compression."""
    rng = np.random.default_rng(1)
    numbers = [pa.array(rng.integers(0, 1_000_000, ROW_COUNT)) for _ in range(COLUMN_COUNT // 2)]
    texts = [pa.array([f"v{n}" for n in rng.integers(0, 100_000, ROW_COUNT)]) for _ in range(COLUMN_COUNT // 2)]
    return pa.RecordBatch.from_arrays(numbers + texts, names=[f"c{i}" for i in range(COLUMN_COUNT)])


def _measure_crc() -> tuple[str, float, str, str]:
    data = np.random.default_rng(1).bytes(CRC_BYTES)
    return "checksum of 2 MB", CRC_BYTES / best_seconds(lambda: crc32c(data)) / 1e9, "GB/s", "> 5"


def _measure_projection(batch: pa.RecordBatch, compression: ArrowCompression) -> list[tuple[str, float, str, str]]:
    stored = read_batch(encode_arrow_batch(batch, 1, compression))
    projection = ColumnProjection.of(batch.schema, WANTED)
    seconds = best_seconds(lambda: b"".join(project_batch(stored, projection)))
    return [(f"projection, 2 of 20 columns of 2 MB, {compression.type}", seconds * 1000, "ms", "< 0.3")]


def _measure_codec(batch: pa.RecordBatch, compression: ArrowCompression) -> list[tuple[str, float, str, str]]:
    """Compare with pyarrow's own stream writer and reader, which compute no checksum.

    A full decode is compared with a read that validates everything, a trusted one with a read that validates nothing:
    without compression such a read only looks at metadata, so it is no goal.
    """
    stream = _write_with_pyarrow(batch, compression)
    stored = read_batch(encode_arrow_batch(batch, 1, compression))
    paths: list[tuple[str, Callable[[], object], Callable[[], object], str]] = [
        (
            "encode",
            lambda: encode_arrow_batch(batch, 1, compression),
            lambda: _write_with_pyarrow(batch, compression),
            "> 0.5",
        ),
        (
            "decode",
            lambda: decode_arrow_batch(stored, batch.schema),
            lambda: _read_with_pyarrow(stream).validate(full=True),
            "> 0.5",
        ),
        (
            "decode, trusted",
            lambda: decode_arrow_batch(stored, batch.schema, trusted=True),
            lambda: _read_with_pyarrow(stream),
            "" if compression.codec is None else "> 0.5",
        ),
    ]
    size_mb = batch.get_total_buffer_size() / 1e6
    results = []
    for name, ours, theirs, target in paths:
        seconds, seconds_pyarrow = best_seconds(ours), best_seconds(theirs)
        what = f"{name}, {compression.type}"
        results.append((what, size_mb / seconds, "MB/s", ""))
        results.append((f"{what}, against pyarrow's IPC", seconds_pyarrow / seconds, "ratio", target))
    return results


def _write_with_pyarrow(batch: pa.RecordBatch, compression: ArrowCompression) -> pa.Buffer:
    codec = {
        CompressionType.NONE: None,
        CompressionType.LZ4_FRAME: pa.Codec("lz4"),
        CompressionType.ZSTD: pa.Codec("zstd", compression.zstd_level),
    }[compression.type]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _read_with_pyarrow(stream: pa.Buffer) -> pa.RecordBatch:
    return pa.ipc.open_stream(stream).read_next_batch()
