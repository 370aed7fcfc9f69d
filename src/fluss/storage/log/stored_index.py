"""The index files of a segment that is no longer written to: looked things up in, but neither loaded nor believed.

A search reads as many entries as it has steps, so the indexes of a large log take no memory. The files have no
checksum and a crash may lose or mix them up. Whoever uses an entry must find in the segment what the entry says, and
otherwise take the files as damaged. An entry that a search passed by can only lead to an earlier start than necessary.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from fluss.buffers import BytesLike
from fluss.storage.log.names import LogFileKind, log_file_name
from fluss.storage.log.offset_index import OFFSET_ENTRY_BYTES, OffsetEntry, OffsetIndex, read_offset_entry
from fluss.storage.log.time_index import TIME_ENTRY_BYTES, TimeEntry, TimeIndex, read_time_entry
from fluss.storage.vfs import Files

EntryT = TypeVar("EntryT")


class StoredIndex:
    """Both index files of one segment. All methods read files: a missing one is a FileNotFoundError."""

    __slots__ = ("_base_offset", "_directory", "_files")

    def __init__(self, files: Files, directory: Path, base_offset: int) -> None:
        self._files = files
        self._directory = directory
        self._base_offset = base_offset

    def check(self) -> OffsetEntry:
        """Read both files whole, once, and return the last append that has an entry.

        Entries that are not in order raise a FlussError with the log storage code.
        """
        offsets = OffsetIndex.parse(self._content(LogFileKind.OFFSET_INDEX), self._base_offset)
        TimeIndex.parse(self._content(LogFileKind.TIME_INDEX), self._base_offset)
        if not len(offsets):
            return OffsetEntry(self._base_offset, 0)
        return OffsetEntry(int(offsets.offsets[-1]), int(offsets.positions[-1]))

    def _content(self, kind: LogFileKind) -> BytesLike:
        path = self._directory / log_file_name(self._base_offset, kind)
        return self._files.read(path, 0, self._files.size(path))

    def lookup(self, offset: int) -> OffsetEntry:
        """Return an append that begins at or before the batch with the offset."""
        entries = self._entries(LogFileKind.OFFSET_INDEX, OFFSET_ENTRY_BYTES, read_offset_entry)
        index = bisect_right(entries, offset, key=_offset) - 1
        return OffsetEntry(self._base_offset, 0) if index < 0 else entries[index]

    def last(self) -> OffsetEntry:
        """Return the last append that has an entry."""
        entries = self._entries(LogFileKind.OFFSET_INDEX, OFFSET_ENTRY_BYTES, read_offset_entry)
        return entries[len(entries) - 1] if len(entries) else OffsetEntry(self._base_offset, 0)

    def lookup_time(self, timestamp_ms: int) -> TimeEntry | None:
        """Return the last entry before a commit time, if there is one."""
        entries = self._entries(LogFileKind.TIME_INDEX, TIME_ENTRY_BYTES, read_time_entry)
        index = bisect_left(entries, timestamp_ms, key=_timestamp_ms) - 1
        return None if index < 0 else entries[index]

    def _entries(
        self, kind: LogFileKind, entry_bytes: int, decode: Callable[[BytesLike, int], EntryT]
    ) -> _Entries[EntryT]:
        path = self._directory / log_file_name(self._base_offset, kind)
        return _Entries(self._files, path, entry_bytes, lambda data: decode(data, self._base_offset))


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


def _offset(entry: OffsetEntry) -> int:
    return entry.offset


def _timestamp_ms(entry: TimeEntry) -> int:
    return entry.timestamp_ms
