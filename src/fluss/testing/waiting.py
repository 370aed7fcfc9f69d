"""Wait for what other threads, tasks and processes do, without guessing how long they need.

    eventually(lambda: counter.rows == 10)
    rows = await eventually_async(read_rows)

The limit only ends a wait for something that never comes. It is long, so that a busy machine does not fail a test.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

TIMEOUT_S: Final = 120.0
# What has not come soon is asked for less and less often: conditions that read files or ask servers take time from what
# they wait for.
_PAUSE_MIN_S: Final = 0.001
_PAUSE_MAX_S: Final = 0.025
_PAUSE_GROWTH: Final = 1.25


def eventually(condition: Callable[[], T], what: str = "it", *, timeout_s: float = TIMEOUT_S) -> T:
    """Call the condition until it returns something true, and return that. Raises AssertionError after the timeout."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = _PAUSE_MIN_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"{what} did not happen within {timeout_s:g} s: {found!r}"
        time.sleep(pause_s)
        pause_s = min(pause_s * _PAUSE_GROWTH, _PAUSE_MAX_S)
    return found


async def eventually_async(
    condition: Callable[[], T | Awaitable[T]], what: str = "it", *, timeout_s: float = TIMEOUT_S
) -> T:
    """Do the same without blocking the event loop. The condition may be a coroutine function."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = _PAUSE_MIN_S
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline_s, f"{what} did not happen within {timeout_s:g} s: {found!r}"
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * _PAUSE_GROWTH, _PAUSE_MAX_S)
