"""Time of the event loop for work that is too little to be worth the way to a thread and back.

A thread would keep the loop waiting just as long, because both need the interpreter; the way there and back costs more
than the work. But everybody who waits to be called gets that in one turn of the loop, and their number is not limited.
So all of them together have a limited time per turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_TURN_S: Final = 0.002


class LoopTime:
    """Counts the time of one turn. Belongs to an event loop."""

    __slots__ = ("_clock", "_is_counting", "_left_s")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._left_s = _TURN_S
        self._is_counting = False

    @property
    def is_left(self) -> bool:
        """Whether something short may be done in this turn."""
        return self._left_s > 0

    @contextmanager
    def spend(self) -> Iterator[None]:
        """Count what is done inside."""
        if not self._is_counting:
            self._is_counting = True
            # What is called soon is called in the next turn.
            asyncio.get_running_loop().call_soon(self._begin_turn)
        began_at_s = self._clock()
        try:
            yield
        finally:
            self._left_s -= self._clock() - began_at_s

    def _begin_turn(self) -> None:
        self._left_s = _TURN_S
        self._is_counting = False
