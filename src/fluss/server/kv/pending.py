"""What is in the changelog of a bucket and not in its store yet.

    prepared -> appended to the changelog -> on the disk -> in the store, gone from here

Later batches see these rows as the current ones. Readers do not: they see the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from fluss.server.kv.kv_put import KvPutResult
from fluss.server.kv.table_writer import Prepared
from fluss.storage.kv.keyed_rows import KeyedRows
from fluss.storage.kv.recent_rows import RecentRows
from fluss.storage.kv.state import IdBlock, KvState
from fluss.storage.log.append_result import AppendResult


class PendingBatch:
    """The changes of one KV batch that was appended to the changelog."""

    __slots__ = (
        "append",
        "changelog_bytes",
        "ids_after",
        "ids_before",
        "memory_bytes",
        "row_count_delta",
        "rows",
        "waiting",
    )

    def __init__(self, append: AppendResult, prepared: Prepared, *, ids_before: IdBlock | None) -> None:
        self.append = append
        # The row of each changed key after the batch; an empty one removes the key.
        self.rows = prepared.rows
        self.row_count_delta = prepared.row_count_delta
        # What was left of the reserved ids before and after the batch.
        self.ids_before = ids_before
        self.ids_after = prepared.ids_left
        self.changelog_bytes = len(prepared.changelog)
        # Counted in the memory of all writes until the batch has gone.
        self.memory_bytes = prepared.memory_bytes
        # Those who are answered when it is in the store: its writer, and whoever sends it again meanwhile.
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

    def rows(self) -> tuple[RecentRows, ...]:
        """Return the rows of all batches, newest first, as they are now: threads may keep them."""
        return tuple(batch.rows for batch in reversed(self._batches))

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


def changes_of(batches: Sequence[PendingBatch]) -> list[KeyedRows]:
    """Return what batches change, in their order."""
    return [batch.rows.changes for batch in batches]
