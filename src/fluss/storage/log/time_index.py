"""The time index of a segment: at which offset to start reading for a commit time.

| field           | type  | meaning                                                                     |
|-----------------|-------|-----------------------------------------------------------------------------|
| timestamp_ms    | int64 | largest commit time so far                                                  |
| relative_offset | int32 | first offset of the append that has it, minus the base offset of the segment |

Big-endian, entries ascending in both fields. An append gets an entry only when the time has grown and enough bytes
have been written since the last one. An entry of zeros reads as padding, which loses nothing: it says no more than
that the segment starts at its base.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from fluss.buffers import BytesLike, Int64Array
from fluss.storage.log.index_file import absolute_offsets, check_ascending, read_entries, relative_offsets

_WHAT = "time index"
_ENTRY = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])
_PACKED = struct.Struct(">qi")
TIME_ENTRY_BYTES = _ENTRY.itemsize


class TimeEntry(NamedTuple):
    timestamp_ms: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class TimeIndex:
    """The entries of one segment, as columns."""

    base_offset: int
    timestamps_ms: Int64Array
    offsets: Int64Array

    @classmethod
    def parse(cls, data: BytesLike, base_offset: int, file_name: str | None = None) -> Self:
        """Read a whole file, padded or trimmed. Damage raises a FlussError with the log storage code."""
        entries = read_entries(data, _ENTRY, _WHAT, file_name)
        timestamps_ms = entries["timestamp_ms"].astype(np.int64)
        offsets = entries["relative_offset"].astype(np.int64)
        check_ascending(timestamps_ms, _WHAT, "timestamp", file_name)
        check_ascending(offsets, _WHAT, "relative offset", file_name)
        return cls(base_offset, timestamps_ms, absolute_offsets(offsets, base_offset, _WHAT, file_name))

    def __len__(self) -> int:
        return len(self.offsets)

    def lookup(self, timestamp_ms: int) -> int:
        """Return an offset at or before the first batch of that commit time or a later one."""
        index = int(np.searchsorted(self.timestamps_ms, timestamp_ms, side="right")) - 1
        return self.base_offset if index < 0 else int(self.offsets[index])


def read_time_entry(data: BytesLike, base_offset: int) -> TimeEntry:
    """Read one entry, believing it."""
    timestamp_ms, relative_offset = _PACKED.unpack(data)
    return TimeEntry(timestamp_ms, base_offset + relative_offset)


def encode_time_entries(base_offset: int, timestamps_ms: Int64Array, offsets: Int64Array) -> bytes:
    """Return the bytes of entries, to be put behind those that are in the file."""
    assert len(timestamps_ms) == len(offsets), "every time needs an offset"
    assert int(timestamps_ms.min(initial=0)) >= 0, "commit times are not negative"
    entries = np.empty(len(offsets), _ENTRY)
    entries["timestamp_ms"] = timestamps_ms
    entries["relative_offset"] = relative_offsets(offsets, base_offset)
    return entries.tobytes()
