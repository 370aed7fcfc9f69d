"""A KV batch on its way through a bucket: asked for, queued, prepared, pending, answered.

    KvPut           what a bucket is asked to write
    QueuedBatch     checked, waits to be prepared
    PreparedBatch   its changes and their changelog are worked out, nothing is done yet
    PendingBatch    in the changelog, not in the store yet
    KvPutResult     on the disk and in the store

Later batches see the rows of pending batches as the current ones. Readers do not: they see the store.

``BatchPreparer`` prepares the batches of one version of a table. Everything but its ``check`` takes time and belongs
into a thread, unless a batch has a few rows only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.record.arrow_batch import DECOMPRESSED_BYTES_MAX
from fluss.record.kv_batch import KEY_BYTES_MAX, RECORDS_MAX, KvBatch, KvRecords
from fluss.record.mutations import FoundRows, Mutations
from fluss.row.hashed_keys import HashedKeys
from fluss.server.kv.auto_increment import AutoIncrement, IdAllocation
from fluss.server.merge.changelog import encode_changelog
from fluss.server.merge.changes import Changes, MergeInput
from fluss.server.merge.coalescing import CoalescedBatches
from fluss.server.merge.engines import check_targets, merger_of
from fluss.server.merge.key_fold import KeyFold
from fluss.server.merge.table_codec import TableKeyEncoder
from fluss.server.model import Table
from fluss.storage.kv.memtable import Memtable
from fluss.storage.kv.state import IdBlock, KvState
from fluss.storage.kv.store import KvStore
from fluss.storage.log.append_result import AppendResult

ACKS_ALL: Final = -1
# What may be prepared on an event loop: some hundred microseconds of work.
QUICK_RECORDS_MAX: Final = 32
_QUICK_COLUMNS_MAX: Final = 32
QUICK_BYTES_MAX: Final = 8 * 1024
# Finds the rows that keys have before a batch.
FindRows: TypeAlias = Callable[[HashedKeys], FoundRows]


@dataclass(frozen=True, slots=True, eq=False)
class KvPut:
    """One KV batch for one bucket."""

    # As it was when the batch came.
    table: Table
    batch: memoryview
    # The columns of a partial update; none for whole rows.
    targets: tuple[int, ...] = ()
    # Whether the merge engine is bypassed: the row of the batch replaces the one that is there.
    is_overwrite: bool = False
    # With ACKS_ALL the batch is on the disk and in the store when it is answered. With 0 and 1 the operating system
    # has its changelog: it becomes visible when that is on the disk, a moment later.
    acks: int = ACKS_ALL


@dataclass(frozen=True, slots=True)
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
    is_coalescible: bool

    def prepare(
        self, find_rows: FindRows, ids: IdBlock | None, reserve_ids: Callable[[int], int] | None = None
    ) -> PreparedBatch:
        put = self.put
        return self.preparer.prepare(self.batch, put.targets, put.is_overwrite, find_rows, ids, reserve_ids)

    def coalesces_with(self, first: QueuedBatch) -> bool:
        """Whether it may be prepared as one with another batch."""
        return (
            self.is_coalescible
            and self.preparer is first.preparer
            and self.batch.schema_id == first.batch.schema_id
            and self.put.targets == first.put.targets
            and self.put.is_overwrite == first.put.is_overwrite
        )


def set_result(answer: asyncio.Future[KvPutResult], append: AppendResult) -> None:
    """Say where a batch is, unless its request was cancelled."""
    if not answer.done():
        answer.set_result(KvPutResult(append.offset_next))


def set_failure(answer: asyncio.Future[KvPutResult], error: FlussError) -> None:
    """Say why a batch was not written, unless its request was cancelled."""
    if not answer.done():
        answer.set_exception(error.copied())


def look_at(answer: asyncio.Future[KvPutResult]) -> None:
    """Keep asyncio from complaining about an error that no request waits for any more."""
    if not answer.cancelled():
        answer.exception()


@dataclass(frozen=True, slots=True, eq=False)
class PreparedBatch:
    """What a batch does, worked out and not done yet."""

    # The row of each changed key after the batch, for the batches behind it until the store has them.
    memtable: Memtable
    row_count_delta: int | None
    # One log batch, which has no offset yet.
    changelog: bytearray
    # What is left of the reserved ids after it.
    ids_left: IdBlock | None
    # What it keeps in memory, about.
    memory_bytes: int


class BatchPreparer:
    """Made once per version of a table. Has no state: threads share it."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.auto_increment = AutoIncrement.of(table)
        self._merger = merger_of(table)
        self._keys = TableKeyEncoder(table)
        # Reserving ids waits for the coordinator, which an event loop must not.
        self._may_be_quick = self.auto_increment is None and len(table.descriptor.schema.columns) <= _QUICK_COLUMNS_MAX

    def is_quick(self, batch: KvBatch) -> bool:
        """Whether a batch is so small that ``prepare`` with ``current_rows_in_memory`` may happen on an event loop."""
        return self._may_be_quick and batch.record_count <= QUICK_RECORDS_MAX and len(batch.data) <= QUICK_BYTES_MAX

    def check(self, data: memoryview, targets: Sequence[int], *, is_overwrite: bool) -> KvBatch:
        """Return the batch of a request, whose rows have not been looked at yet. Quick enough for the event loop.

        Raises 14 for damage, 9 for an unknown schema, 13 for too many records, 35 and others for targets that cannot
        be.
        """
        batch = KvBatch.parse(data)
        batch.verify_crc()
        if batch.schema_id not in self.table.schemas:
            raise FlussError(
                f"Table {self.table.path} has no schema of id {batch.schema_id}, known are "
                f"{sorted(self.table.schemas)}; read the schema again",
                ErrorCode.SCHEMA_NOT_EXIST,
            )
        if batch.record_count > RECORDS_MAX:
            raise FlussError(
                f"A batch for table {self.table.path} has {batch.record_count} records, it may have {RECORDS_MAX}; "
                "write fewer rows at a time",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        check_targets(self.table, targets, is_overwrite=is_overwrite)
        return batch

    def _records(self, batch: KvBatch) -> KvRecords:
        try:
            records = batch.records()
        except CorruptRecordError as error:
            # The checksum was right: with the code of damage clients would send the same bytes again and again.
            raise FlussError(
                f"A batch for table {self.table.path} was refused: {error.message}; write it in the KV format",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            ) from error
        longest = int(records.keys.lengths.max(initial=0))
        if longest > KEY_BYTES_MAX:
            raise FlussError(
                f"A batch for table {self.table.path} has a key of {longest} bytes, keys have at most {KEY_BYTES_MAX}; "
                "move what is long to a column that is not part of the primary key",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        return records

    def prepare(
        self,
        batch: KvBatch,
        targets: tuple[int, ...],
        is_overwrite: bool,
        find_rows: FindRows,
        ids: IdBlock | None,
        reserve_ids: Callable[[int], int] | None,
    ) -> PreparedBatch:
        """Work out the changes of a batch and their changelog. Raises what is wrong with its rows."""
        records = self._records(batch)
        run = None
        if self.auto_increment is not None and reserve_ids is not None:
            run = IdAllocation(self.auto_increment, ids, reserve_ids)
        fold = KeyFold.of(records.keys)
        changes = self._merged(records, fold, batch.schema_id, targets, is_overwrite, find_rows, run)
        return self._prepared(batch, changes, ids if run is None else run.block)

    def prepare_coalesced(
        self,
        batches: Sequence[KvBatch],
        targets: tuple[int, ...],
        is_overwrite: bool,
        find_rows: FindRows,
        ids: IdBlock | None,
    ) -> list[PreparedBatch] | None:
        """Work out several quick batches of one schema in one go, in less time than one by one.

        What is prepared for one of them holds whether the others are written or not. None if that cannot be done: each
        of them has to be prepared by itself.
        """
        joined = CoalescedBatches.join(batches)
        if joined is None or int(joined.records.keys.lengths.max(initial=0)) > KEY_BYTES_MAX:
            return None
        try:
            changes = self._merged(
                joined.records, joined.fold, batches[0].schema_id, targets, is_overwrite, find_rows, None
            )
        except FlussError:
            return None
        split = joined.split(changes, self._keys.encode(changes.rows).to_list())
        if split is None:
            return None
        return [self._prepared(batch, changes, ids) for batch, changes in zip(batches, split, strict=True)]

    def _merged(
        self,
        records: KvRecords,
        fold: KeyFold,
        schema_id: int,
        targets: tuple[int, ...],
        is_overwrite: bool,
        find_rows: FindRows,
        run: IdAllocation | None,
    ) -> Changes:
        if self._merger.needs_old_values(targets, is_overwrite, bool(records.is_delete.any())):
            old = find_rows(fold.unique_keys)
        else:
            old = FoundRows()
        return self._merger.merge(
            MergeInput(records.keys, records.rows, records.is_delete, schema_id, fold, old, targets, is_overwrite),
            None if run is None else run.take,
        )

    def _prepared(self, batch: KvBatch, changes: Changes, ids_left: IdBlock | None) -> PreparedBatch:
        changelog = encode_changelog(
            self.table, changes, writer_id=batch.writer_id, batch_sequence=batch.batch_sequence
        )
        memtable = Memtable.over(changes.changed)
        # Keys, and rows that stay as they came, lie in the batch and keep the whole of it in memory.
        memory_bytes = len(changelog) + len(batch.data) + memtable.byte_count
        return PreparedBatch(memtable, changes.row_count_delta, changelog, ids_left, memory_bytes)


class NotQuickError(Exception):
    """Something takes longer than an event loop may be kept."""


def current_rows(store: KvStore, pending: Sequence[Memtable]) -> FindRows:
    """Return what finds the current rows of keys: those that are pending, and behind them those of the store.

    More bytes than can be logged at once raise code 13.
    """
    return partial(store.find, pending=pending, bytes_max=DECOMPRESSED_BYTES_MAX)


def current_rows_in_memory(store: KvStore, pending: Sequence[Memtable]) -> FindRows:
    """Return what finds the current rows of a few keys if they are few bytes in memory; NotQuickError if not."""

    def find(keys: HashedKeys) -> FoundRows:
        found = store.find_cached(keys, pending=pending, bytes_max=QUICK_BYTES_MAX)
        if found is None:
            raise NotQuickError
        return found

    return find


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


class PendingBatches:
    """The batches on their way into the store, oldest first. Belongs to the event loop."""

    __slots__ = ("_batches",)

    def __init__(self) -> None:
        self._batches: deque[PendingBatch] = deque()

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[PendingBatch]:
        return iter(self._batches)

    @property
    def first(self) -> PendingBatch:
        return self._batches[0]

    @property
    def last(self) -> PendingBatch:
        return self._batches[-1]

    def memtables(self) -> tuple[Memtable, ...]:
        """Return the rows of all batches, newest first, as they are now: threads may keep them."""
        return tuple(batch.memtable for batch in reversed(self._batches))

    def add(self, batch: PendingBatch) -> None:
        self._batches.append(batch)

    def drop_first(self, count: int) -> list[PendingBatch]:
        """Take the oldest batches out: the store has them."""
        return [self._batches.popleft() for _ in range(count)]

    def drop_from(self, index: int) -> list[PendingBatch]:
        """Take out a batch and all after it: the changelog does not have them."""
        return [self._batches.pop() for _ in range(len(self._batches) - index)][::-1]

    def with_end(self, offset: int) -> PendingBatch | None:
        """Return the batch that ends at an offset, if it is here."""
        return next((batch for batch in self._batches if batch.append.offset_next == offset), None)


def state_after(state: KvState, batches: Sequence[PendingBatch]) -> KvState:
    """Return the state of a store once these batches are in it."""
    row_count = state.row_count
    for batch in batches:
        row_count = None if row_count is None or batch.row_count_delta is None else row_count + batch.row_count_delta
    return KvState(batches[-1].append.offset_next, row_count, batches[-1].ids_after)


def changes_of(batches: Sequence[PendingBatch]) -> list[Mutations]:
    """Return what batches change, in their order."""
    return [batch.memtable.mutations for batch in batches]
