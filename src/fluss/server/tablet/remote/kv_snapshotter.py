"""Makes snapshots of rows by key in remote storage, at an interval, and removes those that are not needed any more.

For one bucket, step by step; a crash may come between any two of them:

| step                                                      | what a crash before the next one leaves                 |
|-----------------------------------------------------------|---------------------------------------------------------|
| 1. the registry notes that objects are about to change    | nothing; the next start looks for orphans               |
| 2. the store is copied beside itself, with hard links     | a directory that the next export removes                |
| 3. SST files that the snapshot before does not have, and  | objects that no snapshot names: orphans                 |
|    the other files are uploaded, under names of their own |                                                         |
| 4. the description is written; the log is on the disk as  | an orphan more                                          |
|    far as the rows go                                     |                                                         |
| 5. the registry adds the snapshot                         | a snapshot more than is retained                        |
| 6. the registry retires what is superfluous; those of     | objects that no snapshot names: orphans                 |
|    earlier rounds it forgets                              |                                                         |
| 7. objects of forgotten snapshots are removed             | fewer orphans                                           |
| 8. the registry notes that there are no orphans           | nothing                                                 |

Orphans are found by comparing the directory with the descriptions, before anything else is done for a bucket of which
step 1 was noted and step 8 was not. A snapshot is forgotten a round after it was retired, so that its readers can
finish; where backups are shipped, not before one that begins later has been: until then a restored server would know
only of the older one. The directories of dropped tables and partitions go with those of remote logs.

A bucket that has not changed since its newest snapshot is left alone, and so is one that shares a database and has
changed little: of it all rows have to be copied. One that is not in use is opened only for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.metrics import Counter, Metrics
from fluss.schema.table import TableBucket
from fluss.server.model import KvSnapshotBucket, KvSnapshotEntry, format_bucket
from fluss.server.periodic import Periodic
from fluss.server.tablet.buckets import BucketGroup, HostedTable, open_all
from fluss.server.tablet.remote.kv_snapshots import KvSnapshots
from fluss.server.tablet.remote.remote_logs import RemoteLogs
from fluss.storage.backup.ownership import FencedError
from fluss.storage.kv.snapshots.completed_snapshot import CompletedSnapshot
from fluss.storage.kv.snapshots.remote_snapshot import SnapshotUploader, remove_snapshot_orphans
from fluss.storage.kv.state import KvState
from fluss.storage.kv.store import remove_store
from fluss.storage.remote.store import RemoteStoppedError

# Buckets that are noted in the registry at once, and those that are worked on at the same time.
_BUCKETS_PER_STEP: Final = 64
_BUCKETS_AT_ONCE: Final = 2
# Buckets that are looked at before others get their turn on the event loop.
_LOOKS_PER_TURN: Final = 2048

logger = logging.getLogger(__name__)


class KvSnapshotter:
    """Looks after the snapshots of all hosted tables. Belongs to the event loop; a few threads do the work."""

    def __init__(self, snapshots: KvSnapshots, logs: RemoteLogs, tables: Mapping[int, HostedTable]) -> None:
        self._snapshots = snapshots
        self._registry = snapshots.registry
        self._logs = logs
        self._tables = tables
        self._places = asyncio.Semaphore(_BUCKETS_AT_ONCE)
        # One round at a time: nothing is removed that is being written.
        self._turn = asyncio.Lock()
        self._is_stopping = False
        # Buckets whose last snapshot has failed, and why.
        self._failures: dict[TableBucket, str] = {}
        self._taken = Counter()
        self._uploaded_bytes = Counter()
        settings = snapshots.settings
        is_enabled = snapshots.is_enabled
        self._periodic = Periodic(
            "snapshots of rows by key", settings.interval_ms if is_enabled else 0, self.snapshot_all
        )
        self._lease_check = Periodic(
            "expiry of leases of snapshots", settings.lease_check_interval_ms if is_enabled else 0, self.expire_leases
        )

    def start(self) -> None:
        if self._snapshots.is_enabled:
            self._periodic.start()
            self._lease_check.start()

    async def stop(self) -> None:
        """End what is going on; the next start goes on with it."""
        self._is_stopping = True
        self._logs.traffic.stop()
        await self._periodic.stop()
        await self._lease_check.stop()
        async with self._turn:
            pass

    def set_interval(self, interval_ms: int) -> None:
        """Change how often snapshots are made; 0 is never."""
        if self._snapshots.is_enabled:
            self._periodic.set_interval(interval_ms)

    def show(self, metrics: Metrics) -> None:
        """Show what is made, and which buckets have none because of a failure."""
        if not self._snapshots.is_enabled:
            return
        metrics.gauge(
            "fluss_kv_snapshot_failed_buckets",
            "Buckets whose rows could not be brought to remote storage the last time.",
            lambda: len(self._failures),
        )
        metrics.show_counter("fluss_kv_snapshots_taken_total", "Snapshots of rows by key that were made.", self._taken)
        metrics.show_counter(
            "fluss_kv_snapshot_uploaded_bytes_total", "Bytes that were uploaded for them.", self._uploaded_bytes
        )

    async def expire_leases(self) -> None:
        """Forget leases whose time is over."""
        await self._registry.expire_leases(self._snapshots.clock())
        await self._snapshots.count()

    # A round

    async def snapshot_all(self) -> None:
        """Do what there is to do for all buckets, once."""
        async with self._turn:
            try:
                await self._snapshots.in_thread(self._logs.gate.check_owner)
            except (FencedError, RemoteStoppedError):
                # Another server has taken over, which the backup says, or this one stops.
                return
            superfluous: defaultdict[tuple[int, int | None], set[int]] = defaultdict(set)
            for bucket in await self._registry.superfluous(self._snapshots.settings.retained_count):
                superfluous[bucket.table_id, bucket.partition_id].add(bucket.bucket_id)
            for table in list(self._tables.values()):
                if not table.table.has_primary_key:
                    continue
                for group in list(table.groups.values()):
                    if self._is_stopping:
                        return
                    await self._tend_group(group, superfluous[group.table_id, group.partition_id])
            await self._snapshots.count()

    async def _tend_group(self, group: BucketGroup, superfluous: Collection[int]) -> None:
        changed = await self._changed(group)
        key = (group.table_id, group.partition_id)
        dirty = {it.bucket_id for it in self._snapshots.dirty if (it.table_id, it.partition_id) == key}
        wanted = sorted({*changed, *superfluous, *dirty})
        for first in range(0, len(wanted), _BUCKETS_PER_STEP):
            bucket_ids = wanted[first : first + _BUCKETS_PER_STEP]
            if self._is_stopping or group.is_dropped:
                return
            await self._registry.begin([self._snapshots.new_bucket(group, bucket_id) for bucket_id in bucket_ids])
            outcomes = await asyncio.gather(
                *(self._tend_bucket(group, bucket_id, bucket_id in changed) for bucket_id in bucket_ids)
            )
            clean = [bucket for bucket in outcomes if bucket is not None]
            if clean:
                await self._registry.finish(clean)
                self._snapshots.dirty.difference_update(clean)

    async def _changed(self, group: BucketGroup) -> set[int]:
        """Return the buckets with changes since their newest snapshot."""
        changed = set()
        for bucket_id in range(group.bucket_count):
            hosted = group.in_use.get(bucket_id)
            if hosted is not None and hosted.tablet is not None:
                end = hosted.tablet.offset_high_watermark if hosted.tablet.failure is None else 0
            else:
                end = 0 if group.high_watermarks is None else group.high_watermarks[bucket_id]
            if end > (0 if group.snapshot_offsets is None else group.snapshot_offsets[bucket_id]):
                changed.add(bucket_id)
            if bucket_id % _LOOKS_PER_TURN == _LOOKS_PER_TURN - 1:
                await asyncio.sleep(0)
        return changed

    # One bucket

    async def _tend_bucket(self, group: BucketGroup, bucket_id: int, is_changed: bool) -> TableBucket | None:
        """Do what there is to do for a bucket; return it if it has no orphans afterwards. Failures are logged."""
        bucket = TableBucket.new_with_partition(group.table_id, group.partition_id, bucket_id)
        async with self._places:
            if self._is_stopping or group.is_dropped:
                return None
            try:
                await self._tend(group, bucket, is_changed)
            except RemoteStoppedError:
                return None
            except Exception as error:  # The other buckets must not wait for what is wrong with this one.
                self._snapshots.dirty.add(bucket)
                self._note_failure(group, bucket, error)
                return None
        if self._failures.pop(bucket, None) is not None:
            logger.info("there are snapshots of %s again", format_bucket(bucket))
        return bucket

    def _note_failure(self, group: BucketGroup, bucket: TableBucket, error: Exception) -> None:
        text = error.message if isinstance(error, FlussError) else str(error)
        if self._failures.get(bucket) != text and not group.is_dropped and not self._is_stopping:
            # The trouble of a store or a disk is told by a sentence, anything else has to be looked into.
            is_known = isinstance(error, FlussError | OSError)
            where = format_bucket(bucket)
            logger.error("no snapshot of %s now: %s", where, text, exc_info=None if is_known else error)
        self._failures[bucket] = text

    async def _tend(self, group: BucketGroup, bucket: TableBucket, is_changed: bool) -> None:
        known = await self._registry.find(bucket)
        if known is None:
            # It was dropped.
            raise RemoteStoppedError
        await self._snapshots.in_thread(self._logs.check_place, known.root)
        entries = await self._registry.of_bucket(bucket)
        if bucket in self._snapshots.dirty:
            count = await self._remove_orphans(known, entries)
            if count:
                logger.info("removed %d orphans from %s/%s", count, known.root, known.directory)
        if is_changed:
            await self._make(group, known, entries)
        await self._remove_superfluous(known)

    async def _make(self, group: BucketGroup, known: KvSnapshotBucket, entries: Collection[KvSnapshotEntry]) -> None:
        hosted = group[known.bucket.bucket_id]
        await open_all((hosted,), is_use=False)
        newest = next((entry for entry in entries if entry.retired_ms is None), None)
        before = None
        if newest is not None:
            # If it cannot be read everything is uploaded.
            with suppress(FlussError):
                before = await self._snapshots.description(newest)
        exported = await hosted.key_values().export(0 if newest is None else newest.log_offset)
        if exported is None:
            return
        directory, state = exported
        try:
            snapshot = await self._snapshots.in_thread(self._upload, group, known, directory, state, before)
        finally:
            await asyncio.to_thread(remove_store, directory)
        entry = KvSnapshotEntry(
            known.bucket,
            snapshot.snapshot_id,
            known.root,
            known.directory,
            snapshot.log_offset,
            snapshot.size_bytes,
            state.value_bytes_max,
            self._snapshots.clock(),
        )
        # A directory that is not mounted any more takes objects, too.
        await self._snapshots.in_thread(self._logs.check_owner, known.root)
        if not await self._registry.add(entry) or group.is_dropped:
            # Its directory is going to be removed.
            raise RemoteStoppedError
        self._snapshots.note(known.bucket, snapshot.log_offset)
        self._snapshots.keep(snapshot)
        self._taken.add()
        self._uploaded_bytes.add(snapshot.uploaded_bytes)

    def _upload(
        self,
        group: BucketGroup,
        known: KvSnapshotBucket,
        directory: Path,
        state: KvState,
        before: CompletedSnapshot | None,
    ) -> CompletedSnapshot:
        def check() -> None:
            if self._is_stopping or group.is_dropped:
                raise RemoteStoppedError

        store = self._logs.store(known.root)
        threads = self._snapshots.settings.transfer_threads
        uploader = SnapshotUploader(store, known.directory, threads=threads, check=check)
        return uploader.upload(directory, known.bucket, known.next_id, state, before)

    # What is not needed any more

    async def _remove_superfluous(self, known: KvSnapshotBucket) -> None:
        settings, bucket = self._snapshots.settings, known.bucket
        shipped_ms = self._snapshots.shipped_ms
        retired = [entry for entry in await self._registry.of_bucket(bucket) if entry.retired_ms is not None]
        gone = [
            entry.snapshot_id
            for entry in retired
            if shipped_ms is None or (entry.retired_ms is not None and entry.retired_ms < shipped_ms)
        ]
        # Those are for the next round.
        await self._registry.retire(bucket, settings.retained_count, self._snapshots.clock())
        if not gone:
            return
        # From here on there are orphans until the objects that are not named any more are gone.
        self._snapshots.dirty.add(bucket)
        await self._registry.remove(bucket, gone)
        self._snapshots.forget(bucket, gone)
        await self._remove_orphans(known, await self._registry.of_bucket(bucket))

    async def _remove_orphans(self, known: KvSnapshotBucket, entries: Collection[KvSnapshotEntry]) -> int:
        """Remove what belongs to none of these snapshots."""
        live = []
        for entry in entries:
            try:
                live.append(await self._snapshots.description(entry))
            except FlussError as error:
                if error.error_code != ErrorCode.KV_SNAPSHOT_NOT_EXIST:
                    raise
                logger.error("snapshot %d of %s is lost: %s", entry.snapshot_id, format_bucket(known.bucket), error)
                await self._snapshots.discard(known.bucket, [entry.snapshot_id])
        store = await self._snapshots.in_thread(self._logs.store, known.root)
        remove = partial(remove_snapshot_orphans, check=partial(self._logs.check_owner, known.root))
        return await self._snapshots.in_thread(remove, store, known.directory, live)

    def dropped(self, group: BucketGroup) -> None:
        """Let go of what is known of a group that was dropped. Its directories are removed with its remote logs."""
        self._snapshots.forget_group(group)
        key = (group.table_id, group.partition_id)
        for bucket in [it for it in self._failures if (it.table_id, it.partition_id) == key]:
            del self._failures[bucket]
