"""A position in the bytes of one row, which never moves past their end."""

from __future__ import annotations

from fluss.buffers import BytesLike, byte_view
from fluss.errors import CorruptRecordError
from fluss.row.varint import decode_varint32, decode_varint64


class Cursor:
    """Reads a row front to back. Whatever would need bytes behind the end is a CorruptRecordError."""

    __slots__ = ("_position", "data")

    def __init__(self, data: BytesLike) -> None:
        self.data = byte_view(data)
        self._position = 0

    def skip(self, size: int) -> int:
        """Move over ``size`` bytes; return the position at which they start."""
        start = self._position
        if not 0 <= size <= len(self.data) - start:
            raise CorruptRecordError(
                f"A field needs {size} bytes at byte {start}, but only {len(self.data) - start} are left of the row"
            )
        self._position = start + size
        return start

    def take(self, size: int) -> memoryview:
        """Move over ``size`` bytes and return them, without copying."""
        start = self.skip(size)
        return self.data[start : start + size]

    def varint32(self) -> int:
        value, self._position = decode_varint32(self.data, self._position)
        return value

    def varint64(self) -> int:
        value, self._position = decode_varint64(self.data, self._position)
        return value

    def finish(self) -> None:
        """Check that nothing is left: bytes behind the last field mean that the row has another schema."""
        if self._position != len(self.data):
            raise CorruptRecordError(
                f"The row has {len(self.data) - self._position} bytes behind its last field; "
                "it was written with another schema or is damaged"
            )
