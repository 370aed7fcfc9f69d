"""Group commit: what was appended to logs and is not written yet, and the thread that writes it, in rounds.

1. The event loop puts appends into the ``PendingWrites`` of their log, one after the other, and submits the log.
2. A round of the committer thread takes what is waiting at its beginning, of so many logs at most that their files stay
   open until they are durable, and writes it, with one call per file.
3. It makes the files durable, several at once.
4. Only then are the writers told, on the event loop.

While a round is on its way to the disk, appends collect for the next one: the slower the disk, the larger the rounds.

A round of a log that cannot be written is undone, so that its files end again where they did before. If it cannot be
undone either, the files are left as they are, and the log takes no more writes.

Where rounds end in the operating system, a single small write is carried out on the event loop, if the thread has
nothing to do: that takes a few microseconds, and the way to the thread and back many times as long.

A round that finds no descriptor left is postponed: it goes on where it was as soon as there is one, and until then the
log takes no appends. Nothing has to be undone, which would need descriptors, too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from fluss.buffers import BytesLike
from fluss.schema.table import TableBucket
from fluss.storage.log.file_names import LogFileKind, directories_above, log_file_name
from fluss.storage.log.segment import Segment
from fluss.storage.log.writer_state import WriterEntry, encode_writer_snapshot
from fluss.storage.vfs import DESCRIPTORS_MAX, Files, is_out_of_descriptors

_SNAPSHOTS_KEPT: Final = 2
# Files that are made durable at the same time. A disk works on several requests at once.
_SYNCS_AT_ONCE: Final = 8
# From so many on they are handed over to the operating system at once, where that is possible.
_MANY_SYNCS: Final = 16
# Logs of one round, beside those that were postponed: half as many as files are kept open, since others are used, too.
# A file that is closed between its write and its sync costs as much as both of them to be opened again.
_LOGS_AT_ONCE: Final = DESCRIPTORS_MAX // 2
# How soon a round that found no descriptor is tried again.
_POSTPONED_S: Final = 0.05
# What may be written on the event loop. A write that took longer than it may is the last one for a while: a machine
# that has more to write back than its disk can take makes those wait who add to it.
_QUICK_BYTES_MAX: Final = 16 * 1024
_QUICK_S_MAX: Final = 0.005
_NOT_QUICK_S: Final = 1.0
logger = logging.getLogger(__name__)


class LogEnd(NamedTuple):
    """A point between two batches. The durable one is replaced as a whole, so that any thread may look at it."""

    segment: Segment | None
    position: int
    offset_next: int
    timestamp_max_ms: int


class SegmentWrite(NamedTuple):
    """Bytes on their way to a segment, and where the log ends after them."""

    records: BytesLike
    position: int
    offset_base: int
    end: LogEnd

    @property
    def segment(self) -> Segment:
        assert self.end.segment is not None
        return self.end.segment


class SegmentRoll(NamedTuple):
    """The end of a segment: the next write goes to a new one."""

    segment: Segment
    offset_next: int
    # The last batches of the writers up to here.
    writers: Sequence[WriterEntry]
    # Whether rows have expired, so that only the snapshot knows about their writers.
    is_snapshot_needed: bool


@dataclass(slots=True)
class CommitRound:
    """What one round of the committer wrote, or why it did not."""

    # To be made durable.
    files: Sequence[Path] = ()
    directories: Sequence[Path] = ()
    byte_count: int = 0
    # Where the log ends now; None if nothing was written.
    end: LogEnd | None = None
    failure: OSError | None = None
    # After a failure: whether the files are as they were before the round.
    is_undone: bool = False
    # Why the round is not over: there is no descriptor left, and the log is to be asked again later.
    postponement: OSError | None = None


class PendingWrites:
    """The writes of one log. ``put``, ``clear``, ``is_quick`` and ``resume`` are for its event loop, the rest for the
    committer.
    """

    __slots__ = (
        "_bucket",
        "_directory",
        "_files",
        "_is_directory_made",
        "_is_halted",
        "_is_synced",
        "_items",
        "_postponed",
        "_snapshot_offsets",
        "end_written",
    )

    def __init__(
        self,
        files: Files,
        directory: Path,
        bucket: TableBucket,
        *,
        is_synced: bool,
        end_written: LogEnd,
        snapshot_offsets: list[int],
    ) -> None:
        # Everything before it has been written.
        self.end_written = end_written
        self._files = files
        self._directory = directory
        self._bucket = bucket
        self._is_synced = is_synced
        self._is_directory_made = end_written.segment is not None
        # Of the snapshots that exist, ascending.
        self._snapshot_offsets = snapshot_offsets
        # Made by the first append: many logs are never written to.
        self._items: deque[SegmentWrite | SegmentRoll] | None = None
        # The round that waits for descriptors. Whatever comes next has to wait for it.
        self._postponed: _RoundWriter | None = None
        # Set by the committer thread after a failure, cleared by the event loop when memory and disk agree again.
        self._is_halted = False

    def put(self, item: SegmentWrite | SegmentRoll) -> None:
        if self._items is None:
            self._items = deque()
        self._items.append(item)

    def clear(self) -> None:
        """Forget what was not written yet."""
        if self._items is not None:
            self._items.clear()

    @property
    def is_quick(self) -> bool:
        """Whether all that is waiting is one small write to the end of a file that is there."""
        if self._items is None or len(self._items) != 1 or self._postponed is not None or self._is_halted:
            return False
        item = self._items[0]
        return isinstance(item, SegmentWrite) and item.position > 0 and len(item.records) <= _QUICK_BYTES_MAX

    def resume(self) -> None:
        """Write again after a failure that was undone."""
        self._is_halted = False

    def halt(self) -> None:
        """Write nothing more until ``resume``."""
        self._is_halted = True

    def write(self) -> CommitRound:
        """Write everything that is waiting. OSErrors are part of the result."""
        if self._is_halted:
            return CommitRound()
        writer, self._postponed = self._postponed or _RoundWriter(self), None
        try:
            return self._carried_out(writer)
        except OSError as no_descriptor:
            self._postponed = writer
            return CommitRound(postponement=no_descriptor)

    def _carried_out(self, writer: _RoundWriter) -> CommitRound:
        """Do what is left of a round. Raises OSError if there is no descriptor for it, and may then be called again."""
        try:
            if writer.failure is None:
                writer.go_on()
                while (item := self._next()) is not None:
                    writer.take(item)
                written = writer.complete()
                if written.end is not None:
                    self.end_written = written.end
                return written
        except OSError as error:
            if is_out_of_descriptors(error):
                raise
            writer.failure = error
        is_undone = writer.undo()
        self.halt()
        return CommitRound(failure=writer.failure, is_undone=is_undone)

    def _next(self) -> SegmentWrite | SegmentRoll | None:
        try:
            return self._items.popleft() if self._items is not None else None
        except IndexError:
            return None

    def write_caches(
        self, segment: Segment, offset: int, writers: Sequence[WriterEntry], *, is_snapshot_needed: bool
    ) -> None:
        """Write the indexes of a segment that ends at an offset, and a snapshot of the writers before it.

        Both are caches: on a full disk the log does without.
        """
        try:
            segment.store_index()
        except OSError as error:
            logger.warning("cannot write the indexes of %s: %s", segment.path, error)
        try:
            self._write_snapshot(offset, writers, durably=is_snapshot_needed)
        except OSError as error:
            logger.warning("cannot write what is known about the writers of %s: %s", self._directory, error)

    def _write_snapshot(self, offset: int, writers: Sequence[WriterEntry], *, durably: bool) -> None:
        """Write a snapshot of the writers before an offset, and remove all but the newest snapshots."""
        self._files.replace(self._snapshot_path(offset), encode_writer_snapshot(writers), durably=durably)
        if offset not in self._snapshot_offsets:
            self._snapshot_offsets.append(offset)
        while len(self._snapshot_offsets) > _SNAPSHOTS_KEPT:
            self._files.remove(self._snapshot_path(self._snapshot_offsets[0]))
            del self._snapshot_offsets[0]

    def sync_snapshot(self) -> None:
        """Make the newest snapshot durable. Any thread may call this."""
        for offset in self._snapshot_offsets[-1:]:
            with suppress(FileNotFoundError):  # A newer one has taken its place.
                self._files.sync(self._snapshot_path(offset))

    def _remove_snapshots_after(self, offset: int) -> None:
        while self._snapshot_offsets and self._snapshot_offsets[-1] > offset:
            self._files.remove(self._snapshot_path(self._snapshot_offsets[-1]))
            del self._snapshot_offsets[-1]

    def _snapshot_path(self, offset: int) -> Path:
        return self._directory / log_file_name(offset, LogFileKind.WRITER_SNAPSHOT)


class _RoundWriter:
    """One round of one log. Whatever raises that there is no descriptor has done nothing, and can be called again."""

    def __init__(self, pending: PendingWrites) -> None:
        # Why the round cannot be completed, and is to be undone.
        self.failure: OSError | None = None
        self._pending = pending
        self._files = pending._files
        # Consecutive writes to one segment are collected here and become one call.
        self._run: list[SegmentWrite] = []
        # The end of a segment that is to be completed after them.
        self._roll: SegmentRoll | None = None
        self._begin: SegmentWrite | None = None
        self._end: LogEnd | None = None
        self._byte_count = 0
        self._segments: dict[Segment, None] = {}
        self._unsynced_files: dict[Path, None] = {}
        self._unsynced_directories: dict[Path, None] = {}
        self._is_sync_failed = False

    def take(self, item: SegmentWrite | SegmentRoll) -> None:
        if isinstance(item, SegmentRoll):
            self._roll = item
            self.go_on()
            return
        assert not self._run or self._run[-1].segment is item.segment, "a segment ends with a roll"
        self._run.append(item)
        self._begin = self._begin or item

    def go_on(self) -> None:
        """Write what was collected, and complete its segment if it has ended."""
        self._write_run()
        if self._roll is not None:
            self._finish(self._roll)
            self._roll = None

    def complete(self) -> CommitRound:
        self._write_run()
        return CommitRound(tuple(self._unsynced_files), tuple(self._unsynced_directories), self._byte_count, self._end)

    def _write_run(self) -> None:
        if not self._run:
            return
        run = self._run
        segment = run[0].segment
        if not self._pending._is_directory_made:
            self._make_directory()
        self._segments[segment] = None
        self._files.write(segment.path, [write.records for write in run], run[0].position)
        self._unsynced_files[segment.path] = None
        if run[0].position == 0:
            self._unsynced_directories[self._pending._directory] = None
        self._byte_count += sum(len(write.records) for write in run)
        self._end = run[-1].end
        self._run = []

    def _make_directory(self) -> None:
        """Make the directory of the log. All above it are made durable, too: another log may just have made them."""
        pending = self._pending
        self._files.make_directory(pending._directory, durably=False)
        self._unsynced_directories.update(dict.fromkeys(directories_above(pending._directory, pending._bucket)))
        pending._is_directory_made = True

    def _finish(self, roll: SegmentRoll) -> None:
        """Complete a segment before anything goes to the next one."""
        try:
            self._sync_before_next(roll.segment)
        except OSError as error:
            self._is_sync_failed = not is_out_of_descriptors(error)
            raise
        self._pending.write_caches(
            roll.segment, roll.offset_next, roll.writers, is_snapshot_needed=roll.is_snapshot_needed
        )

    def _sync_before_next(self, segment: Segment) -> None:
        """Make a segment durable before the next one is begun, so that a segment with others behind it is whole.

        Without syncs only its name is made durable: a log may then lose its end, but not its beginning.
        """
        if self._pending._is_synced and segment.path in self._unsynced_files:
            self._files.sync(segment.path)
            del self._unsynced_files[segment.path]
        if self._pending._directory in self._unsynced_directories or not self._pending._is_synced:
            self._files.sync_directory(self._pending._directory)
            self._unsynced_directories.pop(self._pending._directory, None)

    def undo(self) -> bool:
        """Remove from the disk, durably, what this round wrote; return whether that worked.

        If a removed file came back after a crash, recovery would take its batches for a part of the log. Raises OSError
        if there is no descriptor.
        """
        begin = self._begin
        if self._is_sync_failed:
            return False
        if begin is None or not self._pending._is_directory_made:
            return True
        try:
            for segment in self._segments:
                if segment is self._pending.end_written.segment:
                    self._files.truncate(segment.path, begin.position)
                    self._files.sync(segment.path)
                else:
                    segment.remove()
            self._pending._remove_snapshots_after(begin.offset_base)
            for directory in (*self._unsynced_directories, self._pending._directory):
                self._files.sync_directory(directory)
        except OSError as error:
            if is_out_of_descriptors(error):
                raise
            return False
        return True


class Committed(Protocol):
    """A log, as the committer sees it."""

    # In the committer thread:

    def write_pending(self) -> CommitRound:
        """Write what is waiting. After a failed round the log writes nothing before it has heard of the failure."""
        ...

    def halt(self) -> None:
        """Write nothing more: it is unknown what is on the disk."""
        ...

    @property
    def is_written_awaited(self) -> bool:
        """Whether a writer waits for ``written``, and not only for ``durable``."""
        ...

    # On the event loop:

    def written(self, written: CommitRound) -> None:
        """What a round wrote is in the operating system."""
        ...

    def durable(self, written: CommitRound) -> None:
        """What a round wrote is on the disk."""
        ...

    def failed(self, error: OSError, *, is_undone: bool) -> None:
        """A round failed. If it was not undone, it is unknown what is on the disk."""
        ...

    def postponed(self, error: OSError) -> None:
        """A round waits for descriptors. What becomes of it is reported when there are some."""
        ...


class Committer:
    """Group commit for all logs of a server. It belongs to the event loop that started it."""

    def __init__(self, files: Files, *, is_synced: bool = True) -> None:
        self._files = files
        self._is_synced = is_synced
        self._loop: asyncio.AbstractEventLoop | None = None
        self._condition = threading.Condition()
        self._waiting: dict[Committed, None] = {}
        # What waits for descriptors: logs with the round that is written and not durable, or without one if it is not
        # written yet. Only for the thread.
        self._postponed: dict[Committed, CommitRound | None] = {}
        self._is_stopping = False
        # Whether the thread is in a round, or has been given one.
        self._is_in_round = False
        self._not_quick_until_s = 0.0
        self._thread: threading.Thread | None = None
        self._syncs = ThreadPoolExecutor(_SYNCS_AT_ONCE, thread_name_prefix="fluss-sync")

    def start(self) -> None:
        """Start the thread. To be called on the event loop that will submit."""
        assert self._thread is None, "a committer is started once"
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="fluss-committer", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Carry out what was submitted, then end the thread. May be called again."""
        if self._thread is None:
            return
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        await asyncio.to_thread(self._thread.join)
        self._syncs.shutdown()

    @property
    def is_synced(self) -> bool:
        """Whether rounds end on the disk, or in the operating system."""
        return self._is_synced

    def submit(self, log: Committed) -> None:
        """Have a log written in the next round."""
        with self._condition:
            assert not self._is_stopping, "the committer was stopped"
            self._waiting[log] = None
            self._condition.notify()

    def write_at_once(self, log: Committed) -> bool:
        """Write the little that a log has waiting, here and now, and tell it; False if it has to be submitted."""
        if self._is_synced or time.monotonic() < self._not_quick_until_s:
            return False
        with self._condition:
            # No other log submits meanwhile: this is the event loop.
            if self._waiting or self._postponed or self._is_in_round or self._is_stopping:
                return False
        began_s = time.monotonic()
        written = _write_pending(log)
        ended_s = time.monotonic()
        if ended_s - began_s > _QUICK_S_MAX:
            self._not_quick_until_s = ended_s + _NOT_QUICK_S
        report = self._outcome(log, written, {})
        if written.end is not None:
            report()
            return True
        # The writer learns of a failure when it waits.
        self._report([report])
        if self._postponed:
            with self._condition:
                self._condition.notify()
        return True

    async def settle(self) -> None:
        """Wait until the rounds that are under way or due are over, and the logs have heard of it."""
        if self._thread is not None and not self._is_stopping:
            marker = _Marker(asyncio.get_running_loop())
            self.submit(marker)
            await marker.is_reached

    def _run(self) -> None:
        while logs := self._take_waiting():
            self.run_round(logs)

    def _take_waiting(self) -> list[Committed]:
        """Wait for work. Nothing is returned when there will be none any more."""
        with self._condition:
            self._is_in_round = False
            while not self._waiting and not self._is_stopping:
                if not self._condition.wait(_POSTPONED_S if self._postponed else None):
                    break
            return self._take_due()

    def _take_due(self) -> list[Committed]:
        waiting, self._waiting = self._waiting, {}
        if len(waiting) > _LOGS_AT_ONCE:
            in_order = iter(waiting)
            waiting = dict.fromkeys(islice(in_order, _LOGS_AT_ONCE))
            self._waiting = dict.fromkeys(in_order)
        self._is_in_round = True
        return list(waiting | self._postponed) if self._postponed else list(waiting)

    def run_round(self, logs: list[Committed]) -> None:
        """Write what logs have waiting, make it durable, and report. A failure concerns only the log that it is of."""
        postponed, self._postponed = self._postponed, {}
        # A log whose last round is not durable writes nothing: it could not go back to what is durable.
        rounds = [(log, postponed.get(log) or _write_pending(log)) for log in logs]
        errors: dict[Path, OSError] = {}
        if self._is_synced:
            good = [(log, written) for log, written in rounds if written.failure is None]
            self._report([partial(log.written, written) for log, written in good if log.is_written_awaited])
            errors = self._sync_all(written for _, written in good)
        self._report([self._outcome(log, written, errors) for log, written in rounds])
        # They may have more by now.
        self._postponed |= {log: None for log, written in postponed.items() if written and log not in self._postponed}

    def _outcome(self, log: Committed, written: CommitRound, errors: dict[Path, OSError]) -> Callable[[], None]:
        """Return how to tell a log what has become of its round."""
        problem = written.failure or written.postponement
        if problem is None and errors:
            found = [errors[path] for path in (*written.files, *written.directories) if path in errors]
            # A sync that failed counts more than one that can be done later.
            problem = min(found, key=is_out_of_descriptors, default=None)
        if problem is None:
            return partial(log.durable, written)
        if is_out_of_descriptors(problem) and not self._is_stopping:
            self._postponed[log] = written if written.postponement is None else None
            return partial(log.postponed, problem)
        if not written.is_undone:
            log.halt()
        return partial(log.failed, problem, is_undone=written.is_undone)

    def _sync_all(self, rounds: Iterable[CommitRound]) -> dict[Path, OSError]:
        """Make files and names durable, and return what went wrong with which."""
        files: dict[Path, None] = {}
        directories: dict[Path, None] = {}
        for written in rounds:
            files.update(dict.fromkeys(written.files))
            directories.update(dict.fromkeys(written.directories))
        if len(files) + len(directories) >= _MANY_SYNCS:
            errors = self._files.sync_many(list(files), list(directories))
            if errors is not None:
                # Not all of them can be open at once where there are few descriptors.
                left = {path for path, error in errors.items() if is_out_of_descriptors(error)}
                if not left:
                    return errors
                others = {path: error for path, error in errors.items() if path not in left}
                return others | self._sync_each([path for path in files if path in left], left & directories.keys())
        return self._sync_each(files, directories)

    def _sync_each(self, files: Iterable[Path], directories: Iterable[Path]) -> dict[Path, OSError]:
        """Do it one by one, several at the same time."""
        jobs: dict[Path, Callable[[Path], None]] = dict.fromkeys(files, self._files.sync)
        jobs.update(dict.fromkeys(directories, self._files.sync_directory))
        # Several threads share the work; a single file is not worth the way to another thread.
        shares = [list(jobs.items())[first::_SYNCS_AT_ONCE] for first in range(min(len(jobs), _SYNCS_AT_ONCE))]
        run = map if len(shares) == 1 else self._syncs.map
        return {path: error for errors in run(_sync_share, shares) for path, error in errors.items()}

    def _report(self, reports: list[Callable[[], None]]) -> None:
        """Tell the event loop, once for all logs of the round."""
        assert self._loop is not None
        if reports:
            with suppress(RuntimeError):  # The loop was closed, and no writer waits any more.
                self._loop.call_soon_threadsafe(_call_all, reports)


def _write_pending(log: Committed) -> CommitRound:
    try:
        return log.write_pending()
    except Exception as error:  # A bug must not leave writers waiting for ever.
        logger.exception("a log could not be written")
        return CommitRound(failure=OSError(f"{type(error).__name__}: {error}"))


def _sync_share(jobs: Iterable[tuple[Path, Callable[[Path], None]]]) -> dict[Path, OSError]:
    errors = {}
    for path, sync in jobs:
        try:
            sync(path)
        except OSError as error:
            errors[path] = error
    return errors


def _call_all(reports: list[Callable[[], None]]) -> None:
    for report in reports:
        try:
            report()
        except Exception:  # The reports behind it are about other logs, whose writers wait.
            logger.exception("a log could not take in what was committed")


class _Marker:
    """Takes part in a round like a log, to find out when the round is over."""

    is_written_awaited = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_reached: asyncio.Future[None] = loop.create_future()

    def write_pending(self) -> CommitRound:
        return CommitRound()

    def halt(self) -> None:
        """There is nothing to write."""

    def written(self, written: CommitRound) -> None:
        """There is nothing to be told."""

    def durable(self, written: CommitRound) -> None:
        if not self.is_reached.done():
            self.is_reached.set_result(None)

    def failed(self, error: OSError, *, is_undone: bool) -> None:
        self.durable(CommitRound())

    def postponed(self, error: OSError) -> None:
        """There is nothing that would need a descriptor."""
