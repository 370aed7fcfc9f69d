"""What all key-value buckets of a server share: settings, threads, memory, RocksDB's caches, and open stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.metrics import Counter, Metrics, Sample
from fluss.server.descriptors import rocksdb_files
from fluss.server.kv.joint_work import JointApplication, JointPreparation, KvThreads, LoopBudget
from fluss.server.kv.open_stores import OpenStores, SharedStores
from fluss.server.kv.preparer import BatchPreparer
from fluss.server.kv.snapshot_source import SnapshotSource
from fluss.server.model import IdSource, LogArchive, Table
from fluss.server.periodic import Periodic
from fluss.storage.kv.store import KvResources
from fluss.storage.kv.store_settings import KvStoreSettings
from fluss.storage.log.tablet import LogTablet

_MIB = 1024 * 1024
# Below this share of the limit writers are not asked to slow down.
_PRESSURE_FROM: Final = 0.75
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KvSettings:
    """What one may choose about stores: limits, and how often stores are looked after."""

    store: KvStoreSettings = field(default_factory=KvStoreSettings)

    # Threads that merge and write, for all buckets. They share one interpreter lock: a second one works while the first
    # is in RocksDB or in Arrow, a third would find nothing to do. See ``KvThreads`` for what is done for many buckets.
    threads: int = 2
    # Threads that open, rebuild, flush, copy and close stores.
    upkeep_threads: int = 4
    # What batches that wait, and values that are in the changelog but not in the store yet, may hold in memory, all
    # buckets together. Beyond it writes are refused with code 72.
    write_memory_bytes_max: int = 256 * _MIB

    # Changelog bytes after which a store is flushed: what a restart has to replay of one bucket at most, about.
    flush_bytes: int = 64 * _MIB
    # How often stores with anything unflushed are flushed; 0 leaves it to the bytes and to a clean stop.
    flush_interval_ms: int = 600_000
    # Stores with a database of their own that are open at the same time; beyond it those that were used least recently
    # are closed if they are idle. An open one takes half a megabyte and descriptors, so there are fewer where those are
    # few (``server.descriptors``).
    open_stores_max: int = 256
    # The same for small stores, which share databases. An open one takes one or two kilobytes.
    open_shared_stores_max: int = 65_536
    # How long a store that is to be opened waits until another one is closed, if there are so many.
    open_slot_wait_ms: int = 1_000

    # What is read of a changelog at a time when a store is brought up to date.
    recovery_bytes: int = 16 * _MIB
    # How long a request waits for a store that is being opened or rebuilt before it is told to try again.
    open_wait_ms: int = 5_000
    # How long a store that could not be opened is left alone before a request tries again.
    open_retry_ms: int = 10_000


class KvRuntime:
    """Belongs to the event loop that started it. Without primary-key tables it has no threads and no caches."""

    def __init__(self, settings: KvSettings, ids: IdSource | None, data_dir: Path) -> None:
        self.settings = settings
        self.memory = WriteMemory(settings.write_memory_bytes_max)
        self.threads = KvThreads(settings.threads)
        budget = LoopBudget()
        self.preparation = JointPreparation(self.threads, budget)
        self.application = JointApplication(self.threads, budget)
        self._files = rocksdb_files(settings.open_stores_max)
        self.open_stores = OpenStores(self._files.stores_max, slot_wait_ms=settings.open_slot_wait_ms)
        # Those that share databases, and the databases.
        self.open_shared_stores = OpenStores(settings.open_shared_stores_max, slot_wait_ms=settings.open_slot_wait_ms)
        self._upkeep = ThreadPoolExecutor(settings.upkeep_threads, thread_name_prefix="fluss-kv-upkeep")
        self.shared_stores = SharedStores(data_dir, lambda: self.resources, self.in_upkeep, self.open_shared_stores)
        self.counts = StoreCounts()
        # What remote storage has of a changelog, if anything.
        self.archive_of: Callable[[LogTablet], LogArchive | None] = lambda log: None
        # What it has of the rows of a bucket, if anything.
        self.snapshots_of: Callable[[LogTablet], SnapshotSource | None] = lambda log: None
        self._ids = ids
        self._resources: KvResources | None = None
        self._preparers: dict[int, BatchPreparer] = {}
        self._flushing = Periodic("key-value flush", settings.flush_interval_ms, self.flush_all)

    def start(self) -> None:
        """Begin to flush stores at an interval."""
        self._flushing.start()

    async def stop(self) -> None:
        """End the threads. Every bucket has been closed before."""
        await self._flushing.stop()
        await self.shared_stores.close()
        await self.threads.stop()
        await asyncio.to_thread(self._upkeep.shutdown)

    def show(self, metrics: Metrics) -> None:
        """Have stores, and the memory of RocksDB, shown among the metrics."""
        for kind, stores in (("own", self.open_stores), ("shared", self.open_shared_stores)):
            metrics.gauge("fluss_open_stores", "Stores of rows by key that are open.", stores.__len__, database=kind)
        self.shared_stores.show(metrics)
        self.counts.show(metrics)
        metrics.gauges("fluss_store_memory_bytes", "What RocksDB holds in memory.", self._memory_samples)

    def _memory_samples(self) -> list[Sample]:
        if self._resources is None:
            return []
        return [
            Sample(self._resources.buffered_bytes, (("kind", "write buffers"),)),
            Sample(self._resources.cached_bytes, (("kind", "block cache"),)),
        ]

    @property
    def resources(self) -> KvResources:
        """Made when the first store is opened; without RocksDB a FlussError that says what to install."""
        if self._resources is None:
            try:
                self._resources = KvResources(
                    replace(
                        self.settings.store,
                        open_files_max=self._files.files_per_store,
                        shared_open_files_max=self._files.files_per_shared_database,
                    )
                )
            except FlussError as error:
                # Not with a code that makes writers try again until RocksDB has been installed.
                raise FlussError(error.message, ErrorCode.UNKNOWN_SERVER_ERROR) from error
        return self._resources

    def preparer_of(self, table: Table) -> BatchPreparer:
        """Return what prepares the batches of a table. Made once per version of the table."""
        preparer = self._preparers.get(table.table_id)
        if preparer is None or preparer.table is not table:
            preparer = self._preparers[table.table_id] = BatchPreparer(table)
        return preparer

    async def drop_stores(self, table_id: int, partition_id: int | None) -> None:
        """Remove the rows of a table, or of one of its partitions, from shared databases.

        All its stores are closed, or were never opened. What has a database of its own goes with its directory.
        """
        await self.shared_stores.drop(table_id, partition_id)

    async def remove_residue(self, is_known: Callable[[int, int | None], bool]) -> None:
        """Remove the rows of tables and partitions that do not exist from shared databases."""
        await self.shared_stores.remove_residue(is_known)

    async def shared_damaged(self, directory: Path, error: KvDamagedError) -> None:
        """Have a shared database built again that was found damaged from outside, by its directory."""
        await self.shared_stores.damaged(directory, error)

    def forget_table(self, table_id: int) -> None:
        self._preparers.pop(table_id, None)

    async def in_upkeep(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something that takes long, without keeping writes waiting."""
        return await asyncio.get_running_loop().run_in_executor(self._upkeep, partial(work, *args, **kwargs))

    def id_reserver(self, table_id: int, column_id: int) -> Callable[[int], int]:
        """Return what reserves ids of a column, for threads: it blocks until the coordinator has answered."""
        loop, ids = asyncio.get_running_loop(), self._ids

        def reserve(count: int) -> int:
            if ids is None:
                raise FlussError("this server has nobody who numbers rows", ErrorCode.UNKNOWN_SERVER_ERROR)
            return asyncio.run_coroutine_threadsafe(ids.reserve(table_id, column_id, count), loop).result()

        return reserve

    async def flush_all(self) -> None:
        """Flush the stores with anything unflushed, one after the other, and those that share a database at once."""
        for store in list(self.open_stores):
            await store.flush()
        await self.shared_stores.flush_all()

    def set_flush_interval(self, interval_ms: int) -> None:
        """Change how often stores are flushed; 0 leaves it to the bytes that were written, and to a clean stop."""
        self._flushing.set_interval(interval_ms)


class WriteMemory:
    """Counts what writes to primary-key tables hold in memory, all buckets together. Belongs to the event loop."""

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0, "no write would ever be taken"
        self._bytes_max = bytes_max
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._bytes

    @property
    def pressure(self) -> float:
        """How urgently writers should slow down, from 0 to 1."""
        share = self._bytes / self._bytes_max
        return min(max(share - _PRESSURE_FROM, 0.0) / (1.0 - _PRESSURE_FROM), 1.0)

    def take(self, byte_count: int) -> None:
        """Count the bytes of a new write; refuse it (code 72) if there is no room. A large one fits if all is free."""
        if self._bytes and self._bytes + byte_count > self._bytes_max:
            raise FlussError(
                f"Writes to primary-key tables hold {self._bytes} bytes of memory and may hold {self._bytes_max}; "
                "write more slowly, or try again in a moment",
                ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION,
            )
        self._bytes += byte_count

    def change(self, byte_count: int) -> None:
        """Count more or fewer bytes of a write that was taken, whatever the limit."""
        self._bytes += byte_count
        assert self._bytes >= 0, "more was given back than taken"


class StoreCounts:
    """How often stores were opened, built again, and given a database of their own. Belongs to the event loop."""

    def __init__(self) -> None:
        self.promoted = Counter()
        self._opened = Counter()
        self._rebuilt = Counter()
        self._restored = Counter()
        self._replayed_bytes = Counter()

    def note_recovered(self, replayed_bytes: int, *, is_rebuilt: bool, is_from_snapshot: bool) -> None:
        """A store was opened, and brought up to date from its changelog."""
        self._opened.add()
        self._rebuilt.add(is_rebuilt)
        self._restored.add(is_from_snapshot)
        self._replayed_bytes.add(replayed_bytes)

    def show(self, metrics: Metrics) -> None:
        metrics.show_counter("fluss_stores_opened_total", "Stores that were opened.", self._opened)
        metrics.show_counter(
            "fluss_stores_rebuilt_total", "Stores that could not be used, and were built again.", self._rebuilt
        )
        metrics.show_counter(
            "fluss_stores_restored_total", "Stores that were built from a snapshot in remote storage.", self._restored
        )
        metrics.show_counter(
            "fluss_stores_promoted_total", "Stores that have become too large to share a database.", self.promoted
        )
        metrics.show_counter(
            "fluss_store_replayed_bytes_total", "Changelogs read to bring stores up to date.", self._replayed_bytes
        )
