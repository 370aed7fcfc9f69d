"""The logs of a server: opened when they are first asked for, dropped with their tables, closed in order at the end.

What a start costs, and what the server holds in memory, is in proportion to what is used and not to what exists. After
a crash all logs are looked through in the background, so that damage is found before a request meets it, and the next
stop can be a clean one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from fluss.errors import ErrorCode, FlussError
from fluss.memory import LongLived, give_back_memory
from fluss.metrics import Metrics
from fluss.schema.predicate import FilterLimits
from fluss.server.descriptors import log_files
from fluss.server.kv.bucket import KvBucket
from fluss.server.kv.kv_runtime import KvRuntime, KvSettings
from fluss.server.model import (
    BucketHealth,
    CatalogView,
    Clock,
    IdSource,
    KvSnapshotRegistry,
    MetadataCopies,
    Partition,
    RemoteLogRegistry,
    Table,
    TieredOffsets,
)
from fluss.server.periodic import Periodic
from fluss.server.tablet.buckets import BucketGroup, HostedTable
from fluss.server.tablet.disk_guard import DiskGuard, disk_usage_ratio
from fluss.server.tablet.log_ends import know_log_ends, log_ends
from fluss.server.tablet.log_opener import LogOpener
from fluss.server.tablet.log_upkeep import LogUpkeep
from fluss.server.tablet.reaper import Reaper
from fluss.server.tablet.remote.backup import Backup
from fluss.server.tablet.remote.kv_snapshots import KvSnapshots, KvSnapshotSettings
from fluss.server.tablet.remote.kv_snapshotter import KvSnapshotter
from fluss.server.tablet.remote.remote_copier import RemoteCopier
from fluss.server.tablet.remote.remote_logs import RemoteLogs, RemoteSettings
from fluss.server.tablet.remote.restoration import Restoration
from fluss.server.tablet.retention import Retention
from fluss.server.tablet.scan_sessions import ScanSettings
from fluss.server.tablet.scrub_repairs import ScrubRepairs
from fluss.server.tablet.scrubber import Scrubber, ScrubSettings
from fluss.server.tablet.tablet_files import Checkpoints, GroupOffsets, find_groups, find_residue, is_known
from fluss.storage.backup.restore_note import RestoreNote
from fluss.storage.log.checkpoint_file import GroupId
from fluss.storage.log.committer import Committer
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.log.tablet import LogTablet
from fluss.storage.vfs import Files, OsFiles

# Logs that are closed at the same time, and logs that are looked at in one turn of the event loop.
_LOGS_PER_TURN: Final = 64
_LOOKS_PER_TURN: Final = 2048

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TabletSettings:
    """What a tablet server can be told: limits, and how often things are looked after."""

    log: LogSettings = field(default_factory=LogSettings)
    kv: KvSettings = field(default_factory=KvSettings)
    scans: ScanSettings = field(default_factory=ScanSettings)
    scrub: ScrubSettings = field(default_factory=ScrubSettings)
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    snapshots: KvSnapshotSettings = field(default_factory=KvSnapshotSettings)
    # Whether an acknowledged record is on the disk, or may still be in the memory of the operating system.
    is_fsync_required: bool = True
    checkpoint_interval_ms: int = 60_000
    retention_check_interval_ms: int = 300_000
    retention_rolls_active_segment: bool = False
    writer_expiration_check_interval_ms: int = 600_000
    disk_write_limit_ratio: float = 0.85
    disk_write_recover_ratio: float = 0.80
    disk_check_interval_ms: int = 30_000
    # What all answers with records or rows may hold in memory; then requests take turns, and return less at a time.
    fetch_memory_bytes_max: int = 256 * 1024 * 1024
    # What one answer may hold, whatever the client asks for. A single larger batch is returned all the same.
    fetch_response_bytes_max: int = 64 * 1024 * 1024
    # What one answer to a lookup or a prefix lookup may hold; then it is refused.
    lookup_bytes_max: int = 64 * 1024 * 1024
    # What one limit scan may return; then it is refused.
    limit_scan_bytes_max: int = 128 * 1024 * 1024
    # Buckets for which all fetches together wait, counted once per fetch; then a fetch is answered without waiting.
    delayed_buckets_max: int = 1_000_000
    # Threads that read what is not in memory, and how many of them fetches with filters use at the same time.
    reader_threads: int = 4
    filter_threads: int = 2
    # What the filters of one fetch may be, and how many batches they are asked about before it is answered.
    filters: FilterLimits = field(default_factory=FilterLimits)
    filter_batches_max: int = 16_384
    # What the filters of all fetches may have, as they were sent; then a connection has them answered one by one.
    filter_memory_bytes_max: int = 32 * 1024 * 1024
    # Logs that are held open; beyond it those that were not used for a while are closed until they are needed again.
    open_logs_max: int = 16_384
    idle_check_interval_ms: int = 30_000
    # When logs are tried again that could not be looked through after a crash.
    recovery_retry_ms: int = 10_000
    # How long an answer is held back that says nothing but "try again": some clients do so at once, without end.
    retry_answer_delay_ms: int = 50


class _State(Enum):
    NEW = auto()
    STARTING = auto()
    RUNNING = auto()
    STOPPED = auto()


class TabletManager:
    """Keeps the logs of all buckets of the catalog. Implements BucketHost; belongs to the event loop that starts it.

    A log that is damaged does not keep the others from working: its bucket is offline, which requests for it and the
    health of the server say, and its files stay as they are for the operator to look at.
    """

    def __init__(
        self,
        data_dir: Path,
        catalog: CatalogView,
        settings: TabletSettings,
        *,
        clock: Clock,
        ids: IdSource | None = None,
        remote_registry: RemoteLogRegistry | None = None,
        snapshot_registry: KvSnapshotRegistry | None = None,
        tiered: TieredOffsets | None = None,
        metadata: MetadataCopies | None = None,
        files: Files | None = None,
        usage_ratio: Callable[[Path], float] = disk_usage_ratio,
    ) -> None:
        """``ids`` numbers the rows of tables that ask for it; ``remote_registry`` knows what is in remote storage,
        ``tiered`` what is in lakes; ``metadata`` are shipped with backups.
        ``snapshot_registry`` which snapshots of rows by key there are, ``tiered`` what is in lakes.
        """
        self._data_dir = data_dir
        self._catalog = catalog
        self._settings = settings
        self._clock = clock
        self._files = files or OsFiles(descriptors_max=log_files())
        self._committer = Committer(self._files, is_synced=settings.is_fsync_required)
        self._checkpoints = Checkpoints(data_dir, self._files)
        self._disk_guard = DiskGuard(
            data_dir,
            limit_ratio=settings.disk_write_limit_ratio,
            recover_ratio=settings.disk_write_recover_ratio,
            usage_ratio=usage_ratio,
        )
        self._readers = ThreadPoolExecutor(settings.reader_threads, thread_name_prefix="fluss-reader")
        self._kv_runtime = KvRuntime(settings.kv, ids, data_dir)
        long_lived = LongLived()
        self._opener = LogOpener(
            *(data_dir, settings.log),
            files=self._files,
            committer=self._committer,
            clock=clock,
            long_lived=long_lived,
        )
        self._reaper = Reaper(data_dir, self._files, self._opener, self._committer, self._kv_runtime)
        self._tables: dict[int, HostedTable] = {}
        self._bucket_count = 0
        # The checkpoint files are written by one task at a time.
        self._checkpoint_turn = asyncio.Lock()
        self._is_checkpoint_due = False
        self._upkeep = LogUpkeep(
            self._tables,
            self._opener,
            open_logs_max=settings.open_logs_max,
            retry_ms=settings.recovery_retry_ms,
            long_lived=long_lived,
        )
        self._remote: RemoteLogs | None = None
        self._copier: RemoteCopier | None = None
        self._snapshots: KvSnapshots | None = None
        self._snapshotter: KvSnapshotter | None = None
        if remote_registry is not None:
            self._remote = RemoteLogs(settings.remote, remote_registry, self._tables, data_dir, self._files)
            if snapshot_registry is not None:
                self._snapshots = KvSnapshots(settings.snapshots, snapshot_registry, self._remote, self._tables, clock)
                self._snapshotter = KvSnapshotter(self._snapshots, self._remote, self._tables)
                self._kv_runtime.snapshots_of = self._snapshots.source
            self._copier = RemoteCopier(
                *(self._remote, self._tables, self._opener, self._files, clock),
                index_interval_bytes=settings.log.index_interval_bytes,
                tiered=tiered,
                offset_needed=None if self._snapshots is None else self._snapshots.offset_needed,
            )
            self._kv_runtime.archive_of = self._remote.archive
        self._backup: Backup | None = None
        if self._remote is not None and metadata is not None:
            self._backup = Backup(
                *(self._remote, self._tables, metadata, self._disk_guard, data_dir, self._files, clock)
            )
        self._restoration: Restoration | None = None
        self._retention = Retention(
            self._tables,
            clock,
            self._opener,
            rolls_active_segment=settings.retention_rolls_active_segment,
            copied_end=None if self._copier is None or not self._copier.is_copying else self._copier.named_end,
            tiered=tiered,
        )
        self._periodics = (
            Periodic("log checkpoint", settings.checkpoint_interval_ms, self.checkpoint),
            Periodic("closing of idle logs", settings.idle_check_interval_ms, self._upkeep.close_idle),
            Periodic("log retention", settings.retention_check_interval_ms, self._retention.expire_segments),
            Periodic("writer expiry", settings.writer_expiration_check_interval_ms, self._retention.expire_writers),
            Periodic("disk check", settings.disk_check_interval_ms, self._disk_guard.check),
        )
        self._scrubber = Scrubber(
            data_dir,
            settings.scrub,
            ScrubRepairs(self._tables, self._kv_runtime.shared_damaged),
            self._files,
            clock=clock,
        )
        self._background: set[asyncio.Task[None]] = set()
        self._state = _State.NEW

    @property
    def tables(self) -> Mapping[int, HostedTable]:
        """The tables that are here, by id. It is always up to date."""
        return MappingProxyType(self._tables)

    @property
    def settings(self) -> TabletSettings:
        return self._settings

    @property
    def disk_guard(self) -> DiskGuard:
        return self._disk_guard

    @property
    def retention(self) -> Retention:
        return self._retention

    @property
    def remote(self) -> RemoteLogs | None:
        """What is in remote storage; None if the server knows no such thing."""
        return self._remote

    @property
    def copier(self) -> RemoteCopier | None:
        """What copies logs to remote storage."""
        return self._copier

    @property
    def backup(self) -> Backup | None:
        """What ships logs and metadata to remote storage."""
        return self._backup

    @property
    def restoration(self) -> Restoration | None:
        """What brings logs back from a backup; None if the server was not restored, or all are there."""
        return self._restoration

    @property
    def snapshots(self) -> KvSnapshots | None:
        """The snapshots of rows by key in remote storage; None if the server knows no such thing."""
        return self._snapshots

    @property
    def snapshotter(self) -> KvSnapshotter | None:
        """What makes these snapshots."""
        return self._snapshotter

    @property
    def scrubber(self) -> Scrubber:
        return self._scrubber

    @property
    def kv_runtime(self) -> KvRuntime:
        """What the stores of all buckets share."""
        return self._kv_runtime

    @property
    def readers(self) -> Executor:
        """The threads that read what is not in memory."""
        return self._readers

    # From start to stop

    async def start(self) -> None:
        """Host everything that is in the catalog. Logs are opened later."""
        assert self._state is _State.NEW, "a manager is started once"
        self._state = _State.STARTING
        self._committer.start()
        try:
            self._opener.was_clean = await asyncio.to_thread(self._checkpoints.take_clean_shutdown_marker)
            await self._disk_guard.check()
            for table in self._catalog.tables():
                for partition in self._partitions_of(table):
                    self._host(table, partition)
            await self._take_notes()
            if self._remote is not None:
                await self._remote.start()
            if self._backup is not None:
                await self._backup.start()
            await self._begin_restoration()
            if self._snapshots is not None:
                await self._snapshots.start()
        except BaseException:
            await self._stop_threads()
            raise
        self._state = _State.RUNNING
        for periodic in self._periodics:
            periodic.start()
        self._kv_runtime.start()
        self._scrubber.start()
        if self._copier is not None:
            self._copier.start()
        if self._backup is not None:
            self._backup.start_rounds()
        if self._snapshotter is not None:
            self._snapshotter.start()
        if not self._opener.was_clean:
            self._in_background(self._recover())
        elif self._restoration is not None:
            self._in_background(self._restoration.bring_all())
        self._in_background(self._remove_residue())

    async def stop(self) -> None:
        """Close every log, and note that there is nothing to recover if that is so. May be called again."""
        if self._state is not _State.RUNNING:
            return
        self._state = _State.STOPPED
        self._upkeep.stop()
        self._retention.stop()
        for periodic in self._periodics:
            await periodic.stop()
        await self._scrubber.stop()
        if self._restoration is not None:
            await self._restoration.stop()
        if self._backup is not None:
            await self._backup.stop()
        if self._copier is not None:
            await self._copier.stop()
        if self._snapshotter is not None:
            await self._snapshotter.stop()
        await self._reaper.stop()
        while self._background:
            await asyncio.wait(self._background)
        await self._opener.stop()
        await self._close_stores()
        is_clean = await self._close_all()
        await self._stop_threads()
        try:
            await self.checkpoint()
            if is_clean:
                await asyncio.to_thread(self._checkpoints.write_clean_shutdown_marker)
        except OSError as error:
            logger.error("the next start will look through the logs, since this could not be noted: %s", error)
        # Also those of remote storage: a process may have many servers, one after the other.
        self._files.forget(Path(self._data_dir.anchor))

    async def _stop_threads(self) -> None:
        if self._remote is not None:
            await self._remote.stop()
        if self._snapshots is not None:
            await self._snapshots.stop()
        await self._kv_runtime.stop()
        await self._committer.stop()
        await asyncio.to_thread(self._readers.shutdown)

    async def __aenter__(self) -> TabletManager:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    # What the coordinator asks for

    async def open_buckets(self, table: Table, partition: Partition | None) -> None:
        hosted = self._tables.get(table.table_id)
        if hosted is not None and hosted.has(partition):
            return
        group = self._host(table, partition)
        if not await asyncio.to_thread(self._files.exists, group.directory):
            # From now on every directory in it is the work of this process.
            group.take_found(bytearray(group.bucket_count))

    async def know_log_ends(self, table: Table, partition: Partition) -> None:
        hosted = self._tables.get(table.table_id)
        group = None if hosted is None else hosted.groups.get(partition.partition_id)
        if group is not None:
            await know_log_ends(group, was_clean=self._opener.was_clean)

    async def drop_buckets(self, table: Table, partition: Partition | None) -> tuple[int, ...]:
        hosted = self._tables.get(table.table_id)
        group = None if hosted is None else hosted.remove(partition)
        if hosted is None or group is None:
            return ()
        if hosted.is_empty:
            del self._tables[table.table_id]
            self._kv_runtime.forget_table(table.table_id)
        self._bucket_count -= group.bucket_count
        self._is_checkpoint_due = True
        # No request finds the logs any more, and they are as they were.
        ends = log_ends(group, was_clean=self._opener.was_clean)
        self._reaper.drop(group)
        if self._copier is not None:
            self._copier.dropped(group)
        if self._backup is not None:
            self._backup.dropped(group)
        if self._restoration is not None:
            self._restoration.dropped(group)
        if self._snapshotter is not None:
            self._snapshotter.dropped(group)
        return ends

    def check_change(self) -> None:
        if self._backup is not None and self._backup.fence is not None:
            raise self._backup.fence.copied()

    def table_altered(self, table: Table) -> None:
        hosted = self._tables.get(table.table_id)
        if hosted is not None:
            hosted.update(table)

    def health(self) -> BucketHealth:
        damaged = self._scrubber.damaged_buckets
        failed_count = len(damaged) + sum(
            bucket.is_failed and bucket.bucket not in damaged for table in self._tables.values() for bucket in table
        )
        backup = self._backup
        problems = (part.problem for part in (backup, self._restoration) if part is not None)
        return BucketHealth(
            bucket_count=self._bucket_count,
            active_count=self._bucket_count - failed_count,
            is_fenced=backup is not None and backup.fence is not None,
            problem=next(filter(None, problems), None),
        )

    def show(self, metrics: Metrics) -> None:
        """Show how many buckets, logs and stores there are."""
        metrics.gauge("fluss_buckets", "Buckets of all tables and partitions.", lambda: self._bucket_count)
        metrics.gauge("fluss_failed_buckets", "Buckets that cannot be read or written.", self._failed_count)
        metrics.gauge("fluss_open_logs", "Logs that are open, because something uses them.", self._open_count)
        metrics.gauge("fluss_buckets_in_use", "Buckets that requests have asked for.", self._in_use_count)
        guard = self._disk_guard
        metrics.gauge("fluss_disk_usage_ratio", "How full the disk of the data is, 0 to 1.", lambda: guard.usage_ratio)
        metrics.gauge("fluss_disk_write_locked", "1 while writes are refused for it.", lambda: float(guard.is_locked))
        self.kv_runtime.show(metrics)
        if self._remote is not None and self._copier is not None:
            self._remote.show(metrics)
            self._copier.show(metrics)
        if self._backup is not None:
            self._backup.show(metrics)
        if self._restoration is not None:
            self._restoration.show(metrics)
        if self._snapshots is not None and self._snapshotter is not None:
            self._snapshots.show(metrics)
            self._snapshotter.show(metrics)

    def _failed_count(self) -> int:
        health = self.health()
        return health.bucket_count - health.active_count

    def _in_use_count(self) -> int:
        return sum(len(group.in_use) for table in self._tables.values() for group in table.groups.values())

    def _open_count(self) -> int:
        return sum(bucket.tablet is not None for table in self._tables.values() for bucket in table)

    # Hosting

    def _partitions_of(self, table: Table) -> Collection[Partition | None]:
        return self._catalog.partitions_of(table.table_id).values() if table.is_partitioned else (None,)

    def _host(self, table: Table, partition: Partition | None) -> BucketGroup:
        hosted = self._tables.get(table.table_id)
        if hosted is None:
            new_kv = partial(KvBucket, self._kv_runtime) if table.has_primary_key else None
            hosted = self._tables[table.table_id] = HostedTable(table, new_kv)
        group = hosted.add(partition, self._opener)
        self._bucket_count += group.bucket_count
        return group

    async def _take_notes(self) -> None:
        """Take what the last run has noted of logs."""

        def bucket_count(group_id: GroupId) -> int | None:
            group = self._group(group_id)
            return None if group is None else group.bucket_count

        for group_id, offsets in (await asyncio.to_thread(self._checkpoints.read, bucket_count)).items():
            group = self._group(group_id)
            assert group is not None, "others were left out"
            group.recovery_offsets, group.high_watermarks = offsets
        # Of a million lines a few bytes each are left.
        give_back_memory()

    def _group(self, group_id: GroupId) -> BucketGroup | None:
        hosted = self._tables.get(group_id[0])
        return None if hosted is None else hosted.groups.get(group_id[1])

    async def _recover(self) -> None:
        """After a crash: look through all logs that are on the disk, and note what need not be looked at again.

        After a restore they are fetched first.
        """
        if self._restoration is not None:
            await self._restoration.bring_all()
        await self._upkeep.recover()
        await self.checkpoint()

    async def _begin_restoration(self) -> None:
        """Go on with a restore, if the data directory was made by one and logs are missing."""
        note = await asyncio.to_thread(RestoreNote.load, self._files, self._data_dir)
        if note is None:
            return
        self._opener.restored_ms = note.time_ms
        if note.is_complete:
            return
        if self._remote is None or not self._remote.is_enabled:
            raise FlussError(
                f"logs are missing that are in the backup in {note.location}; start the server with remote.data.dir "
                "set to it"
            )
        restoration = Restoration(
            *(note, self._remote, self._tables, self._data_dir, self._files),
            segment_bytes_max=self._settings.log.segment_bytes_max,
        )
        is_loaded = self._backup is not None and self._backup.is_loaded
        chains = self._backup.chains() if self._backup is not None and is_loaded else await restoration.load_chains()
        restoration.start(chains)
        self._restoration, self._opener.bring = restoration, restoration.bring

    # Checkpoints

    async def checkpoint(self) -> None:
        """Note what is on the disk and what was visible, if that has changed since it was last noted."""
        async with self._checkpoint_turn:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        buckets = [bucket for table in self._tables.values() for bucket in table]
        if not self._settings.is_fsync_required:
            logs = [bucket.tablet for bucket in buckets if bucket.tablet is not None]
            await self._flush(log for log in logs if log.recovery_offset < log.offset_high_watermark)
        is_new = self._upkeep.take_is_changed()
        for index, bucket in enumerate(buckets):
            if bucket.tablet is not None:
                is_new |= bucket.group.note_offsets(bucket.tablet)
            if index % _LOOKS_PER_TURN == _LOOKS_PER_TURN - 1:
                await asyncio.sleep(0)
        if not is_new and not self._is_checkpoint_due:
            return
        noted = [
            ((table_id, partition_id), GroupOffsets(group.recovery_offsets, group.high_watermarks))
            for table_id, table in self._tables.items()
            for partition_id, group in table.groups.items()
            if group.recovery_offsets is not None or group.high_watermarks is not None
        ]
        # Set again if the files cannot be written.
        self._is_checkpoint_due = True
        await asyncio.to_thread(self._checkpoints.write, noted)
        self._is_checkpoint_due = False

    async def _flush(self, logs: Iterable[LogTablet]) -> None:
        """Bring to the disk what the operating system has; otherwise a crash would mean to look through all of it."""
        for log in logs:
            try:
                await log.flush()
            except (FlussError, OSError) as error:
                logger.error("%s could not be flushed: %s", log.directory, error)

    # Closing and deleting

    async def _close_stores(self) -> None:
        """Bring everything that is in a changelog into its store, and close all stores."""
        stores = [kv for table in self._tables.values() for bucket in table if (kv := bucket.kv_in_use) is not None]
        for store in stores:
            store.refuse(FlussError("the server is stopping", ErrorCode.NOT_LEADER_OR_FOLLOWER))
        for outcome in await asyncio.gather(*(store.close() for store in stores), return_exceptions=True):
            if outcome is not None:
                logger.error("a key-value store could not be closed in order", exc_info=outcome)

    async def _close_all(self) -> bool:
        """Close every log; return whether all is in order, so that the next start need not look."""
        buckets = [bucket for table in self._tables.values() for bucket in table]
        logs = [bucket.tablet for bucket in buckets if bucket.tablet is not None]
        failures: list[BaseException] = []
        for first in range(0, len(logs), _LOGS_PER_TURN):
            closing = [log.close() for log in logs[first : first + _LOGS_PER_TURN]]
            outcomes = await asyncio.gather(*closing, return_exceptions=True)
            failures += [outcome for outcome in outcomes if outcome is not None]
        for failure in failures:
            logger.error("a log could not be closed in order: %s", failure)
        return not failures and not self._upkeep.has_unclean and all(bucket.is_log_clean for bucket in buckets)

    async def _remove_residue(self) -> None:
        groups = await asyncio.to_thread(find_groups, self._data_dir)
        residue = find_residue(groups, self._catalog)
        if residue:
            logger.warning(
                "removing %d directories, such as %s: their tables or partitions were dropped", len(residue), residue[0]
            )
            self._reaper.remove(residue)
        if self._catalog.tables():
            await self._kv_runtime.remove_residue(partial(is_known, self._catalog))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that no request waits for. If it fails, the next start does it again."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("tidying up failed; the next start tries again", exc_info=task.exception())
