"""A few packed rows as an Arrow message, made without Arrow.

Columns of a few values cost numpy and pyarrow much more than the values are worth: for a single row that is sent at
once, most of the time in the client. The bytes of packed rows are those of Arrow, so here they are only put in order.

A row that is sent alone has a message of which all but its values depends on which of them are null, and on the lengths
of texts and bytes. So the messages of the last such rows are remembered as patterns.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from fluss.client.write.row_layout import PackedForm
from fluss.record.arrow_ipc import BUFFER_ALIGNMENT_BYTES, build_small_metadata
from fluss.record.compression import STORED_AS_IS_PREFIX, ArrowCompression
from fluss.schema.types import BooleanType

# More values, or larger ones, are quicker with Arrow; and they may be worth being compressed.
_VALUES_MAX: Final = 64
_BYTES_MAX: Final = 2048
# Patterns of the messages of single rows that are remembered, and the columns of all of them together: each takes about
# 200 bytes, and a thousand tables may be written with single rows.
_PATTERNS_MAX: Final = 256
_PATTERN_COLUMNS_MAX: Final = 1024

_LENGTH: Final = struct.Struct("<I")
_OFFSETS: Final = struct.Struct("<2i")

# A message: bytes that are in all of them, and where in the packed row the others are.
_Pattern: TypeAlias = tuple[bytes | slice, ...]


class FewRows:
    """Makes messages of rows in one form. Threads may share it: each can make again what it remembers."""

    def __init__(self, form: PackedForm, compression: ArrowCompression) -> None:
        self._slots = form.slots
        self._codec = compression.codec
        # Before each buffer.
        self._prefix = b"" if self._codec is None else STORED_AS_IS_PREFIX
        self._buffer_bytes_max = _BYTES_MAX if self._codec is None else compression.buffer_bytes_min - 1
        self._head_bytes = form.head.size
        self._rows_max = 0 if any(slot.data_type.is_nested for slot in form.slots) else _VALUES_MAX // len(form.slots)
        sizes = [struct.calcsize(f"<{slot.code}") for slot in form.slots]
        self._null_bytes = form.head.size - sum(sizes)
        # Where each slot begins and ends in a packed row.
        self._spans: list[tuple[int, int]] = []
        position = self._null_bytes
        for size in sizes:
            self._spans.append((position, position + size))
            position += size
        # By what they depend on: the bits of nulls, and the lengths of bodies.
        self._lengths = [slice(*span) for span, slot in zip(self._spans, form.slots, strict=True) if slot.has_body]
        self._patterns: dict[bytes, _Pattern] = {}
        self._patterns_max = min(_PATTERNS_MAX, _PATTERN_COLUMNS_MAX // len(form.slots))

    def message(self, rows: Sequence[bytes]) -> bytes | None:
        """Return rows as an encapsulated message; None if they are too many or too large."""
        row_count = len(rows)
        if row_count == 1 and self._rows_max:
            return self._message_of_one(rows[0])
        if not 0 < row_count <= self._rows_max or sum(map(len, rows)) > _BYTES_MAX:
            return None
        return self._message_of_many(rows)

    def _message_of_one(self, row: bytes) -> bytes | None:
        """Do what ``_message_of_many`` does with a list of one row."""
        key = b"".join([row[: self._null_bytes], *[row[span] for span in self._lengths]])
        pattern = self._patterns.get(key)
        if pattern is None:
            pattern = self._pattern(row)
            if pattern is None:
                return None
            if len(self._patterns) >= self._patterns_max:
                self._patterns.clear()
            self._patterns[key] = pattern
        return b"".join([piece if isinstance(piece, bytes) else row[piece] for piece in pattern])

    def _pattern(self, row: bytes) -> _Pattern | None:
        """Return the pattern of the message of a row; None if the row is too large."""
        nulls = int.from_bytes(row[: self._null_bytes], "little")
        nodes: list[int] = []
        buffers: list[bytes | slice] = []
        body_start = self._head_bytes
        for index, (slot, (begin, end)) in enumerate(zip(self._slots, self._spans, strict=True)):
            is_null = nulls >> index & 1
            nodes += (1, is_null)
            buffers.append(_bits([0]) if is_null else b"")
            if slot.has_body:
                length = _LENGTH.unpack_from(row, begin)[0]
                buffers += (_OFFSETS.pack(0, length), slice(body_start, body_start + length))
                body_start += length
            else:
                # The byte of a boolean is also its bitmap.
                buffers.append(slice(begin, end))
        sizes = [len(item) if isinstance(item, bytes) else item.stop - item.start for item in buffers]
        if len(row) > _BYTES_MAX or max(sizes) > self._buffer_bytes_max:
            return None
        spans, body_bytes = self._spans_of(sizes)
        pattern: list[bytes | slice] = []
        constant = build_small_metadata(1, nodes, spans, self._codec, body_bytes)
        for item, size in zip(buffers, sizes, strict=True):
            if not size:
                continue
            constant += self._prefix
            if isinstance(item, bytes):
                constant += item
            else:
                pattern += (constant, item)
                constant = b""
            constant += bytes(-(len(self._prefix) + size) % BUFFER_ALIGNMENT_BYTES)
        pattern.append(constant)
        return tuple(pattern)

    def _message_of_many(self, rows: Sequence[bytes]) -> bytes | None:
        row_count = len(rows)
        nulls = [int.from_bytes(row[: self._null_bytes], "little") for row in rows]
        have_nulls = any(nulls)
        body_starts = [self._head_bytes] * row_count
        nodes: list[int] = []
        buffers: list[bytes] = []
        for index, (slot, (begin, end)) in enumerate(zip(self._slots, self._spans, strict=True)):
            null_count = 0
            validity = b""
            if have_nulls:
                is_null = [bits >> index & 1 for bits in nulls]
                null_count = sum(is_null)
                if null_count:
                    validity = _bits([1 - bit for bit in is_null])
            nodes += (row_count, null_count)
            buffers.append(validity)
            if slot.has_body:
                ends = [0]
                parts = []
                for number, row in enumerate(rows):
                    start = body_starts[number]
                    stop = start + _LENGTH.unpack_from(row, begin)[0]
                    parts.append(row[start:stop])
                    body_starts[number] = stop
                    ends.append(ends[-1] + stop - start)
                buffers += (struct.pack(f"<{row_count + 1}i", *ends), b"".join(parts))
            elif isinstance(slot.data_type, BooleanType):
                buffers.append(_bits([row[begin] for row in rows]))
            else:
                buffers.append(b"".join([row[begin:end] for row in rows]))
        if max(map(len, buffers)) > self._buffer_bytes_max:
            return None
        return self._joined(row_count, nodes, buffers)

    def _joined(self, row_count: int, nodes: list[int], buffers: list[bytes]) -> bytes:
        spans, body_bytes = self._spans_of([len(buffer) for buffer in buffers])
        parts = [build_small_metadata(row_count, nodes, spans, self._codec, body_bytes)]
        for buffer in buffers:
            if buffer:
                padding = -(len(self._prefix) + len(buffer)) % BUFFER_ALIGNMENT_BYTES
                parts += (self._prefix, buffer, bytes(padding))
        return b"".join(parts)

    def _spans_of(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """Return where each buffer begins, and its length, one after the other; and the length of the whole body."""
        spans: list[int] = []
        position = 0
        for size in sizes:
            length = len(self._prefix) + size if size else 0
            spans += (position, length)
            position += length + -length % BUFFER_ALIGNMENT_BYTES
        return spans, position


def _bits(values: Sequence[int]) -> bytes:
    """Return a bitmap."""
    bitmap = sum([bit << number for number, bit in enumerate(values)])
    return bitmap.to_bytes(-(-len(values) // 8), "little")
