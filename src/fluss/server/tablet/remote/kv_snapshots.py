"""Snapshots of rows by key in remote storage: which there are, what readers are told of them, and how stores begin with
them.

How far the newest snapshot of a bucket goes is kept in memory for all buckets, in a few bytes each; everything else is
asked of the registry and of remote storage when it is needed.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from fluss.errors import ErrorCode, FlussError
from fluss.metrics import Metrics
from fluss.schema.table import TableBucket
from fluss.server.kv.snapshot_source import SnapshotSource
from fluss.server.model import Clock, KvSnapshotBucket, KvSnapshotEntry, KvSnapshotRegistry, KvSnapshotTotals
from fluss.server.tablet.buckets import BucketGroup, HostedTable
from fluss.server.tablet.remote.remote_logs import RemoteLogs
from fluss.storage.kv.snapshots.completed_snapshot import CompletedSnapshot, state_of
from fluss.storage.kv.snapshots.remote_snapshot import fetch_snapshot, load_snapshot, remote_kv_directory
from fluss.storage.kv.state import KvState
from fluss.storage.log.file_names import TabletKind
from fluss.storage.log.tablet import LogTablet
from fluss.storage.remote.store import RemoteStoppedError

P = ParamSpec("P")
T = TypeVar("T")

# Descriptions that are kept in memory, and how many files one that is kept may have.
_DESCRIPTIONS_KEPT_MAX: Final = 256
_FILES_KEPT_MAX: Final = 256

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KvSnapshotSettings:
    """What can be said about snapshots of rows by key."""

    # 0: none are made; those that are there can be read, and stores begin with them.
    interval_ms: int = 600_000
    # How many are kept of each bucket, besides those that are leased.
    retained_count: int = 2
    # Files that are transferred at the same time.
    transfer_threads: int = 4
    lease_check_interval_ms: int = 600_000


class KvSnapshots:
    """The snapshots of all hosted tables. Belongs to the event loop; storage is reached by threads of its own."""

    def __init__(
        self,
        settings: KvSnapshotSettings,
        registry: KvSnapshotRegistry,
        logs: RemoteLogs,
        tables: Mapping[int, HostedTable],
        clock: Clock,
    ) -> None:
        self.settings = settings
        self.registry = registry
        self.clock = clock
        self._logs = logs
        self._tables = tables
        self._threads = ThreadPoolExecutor(settings.transfer_threads, thread_name_prefix="fluss-kv-snapshot")
        self._descriptions: OrderedDict[tuple[TableBucket, int], CompletedSnapshot] = OrderedDict()
        # Buckets whose directories may have objects that no snapshot names.
        self.dirty: set[TableBucket] = set()
        self._totals = KvSnapshotTotals()

    @property
    def is_enabled(self) -> bool:
        """Whether there is remote storage."""
        return self._logs.is_enabled

    @property
    def shipped_ms(self) -> int | None:
        """When the last complete backup began that was shipped; None if there are no backups."""
        return None if self._logs.shipped_ms is None else self._logs.shipped_ms()

    async def start(self) -> None:
        """Take what is registered. The tables are hosted by then."""
        dirty, newest = await self.registry.load()
        if not self.is_enabled:
            return
        self.dirty.update(entry.bucket for entry in dirty)
        for entry in newest:
            self.note(entry.bucket, entry.log_offset)
        await self.count()

    async def stop(self) -> None:
        """End the threads; transfers have been told to end before."""
        await asyncio.to_thread(self._threads.shutdown)

    async def count(self) -> None:
        """Count snapshots and leases anew."""
        self._totals = await self.registry.totals(self.clock())

    def show(self, metrics: Metrics) -> None:
        """Show how many snapshots and leases there are."""
        if not self.is_enabled:
            return
        for name, meaning, read in (
            ("fluss_kv_snapshots", "Snapshots of rows by key in remote storage.", lambda: self._totals.snapshot_count),
            (
                "fluss_kv_snapshot_size_bytes",
                "Bytes of these snapshots, files that several have counted for each.",
                lambda: self._totals.size_bytes,
            ),
            ("fluss_kv_snapshot_leases", "Leases of snapshots.", lambda: self._totals.lease_count),
            ("fluss_kv_snapshots_leased", "Snapshots that are leased.", lambda: self._totals.leased_count),
            (
                "fluss_kv_snapshot_dirty_buckets",
                "Buckets whose snapshots may have orphans.",
                lambda: len(self.dirty),
            ),
        ):
            metrics.gauge(name, meaning, read)

    # What there is

    def _group(self, bucket: TableBucket) -> BucketGroup | None:
        table = self._tables.get(bucket.table_id)
        return None if table is None else table.groups.get(bucket.partition_id)

    def note(self, bucket: TableBucket, log_offset: int) -> None:
        """Note how far the newest snapshot of a bucket goes."""
        group = self._group(bucket)
        if group is None or not bucket.bucket_id < group.bucket_count:
            return
        if group.snapshot_offsets is None:
            group.snapshot_offsets = array("q", [0]) * group.bucket_count
        group.snapshot_offsets[bucket.bucket_id] = log_offset

    def new_bucket(self, group: BucketGroup, bucket_id: int) -> KvSnapshotBucket:
        """Return what to register before the first snapshot of a bucket is made."""
        bucket = TableBucket.new_with_partition(group.table_id, group.partition_id, bucket_id)
        directory = remote_kv_directory(group.location(bucket_id).path(TabletKind.REMOTE_LOG))
        return KvSnapshotBucket(bucket, self._logs.root_of(group), directory)

    async def offset_needed(self, bucket: TableBucket) -> int | None:
        """Return from which offset on the changelog is needed by readers of snapshots, and to begin with one.

        None: there are no snapshots, and none will be made.
        """
        if not self.is_enabled or not self.settings.interval_ms:
            return None
        return min((entry.log_offset for entry in await self.registry.of_bucket(bucket)), default=0)

    async def description(self, entry: KvSnapshotEntry) -> CompletedSnapshot:
        """Return which files a snapshot consists of. Raises code 41 if it is gone, FlussError if storage fails."""
        key = entry.bucket, entry.snapshot_id
        known = self._descriptions.get(key)
        if known is not None:
            self._descriptions.move_to_end(key)
            return known
        snapshot = await self.in_thread(self._load, entry)
        self.keep(snapshot)
        return snapshot

    async def files_of(self, entry: KvSnapshotEntry) -> list[tuple[str, str]]:
        """Return where the files of a snapshot are, and what RocksDB called them. Raises what ``description`` does."""
        try:
            snapshot = await self.description(entry)
        except RemoteStoppedError:
            raise FlussError("the server is stopping", ErrorCode.NOT_LEADER_OR_FOLLOWER) from None
        return [(file.path, file.local_name) for file in snapshot.files]

    def keep(self, snapshot: CompletedSnapshot) -> None:
        """Keep a description in memory for a while."""
        if len(snapshot.files) <= _FILES_KEPT_MAX:
            self._descriptions[snapshot.bucket, snapshot.snapshot_id] = snapshot
            while len(self._descriptions) > _DESCRIPTIONS_KEPT_MAX:
                self._descriptions.popitem(last=False)

    def forget(self, bucket: TableBucket, snapshot_ids: Collection[int]) -> None:
        """Let go of snapshots that are gone."""
        for snapshot_id in snapshot_ids:
            self._descriptions.pop((bucket, snapshot_id), None)

    def forget_group(self, group: BucketGroup) -> None:
        """Let go of what is known of a group that was dropped."""
        key = (group.table_id, group.partition_id)

        def is_gone(bucket: TableBucket) -> bool:
            return (bucket.table_id, bucket.partition_id) == key

        self.dirty = {bucket for bucket in self.dirty if not is_gone(bucket)}
        for known in [known for known in self._descriptions if is_gone(known[0])]:
            del self._descriptions[known]

    def _load(self, entry: KvSnapshotEntry) -> CompletedSnapshot:
        return load_snapshot(self._logs.store(entry.root), entry.directory, entry.snapshot_id)

    async def in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something with remote storage. Raises FlussError, and RemoteStoppedError when the server stops."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))
        except OSError as error:
            raise FlussError(f"remote storage cannot be used: {error}", ErrorCode.KV_STORAGE_EXCEPTION) from error

    # What stores begin with

    def source(self, log: LogTablet) -> SnapshotSource | None:
        """Return the snapshots of a bucket; None if there are none."""
        group = self._group(log.bucket)
        if group is None or group.snapshot_offsets is None or not group.snapshot_offsets[log.bucket.bucket_id]:
            return None
        return _BucketSnapshots(self, log.bucket, asyncio.get_running_loop())

    def fetch(self, entry: KvSnapshotEntry, target: Path, check: Callable[[], None]) -> KvState:
        """Bring a snapshot to a directory, and return its state. For a thread."""
        store = self._logs.store(entry.root)
        try:
            snapshot = load_snapshot(store, entry.directory, entry.snapshot_id)
            threads = self.settings.transfer_threads
            fetch_snapshot(store, entry.directory, snapshot, target, threads=threads, check=check)
        except RemoteStoppedError:
            raise FlussError("the server is stopping", ErrorCode.NOT_LEADER_OR_FOLLOWER) from None
        except OSError as error:
            raise FlussError(f"remote storage cannot be read: {error}", ErrorCode.KV_STORAGE_EXCEPTION) from error
        return state_of(snapshot, entry.value_bytes_max)

    async def discard(self, bucket: TableBucket, snapshot_ids: Collection[int]) -> None:
        """Forget snapshots for good; their objects are orphans from now on."""
        found = await self.registry.find(bucket)
        if found is not None:
            await self.registry.begin([found])
            self.dirty.add(bucket)
        await self.registry.remove(bucket, snapshot_ids)
        self.forget(bucket, snapshot_ids)
        left = await self.registry.of_bucket(bucket)
        self.note(bucket, next((entry.log_offset for entry in left if entry.retired_ms is None), 0))


class _BucketSnapshots:
    """The snapshots of one bucket, for threads. Implements SnapshotSource."""

    def __init__(self, snapshots: KvSnapshots, bucket: TableBucket, loop: asyncio.AbstractEventLoop) -> None:
        self._snapshots = snapshots
        self._bucket = bucket
        self._loop = loop

    def entries(self) -> list[KvSnapshotEntry]:
        registry = self._snapshots.registry
        entries = asyncio.run_coroutine_threadsafe(registry.of_bucket(self._bucket), self._loop).result()
        return [entry for entry in entries if entry.retired_ms is None]

    def fetch(self, entry: KvSnapshotEntry, target: Path, check: Callable[[], None]) -> KvState:
        return self._snapshots.fetch(entry, target, check)

    def discard(self, entries: Collection[KvSnapshotEntry]) -> None:
        discarding = self._snapshots.discard(self._bucket, [entry.snapshot_id for entry in entries])
        asyncio.run_coroutine_threadsafe(discarding, self._loop).result()
