"""The way of lookups from their callers, in any thread and on any event loop, to the loop that sends them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from fluss.client.lookup.pending import Lookup, call_on, set_results
from fluss.client.runtime import Runtime
from fluss.errors import FlussError


class Intake:
    """Collects lookups, and counts those that wait to be sent. At the limit, callers wait.

    ``on_lookups`` is called on the library's loop when there are some to be taken: once for all that come in a burst.
    """

    def __init__(self, runtime: Runtime, waiting_max: int, on_lookups: Callable[[], None]) -> None:
        self._runtime = runtime
        self._waiting_max = waiting_max
        self._on_lookups = on_lookups
        # Shared by threads. Adding to a deque and taking from it needs no lock.
        self._submitted: deque[Lookup] = deque()
        self._callers: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()
        self._is_woken = False
        # Lookups that were taken, and wait to be sent. Belongs to the event loop; other threads look at its size.
        self.waiting: set[Lookup] = set()

    @property
    def waiting_count(self) -> int:
        """Lookups that wait to be sent, also those that were not taken yet."""
        return len(self.waiting) + len(self._submitted)

    @property
    def caller_count(self) -> int:
        """Callers who wait until there is room for their lookups."""
        return len(self._callers)

    # In any thread

    def is_full(self) -> bool:
        return self.waiting_count >= self._waiting_max

    async def room(self) -> None:
        """Wait until it is not full."""
        while self.is_full():
            loop = asyncio.get_running_loop()
            turn: asyncio.Future[None] = loop.create_future()
            self._callers.append((loop, turn))
            # There may have been room since somebody looked.
            self._wake()
            try:
                await turn
            except asyncio.CancelledError:
                # It may have been its turn: somebody else has to take it.
                self._wake()
                raise

    def submit(self, lookup: Lookup) -> None:
        """Hand in a lookup."""
        self._runtime.check_process()
        self._submitted.append(lookup)
        self._wake()

    def _wake(self) -> None:
        # Whoever sees the flag has added its lookup before, and the loop takes it off before it looks at the lookups.
        if not self._is_woken:
            self._is_woken = True
            try:
                self._runtime.loop.call_soon_threadsafe(self._on_lookups)
            except RuntimeError as error:
                self._is_woken = False
                raise FlussError("the client cannot be used any more: the interpreter is shutting down") from error

    # On the event loop

    def take(self) -> list[Lookup]:
        """Return what was handed in; it is among those that wait from now on."""
        self._is_woken = False
        taken: list[Lookup] = []
        for _ in range(len(self._submitted)):
            # In both for a moment, and never in none: callers count them.
            self.waiting.add(self._submitted[0])
            taken.append(self._submitted.popleft())
        return taken

    def call_in(self, *, all_of_them: bool = False) -> None:
        """Let as many callers go on as there is room for."""
        room = self._waiting_max - self.waiting_count
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
        while self._callers and (room > 0 or all_of_them):
            loop, turn = self._callers.popleft()
            if not turn.done():
                by_loop.setdefault(loop, []).append((turn, None))
                room -= 1
        for loop, turns in by_loop.items():
            call_on(loop, set_results, turns)
