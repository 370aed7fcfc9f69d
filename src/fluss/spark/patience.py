"""How a long-running job bears with servers: waits while they are away, and does not ask all the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final, TypeVar

from fluss.errors import FlussError

T = TypeVar("T")

# The first pause is none: what is wrong may be no more than what this side knows.
_PAUSES_S: Final = (0.0, 0.1, 0.2, 0.4, 0.8)
_PAUSE_S_MAX: Final = 1.0

_IDLE_PAUSE_SHARE: Final = 0.1
_IDLE_PAUSE_S_MIN: Final = 0.01
_IDLE_PAUSE_S_MAX: Final = 0.1
_ASKING_SHARE_MAX: Final = 0.2


class Patience:
    """Asks again what could not be answered, for ``limit_s`` seconds. ``what`` is who is asked, for the message."""

    def __init__(
        self,
        what: str,
        limit_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._what = what
        self._limit_s = limit_s
        self._clock = clock
        self._sleep = sleep

    def ask(self, question: Callable[[bool], T], passing_codes: Collection[int] = ()) -> T:
        """Return the answer. The question is told whether it was asked before.

        Raises errors that do not pass: those that are not retriable, except ``passing_codes``. One that should have
        passed and did not is raised with how long it was waited for.
        """
        deadline_s = self._clock() + self._limit_s
        pauses_s = iter(_PAUSES_S)
        is_again = False
        while True:
            try:
                return question(is_again)
            except FlussError as error:
                if not (error.is_retriable or error.error_code in passing_codes):
                    raise
                if self._clock() >= deadline_s:
                    raise FlussError(
                        f"{self._what} could not be reached for {self._limit_s:g} s ('request-timeout'): "
                        f"{error.message}",
                        error.error_code,
                    ) from error
            is_again = True
            self._sleep(next(pauses_s, _PAUSE_S_MAX))

    def wait_for(self, is_done: Callable[[], bool]) -> bool:
        """Look again and again until something is done; return whether it was in time."""
        deadline_s = self._clock() + self._limit_s
        pauses_s = iter(_PAUSES_S)
        while not is_done():
            if self._clock() >= deadline_s:
                return False
            self._sleep(next(pauses_s, _PAUSE_S_MAX))
        return True


class IdlePauses:
    """Makes somebody who looks for something new all the time look less often while there is nothing.

    A pause is a share of the time for which nothing has come, within limits, and so long that looking takes no more
    than a share of the time. Whoever waits for a pause still sees everything that was there when the wait began.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        # Since when nothing has come; None if something has.
        self._idle_since_s: float | None = None
        self._look_not_before_s = 0.0
        self._look_begun_s = 0.0

    def before_look(self) -> None:
        """Wait until it is time to look."""
        wait_s = self._look_not_before_s - self._clock()
        if wait_s > 0:
            self._sleep(wait_s)
        self._look_begun_s = self._clock()

    def after_look(self, *, found: bool) -> None:
        """Decide when to look again."""
        if found:
            self._idle_since_s = None
            self._look_not_before_s = 0.0
            return
        now_s = self._clock()
        if self._idle_since_s is None:
            self._idle_since_s = self._look_begun_s
        idle_pause_s = (now_s - self._idle_since_s) * _IDLE_PAUSE_SHARE
        asking_pause_s = (now_s - self._look_begun_s) * (1 / _ASKING_SHARE_MAX - 1)
        pause_s = max(min(max(idle_pause_s, _IDLE_PAUSE_S_MIN), _IDLE_PAUSE_S_MAX), asking_pause_s)
        self._look_not_before_s = now_s + pause_s
