"""What all key-value buckets of a server share: threads, memory, RocksDB's caches, and what their tables need."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from fluss.errors import ErrorCode, FlussError
from fluss.server.kv.loop_time import LoopTime
from fluss.server.kv.settings import KvSettings
from fluss.server.kv.table_writer import TableWriter
from fluss.server.kv.write_memory import WriteMemory
from fluss.server.model import IdSource, Table
from fluss.server.periodic import Periodic
from fluss.storage.kv.store import KvResources
from fluss.storage.vfs import DESCRIPTORS_MAX

if TYPE_CHECKING:
    from fluss.server.kv.store_life import StoreLife

# Of all that the process may have, what connections and whatever else there is need, besides the files of logs; and a
# store with some tables.
_DESCRIPTORS_OF_OTHERS: Final = 256
_DESCRIPTORS_PER_STORE: Final = 16
_OPEN_STORES_MIN: Final = 8
# How long a store waits for the place of another, and how often it looks whether one has become idle.
_PLACE_PATIENCE_S: Final = 1.0
_PLACE_LOOK_INTERVAL_S: Final = 0.01

P = ParamSpec("P")
T = TypeVar("T")


class KvParts:
    """Belongs to the event loop that started it. Without primary-key tables it has no threads and no caches."""

    def __init__(self, settings: KvSettings, ids: IdSource | None) -> None:
        self.settings = settings
        self.memory = WriteMemory(settings.write_memory_bytes_max)
        self.loop_time = LoopTime()
        self.threads: Executor = ThreadPoolExecutor(settings.threads, thread_name_prefix="fluss-kv")
        self._upkeep = ThreadPoolExecutor(settings.upkeep_threads, thread_name_prefix="fluss-kv-upkeep")
        self._ids = ids
        self._resources: KvResources | None = None
        self._writers: dict[int, TableWriter] = {}
        # Those whose stores are open, in the order of their last use.
        self._open: OrderedDict[StoreLife, None] = OrderedDict()
        self._open_max = min(settings.open_stores_max, _stores_possible())
        # Stores that are open, being opened or being closed; and those that are being closed.
        self._places_taken = 0
        self._closing_count = 0
        self._places_changed = asyncio.Event()
        self._place_turn = asyncio.Lock()
        self._flushing = Periodic("key-value flush", settings.flush_interval_ms, self.flush_all)

    def start(self) -> None:
        """Begin to flush stores at an interval."""
        self._flushing.start()

    async def stop(self) -> None:
        """End the threads. Every bucket has been closed before."""
        await self._flushing.stop()
        await asyncio.to_thread(self.threads.shutdown)
        await asyncio.to_thread(self._upkeep.shutdown)

    @property
    def resources(self) -> KvResources:
        """Made when the first store is opened; without RocksDB a FlussError that says what to install."""
        if self._resources is None:
            try:
                self._resources = KvResources(self.settings.store)
            except FlussError as error:
                # Not with a code that makes writers try again until somebody installs it.
                raise FlussError(error.message, ErrorCode.UNKNOWN_SERVER_ERROR) from error
        return self._resources

    def writer_of(self, table: Table) -> TableWriter:
        """Return what prepares the batches of a table. Made once per version of the table."""
        writer = self._writers.get(table.table_id)
        if writer is None or writer.table is not table:
            writer = self._writers[table.table_id] = TableWriter(table)
        return writer

    def forget_table(self, table_id: int) -> None:
        self._writers.pop(table_id, None)

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
        """Flush the stores with anything unflushed, one after the other."""
        for life in list(self._open):
            await life.flush()

    def set_flush_interval(self, interval_ms: int) -> None:
        """Change how often stores are flushed; 0 leaves it to the bytes that were written, and to a clean stop."""
        self._flushing.set_interval(interval_ms)

    # Open stores

    @property
    def open_stores(self) -> list[StoreLife]:
        """Those whose stores are open, the least recently used first."""
        return list(self._open)

    def store_used(self, life: StoreLife) -> None:
        """A store was opened or used; if that makes too many, others that are idle are closed."""
        self._open[life] = None
        self._open.move_to_end(life)
        excess = len(self._open) - self._open_max
        if excess > 0:
            for other in [other for other in self._open if other is not life and other.is_idle][:excess]:
                other.close_soon()

    async def take_place(self) -> None:
        """Wait until another store may be opened; an idle one is closed for it.

        If all of them stay in use, or are being built again, it is opened beside. Those who come together are let in
        one after the other. ``give_place`` if nothing comes of it.
        """
        async with self._place_turn:
            deadline_s = time.monotonic() + _PLACE_PATIENCE_S
            while self._places_taken >= self._open_max and time.monotonic() < deadline_s:
                if not self._closing_count:
                    self._close_idle()
                self._places_changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PLACE_LOOK_INTERVAL_S):
                        await self._places_changed.wait()
            self._places_taken += 1

    def give_place(self) -> None:
        self._places_taken -= 1
        self._places_changed.set()

    def store_opened(self, life: StoreLife) -> None:
        self.store_used(life)
        self._places_changed.set()

    def store_closing(self, life: StoreLife) -> None:
        """Nobody gets the store any more."""
        self._open.pop(life, None)
        self._closing_count += 1

    def store_closed(self) -> None:
        """The store is closed: its place is free."""
        self._closing_count -= 1
        self.give_place()

    def _close_idle(self) -> None:
        idle = next((life for life in self._open if life.is_idle), None)
        if idle is not None:
            idle.close_soon()


def _stores_possible() -> int:
    """Return how many stores the descriptors of this process are enough for."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    left = limit - DESCRIPTORS_MAX - _DESCRIPTORS_OF_OTHERS
    return max(_OPEN_STORES_MIN, left // _DESCRIPTORS_PER_STORE)
