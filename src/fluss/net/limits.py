"""What keeps one client from hurting the others of its listener: memory budgets, and slow answers to failed logins."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

# What a connection does when there is room again. It also stands for the connection: equal ones are the same.
Resume: TypeAlias = Callable[[], None]


class ByteBudget:
    """Counts bytes over all connections. Belongs to one event loop.

    Nothing is refused: bytes that are there are counted, and whoever holds some of an exhausted budget takes no more.
    Others may go on, so a few greedy connections do not stop everybody; each then holds some, and waits, too. If all
    of them wait with half of what they need, nobody would ever be done: so one of them is the first, and may go on.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._waiting: dict[Resume, None] = {}
        self._first: Resume | None = None

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def is_exhausted(self) -> bool:
        return self._used_bytes >= self._bytes_max

    def take(self, byte_count: int) -> None:
        self._used_bytes += byte_count

    def give_back(self, byte_count: int) -> None:
        self.replace(byte_count, 0)

    def replace(self, before_bytes: int, after_bytes: int) -> None:
        """Count what one connection holds anew."""
        self._used_bytes += after_bytes - before_bytes
        if after_bytes < before_bytes and not self.is_exhausted:
            self._wake()

    def wait(self, resume: Resume) -> None:
        """Have ``resume`` called once when there is room again, or when another one may be the first."""
        self._waiting[resume] = None

    def may_be_first(self, resume: Resume) -> bool:
        """Say whether this connection is the first; if nobody is, it is from now on, until it leaves."""
        if self._first is None:
            self._first = resume
        return self._first == resume

    def leave(self, resume: Resume) -> None:
        """Wait no longer, and let another one be the first. May be called by one who does neither."""
        self._waiting.pop(resume, None)
        if self._first == resume:
            self._first = None
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for resume in waiting:
            resume()


# So many mistakes cost nothing: people and misconfigured programs make them.
_FREE_FAILURES: Final = 3
_DELAY_S_MIN: Final = 0.1
_DELAY_S_MAX: Final = 3.0
# The address starts anew after so long without a failure.
_FORGET_AFTER_S: Final = 60.0
# More addresses than that are not remembered; the one that has been quiet the longest is forgotten.
_ADDRESSES_MAX: Final = 10_000


class LoginThrottle:
    """Counts failed logins by address and says how long to hold back the answer. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Address -> failures and the time of the last one, the latest last.
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def failed(self, address: str) -> float:
        """Count a failure; return the seconds after which to answer."""
        now = self._clock()
        count, failed_at = self._failures.pop(address, (0, now))
        count = 1 if now - failed_at > _FORGET_AFTER_S else count + 1
        self._failures[address] = (count, now)
        if len(self._failures) > _ADDRESSES_MAX:
            self._failures.popitem(last=False)
        if count <= _FREE_FAILURES:
            return 0.0
        # Beyond a few doublings it is the longest delay anyway.
        return min(_DELAY_S_MIN * (1 << min(count - _FREE_FAILURES - 1, 10)), _DELAY_S_MAX)
