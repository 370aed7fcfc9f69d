"""The indexes of a segment: at which byte to start reading for an offset, and at which offset for a commit time.

An append gets an entry only when enough bytes have been written since the last entry, so a lookup finds a batch at or
before the wanted one, and the reader goes on from there. While a segment takes appends its entries are in memory
(``SparseIndex``). When the next segment has taken over, they are looked up in files (``StoredIndex``).

The files hold big-endian entries of fixed size, ascending in both fields. A file of other servers may have its final
size from the start and be zero behind the last entry.

Offset index, ``N.index``:

| field           | type  | meaning                                                           |
|-----------------|-------|-------------------------------------------------------------------|
| relative_offset | int32 | last offset of an append, minus the base offset of the segment    |
| position        | int32 | byte in the segment where that append starts                      |

Time index, ``N.timeindex``; it gets an entry only when the time has grown:

| field           | type  | meaning                                                                     |
|-----------------|-------|-----------------------------------------------------------------------------|
| timestamp_ms    | int64 | largest commit time so far                                                  |
| relative_offset | int32 | first offset of the append that has it, minus the base offset of the segment |

A time entry of zeros reads as padding, which loses nothing: it says no more than that the segment starts at its base.

The files are caches without a checksum; a crash may lose them or mix them up. The reader of an entry must find in the
segment what the entry says, and otherwise take the files as damaged. An entry that a search passed by can only lead to
an earlier start than necessary.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fluss.buffers import BytesLike, Int64Array, byte_array
from fluss.integers import INT32_MAX
from fluss.storage.log.file_names import OFFSET_MAX, LogFileKind, damaged, log_file_name
from fluss.storage.vfs import Files

_OFFSET_ENTRIES: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRIES: Final = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])
_TIME_ENTRY: Final = struct.Struct(">qi")
OFFSET_ENTRY_BYTES: Final = _OFFSET_ENTRY.size
TIME_ENTRY_BYTES: Final = _TIME_ENTRY.size
_offset: Final = attrgetter("offset")
_timestamp_ms: Final = attrgetter("timestamp_ms")


class OffsetEntry(NamedTuple):
    """The last offset of an append, and the byte where that append starts."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """A commit time, and the first offset of the append that has it."""

    timestamp_ms: int
    offset: int


class SparseIndex:
    """The entries of a live segment, in memory. One thread adds entries, any thread looks them up.

    Offsets are kept as distances from the base of the segment.
    """

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
        """Return the content of the offset index."""
        offsets = np.array(self._offsets, np.int64) + self._base_offset
        return encode_offset_index(self._base_offset, offsets, np.array(self._positions, np.int64))

    def time_file(self) -> bytes:
        """Return the content of the time index."""
        offsets = np.array(self._time_offsets, np.int64) + self._base_offset
        return encode_time_index(self._base_offset, np.array(self._times_ms, np.int64), offsets)


EntryT = TypeVar("EntryT")


class StoredIndex:
    """Both index files of a segment that takes no more appends. A missing file is a FileNotFoundError.

    A search reads as many entries as it has steps, so the indexes of a large log take no memory.
    """

    __slots__ = ("_base_offset", "_directory", "_files")

    def __init__(self, files: Files, directory: Path, base_offset: int) -> None:
        self._files = files
        self._directory = directory
        self._base_offset = base_offset

    def check(self) -> OffsetEntry:
        """Read both files whole, once, and return the last append that has an entry.

        Entries that are not in order raise a FlussError with the log storage code.
        """
        offsets, positions = decode_offset_index(self._content(LogFileKind.OFFSET_INDEX), self._base_offset)
        decode_time_index(self._content(LogFileKind.TIME_INDEX), self._base_offset)
        if not len(offsets):
            return OffsetEntry(self._base_offset, 0)
        return OffsetEntry(int(offsets[-1]), int(positions[-1]))

    def lookup(self, offset: int) -> OffsetEntry:
        """Return an append that begins at or before the batch with the offset."""
        entries = self._offset_entries()
        index = bisect_right(entries, offset, key=_offset) - 1
        return OffsetEntry(self._base_offset, 0) if index < 0 else entries[index]

    def last(self) -> OffsetEntry:
        """Return the last append that has an entry."""
        entries = self._offset_entries()
        return entries[len(entries) - 1] if len(entries) else OffsetEntry(self._base_offset, 0)

    def lookup_time(self, timestamp_ms: int) -> TimeEntry | None:
        """Return the last entry before a commit time, if there is one."""
        entries = _Entries(self._files, self._path(LogFileKind.TIME_INDEX), TIME_ENTRY_BYTES, self._time_entry)
        index = bisect_left(entries, timestamp_ms, key=_timestamp_ms) - 1
        return None if index < 0 else entries[index]

    def _offset_entries(self) -> _Entries[OffsetEntry]:
        return _Entries(self._files, self._path(LogFileKind.OFFSET_INDEX), OFFSET_ENTRY_BYTES, self._offset_entry)

    def _offset_entry(self, data: BytesLike) -> OffsetEntry:
        relative_offset, position = _OFFSET_ENTRY.unpack(data)
        return OffsetEntry(self._base_offset + relative_offset, position)

    def _time_entry(self, data: BytesLike) -> TimeEntry:
        timestamp_ms, relative_offset = _TIME_ENTRY.unpack(data)
        return TimeEntry(timestamp_ms, self._base_offset + relative_offset)

    def _content(self, kind: LogFileKind) -> BytesLike:
        path = self._path(kind)
        return self._files.read(path, 0, self._files.size(path))

    def _path(self, kind: LogFileKind) -> Path:
        return self._directory / log_file_name(self._base_offset, kind)


class _Entries(Generic[EntryT]):
    """A file as a sequence of entries. Half an entry at the end does not count."""

    def __init__(self, files: Files, path: Path, entry_bytes: int, decode: Callable[[BytesLike], EntryT]) -> None:
        self._files = files
        self._path = path
        self._entry_bytes = entry_bytes
        self._decode = decode
        self._count = files.size(path) // entry_bytes

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> EntryT:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._decode(self._files.read(self._path, index * self._entry_bytes, self._entry_bytes))


# The content of index files


def encode_offset_index(base_offset: int, offsets: Int64Array, positions: Int64Array) -> bytes:
    """Return the content of an offset index."""
    assert len(offsets) == len(positions), "every offset needs a position"
    assert 0 <= int(positions.min(initial=0)) <= int(positions.max(initial=0)) <= INT32_MAX, "a position does not fit"
    entries = np.empty(len(offsets), _OFFSET_ENTRIES)
    entries["relative_offset"] = _relative_offsets(offsets, base_offset)
    entries["position"] = positions
    return entries.tobytes()


def decode_offset_index(
    data: BytesLike, base_offset: int, file_name: str | None = None
) -> tuple[Int64Array, Int64Array]:
    """Return offsets and positions. Damage raises a FlussError with the log storage code."""
    entries = _read_entries(data, _OFFSET_ENTRIES, "offset index", file_name)
    offsets = entries["relative_offset"].astype(np.int64)
    positions = entries["position"].astype(np.int64)
    _check_ascending(offsets, "offset index", "relative offset", file_name)
    _check_ascending(positions, "offset index", "position", file_name)
    return _absolute_offsets(offsets, base_offset, "offset index", file_name), positions


def encode_time_index(base_offset: int, timestamps_ms: Int64Array, offsets: Int64Array) -> bytes:
    """Return the content of a time index."""
    assert len(timestamps_ms) == len(offsets), "every time needs an offset"
    assert int(timestamps_ms.min(initial=0)) >= 0, "commit times are not negative"
    entries = np.empty(len(offsets), _TIME_ENTRIES)
    entries["timestamp_ms"] = timestamps_ms
    entries["relative_offset"] = _relative_offsets(offsets, base_offset)
    return entries.tobytes()


def decode_time_index(data: BytesLike, base_offset: int, file_name: str | None = None) -> tuple[Int64Array, Int64Array]:
    """Return commit times and offsets. Damage raises a FlussError with the log storage code."""
    entries = _read_entries(data, _TIME_ENTRIES, "time index", file_name)
    timestamps_ms = entries["timestamp_ms"].astype(np.int64)
    offsets = entries["relative_offset"].astype(np.int64)
    _check_ascending(timestamps_ms, "time index", "timestamp", file_name)
    _check_ascending(offsets, "time index", "relative offset", file_name)
    return timestamps_ms, _absolute_offsets(offsets, base_offset, "time index", file_name)


def _read_entries(data: BytesLike, entry: np.dtype[Any], what: str, file_name: str | None) -> npt.NDArray[Any]:
    """View the entries of a file without the zeros behind the last one."""
    raw = byte_array(data)
    if len(raw) % entry.itemsize:
        reason = f"its {len(raw)} bytes are not a multiple of the entry size {entry.itemsize}"
        raise damaged(what, reason, file_name)
    written = np.flatnonzero(raw)
    count = int(written[-1]) // entry.itemsize + 1 if len(written) else 0
    return raw[: count * entry.itemsize].view(entry)


def _check_ascending(values: Int64Array, what: str, field: str, file_name: str | None) -> None:
    """Refuse values that are negative or not larger than the one before."""
    # Comparing, not subtracting: the distance of two int64 need not fit one.
    before = np.concatenate((np.full(1, -1), values[:-1]))
    bad = np.flatnonzero(values <= before[: len(values)])
    if len(bad):
        index = int(bad[0])
        found = f"after {values[index - 1]}" if index else "in the first entry"
        raise damaged(what, f"{field} {values[index]} {found}, at entry {index} of {len(values)}", file_name)


def _absolute_offsets(relative: Int64Array, base_offset: int, what: str, file_name: str | None) -> Int64Array:
    """Add the base of the segment to ascending distances; offsets beyond 64 bits are damage."""
    if len(relative) and base_offset + int(relative[-1]) > OFFSET_MAX:
        raise damaged(what, f"{relative[-1]} after the base offset {base_offset} is not an offset", file_name)
    return relative + base_offset


def _relative_offsets(offsets: Int64Array, base_offset: int) -> Int64Array:
    """Subtract the base of the segment. The distances must fit an int32: longer segments are not made."""
    relative = offsets - base_offset
    assert int(relative.min(initial=0)) >= 0, "an entry lies before its segment"
    assert int(relative.max(initial=0)) <= INT32_MAX, "an entry is too far from the base of its segment"
    return relative
