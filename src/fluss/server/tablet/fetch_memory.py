"""The memory that answers to fetches may hold: a budget of bytes that fetches share."""

from __future__ import annotations

import asyncio
from collections import deque


class FetchMemory:
    """Counts the bytes of all answers that are being built or sent.

    A fetch takes what it may need before it reads, gives back what it did not use, and the rest when its answer has
    left. Whoever finds nothing left waits in line. The wait is short: a client that does not take its answers holds
    their memory, and must not hold up the others. After it a fetch goes on with a grant of nothing, which is enough for
    the one batch that every fetch may return. Belongs to the event loop.
    """

    def __init__(self, bytes_max: int, *, turn_timeout_s: float) -> None:
        assert bytes_max > 0, "a budget of nothing would make every fetch wait"
        self._bytes_max = bytes_max
        self._turn_timeout_s = turn_timeout_s
        self._used_bytes = 0
        # Who waits, and for how much at most. The future gets what was granted.
        self._waiting: deque[tuple[asyncio.Future[int], int]] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def try_take(self, wanted_bytes: int) -> int | None:
        """Take at most ``wanted_bytes`` at once; None if others wait or nothing is left."""
        if self._waiting or self._used_bytes >= self._bytes_max:
            return None
        return self._grant(wanted_bytes)

    async def take(self, wanted_bytes: int) -> int:
        """Take at most ``wanted_bytes``, in order of arrival; 0 if it took too long to get a turn."""
        granted = self.try_take(wanted_bytes)
        if granted is not None:
            return granted
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        entry = (turn, wanted_bytes)
        self._waiting.append(entry)
        timer = asyncio.get_running_loop().call_later(self._turn_timeout_s, self._give_up, entry)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(turn.result())
            raise
        finally:
            timer.cancel()

    def count(self, byte_count: int) -> None:
        """Count bytes that are there already; the bound holds back the next fetch."""
        self._used_bytes += byte_count

    def give_back(self, byte_count: int) -> None:
        self._used_bytes -= byte_count
        assert self._used_bytes >= 0, "more was given back than taken"
        while self._waiting and self._used_bytes < self._bytes_max:
            turn, wanted_bytes = self._waiting.popleft()
            if not turn.done():
                turn.set_result(self._grant(wanted_bytes))

    def _grant(self, wanted_bytes: int) -> int:
        granted = min(wanted_bytes, self._bytes_max - self._used_bytes)
        self._used_bytes += granted
        return granted

    def _give_up(self, entry: tuple[asyncio.Future[int], int]) -> None:
        if not entry[0].done():
            self._waiting.remove(entry)
            entry[0].set_result(0)
