"""One line for many equal events: what a client can cause a thousand times a second must not fill the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

_INTERVAL_S: Final = 10.0


class BurstLog:
    """Logs the first event of a kind at once, and those that follow as one line with their count at intervals.

    A burst is over when an interval passes without an event; the next one is logged at once again. Belongs to an event
    loop. Kinds are few: each is a constant of the program.
    """

    def __init__(self, logger: logging.Logger, *, interval_s: float = _INTERVAL_S) -> None:
        self._logger = logger
        self._interval_s = interval_s
        # Kind -> what came after the line that was logged: how many, the level and the text of the last one.
        self._bursts: dict[str, tuple[int, int, str]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def log(self, kind: str, level: int, text: str) -> None:
        burst = self._bursts.get(kind)
        if burst is not None:
            self._bursts[kind] = (burst[0] + 1, level, text)
            return
        self._logger.log(level, "%s", text)
        self._begin_interval(kind)

    def close(self) -> None:
        """Log what was only counted so far. Nothing is logged later."""
        for timer in self._timers.values():
            timer.cancel()
        for kind in tuple(self._bursts):
            self._log_count(kind)
        self._timers.clear()
        self._bursts.clear()

    def _begin_interval(self, kind: str) -> None:
        self._bursts[kind] = (0, 0, "")
        loop = asyncio.get_running_loop()
        self._timers[kind] = loop.call_later(self._interval_s, self._end_interval, kind)

    def _end_interval(self, kind: str) -> None:
        if self._log_count(kind):
            self._begin_interval(kind)
        else:
            del self._bursts[kind], self._timers[kind]

    def _log_count(self, kind: str) -> bool:
        count, level, text = self._bursts[kind]
        if count:
            self._logger.log(level, "%d times more within %g s, the last: %s", count, self._interval_s, text)
        return count > 0
