"""The indexes of one segment in memory: where to start reading for an offset, and for a commit time.

An append gets an entry only when enough bytes have been written since the last entry. The files beside a segment hold
the same entries; they are caches that are written when a segment ends. See ``stored_index``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

import numpy as np

from fluss.storage.log.offset_index import OffsetEntry, encode_offset_entries
from fluss.storage.log.time_index import TimeEntry, encode_time_entries


class SparseIndex:
    """Entries are added by one thread and looked up by any. Offsets are kept as distances from the base."""

    __slots__ = (
        "_base_offset",
        "_bytes_since_entry",
        "_interval_bytes",
        "_offsets",
        "_positions",
        "_time_offsets",
        "_times_ms",
    )

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0
        self._offsets = array("i")
        self._positions = array("i")
        self._times_ms = array("q")
        self._time_offsets = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, *, offset_base: int, offset_last: int, position: int, byte_count: int, timestamp_ms: int) -> None:
        """Take note of an append, in ascending order."""
        if self._bytes_since_entry > self._interval_bytes:
            # Positions first: a reader in another thread sees an offset only when its position is there.
            self._positions.append(position)
            self._offsets.append(offset_last - self._base_offset)
            if not self._times_ms or timestamp_ms > self._times_ms[-1]:
                self._time_offsets.append(offset_base - self._base_offset)
                self._times_ms.append(timestamp_ms)
            self._bytes_since_entry = 0
        self._bytes_since_entry += byte_count

    def cut(self, position: int, offset_next: int) -> None:
        """Forget the appends from a position on."""
        # New arrays: a reader in another thread may be searching the old ones.
        count = bisect_left(self._positions, position)
        self._offsets, self._positions = self._offsets[:count], self._positions[:count]
        count = bisect_left(self._time_offsets, offset_next - self._base_offset)
        self._times_ms, self._time_offsets = self._times_ms[:count], self._time_offsets[:count]

    def lookup(self, offset: int) -> OffsetEntry:
        """Return an append that begins at or before the batch with the offset."""
        index = bisect_right(self._offsets, offset - self._base_offset) - 1
        if index < 0:
            return OffsetEntry(self._base_offset, 0)
        return OffsetEntry(self._base_offset + self._offsets[index], self._positions[index])

    def lookup_time(self, timestamp_ms: int) -> TimeEntry | None:
        """Return the last entry before a commit time, if there is one."""
        index = bisect_left(self._times_ms, timestamp_ms) - 1
        return None if index < 0 else TimeEntry(self._times_ms[index], self._base_offset + self._time_offsets[index])

    def offset_file(self) -> bytes:
        offsets = np.array(self._offsets, np.int64) + self._base_offset
        return encode_offset_entries(self._base_offset, offsets, np.array(self._positions, np.int64))

    def time_file(self) -> bytes:
        offsets = np.array(self._time_offsets, np.int64) + self._base_offset
        return encode_time_entries(self._base_offset, np.array(self._times_ms, np.int64), offsets)
