"""The log of one bucket: appends at one end, reads anywhere, old segments leave at the other end.

    append (event loop)    check, give offset and time, see ``appender``            offset_next moves
    write_pending (thread) one write per segment, then the disk                    see ``committer``
    durable (event loop)   wake the writers that wait                              offset_durable moves
    show (event loop)      show the rows to readers, by default at once            offset_high_watermark moves

What is between the durable and the next offset is on its way to the disk. An owner that has to do something with rows
before others read them, such as a primary-key table, holds the log back and shows rows when that is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fluss.buffers import BytesLike
from fluss.errors import ErrorCode, FlussError
from fluss.record.log_batch import BatchOutline, LogBatch
from fluss.schema.table import TableBucket
from fluss.storage.log.append_result import AppendResult, History, OffsetWaiters
from fluss.storage.log.appender import LogAppender, checked_headers
from fluss.storage.log.committer import CommitRound, Committer, LogEnd, PendingWrites
from fluss.storage.log.loader import LoadedLog, RecoveryReport, empty_log, load_log
from fluss.storage.log.local_log import (
    LocalLog,
    StoredRange,
    count_copied,
    count_expired,
    remove_doomed,
    remove_log,
    sync_segments,
)
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.log.segment import HeadLimits, Segment, StoredHeads
from fluss.storage.log.writer_state import WriterEntry
from fluss.storage.vfs import Files, is_out_of_descriptors

logger = logging.getLogger(__name__)


class LogTablet:
    """One log. It belongs to an event loop; ``read`` and the lookups may be called from any thread."""

    __slots__ = (
        "_appender",
        "_committer",
        "_end_durable",
        "_ends_held_back",
        "_files",
        "_history",
        "_is_closed",
        "_is_expiring",
        "_is_held_back",
        "_listeners",
        "_local",
        "_offset_cached",
        "_offset_synced",
        "_pending",
        "_postponement",
        "_settings",
        "_settled",
        "_waiters",
        "_waiters_written",
        "bucket",
        "directory",
        "failure",
    )

    def __init__(
        self,
        directory: Path,
        bucket: TableBucket,
        settings: LogSettings,
        files: Files,
        committer: Committer,
        clock: Callable[[], int],
        loaded: LoadedLog,
        *,
        was_clean: bool = False,
    ) -> None:
        self.bucket = bucket
        self.directory = directory
        # Why the log takes no more writes. Reading goes on.
        self.failure: FlussError | None = None
        # Why it takes none for the moment: what was appended before waits for descriptors.
        self._postponement: FlussError | None = None
        self._settings = settings
        self._files = files
        self._committer = committer
        self._local = LocalLog(bucket, directory, tuple(loaded.segments), loaded.end)
        self._end_durable = loaded.end
        # Durable, and not shown yet; oldest first.
        self._ends_held_back: deque[LogEnd] | None = None
        self._is_held_back = False
        self._settled: Callable[[], None] | None = None
        self._offset_synced = loaded.end.offset_next
        # Where the log ended when its indexes and the state of its writers were last written; -1 if that is not known.
        self._offset_cached = loaded.end.offset_next if was_clean else -1
        self._pending = PendingWrites(
            files,
            directory,
            bucket,
            is_synced=committer.is_synced,
            end_written=loaded.end,
            snapshot_offsets=loaded.snapshot_offsets,
        )
        self._appender = LogAppender(self._local, self._pending, loaded.writers, settings, files, clock)
        self._history = History()
        self._waiters = OffsetWaiters()
        self._waiters_written = OffsetWaiters()
        self._listeners: list[Callable[[LogTablet], None]] = []
        self._is_closed = False
        # Whether old segments are being removed.
        self._is_expiring = False

    @classmethod
    def open(
        cls,
        directory: Path,
        bucket: TableBucket,
        settings: LogSettings,
        *,
        files: Files,
        committer: Committer,
        clock: Callable[[], int],
        recovery_offset: int = 0,
        was_clean: bool = False,
    ) -> tuple[LogTablet, RecoveryReport]:
        """Load a log; this takes time and belongs into a thread. A directory that does not exist is an empty log.

        Everything before ``recovery_offset`` is known to have been durable. Raises CorruptRecordError for damage,
        OSError for a disk that does not work.
        """
        loaded = load_log(
            files,
            directory,
            bucket,
            recovery_offset=recovery_offset,
            was_clean=was_clean,
            is_synced=committer.is_synced,
            interval_bytes=settings.index_interval_bytes,
            writers_since_ms=clock() - settings.writer_expiration_ms,
        )
        return cls(directory, bucket, settings, files, committer, clock, loaded, was_clean=was_clean), loaded.result

    @classmethod
    def new(
        cls,
        directory: Path,
        bucket: TableBucket,
        settings: LogSettings,
        *,
        files: Files,
        committer: Committer,
        clock: Callable[[], int],
    ) -> LogTablet:
        """Return a log of which nothing is on the disk. Its directory is made by the first write."""
        return cls(directory, bucket, settings, files, committer, clock, empty_log(), was_clean=True)

    def __repr__(self) -> str:
        return f"LogTablet({self.bucket}, {self.offset_start} to {self.offset_high_watermark})"

    @property
    def offset_start(self) -> int:
        """The first offset that is still there."""
        return self._local.offset_start

    @property
    def offset_high_watermark(self) -> int:
        """Readers see what is before it."""
        return self._local.end.offset_next

    @property
    def offset_durable(self) -> int:
        """What is before it is as safe as the durability of the server makes it."""
        return self._end_durable.offset_next

    @property
    def offset_next(self) -> int:
        """The offset that the next row will get."""
        return self._appender.offset_next

    @property
    def recovery_offset(self) -> int:
        """Everything before it is on the disk, even if the machine stops now."""
        return self._offset_synced

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._local.segments)

    @property
    def segment_count(self) -> int:
        return len(self._local.segments)

    @property
    def offset_closed(self) -> int:
        """What is before it lies in segments that are complete and shown to readers."""
        segment = self._local.end.segment
        return 0 if segment is None else segment.base_offset

    def closed_segments(self, offset: int) -> tuple[Segment, ...]:
        """Return the segments before ``offset_closed`` that have something at or behind an offset."""
        segments = self._local.segments_until(self._local.end)[:-1]
        return tuple(segment for segment in segments if segment.offset_next > offset)

    @property
    def timestamp_max_ms(self) -> int:
        """The commit time of the last batch; -1 in an empty log."""
        return self._appender.timestamp_max_ms

    @property
    def writer_count(self) -> int:
        return len(self._appender.writers)

    @property
    def pending_bytes(self) -> int:
        """Bytes on their way to the disk."""
        return self._appender.pending_bytes

    @property
    def history(self) -> History:
        """What identifies the appends that are made now; a failure to write ends it."""
        return self._history

    # Appending

    def find_duplicate(self, writer_id: int, batch_sequence: int) -> AppendResult | None:
        """Return where the batch of a writer lies if it is in the log already; None if it is to be appended.

        Appends nothing. Raises code 31 for a batch out of order, and ``failure``.
        """
        self.check_open()
        duplicate = self._appender.writers.find(writer_id, batch_sequence)
        return None if duplicate is None else self._duplicate_result(duplicate)

    def _duplicate_result(self, duplicate: WriterEntry) -> AppendResult:
        return AppendResult(
            duplicate.offset_base, duplicate.offset_last + 1, duplicate.commit_time_ms, True, self._history
        )

    def append(self, records: BytesLike, batches: Sequence[LogBatch] | None = None) -> AppendResult:
        """Take batches into the log: wait with ``wait_durable`` or ``wait_written``.

        No more I/O happens here than a small write to the cache of the operating system. Offsets and commit times are
        written into ``records`` itself, which must not change from now on. All batches are taken, or none; bytes behind
        the last whole batch are left out. ``batches`` are those of the records, if they have been looked at already.
        Raises code 14 for damage, 13 for a batch that is too large, 31 for a batch out of order, and ``failure``.
        """
        self.check_open()
        view = memoryview(records)
        if view.readonly:
            view = memoryview(bytearray(view))
        headers = checked_headers(view, self._settings.batch_bytes_max, batches)
        if not headers:
            end = self._appender
            return AppendResult(end.offset_next, end.offset_next, end.timestamp_max_ms, False, self._history)
        duplicate = self._appender.writers.find_duplicate(headers)
        if duplicate is not None:
            return self._duplicate_result(duplicate)
        result = self._appender.add(view, headers, self._history, offset_durable=self._end_durable.offset_next)
        if not (self._may_write_at_once() and self._committer.write_at_once(self)):
            self._committer.submit(self)
        return result

    def _may_write_at_once(self) -> bool:
        """Whether this is little, and no report of the committer is still on its way: they come in order."""
        is_settled = self._pending.end_written is self._end_durable
        return is_settled and not self._is_held_back and self._pending.is_quick

    def append_built(self, batch: bytearray) -> AppendResult:
        """Take a batch that this server has just built, as ``append`` does, of which ``find_duplicate`` found none.

        It is not read again: its bytes have not left the process.
        """
        if len(batch) > self._settings.batch_bytes_max:
            return self.append(batch)
        self.check_open()
        outlines = (BatchOutline.of_built(batch),)
        view, durable = memoryview(batch), self._end_durable.offset_next
        result = self._appender.add(view, outlines, self._history, offset_durable=durable)
        self._committer.submit(self)
        return result

    # Waiting

    async def wait_durable(self, append: AppendResult | int) -> None:
        """Wait until an append, or everything before an offset, is durable; or raise why it never will be.

        An offset means the append that has it now. To wait for one's own append, pass its result: after a failed write
        its offset may belong to another append.
        """
        if waiting := self._wait(append, self._waiters):
            await waiting

    async def wait_written(self, append: AppendResult | int) -> None:
        """Wait until an append, or everything before an offset, is in the operating system, if not on the disk."""
        if waiting := self._wait(append, self._waiters_written):
            # The committer thread may have written it before it saw that a writer waits for it.
            self._waiters_written.wake(self._pending.end_written.offset_next)
            await waiting

    def _wait(self, append: AppendResult | int, waiters: OffsetWaiters) -> asyncio.Future[None] | None:
        if isinstance(append, int):
            append = AppendResult(append, append, 0, False, self._history)
        if self.is_durable(append):
            return None
        if append.history.failure is not None:
            raise append.history.failure.copied()
        return waiters.add(append.offset_next)

    def is_durable(self, append: AppendResult) -> bool:
        """Tell whether an append is durable."""
        if append.history.failure is not None:
            return append.offset_next <= append.history.offset_kept
        return append.offset_next <= self._end_durable.offset_next

    def on_advance(self, listener: Callable[[LogTablet], None]) -> Callable[[], None]:
        """Call a function on the loop whenever the high watermark has moved; return a function that ends this."""
        self._listeners.append(listener)

        def remove() -> None:
            with suppress(ValueError):
                self._listeners.remove(listener)

        return remove

    # What the committer does and reports

    @property
    def is_written_awaited(self) -> bool:
        return len(self._waiters_written) > 0

    def write_pending(self) -> CommitRound:
        return self._pending.write()

    def halt(self) -> None:
        self._pending.halt()

    def written(self, written: CommitRound) -> None:
        if written.end is not None:
            self._waiters_written.wake(written.end.offset_next)

    def durable(self, written: CommitRound) -> None:
        end, before = written.end, self._end_durable
        self._end_postponement()
        if end is None or self._history.failure is not None:
            return
        self._end_durable = end
        if self._committer.is_synced:
            self._offset_synced = end.offset_next
        self._appender.pending_bytes -= written.byte_count
        self.written(written)
        self._waiters.wake(end.offset_next)
        if end.segment is not before.segment:
            self._release_indexes(end)
        if self._is_held_back and end.offset_next > self.offset_high_watermark:
            if self._ends_held_back is None:
                self._ends_held_back = deque()
            self._ends_held_back.append(end)
        else:
            self._show(end)
        if self._settled is not None:
            self._settled()

    def _release_indexes(self, end: LogEnd) -> None:
        for segment in self._local.segments:
            if segment is end.segment:
                return
            segment.release_index()

    def failed(self, error: OSError, *, is_undone: bool) -> None:
        """Go back to what is durable; if that is unknown, take no more writes."""
        if self._history.failure is not None:
            return
        self._postponement = None
        if is_undone:
            refusal = FlussError(
                f"cannot write to {self.directory}: {error}; nothing of this append was stored",
                ErrorCode.LOG_STORAGE_EXCEPTION,
            )
            logger.error("%s", refusal.message)
        else:
            refusal = FlussError(
                f"{self.directory} is read-only since a write to it failed ({error}); check the disk and restart the "
                "server",
                ErrorCode.STORAGE_EXCEPTION,
            )
            logger.critical("%s", refusal.message)
        refusal.__cause__ = error
        self._end_history(refusal)
        if is_undone:
            self._appender.go_back_to(self._end_durable)
            self._history = History()
            self._pending.resume()
        else:
            self.failure = refusal

    def postponed(self, error: OSError) -> None:
        """Take no appends until those that wait for descriptors are durable; otherwise they would fill the memory."""
        if self._history.failure is None and self._postponement is None:
            self._postponement = FlussError(
                f"cannot write to {self.directory} now: {error}; nothing of this append was stored, try again; if it "
                "stays so, let the server have more open files (ulimit -n)",
                ErrorCode.LOG_STORAGE_EXCEPTION,
            )
            logger.error("appends to %s wait for descriptors: %s", self.directory, error)

    def _end_postponement(self) -> None:
        if self._postponement is not None:
            self._postponement = None
            logger.warning("appends to %s go on", self.directory)

    def _end_history(self, refusal: FlussError) -> None:
        """Forget what was not written, and fail the writers that wait for it."""
        self._history.failure = refusal
        self._history.offset_kept = self._end_durable.offset_next
        self._appender.forget_pending()
        self._waiters.fail(refusal)
        self._waiters_written.fail(refusal)
        if self._settled is not None:
            self._settled()

    # Showing

    def hold_back(self, settled: Callable[[], None] | None = None) -> None:
        """Show nothing from now on before ``show_until`` is called.

        ``settled`` is called whenever appends have become durable, or have failed.
        """
        self._is_held_back = True
        self._settled = settled

    def show_until(self, offset_next: int) -> None:
        """Show readers the durable rows before an offset. Rows of one commit round are shown at once."""
        end = None
        while self._ends_held_back and self._ends_held_back[0].offset_next <= offset_next:
            end = self._ends_held_back.popleft()
        if end is not None:
            self._show(end)

    def _show(self, end: LogEnd) -> None:
        before, self._local.end = self._local.end, end
        if end.offset_next > before.offset_next:
            for listener in tuple(self._listeners):
                listener(self)

    # Reading

    def read(self, offset: int, bytes_max: int, *, at_least_one_batch: bool) -> memoryview:
        """Return stored bytes from the batch with an offset on, all from one segment; any thread may call.

        The last batch may be cut off by the limit; the first one is whole if ``at_least_one_batch``. Nothing is
        returned at the high watermark. Raises code 19 outside of the log, CorruptRecordError for damage on the disk.
        """
        try:
            return self._local.read(
                offset, bytes_max, offset_max=self._appender.offset_next, at_least_one_batch=at_least_one_batch
            )
        except FlussError:
            self._check_not_deleted()
            raise

    def read_heads(self, offset: int, limits: HeadLimits) -> StoredHeads | None:
        """Return the heads of batches from the one with an offset on, all from one segment; any thread may call.

        There is at least one; None at the high watermark. Raises what ``read`` raises.
        """
        try:
            return self._local.read_heads(offset, limits, offset_max=self._appender.offset_next)
        except FlussError:
            self._check_not_deleted()
            raise

    @property
    def end_shown(self) -> LogEnd:
        """Where the log ends for readers."""
        return self._local.end

    def ranges(self, offset: int, end: LogEnd) -> list[StoredRange]:
        """Return where the batches between an offset, with which one begins, and an end that was shown are stored.

        Blocking; any thread may call. Raises code 19 if the offset has left the log.
        """
        return self._local.ranges(offset, end)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to the disk or to readers, nothing is being removed, and nothing has failed."""
        return (
            self.failure is None
            and not self._is_closed
            and not self._is_expiring
            and self.offset_high_watermark == self._appender.offset_next
            and self._appender.pending_bytes == 0
            and not self._waiters
            and not self._waiters_written
        )

    def is_cached(self, offset: int, bytes_max: int) -> bool:
        """Tell whether a read needs only bytes written moments ago, so that it may happen on the event loop."""
        return self._local.is_cached(offset, bytes_max)

    def offset_for_timestamp(self, timestamp_ms: int) -> int:
        """Return the first offset of the first batch with that commit time or a later one, else the high watermark."""
        try:
            return self._local.offset_for_timestamp(timestamp_ms)
        except FlussError:
            self._check_not_deleted()
            raise

    # Care

    async def expire_segments(
        self,
        expired_before_ms: int,
        *,
        roll_active: bool = False,
        protect: Callable[[int], Awaitable[int]] | None = None,
    ) -> int:
        """Remove the segments, oldest first, in which everything is older; return how many they were.

        The last segment stays, unless it may be rolled, which needs the new one on disk first. ``protect`` is told,
        before anything is removed, at which offset the log would begin, and returns up to which one it may.
        Raises OSError.
        """
        self.check_open()
        first = next(iter(self._local.segments), None)
        if not self._local.doomed and (first is None or first.timestamp_max_ms >= expired_before_ms):
            return 0
        return await self._remove_first(
            partial(count_expired, expired_before_ms=expired_before_ms), roll_active, protect
        )

    async def remove_copied(
        self, offset_copied: int, *, segments_kept: int, protect: Callable[[int], Awaitable[int]] | None = None
    ) -> int:
        """Remove segments that end before an offset, oldest first, down to a number; return how many they were.

        ``protect`` is as above. Raises OSError.
        """
        self.check_open()
        return await self._remove_first(
            partial(count_copied, offset_copied=offset_copied, segments_kept=segments_kept), False, protect
        )

    async def _remove_first(
        self,
        count: Callable[[Sequence[Segment]], int],
        roll_active: bool,
        protect: Callable[[int], Awaitable[int]] | None,
    ) -> int:
        """Remove as many of the first segments as ``count`` says, which is asked in a thread."""
        if self._is_expiring:
            return 0
        self._is_expiring = True
        try:
            if self._local.doomed:
                # Their removal has failed before. With the ones behind them gone first, the log could not be opened.
                await asyncio.to_thread(remove_doomed, self._files, self._local, self._pending)
            segments = self._local.segments_until(self._local.end)
            if not segments or not segments[0].size_bytes:
                return 0
            removed = await asyncio.to_thread(count, segments)
            if removed == len(segments) and not (roll_active and await self._roll_empty(segments[-1])):
                removed -= 1
            if removed > 0 and protect is not None:
                offset_limit = await protect(segments[removed - 1].offset_next)
                removed = sum(segment.offset_next <= offset_limit for segment in segments[:removed])
            if removed <= 0 or self._is_closed or self._local.segments[:removed] != segments[:removed]:
                return 0
            self._local.doomed, self._local.segments = segments[:removed], self._local.segments[removed:]
            await asyncio.to_thread(remove_doomed, self._files, self._local, self._pending)
            return removed
        finally:
            self._is_expiring = False

    async def _roll_empty(self, active: Segment) -> bool:
        """Begin a new segment that holds nothing yet, if nothing is being written; return whether that was done."""
        end = self._local.end
        if self._is_closed or end.offset_next != self._appender.offset_next or self._local.segments[-1] is not active:
            return False
        self._appender.add_empty_segment()
        self._committer.submit(self)
        await self._waiters.add(end.offset_next)
        return self._local.end.segment is not active

    def expire_writers(self) -> int:
        """Forget writers that have sent nothing for too long; return how many."""
        return self._appender.expire_writers()

    async def flush(self) -> None:
        """Make everything that was appended durable, also if single appends end in the operating system."""
        await self.wait_durable(self._appender.offset_next)
        offset, end = self._offset_synced, self._end_durable
        if offset < end.offset_next:
            segments = [segment for segment in self._local.segments_until(end) if segment.offset_next > offset]
            try:
                await asyncio.to_thread(sync_segments, self._files, self._local, segments, is_first=offset == 0)
            except OSError as error:
                if is_out_of_descriptors(error):
                    text = f"{self.directory} cannot be made durable now: {error}; try again"
                    raise FlussError(text, ErrorCode.LOG_STORAGE_EXCEPTION) from error
                self.halt()
                self.failed(error, is_undone=False)
                self.check_open()
            self._offset_synced = max(self._offset_synced, end.offset_next)

    async def close(self) -> None:
        """Flush, write the indexes and the state of the writers, and let go of the files. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self.failure is None:
                await self.flush()
                if self._local.segments and self._offset_cached != self._appender.offset_next:
                    await asyncio.to_thread(
                        self._pending.write_caches,
                        self._local.segments[-1],
                        self._appender.offset_next,
                        self._appender.writers.entries(),
                        is_snapshot_needed=self.offset_start > 0,
                    )
        finally:
            self._files.forget(self.directory)

    def drop(self) -> None:
        """Take no more requests, and fail those that wait.

        The directory may be removed when the committer has settled: a write of its thread that is under way must not
        create it again.
        """
        self._is_closed = True
        self._pending.halt()
        self._end_history(FlussError(f"{self.bucket} was dropped", ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION))

    async def delete(self) -> None:
        """Take no more requests, and remove the directory with everything in it. Raises OSError."""
        self.drop()
        await self._committer.settle()
        await asyncio.to_thread(remove_log, self._files, self.directory)

    def _check_not_deleted(self) -> None:
        if self._is_closed and self._history.failure is not None:
            raise self._history.failure.copied()

    def check_open(self) -> None:
        """Raise why the log takes no appends: ``failure``, code 21 after a drop, 12 after a close, 10 for a while."""
        if self.failure is not None:
            raise self.failure.copied()
        self._check_not_deleted()
        if self._is_closed:
            raise FlussError(f"{self.bucket} is closed", ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._postponement is not None:
            raise self._postponement.copied()
