"""The memory that answers with records or rows may hold: a budget of bytes that all reads share.

A fetch, a lookup and a scan take memory before they read. ``FetchMemory`` has the budget; ``ReadTurns`` is for reads
whose size is known only afterwards.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from fluss.errors import ErrorCode, FlussError

# Batches that are read beyond the budget at the same time. What they hold together is known only afterwards.
_LOANS_MAX: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A read that waits, and for how much at most. The future gets what was granted."""

    turn: asyncio.Future[int | None]
    wanted_bytes: int
    owner: str


class FetchMemory:
    """Counts the bytes of all answers that are being built or sent, in total and for each connection, its owner.

    A fetch takes what it may need before it reads, exchanges it for what it has read, and gives that back when its
    answer has left. A fetch that finds nothing left waits in line. The wait is short: a client that does not take its
    answers holds their memory, and must not hold up the others. After it a fetch goes on with a loan, a grant of
    nothing that is good for one batch, if all this is true; else it gets nothing and is to be answered without records:

    - Its owner holds no other memory. So a client that takes its answers can always go on, one batch at a time.
    - There are few such loans at the moment, and less than twice the budget is used.

    Belongs to the event loop.
    """

    def __init__(self, bytes_max: int, *, turn_timeout_s: float) -> None:
        assert bytes_max > 0, "a budget of nothing would make every fetch wait"
        self._bytes_max = bytes_max
        self._turn_timeout_s = turn_timeout_s
        self._used_bytes = 0
        self._held_bytes: dict[str, int] = {}
        # Owners that read with a loan.
        self._borrowers: set[str] = set()
        self._waiting: deque[_Waiter] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def is_overdrawn(self) -> bool:
        """Whether more is used than there should be, because reads have found more than they were granted."""
        return self._used_bytes > self._bytes_max

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def try_take(self, wanted_bytes: int, owner: str) -> int | None:
        """Take at most ``wanted_bytes`` at once; None if others wait or nothing is left."""
        if self._waiting or self._used_bytes >= self._bytes_max:
            return None
        return self._grant(wanted_bytes, owner)

    async def take(self, wanted_bytes: int, owner: str) -> int | None:
        """Take at most ``wanted_bytes``, in order of arrival. After too long a wait: 0, which is a loan, or None."""
        granted = self.try_take(wanted_bytes, owner)
        if granted is not None:
            return granted
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future(), wanted_bytes, owner)
        self._waiting.append(waiter)
        timer = loop.call_later(self._turn_timeout_s, self._give_up, waiter)
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                granted = waiter.turn.result()
                if granted is not None:
                    self.settle(granted, 0, owner)
            raise
        finally:
            timer.cancel()

    def settle(self, granted_bytes: int, read_bytes: int, owner: str) -> None:
        """Hold what was read instead of what was granted: less, or more if one batch is large."""
        if not granted_bytes:
            self._borrowers.discard(owner)
        self.count(read_bytes, owner)
        self.give_back(granted_bytes, owner)

    def count(self, byte_count: int, owner: str) -> None:
        """Count bytes that are there already; the bound holds back the next fetch."""
        if byte_count:
            self._used_bytes += byte_count
            self._held_bytes[owner] = self._held_bytes.get(owner, 0) + byte_count

    def give_back(self, byte_count: int, owner: str) -> None:
        if byte_count:
            self._used_bytes -= byte_count
            self._held_bytes[owner] -= byte_count
            assert self._held_bytes[owner] >= 0, "more was given back than taken"
            if not self._held_bytes[owner]:
                del self._held_bytes[owner]
        while self._waiting and self._used_bytes < self._bytes_max:
            waiter = self._waiting.popleft()
            if not waiter.turn.done():
                waiter.turn.set_result(self._grant(waiter.wanted_bytes, waiter.owner))

    def _grant(self, wanted_bytes: int, owner: str) -> int:
        granted = min(wanted_bytes, self._bytes_max - self._used_bytes)
        self.count(granted, owner)
        return granted

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter.turn.done():
            return
        self._waiting.remove(waiter)
        if self._may_borrow(waiter.owner):
            self._borrowers.add(waiter.owner)
            waiter.turn.set_result(0)
        else:
            waiter.turn.set_result(None)

    def _may_borrow(self, owner: str) -> bool:
        return (
            owner not in self._held_bytes
            and owner not in self._borrowers
            and len(self._borrowers) < _LOANS_MAX
            and self._used_bytes < 2 * self._bytes_max
        )


def no_memory() -> FlussError:
    """Build the error for a request that was granted nothing and cannot be answered with less."""
    return FlussError(
        "There is no memory for the rows: clients do not take their answers. Try again later",
        ErrorCode.REQUEST_TIME_OUT,
    )


class ReadTurns:
    """Lets reads begin: few at the same time, and only while the memory they share is not used up.

    So what is read exceeds the budget of the memory by no more than a few reads can. Belongs to the event loop.
    """

    def __init__(self, memory: FetchMemory, count: int) -> None:
        self._memory = memory
        self._turns = asyncio.Semaphore(count)

    async def begin(self, wanted_bytes: int, owner: str) -> int | None:
        """Wait for a turn, and return what the memory has granted; 0 is a loan.

        None says that there is no memory, now and for some time. Otherwise ``end`` must be called.
        """
        while True:
            granted = await self._memory.take(wanted_bytes, owner)
            if granted is None:
                return None
            try:
                await self._turns.acquire()
            except BaseException:
                self._memory.settle(granted, 0, owner)
                raise
            if not granted or not self._memory.is_overdrawn:
                return granted
            # Reads that had their turn meanwhile have found more than they were granted: back to the end of the line.
            self.end(granted, 0, owner)

    def end(self, granted_bytes: int, read_bytes: int, owner: str) -> None:
        """Hold what was read instead of what was granted, and let the next one begin."""
        self._turns.release()
        self._memory.settle(granted_bytes, read_bytes, owner)


class RemoteTurns:
    """Turns of reads of remote storage, which take long while it is slow or away: who waits for one holds no memory.

    Belongs to the event loop.
    """

    def __init__(self, memory: FetchMemory, count: int) -> None:
        self._memory = memory
        self._turns = asyncio.Semaphore(count)

    async def begin(self, wanted_bytes: int, owner: str) -> int | None:
        """Wait for a turn, and return what the memory has granted, as ``ReadTurns.begin`` does."""
        await self._turns.acquire()
        granted: int | None = None
        try:
            granted = await self._memory.take(wanted_bytes, owner)
        finally:
            if granted is None:
                self._turns.release()
        return granted

    def end(self, granted_bytes: int, read_bytes: int, owner: str) -> None:
        """Hold what was read instead of what was granted, and let the next one begin."""
        self._turns.release()
        self._memory.settle(granted_bytes, read_bytes, owner)
