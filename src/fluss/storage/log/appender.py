"""The end at which a log grows: batches get their offsets, their commit time and their place in a segment.

No I/O happens here. What was added waits in ``PendingWrites`` for the committer; until it is durable, the log can go
back to before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fluss.errors import CorruptRecordError, ErrorCode, FlussError, SizeLimitError
from fluss.integers import INT32_MAX
from fluss.record.framing import load_crc32c
from fluss.record.log_batch import (
    NO_WRITER_ID,
    BatchOutline,
    LogBatch,
    LogBatchHeader,
    assign_offset,
    iter_batches,
    verify_crc,
)
from fluss.storage.log.append_result import AppendResult, History
from fluss.storage.log.committer import LogEnd, PendingWrites, SegmentRoll, SegmentWrite
from fluss.storage.log.file_names import OFFSET_MAX
from fluss.storage.log.index import TIME_ENTRY_BYTES
from fluss.storage.log.local_log import LocalLog
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.log.segment import Segment
from fluss.storage.log.writer_state import WriterEntry, WriterState
from fluss.storage.vfs import Files

load_crc32c()


class LogAppender:
    """The growing end of one log. Belongs to its event loop."""

    __slots__ = (
        "_clock",
        "_files",
        "_local",
        "_settings",
        "offset_next",
        "pending",
        "pending_bytes",
        "timestamp_max_ms",
        "writers",
    )

    def __init__(
        self,
        local: LocalLog,
        pending: PendingWrites,
        writers: WriterState,
        settings: LogSettings,
        files: Files,
        clock: Callable[[], int],
    ) -> None:
        # What the next row gets, and the commit time of the last batch; -1 in an empty log.
        self.offset_next = local.end.offset_next
        self.timestamp_max_ms = local.end.timestamp_max_ms
        self.writers = writers
        self.pending = pending
        # On their way to the disk.
        self.pending_bytes = 0
        self._local = local
        self._settings = settings
        self._files = files
        self._clock = clock

    def add(
        self,
        view: memoryview,
        headers: Sequence[LogBatchHeader | BatchOutline],
        history: History,
        *,
        offset_durable: int,
    ) -> AppendResult:
        """Take the batches at the start of a view, into which offsets and times are written. Raises code 14."""
        offset_base = self.offset_next
        offset_next = offset_base + _offset_count(headers)
        if offset_next > OFFSET_MAX:
            raise CorruptRecordError(f"the append would end at offset {offset_next}, the last one is {OFFSET_MAX}")
        byte_count = sum([header.size for header in headers])
        segment = self._segment_for(byte_count, offset_next - 1)
        timestamp_ms = max(self.timestamp_max_ms, self._clock())
        self._stamp(view, headers, timestamp_ms, offset_durable)
        position = segment.size_bytes
        segment.add(offset_next=offset_next, byte_count=byte_count, timestamp_ms=timestamp_ms)
        self.offset_next = offset_next
        self.timestamp_max_ms = timestamp_ms
        self.pending_bytes += byte_count
        end = LogEnd(segment, segment.size_bytes, offset_next, timestamp_ms)
        self.pending.put(SegmentWrite(view[:byte_count], position, offset_base, end))
        return AppendResult(offset_base, offset_next, timestamp_ms, False, history)

    def _stamp(
        self,
        view: memoryview,
        headers: Sequence[LogBatchHeader | BatchOutline],
        timestamp_ms: int,
        offset_durable: int,
    ) -> None:
        """Give every batch its offset and time, and remember it for its writer."""
        position, offset_next = 0, self.offset_next
        for header in headers:
            assign_offset(view, offset_next, timestamp_ms, position)
            position += header.size
            offset_next += header.last_offset_delta + 1
            if header.writer_id != NO_WRITER_ID:
                entry = WriterEntry(
                    header.writer_id, header.batch_sequence, offset_next - 1, header.last_offset_delta, timestamp_ms
                )
                self.writers.add(entry, offset_durable=offset_durable)

    def _segment_for(self, byte_count: int, offset_last: int) -> Segment:
        """Return the segment that an append goes to, beginning a new one where needed."""
        if self._local.segments and self._local.segments[-1].has_room_for(
            byte_count,
            offset_last,
            bytes_max=self._settings.segment_bytes_max,
            index_entries_max=self._settings.index_bytes_max // TIME_ENTRY_BYTES,
        ):
            return self._local.segments[-1]
        return self._roll()

    def _roll(self) -> Segment:
        if self._local.segments:
            is_snapshot_needed = self._local.offset_start > 0
            self.pending.put(
                SegmentRoll(self._local.segments[-1], self.offset_next, self.writers.entries(), is_snapshot_needed)
            )
        segment = Segment(
            self._files, self._local.directory, self.offset_next, interval_bytes=self._settings.index_interval_bytes
        )
        self._local.segments = (*self._local.segments, segment)
        return segment

    def add_empty_segment(self) -> None:
        """Begin a segment that holds nothing yet."""
        end = LogEnd(self._roll(), 0, self.offset_next, self.timestamp_max_ms)
        self.pending.put(SegmentWrite(b"", 0, end.offset_next, end))

    def forget_pending(self) -> None:
        """Let go of what was not written yet."""
        self.pending.clear()
        self.pending_bytes = 0

    def go_back_to(self, end: LogEnd) -> None:
        """Forget the batches behind a point. Nothing of them is on the disk, or on its way there."""
        self._local.segments = self._local.segments_until(end)
        if end.segment is not None:
            end.segment.cut(size_bytes=end.position, offset_next=end.offset_next, timestamp_max_ms=end.timestamp_max_ms)
        self.writers.undo_from(end.offset_next)
        self.offset_next = end.offset_next
        self.timestamp_max_ms = end.timestamp_max_ms

    def expire_writers(self) -> int:
        """See ``LogTablet.expire_writers``."""
        return self.writers.expire(self._clock() - self._settings.writer_expiration_ms)


def checked_headers(
    view: memoryview, batch_bytes_max: int, batches: Sequence[LogBatch] | None = None
) -> list[LogBatchHeader]:
    """Return the headers of the whole batches in a view. Raises code 14 for damage, 13 for one that is too large.

    ``batches`` are those of the view, if they are known.
    """
    headers = []
    try:
        # They are looked for again if what is behind the last of them matters.
        are_known = batches is not None and sum([batch.header.size for batch in batches]) == len(view)
        for batch in batches if are_known and batches else iter_batches(view, batch_bytes_max):
            if batch.header.size > batch_bytes_max:
                raise SizeLimitError(
                    f"A log batch has {batch.header.size} bytes, at most {batch_bytes_max} are allowed"
                )
            verify_crc(batch)
            headers.append(batch.header)
    except SizeLimitError as error:
        raise FlussError(error.message, ErrorCode.RECORD_TOO_LARGE_EXCEPTION) from error
    return headers


def _offset_count(headers: Sequence[LogBatchHeader | BatchOutline]) -> int:
    """Return how many offsets batches take. The indexes of a segment have 32 bits for the distance of two."""
    count = sum([header.last_offset_delta + 1 for header in headers])
    if count > INT32_MAX:
        raise CorruptRecordError(f"the append spans {count} offsets, at most {INT32_MAX} are allowed")
    return count
