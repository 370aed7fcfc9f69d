"""How many requests may be on the way at once."""

from __future__ import annotations

import asyncio
from collections import deque

from fluss.errors import FlussError


class RequestSlots:
    """Counts requests on the way, up to a limit. Belongs to one event loop.

    Those who wait for a slot get it in their order, when ``call_in`` says that nobody else takes it first.
    """

    def __init__(self, count_max: int) -> None:
        self._free_count = count_max
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def has_free(self) -> bool:
        return self._free_count > 0

    def take(self) -> None:
        """Take a slot, which must be free."""
        assert self._free_count > 0, "every slot is taken"
        self._free_count -= 1

    def give_back(self) -> None:
        """A request has ended."""
        self._free_count += 1

    async def wait(self) -> None:
        """Take a slot as soon as there is one."""
        if self._free_count > 0 and not self._waiting:
            self.take()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It was this one's turn already.
                self.give_back()
                self.call_in()
            raise

    def call_in(self) -> None:
        """Give the slots that are free to those who wait."""
        while self._waiting and self._free_count > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                self.take()
                turn.set_result(None)

    def close(self, error: FlussError) -> None:
        """Let nobody wait any longer."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error)
