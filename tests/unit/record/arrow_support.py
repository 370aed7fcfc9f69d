"""What the tests of Arrow bodies share: batches to work on, and messages as other writers lay them out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from fluss.record.arrow_ipc import BodyCodec, RecordBatchMessage, build_metadata, parse_message
from fluss.record.compression import ArrowCompression
from fluss.schema.table_options import CompressionType

ALL_COMPRESSIONS = [ArrowCompression(type) for type in CompressionType]
COMPRESSION_IDS = [str(type) for type in CompressionType]


def nested_batch() -> pa.RecordBatch:
    """Return three rows with nulls, empty values and two levels of nesting."""
    return pa.record_batch(
        {
            "number": pa.array([1, None, 3], pa.int32()),
            "text": pa.array(["grün", None, ""], pa.string()),
            "map": pa.array(
                [[("a", [1, None])], None, [("x", None), ("y", [])]], pa.map_(pa.string(), pa.list_(pa.int64()))
            ),
            "row": pa.array(
                [{"flag": True, "bytes": b"z" * 40}, None, {"flag": None, "bytes": b""}],
                pa.struct([("flag", pa.bool_()), ("bytes", pa.binary())]),
            ),
        }
    )


@cache
def wide_batch(row_count: int) -> pa.RecordBatch:
    """Return columns that compress well, badly and not at all, some of them with nulls."""
    rng = np.random.default_rng(row_count)
    numbers = rng.integers(0, 1000, row_count)
    return pa.record_batch(
        {
            "sequence": pa.array(np.arange(row_count)),
            "noise": pa.array(rng.integers(-(2**63), 2**63 - 1, row_count)),
            "constant": pa.array(np.zeros(row_count)),
            "text": pa.array([f"text {n}" if n % 7 else None for n in numbers.tolist()]),
            "list": pa.array([[n] * (n % 3) if n % 11 else None for n in numbers.tolist()], pa.list_(pa.int16())),
        }
    )


def select(batch: pa.RecordBatch, columns: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [batch.column(i) for i in columns], schema=pa.schema([batch.schema.field(i) for i in columns])
    )


def hollow_buffers(message: memoryview) -> bytes:
    """Write a compressed message as Arrow Java does: 8 zero bytes stand for an empty buffer."""
    parsed = parse_message(message)
    body = message[parsed.body_offset :]
    parts = [
        bytes(body[offset : offset + length]) if length else bytes(8) for offset, length in parsed.buffers.tolist()
    ]
    return message_of(parsed, parts, alignment=8)


def message_of(parsed: RecordBatchMessage, parts: Sequence[bytes], *, alignment: int) -> bytes:
    """Lay buffers out with any alignment, as other writers do."""
    padded = [part + bytes(-len(part) % alignment) for part in parts]
    offsets = np.cumsum([0, *map(len, padded)])
    buffers = np.stack((offsets[:-1], [len(part) for part in parts]), axis=1)
    return build_metadata(parsed.length, parsed.nodes, buffers, parsed.codec, int(offsets[-1])) + b"".join(padded)


def pyarrow_message(batch: pa.RecordBatch, codec: BodyCodec) -> memoryview:
    """Return the message as pyarrow's own writer compresses it."""
    name = {BodyCodec.LZ4_FRAME: "lz4", BodyCodec.ZSTD: "zstd"}[codec]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=name)) as writer:
        writer.write_batch(batch)
    stream = memoryview(sink.getvalue())
    schema_end = 8 + int.from_bytes(stream[4:8], "little")
    return stream[schema_end:-8]
