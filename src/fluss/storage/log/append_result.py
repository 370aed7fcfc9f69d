"""What an append is told: where its rows lie, by what it can be recognised later, and when they are safe."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from dataclasses import dataclass, field
from typing import Final

from fluss.errors import FlussError

# Waiters for one offset keep their order.
_numbers: Final = itertools.count()


class History:
    """Identifies the appends between two failures to write.

    After a failure, offsets are given to other appends again, so an offset alone does not identify an append.
    """

    __slots__ = ("failure", "offset_kept")

    def __init__(self) -> None:
        self.failure: FlussError | None = None
        # Once it has failed: appends before this offset were kept.
        self.offset_kept = 0


@dataclass(slots=True)
class AppendResult:
    """Where an append lies in the log. A duplicate lies where its first copy does."""

    offset_base: int
    offset_next: int
    commit_timestamp_ms: int
    is_duplicate: bool
    history: History = field(repr=False, compare=False)


class OffsetWaiters:
    """The futures of callers that wait until a log has come to an offset. Belongs to one event loop.

    A waiter that is cancelled stays until its offset is reached.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        # None instead of an empty list: of thousands of open logs few have any.
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] | None = None

    def __len__(self) -> int:
        return len(self._waiting or ())

    def add(self, offset_next: int) -> asyncio.Future[None]:
        """Return a future that ``wake`` with this offset or a later one completes, or ``fail`` with its error."""
        future = asyncio.get_running_loop().create_future()
        if self._waiting is None:
            self._waiting = []
        heapq.heappush(self._waiting, (offset_next, next(_numbers), future))
        return future

    def wake(self, offset_next: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset_next:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: FlussError) -> None:
        waiting, self._waiting = self._waiting, None
        for _, _, future in waiting or ():
            if not future.done():
                future.set_exception(error.copied())
