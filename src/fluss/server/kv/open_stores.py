"""The stores that are open: how many there may be, and those that share databases.

``OpenStores`` keeps a limit by closing the stores that were used least recently. ``SharedStores`` looks after the
databases that small stores share: it flushes and drops many stores at once, and closes all stores of a database that
has failed, so that it is opened again, or built again from the changelogs if it is damaged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from fluss.errors import FlussError, KvDamagedError
from fluss.metrics import Counter, Metrics
from fluss.storage.kv.bucket_prefix import KeyRange
from fluss.storage.kv.rocks import DISK
from fluss.storage.kv.shared_database import DIRECTORY_NAME, GivenUpError, SharedDatabase, SharedDatabases
from fluss.storage.kv.store import KvResources, KvStore

# How often a store that is to be opened looks for an idle one to be closed.
_SLOT_POLL_INTERVAL_S: Final = 0.01
# So many of those that were used least recently are looked at: that one of them is idle is as good as certain.
_LOOKED_AT_MAX: Final = 256

logger = logging.getLogger(__name__)


class OpenableStore(Protocol):
    """The store of a bucket, as far as it takes one of the slots for open stores."""

    @property
    def is_idle(self) -> bool: ...

    @property
    def current(self) -> KvStore | None: ...

    def close_soon(self) -> None: ...

    async def flush(self) -> None: ...

    async def prepare_flush(self) -> int:
        """Prepare that the store is flushed; return how much of its changelog that would bring to the disk."""
        ...

    def flushed(self, changelog_bytes: int) -> None: ...


class OpenStores:
    """The stores that are open, in the order of their last use, and a limit of how many there are at a time.

    A store takes a slot before it is opened and gives it back when it is closed. Belongs to the event loop.
    """

    def __init__(self, count_max: int, *, slot_wait_ms: int) -> None:
        self._count_max = count_max
        self._slot_wait_s = slot_wait_ms / 1000
        self._open: OrderedDict[OpenableStore, None] = OrderedDict()
        # Stores that are open, being opened or being closed; and those that are being closed.
        self._slots_taken = 0
        self._closing_count = 0
        self._slots_changed = asyncio.Event()
        self._slot_turn = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenableStore]:
        """Iterate over the stores that are open, the least recently used first."""
        return iter(self._open)

    def used(self, store: OpenableStore) -> None:
        """Note that a store was opened or used; if that makes too many, others that are idle are closed."""
        self._open[store] = None
        self._open.move_to_end(store)
        excess = len(self._open) - self._count_max
        if excess > 0:
            oldest = islice(self._open, excess + _LOOKED_AT_MAX)
            for other in [other for other in oldest if other is not store and other.is_idle][:excess]:
                other.close_soon()

    def moved_in(self, store: OpenableStore) -> None:
        """Note that a store is here now that was open in another place; if that makes too many, others are closed."""
        self._slots_taken += 1
        self.used(store)

    def moved_out(self, store: OpenableStore) -> None:
        self._open.pop(store, None)
        self.give_slot()

    async def take_slot(self) -> None:
        """Wait until another store may be opened; an idle one is closed for it.

        If all of them stay in use, or are being built again, it is opened in excess of the limit. Stores that are
        opened at the same time get their slots one after the other. ``give_slot`` if the store cannot be opened.
        """
        async with self._slot_turn:
            deadline_s = time.monotonic() + self._slot_wait_s
            while self._slots_taken >= self._count_max and time.monotonic() < deadline_s:
                if not self._closing_count:
                    self._close_idle()
                self._slots_changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SLOT_POLL_INTERVAL_S):
                        await self._slots_changed.wait()
            self._slots_taken += 1

    def give_slot(self) -> None:
        self._slots_taken -= 1
        self._slots_changed.set()

    def opened(self, store: OpenableStore) -> None:
        self.used(store)
        self._slots_changed.set()

    def closing(self, store: OpenableStore) -> None:
        """Note that a store is being closed: it is not handed out any more."""
        self._open.pop(store, None)
        self._closing_count += 1

    def closed(self) -> None:
        """Note that a store is closed: its slot is free."""
        self._closing_count -= 1
        self.give_slot()

    def _close_idle(self) -> None:
        idle = next((store for store in islice(self._open, _LOOKED_AT_MAX) if store.is_idle), None)
        if idle is not None:
            idle.close_soon()


class SharedStores:
    """Belongs to the event loop; what takes time happens in threads."""

    def __init__(
        self,
        data_dir: Path,
        resources: Callable[[], KvResources],
        in_thread: Callable[..., Awaitable[Any]],
        open_stores: OpenStores,
    ) -> None:
        self._data_dir = data_dir
        self._resources = resources
        self._in_thread = in_thread
        self._open_stores = open_stores
        self._databases: SharedDatabases | None = None
        # Those that are being opened again, by number, and the keys whose place on the disk is to be given back.
        self._reopening: dict[int, asyncio.Task[None]] = {}
        self._removed: dict[SharedDatabase, KeyRange] = {}
        self._reclaiming: asyncio.Task[None] | None = None
        self._given_up = {reason: Counter() for reason in ("damaged", "failed")}
        self._is_closed = False

    @property
    def databases(self) -> SharedDatabases:
        """Made when the first store is opened; without RocksDB a FlussError that says what to install."""
        if self._databases is None:
            self._databases = SharedDatabases(self._data_dir, self._resources())
        return self._databases

    def show(self, metrics: Metrics) -> None:
        """Have the databases shown among the metrics."""
        metrics.gauge("fluss_shared_databases", "Open databases that small stores share.", lambda: len(self._sizes()))
        metrics.gauge("fluss_shared_database_bytes", "What their files take on the disk.", lambda: sum(self._sizes()))
        for reason, counter in self._given_up.items():
            metrics.show_counter(
                *("fluss_shared_databases_given_up_total", "How often one was closed to open it again.", counter),
                reason=reason,
            )

    def _sizes(self) -> list[int]:
        sizes = []
        for shared in () if self._databases is None else self._databases.open_ones():
            with suppress(GivenUpError):
                sizes.append(shared.size_bytes())
        return sizes

    # A database that has failed

    def give_up(self, shared: SharedDatabase) -> None:
        """Close all stores of a database and the database, so that it is opened again when it is next needed.

        One that is damaged is removed. Stores that are needed meanwhile wait.
        """
        if shared.is_given_up:
            return
        logger.error(
            "%s %s: it is closed, and %s when its stores are next used",
            *(shared.directory, "is damaged" if shared.is_damaged else "has failed"),
            "built again from copies and changelogs" if shared.is_damaged else "brought up to date from changelogs",
        )
        self._given_up["damaged" if shared.is_damaged else "failed"].add()
        shared.give_up()
        for store in list(self._open_stores):
            if store.current is not None and store.current.shared is shared:
                store.close_soon()
        self._reopening[shared.number] = asyncio.get_running_loop().create_task(self._reopen(shared))

    async def damaged(self, directory: Path, error: KvDamagedError) -> None:
        """Give up the database in a directory because of damage that was found from outside."""
        await self.wait_reopened()
        with suppress(GivenUpError):
            shared = await self._in_thread(self.databases.in_directory, directory)
            if shared is not None:
                logger.error("%s", error.message)
                shared.is_damaged = True
                self.give_up(shared)

    async def wait_reopened(self) -> None:
        """Wait until the databases that were given up can be opened again."""
        while self._reopening:
            await asyncio.wait(self._reopening.values())

    async def _reopen(self, shared: SharedDatabase) -> None:
        try:
            # Not in the threads that close its stores.
            await asyncio.to_thread(self.databases.reopen, shared)
        finally:
            del self._reopening[shared.number]

    # Many stores at once

    async def flush_all(self) -> None:
        """Have what is in the stores survive a crash: all stores of a database with one flush of it."""
        prepared = [(store, await store.prepare_flush()) for store in list(self._open_stores)]
        by_database: dict[SharedDatabase, list[tuple[OpenableStore, int]]] = {}
        for store, changelog_bytes in prepared:
            shared = None if store.current is None else store.current.shared
            if changelog_bytes and shared is not None:
                by_database.setdefault(shared, []).append((store, changelog_bytes))
        for shared, flushed in by_database.items():
            stores = [store.current for store, _ in flushed if store.current is not None]
            try:
                await self._in_thread(_flush, shared, stores)
            except FlussError as error:
                logger.warning("%s was not flushed: %s", shared.directory, error.message)
                if shared.is_damaged:
                    self.give_up(shared)
            else:
                for store, changelog_bytes in flushed:
                    store.flushed(changelog_bytes)

    async def drop(self, table_id: int, partition_id: int | None) -> None:
        """Remove what the stores of a table have in a shared database, or those of a partition; all are closed."""
        while await asyncio.to_thread(self._exists):
            await self.wait_reopened()
            with suppress(GivenUpError):
                removed = await self._in_thread(self.databases.drop, table_id, partition_id)
                if removed is not None:
                    self._reclaim(*removed)
                return

    async def remove_residue(self, is_known: Callable[[int, int | None], bool]) -> None:
        """Remove what belongs to tables and partitions that do not exist: a drop may have been interrupted."""
        if not await asyncio.to_thread(self._exists):
            return
        await self.wait_reopened()
        with suppress(GivenUpError):
            for table_id, partition_id in await self._in_thread(self.databases.partitions):
                if not is_known(table_id, partition_id):
                    logger.warning("removing rows by key of table %s: it, or its partition, was dropped", table_id)
                    await self.drop(table_id, partition_id)

    def _exists(self) -> bool:
        return DISK.exists(self._data_dir / DIRECTORY_NAME)

    def _reclaim(self, shared: SharedDatabase, keys: KeyRange) -> None:
        """Have the place of removed rows given back; what is removed meanwhile goes with it."""
        known = self._removed.get(shared, keys)
        self._removed[shared] = KeyRange(min(keys.first, known.first), max(keys.end, known.end))
        if self._reclaiming is None and not self._is_closed:
            self._reclaiming = asyncio.get_running_loop().create_task(self._reclaim_all())

    async def _reclaim_all(self) -> None:
        try:
            while self._removed and not self._is_closed:
                shared, keys = self._removed.popitem()
                with suppress(FlussError):
                    await self._in_thread(shared.reclaim, keys)
        finally:
            self._reclaiming = None

    async def close(self) -> None:
        """Bring everything to the disk. Every store has been closed before."""
        self._is_closed = True
        await self.wait_reopened()
        if self._databases is not None:
            await asyncio.to_thread(self._databases.close)


def _flush(shared: SharedDatabase, stores: list[KvStore]) -> None:
    offsets: dict[KvStore, int] = {}
    for store in stores:
        # One that was closed meanwhile is in the database.
        with suppress(FlussError):
            offsets[store] = store.flush_to_shared()
    shared.flush()
    for store, offset in offsets.items():
        with suppress(FlussError):
            store.note_flushed(offset)
