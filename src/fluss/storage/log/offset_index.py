"""The offset index of a segment: at which byte to start reading for an offset.

| field           | type  | meaning                                                           |
|-----------------|-------|-------------------------------------------------------------------|
| relative_offset | int32 | last offset of an append, minus the base offset of the segment    |
| position        | int32 | byte in the segment where that append starts                      |

Big-endian, entries ascending in both fields. An append gets an entry only when enough bytes have been written since
the last one, so a lookup finds a place at or before the wanted batch and the reader goes on from there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from fluss.buffers import BytesLike, Int64Array
from fluss.storage.log.index_file import absolute_offsets, check_ascending, read_entries, relative_offsets

_WHAT = "offset index"
_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
_PACKED = struct.Struct(">ii")
OFFSET_ENTRY_BYTES = _ENTRY.itemsize


class OffsetEntry(NamedTuple):
    offset: int
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class OffsetIndex:
    """The entries of one segment, as columns."""

    base_offset: int
    offsets: Int64Array
    positions: Int64Array

    @classmethod
    def parse(cls, data: BytesLike, base_offset: int, file_name: str | None = None) -> Self:
        """Read a whole file, padded or trimmed. Damage raises a FlussError with the log storage code."""
        entries = read_entries(data, _ENTRY, _WHAT, file_name)
        offsets = entries["relative_offset"].astype(np.int64)
        positions = entries["position"].astype(np.int64)
        check_ascending(offsets, _WHAT, "relative offset", file_name)
        check_ascending(positions, _WHAT, "position", file_name)
        return cls(base_offset, absolute_offsets(offsets, base_offset, _WHAT, file_name), positions)

    def __len__(self) -> int:
        return len(self.offsets)

    def lookup(self, offset: int) -> OffsetEntry:
        """Return the last entry at or before the offset, or the start of the segment if there is none."""
        index = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        if index < 0:
            return OffsetEntry(self.base_offset, 0)
        return OffsetEntry(int(self.offsets[index]), int(self.positions[index]))


def read_offset_entry(data: BytesLike, base_offset: int) -> OffsetEntry:
    """Read one entry, believing it."""
    relative_offset, position = _PACKED.unpack(data)
    return OffsetEntry(base_offset + relative_offset, position)


def encode_offset_entries(base_offset: int, offsets: Int64Array, positions: Int64Array) -> bytes:
    """Return the bytes of entries, to be put behind those that are in the file."""
    assert len(offsets) == len(positions), "every offset needs a position"
    assert 0 <= int(positions.min(initial=0)) <= int(positions.max(initial=0)) < 2**31, "a position does not fit"
    entries = np.empty(len(offsets), _ENTRY)
    entries["relative_offset"] = relative_offsets(offsets, base_offset)
    entries["position"] = positions
    return entries.tobytes()
