"""The life of a bucket's store: opened when it is first needed, built again when it is damaged, closed at the end.

    closed -> opening (recovery, see there) -> open -> closing
                 ^                               |
                 +------- failed or damaged -----+

What was acknowledged is in the changelog, so a store that fails costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.server.kv.kv_runtime import KvRuntime
from fluss.server.kv.open_stores import OpenStores
from fluss.server.kv.recovery import KvDirectories, Recovery, keep_checkpoint, make_checkpoint
from fluss.server.model import Table, format_bucket
from fluss.storage.kv.rocks import DISK
from fluss.storage.kv.shared_database import GivenUpError
from fluss.storage.kv.snapshots.store_export import export_store
from fluss.storage.kv.state import KvState
from fluss.storage.kv.store import KvStore, remove_store
from fluss.storage.log.tablet import LogTablet

# How often a store is opened in a shared database that fails meanwhile.
_SHARED_ATTEMPTS: Final = 3
# A store that shares a database and has more bytes is exported when a change has come for so many of its rows.
_COPIED_ALWAYS_BYTES_MAX: Final = 1024 * 1024
_ROWS_PER_CHANGE_MAX: Final = 8

logger = logging.getLogger(__name__)


class StoreLife:
    """Belongs to the event loop; whatever takes time happens in threads."""

    __slots__ = (
        "_changing",
        "_closed_reason",
        "_copying",
        "_directories",
        "_export_count",
        "_failed_at_s",
        "_failure",
        "_is_busy",
        "_is_damaged",
        "_is_dropped",
        "_is_flushing",
        "_is_shared",
        "_log",
        "_recovery",
        "_retry_at_s",
        "_runtime",
        "_store",
        "_table",
        "_unflushed_bytes",
        "_waiting_count",
    )

    def __init__(
        self,
        runtime: KvRuntime,
        log: LogTablet,
        table: Callable[[], Table],
        is_busy: Callable[[], bool],
    ) -> None:
        """``table`` tells the newest version of the table; ``is_busy`` whether the bucket needs the store right now."""
        self._runtime = runtime
        self._log = log
        self._table = table
        self._is_busy = is_busy
        self._directories = KvDirectories.beside(log.directory)
        self._store: KvStore | None = None
        # Whether it shares a database with others, as far as is known.
        self._is_shared = True
        # Requests that wait for it to be opened.
        self._waiting_count = 0
        # What is being done to the store at the moment; nothing else is done to it before that has ended.
        self._changing: asyncio.Task[None] | None = None
        self._recovery: Recovery | None = None
        # Why it could not be opened, and when that may be tried again.
        self._failure: FlussError | None = None
        self._retry_at_s = 0.0
        # When it last failed while it was open, and whether what is on the disk is known to be of no use.
        self._failed_at_s: float | None = None
        self._is_damaged = False
        self._closed_reason: FlussError | None = None
        # Whether the rows are of no use any more.
        self._is_dropped = False
        # Of the changelog, since the store was last flushed.
        self._unflushed_bytes = 0
        self._is_flushing = False
        self._export_count = 0
        # Held while a copy is made beside the store. Most stores never have one.
        self._copying: asyncio.Lock | None = None

    @property
    def current(self) -> KvStore | None:
        """The store if it is open at this moment."""
        return self._store

    @property
    def is_closed(self) -> bool:
        """Whether the store is not open, and nothing is about to open or close it."""
        return self._store is None and self._changing is None and not self._waiting_count

    def used(self) -> None:
        """Note that the store, which is open, was used."""
        self._open_stores.used(self)

    @property
    def is_idle(self) -> bool:
        """Whether the store is open and nothing uses it."""
        return (
            self._store is not None
            and self._changing is None
            and not self._waiting_count
            and not self._is_flushing
            and not self._export_count
            and not self._store.snapshot_count
            and not self._is_busy()
        )

    async def get(self, *, wait_ms: int | None = None) -> KvStore:
        """Return the store, open and up to date, opening it if needed. Concurrent calls open it once.

        Raises code 11 if that takes longer than ``wait_ms`` or failed a moment ago, 26 if it cannot be done at all,
        and the reason after ``close``.
        """
        deadline_s = None if wait_ms is None else time.monotonic() + wait_ms / 1000
        self._waiting_count += 1
        try:
            while self._store is None:
                changing = self._changing or self._start_opening()
                await asyncio.wait((changing,), timeout=None if deadline_s is None else deadline_s - time.monotonic())
                if not changing.done():
                    raise self._still_opening()
                if self._failure is not None:
                    raise self._failure.copied()
        finally:
            self._waiting_count -= 1
        self.used()
        return self._store

    def failed(self, store: KvStore, error: FlussError) -> None:
        """A store that was in use has failed: open it again, or build it again if it is damaged.

        If it has done so a moment ago, that is left to the next request a while later. May be called more than once for
        one store.
        """
        if store is not self._store:
            return
        logger.error("%s failed and is brought up to date from its changelog: %s", self._text, error.message)
        self._store = None
        self._open_stores.closing(self)
        self._is_damaged = isinstance(error, KvDamagedError)
        shared = store.shared
        if shared is not None and (shared.is_damaged or shared.has_failed):
            # This concerns all its stores. When it is damaged it is removed, and there is nothing left to be removed.
            self._is_damaged = False
            self._runtime.shared_stores.give_up(shared)
        now_s, failed_at_s = time.monotonic(), self._failed_at_s
        self._failed_at_s = now_s
        if failed_at_s is not None and now_s - failed_at_s < self._runtime.settings.open_retry_ms / 1000:
            self._failed_to_open(error)
            self._change(self._close_store(store))
        else:
            self._change(self._reopen(store))

    @property
    def is_available(self) -> bool:
        """Whether nothing is known that keeps the store from being used."""
        return self._failure is None

    # Opening

    @property
    def _text(self) -> str:
        return f"the key-value store of {format_bucket(self._log.bucket)}"

    def _start_opening(self) -> asyncio.Task[None]:
        if self._closed_reason is not None:
            raise self._closed_reason.copied()
        if self._failure is not None and time.monotonic() < self._retry_at_s:
            raise self._failure.copied()
        self._failure = None
        return self._change(self._open())

    def _change(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        before = self._changing

        async def run() -> None:
            try:
                if before is not None:
                    await asyncio.wait((before,))
                await work
            finally:
                if self._changing is task:
                    self._changing = None

        task = self._changing = asyncio.get_running_loop().create_task(run())
        return task

    async def _reopen(self, store: KvStore) -> None:
        await self._close_store(store)
        if self._closed_reason is None:
            await self._open()

    async def _open(self) -> None:
        # Most stores are small; that one is not is known when it is looked for.
        self._is_shared = True
        await self._open_stores.take_slot()
        try:
            store = await self._opened()
        except FlussError as error:
            self._failed_to_open(error)
        except Exception as error:
            logger.exception("%s could not be opened", self._text)
            text = f"{self._text} could not be opened: {type(error).__name__}: {error}"
            self._failed_to_open(FlussError(text, ErrorCode.KV_STORAGE_EXCEPTION))
        else:
            self._failure = None
            self._is_damaged = False
            self._store = store
            self._open_stores.opened(self)
        finally:
            if self._store is None:
                self._open_stores.give_slot()

    async def _opened(self) -> KvStore:
        """Return the store, opened; if a shared database turns out to be damaged or fails, with what is left of it."""
        for _ in range(_SHARED_ATTEMPTS):
            if self._closed_reason is not None:
                raise self._closed_reason.copied()
            await self._runtime.shared_stores.wait_reopened()
            with suppress(GivenUpError):
                store = await self._recovered()
                if store.shared is None or not store.shared.is_given_up:
                    return store
                await self._runtime.in_upkeep(store.close)
        raise FlussError(
            f"{self._text} is not available: its database fails again and again", ErrorCode.KV_STORAGE_EXCEPTION
        )

    async def _recovered(self) -> KvStore:
        databases = self._runtime.shared_stores.databases
        recovery = self._recovery = self._new_recovery()
        try:
            store = await self._runtime.in_upkeep(recovery.run_unless_own, is_damaged=self._is_damaged)
            if store is None:
                self._is_damaged = False
                await self._change_slot(is_shared=False)
                store = await self._runtime.in_upkeep(recovery.run, is_damaged=False)
        except KvDamagedError:
            shared = databases.damaged(self._log.bucket.table_id)
            if shared is None:
                raise
            self._runtime.shared_stores.give_up(shared)
            raise GivenUpError(shared.directory) from None
        finally:
            self._recovery = None
        self._unflushed_bytes = recovery.replayed_bytes
        self._runtime.counts.note_recovered(
            recovery.replayed_bytes, is_rebuilt=recovery.is_rebuilt, is_from_snapshot=recovery.is_from_snapshot
        )
        if store.shared is not None and not self._is_shared:
            await self._change_slot(is_shared=True)
        return store

    def _new_recovery(self) -> Recovery:
        return Recovery(
            self._log,
            self._table(),
            self._directories,
            self._runtime.resources,
            read_bytes=self._runtime.settings.recovery_bytes,
            databases=self._runtime.shared_stores.databases,
            archive=self._runtime.archive_of(self._log),
            snapshots=self._runtime.snapshots_of(self._log),
        )

    async def can_be_built(self) -> bool:
        """Tell whether the store could be built again if it were not there. Raises FlussError and OSError."""
        return await self._runtime.in_upkeep(self._new_recovery().can_be_built)

    @property
    def _open_stores(self) -> OpenStores:
        """The stores of its kind, with which it competes for slots."""
        return self._runtime.open_shared_stores if self._is_shared else self._runtime.open_stores

    async def _change_slot(self, *, is_shared: bool) -> None:
        self._open_stores.give_slot()
        self._is_shared = is_shared
        await self._open_stores.take_slot()

    def _failed_to_open(self, error: FlussError) -> None:
        self._failure = error
        self._retry_at_s = time.monotonic() + self._runtime.settings.open_retry_ms / 1000
        if self._closed_reason is None:
            logger.error("%s is not available: %s", self._text, error.message)

    def _still_opening(self) -> FlussError:
        progress = "" if self._recovery is None else f", {self._recovery.progress_text}"
        return FlussError(
            f"{self._text} is being opened{progress}; try again in a moment", ErrorCode.KV_STORAGE_EXCEPTION
        )

    # Care

    def note_applied(self, changelog_bytes: int) -> None:
        """So much of the changelog has come into the store."""
        self._unflushed_bytes += changelog_bytes
        if self._is_shared and self._store is not None:
            self._note_moved(self._store)

    def _note_moved(self, store: KvStore) -> None:
        """A store that has become large has a database of its own from some moment on."""
        if self._is_shared and store.shared is None and store is self._store:
            self._open_stores.moved_out(self)
            self._is_shared = False
            self._open_stores.moved_in(self)
            self._runtime.counts.promoted.add()

    @property
    def is_promotion_due(self) -> bool:
        """Whether the store may have become too large to share a database."""
        return self._is_shared and self._store is not None and not self._is_flushing and self._store.is_promotion_due

    async def promote(self) -> None:
        """Have the store get a database of its own if it is large. If that fails it is tried again later."""
        store = self._store
        if store is None or self._is_flushing:
            return
        # It is not idle meanwhile.
        self._is_flushing = True
        try:
            await self._runtime.in_upkeep(store.promote)
        except FlussError as error:
            logger.warning("%s got no database of its own: %s", self._text, error.message)
            self._look_for_damage(store, error)
        finally:
            self._is_flushing = False
        self._note_moved(store)

    @property
    def is_flush_due(self) -> bool:
        return self._unflushed_bytes >= self._runtime.settings.flush_bytes and not self._is_flushing

    async def flush(self) -> None:
        """Have what is in the store survive a crash, so that it need not be replayed. Failures are logged."""
        store = self._store
        if store is None or self._is_flushing or not self._unflushed_bytes:
            return
        self._is_flushing = True
        flushed_bytes = self._unflushed_bytes
        try:
            # A store that is ahead of its changelog would have to be built again.
            await self._log.flush()
            await self._runtime.in_upkeep(store.flush)
        except FlussError as error:
            logger.warning("%s was not flushed: %s", self._text, error.message)
            self._look_for_damage(store, error)
        else:
            self._unflushed_bytes -= flushed_bytes
        finally:
            self._is_flushing = False

    async def prepare_flush(self) -> int:
        """Have the changelog on the disk before the store; return how much of it the store has unflushed."""
        if self._store is None or self._is_flushing or not self._unflushed_bytes:
            return 0
        unflushed_bytes = self._unflushed_bytes
        try:
            await self._log.flush()
        except FlussError as error:
            logger.warning("%s was not flushed: %s", self._text, error.message)
            return 0
        return unflushed_bytes

    def flushed(self, changelog_bytes: int) -> None:
        self._unflushed_bytes = max(0, self._unflushed_bytes - changelog_bytes)

    async def checkpoint(self, offset: int) -> int:
        """Have a durable copy of everything before an offset; return up to which offset it really goes."""
        if self._copying is None:
            self._copying = asyncio.Lock()
        # Copies are made in one place, and may be wanted for several reasons at the same time.
        async with self._copying:
            store = await self.get()
            try:
                copied = await self._runtime.in_upkeep(make_checkpoint, store, self._directories, offset=offset)
                # The store has gone on until it was copied. A copy that is ahead of what a loss of power leaves of the
                # log would be of no use, and older ones go now.
                await self._log.flush()
                await self._runtime.in_upkeep(keep_checkpoint, self._directories, copied)
            except FlussError as error:
                self._look_for_damage(store, error)
                raise
            return copied

    async def export(self, offset_before: int) -> tuple[Path, KvState] | None:
        """Copy the store to a directory that other programs can read; return it, and how far its rows have come.

        None if it is not worth it, as there are few changes since an offset, up to which there is a copy. The changelog
        has reached the disk as far as the rows have come. The directory is for the caller to remove.
        """
        store = await self.get()
        if not _is_export_due(store, offset_before):
            return None
        # It is not idle meanwhile.
        self._export_count += 1
        try:
            directory = self._directories.exported
            await self._runtime.in_upkeep(_make_way, directory)
            state = await self._runtime.in_upkeep(export_store, store, directory, self._runtime.resources)
            await self._log.flush()
        except FlussError as error:
            self._look_for_damage(store, error)
            raise
        finally:
            self._export_count -= 1
        return directory, state

    def _look_for_damage(self, store: KvStore, error: FlussError) -> None:
        # A full disk is no reason to close a store: reads go on, and the next write finds out whether it can.
        if isinstance(error, KvDamagedError):
            self.failed(store, error)

    # Closing

    def close_soon(self) -> None:
        """Close an idle store; the next request that needs it opens it again."""
        store = self._store
        if store is not None:
            self._store = None
            self._open_stores.closing(self)
            self._change(self._close_store(store))

    def refuse(self, reason: FlussError) -> None:
        """Open the store no more, and do not go on opening it: requests that need it are told the reason."""
        self._closed_reason = self._closed_reason or reason
        if self._recovery is not None:
            self._recovery.cancel()

    async def close(self, *, is_dropped: bool = False) -> None:
        """Flush and close the store after ``refuse``, or just close it if it is dropped. May be called again."""
        self._is_dropped = is_dropped
        self.close_soon()
        while self._changing is not None:
            await asyncio.wait((self._changing,))
            # It may just have been opened.
            self.close_soon()

    async def _close_store(self, store: KvStore) -> None:
        open_stores = self._open_stores
        keeps_rows = not self._is_dropped and (store.shared is None or not store.shared.is_given_up)
        try:
            await self._runtime.in_upkeep(store.close, keeps_rows=keeps_rows)
        except FlussError as error:
            logger.warning("%s was not closed in order: %s", self._text, error.message)
        finally:
            open_stores.closed()


def _is_export_due(store: KvStore, offset_before: int) -> bool:
    state = store.state
    if store.shared is None or state.row_count is None or store.size_bytes() < _COPIED_ALWAYS_BYTES_MAX:
        return state.applied_offset > offset_before
    # All its rows have to be copied. So there have to be changes in proportion; to replay them takes less time.
    return (state.applied_offset - offset_before) * _ROWS_PER_CHANGE_MAX > state.row_count


def _make_way(directory: Path) -> None:
    """Remove what an interrupted export has left."""
    DISK.make_directory(directory.parent)
    remove_store(directory)
