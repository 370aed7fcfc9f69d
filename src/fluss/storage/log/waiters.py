"""Those who wait until a log has come to an offset."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from fluss.errors import FlussError

# Waiters for one offset keep their order.
_numbers = itertools.count()


class OffsetWaiters:
    """Belongs to an event loop. A waiter that is cancelled stays until its offset is reached."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, offset_next: int) -> asyncio.Future[None]:
        """Return what ends with ``wake`` for this offset or a later one, or with the error that ``fail`` is told."""
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (offset_next, next(_numbers), future))
        return future

    def wake(self, offset_next: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset_next:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: FlussError) -> None:
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(error.copied())
