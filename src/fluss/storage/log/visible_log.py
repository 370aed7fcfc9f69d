"""What readers see of a log: its segments, and the point up to which they may be read.

The owner of a log replaces both as a whole, so that any thread may look at them at any time. A reader that was on its
way to rows which have expired meanwhile is told so.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Final

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.schema.table import TableBucket
from fluss.storage.log.pending_writes import LogEnd
from fluss.storage.log.segment import Segment

# What was written so recently is in the page cache: reading it takes no longer than asking another thread to.
_CACHED_BYTES: Final = 1024 * 1024
_CACHED_READ_BYTES: Final = 256 * 1024


class VisibleLog:
    """All methods may be called from any thread; those that read files block."""

    __slots__ = ("bucket", "directory", "end", "segments")

    def __init__(self, bucket: TableBucket, directory: Path, segments: tuple[Segment, ...], end: LogEnd) -> None:
        self.bucket = bucket
        self.directory = directory
        # They may go on behind the end, with what is on its way to the disk.
        self.segments = segments
        self.end = end

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
        end = self.end
        if not self.offset_start <= offset <= max(offset_max, end.offset_next):
            raise self._out_of_range(offset, end)
        if offset >= end.offset_next:
            return memoryview(b"")
        try:
            return self._read_segment(self._segment_with(offset), end, offset, bytes_max, at_least_one_batch)
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

    def _read_segment(
        self, segment: Segment, end: LogEnd, offset: int, bytes_max: int, at_least_one_batch: bool
    ) -> memoryview:
        if segment.base_offset > offset:
            raise self._out_of_range(offset, end)
        position_end = end.position if segment is end.segment else segment.size_bytes
        first = segment.find(offset, position_end)
        if at_least_one_batch:
            bytes_max = max(bytes_max, first.size)
        return memoryview(segment.read(first, min(bytes_max, position_end - first.position)))

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
        # In this order: what was there before the end was looked at lies before the end, or is where it lies.
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


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
