"""The key-value side of one bucket: batches of puts and deletes in, the store up to date behind them.

    put (event loop)       check, take into the queue                      arrival order is the order of the log
    prepare (thread *)     old rows, merge, changelog batch                one batch at a time, or several as one
    append (event loop)    into the log; pending from now on               the next batch is prepared meanwhile
    apply (thread *)       on the disk as changelog -> into the store      gone from pending
    answer (event loop)    lookups find it from now on, and readers of the changelog see it

* Together with what other buckets have to do, see ``joint_work``; a few rows are dealt with on the event loop if
nothing has to be waited for.

The log is the truth. A batch whose changelog cannot be written leaves nothing behind, and what was prepared on top of
it is not written either. A store that fails is brought up to date from the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from fluss.errors import FlussError, KvDamagedError
from fluss.server.kv.batches import (
    ACKS_ALL,
    KvPut,
    KvPutResult,
    PendingBatch,
    PendingBatches,
    QueuedBatch,
    changes_of,
    set_failure,
    set_result,
    state_after,
)
from fluss.server.kv.joint_work import NextBatches
from fluss.server.kv.kv_runtime import KvRuntime
from fluss.server.kv.preparer import BucketShare, PreparedBatch, ShareOutcome
from fluss.server.kv.store_life import StoreLife
from fluss.server.model import Table, format_bucket
from fluss.storage.kv.state import IdBlock, KvState
from fluss.storage.kv.store import KvStore
from fluss.storage.kv.store_writes import StoreWrite
from fluss.storage.log.append_result import AppendResult
from fluss.storage.log.tablet import LogTablet

__all__ = ["KvBucket", "KvPut", "KvPutResult"]

T = TypeVar("T")

# What a batch costs besides its bytes.
_QUEUED_BATCH_BYTES: Final = 1024
# Batches of one bucket that are prepared as one at most.
_JOINED_MAX: Final = 16
# What may be let go of on the event loop.
_QUICK_MEMORY_BYTES_MAX: Final = 256 * 1024


class NewestTable(Protocol):
    """Knows the newest version of a table."""

    @property
    def table(self) -> Table: ...


class KvBucket:
    """Belongs to the event loop of its log."""

    __slots__ = (
        "_applying",
        "_at_rest",
        "_closed_reason",
        "_ids",
        "_is_applying",
        "_is_preparing",
        "_life",
        "_log",
        "_pending",
        "_preparing",
        "_queue",
        "_reader_count",
        "_runtime",
        "_table",
        "_tasks",
    )

    def __init__(self, runtime: KvRuntime, table: NewestTable, log: LogTablet) -> None:
        self._runtime = runtime
        # A reader that has seen a change in the changelog finds it by lookup, too.
        log.hold_back(self._apply_soon)
        self._log = log
        self._table = table
        self._life = StoreLife(runtime, log, lambda: table.table, lambda: self._is_busy)
        self._queue: deque[QueuedBatch] = deque()
        self._pending = PendingBatches()
        # What is left of the reserved ids after the batch that was appended last.
        self._ids: IdBlock | None = None
        # What is being prepared, still in the queue, and what is being brought into the store, still pending.
        self._preparing: Sequence[QueuedBatch] = ()
        self._applying: Sequence[PendingBatch] = ()
        # Also while the store is opened for that.
        self._is_preparing = self._is_applying = False
        # Set when nothing is prepared, pending or applied any more; None while no task waits for that.
        self._at_rest: asyncio.Future[None] | None = None
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
        # The newest version: the rows that are there may have any of its schemas.
        preparer = self._runtime.preparer_of(self._table.table)
        batch = preparer.check(put.batch, put.targets, is_overwrite=put.is_overwrite)
        memory_bytes = len(put.batch) + _QUEUED_BATCH_BYTES
        self._runtime.memory.take(memory_bytes)
        answer = asyncio.get_running_loop().create_future()
        self._queue.append(QueuedBatch(put, preparer, batch, memory_bytes, answer, preparer.is_joinable(batch)))
        self._prepare_soon()
        return answer

    def _prepare_soon(self) -> None:
        """Have the batches at the head of the queue prepared, unless that is being done."""
        if self._queue and not self._is_preparing:
            self._runtime.preparation.add(self, may_wait=self._queue[-1].is_joinable)

    def next_batches(self) -> NextBatches | None:
        """Return what is to be prepared next, for ``take_prepared``."""
        self._drop_lost()
        while self._queue and self._is_settled(self._queue[0]):
            self._queue.popleft()
        if not self._queue or self._is_preparing:
            return None
        self._is_preparing = True
        store = self.open_store()
        if store is None or self._closed_reason is not None:
            self._start(self._open_for_queue())
            return None
        self._ids = self._ids or store.state.ids
        first = self._queue[0]
        self._preparing = self._joinable_batches() if first.is_joinable else [first]
        column, reserve = first.preparer.auto_increment, None
        if column is not None:
            reserve = self._runtime.id_reserver(self._log.bucket.table_id, column.column_id)
        batches = [queued.batch for queued in self._preparing]
        share = BucketShare(batches, store, self._pending.memtables(), self._ids, reserve)
        return NextBatches(first.preparer, first.mode, share, first.is_joinable)

    async def _open_for_queue(self) -> None:
        try:
            await self.store()
        except FlussError as error:
            self._refuse_queued(error)
        self._is_preparing = False
        self._prepare_soon()

    def _joinable_batches(self) -> list[QueuedBatch]:
        """Return the batches at the head of the queue that may be prepared as one."""
        first = self._queue[0]
        return [first, *takewhile(lambda queued: queued.joins(first), islice(self._queue, 1, _JOINED_MAX))]

    def take_prepared(self, share: BucketShare, outcome: ShareOutcome) -> None:
        """Append what was prepared. Batches that could not be prepared with those before them get their turn again.

        What was refused meanwhile, because the changelog before it was lost or the bucket is closed, has left the queue
        and is not written.
        """
        batches, self._preparing = self._preparing, []
        self._is_preparing = False
        self._drop_lost()
        if isinstance(outcome, FlussError):
            if isinstance(outcome, KvDamagedError):
                self._life.failed(share.store, outcome)
            if self._is_next(batches[0]):
                self._refuse(self._queue.popleft(), outcome)
        else:
            for queued, prepared in zip(batches, outcome, strict=False):
                if self._is_next(queued):
                    self._queue.popleft()
                    # Of several batches only the first is known to be no duplicate.
                    if queued is batches[0] or not self._is_settled(queued):
                        self._append(queued, prepared)
            for queued in batches[len(outcome) :]:
                queued.is_joinable = False
        self._prepare_soon()
        self._rest()

    def _is_next(self, queued: QueuedBatch) -> bool:
        return bool(self._queue) and self._queue[0] is queued

    def _append(self, queued: QueuedBatch, prepared: PreparedBatch) -> None:
        try:
            append = self._log.append_built(prepared.changelog)
        except FlussError as error:
            self._refuse(queued, error)
        else:
            self._appended(queued, prepared, append)

    def _appended(self, queued: QueuedBatch, prepared: PreparedBatch, append: AppendResult) -> None:
        self._runtime.memory.change(prepared.memory_bytes - queued.memory_bytes)
        batch = PendingBatch(append, prepared, ids_before=self._ids)
        self._ids = prepared.ids_left
        self._pending.append(batch)
        self._answer_later(queued, batch)

    def _is_settled(self, queued: QueuedBatch) -> bool:
        """Answer a batch that is not to be written: the log has it already, or it is out of order (31)."""
        try:
            duplicate = self._log.find_duplicate(queued.batch.writer_id, queued.batch.batch_sequence)
        except FlussError as error:
            self._refuse(queued, error)
            return True
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

    def _apply_soon(self) -> None:
        """Have what is on the disk brought into the store, unless that is being done."""
        self._drop_lost()
        if self._pending and not self._is_applying and self._log.is_durable(self._pending[0].append):
            self._is_applying = True
            self._runtime.application.add(self)

    def next_write(self) -> StoreWrite | None:
        """Return what is to be brought into the store, for ``take_applied``.

        All of it at once: what was made durable at once becomes visible in the changelog at once.
        """
        self._drop_lost()
        store = self.open_store()
        if store is None:
            self._start(self._open_for_pending())
            return None
        if count := self._count_applied(store):
            self._show_applied(store, count)
        batches = list(islice(self._pending, self._count_durable()))
        if not batches:
            self._applied()
            return None
        self._applying = batches
        return StoreWrite(store, changes_of(batches), state_after(store.state, batches))

    async def _open_for_pending(self) -> None:
        try:
            await self._life.get()
        except FlussError as error:
            # It is in the changelog, and comes into the store when that can be opened again.
            self._log.show_until(self._log.offset_durable)
            for batch in self._pending.drop_first(self._count_durable()):
                self._forget(batch, error)
        self._applied()

    def take_applied(self, write: StoreWrite, failure: FlussError | None) -> None:
        """Answer the writers of what is in the store now. A store that has failed is brought up to date first."""
        batches, self._applying = self._applying, []
        store = write.store
        assert isinstance(store, KvStore), "it is the store of this bucket"
        if failure is not None:
            self._life.failed(store, failure)
        elif store is self._life.current:
            self._note_applied(batches)
            self._show_applied(store, len(batches))
        # Otherwise it was closed meanwhile, as stores of other buckets were still written. The one in its place may
        # have no more than readers of the changelog see: the batches stay pending, and are brought into that one.
        self._applied()

    def _show_applied(self, store: KvStore, count: int) -> None:
        self._log.show_until(store.state.applied_offset)
        applied = self._pending.drop_first(count)
        for batch in applied:
            self._forget(batch, None)
        if sum([batch.memory_bytes for batch in applied]) > _QUICK_MEMORY_BYTES_MAX:
            # Megabytes take a while to be given back, too.
            self._runtime.threads.for_one_bucket.submit(applied.clear)

    def _applied(self) -> None:
        self._is_applying = False
        self._apply_soon()
        self._rest()

    def _count_durable(self) -> int:
        return sum([self._log.is_durable(batch.append) for batch in self._pending])

    def _count_applied(self, store: KvStore) -> int:
        """Count the batches that a recovery has brought into the store."""
        offset = store.state.applied_offset
        return sum([batch.append.offset_next <= offset for batch in self._pending])

    def _note_applied(self, batches: Sequence[PendingBatch]) -> None:
        self._life.note_applied(sum([batch.changelog_bytes for batch in batches]))
        if self._life.is_flush_due:
            self._start(self._life.flush())
        elif self._life.is_promotion_due:
            self._start(self._life.promote())

    # Failing

    def _drop_lost(self) -> None:
        """Take back the batches whose changelog was not written, and refuse those that wait behind them.

        Behind them the numbers of their writers would have a gap.
        """
        if not self._pending or (reason := self._pending[-1].append.history.failure) is None:
            return
        lost = self._pending.drop_from(self._count_durable())
        if not lost:
            return
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
        """Answer the writers that wait for a batch that is no longer pending."""
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

    async def can_be_built(self) -> bool:
        """Tell whether the store could be built again if it were not there. Raises FlussError and OSError."""
        return await self._life.can_be_built()

    async def row_count(self) -> int | None:
        """Return how many rows the store has, None if its table does not count."""
        return (await self.store()).state.row_count

    # Care

    async def protect(self, offset: int) -> int:
        """Have a durable copy of everything before an offset, so that the changelog up to there may go.

        Returns up to which offset it may. What is not on the disk yet cannot be protected.
        """
        return await self._life.checkpoint(offset)

    async def export(self, offset_before: int) -> tuple[Path, KvState] | None:
        """Copy the store to a directory for others to read; return it, and how far its rows have come.

        None if it is not worth it, as there are few changes since an offset, up to which there is a copy.
        """
        self._reader_count += 1
        try:
            return await self._life.export(offset_before)
        finally:
            self._reader_count -= 1

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
        while self._is_working:
            self._at_rest = self._at_rest or asyncio.get_running_loop().create_future()
            await asyncio.wait((self._at_rest,))
        await self._life.close(is_dropped=is_dropped)

    @property
    def is_closable(self) -> bool:
        """Whether nothing would miss it: it does nothing, and its store is closed."""
        return not self._is_busy and self._life.is_closed

    @property
    def _is_busy(self) -> bool:
        return bool(self._is_working or self._queue or self._reader_count)

    @property
    def _is_working(self) -> bool:
        return bool(self._is_preparing or self._is_applying or self._pending or self._tasks)

    def _rest(self) -> None:
        """Tell the tasks that wait for it that there is nothing to be done any more."""
        if self._at_rest is not None and not self._is_working:
            self._at_rest.set_result(None)
            self._at_rest = None

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._rest()
