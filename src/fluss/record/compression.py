"""Compression of Arrow bodies, buffer by buffer.

A compressed buffer is an int64 length, then that many bytes as one frame. Two lengths are special: -1 says that the
bytes follow as they are, 0 that there are none (some writers spend 8 bytes on this, we leave the buffer empty).

LZ4 frames made here consist of independent blocks, because some readers know no others. The usual encoders link the
blocks of everything over 64 KiB, so the frame is put together here (little-endian):

    04 22 4D 18   magic number
    60            version 01, blocks are independent, no checksums, no content size
    40 or 50      blocks of at most 64 or 256 KiB
    82 or fb      checksum of the two bytes before
    per block     uint32 size, bit 31 set when stored as it is; then the raw LZ4 data
    00 00 00 00   end
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import BytesLike, Int64Array
from fluss.errors import CorruptRecordError, ErrorCode, FlussError, SizeLimitError
from fluss.record.arrow_ipc import BUFFER_ALIGNMENT_BYTES, BodyCodec, RecordBatchMessage, build_metadata, parse_message
from fluss.schema.table_options import (
    LOG_ARROW_COMPRESSION_TYPE,
    LOG_ARROW_COMPRESSION_ZSTD_LEVEL,
    ZSTD_LEVEL_MAX,
    ZSTD_LEVEL_MIN,
    CompressionType,
)

_TYPE_KEY = LOG_ARROW_COMPRESSION_TYPE.key
_LEVEL_KEY = LOG_ARROW_COMPRESSION_ZSTD_LEVEL.key

LENGTH_PREFIX = struct.Struct("<q")
STORED_AS_IS = -1
STORED_AS_IS_PREFIX = LENGTH_PREFIX.pack(STORED_AS_IS)

# Block size and head of the frame. Fewer blocks compress faster and better, but readers set aside a whole block.
_LZ4_SMALL = (64 * 1024, bytes.fromhex("04224d18604082"))
_LZ4_LARGE = (256 * 1024, bytes.fromhex("04224d186050fb"))
_LZ4_FRAME_END = bytes(4)
_LZ4_STORED_FLAG = 0x8000_0000
_UINT32 = struct.Struct("<I")

# Bodies below this are compressed faster by one thread.
_THREADED_BYTES_MIN = 256 * 1024

# More bytes than this cannot come out of one byte of a frame: an LZ4 length byte adds 255, and a ZSTD block of
# 128 KiB takes at least 4 bytes. Lengths that claim more are refused before memory is set aside for them.
EXPANSION_MAX = {BodyCodec.LZ4_FRAME: 255, BodyCodec.ZSTD: 32 * 1024}


@dataclass(frozen=True, slots=True)
class ArrowCompression:
    """How the Arrow bodies of one table are compressed; all its writers do the same."""

    type: CompressionType = CompressionType.ZSTD
    zstd_level: int = LOG_ARROW_COMPRESSION_ZSTD_LEVEL.default
    # Smaller buffers are stored as they are: what they could save is not worth setting up an encoder and a decoder.
    buffer_bytes_min: int = 256

    def __post_init__(self) -> None:
        if not ZSTD_LEVEL_MIN <= self.zstd_level <= ZSTD_LEVEL_MAX:
            raise FlussError(
                f"{_LEVEL_KEY} must be between {ZSTD_LEVEL_MIN} and {ZSTD_LEVEL_MAX}, got {self.zstd_level}",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ArrowCompression:
        """Read the properties of a table. Case does not matter; the level is read for ZSTD only."""
        type_text = properties.get(_TYPE_KEY, LOG_ARROW_COMPRESSION_TYPE.default)
        try:
            compression_type = CompressionType(type_text.strip().upper())
        except ValueError:
            raise FlussError(
                f"{_TYPE_KEY} must be one of {', '.join(CompressionType)}, got {type_text!r}",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            ) from None
        if compression_type != CompressionType.ZSTD:
            return cls(compression_type)
        level_text = properties.get(_LEVEL_KEY, str(LOG_ARROW_COMPRESSION_ZSTD_LEVEL.default))
        try:
            return cls(compression_type, int(level_text))
        except ValueError:
            raise FlussError(
                f"{_LEVEL_KEY} must be a whole number, got {level_text!r}", ErrorCode.INVALID_CONFIG_EXCEPTION
            ) from None

    @property
    def codec(self) -> BodyCodec | None:
        return None if self.type == CompressionType.NONE else BodyCodec[self.type]


NO_COMPRESSION = ArrowCompression(CompressionType.NONE)


def compress_message(message: pa.Buffer, compression: ArrowCompression) -> pa.Buffer | bytes:
    """Return the same message with compressed buffers; ``message`` itself must not be compressed.

    Large bodies are compressed by several threads, all of them together by as many as ``pyarrow.cpu_count()`` allows.
    """
    codec = compression.codec
    if codec is None:
        return message
    view = memoryview(message)
    parsed = parse_message(view)
    body = view[parsed.body_offset :]
    buffers = [body[offset : offset + length] for offset, length in parsed.buffers.tolist()]
    compressed = _compress_buffers(buffers, compression, with_threads=parsed.body_length >= _THREADED_BYTES_MIN)

    parts: list[BytesLike] = [b""]  # Where the metadata will be.
    descriptors: list[tuple[int, int]] = []
    offset = 0
    for buffer_parts in compressed:
        length = sum(map(len, buffer_parts))
        padding = -length % BUFFER_ALIGNMENT_BYTES
        descriptors.append((offset, length))
        offset += length + padding
        parts += (*buffer_parts, bytes(padding))
    parts[0] = build_metadata(parsed.length, parsed.nodes, np.array(descriptors, np.int64), codec, offset)
    return b"".join(parts)


class BufferContents(NamedTuple):
    """What the buffers of a body claim to hold, as far as that is possible."""

    lengths: Int64Array  # bytes without compression
    framed: npt.NDArray[np.bool_]  # whether these bytes are in a compressed frame


def examine_buffers(message: memoryview, parsed: RecordBatchMessage, bytes_max: int) -> BufferContents:
    """Read the length prefixes of all buffers, before any is decompressed.

    A frame cannot hold more than its format can express in its size, and all frames together must not hold more than
    ``bytes_max`` bytes.
    """
    if parsed.codec is None:
        return BufferContents(parsed.buffers[:, 1], np.zeros(len(parsed.buffers), np.bool_))
    contents = _examine_prefixes(message, parsed, EXPANSION_MAX[parsed.codec])
    total = sum(contents.lengths[contents.framed].tolist())  # Not the sum of an int64 array, which could wrap.
    if total > bytes_max:
        raise SizeLimitError(f"An Arrow body decompresses to {total} bytes, at most {bytes_max} are allowed")
    return contents


def _examine_prefixes(message: memoryview, parsed: RecordBatchMessage, expansion_max: int) -> BufferContents:
    offsets, sizes = parsed.buffers[:, 0], parsed.buffers[:, 1]
    too_short = (sizes > 0) & (sizes < LENGTH_PREFIX.size)
    if too_short.any():
        index = int(np.argmax(too_short))
        raise CorruptRecordError(
            f"Buffer {index} of a compressed Arrow body has {sizes[index]} bytes, its length prefix alone has 8"
        )
    present = sizes > 0
    words: Int64Array = np.frombuffer(message, "<i8", parsed.body_length // 8, parsed.body_offset)
    declared: Int64Array = np.zeros(len(sizes), np.int64)
    declared[present] = words[offsets[present] // 8]
    payload_sizes = np.where(present, sizes - LENGTH_PREFIX.size, 0)
    lengths = np.where(declared == STORED_AS_IS, payload_sizes, declared)
    impossible = (lengths < 0) | (lengths > payload_sizes * expansion_max)
    if impossible.any():
        index = int(np.argmax(impossible))
        raise CorruptRecordError(
            f"Buffer {index} of a compressed Arrow body claims to hold {lengths[index]} bytes in {payload_sizes[index]}"
        )
    return BufferContents(lengths, declared > 0)


def _compress_buffers(
    buffers: Sequence[memoryview], compression: ArrowCompression, *, with_threads: bool
) -> list[Sequence[BytesLike]]:
    compressed: list[Sequence[BytesLike]] = [()] * len(buffers)
    # The largest first: all threads are done at about the same time then.
    waiting = deque(sorted(range(len(buffers)), key=lambda index: -len(buffers[index])))

    def work() -> None:
        while True:
            try:
                index = waiting.popleft()
            except IndexError:
                return
            compressed[index] = _compress_buffer(buffers[index], compression)

    if with_threads:
        _with_helpers(work)
    else:
        work()
    return compressed


# The calls of ``_with_helpers`` that are under way; none of them in a forked process.
_busy: set[object] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_busy.clear)


def _with_helpers(work: Callable[[], None]) -> None:
    """Do work that threads take from each other, here and in as many others as there are idle processors.

    Waking a thread costs as much as compressing some kilobytes. Threads that are busy with bodies of their own, as
    those of a writer with several batches, do not wake others that would take their processors.
    """
    helpers: list[Future[None]] = []
    # When the interpreter is about to end, it starts no threads any more.
    with contextlib.suppress(RuntimeError):
        helpers.extend(_thread_pool().submit(work) for _ in range(pa.cpu_count() - 1 - len(_busy)))
    _busy.add(call := object())
    try:
        work()
    finally:
        _busy.discard(call)
        for helper in helpers:
            # One that has not begun by now has nothing left to do.
            if not helper.cancel():
                helper.result()


def _compress_buffer(buffer: memoryview, compression: ArrowCompression) -> Sequence[BytesLike]:
    """Return the parts of one compressed buffer: a length, then a frame or the bytes themselves."""
    if not buffer:
        return ()
    if len(buffer) >= compression.buffer_bytes_min:
        if compression.type == CompressionType.LZ4_FRAME:
            frame = lz4_frame(buffer)
        else:
            frame = [pa.Codec("zstd", compression.zstd_level).compress(buffer, asbytes=True)]
        if sum(map(len, frame)) < len(buffer):
            return LENGTH_PREFIX.pack(len(buffer)), *frame
    return STORED_AS_IS_PREFIX, buffer


def lz4_frame(data: memoryview) -> list[BytesLike]:
    """Return the parts of an LZ4 frame of independent blocks."""
    codec = pa.Codec("lz4_raw")
    block_bytes, head = _LZ4_SMALL if len(data) <= _LZ4_SMALL[0] else _LZ4_LARGE
    parts: list[BytesLike] = [head]
    for start in range(0, len(data), block_bytes):
        block = data[start : start + block_bytes]
        compressed = codec.compress(block, asbytes=True)
        if len(compressed) < len(block):
            parts += (_UINT32.pack(len(compressed)), compressed)
        else:
            parts += (_UINT32.pack(len(block) | _LZ4_STORED_FLAG), block)
    parts.append(_LZ4_FRAME_END)
    return parts


def shared_threads() -> ThreadPoolExecutor:
    """Return the threads of this process that help with batches: as many as ``pyarrow.cpu_count()`` allows."""
    return _thread_pool()


_pool: tuple[int, ThreadPoolExecutor] | None = None


def _thread_pool() -> ThreadPoolExecutor:
    """Return the pool of this process. The threads of a parent do not survive a fork, so neither does its pool."""
    global _pool
    if _pool is None or _pool[0] != os.getpid():
        _pool = os.getpid(), ThreadPoolExecutor(pa.cpu_count(), thread_name_prefix="fluss-compression")
    return _pool[1]
