"""A few packed rows as an Arrow message, made without Arrow.

Columns of a few values cost numpy and pyarrow much more than the values are worth: for a single row that is sent at
once, most of the time in the client. The bytes of packed rows are those of Arrow, so here they are only put in order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from fluss.client.write.row_layout import PackedForm
from fluss.record.arrow_ipc import BUFFER_ALIGNMENT_BYTES, build_small_metadata
from fluss.record.compression import STORED_AS_IS_PREFIX, ArrowCompression
from fluss.schema.types import BooleanType

# More values, or larger ones, are quicker with Arrow; and they may be worth being compressed.
_VALUES_MAX: Final = 64
_BYTES_MAX: Final = 2048

_LENGTH: Final = struct.Struct("<I")


class FewRows:
    """Makes messages of rows in one form. Has no state: threads may share it."""

    def __init__(self, form: PackedForm, compression: ArrowCompression) -> None:
        self._slots = form.slots
        self._codec = compression.codec
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

    def message(self, rows: Sequence[bytes]) -> bytes | None:
        """Return rows as an encapsulated message; None if they are too many or too large."""
        row_count = len(rows)
        if not 0 < row_count <= self._rows_max or sum(map(len, rows)) > _BYTES_MAX:
            return None
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
        prefix = b"" if self._codec is None else STORED_AS_IS_PREFIX
        parts = [b""]  # Where the metadata will be.
        spans: list[int] = []
        position = 0
        for buffer in buffers:
            length = len(prefix) + len(buffer) if buffer else 0
            spans += (position, length)
            if length:
                padding = -length % BUFFER_ALIGNMENT_BYTES
                parts += (prefix, buffer, bytes(padding))
                position += length + padding
        parts[0] = build_small_metadata(row_count, nodes, spans, self._codec, position)
        return b"".join(parts)


def _bits(values: Sequence[int]) -> bytes:
    """Return a bitmap."""
    bitmap = sum([bit << number for number, bit in enumerate(values)])
    return bitmap.to_bytes(-(-len(values) // 8), "little")
