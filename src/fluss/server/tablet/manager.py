"""The logs of a server: opened at its start, made and dropped with their tables, closed in order at its end.

The stores with the rows of primary-key tables are opened later, when the first request asks for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableBucket
from fluss.server.kv.bucket import KvBucket
from fluss.server.kv.kv_runtime import KvRuntime, KvSettings
from fluss.server.kv.recovery import KvDirectories
from fluss.server.model import BucketHealth, CatalogView, Clock, IdSource, Partition, Table, format_bucket
from fluss.server.periodic import Periodic
from fluss.server.tablet.buckets import HostedBucket, HostedTable, unknown_bucket
from fluss.server.tablet.disk_guard import DiskGuard, disk_usage_ratio
from fluss.server.tablet.retention import Retention
from fluss.server.tablet.scan_sessions import ScanSettings
from fluss.server.tablet.tablet_files import (
    Checkpoints,
    find_residue,
    is_known,
    remove_empty_directories,
    remove_residue,
    tablet_directories,
)
from fluss.storage.log.committer import Committer
from fluss.storage.log.file_names import TabletKind, TabletLocation
from fluss.storage.log.tablet import LogSettings, LogTablet
from fluss.storage.vfs import Files, OsFiles

# Logs that are opened by one job of a thread, and logs that are closed at the same time.
_LOGS_PER_JOB = 64
_OPENING_THREADS = 4
# How often a start that takes long says how far it is.
_PROGRESS_INTERVAL_S = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TabletSettings:
    """What a tablet server can be told: limits, and how often things are looked after."""

    log: LogSettings = field(default_factory=LogSettings)
    kv: KvSettings = field(default_factory=KvSettings)
    scans: ScanSettings = field(default_factory=ScanSettings)
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
    # Threads that read what is not in memory.
    reader_threads: int = 4
    # How long an answer is held back that says nothing but "try again": some clients do so at once, without end.
    retry_answer_delay_ms: int = 50


@dataclass(frozen=True, slots=True)
class _Place:
    """A bucket and where its log is."""

    bucket: TableBucket
    directory: Path


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
        files: Files | None = None,
        usage_ratio: Callable[[Path], float] = disk_usage_ratio,
    ) -> None:
        """``ids`` numbers the rows of tables that ask for it."""
        self._data_dir = data_dir
        self._catalog = catalog
        self._settings = settings
        self._clock = clock
        self._files = files or OsFiles()
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
        self._tables: dict[int, HostedTable] = {}
        # From the last start or checkpoint. Those of offline buckets must not get lost: they say what has to be there.
        self._recovery_offsets: dict[TableBucket, int] = {}
        self._was_clean = False
        # The checkpoint files are written by one task at a time.
        self._checkpoint_turn = asyncio.Lock()
        self._checkpointed: tuple[list[int], list[int]] | None = None
        self._retention = Retention(self._tables, clock, rolls_active_segment=settings.retention_rolls_active_segment)
        self._periodics = (
            Periodic("log checkpoint", settings.checkpoint_interval_ms, self.checkpoint),
            Periodic("log retention", settings.retention_check_interval_ms, self._retention.expire_segments),
            Periodic("writer expiry", settings.writer_expiration_check_interval_ms, self._retention.expire_writers),
            Periodic("disk check", settings.disk_check_interval_ms, self._disk_guard.check),
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
    def kv_runtime(self) -> KvRuntime:
        """What the stores of all buckets share."""
        return self._kv_runtime

    @property
    def readers(self) -> Executor:
        """The threads that read what is not in memory."""
        return self._readers

    # From start to stop

    async def start(self) -> None:
        """Open every log of the catalog. Damaged ones do not fail the start."""
        assert self._state is _State.NEW, "a manager is started once"
        self._state = _State.STARTING
        self._committer.start()
        try:
            self._was_clean = await asyncio.to_thread(self._checkpoints.take_clean_shutdown_marker)
            self._recovery_offsets = await asyncio.to_thread(self._checkpoints.read_recovery_offsets)
            await self._disk_guard.check()
            await self._open_all()
        except BaseException:
            await self._stop_threads()
            raise
        # From now on every new directory is the work of this process.
        self._was_clean = False
        self._state = _State.RUNNING
        for periodic in self._periodics:
            periodic.start()
        self._kv_runtime.start()
        # What was recovered need not be recovered again.
        self._in_background(self.checkpoint())
        self._in_background(self._remove_residue())

    async def stop(self) -> None:
        """Close every log, and note that there is nothing to recover if that is so. May be called again."""
        if self._state is not _State.RUNNING:
            return
        self._state = _State.STOPPED
        for periodic in self._periodics:
            await periodic.stop()
        while self._background:
            await asyncio.wait(self._background)
        await self._close_stores()
        is_clean = await self._close_all()
        await self._stop_threads()
        try:
            await self.checkpoint()
            if is_clean:
                await asyncio.to_thread(self._checkpoints.write_clean_shutdown_marker)
        except OSError as error:
            logger.error("the next start will look through the logs, since this could not be noted: %s", error)

    async def _stop_threads(self) -> None:
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
        places = list(self._places(table, partition))
        logs = await asyncio.to_thread(self._open_logs, places)
        self._host(table, partition, places, logs)

    async def drop_buckets(self, table: Table, partition: Partition | None) -> None:
        hosted = self._tables.get(table.table_id)
        if hosted is None:
            return
        buckets = hosted.remove(partition)
        if hosted.is_empty:
            del self._tables[table.table_id]
            self._kv_runtime.forget_table(table.table_id)
        self._checkpointed = None
        logs = [bucket.tablet for bucket in buckets if bucket.tablet is not None]
        stores = [bucket.kv_in_use for bucket in buckets if bucket.kv_in_use is not None]
        for bucket in buckets:
            if bucket.kv_in_use is not None:
                bucket.kv_in_use.refuse(unknown_bucket(bucket.bucket))
            bucket.forget_log()
            self._recovery_offsets.pop(bucket.bucket, None)
        if buckets:
            directories = [place.directory for place in self._places(table, partition)]
            self._in_background(self._delete(table, partition, logs, stores, directories))

    def table_altered(self, table: Table) -> None:
        hosted = self._tables.get(table.table_id)
        if hosted is not None:
            hosted.update(table)

    def health(self) -> BucketHealth:
        active = [bucket.is_active for table in self._tables.values() for bucket in table]
        return BucketHealth(bucket_count=len(active), active_count=sum(active))

    # Opening

    async def _open_all(self) -> None:
        groups = [(table, partition) for table in self._catalog.tables() for partition in self._partitions_of(table)]
        places = [list(self._places(table, partition)) for table, partition in groups]
        known = self._recovery_offsets
        everywhere = [place for group in places for place in group]
        self._recovery_offsets = {place.bucket: known[place.bucket] for place in everywhere if place.bucket in known}
        logs = iter(await self._open_in_parallel(everywhere))
        for (table, partition), group in zip(groups, places, strict=True):
            self._host(table, partition, group, [next(logs) for _ in group])

    def _partitions_of(self, table: Table) -> Collection[Partition | None]:
        return self._catalog.partitions_of(table.table_id).values() if table.is_partitioned else (None,)

    def _places(self, table: Table, partition: Partition | None) -> Iterator[_Place]:
        partition_id = None if partition is None else partition.partition_id
        for bucket_id in range(table.bucket_count):
            location = TabletLocation(
                table.path.database_name,
                table.path.table_name,
                table.table_id,
                bucket_id,
                None if partition is None else partition.name,
                partition_id,
            )
            bucket = TableBucket.new_with_partition(table.table_id, partition_id, bucket_id)
            yield _Place(bucket, self._data_dir / location.path(TabletKind.LOG))

    async def _open_in_parallel(self, places: Sequence[_Place]) -> list[LogTablet | FlussError]:
        threads = ThreadPoolExecutor(_OPENING_THREADS, thread_name_prefix="fluss-open")
        try:
            loop = asyncio.get_running_loop()
            jobs = [
                loop.run_in_executor(threads, self._open_logs, places[first : first + _LOGS_PER_JOB])
                for first in range(0, len(places), _LOGS_PER_JOB)
            ]
            while waiting := [job for job in jobs if not job.done()]:
                done_count = (len(jobs) - len(waiting)) * _LOGS_PER_JOB
                if done_count:
                    logger.info("opening logs: %d of %d are open", done_count, len(places))
                await asyncio.wait(waiting, timeout=_PROGRESS_INTERVAL_S)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
        return [log for job in jobs for log in job.result()]

    def _open_logs(self, places: Sequence[_Place]) -> list[LogTablet | FlussError]:
        return [self._open_log(place) for place in places]

    def _open_log(self, place: _Place) -> LogTablet | FlussError:
        """Open one log; what cannot be opened becomes the reason why. Blocking."""
        try:
            log, result = LogTablet.open(
                place.directory,
                place.bucket,
                self._settings.log,
                files=self._files,
                committer=self._committer,
                clock=self._clock,
                recovery_offset=self._recovery_offsets.get(place.bucket, 0),
                was_clean=self._was_clean,
            )
        except (FlussError, OSError) as error:
            reason = error.message if isinstance(error, FlussError) else str(error)
            text = f"{format_bucket(place.bucket)} is offline, its log in {place.directory} cannot be used: {reason}"
            logger.error("%s. Repair or restore the files and start the server again, or drop the table", text)
            return FlussError(text, ErrorCode.STORAGE_EXCEPTION)
        if result.bytes_dropped:
            logger.warning(
                "%s: cut off %d bytes that were not written completely when the server was interrupted; the log goes "
                "on at offset %d",
                place.directory,
                result.bytes_dropped,
                result.offset_next,
            )
        return log

    def _host(
        self,
        table: Table,
        partition: Partition | None,
        places: Sequence[_Place],
        logs: Sequence[LogTablet | FlussError],
    ) -> None:
        hosted = self._tables.get(table.table_id)
        if hosted is None:
            hosted = self._tables[table.table_id] = HostedTable(table)
        new_kv = partial(KvBucket, self._kv_runtime, hosted) if table.has_primary_key else None
        hosted.add(
            partition, [HostedBucket(place.bucket, log, new_kv) for place, log in zip(places, logs, strict=True)]
        )
        self._checkpointed = None

    # Checkpoints

    async def checkpoint(self) -> None:
        """Note what is on the disk and what was visible, if that has changed since it was last noted."""
        async with self._checkpoint_turn:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        logs = list(self._logs())
        if not self._settings.is_fsync_required:
            await self._flush(log for log in logs if log.recovery_offset < log.offset_high_watermark)
        facts = [log.recovery_offset for log in logs], [log.offset_high_watermark for log in logs]
        if facts == self._checkpointed:
            return
        self._recovery_offsets.update(zip((log.bucket for log in logs), facts[0], strict=True))
        recovery_offsets = {bucket: offset for bucket, offset in self._recovery_offsets.items() if offset}
        high_watermarks = {log.bucket: offset for log, offset in zip(logs, facts[1], strict=True) if offset}
        await asyncio.to_thread(self._checkpoints.write, recovery_offsets, high_watermarks)
        self._checkpointed = facts

    async def _flush(self, logs: Iterable[LogTablet]) -> None:
        """Bring to the disk what the operating system has; otherwise a crash would mean to look through all of it."""
        for log in logs:
            try:
                await log.flush()
            except (FlussError, OSError) as error:
                logger.error("%s could not be flushed: %s", log.directory, error)

    def _logs(self) -> Iterator[LogTablet]:
        for table in self._tables.values():
            for bucket in table:
                if bucket.tablet is not None:
                    yield bucket.tablet

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
        logs = list(self._logs())
        failures: list[BaseException] = []
        for first in range(0, len(logs), _LOGS_PER_JOB):
            closing = [log.close() for log in logs[first : first + _LOGS_PER_JOB]]
            outcomes = await asyncio.gather(*closing, return_exceptions=True)
            failures += [outcome for outcome in outcomes if outcome is not None]
        for failure in failures:
            logger.error("a log could not be closed in order: %s", failure)
        return not failures and all(bucket.is_log_active for table in self._tables.values() for bucket in table)

    async def _delete(
        self,
        table: Table,
        partition: Partition | None,
        logs: Sequence[LogTablet],
        stores: Sequence[KvBucket],
        directories: Sequence[Path],
    ) -> None:
        for log in logs:
            await log.delete()
        for store in stores:
            await store.close(is_dropped=True)
        if table.has_primary_key:
            await self._kv_runtime.drop_stores(table.table_id, None if partition is None else partition.partition_id)
        await asyncio.to_thread(self._remove_directories, directories)

    def _remove_directories(self, directories: Sequence[Path]) -> None:
        """Remove stores, what is left of logs that could not be opened, and the directories above. Blocking."""
        for directory in directories:
            KvDirectories.beside(directory).remove()
            self._files.remove_tree(directory)
        for parent in {directory.parent for directory in directories}:
            remove_empty_directories(parent, self._data_dir)

    async def _remove_residue(self) -> None:
        found = await asyncio.to_thread(tablet_directories, self._data_dir)
        residue = find_residue(found, self._catalog)
        if residue:
            await asyncio.to_thread(remove_residue, residue, self._data_dir, self._files)
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
