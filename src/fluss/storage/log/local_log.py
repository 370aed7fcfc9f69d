"""The files of a log as readers see them: its segments, and the point up to which they may be read.

The owner of a log replaces both as a whole, so that any thread may look at them at any time. A reader that was on its
way to rows which have expired meanwhile is told so.

Below it, the work on these files that takes time and belongs into a thread: expiry, syncs, deletion. Those functions
block and raise OSError.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.schema.table import TableBucket
from fluss.storage.log.committer import LogEnd, PendingWrites
from fluss.storage.log.file_names import DELETED_SUFFIX, LogFileKind, LogFileName, directories_above
from fluss.storage.log.scan import StoredBatch
from fluss.storage.log.segment import HeadLimits, Segment, StoredHeads
from fluss.storage.vfs import Files

ReadT = TypeVar("ReadT")

# What was written so recently is in the page cache: reading it takes no longer than asking another thread to.
_CACHED_BYTES: Final = 1024 * 1024
_CACHED_READ_BYTES: Final = 256 * 1024
_base_offset: Final = attrgetter("base_offset")


class StoredRange(NamedTuple):
    """Whole batches in a file."""

    path: Path
    position: int
    byte_count: int


class LocalLog:
    """The segments of one log and the end that readers see. Any thread may call; methods that read files block."""

    __slots__ = ("bucket", "directory", "doomed", "end", "segments")

    def __init__(self, bucket: TableBucket, directory: Path, segments: tuple[Segment, ...], end: LogEnd) -> None:
        self.bucket = bucket
        self.directory = directory
        # They may hold more than lies before the end: what is on its way to the disk.
        self.segments = segments
        self.end = end
        # Those before them that have expired. Their files may still be there, and have to go before any others do.
        self.doomed: tuple[Segment, ...] = ()

    @property
    def offset_start(self) -> int:
        segments = self.segments
        return segments[0].base_offset if segments else 0

    def segments_until(self, end: LogEnd) -> tuple[Segment, ...]:
        """Return the segments up to the one with the end in it."""
        last = end.segment
        return tuple(segment for segment in self.segments if last and segment.base_offset <= last.base_offset)

    def read(self, offset: int, bytes_max: int, *, offset_max: int, at_least_one_batch: bool) -> memoryview:
        """See ``LogTablet.read``. Between the end and ``offset_max`` there is nothing yet."""

        def read(segment: Segment, first: StoredBatch, position_end: int) -> memoryview:
            byte_count = max(bytes_max, first.size) if at_least_one_batch else bytes_max
            return memoryview(segment.read(first, min(byte_count, position_end - first.position)))

        found = self._read_from(offset, offset_max, read)
        return memoryview(b"") if found is None else found

    def read_heads(self, offset: int, limits: HeadLimits, *, offset_max: int) -> StoredHeads | None:
        """See ``LogTablet.read_heads``. Between the end and ``offset_max`` there is nothing yet."""

        def read(segment: Segment, first: StoredBatch, position_end: int) -> StoredHeads:
            return segment.read_heads(first, position_end, limits)

        return self._read_from(offset, offset_max, read)

    def _read_from(
        self, offset: int, offset_max: int, read: Callable[[Segment, StoredBatch, int], ReadT]
    ) -> ReadT | None:
        """Read from the batch on that has an offset, to the end of its segment at most; None at the end of the log."""
        end = self.end
        if not self.offset_start <= offset <= max(offset_max, end.offset_next):
            raise self._out_of_range(offset, end)
        if offset >= end.offset_next:
            return None
        try:
            segment = self._segment_with(offset)
            if segment.base_offset > offset:
                raise self._out_of_range(offset, end)
            position_end = end.position if segment is end.segment else segment.size_bytes
            return read(segment, segment.find(offset, position_end), position_end)
        except FileNotFoundError as error:
            if offset < self.offset_start:
                raise self._out_of_range(offset, end) from None
            raise CorruptRecordError(f"{error.filename} is missing; offset {offset} was in it") from error
        except OSError as error:
            raise self._unreadable(error) from error

    def _segment_with(self, offset: int) -> Segment:
        segments = self.segments
        index = bisect_right(segments, offset, key=_base_offset) - 1
        return segments[max(index, 0)]

    def ranges(self, offset: int, end: LogEnd) -> list[StoredRange]:
        """See ``LogTablet.ranges``."""
        ranges: list[StoredRange] = []
        try:
            for segment in self.segments_until(end):
                if segment is not end.segment and segment.offset_next <= offset:
                    continue
                if not ranges and segment.base_offset > offset:
                    raise self._out_of_range(offset, end)
                position, position_end = 0, end.position if segment is end.segment else segment.size_bytes
                if segment.base_offset < offset:
                    first = segment.find(offset, position_end)
                    if first.base_offset != offset:
                        raise CorruptRecordError(f"no batch of {segment.path} begins with offset {offset}")
                    position = first.position
                ranges.append(StoredRange(segment.path, position, position_end - position))
        except OSError as error:
            raise self._unreadable(error) from error
        return [part for part in ranges if part.byte_count]

    def is_cached(self, offset: int, bytes_max: int) -> bool:
        """See ``LogTablet.is_cached``."""
        end = self.end
        if end.segment is None or offset < end.segment.base_offset or offset >= end.offset_next:
            return offset >= end.offset_next
        position = end.segment.position_before(offset)
        return (
            position is not None
            and end.position - position <= _CACHED_BYTES
            and min(bytes_max, end.position - position) <= _CACHED_READ_BYTES
        )

    def offset_for_timestamp(self, timestamp_ms: int) -> int:
        """See ``LogTablet.offset_for_timestamp``."""
        # Segments first: each of them then lies before the end, which is read later, or holds it.
        segments, end = self.segments, self.end
        if end.segment is None:
            return end.offset_next
        for segment in segments:
            try:
                if segment is end.segment:
                    if end.timestamp_max_ms >= timestamp_ms and end.position:
                        return segment.find_time(timestamp_ms, end.position).base_offset
                    break
                if segment.load_timestamp_max() >= timestamp_ms:
                    return segment.find_time(timestamp_ms, segment.size_bytes).base_offset
            except OSError as error:
                # It may have expired meanwhile; then the answer is in a later one.
                if segment.base_offset >= self.offset_start:
                    raise self._unreadable(error) from error
        return end.offset_next

    def _out_of_range(self, offset: int, end: LogEnd) -> FlussError:
        return FlussError(
            f"offset {offset} of {self.bucket} is out of range: the log has {self.offset_start} to {end.offset_next}",
            ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
        )

    def _unreadable(self, error: OSError) -> FlussError:
        return FlussError(f"cannot read {self.directory}: {error}", ErrorCode.LOG_STORAGE_EXCEPTION)


# Work for threads


def first_segment_time(files: Files, directory: Path, *, interval_bytes: int, is_only_one_wanted: bool) -> int | None:
    """Return the commit time of the last batch in the first segment of a log on the disk; None if it is empty.

    Of a log with a single segment it is also None, unless that is wanted.
    """
    names = map(LogFileName.parse, files.names(directory))
    bases = [name.offset for name in names if name and name.kind is LogFileKind.SEGMENT and not name.is_deleted]
    if not bases or (len(bases) == 1 and not is_only_one_wanted):
        return None
    time_ms = Segment.found(files, directory, min(bases), interval_bytes=interval_bytes).load_timestamp_max()
    return time_ms if time_ms >= 0 else None


def count_expired(segments: Sequence[Segment], expired_before_ms: int) -> int:
    """Count the segments at the start of a log in which everything is older. An empty one has no age."""
    for count, segment in enumerate(segments):
        if segment.load_timestamp_max() >= expired_before_ms or not segment.size_bytes:
            return count
    return len(segments)


def count_copied(segments: Sequence[Segment], offset_copied: int, segments_kept: int) -> int:
    """Count the segments at the start of a log that end at or before an offset, without the last ones."""
    candidates = segments[: max(0, len(segments) - segments_kept)]
    return sum(segment.offset_next <= offset_copied for segment in candidates)


def remove_doomed(files: Files, log: LocalLog, pending: PendingWrites) -> None:
    """Remove the segments before the start of a log, so that a crash finds the log whole, whenever it happens."""
    # Once the rows are gone, only the snapshot knows what their writers have done.
    pending.sync_snapshot()
    files.sync_directory(log.directory)
    for segment in log.doomed:
        segment.remove()
        # One after the other: a log whose middle is gone and whose beginning came back could not be opened.
        files.sync_directory(log.directory)
    log.doomed = ()


def sync_segments(files: Files, log: LocalLog, segments: Sequence[Segment], *, is_first: bool) -> None:
    """Make segments durable, and the names in their directory; the first time the directories above it as well."""
    for segment in segments:
        try:
            files.sync(segment.path)
        except FileNotFoundError:
            # It may have expired meanwhile.
            if segment.base_offset >= log.offset_start:
                raise
    files.sync_directory(log.directory)
    if is_first:
        for directory in directories_above(log.directory, log.bucket):
            files.sync_directory(directory)


def remove_log(files: Files, directory: Path) -> None:
    """Remove the directory of a log. A missing one is not an error."""
    # The new name first: a start after a crash sees by it that the directory was to go.
    doomed = directory.with_name(directory.name + DELETED_SUFFIX)
    files.remove_tree(doomed)
    if files.exists(directory):
        files.rename(directory, doomed)
        files.remove_tree(doomed)
