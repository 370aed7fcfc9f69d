"""The key-value side of one bucket: batches of puts and deletes in, the store up to date behind them.

    put (event loop)       check, take into the queue                      arrival order is the order of the log
    prepare (thread *)     old rows, merge, changelog batch                one batch at a time
    append (event loop)    into the log; pending from now on               the next batch is prepared meanwhile
    apply (thread *)       on the disk as changelog -> into the store      gone from pending
    answer (event loop)    lookups find it from now on, and readers of the changelog see it

* A few rows are dealt with on the event loop if nothing has to be waited for: see ``LoopBudget``.

The log is the truth. A batch whose changelog cannot be written leaves nothing behind, and what was prepared on top of
it is not written either. A store that fails is brought up to date from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.server.kv.batches import (
    ACKS_ALL,
    QUICK_BYTES_MAX,
    QUICK_RECORDS_MAX,
    KvPut,
    KvPutResult,
    NotQuickError,
    PendingBatch,
    PendingBatches,
    PreparedBatch,
    QueuedBatch,
    changes_of,
    current_rows,
    current_rows_in_memory,
    look_at,
    set_failure,
    set_result,
    state_after,
)
from fluss.server.kv.kv_runtime import KvRuntime
from fluss.server.kv.store_life import StoreLife
from fluss.server.model import Table, format_bucket
from fluss.storage.kv.state import IdBlock
from fluss.storage.kv.store import KvStore
from fluss.storage.log.append_result import AppendResult
from fluss.storage.log.tablet import LogTablet

__all__ = ["KvBucket", "KvPut", "KvPutResult"]

T = TypeVar("T")

# What a batch costs besides its bytes.
_QUEUED_BATCH_BYTES: Final = 1024
# Small batches that are prepared as one at most.
_COALESCED_MAX: Final = 16
# What may be brought into a store on the event loop, and let go of there: some hundred microseconds of work.
_QUICK_ENTRIES_MAX: Final = 128
_QUICK_MEMORY_BYTES_MAX: Final = 256 * 1024

logger = logging.getLogger(__name__)


class NewestTable(Protocol):
    """Knows the newest version of a table."""

    @property
    def table(self) -> Table: ...


class KvBucket:
    """Belongs to the event loop of its log."""

    __slots__ = (
        "_closed_reason",
        "_ids",
        "_is_applying",
        "_is_preparing",
        "_life",
        "_log",
        "_lost_reason",
        "_pending",
        "_queue",
        "_reader_count",
        "_runtime",
        "_tasks",
    )

    def __init__(self, runtime: KvRuntime, table: NewestTable, log: LogTablet) -> None:
        self._runtime = runtime
        # A reader that has seen a change in the changelog finds it by lookup, too.
        log.hold_back()
        self._log = log
        self._life = StoreLife(runtime, log, lambda: table.table, lambda: self._is_busy)
        self._queue: deque[QueuedBatch] = deque()
        self._pending = PendingBatches()
        # What is left of the reserved ids after the batch that was appended last.
        self._ids: IdBlock | None = None
        # Why appended batches were lost, if any were. What was prepared on top of them is void.
        self._lost_reason: FlussError | None = None
        self._is_preparing = self._is_applying = False
        self._reader_count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed_reason: FlussError | None = None

    def __repr__(self) -> str:
        return f"KvBucket({format_bucket(self._log.bucket)}, {len(self._queue)} waiting, {len(self._pending)} pending)"

    @property
    def is_available(self) -> bool:
        """Whether nothing is known that keeps the store from being used."""
        return self._life.is_available

    @property
    def pressure(self) -> float:
        """How urgently writers should slow down, from 0 to 1."""
        return self._runtime.memory.pressure

    # Writing

    def put(self, put: KvPut) -> asyncio.Future[KvPutResult]:
        """Take a batch in; batches are carried out in the order of the calls.

        Raises at once what is wrong with the batch itself: 14 for damage, 9 for an unknown schema, 35 for targets that
        cannot be; 72 if writes hold too much memory; and why the bucket takes none. The future has what comes later:
        31 for a batch out of order, 57 for deletes that are not allowed, 10 or 26 if the disk fails, 11 if the store
        does. A batch that the log has already is answered like the first time. Cancelling the future changes nothing.
        """
        if self._closed_reason is not None:
            raise self._closed_reason.copied()
        self._log.check_open()
        preparer = self._runtime.preparer_of(put.table)
        batch = preparer.check(put.batch, put.targets, is_overwrite=put.is_overwrite)
        memory_bytes = len(put.batch) + _QUEUED_BATCH_BYTES
        self._runtime.memory.take(memory_bytes)
        answer = asyncio.get_running_loop().create_future()
        # A request that was cancelled leaves an error that is not asked for.
        answer.add_done_callback(look_at)
        self._queue.append(QueuedBatch(put, preparer, batch, memory_bytes, answer, preparer.is_quick(batch)))
        if not self._is_preparing:
            self._is_preparing = True
            self._start(self._prepare_all())
        return answer

    async def _prepare_all(self) -> None:
        try:
            while self._queue:
                await self._gather_quick()
                try:
                    store = await self.store()
                except FlussError as error:
                    self._refuse_queued(error)
                    continue
                self._drop_lost()
                if self._queue and not self._prepare_coalesced(store):
                    await self._prepare(self._queue.popleft(), store)
        finally:
            self._is_preparing = False

    async def _gather_quick(self) -> None:
        """Let the small batches that have arrived already join the queue: a connection hands over one per turn."""
        count = 0
        while count < len(self._queue) < _COALESCED_MAX and self._queue[-1].is_coalescible:
            count = len(self._queue)
            await asyncio.sleep(0)

    def _prepare_coalesced(self, store: KvStore) -> bool:
        """Prepare and append the small batches at the head of the queue as one, if that can be done.

        Nothing is waited for, so they find everything as it was when they were prepared. Returns False, with nothing
        done, if each has to be prepared by itself.
        """
        group = self._coalescible_batches()
        first = self._queue[0]
        budget = self._runtime.loop_budget
        if len(group) < 2 or not budget.is_left:
            return False
        self._ids = self._ids or store.state.ids
        all_prepared = None
        with budget.spend(), suppress(FlussError, NotQuickError):
            all_prepared = self._explained(
                first.preparer.prepare_coalesced,
                [queued.batch for queued in group],
                first.put.targets,
                first.put.is_overwrite,
                current_rows_in_memory(store, self._pending.memtables()),
                self._ids,
            )
        if all_prepared is None:
            for queued in group:
                queued.is_coalescible = False
            return False
        for queued, prepared in zip(group, all_prepared, strict=True):
            self._queue.popleft()
            try:
                if not self._is_answered_as_duplicate(queued):
                    self._appended(queued, prepared, self._log.append(prepared.changelog))
            except FlussError as error:
                self._refuse(queued, error)
        return True

    def _coalescible_batches(self) -> list[QueuedBatch]:
        """Return the batches at the head of the queue that all together are not more than a small batch may be."""
        first, group, record_count, byte_count = self._queue[0], [], 0, 0
        for queued in islice(self._queue, _COALESCED_MAX):
            record_count += queued.batch.record_count
            byte_count += len(queued.batch.data)
            if not queued.coalesces_with(first) or record_count > QUICK_RECORDS_MAX or byte_count > QUICK_BYTES_MAX:
                break
            group.append(queued)
        return group

    async def _prepare(self, queued: QueuedBatch, store: KvStore) -> None:
        """Prepare a batch and append it. If anything goes wrong, nothing has happened."""
        self._ids = self._ids or store.state.ids
        lost_before = self._lost_reason
        try:
            if self._is_answered_as_duplicate(queued):
                return
            prepared = await self._prepare_quickly(queued, store) or await self._prepare_in_thread(queued, store)
            self._drop_lost()
            if self._lost_reason is not None and self._lost_reason is not lost_before:
                raise self._lost_reason.copied()
            append = self._log.append(prepared.changelog)
        except FlussError as error:
            if isinstance(error, KvDamagedError):
                self._life.failed(store, error)
            self._refuse(queued, error)
        else:
            self._appended(queued, prepared, append)

    async def _prepare_quickly(self, queued: QueuedBatch, store: KvStore) -> PreparedBatch | None:
        """Prepare a batch of a few rows here; None if it has more, if the disk is needed, or if there is no time."""
        budget = self._runtime.loop_budget
        if not queued.preparer.is_quick(queued.batch):
            return None
        if not budget.is_left:
            await asyncio.sleep(0)
            if not budget.is_left:
                return None
        with budget.spend(), suppress(NotQuickError):
            find_rows = current_rows_in_memory(store, self._pending.memtables())
            return self._explained(queued.prepare, find_rows, self._ids)
        return None

    async def _prepare_in_thread(self, queued: QueuedBatch, store: KvStore) -> PreparedBatch:
        column, reserve = queued.preparer.auto_increment, None
        if column is not None:
            reserve = self._runtime.id_reserver(queued.put.table.table_id, column.column_id)
        find_rows = current_rows(store, self._pending.memtables())
        return await self._in_thread(queued.prepare, find_rows, self._ids, reserve)

    def _appended(self, queued: QueuedBatch, prepared: PreparedBatch, append: AppendResult) -> None:
        self._runtime.memory.change(prepared.memory_bytes - queued.memory_bytes)
        batch = PendingBatch(append, prepared, ids_before=self._ids)
        self._ids = prepared.ids_left
        self._pending.add(batch)
        self._answer_later(queued, batch)
        if not self._is_applying:
            self._is_applying = True
            self._start(self._apply_all())

    def _is_answered_as_duplicate(self, queued: QueuedBatch) -> bool:
        """Answer a batch that the log has already. Raises code 31 for a batch out of order."""
        duplicate = self._log.find_duplicate(queued.batch.writer_id, queued.batch.batch_sequence)
        if duplicate is None:
            return False
        self._runtime.memory.change(-queued.memory_bytes)
        batch = self._pending.with_end(duplicate.offset_next)
        if batch is None:
            set_result(queued.answer, duplicate)
        else:
            self._answer_later(queued, batch)
        return True

    def _answer_later(self, queued: QueuedBatch, batch: PendingBatch) -> None:
        if queued.put.acks == ACKS_ALL:
            batch.waiting.append(queued.answer)
        else:
            self._start(self._answer_when_written(queued.answer, batch.append))

    async def _answer_when_written(self, answer: asyncio.Future[KvPutResult], append: AppendResult) -> None:
        try:
            await self._log.wait_written(append)
        except FlussError as error:
            set_failure(answer, error)
        else:
            set_result(answer, append)

    # Applying

    async def _apply_all(self) -> None:
        try:
            while self._pending:
                try:
                    await self._log.wait_durable(self._pending.first.append)
                except FlussError:
                    self._drop_lost()
                else:
                    await self._apply_durable()
        finally:
            self._is_applying = False

    async def _apply_durable(self) -> None:
        """Bring what is on the disk into the store, and answer its writers."""
        try:
            store = await self._life.get()
        except FlussError as error:
            # It is in the changelog, and comes into the store when that can be opened again.
            self._log.show_until(self._log.offset_durable)
            for batch in self._pending.drop_first(self._count_durable()):
                self._forget(batch, error)
            return
        count = self._count_applied(store)
        if not count:
            # All of them at once: what was made durable at once becomes visible in the changelog at once.
            batches = list(self._pending)[: self._count_durable()]
            try:
                if not self._apply_quickly(store, batches):
                    await self._in_thread(_apply, store, batches)
            except FlussError as error:
                self._life.failed(store, error)
                return
            count = len(batches)
            self._note_applied(batches)
        self._log.show_until(store.state.applied_offset)
        applied = self._pending.drop_first(count)
        for batch in applied:
            self._forget(batch, None)
        if not _are_few(applied):
            # Megabytes take a while to be given back, too.
            self._runtime.threads.submit(applied.clear)

    def _apply_quickly(self, store: KvStore, batches: Sequence[PendingBatch]) -> bool:
        """Bring a few rows into the store here; return False, with nothing done, if that might take longer."""
        if not _are_few(batches) or not self._runtime.loop_budget.is_left:
            return False
        with self._runtime.loop_budget.spend():
            return self._explained(_apply_if_quick, store, batches)

    def _count_durable(self) -> int:
        return sum(self._log.is_durable(batch.append) for batch in self._pending)

    def _count_applied(self, store: KvStore) -> int:
        """Count the batches that a recovery has brought into the store."""
        offset = store.state.applied_offset
        return sum(batch.append.offset_next <= offset for batch in self._pending)

    def _note_applied(self, batches: Sequence[PendingBatch]) -> None:
        self._life.note_applied(sum(batch.changelog_bytes for batch in batches))
        if self._life.is_flush_due:
            self._start(self._life.flush())
        elif self._life.is_promotion_due:
            self._start(self._life.promote())

    # Failing

    def _drop_lost(self) -> None:
        """Take back the batches whose changelog was not written, and refuse those that wait behind them.

        Behind them the numbers of their writers would have a gap.
        """
        if not self._pending or (reason := self._pending.last.append.history.failure) is None:
            return
        lost = self._pending.drop_from(self._count_durable())
        if not lost:
            return
        self._lost_reason = reason
        self._ids = lost[0].ids_before
        for batch in lost:
            self._forget(batch, reason)
        self._refuse_queued(reason)

    def _refuse_queued(self, error: FlussError) -> None:
        while self._queue:
            self._refuse(self._queue.popleft(), error)

    def _refuse(self, queued: QueuedBatch, error: FlussError) -> None:
        self._runtime.memory.change(-queued.memory_bytes)
        set_failure(queued.answer, error)

    def _forget(self, batch: PendingBatch, error: FlussError | None) -> None:
        """Answer those who wait for a batch that is no longer pending."""
        self._runtime.memory.change(-batch.memory_bytes)
        for answer in batch.waiting:
            if error is None:
                set_result(answer, batch.append)
            else:
                set_failure(answer, error)

    # Reading

    async def store(self) -> KvStore:
        """Return the store, opened and brought up to date, with everything that was acknowledged in it.

        Raises code 11 while it is being opened and that takes long, 26 if it cannot be, 21 after a drop. A store that
        is used later may have been closed meanwhile; then its methods raise code 11.
        """
        if self._closed_reason is not None:
            raise self._closed_reason.copied()
        return await self._life.get(wait_ms=self._runtime.settings.open_wait_ms)

    async def read(self, threads: Executor, work: Callable[[KvStore], T]) -> T:
        """Do something with the store in a thread; raises what ``store`` and the work raise. Damage is repaired."""
        self._reader_count += 1
        try:
            store = await self.store()
            try:
                return await asyncio.get_running_loop().run_in_executor(threads, work, store)
            except KvDamagedError as error:
                self._life.failed(store, error)
                raise
        finally:
            self._reader_count -= 1

    def open_store(self) -> KvStore | None:
        """Return the store if it is open at this moment, for reads that do not touch the disk."""
        store = self._life.current
        if store is not None:
            self._life.used()
        return store

    def store_failed(self, store: KvStore, error: FlussError) -> None:
        """Have a store built again that a reader has found damaged. May be called more than once."""
        self._life.failed(store, error)

    async def row_count(self) -> int | None:
        """Return how many rows the store has, None if its table does not count."""
        return (await self.store()).state.row_count

    # Care

    async def protect(self, offset: int) -> int:
        """Have a durable copy of everything before an offset, so that the changelog up to there may go.

        Returns up to which offset it may. What is not on the disk yet cannot be protected.
        """
        return await self._life.checkpoint(offset)

    async def flush(self) -> None:
        """Have what is in the store survive a crash, so that it need not be replayed."""
        await self._life.flush()

    def refuse(self, reason: FlussError) -> None:
        """Take no more batches: those that come now, or wait to be prepared, are refused with the reason."""
        self._closed_reason = self._closed_reason or reason
        self._refuse_queued(self._closed_reason)
        self._life.refuse(self._closed_reason)

    async def close(self, *, is_dropped: bool = False) -> None:
        """After ``refuse``: finish the batches that are in the changelog, flush and close. May be called again.

        The store of a bucket that is dropped is closed only: its rows are about to be removed.
        """
        assert self._closed_reason is not None, "no batches may come while it is closed"
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._life.close(is_dropped=is_dropped)

    @property
    def is_closable(self) -> bool:
        """Whether nothing would miss it: it does nothing, and its store is closed."""
        return not self._is_busy and self._life.is_closed

    @property
    def _is_busy(self) -> bool:
        return bool(self._tasks or self._queue or self._pending or self._reader_count)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do something in a thread for writes."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._runtime.threads, self._explained, work, *arguments)

    def _explained(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do something for writes. What is a bug there fails one batch, and not the bucket."""
        try:
            return work(*arguments)
        except (FlussError, NotQuickError):
            raise
        except Exception as error:
            logger.exception("a batch for %s could not be carried out", format_bucket(self._log.bucket))
            raise FlussError(f"{type(error).__name__}: {error}", ErrorCode.UNKNOWN_SERVER_ERROR) from error

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _apply(store: KvStore, batches: Sequence[PendingBatch]) -> None:
    store.write(changes_of(batches), state_after(store.state, batches))


def _apply_if_quick(store: KvStore, batches: Sequence[PendingBatch]) -> bool:
    return store.write_if_quick(changes_of(batches), state_after(store.state, batches))


def _are_few(batches: Sequence[PendingBatch]) -> bool:
    return (
        sum([len(batch.memtable) for batch in batches]) <= _QUICK_ENTRIES_MAX
        and sum([batch.memory_bytes for batch in batches]) <= _QUICK_MEMORY_BYTES_MAX
    )
