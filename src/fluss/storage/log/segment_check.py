"""Checks a segment that takes no more appends, and its index: every byte of it, as nothing else does after a start.

A reader checks what it reads, and an index where it uses it. This reads all of it, in pieces, so that damage is found
while there may still be a backup of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fluss.errors import FlussError
from fluss.storage.log.file_names import LogFileKind, damaged, log_file_name
from fluss.storage.log.index import decode_offset_index, decode_time_index
from fluss.storage.log.scan import StoredBatch, damage_at, scan
from fluss.storage.vfs import FileReads

# Read at once: small enough for other threads to get their turn soon.
_READ_BYTES: Final = 256 * 1024


class IndexDamagedError(FlussError):
    """The index of a segment does not fit it. Nothing is lost: the index is made again when it is needed."""


def check_segment(files: FileReads, path: Path, *, base_offset: int, offset_next: int, size: int) -> None:
    """Check all batches of a segment, which ends where the next one begins, and its index files, if there are any.

    Raises CorruptRecordError with file, byte and offset if the segment is damaged, IndexDamagedError if only the index
    is, and OSError if a file cannot be read.
    """
    index = _IndexCheck(files, path, base_offset)
    result = scan(files, path, start=0, end=size, offset_next=base_offset, visit=index.visit, read_bytes=_READ_BYTES)
    if result.problem is not None:
        raise result.problem
    if result.offset_next != offset_next:
        reason = f"offset {result.offset_next}: the file ends here, but the next segment begins at offset {offset_next}"
        raise damage_at(path, size, reason)
    index.finish()


class _IndexCheck:
    """Compares the entries of both index files with the batches, as they pass by."""

    def __init__(self, files: FileReads, path: Path, base_offset: int) -> None:
        self._path = path
        self._problem: FlussError | None = None
        self._entries: list[tuple[int, int]] = []
        self._times: list[tuple[int, int]] = []
        self._entry = self._time = 0
        # The last offset of the append that the entry before speaks of, until a batch with it has passed.
        self._awaited: int | None = None
        try:
            self._load(files, base_offset)
        except FileNotFoundError:
            # It is made when it is first needed.
            pass
        except FlussError as error:
            self._problem = error

    def _load(self, files: FileReads, base_offset: int) -> None:
        names = [log_file_name(base_offset, kind) for kind in (LogFileKind.OFFSET_INDEX, LogFileKind.TIME_INDEX)]
        offset_path, time_path = (self._path.with_name(name) for name in names)
        offset_data = files.read(offset_path, 0, files.size(offset_path))
        time_data = files.read(time_path, 0, files.size(time_path))
        offsets, positions = decode_offset_index(offset_data, base_offset, str(offset_path))
        timestamps_ms, time_offsets = decode_time_index(time_data, base_offset, str(time_path))
        self._entries = list(zip(positions.tolist(), offsets.tolist(), strict=True))
        self._times = list(zip(time_offsets.tolist(), timestamps_ms.tolist(), strict=True))

    def visit(self, batch: StoredBatch) -> None:
        """Look for the entries that speak of this batch."""
        if self._problem is not None:
            return
        if self._awaited is not None:
            if batch.offset_last > self._awaited:
                self._wrong("offset index", f"offset {self._awaited} is not the end of a batch")
            elif batch.offset_last == self._awaited:
                self._awaited = None
        if self._entry < len(self._entries) and batch.position >= self._entries[self._entry][0]:
            position, offset = self._entries[self._entry]
            self._entry += 1
            if batch.position != position or self._awaited is not None or batch.offset_last > offset:
                self._wrong("offset index", f"no append begins at byte {position} and ends with offset {offset}")
            elif batch.offset_last < offset:
                self._awaited = offset
        if self._time < len(self._times) and batch.base_offset >= self._times[self._time][0]:
            offset, timestamp_ms = self._times[self._time]
            self._time += 1
            if batch.base_offset != offset or batch.commit_timestamp_ms != timestamp_ms:
                self._wrong("time index", f"the batch at offset {offset} was not committed at {timestamp_ms}")

    def finish(self) -> None:
        """Raise what was wrong; entries that no batch came for are."""
        if self._problem is None and self._awaited is not None:
            self._wrong("offset index", f"no batch ends with offset {self._awaited}")
        if self._problem is None and (self._entry < len(self._entries) or self._time < len(self._times)):
            self._wrong("offset index", "it has entries behind the end of the segment")
        if self._problem is not None:
            raise IndexDamagedError(self._problem.message, self._problem.error_code) from self._problem

    def _wrong(self, what: str, reason: str) -> None:
        self._problem = damaged(f"{what} of", reason, str(self._path))
