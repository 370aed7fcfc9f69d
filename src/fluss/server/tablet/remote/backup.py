"""The backup of a server: what is on its disk and not yet in remote storage is shipped there, at an interval.

A round, step by step; a crash between any two of them leaves objects that no point names, which are removed later:

1. Where logs end is looked up, and what is new of them is shipped: only what readers see, and what is on the disk.
2. The metadata are copied, if they have changed. So they are newer than all tails: no id of a writer or of a table that
   tails speak of is given out again. Tails that end before a snapshot that the copy names, of rows by key or of a
   lake, are shipped once more, and then the metadata are copied again.
3. The indexes of tables that have changed are written.
4. It is looked whether another server has taken over: see ``ownership``.
5. The point is written, which names nothing but what is there. From now on this backup counts.
6. The oldest point, and what only it named, are removed.

Logs that have not changed cost a look at a number, those that are not open nothing at all. What the metadata of a kept
point name is not removed from remote storage: see ``RemovalGate``.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from fluss._version import __version__
from fluss.errors import ErrorCode, FlussError
from fluss.metrics import Metrics, Sample
from fluss.record.framing import crc32c
from fluss.schema.table import TableBucket
from fluss.server.model import Clock, MetadataCopies, format_bucket
from fluss.server.periodic import Periodic
from fluss.server.tablet.buckets import BucketGroup, HostedBucket, HostedTable, open_all
from fluss.server.tablet.disk_guard import DiskGuard
from fluss.server.tablet.remote.remote_logs import RemoteLogs
from fluss.storage.backup.kept_points import KeptPoints
from fluss.storage.backup.ownership import (
    Claim,
    FencedError,
    check_claim,
    claim,
    describe,
    highest_claim,
    load_claim,
)
from fluss.storage.backup.points import (
    INDEXES,
    METADATA,
    BackupPoint,
    Chains,
    StoredObject,
    get_chains,
    get_point,
    new_path,
    point_paths,
    put_object,
    put_point,
)
from fluss.storage.backup.restore_note import RestoreNote
from fluss.storage.backup.tail_index import TailIndex
from fluss.storage.backup.tails import PlannedTail, UnreadableTailError, packs, plan_tail, ship_pack
from fluss.storage.log.remote_log import ROOT as LOGS
from fluss.storage.remote.store import CHUNK_BYTES, RemoteStoppedError, RemoteStore
from fluss.storage.vfs import Files

T = TypeVar("T")

# Objects that are written at the same time, each with some megabytes in memory.
_THREADS: Final = 2
# Buckets whose logs are looked up, flushed and shipped before the next ones are.
_BUCKETS_PER_STEP: Final = 512
_LOOKS_PER_TURN: Final = 2048
# How long a stop waits for the last point.
_LAST_POINT_TIMEOUT_S: Final = 20.0
# How long a start waits for the store of a server that has shipped to it before.
_FIRST_LOOK_TIMEOUT_S: Final = 15.0
# A backup is late when it is older than so many intervals, and than so long.
_LATE_INTERVALS: Final = 3
_LATE_MS_MIN: Final = 30_000
_COPY_FILE: Final = "backup-metadata.tmp"
_COPY_ATTEMPTS: Final = 4

logger = logging.getLogger(__name__)


class _Change(NamedTuple):
    """A bucket whose log has grown."""

    group: BucketGroup
    bucket_id: int


class Backup:
    """Ships the logs of all hosted tables, and the metadata. Belongs to the event loop; a few threads do the work."""

    def __init__(
        self,
        remote: RemoteLogs,
        tables: Mapping[int, HostedTable],
        metadata: MetadataCopies,
        disk_guard: DiskGuard,
        data_dir: Path,
        files: Files,
        clock: Clock,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._remote = remote
        self._tables = tables
        self._metadata = metadata
        self._disk_guard = disk_guard
        self._data_dir = data_dir
        self._files = files
        self._clock = clock
        self._monotonic = monotonic
        self._interval_ms = remote.settings.backup_interval_ms if remote.is_enabled else 0
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="fluss-backup")
        self._turn = asyncio.Lock()
        self._periodic = Periodic("backup", self._interval_ms, self.ship)
        self._is_started = False
        self._claim: Claim | None = None
        # Why this server ships no more.
        self._fence: FencedError | None = None
        # What the next point says.
        self._tails = TailIndex()
        self._point: BackupPoint | None = None
        self._metadata_changes = -1
        self._kept = KeptPoints(remote.settings.backup_points_kept)
        self._is_looked_through = False
        # What was dropped since the last round.
        self._dropped: list[BucketGroup] = []
        # When the last round that shipped everything was begun, by the monotonic clock.
        self._complete_s = monotonic()
        self._failures: dict[TableBucket, str] = {}
        self._failed_rounds = 0
        self._shipped_bytes = 0
        self._point_count = 0

    @property
    def is_enabled(self) -> bool:
        return self._interval_ms > 0

    @property
    def is_loaded(self) -> bool:
        """Whether it is known what was shipped before."""
        return self.is_enabled and self._claim is not None

    @property
    def fence(self) -> FencedError | None:
        """Why this server takes no more changes; None as long as it does."""
        return self._fence

    @property
    def age_ms(self) -> int:
        """How old the backup is: what was written since then would be lost with the disk."""
        return int((self._monotonic() - self._complete_s) * 1000)

    @property
    def problem(self) -> str | None:
        """What an operator should know of the backup, in a sentence; None if it is as it should be."""
        if self._fence is not None:
            return self._fence.message
        if self.is_enabled and self.age_ms > max(_LATE_MS_MIN, _LATE_INTERVALS * self._interval_ms):
            reason = next(iter(self._failures.values()), "the log of the server says why")
            return f"the last complete backup is {self.age_ms // 1000} s old: {reason}"
        return None

    def show(self, metrics: Metrics) -> None:
        """Show how old the backup is, and what it takes."""
        if not self.is_enabled:
            return
        for name, meaning, read in (
            (
                "fluss_backup_age_seconds",
                "The age of the last complete backup: what would be lost with the disk.",
                lambda: self.age_ms / 1000,
            ),
            ("fluss_backup_fenced", "1 if another server has taken over the remote directory.", self._is_fenced),
            ("fluss_backup_failed_buckets", "Buckets whose tail could not be shipped.", lambda: len(self._failures)),
            ("fluss_backup_tail_bytes", "Bytes of tails that the backup needs.", lambda: self._tails.byte_count),
        ):
            metrics.gauge(name, meaning, read)
        for name, meaning, count in (
            ("fluss_backup_points_total", "Backup points that were made.", lambda: self._point_count),
            ("fluss_backup_shipped_bytes_total", "Bytes of tails and metadata shipped.", lambda: self._shipped_bytes),
            ("fluss_backup_failures_total", "Rounds that failed.", lambda: self._failed_rounds),
        ):
            metrics.counters(name, meaning, partial(_one, count))

    def _is_fenced(self) -> int:
        return int(self._fence is not None)

    # From start to stop

    async def start(self) -> None:
        """Find out whether this server may ship to its directory, and what was shipped before.

        A directory that belongs to another server is a FlussError. A store that cannot be reached now is asked again by
        each round.
        """
        if not self.is_enabled:
            await self._look_at_claim()
            return
        self._remote.gate.close()
        # From now on, so that segments and snapshots are not copied either before it is known whose the directory is.
        self._remote.gate.check_owner = self._check_owner
        self._remote.shipped_ms = self._kept_since_ms
        # The start of the server should not wait for a store that does not answer.
        timeout_s = _FIRST_LOOK_TIMEOUT_S if await self._in_thread(self._is_known_here) else None
        try:
            async with asyncio.timeout(timeout_s):
                await self._begin()
        except FencedError as error:
            self._refuse(error)
        except TimeoutError:
            logger.error("the backup cannot go on yet: %s has not answered for %g s", self._store.location, timeout_s)
        except FlussError as error:
            if self._claim is None and not await self._in_thread(self._is_known_here):
                raise
            logger.error("the backup cannot go on yet: %s", error.message)

    async def _look_at_claim(self) -> None:
        """Without backups, take no writes all the same if another server has replaced this one."""
        if not self._remote.is_enabled:
            return
        known = await self._in_thread(load_claim, self._files, self._data_dir, self._remote.first_location)
        if known is None:
            return
        self._claim = known.claim
        self._remote.gate.check_owner = self._check_owner
        try:
            async with asyncio.timeout(_FIRST_LOOK_TIMEOUT_S):
                await self._in_thread(self._check_owner)
        except FencedError as error:
            self._refuse(error)
        except TimeoutError:
            logger.error("%s has not answered for %g s", self._remote.first_location, _FIRST_LOOK_TIMEOUT_S)
        except FlussError as error:
            logger.error("nothing is copied to remote storage: %s", error.message)

    def start_rounds(self) -> None:
        """Ship from now on, at an interval."""
        self._is_started = self.is_enabled
        if self.is_enabled:
            self._periodic.start()

    async def stop(self) -> None:
        """Ship what is left, and end."""
        if self._is_started:
            self._is_started = False
            await self._periodic.stop()
            try:
                async with asyncio.timeout(_LAST_POINT_TIMEOUT_S):
                    await self.ship()
            except (FlussError, OSError, TimeoutError) as error:
                logger.error("the last changes before the stop are not in the backup: %s", error or "no time was left")
                self._remote.traffic.stop()
        await asyncio.to_thread(self._threads.shutdown)

    @property
    def _store(self) -> RemoteStore:
        return self._remote.store(self._remote.first_location)

    def _is_known_here(self) -> bool:
        """Tell whether this data directory has shipped to the place before. Blocking."""
        return load_claim(self._files, self._data_dir, self._store.location) is not None

    async def _begin(self) -> None:
        own = await self._in_thread(self._own_claim)
        paths, self._point, chains = await self._in_thread(self._load, own)
        self._kept = KeptPoints(self._remote.settings.backup_points_kept, paths)
        self._tails.load(chains)
        self._claim = own

    def _own_claim(self) -> Claim:
        store = self._store
        known = load_claim(self._files, self._data_dir, store.location)
        highest = highest_claim(store)
        if known is not None and not known.is_confirmed and highest != known.claim:
            # It was interrupted before its claim was written.
            known = None
        if known is None and highest is not None:
            raise FlussError(
                f"{store.location} belongs to {describe(store, highest)}: give this server a remote.data.dir of its "
                f"own; if that one is gone for good, start another in its place: --restore-from {store.location} with "
                "a new --data-dir"
            )
        if known is None and store.names(LOGS) and not self._has_remote_logs():
            raise FlussError(
                f"{store.location} has logs of another server or cluster, which nobody has claimed: give this server a "
                "remote.data.dir of its own"
            )
        if known is None:
            return claim(store, self._files, self._data_dir, platform.node(), self._clock())
        check_claim(store, known.claim)
        return known.claim

    def _has_remote_logs(self) -> bool:
        """Tell whether this server has copied logs before, without backups."""
        tables = list(self._tables.values())
        return any(group.remote is not None for table in tables for group in list(table.groups.values()))

    def _load(self, own: Claim) -> tuple[list[str], BackupPoint | None, Chains]:
        store = self._store
        paths = point_paths(store)
        point = get_point(store, paths[-1]) if paths else None
        note = RestoreNote.load(self._files, self._data_dir)
        if point is not None and note is not None and note.epoch == own.epoch > point.epoch:
            # The server that was replaced may have written a last point, which does not count.
            point = get_point(store, note.point_path)
        return paths, point, {} if point is None else get_chains(store, point)

    def _check_owner(self) -> None:
        """Raise FencedError if another server has taken over, FlussError if that is not known. Blocking."""
        if self._fence is not None:
            raise self._fence.copied()
        if self._claim is None:
            raise FlussError(
                f"{self._store.location} is not written to before the backup has found out whose it is",
                ErrorCode.LOG_STORAGE_EXCEPTION,
            )
        check_claim(self._store, self._claim)

    def _refuse(self, error: FencedError) -> None:
        """Take no more writes: they would be lost on a server that another one has replaced."""
        if self._fence is None:
            self._fence = error
            self._disk_guard.refuse(error)
            logger.critical("%s", error.message)

    def chains(self) -> Chains:
        """Return the tails of the newest point, and what was shipped since."""
        return self._tails.all()

    # A round

    async def ship(self) -> None:
        """Ship what is new, once. Raises FlussError and OSError."""
        async with self._turn:
            if self._fence is not None:
                return
            try:
                await self._ship()
            except FencedError as error:
                self._refuse(error)
            except RemoteStoppedError:
                pass
            except Exception:
                self._failed_rounds += 1
                # Which of the logs that are not open it would have shipped is not known any more.
                self._is_looked_through = False
                raise

    async def _ship(self) -> None:
        if self._claim is None:
            await self._begin()
        began_ms, began_s = self._clock(), self._monotonic()
        # Before it is looked where logs end: what lakes have by now is shipped with these.
        self._metadata.begin_round()
        self._leave_out_dropped()
        self._leave_out_copied()
        changes = await self._changes()
        # Nothing is written to a place that belongs to another server, or is not mounted.
        await self._in_thread(self._check_owner)
        failures: dict[TableBucket, str] = {}
        await self._ship_all(changes, failures)
        for pack in packs(self._tails.wasteful()):
            await self._shipped(pack)
        self._note_failures(failures)
        # Before it is looked whether the metadata have changed: what is not named any more after that waits for the
        # next point.
        number = self._remote.gate.begin_point()
        change_count = await self._metadata.change_count()
        is_new = bool(self._tails.changed) or change_count != self._metadata_changes or self._point is None
        if is_new or self._remote.gate.is_waited_for:
            await self._make_point(number, began_ms, change_count)
        if not failures:
            self._complete_s = began_s
        await self._remove_garbage()

    def _note_failures(self, failures: dict[TableBucket, str]) -> None:
        for bucket, text in failures.items():
            if self._failures.get(bucket) != text:
                logger.error("the tail of %s is not in the backup yet: %s", format_bucket(bucket), text)
        self._failures = failures

    def _leave_out_copied(self) -> None:
        """Take pieces out of chains that are in remote segments by now."""
        changed, self._remote.changed = self._remote.changed, {}
        for bucket in changed:
            chain, group = self._tails.get(bucket), self._group(bucket)
            if chain is not None and group is not None and group.remote is not None:
                self._tails.replace(bucket, chain.since(group.remote.ends[bucket.bucket_id]))

    def _group(self, bucket: TableBucket) -> BucketGroup | None:
        table = self._tables.get(bucket.table_id)
        return None if table is None else table.groups.get(bucket.partition_id)

    async def _changes(self) -> list[_Change]:
        """Return the buckets whose logs have grown since they were shipped."""
        changes, looked = [], 0
        for table in list(self._tables.values()):
            for group in list(table.groups.values()):
                for bucket_id, hosted in list(group.in_use.items()):
                    log = hosted.tablet
                    if log is not None and log.offset_high_watermark > self._shipped_end(group, hosted.bucket):
                        changes.append(_Change(group, bucket_id))
                    looked += 1
                if group.unshipped is not None or not self._is_looked_through:
                    changes += self._closed_changes(group)
                looked += 1
                if looked >= _LOOKS_PER_TURN:
                    looked = 0
                    await asyncio.sleep(0)
        self._is_looked_through = True
        return changes

    def _closed_changes(self, group: BucketGroup) -> list[_Change]:
        """Return those that have grown of the logs that were closed since the last look; at first, of all."""
        closed, group.unshipped = group.unshipped, None
        if group.high_watermarks is None:
            return []
        bucket_ids = range(group.bucket_count) if not self._is_looked_through else sorted(closed or ())
        return [
            _Change(group, bucket_id)
            for bucket_id in bucket_ids
            if bucket_id not in group.in_use
            and (offset := group.high_watermarks[bucket_id])
            and offset > self._shipped_end(group, _bucket_of(group, bucket_id))
        ]

    def _shipped_end(self, group: BucketGroup, bucket: TableBucket, remote_end: int | None = None) -> int:
        """Return where a log ends in tails and remote segments; ``remote_end`` is where these end, unless now."""
        chain = self._tails.get(bucket)
        shipped = 0 if chain is None else chain.end_offset
        if remote_end is None:
            remote_end = 0 if group.remote is None else group.remote.ends[bucket.bucket_id]
        return max(shipped, remote_end)

    async def _ship_all(self, changes: Sequence[_Change], failures: dict[TableBucket, str]) -> None:
        for first in range(0, len(changes), _BUCKETS_PER_STEP):
            await self._ship_some(changes[first : first + _BUCKETS_PER_STEP], failures)

    async def _ship_some(self, changes: Sequence[_Change], failures: dict[TableBucket, str]) -> None:
        buckets = [change.group[change.bucket_id] for change in changes if not change.group.is_dropped]
        await open_all(buckets, is_use=False)
        plans = []
        for hosted, plan in zip(buckets, await asyncio.gather(*map(self._planned, buckets)), strict=True):
            if isinstance(plan, PlannedTail):
                plans.append(plan)
            else:
                _look_again(hosted.group, hosted.bucket, plan, failures)
        shipping = [self._shipped_if_there(pack, failures) for pack in packs(plans)]
        for outcome in await asyncio.gather(*shipping, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _shipped_if_there(self, plans: Sequence[PlannedTail], failures: dict[TableBucket, str]) -> None:
        """Ship tails, but none of a log whose files have gone since it was planned: others are not to wait for it."""
        left = list(plans)
        while left:
            try:
                await self._shipped(left)
                return
            except UnreadableTailError as error:
                group = self._group(error.bucket)
                if group is not None:
                    _look_again(group, error.bucket, error, failures)
                left = [plan for plan in left if plan.bucket != error.bucket]

    async def _planned(self, hosted: HostedBucket) -> PlannedTail | FlussError | None:
        log, group, bucket = hosted.tablet, hosted.group, hosted.bucket
        if log is None:
            # It is being opened, or is offline, which the health of the server tells.
            return None
        try:
            # Before the flush: what is appended meanwhile is not flushed. A backup must not be ahead of what a machine
            # that loses its power still has.
            end = log.end_shown
            if log.recovery_offset < end.offset_next:
                await log.flush()
            chain = self._tails.get(bucket)
            remote_end = 0 if group.remote is None else group.remote.ends[bucket.bucket_id]
            has_remote_writers = group.remote is not None and group.remote.segment_counts[bucket.bucket_id] > 0
            shipped = 0 if chain is None else chain.end_offset
            start_offset = max(shipped, remote_end, log.offset_start)
            if start_offset > shipped:
                # What is between has expired, or is in remote segments.
                chain = None
            if start_offset >= end.offset_next:
                return None
            plan = partial(plan_tail, has_remote_writers=has_remote_writers)
            return await self._in_thread(plan, log, self._files, chain, start_offset, end)
        except FlussError as error:
            return error

    async def _shipped(self, plans: Sequence[PlannedTail]) -> None:
        for bucket, chain in await self._in_thread(ship_pack, self._store, self._files, plans):
            group = self._group(bucket)
            if group is not None:
                self._tails.replace(bucket, chain)
        self._shipped_bytes += sum(plan.size_bytes for plan in plans)

    def _kept_since_ms(self) -> int:
        """Return when the oldest point was begun that is kept; 0 if an earlier run has made it."""
        # The caller has something to remove.
        self._remote.gate.mark()
        oldest_ms = self._kept.oldest_ms
        # A clock that was set back since does not tell what came before what; the next points do.
        return oldest_ms if oldest_ms <= self._clock() else 0

    def dropped(self, group: BucketGroup) -> None:
        """Have the tails of a table or partition forgotten that was dropped."""
        if self.is_enabled:
            self._dropped.append(group)

    def _leave_out_dropped(self) -> None:
        """Forget tails of what was dropped before this round: the metadata that it ships do not know it any more."""
        dropped, self._dropped = self._dropped, []
        for group in dropped:
            for bucket_id in range(group.bucket_count):
                bucket = _bucket_of(group, bucket_id)
                if self._tails.get(bucket) is not None:
                    self._tails.replace(bucket, None)

    # Points

    async def _make_point(self, number: int, began_ms: int, change_count: int) -> None:
        assert self._claim is not None, "it was looked up"
        gate, before = self._remote.gate, self._point
        if before is None or change_count != self._metadata_changes:
            metadata = await self._ship_metadata()
        else:
            metadata = before.metadata
        indexes = {} if before is None else dict(before.indexes)
        changed = sorted(self._tails.changed)
        for index in changed:
            indexes.pop(index, None)
            data = self._tails.encoded(index)
            if data is not None:
                indexes[index] = await self._in_thread(put_object, self._store, new_path(INDEXES, ".json"), data)
        objects = (metadata.path, *(stored.path for stored in indexes.values()), *self._tails.objects)
        is_of_own_epoch = before is not None and before.epoch == self._claim.epoch
        point = BackupPoint(
            self._claim.epoch,
            before.number + 1 if before is not None and is_of_own_epoch else 1,
            began_ms,
            self._store.location,
            __version__,
            metadata,
            indexes,
        )
        await self._in_thread(self._put_point, point)
        # Only now is it named: a round that fails before ships everything again.
        self._metadata_changes = change_count
        self._tails.changed.difference_update(changed)
        self._point = point
        self._point_count += 1
        self._kept.add(point, objects, number)
        gate.keep_from(self._kept.oldest_number)
        # A server that took over in the meantime may not have seen the point.
        await self._in_thread(self._check_owner)
        gate.point_made(number)

    def _put_point(self, point: BackupPoint) -> None:
        self._check_owner()
        put_point(self._store, point)

    async def _ship_metadata(self) -> StoredObject:
        """Copy the metadata and ship them.

        Snapshots of rows by key and of lakes that they name must not be ahead of the tails: a restored server would
        give out offsets anew that the lake has already. One may have been made since the tails were shipped. Then
        those of its buckets are shipped again, and the metadata are copied once more.
        """
        copy = self._data_dir / _COPY_FILE
        try:
            for attempt in range(_COPY_ATTEMPTS):
                ahead = await self._copied_ahead(copy)
                if not ahead or attempt == _COPY_ATTEMPTS - 1:
                    break
                await self._ship_all(ahead, self._failures)
            return await self._in_thread(self._put_metadata, copy)
        finally:
            await self._in_thread(self._files.remove, copy)

    async def _copied_ahead(self, copy: Path) -> list[_Change]:
        """Copy the metadata, and return the buckets of which they name snapshots that are ahead of the logs."""
        before, self._remote.changed = self._remote.changed, {}
        try:
            offsets = await self._in_thread(self._copy_metadata, copy)
        finally:
            # What has come to remote segments in the meantime, the copy may not name.
            meanwhile = self._remote.changed
            self._remote.changed = {**meanwhile, **before}
        ahead = {
            bucket: _Change(group, bucket.bucket_id)
            for bucket, offset in (*offsets.items(), *self._metadata.lake_offsets().items())
            if (group := self._group(bucket)) is not None
            and offset > self._shipped_end(group, bucket, meanwhile.get(bucket))
        }
        return list(ahead.values())

    def _copy_metadata(self, copy: Path) -> Mapping[TableBucket, int]:
        self._files.remove(copy)
        self._metadata.copy_to(copy)
        return self._metadata.snapshot_offsets(copy)

    def _put_metadata(self, copy: Path) -> StoredObject:
        size_bytes, checksum = self._files.size(copy), 0
        for position in range(0, size_bytes, CHUNK_BYTES):
            checksum = crc32c(self._files.read(copy, position, CHUNK_BYTES), checksum)
        path = new_path(METADATA, ".sqlite")
        self._store.put_file(path, self._files, copy, size_bytes)
        self._files.forget(copy)
        self._shipped_bytes += size_bytes
        return StoredObject(path, size_bytes, checksum)

    # What is not needed any more

    async def _remove_garbage(self) -> None:
        if not self._kept.is_removal_due:
            return
        try:
            await self._in_thread(self._kept.remove, self._store, self._check_owner)
        except FencedError:
            raise
        except (FlussError, OSError) as error:
            logger.warning("objects of older backups are not removed yet: %s", error)

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args))


def _look_again(
    group: BucketGroup, bucket: TableBucket, error: FlussError | None, failures: dict[TableBucket, str]
) -> None:
    """Have the next round look at a bucket of which nothing was shipped, also if its log is closed until then."""
    if error is not None and not group.is_dropped:
        failures[bucket] = error.message
    if group.unshipped is None:
        group.unshipped = set()
    group.unshipped.add(bucket.bucket_id)


def _bucket_of(group: BucketGroup, bucket_id: int) -> TableBucket:
    return TableBucket.new_with_partition(group.table_id, group.partition_id, bucket_id)


def _one(read: Callable[[], float]) -> tuple[Sample, ...]:
    return (Sample(read()),)
