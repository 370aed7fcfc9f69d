"""How long to wait before something that has failed is tried again: all retry policies, of both ends.

Pauses double from the first to the longest. What differs is how much of a hurry there is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final, TypeVar

from fluss.errors import FlussError

T = TypeVar("T")

# Beyond this many doublings every policy has reached its longest pause by far.
_DOUBLINGS_MAX: Final = 30
_TIMEOUT_S_MAX: Final = 10 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Pauses between attempts, and how many there are. Without ``retries_max`` the caller has a limit of its own."""

    first_s: float
    longest_s: float
    retries_max: int | None = None
    # The first retry comes at once: what is wrong may be no more than what the client knows.
    is_first_immediate: bool = False
    # By which share a pause is longer or shorter at random: clients that failed together do not come back together.
    jitter: float = 0.0

    def pause_s(self, failures: int) -> float:
        """Return the pause after so many failures in a row, at least one; without jitter."""
        if self.is_first_immediate:
            failures -= 1
            if not failures:
                return 0.0
        return min(self.first_s * (1 << min(failures - 1, _DOUBLINGS_MAX)), self.longest_s)

    def jittered_s(self, failures: int, rng: random.Random) -> float:
        """Return the pause after so many failures in a row, a little longer or shorter."""
        return self.pause_s(failures) * rng.uniform(1 - self.jitter, 1 + self.jitter)

    def pauses_s(self, rng: random.Random | None = None) -> Iterator[float]:
        """Return the pauses in their order, one for each retry; with jitter if there is a source of chance."""
        failures = count(1) if self.retries_max is None else range(1, self.retries_max + 1)
        if rng is None:
            return map(self.pause_s, failures)
        return (self.jittered_s(count, rng) for count in failures)


# A single bootstrap address that does not answer: there is no other one to ask.
BOOTSTRAP: Final = RetryPolicy(0.1, 1.0, retries_max=3)
# Buckets without a leader: elections take a moment, and thousands of clients that ask all the time make them longer.
METADATA: Final = RetryPolicy(0.1, 1.0)
# Questions to the leaders of buckets, which may be missing or move while they are asked; ``request-timeout`` is their
# limit.
LEADER_CALLS: Final = RetryPolicy(0.1, 1.0, is_first_immediate=True)
# Batches that were not stored, and the writer id that they wait for; ``writer.retries`` is their limit.
WRITES: Final = RetryPolicy(0.1, 1.0)
# Fetches of a bucket that failed: as long as the scanner is subscribed to it.
FETCHES: Final = RetryPolicy(0.05, 1.0)
# Segments in remote storage, which is slower to recover than a server.
DOWNLOADS: Final = RetryPolicy(0.1, 5.0, jitter=0.25)
# Lookups: a caller waits for each of them. ``request-timeout`` and ``lookup.max-retries`` are their limits.
LOOKUPS: Final = RetryPolicy(0.02, 1.0)
# Questions of long-running jobs, which wait while servers are away; ``request-timeout`` is their limit.
JOBS: Final = RetryPolicy(0.1, 1.0, is_first_immediate=True)
# Logins that a server could not decide on right now; ``request-timeout`` is their limit.
LOGINS: Final = RetryPolicy(0.1, 5.0, jitter=0.2)
# Objects that the server writes to remote storage, or reads from it.
REMOTE_OBJECTS: Final = RetryPolicy(0.2, 5.0, retries_max=3, jitter=0.25)
# Catalogs of the lake: a service that is started again is back after a few seconds.
LAKE_CATALOGS: Final = RetryPolicy(0.2, 3.2, retries_max=5)
# Rounds of tiering that failed one after another; the service goes on as long as it runs.
TIERING_ROUNDS: Final = RetryPolicy(1.0, 60.0)


def checked_timeout_s(what: str, timeout: float | None) -> float | None:
    """Return the seconds that a caller wants to wait at most; None is for ever. Negative ones are a FlussError."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"{what} must be a number of seconds, got {type(timeout).__name__}")
    if not timeout >= 0:
        raise FlussError(f"{what} must be non-negative, got: {timeout}")
    # Event loops do not like timers that are years away.
    return min(float(timeout), _TIMEOUT_S_MAX)


def retried(ask: Callable[[], T], policy: RetryPolicy, limit_s: float) -> T:
    """Return the first answer to a question that blocks, asked again while what it raises is retriable.

    After the limit it raises what the last attempt said.
    """
    deadline_s = time.monotonic() + limit_s
    pauses_s = policy.pauses_s()
    while True:
        try:
            return ask()
        except FlussError as error:
            if not error.is_retriable or time.monotonic() >= deadline_s:
                raise
        time.sleep(next(pauses_s))


class Backoff:
    """Until when to leave something alone: longer after each failure, until something succeeds."""

    __slots__ = ("_failures", "_policy", "until_s")

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._failures = 0
        self.until_s = 0.0

    def failed(self, now_s: float) -> None:
        """Something failed. Failures during a pause belong to the one that began it."""
        if now_s >= self.until_s:
            self.extend(now_s)

    def extend(self, now_s: float) -> None:
        """Begin the next pause now."""
        self._failures += 1
        self.until_s = now_s + self._policy.pause_s(self._failures)

    def hold(self, until_s: float) -> None:
        """Pause at least that long, whether or not something failed."""
        self.until_s = max(self.until_s, until_s)

    def succeeded(self) -> None:
        """Something succeeded: there is no pause, and the next one is short again."""
        self._failures = 0
        self.until_s = 0.0
