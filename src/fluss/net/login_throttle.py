"""Makes guessing passwords slow: the more logins from one address have failed lately, the longer the answer takes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

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
