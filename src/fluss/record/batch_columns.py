"""The columns of one ARROW log batch, each decompressed and checked when it is asked for, and only then.

Readers that want few rows look at some columns first, and often need no others. The checks are those that
``decode_arrow_batch`` makes of all columns at once, and so are the errors.

Everything happens on the calling thread, so that several batches can be read by several threads without waiting for
each other; and what is not kept of a column was made and is let go by the same thread, which is what allocators are
fastest at. pyarrow would decompress the columns of one batch by threads of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array, copied
from fluss.record.arrow_batch import (
    DECOMPRESSED_BYTES_MAX,
    TRUSTED_BYTES_MIN,
    check_memory,
    checked_message,
    damaged_message,
)
from fluss.record.arrow_ipc import BUFFER_ALIGNMENT_BYTES, BodyCodec, build_metadata, column_layout
from fluss.record.compression import LENGTH_PREFIX, examine_buffers
from fluss.record.log_batch import LogBatch

_NOTHING: Final = pa.py_buffer(b"")
# What Arrow recommends.
_ALIGNMENT_BYTES: Final = 64
# Frames are decompressed together, because setting up a decoder takes as long as some kilobytes do; but not so many
# that what they hold leaves the caches before it is used.
_JOINED_BYTES_MAX: Final = 4 * 1024 * 1024
_ZSTD_MAGIC: Final = bytes.fromhex("28b52ffd")
# Magic number, descriptor, window, dictionary, content size.
_ZSTD_HEAD_BYTES_MAX: Final = 4 + 1 + 1 + 4 + 8
_ZSTD_RLE_BLOCK: Final = 1


class BatchColumns:
    """The columns of a batch that has records. ``schema`` and the options are as for ``decode_arrow_batch``."""

    def __init__(
        self,
        batch: LogBatch,
        schema: pa.Schema,
        *,
        bytes_max: int = DECOMPRESSED_BYTES_MAX,
        trusted: bool = False,
        trusted_bytes_min: int = TRUSTED_BYTES_MIN,
    ) -> None:
        assert batch.header.record_count, "a batch without records has no columns"
        view = batch.arrow_message
        self._batch = batch
        self._schema = schema
        self._layout = column_layout(schema)
        self._message = message = checked_message(batch, self._layout, view)
        contents = examine_buffers(view, message, bytes_max)
        self._check_quickly = trusted and contents.lengths.sum() >= trusted_bytes_min
        self._lengths = contents.lengths.tolist()
        self._is_framed = contents.framed.tolist()
        self._sizes = message.buffers[:, 1].tolist()
        self._offsets = (message.buffers[:, 0] + message.body_offset).tolist()
        data = pa.py_buffer(view)
        self._data = copied(view) if data.address % BUFFER_ALIGNMENT_BYTES else data

    @property
    def is_compressed(self) -> bool:
        """Whether there is anything to decompress."""
        return True in self._is_framed

    def column(self, index: int) -> pa.Array:
        """Return a column, decompressed anew by every call; damage is a CorruptRecordError."""
        (array,) = self.columns([index])
        return array

    def columns(self, indexes: Sequence[int]) -> list[pa.Array]:
        """Return some columns, which may be views of the same memory."""
        starts = self._layout.buffer_starts
        spans = [range(*starts[index : index + 2].tolist()) for index in indexes]
        buffers = self._buffers(list(chain.from_iterable(spans)))
        return [self._array(index, [buffers[at] for at in span]) for index, span in zip(indexes, spans, strict=True)]

    def _array(self, index: int, buffers: Sequence[pa.Buffer]) -> pa.Array:
        nodes = self._message.nodes
        first, end = self._layout.node_starts[index : index + 2].tolist()
        field = self._schema.field(index)
        try:
            if end - first == 1:
                array = _flat(field.type, nodes[first], buffers)
            else:
                array = _nested(field, nodes[first:end], buffers)
            array.validate(full=not self._check_quickly)
        except (pa.ArrowException, OSError) as error:
            raise damaged_message(self._batch, error) from error
        if self._check_quickly:
            check_memory(array, index, self._layout, nodes)
        return array

    def _buffers(self, indexes: Sequence[int]) -> dict[int, pa.Buffer]:
        """Return the bytes of buffers without compression."""
        found: dict[int, pa.Buffer] = {}
        frames: dict[int, pa.Buffer] = {}
        codec = self._message.codec
        for index in indexes:
            length, start = self._lengths[index], self._offsets[index]
            if not length:
                found[index] = _NOTHING
            elif codec is None:
                found[index] = self._data.slice(start, length)
            elif not self._is_framed[index]:
                found[index] = self._data.slice(start + LENGTH_PREFIX.size, length)
            else:
                size = self._sizes[index] - LENGTH_PREFIX.size
                frames[index] = self._data.slice(start + LENGTH_PREFIX.size, size)
        if frames:
            lengths = [self._lengths[index] for index in frames]
            try:
                contents = _decompressed(list(frames.values()), lengths, is_zstd=codec is BodyCodec.ZSTD)
            except (pa.ArrowException, OSError) as error:
                raise damaged_message(self._batch, error) from error
            found.update(zip(frames, contents, strict=True))
        return found


def _decompressed(frames: Sequence[pa.Buffer], lengths: Sequence[int], *, is_zstd: bool) -> list[pa.Buffer]:
    """Return what is in frames that claim to hold so many bytes; an OSError if they hold more or less."""
    if not is_zstd:
        return list(map(_lz4_decompressed, frames, lengths))
    codec = pa.Codec("zstd")
    is_joined = len(frames) > 1 and sum(lengths) <= _JOINED_BYTES_MAX and all(map(_is_of_length, frames, lengths))
    if not is_joined:
        return [codec.decompress(frame, length) for frame, length in zip(frames, lengths, strict=True)]
    # One frame behind the other, and between them frames that fill up to where values may begin.
    parts: list[pa.Buffer | bytes] = []
    starts = []
    end = 0
    for frame, length in zip(frames, lengths, strict=True):
        starts.append(end)
        parts += (frame, _FILLERS[-length % _ALIGNMENT_BYTES])
        end += length + -length % _ALIGNMENT_BYTES
    joined = codec.decompress(b"".join(parts), end)
    return [joined.slice(start, length) for start, length in zip(starts, lengths, strict=True)]


def _lz4_decompressed(frame: pa.Buffer, length: int) -> pa.Buffer:
    # In one call, LZ4 does not tell that a frame has held less than it should have.
    with pa.CompressedInputStream(pa.BufferReader(frame), "lz4") as stream:
        found = stream.read_buffer(length + 1)
    if found.size != length:
        raise OSError(f"a frame does not hold the {length} bytes that it claims")
    return found


def _is_of_length(frame: pa.Buffer, length: int) -> bool:
    """Whether a ZSTD frame says itself how much it holds, and it is this: then the decoder makes sure that it does."""
    head = bytes(memoryview(frame)[:_ZSTD_HEAD_BYTES_MAX])
    if len(head) < len(_FILLERS[1]) or head[:4] != _ZSTD_MAGIC:
        return False
    descriptor = head[4]
    is_single_segment = bool(descriptor & 0x20)
    size = (int(is_single_segment), 2, 4, 8)[descriptor >> 6]
    start = 6 - is_single_segment + (0, 1, 2, 4)[descriptor & 3]
    said = int.from_bytes(head[start : start + size], "little") + (256 if size == 2 else 0)
    return 0 < size <= len(head) - start and said == length


def _filler(byte_count: int) -> bytes:
    """Return a ZSTD frame that holds so many zeros, at most 255."""
    if not byte_count:
        return b""
    block = (byte_count << 3 | _ZSTD_RLE_BLOCK << 1 | 1).to_bytes(3, "little")
    return b"".join((_ZSTD_MAGIC, b"\x20", bytes([byte_count]), block, b"\0"))


_FILLERS: Final = tuple(map(_filler, range(_ALIGNMENT_BYTES)))


def _flat(of_type: pa.DataType, node: Int64Array, buffers: Sequence[pa.Buffer]) -> pa.Array:
    """Put an array without children together."""
    length, null_count = node.tolist()
    return pa.Array.from_buffers(of_type, length, [buffers[0] if null_count else None, *buffers[1:]], null_count)


def _nested(field: pa.Field, nodes: Int64Array, buffers: Sequence[pa.Buffer]) -> pa.Array:
    """Have pyarrow read an array with children out of a message of its own.

    Putting it together would end the process if there were nulls among the entries of a map.
    """
    lengths = np.array([buffer.size for buffer in buffers], np.int64)
    padding = -lengths % BUFFER_ALIGNMENT_BYTES
    ends = np.cumsum(lengths + padding)
    body: list[pa.Buffer | bytes] = []
    for buffer, padding_bytes in zip(buffers, padding.tolist(), strict=True):
        body += (buffer, bytes(padding_bytes))
    places = np.stack((ends - lengths - padding, lengths), axis=1)
    metadata = build_metadata(int(nodes[0, 0]), nodes, places, None, int(ends[-1]))
    message = pa.py_buffer(b"".join((metadata, *body)))
    return pa.ipc.read_record_batch(message, pa.schema([field])).column(0)
