"""Slows one connection down while its client is above its quota."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from fluss.net.burst_log import BurstLog
from fluss.net.quotas import ClientQuota, QuotaKind
from fluss.net.transport import Outbox

# Answers are held back no longer than this: clients would give up waiting and ask again. Their next requests wait
# until everything is paid for.
_ANSWER_HELD_S_MAX: Final = 10.0
# How often it is looked whether a client may go on: its quota may have been raised.
_CHECK_S: Final = 1.0


class QuotaThrottle:
    """Holds the answers of a connection back, and has nothing of it started or read, until its client owes nothing.

    ``client`` says whose quota counts, or None once no client is limited any more. ``on_throttled`` and ``on_released``
    are called when ``is_throttled`` has changed.
    """

    def __init__(
        self,
        outbox: Outbox,
        bursts: BurstLog,
        client: Callable[[], ClientQuota | None],
        *,
        on_throttled: Callable[[], None],
        on_released: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._outbox = outbox
        self._bursts = bursts
        self._client = client
        self._on_throttled = on_throttled
        self._on_released = on_released
        self._timer: asyncio.TimerHandle | None = None
        self._answers_held_until = 0.0
        self._is_over = False
        # Whether nothing may be started or read.
        self.is_throttled = False

    def may_start(self) -> bool:
        """Whether the client owes nothing, also by its other connections; if it does, come back later."""
        wait_s = self._wait_s()
        if wait_s <= 0:
            return True
        self._throttle_for(wait_s)
        return False

    def charge(self, kind: QuotaKind, amount: float) -> None:
        """Count what the client has used; if it owes something now, hold its answers back and read nothing more."""
        quota = self._client()
        wait_s = 0.0 if quota is None else quota.charge(kind, amount)
        if quota is None or wait_s <= 0 or self._is_over:
            return
        quota.throttled(kind, wait_s)
        limit = f"{quota.limit_of(kind):g} {kind.value} per second"
        self._bursts.log(
            f"quota of {kind.value}", logging.INFO, f"{quota.name} has used up its quota of {limit}: it is slowed down"
        )
        self._answers_held_until = max(self._answers_held_until, self._loop.time() + min(wait_s, _ANSWER_HELD_S_MAX))
        self._outbox.hold()
        self._throttle_for(wait_s)

    def end(self) -> None:
        """Hold nothing back any more: nothing new is taken from the client. May be called again."""
        self._is_over = True
        self.is_throttled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._outbox.release()

    def _wait_s(self) -> float:
        quota = None if self._is_over else self._client()
        return 0.0 if quota is None else quota.wait_s()

    def _throttle_for(self, wait_s: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(min(wait_s, _CHECK_S), self._check)
            self.is_throttled = True
            self._on_throttled()

    def _check(self) -> None:
        """Let answers leave that have waited long enough, and go on if nothing is owed any more."""
        self._timer = None
        held_s = self._answers_held_until - self._loop.time()
        wait_s = self._wait_s()
        if held_s <= 0 or wait_s <= 0:
            self._outbox.release()
        if wait_s > 0:
            self._throttle_for(min(wait_s, held_s) if held_s > 0 else wait_s)
        else:
            self.is_throttled = False
            self._on_released()
