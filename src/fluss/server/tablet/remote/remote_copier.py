"""Copies closed segments to remote storage, at an interval, and removes there what has expired or was dropped.

For one bucket, step by step; a crash may come between any two of them:

| step                                                    | what a crash before the next one leaves                   |
|---------------------------------------------------------|-----------------------------------------------------------|
| 1. the registry notes that objects are about to change  | nothing; the next start looks for orphans                 |
| 2. segments are copied, under names that are new        | objects that no manifest names: orphans                   |
| 3. a new manifest is written, under a new name          | an orphan more; the old manifest counts                   |
| 4. the registry makes it the current one                | the old manifest is an orphan                             |
| 5. the old manifest is removed; expired segments are,   | orphans                                                   |
|    with the next round: readers of them can finish      |                                                           |
| 6. the registry notes that there are no orphans         | local segments that could be gone                         |
| 7. local segments are removed down to a number          | nothing: it is looked at each time                        |

With a backup, what is removed in step 5 stays until no backup names it (``RemovalGate``), and step 6 waits for that;
segments that are removed in step 7, or because of their age, stay until a backup names their copies.

Orphans are found by comparing the directory with the manifest, before anything else is done for a bucket of which step
1 was noted and step 6 was not. Tables and partitions that are dropped leave the directories of their remote logs in the
registry, in the transaction of the drop; these are removed in the background, and by the next start if need be.

Logs that are not open are not opened to be looked at: their directories are listed once, in a thread, and what has
nothing to be copied is left alone until it was open again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import numpy as np

from fluss.errors import FlussError
from fluss.metrics import Metrics
from fluss.schema.table import TableBucket
from fluss.schema.table_options import LAKE_ENABLED, LOG_TIERED_LOCAL_SEGMENTS, LOG_TTL
from fluss.server.model import Clock, RemoteLogEntry, Table, TieredOffsets, format_bucket
from fluss.server.periodic import Periodic
from fluss.server.tablet.buckets import NOTHING_ON_DISK, BucketGroup, HostedBucket, HostedTable, open_all
from fluss.server.tablet.log_opener import LOGS_PER_JOB, LogOpener
from fluss.server.tablet.remote.remote_logs import RemoteLogs
from fluss.server.tablet.retention import in_lake
from fluss.storage.backup.ownership import FencedError
from fluss.storage.log.file_names import LogFileKind, LogFileName
from fluss.storage.log.remote_log import SegmentCopier, put_manifest, remove_orphans
from fluss.storage.log.remote_manifest import MANIFEST_SUFFIX, RemoteManifest, RemoteSegment
from fluss.storage.log.segment import Segment
from fluss.storage.remote.store import RemoteStoppedError, RemoteStore
from fluss.storage.vfs import Files

T = TypeVar("T")

# Buckets that are worked on at the same time, each by a thread with one piece of a segment in memory.
_THREADS: Final = 4
# Buckets that are noted in the registry at once.
_BUCKETS_PER_STEP: Final = 64
# Logs that are looked at before others get their turn on the event loop.
_LOOKS_PER_TURN: Final = 2048
_NOTHING_TO_COPY: Final = 1

logger = logging.getLogger(__name__)


class RemoteCopier:
    """Looks after the remote logs of all hosted tables. Belongs to the event loop; a few threads do the work."""

    def __init__(
        self,
        logs: RemoteLogs,
        tables: Mapping[int, HostedTable],
        opener: LogOpener,
        files: Files,
        clock: Clock,
        *,
        index_interval_bytes: int,
        tiered: TieredOffsets | None = None,
        offset_needed: Callable[[TableBucket], Awaitable[int | None]] | None = None,
    ) -> None:
        """``offset_needed`` tells from which offset on snapshots of rows by key need the changelog."""
        self._tiered = tiered
        self._offset_needed = offset_needed
        self._logs = logs
        self._tables = tables
        self._opener = opener
        self._files = files
        self._clock = clock
        self._index_interval_bytes = index_interval_bytes
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="fluss-remote-copy")
        self._places = asyncio.Semaphore(_THREADS)
        # One round, or one removal of what was dropped, at a time: nothing is removed that is being written.
        self._turn = asyncio.Lock()
        self._removal: asyncio.Task[None] | None = None
        # Whether something was dropped since it began.
        self._is_removal_due = False
        self._is_stopping = False
        # Buckets whose last copy has failed, and why.
        self._failures: dict[TableBucket, str] = {}
        # Objects and directories that no manifest names any more, but perhaps a backup, each with its mark.
        self._unnamed: dict[TableBucket, list[tuple[int, str]]] = {}
        self._dropped_marks: dict[tuple[str, str], int] = {}
        # Where copies begin that no backup names yet, each with its mark.
        self._unshipped: dict[TableBucket, list[tuple[int, int]]] = {}
        # Buckets with objects that never were named: left by earlier runs, or by attempts that failed. Those of earlier
        # runs may be removed when the mark is released.
        self._orphaned: set[TableBucket] = set()
        self._mark_of_start = 0
        interval_ms = logs.settings.task_interval_ms if logs.is_enabled else 0
        self._periodic = Periodic("copying to remote storage", interval_ms, self.copy_all)

    def start(self) -> None:
        if self._logs.is_enabled:
            self._orphaned = set(self._logs.dirty)
            self._mark_of_start = self._logs.gate.mark()
            self._logs.gate.on_release(self.remove_dropped)
            self._periodic.start()
            self.remove_dropped()

    async def stop(self) -> None:
        """End what is going on; the next start goes on with it."""
        self._is_stopping = True
        self._logs.traffic.stop()
        await self._periodic.stop()
        if self._removal is not None:
            await asyncio.wait((self._removal,))
        await asyncio.to_thread(self._threads.shutdown)

    def show(self, metrics: Metrics) -> None:
        """Show which buckets cannot be copied."""
        if self._logs.is_enabled:
            metrics.gauge(
                "fluss_remote_log_failed_buckets",
                "Buckets whose segments could not be copied to remote storage the last time.",
                lambda: len(self._failures),
            )

    @property
    def is_copying(self) -> bool:
        """Whether closed segments are copied."""
        return self._logs.is_copying

    def named_end(self, hosted: HostedBucket) -> int:
        """Return up to which offset a log is copied, and backups name the copies: so far it may leave the disk."""
        return self._copied_and_named(hosted.group, hosted.bucket.bucket_id)[1]

    # A round

    async def copy_all(self) -> None:
        """Do what there is to do for all buckets, once; nothing if another server has taken over."""
        async with self._turn:
            try:
                await self._in_thread(self._logs.gate.check_owner)
            except (FencedError, RemoteStoppedError):
                # The backup says it, or the server stops.
                return
            for table in list(self._tables.values()):
                for group in list(table.groups.values()):
                    if self._is_stopping:
                        return
                    await self._tend_group(group)

    async def _tend_group(self, group: BucketGroup) -> None:
        wanted = await self._wanted(group)
        for first in range(0, len(wanted), _BUCKETS_PER_STEP):
            bucket_ids = wanted[first : first + _BUCKETS_PER_STEP]
            if self._is_stopping or group.is_dropped:
                return
            await self._logs.registry.begin([self._logs.new_entry(group, bucket_id) for bucket_id in bucket_ids])
            outcomes = await asyncio.gather(*(self._tend_bucket(group, bucket_id) for bucket_id in bucket_ids))
            clean = [bucket for bucket in outcomes if bucket is not None]
            if clean:
                await self._logs.registry.finish(clean)
                self._logs.dirty.difference_update(clean)

    async def _wanted(self, group: BucketGroup) -> list[int]:
        """Return the buckets that have something to be copied, removed or tidied up."""
        remote, kept = group.remote, _local_segments(group.table)
        wanted = set()
        for index, (bucket_id, bucket) in enumerate(list(group.in_use.items())):
            log = bucket.tablet
            if log is not None and log.failure is None:
                copied_end = 0 if remote is None else remote.ends[bucket_id]
                is_removable = log.segment_count > kept and log.offset_start < self._named_end(log.bucket, copied_end)
                if is_removable or log.offset_closed > copied_end:
                    wanted.add(bucket_id)
            if index % _LOOKS_PER_TURN == _LOOKS_PER_TURN - 1:
                await asyncio.sleep(0)
        wanted.update(await self._wanted_unopened(group, kept))
        expired_before_ms = self._expired_before_ms(group.table)
        if remote is not None and expired_before_ms is not None:
            times = np.frombuffer(remote.first_times, np.int64)
            wanted.update(np.flatnonzero((times >= 0) & (times < expired_before_ms)).tolist())
        key = (group.table_id, group.partition_id)
        wanted.update(
            bucket.bucket_id
            for bucket in self._logs.dirty
            if (bucket.table_id, bucket.partition_id) == key and self._is_tidying_due(bucket)
        )
        return sorted(wanted)

    def _is_tidying_due(self, bucket: TableBucket) -> bool:
        """Tell whether objects of a bucket can be removed that no manifest names."""
        gate, unnamed = self._logs.gate, self._unnamed.get(bucket)
        return gate.is_released(self._mark_of_start) if not unnamed else gate.is_released(unnamed[0][0])

    async def _wanted_unopened(self, group: BucketGroup, kept: int) -> list[int]:
        """Return those of the logs that are not open that have something to be copied or removed."""
        if group.found is None:
            group.take_found(await asyncio.to_thread(self._opener.found_in, group))
        assert group.found is not None, "it was looked up"
        if not any(group.found):
            return []
        if group.copy_looks is None:
            group.copy_looks = bytearray(group.bucket_count)
        unknown = [
            bucket_id
            for bucket_id, state in enumerate(group.found)
            if state != NOTHING_ON_DISK and not group.copy_looks[bucket_id] and bucket_id not in group.in_use
        ]
        wanted = []
        for first in range(0, len(unknown), LOGS_PER_JOB):
            if self._is_stopping:
                return []
            bucket_ids = unknown[first : first + LOGS_PER_JOB]
            ends = [self._copied_and_named(group, bucket_id) for bucket_id in bucket_ids]
            directories = [group.log_directory(bucket_id) for bucket_id in bucket_ids]
            looks = await asyncio.to_thread(_look_at_all, self._files, directories, ends, kept)
            for bucket_id, (copied_end, named_end), is_wanted in zip(bucket_ids, ends, looks, strict=True):
                if is_wanted:
                    wanted.append(bucket_id)
                elif bucket_id not in group.in_use and named_end == copied_end:
                    group.copy_looks[bucket_id] = _NOTHING_TO_COPY
        return wanted

    def _copied_and_named(self, group: BucketGroup, bucket_id: int) -> tuple[int, int]:
        """Return up to where a bucket is copied, and up to where backups name the copies."""
        copied_end = 0 if group.remote is None else group.remote.ends[bucket_id]
        bucket = TableBucket.new_with_partition(group.table_id, group.partition_id, bucket_id)
        return copied_end, self._named_end(bucket, copied_end)

    def _expired_before_ms(self, table: Table) -> int | None:
        """Return before which time copies of a table have expired; None if they do not."""
        properties = table.descriptor.properties
        try:
            if table.has_primary_key and LOG_TTL.key not in properties:
                return None
            ttl_ms = LOG_TTL.of(properties)
        except FlussError as error:
            logger.error("no copy of table %s expires: %s", table.path, error.message)
            return None
        return None if ttl_ms <= 0 else self._clock() - ttl_ms

    # One bucket

    async def _tend_bucket(self, group: BucketGroup, bucket_id: int) -> TableBucket | None:
        """Do what there is to do for a bucket; return it if it has no orphans afterwards. Failures are logged."""
        bucket = TableBucket.new_with_partition(group.table_id, group.partition_id, bucket_id)
        async with self._places:
            if self._is_stopping or group.is_dropped:
                return None
            try:
                is_clean = await self._tend(group, bucket)
            except RemoteStoppedError:
                return None
            except Exception as error:  # The other buckets must not wait for what is wrong with this one.
                self._logs.dirty.add(bucket)
                self._orphaned.add(bucket)
                self._note_failure(group, bucket, error)
                return None
        if self._failures.pop(bucket, None) is not None:
            logger.info("%s is copied to remote storage again", format_bucket(bucket))
        return bucket if is_clean else None

    def _note_failure(self, group: BucketGroup, bucket: TableBucket, error: Exception) -> None:
        text = error.message if isinstance(error, FlussError) else str(error)
        if self._failures.get(bucket) != text and not group.is_dropped:
            # The trouble of a store or a disk is told by a sentence, anything else has to be looked into.
            is_known = isinstance(error, FlussError | OSError)
            where = format_bucket(bucket)
            logger.error(
                "%s cannot be copied to remote storage now: %s", where, text, exc_info=None if is_known else error
            )
        self._failures[bucket] = text

    async def _tend(self, group: BucketGroup, bucket: TableBucket) -> bool:
        known = await self._logs.manifest(bucket)
        entry = await self._logs.registry.find(bucket) if known is None else known[0]
        if entry is None:
            return False
        manifest = None if known is None else known[1]
        await self._check_place(entry)
        store = await self._in_thread(self._logs.store, entry.root)
        gate = self._logs.gate
        await self._remove_unnamed(store, bucket)
        if bucket in self._orphaned and bucket not in self._unnamed and gate.is_released(self._mark_of_start):
            count = await self._in_thread(
                partial(remove_orphans, check=partial(self._logs.check_owner, entry.root)),
                *(store, entry.directory, manifest, entry.manifest_path),
            )
            self._orphaned.discard(bucket)
            if count:
                logger.info("removed %d orphans from %s/%s", count, entry.root, entry.directory)
        hosted = group[bucket.bucket_id]
        await open_all((hosted,), is_use=False)
        segments = () if manifest is None else manifest.segments
        copied, is_complete = await self._copy(hosted, entry, segments)
        expired = await self._expired(hosted, segments)
        if copied or expired:
            entry = await self._commit(group, entry, segments[expired:] + copied)
            gone = [f"{entry.directory}/{segment.segment_id}" for segment in segments[:expired]]
            self._forget_later(bucket, gone)
        if not is_complete:
            self._orphaned.add(bucket)
        await self._remove_local(hosted, self._named_end(bucket, entry.end_offset))
        return bucket not in self._orphaned and bucket not in self._unnamed

    async def _check_place(self, entry: RemoteLogEntry) -> None:
        """Raise FencedError if the remote log of a bucket is in a directory that is another server's by now."""
        try:
            await self._in_thread(self._logs.check_place, entry.root)
        except FencedError:
            self._logs.uncertain.add(entry.bucket)
            raise
        self._logs.uncertain.discard(entry.bucket)

    def _forget_later(self, bucket: TableBucket, paths: Sequence[str]) -> None:
        """Have objects removed that no manifest names any more, when no backup needs them and readers had some time."""
        if paths:
            mark = self._logs.gate.mark()
            self._unnamed.setdefault(bucket, []).extend((mark, path) for path in paths)

    async def _remove_unnamed(self, store: RemoteStore, bucket: TableBucket) -> None:
        unnamed = self._unnamed.get(bucket)
        while unnamed and self._logs.gate.is_released(unnamed[0][0]):
            await self._in_thread(self._remove_one, store, unnamed[0][1])
            del unnamed[0]
        if not unnamed:
            self._unnamed.pop(bucket, None)

    def _remove_one(self, store: RemoteStore, path: str) -> None:
        if path.endswith(MANIFEST_SUFFIX):
            store.remove(path)
        else:
            store.remove_all(path)

    async def _copy(
        self, hosted: HostedBucket, entry: RemoteLogEntry, before: tuple[RemoteSegment, ...]
    ) -> tuple[tuple[RemoteSegment, ...], bool]:
        """Copy the next segments of a log; return them, and whether nothing else was written."""
        log = hosted.tablet
        if log is None or log.failure is not None:
            return (), True
        local = log.closed_segments(entry.end_offset)[: self._logs.settings.segments_per_task]
        if local and local[0].base_offset < entry.end_offset:
            raise FlussError(
                f"the segment {local[0].path} begins before offset {entry.end_offset}, up to which its log was copied"
            )
        copied = await self._in_thread(self._copy_segments, hosted.group, entry, local, before)
        return copied, len(copied) == len(local)

    def _copy_segments(
        self, group: BucketGroup, entry: RemoteLogEntry, local: Sequence[Segment], before: tuple[RemoteSegment, ...]
    ) -> tuple[RemoteSegment, ...]:
        copier = SegmentCopier(
            self._logs.store(entry.root), entry.directory, self._files, interval_bytes=self._index_interval_bytes
        )
        copied: tuple[RemoteSegment, ...] = ()
        for segment in local:
            if self._is_stopping or group.is_dropped:
                raise RemoteStoppedError
            try:
                copied += (copier.copy(segment, before + copied),)
            except FlussError:
                if not copied:
                    raise
                # What was copied before counts. The next round begins here, and says what is wrong.
                break
        return copied

    async def _expired(self, hosted: HostedBucket, segments: Sequence[RemoteSegment]) -> int:
        """Return how many of the first copies have expired."""
        expired_before_ms = self._expired_before_ms(hosted.group.table)
        if expired_before_ms is None:
            return 0
        count = next(
            (index for index, segment in enumerate(segments) if segment.timestamp_ms_max >= expired_before_ms),
            len(segments),
        )
        if count and LAKE_ENABLED.of(hosted.group.table.descriptor.properties):
            # What is to go to the lake is kept until it is there.
            offset_limit = await in_lake(self._tiered, hosted, segments[count - 1].end_offset)
            count = sum(segment.end_offset <= offset_limit for segment in segments[:count])
        if count and hosted.group.table.has_primary_key:
            offset_limit = await hosted.key_values().protect(segments[count - 1].end_offset)
            needed = None if self._offset_needed is None else await self._offset_needed(hosted.bucket)
            offset_limit = offset_limit if needed is None else min(offset_limit, needed)
            count = sum(segment.end_offset <= offset_limit for segment in segments[:count])
        return count

    async def _commit(
        self, group: BucketGroup, entry: RemoteLogEntry, segments: tuple[RemoteSegment, ...]
    ) -> RemoteLogEntry:
        """Make these segments the remote log of a bucket."""
        end_offset = max(entry.end_offset, segments[-1].end_offset if segments else 0)
        manifest = RemoteManifest(group.location(entry.bucket.bucket_id), segments, end_offset)
        store = self._logs.store(entry.root)
        path = await self._in_thread(put_manifest, store, entry.directory, manifest)
        committed = entry._replace(
            manifest_path=path,
            start_offset=segments[0].logical_start_offset if segments else end_offset,
            end_offset=end_offset,
            first_time_ms=segments[0].timestamp_ms_max if segments else -1,
            size_bytes=sum(segment.size_bytes for segment in segments),
            segment_count=len(segments),
        )
        # A directory that is not mounted any more takes objects, too.
        await self._in_thread(self._logs.check_owner, entry.root)
        if not await self._logs.registry.commit(committed):
            # It was dropped meanwhile, and its directory is going to be removed.
            raise RemoteStoppedError
        if group.is_dropped:
            raise RemoteStoppedError
        if end_offset > entry.end_offset:
            self._unshipped.setdefault(entry.bucket, []).append((self._logs.gate.mark(), entry.end_offset))
        self._logs.committed(committed, manifest)
        # From here on there are orphans until the objects that are not named any more are gone.
        self._logs.dirty.add(entry.bucket)
        if entry.manifest_path is not None:
            self._forget_later(entry.bucket, (entry.manifest_path,))
            await self._remove_unnamed(store, entry.bucket)
        return committed

    def _named_end(self, bucket: TableBucket, copied_end: int) -> int:
        """Return up to where backups name the copies of a bucket, of which there are some up to an offset."""
        gate, unshipped = self._logs.gate, self._unshipped.get(bucket, [])
        while unshipped and gate.is_named(unshipped[0][0]):
            del unshipped[0]
        if not gate.is_named(self._mark_of_start) or bucket in self._logs.uncertain:
            # Of copies of an earlier run it is not known.
            return 0
        if unshipped:
            return unshipped[0][1]
        self._unshipped.pop(bucket, None)
        return copied_end

    async def _remove_local(self, hosted: HostedBucket, offset_copied: int) -> None:
        log = hosted.tablet
        if log is None or log.failure is not None or offset_copied == 0:
            return
        count = await log.remove_copied(
            offset_copied,
            segments_kept=_local_segments(hosted.group.table),
            protect=hosted.key_values().protect if hosted.group.table.has_primary_key else None,
        )
        if count:
            logger.debug("removed %d segments of %s that are in remote storage", count, log.directory)

    # What was dropped

    def dropped(self, group: BucketGroup) -> None:
        """Remove what remote storage has of a group that was dropped."""
        if not self._logs.is_enabled:
            return
        for bucket_id in range(group.bucket_count):
            bucket = TableBucket.new_with_partition(group.table_id, group.partition_id, bucket_id)
            self._logs.forget(bucket)
            self._failures.pop(bucket, None)
            self._unnamed.pop(bucket, None)
            self._unshipped.pop(bucket, None)
            self._orphaned.discard(bucket)
        self.remove_dropped()

    def remove_dropped(self) -> None:
        """Remove in the background what the registry says was dropped."""
        self._is_removal_due = self._removal is not None
        if self._removal is None and not self._is_stopping:
            self._removal = asyncio.get_running_loop().create_task(self._remove_dropped(), name="remote removal")
            self._removal.add_done_callback(self._removal_done)

    async def _remove_dropped(self) -> None:
        async with self._turn:
            dropped = self._released(await self._logs.registry.dropped())
            if dropped:
                await self._in_thread(self._logs.gate.check_owner)
            for first in range(0, len(dropped), _BUCKETS_PER_STEP):
                if self._is_stopping:
                    return
                some = dropped[first : first + _BUCKETS_PER_STEP]
                removing = (self._in_thread(self._remove_directory, *place) for place in some)
                outcomes = await asyncio.gather(*removing, return_exceptions=True)
                await self._logs.registry.forget_dropped(_succeeded(some, outcomes))
                for outcome in outcomes:
                    if isinstance(outcome, BaseException):
                        raise outcome

    def _released(self, dropped: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return those of the directories that no backup needs any more; the others get a mark."""
        marks = {place: self._dropped_marks.get(place, -1) for place in dropped}
        self._dropped_marks = {place: self._logs.gate.mark() if mark < 0 else mark for place, mark in marks.items()}
        return [place for place, mark in self._dropped_marks.items() if self._logs.gate.is_released(mark)]

    def _remove_directory(self, root: str, directory: str) -> None:
        try:
            self._logs.check_place(root)
        except FencedError as error:
            # That server may have the same table.
            logger.warning("%s/%s is not removed: %s", root, directory, error.message)
            return
        self._logs.store(root).remove_all(directory)

    def _removal_done(self, task: asyncio.Task[None]) -> None:
        self._removal = None
        if self._is_removal_due:
            self.remove_dropped()
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RemoteStoppedError):
            logger.error("remote logs of dropped tables are not removed yet, the next start tries again: %s", error)

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args))


def _local_segments(table: Table) -> int:
    try:
        return max(1, LOG_TIERED_LOCAL_SEGMENTS.of(table.descriptor.properties))
    except FlussError:
        return LOG_TIERED_LOCAL_SEGMENTS.default


def _look_at_all(files: Files, directories: Iterable[Path], ends: Iterable[tuple[int, int]], kept: int) -> list[bool]:
    return [_has_work(files, directory, *both, kept) for directory, both in zip(directories, ends, strict=True)]


def _has_work(files: Files, directory: Path, copied_end: int, named_end: int, kept: int) -> bool:
    """Tell whether a log that is not open has segments that are to be copied or removed. Blocking."""
    try:
        names = map(LogFileName.parse, files.names(directory))
    except OSError:
        return False
    bases = sorted(name.offset for name in names if name and name.kind is LogFileKind.SEGMENT and not name.is_deleted)
    if len(bases) < 2:
        return False
    return bases[-1] > copied_end or (len(bases) > kept and bases[1] <= named_end)


def _succeeded(items: Sequence[T], outcomes: Iterable[object]) -> Collection[T]:
    return [item for item, outcome in zip(items, outcomes, strict=True) if outcome is None]
