"""What happens to a log directory when a server starts.

1. Look at the names: leftovers of interrupted work go, segments are put in order.
2. Segments that were complete before the recovery offset are taken as they are; what is read from them later is
   checked then. After a clean shutdown that is all of them, and of the last one no more than the end is read.
3. Otherwise segments that go on after the recovery offset are read now, batch by batch.
4. The last of them may end in the middle of a write. That tail is cut off: no writer was told that it was written. A
   bad place that cannot be such a tail, or that lies before the recovery offset, or that follows a clean shutdown, is
   refused with the name of the file and the position, because cutting there would lose acknowledged rows in silence.
5. A segment with another one behind it was durable before the other was begun, so a bad place in it is damage and
   refused. Not so if writes are left to the operating system (``is_synced`` is false): when power was lost, any file
   may lack something that was never promised to be there. Then the log ends before the first bad or missing place
   after the recovery offset, and later segments are removed. A process that was killed leaves no such place.
6. The state of the writers is the newest snapshot that can be used, and what the log says after it. If all snapshots
   are older than the last segment, a new one is written: when the others expire, it is all that tells.
7. What was found is made durable, because the server is about to call it so.

How a torn write is told from bytes that have changed: a write that was under way when the machine stopped is the last
thing in a file, or parts of it never reached the disk and read as zeros. A bad batch without missing sectors and with
good batches behind it is neither: something changed bytes that had been written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fluss.buffers import Int64Array, UInt8Array, byte_array
from fluss.errors import CorruptRecordError, FlussError
from fluss.record.log_batch import (
    HEADER_BYTES_MAX,
    HEADER_BYTES_MIN,
    HEADER_LAYOUTS,
    LENGTH_END,
    MAGIC_NEWEST,
    NO_WRITER_ID,
    read_batch,
    verify_crc,
)
from fluss.schema.table import TableBucket
from fluss.storage.log.committer import LogEnd
from fluss.storage.log.file_names import LogFileKind, LogFileName, directories_above, log_file_name
from fluss.storage.log.scan import TIMESTAMP_MS_MAX, ScanResult, StoredBatch, damage_at
from fluss.storage.log.segment import Segment
from fluss.storage.log.writer_state import WriterEntry, WriterState, decode_writer_snapshot, encode_writer_snapshot
from fluss.storage.vfs import TEMPORARY_SUFFIX, Files

# After a clean shutdown, a last segment up to this size is read whole, and appends go on in it. A larger one is left
# as it is and a new one is begun: a start must not take longer because there is more to read.
_WHOLE_BYTES: Final = 64 * 1024
# Disks and file systems lose writes in units of this size or a multiple of it.
SECTOR_BYTES: Final = 512
_WINDOW_BYTES: Final = 1024 * 1024
# Where fields of a header lie, by magic.
_POSITIONS: Final = {
    name: np.array([layout.offsets[name] for layout in HEADER_LAYOUTS])
    for name in ("length", "commit_timestamp", "last_offset_delta", "record_count")
}
_HEADER_BYTES: Final = np.array([layout.size for layout in HEADER_LAYOUTS])


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery found and did."""

    offset_start: int
    offset_next: int
    segments_scanned: int
    # Both zero after a clean shutdown.
    bytes_dropped: int
    segments_dropped: int
    # Byte in its segment from which on was dropped.
    first_bad_position: int | None


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A log as it was found."""

    segments: list[Segment]
    end: LogEnd
    writers: WriterState
    # Of the snapshots that are kept, ascending.
    snapshot_offsets: list[int]
    result: RecoveryReport


_EMPTY: Final = RecoveryReport(0, 0, 0, 0, 0, None)
_EMPTY_END: Final = LogEnd(None, 0, 0, -1)


def empty_log() -> LoadedLog:
    """Return a log of which nothing is on the disk."""
    return LoadedLog([], _EMPTY_END, WriterState(), [], _EMPTY)


def load_log(
    files: Files,
    directory: Path,
    bucket: TableBucket,
    *,
    recovery_offset: int,
    was_clean: bool,
    is_synced: bool,
    interval_bytes: int,
    writers_since_ms: int,
) -> LoadedLog:
    """Load a directory, which need not exist. Raises CorruptRecordError for damage that cannot be repaired."""
    file_names = files.names(directory)
    if not file_names and recovery_offset == 0:
        return empty_log()
    loader = _Loader(files, directory, bucket, recovery_offset, was_clean, is_synced, interval_bytes)
    return loader.load(file_names, writers_since_ms)


class _Loader:
    """One load, with what it finds and counts."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        bucket: TableBucket,
        recovery_offset: int,
        was_clean: bool,
        is_synced: bool,
        interval_bytes: int,
    ) -> None:
        self._files = files
        self._directory = directory
        self._bucket = bucket
        self._recovery_offset = recovery_offset
        self._was_clean = was_clean
        self._is_synced = is_synced
        self._interval_bytes = interval_bytes
        self._segments: list[Segment] = []
        # The writers of the batches that were read, which are all batches from this offset on.
        self._read_from: int | None = None
        self._writers_read = WriterState()
        self._snapshot_offsets: list[int] = []
        self._segments_scanned = 0
        self._segments_dropped = 0
        self._bytes_dropped = 0
        self._first_bad_position: int | None = None
        # Whether a file was removed or shortened.
        self._is_changed = False

    def load(self, file_names: Sequence[str], writers_since_ms: int) -> LoadedLog:
        names = self._sorted_names(file_names)
        bases = [name.offset for name in names if name.kind is LogFileKind.SEGMENT]
        snapshots = [name for name in names if name.kind is LogFileKind.WRITER_SNAPSHOT]
        if bases:
            self._load_segments(bases)
        end = self._end()
        self._check_end(end.offset_next, snapshots)
        writers = self._load_writers(end.offset_next, snapshots)
        writers.expire(writers_since_ms)
        self._make_durable(end.offset_next)
        self._save_writers(end.offset_next, writers)
        result = RecoveryReport(
            self._segments[0].base_offset if bases else 0,
            end.offset_next,
            self._segments_scanned,
            self._bytes_dropped,
            self._segments_dropped,
            self._first_bad_position,
        )
        return LoadedLog(self._segments, end, writers, self._snapshot_offsets, result)

    def _end(self) -> LogEnd:
        if not self._segments:
            return _EMPTY_END
        last = self._segments[-1]
        timestamp_max_ms = last.timestamp_max_ms
        if last.size_bytes == 0 and len(self._segments) > 1:
            # Time must not go back because a segment was begun and got nothing.
            timestamp_max_ms = self._segments[-2].load_timestamp_max()
        return LogEnd(last, last.size_bytes, last.offset_next, timestamp_max_ms)

    # Names

    def _sorted_names(self, file_names: Sequence[str]) -> list[LogFileName]:
        """Return the files of the log by offset, after removing what is left of interrupted work."""
        names = []
        for file_name in file_names:
            name = LogFileName.parse(file_name)
            if name is not None and not name.is_deleted:
                names.append(name)
            elif name is not None or file_name.endswith(TEMPORARY_SUFFIX):
                self._remove(file_name)
        names.sort(key=lambda name: name.offset)
        segments = {name.offset for name in names if name.kind is LogFileKind.SEGMENT}
        for name in names:
            if name.kind in (LogFileKind.OFFSET_INDEX, LogFileKind.TIME_INDEX) and name.offset not in segments:
                self._remove(str(name))
        return names

    def _remove(self, name: str) -> None:
        self._files.remove(self._directory / name)
        self._is_changed = True

    # Segments

    def _load_segments(self, bases: Sequence[int]) -> None:
        for base_offset, base_offset_next in pairwise(bases):
            segment = self._found(base_offset)
            self._segments.append(segment)
            if self._was_clean or base_offset_next <= self._recovery_offset:
                segment.offset_next = base_offset_next
            elif not self._read_closed(segment, base_offset_next):
                self._drop_segments(bases[bases.index(base_offset_next) :])
                return
        self._read_last(self._found(bases[-1]))

    def _found(self, base_offset: int) -> Segment:
        return Segment.found(self._files, self._directory, base_offset, interval_bytes=self._interval_bytes)

    def _read_closed(self, segment: Segment, base_offset_next: int) -> bool:
        """Read a segment that has others behind it; return whether it leads to the next one."""
        result = self._read(segment)
        problem = result.problem
        if problem is None and result.offset_next != base_offset_next:
            problem = damage_at(
                segment.path,
                result.position_end,
                f"offset {result.offset_next}: the file ends here and the next segment begins at {base_offset_next}; a "
                "part of the file or a segment is missing",
            )
        if problem is not None:
            if self._is_synced:
                hint = "if the server ran with durability=os when it was interrupted, start it with that once"
                raise CorruptRecordError(f"{problem.message}; {hint}")
            self._end_at(segment, result, problem)
            return False
        self._end_at(segment, result, None)
        with suppress(OSError):
            # On a full disk the index stays in memory.
            segment.store_index()
        segment.release_index()
        return True

    def _read_last(self, segment: Segment) -> None:
        self._segments.append(segment)
        if self._was_clean and segment.size_bytes > _WHOLE_BYTES:
            result = segment.scan_tail()
        else:
            result = self._read(segment)
        self._end_at(segment, result, result.problem)

    def _read(self, segment: Segment) -> ScanResult:
        if self._read_from is None:
            self._read_from = segment.base_offset
        self._segments_scanned += not self._was_clean
        return segment.load(self._note_writer)

    def _note_writer(self, batch: StoredBatch) -> None:
        if batch.writer_id != NO_WRITER_ID:
            self._writers_read.add(_entry_of(batch))

    def _end_at(self, segment: Segment, result: ScanResult, problem: FlussError | None) -> None:
        """Take over what is good of a segment, and cut off a bad tail if it can be a write that was interrupted."""
        if problem is not None:
            self._check_cut(segment, result, problem)
            self._first_bad_position = result.position_end
            if result.position_end < segment.size_bytes:
                self._bytes_dropped += segment.size_bytes - result.position_end
                self._files.truncate(segment.path, result.position_end)
                self._is_changed = True
        segment.size_bytes = result.position_end
        segment.offset_next = result.offset_next
        segment.timestamp_max_ms = result.timestamp_max_ms if result.position_end else -1

    def _check_cut(self, segment: Segment, result: ScanResult, problem: FlussError) -> None:
        """Raise the problem if a log must not end where it was found."""
        is_acknowledged = self._was_clean or result.offset_next < self._recovery_offset
        if is_acknowledged or not is_torn_write(
            self._files, segment.path, result.position_end, segment.size_bytes, result.offset_next
        ):
            raise problem

    def _drop_segments(self, bases: Sequence[int]) -> None:
        for base_offset in bases:
            segment = self._found(base_offset)
            self._bytes_dropped += segment.size_bytes
            self._segments_dropped += 1
            segment.remove()
            self._is_changed = True

    def _check_end(self, offset_next: int, snapshots: Sequence[LogFileName]) -> None:
        """Raise if the log ends before something that is known to have been there."""
        offset_known = self._recovery_offset
        if self._was_clean and snapshots:
            # A snapshot of the writers covers rows that were in the log when it was written.
            offset_known = max(offset_known, snapshots[-1].offset)
        if offset_next < offset_known:
            if not self._segments:
                raise CorruptRecordError(
                    f"{self._directory} holds no log, though {offset_known} offsets of it were written; restore the "
                    "directory, or drop the table"
                )
            raise damage_at(
                self._segments[-1].path,
                self._segments[-1].size_bytes,
                f"offset {offset_next}: the log ends here, though everything before offset {offset_known} was written",
            )

    # Writers

    def _load_writers(self, offset_next: int, snapshots: Sequence[LogFileName]) -> WriterState:
        """Take the newest snapshot that can be used, and add what the log says after it."""
        read_from = offset_next if self._read_from is None else self._read_from
        if read_from == 0 and len(self._segments) == 1:
            # The log was read from its first row on, and no part of it can expire before the next snapshot is taken.
            self._keep_snapshots(snapshots, offset_next)
            return self._writers_read
        state = WriterState()
        replay_from = self._segments[0].base_offset if self._segments else 0
        for name in reversed(snapshots):
            entries = self._read_snapshot(name) if name.offset <= offset_next else None
            if entries is None:
                # The snapshot is a cache: the batches of the log say the same.
                continue
            replay_from = max(replay_from, name.offset)
            for entry in entries:
                if entry.offset_last < min(replay_from, read_from):
                    state.add(entry)
            break
        self._keep_snapshots(snapshots, replay_from)
        for segment in self._segments:
            if segment.offset_next > replay_from and segment.base_offset < read_from:
                self._replay(segment, replay_from, state)
        for entry in self._writers_read.entries():
            state.add(entry)
        return state

    def _keep_snapshots(self, snapshots: Sequence[LogFileName], offset: int) -> None:
        """Remove the snapshots after an offset: they cannot be used, and a log could grow past them."""
        for name in snapshots:
            if name.offset <= offset:
                self._snapshot_offsets.append(name.offset)
            else:
                self._remove(str(name))

    def _read_snapshot(self, name: LogFileName) -> list[WriterEntry] | None:
        path = self._directory / str(name)
        try:
            return decode_writer_snapshot(self._files.read(path, 0, self._files.size(path)), str(path))
        except FlussError:
            return None

    def _replay(self, segment: Segment, offset: int, state: WriterState) -> None:
        """Add the batches of a segment from an offset on, reading the whole of it."""

        def note(batch: StoredBatch) -> None:
            if batch.writer_id != NO_WRITER_ID and batch.base_offset >= offset:
                state.add(_entry_of(batch))

        result = segment.scan(note)
        if result.problem is not None:
            raise result.problem

    def _save_writers(self, offset_next: int, writers: WriterState) -> None:
        """Write a snapshot unless one is as new as the last segment. Without it, the others could not expire."""
        snapshot_offset = self._snapshot_offsets[-1] if self._snapshot_offsets else 0
        if self._segments and snapshot_offset < self._segments[-1].base_offset:
            path = self._directory / log_file_name(offset_next, LogFileKind.WRITER_SNAPSHOT)
            with suppress(OSError):
                self._files.replace(path, encode_writer_snapshot(writers.entries()))
                self._snapshot_offsets.append(offset_next)

    # Durability

    def _make_durable(self, offset_next: int) -> None:
        is_new = not self._was_clean and offset_next > self._recovery_offset
        if not is_new and not self._is_changed:
            return
        for segment in self._segments:
            if segment.offset_next > self._recovery_offset or segment is self._segments[-1]:
                self._files.sync(segment.path)
        self._files.sync_directory(self._directory)
        if self._recovery_offset == 0:
            # The process that made the directories may have ended before it made them durable.
            for parent in directories_above(self._directory, self._bucket):
                self._files.sync_directory(parent)


def _entry_of(batch: StoredBatch) -> WriterEntry:
    """Return what is remembered of a batch for its writer."""
    return WriterEntry(
        batch.writer_id, batch.batch_sequence, batch.offset_last, batch.last_offset_delta, batch.commit_timestamp_ms
    )


# Torn writes


def is_torn_write(files: Files, path: Path, position: int, end: int, offset_next: int) -> bool:
    """Tell whether a bad place, where a batch with that offset should begin, can be an interrupted write."""
    # The place may be bad only because of what the checksum leaves out.
    is_good = _is_good_batch(files, path, position)
    following = position if is_good else _first_good_batch(files, path, position, end, offset_next)
    return following is None or _has_lost_sector(files, path, position, following)


def _first_good_batch(files: Files, path: Path, position: int, end: int, offset_next: int) -> int | None:
    """Return where, behind a bad position, a whole batch with a later offset and a right checksum begins."""
    # Windows overlap by a header, so that none is cut in two.
    for start in range(position, end - HEADER_BYTES_MIN + 1, _WINDOW_BYTES):
        window = files.read(path, start, _WINDOW_BYTES + HEADER_BYTES_MAX)
        for candidate in map(int, _candidates(byte_array(window), offset_next, end - start)):
            if start + candidate > position and _is_good_batch(files, path, start + candidate):
                return start + candidate
    return None


def _candidates(window: UInt8Array, offset_next: int, byte_count: int) -> Int64Array:
    """Return, in ascending order, where a later batch could begin of which no more than so many bytes are left.

    This is strict because it is what keeps the search fast: a column of small numbers looks much like headers.
    """
    # A header at the end may be one of the shorter ones.
    window = np.concatenate((window, np.zeros(HEADER_BYTES_MAX - HEADER_BYTES_MIN, np.uint8)))
    found = np.sort(np.concatenate([_later_offsets(window, shift, offset_next) for shift in range(8)]))
    found = found[window[found + LENGTH_END] <= MAGIC_NEWEST]
    magics = window[found + LENGTH_END]
    lengths = _integers(window, found + _POSITIONS["length"][magics], "<i4")
    times_ms = _integers(window, found + _POSITIONS["commit_timestamp"][magics], "<i8")
    counts = _integers(window, found + _POSITIONS["record_count"][magics], "<i4")
    deltas = _integers(window, found + _POSITIONS["last_offset_delta"][magics], "<i4")
    body_lengths = lengths + LENGTH_END - _HEADER_BYTES[magics]
    is_possible = (body_lengths >= 0) & (lengths <= byte_count - LENGTH_END - found)
    is_possible &= (times_ms >= 0) & (times_ms <= TIMESTAMP_MS_MAX)
    # Records need a body, and a body holds records.
    is_possible &= (counts >= 0) & (deltas >= counts - 1) & (deltas >= 0) & ((counts > 0) == (body_lengths > 0))
    possible: Int64Array = found[is_possible]
    return possible


def _later_offsets(window: UInt8Array, shift: int, offset_next: int) -> Int64Array:
    """Return those of every eighth position, from ``shift`` on, that hold an offset which may come later."""
    offsets = np.frombuffer(window, "<i8", count=(len(window) - shift) // 8, offset=shift)
    positions = np.flatnonzero((offsets > offset_next) & (offsets <= offset_next + 2**31)) * 8 + shift
    return positions[positions <= len(window) - HEADER_BYTES_MAX]


def _integers(window: UInt8Array, positions: Int64Array, kind: str) -> Int64Array:
    """Read integers at any positions."""
    width = np.dtype(kind).itemsize
    integers: npt.NDArray[Any] = window[positions[:, None] + np.arange(width)].view(kind)
    return integers.reshape(-1).astype(np.int64)


def _is_good_batch(files: Files, path: Path, position: int) -> bool:
    length = files.read(path, position, LENGTH_END)[LENGTH_END - 4 :]
    try:
        verify_crc(read_batch(files.read(path, position, LENGTH_END + int.from_bytes(length, "little"))))
    except FlussError:
        return False
    return True


def _has_lost_sector(files: Files, path: Path, position: int, end: int) -> bool:
    """Tell whether a sector before ``end``, or what follows ``position`` in its own sector, is all zeros.

    A good batch begins at ``end``, so the sector there was written.
    """
    position_aligned = -(-position // SECTOR_BYTES) * SECTOR_BYTES
    head = files.read(path, position, position_aligned - position)
    if head and not any(head):
        return True
    for start in range(position_aligned, end, _WINDOW_BYTES):
        window = byte_array(files.read(path, start, min(_WINDOW_BYTES, end - start)))
        sectors = window[: len(window) // SECTOR_BYTES * SECTOR_BYTES].reshape(-1, SECTOR_BYTES)
        if not sectors.any(axis=1).all():
            return True
    return False
