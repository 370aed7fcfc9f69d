"""The end of a segment that was found on disk, without reading the whole of it.

The offset index tells where to begin. An index that leads nowhere is worth nothing: then the segment is read from its
beginning.
"""

from __future__ import annotations

from pathlib import Path

from fluss.storage.log.names import LogFileKind, log_file_name
from fluss.storage.log.offset_index import OffsetEntry
from fluss.storage.log.scan import ScanResult, scan
from fluss.storage.log.stored_batch import StoredBatch
from fluss.storage.log.stored_index import StoredIndex
from fluss.storage.vfs import Files

_OFFSET_BYTES = 8


def scan_tail(files: Files, directory: Path, base_offset: int, size_bytes: int) -> ScanResult:
    """Scan a segment from the last place that its index knows."""
    path = directory / log_file_name(base_offset, LogFileKind.SEGMENT)
    try:
        entry = StoredIndex(files, directory, base_offset).last()
    except FileNotFoundError:
        entry = OffsetEntry(base_offset, 0)
    if 0 < entry.position <= size_bytes - _OFFSET_BYTES:
        is_confirmed = False

        def compare(batch: StoredBatch) -> None:
            nonlocal is_confirmed
            is_confirmed |= batch.offset_last == entry.offset

        first = int.from_bytes(files.read(path, entry.position, _OFFSET_BYTES), "little", signed=True)
        result = scan(files, path, start=entry.position, end=size_bytes, offset_next=first, visit=compare)
        if is_confirmed:
            return result
    return scan(files, path, start=0, end=size_bytes, offset_next=base_offset, visit=_ignore)


def _ignore(batch: StoredBatch) -> None:
    """The scan itself sees all there is to see."""
