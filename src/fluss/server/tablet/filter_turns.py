"""Turns of fetches with filters: few of them work at the same time, and those that wait hold little memory.

A filter costs processor time: it is decoded, and asked about thousands of batches. However many clients send filters,
they share a part of the reader threads; the rest is left to other fetches. Connections take turns, so that one which
sends hundreds of such fetches at once waits for itself and not the others for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")


class FilterTurns:
    """Gives fetches with filters their turns in the reader threads. Belongs to the event loop."""

    def __init__(self, readers: Executor, *, turns_max: int, bytes_max: int) -> None:
        """``bytes_max`` is what the filters of all fetches that work or wait may have, as they were sent."""
        assert turns_max > 0, "without a turn no fetch would ever be answered"
        self._readers = readers
        self._free = turns_max
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._held_bytes: dict[str, int] = {}
        # By connection, in the order in which they get the next turn.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def used_bytes(self) -> int:
        """What the filters of all fetches that work or wait have."""
        return self._used_bytes

    @property
    def free_count(self) -> int:
        """Turns that no fetch has."""
        return self._free

    @property
    def waiting_count(self) -> int:
        """Fetches that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    # Memory

    def hold(self, byte_count: int, owner: str) -> bool:
        """Count the filters of a fetch; False if they are too much, together with those that the connection has."""
        if owner in self._held_bytes and self._used_bytes + byte_count > self._bytes_max:
            return False
        self._used_bytes += byte_count
        self._held_bytes[owner] = self._held_bytes.get(owner, 0) + byte_count
        return True

    def let_go(self, byte_count: int, owner: str) -> None:
        self._used_bytes -= byte_count
        self._held_bytes[owner] -= byte_count
        if not self._held_bytes[owner]:
            del self._held_bytes[owner]

    # Turns

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[FilterTurn]:
        """Wait for a turn. It ends with the block; if a thread works on by then, it ends when that is done."""
        await self._begin(owner)
        turn = FilterTurn(self._readers)
        try:
            yield turn
        finally:
            turn.when_done(self._end)

    async def _begin(self, owner: str) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._end()
            raise

    def _end(self) -> None:
        self._free += 1
        while self._free and self._waiting:
            owner, waiters = self._waiting.popitem(last=False)
            waiter = waiters.popleft()
            if waiters:
                self._waiting[owner] = waiters
            if not waiter.done():
                self._free -= 1
                waiter.set_result(None)


class FilterTurn:
    """One turn: the right to use one reader thread."""

    def __init__(self, readers: Executor) -> None:
        self._readers = readers
        self._loop = asyncio.get_running_loop()
        self._work: Future[Any] | None = None

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do the work in a thread. If this is cancelled, work that has not begun is not done."""
        future = self._readers.submit(work, *arguments)
        self._work = future
        return await asyncio.wrap_future(future)

    def when_done(self, end: Callable[[], None]) -> None:
        """Call ``end`` on the event loop as soon as no thread works on this turn."""
        if self._work is None or self._work.done():
            end()
        else:
            self._work.add_done_callback(lambda _: self._end_later(end))

    def _end_later(self, end: Callable[[], None]) -> None:
        # The loop may be closed when a server in a program has been stopped.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(end)
