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
_PAUSE_S: Final = 0.002


def eventually(condition: Callable[[], T], what: str = "it", *, timeout_s: float = TIMEOUT_S) -> T:
    """Call the condition until it returns something true, and return that. Raises AssertionError after the timeout."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"{what} did not happen within {timeout_s:g} s: {found!r}"
        time.sleep(_PAUSE_S)
    return found


async def eventually_async(
    condition: Callable[[], T | Awaitable[T]], what: str = "it", *, timeout_s: float = TIMEOUT_S
) -> T:
    """Do the same without blocking the event loop. The condition may be a coroutine function."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = condition()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline_s, f"{what} did not happen within {timeout_s:g} s: {found!r}"
        await asyncio.sleep(_PAUSE_S)
