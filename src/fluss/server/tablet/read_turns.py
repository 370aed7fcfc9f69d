"""Turns for reads whose size is known only afterwards."""

from __future__ import annotations

import asyncio

from fluss.server.tablet.fetch_memory import FetchMemory


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
            # Those who had their turn meanwhile have found more than anybody expected: back to the end of the line.
            self.end(granted, 0, owner)

    def end(self, granted_bytes: int, read_bytes: int, owner: str) -> None:
        """Hold what was read instead of what was granted, and let the next one begin."""
        self._turns.release()
        self._memory.settle(granted_bytes, read_bytes, owner)
