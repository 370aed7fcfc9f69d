"""A KV batch on its way through a bucket: asked for, queued, prepared, pending, answered.

    KvPut           what a bucket is asked to write
    QueuedBatch     checked, waits to be prepared
    PreparedBatch   its changes and their changelog are worked out, nothing is done yet
    PendingBatch    in the changelog, not in the store yet
    KvPutResult     on the disk and in the store

Later batches see the rows of pending batches as the current ones. Readers do not: they see the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fluss.errors import FlussError
from fluss.record.kv_batch import KvBatch
from fluss.record.mutations import Mutations
from fluss.server.kv.preparer import BatchPreparer, MergeMode, PreparedBatch
from fluss.storage.kv.memtable import Memtable
from fluss.storage.kv.state import IdBlock, KvState
from fluss.storage.log.append_result import AppendResult

ACKS_ALL: Final = -1


@dataclass(slots=True, eq=False)
class KvPut:
    """One KV batch for one bucket."""

    batch: memoryview
    # The columns of a partial update; none for whole rows.
    targets: tuple[int, ...] = ()
    # Whether the merge engine is bypassed: the row of the batch replaces the one that is there.
    is_overwrite: bool = False
    # With ACKS_ALL the batch is on the disk and in the store when it is answered. With 0 and 1 the operating system
    # has its changelog: it becomes visible when that is on the disk, a moment later.
    acks: int = ACKS_ALL


@dataclass(slots=True)
class KvPutResult:
    """Where a batch ends in the changelog. A batch that was sent again ends where its first copy does."""

    log_end_offset: int


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """A batch that waits to be prepared, or is."""

    put: KvPut
    preparer: BatchPreparer
    batch: KvBatch
    memory_bytes: int
    answer: asyncio.Future[KvPutResult]
    # Whether it may be prepared as one with others.
    is_joinable: bool

    @property
    def mode(self) -> MergeMode:
        return MergeMode(self.batch.schema_id, self.put.targets, self.put.is_overwrite)

    def joins(self, first: QueuedBatch) -> bool:
        """Whether it may be prepared as one with another batch."""
        return self.is_joinable and self.preparer is first.preparer and self.mode == first.mode


def set_result(answer: asyncio.Future[KvPutResult], append: AppendResult) -> None:
    """Say where a batch is, unless its request was cancelled."""
    if not answer.done():
        answer.set_result(KvPutResult(append.offset_next))


def set_failure(answer: asyncio.Future[KvPutResult], error: FlussError) -> None:
    """Say why a batch was not written, unless its request was cancelled."""
    if not answer.done():
        answer.set_exception(error.copied())
        # Otherwise asyncio would complain about one that no request waits for any more.
        answer.exception()


class PendingBatch:
    """The changes of one KV batch that was appended to the changelog."""

    __slots__ = (
        "append",
        "changelog_bytes",
        "ids_after",
        "ids_before",
        "memory_bytes",
        "memtable",
        "row_count_delta",
        "waiting",
    )

    def __init__(self, append: AppendResult, prepared: PreparedBatch, *, ids_before: IdBlock | None) -> None:
        self.append = append
        # The row of each changed key after the batch.
        self.memtable = prepared.memtable
        self.row_count_delta = prepared.row_count_delta
        # What was left of the reserved ids before and after the batch.
        self.ids_before = ids_before
        self.ids_after = prepared.ids_left
        self.changelog_bytes = len(prepared.changelog)
        # Counted in the memory of all writes until the batch has gone.
        self.memory_bytes = prepared.memory_bytes
        # The requests that are answered when it is in the store: the one that sent it, and those that repeat it.
        self.waiting: list[asyncio.Future[KvPutResult]] = []


class PendingBatches(deque[PendingBatch]):
    """The batches on their way into the store, oldest first. Belongs to the event loop."""

    __slots__ = ()

    def memtables(self) -> tuple[Memtable, ...]:
        """Return the rows of all batches, newest first, as they are now: threads may keep them."""
        return tuple([batch.memtable for batch in reversed(self)])

    def drop_first(self, count: int) -> list[PendingBatch]:
        """Take the oldest batches out: the store has them."""
        return [self.popleft() for _ in range(count)]

    def drop_from(self, index: int) -> list[PendingBatch]:
        """Take out a batch and all after it: the changelog does not have them."""
        return [self.pop() for _ in range(len(self) - index)][::-1]

    def with_end(self, offset: int) -> PendingBatch | None:
        """Return the batch that ends at an offset, if it is here."""
        return next((batch for batch in self if batch.append.offset_next == offset), None)


def state_after(state: KvState, batches: Sequence[PendingBatch]) -> KvState:
    """Return the state of a store once these batches are in it."""
    row_count = state.row_count
    for batch in batches:
        row_count = None if row_count is None or batch.row_count_delta is None else row_count + batch.row_count_delta
    return KvState(batches[-1].append.offset_next, row_count, batches[-1].ids_after)


def changes_of(batches: Sequence[PendingBatch]) -> list[Mutations]:
    """Return what batches change, in their order."""
    return [batch.memtable.mutations for batch in batches]
