"""Work that is done again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fluss.errors import FlussError

logger = logging.getLogger(__name__)


class Periodic:
    """Calls something at an interval, the first time after one interval. A failure is logged and changes nothing.

    An interval of 0 means never.
    """

    def __init__(self, name: str, interval_ms: int, action: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._interval_s = interval_ms / 1000
        self._action = action
        self._is_stopped = False
        # Set when there is no more to wait for: it was stopped, or has another interval.
        self._is_woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        assert self._task is None, "it is started once"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    def set_interval(self, interval_ms: int) -> None:
        """Change the interval; the new one counts from now on. An equal one changes nothing."""
        if interval_ms / 1000 != self._interval_s:
            self._interval_s = interval_ms / 1000
            self._is_woken.set()

    async def stop(self) -> None:
        """Let a call that has begun finish, and make no more. May be called again."""
        self._is_stopped = True
        self._is_woken.set()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while not self._is_stopped:
            if await self._is_woken_within_interval():
                self._is_woken.clear()
                continue
            try:
                await self._action()
            except (FlussError, OSError) as error:
                # The machine's trouble: a sentence is enough.
                logger.error("%s failed: %s; it is tried again in %g s", self._name, error, self._interval_s)
            except Exception:
                logger.exception("%s failed; it is tried again in %g s", self._name, self._interval_s)

    async def _is_woken_within_interval(self) -> bool:
        try:
            async with asyncio.timeout(self._interval_s or None):
                return await self._is_woken.wait()
        except TimeoutError:
            return False
