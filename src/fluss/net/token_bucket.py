"""Token buckets: how much a client may do per second, with what was not used saved up for a moment.

A bucket fills at a rate up to its capacity. Taking is never refused: it may leave a debt, and the debt says how long to
wait. So a request that costs more than the bucket holds is possible, and is paid for afterwards; over any time the rate
holds exactly, plus one capacity and the last thing that was taken.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class TokenBucket:
    """One bucket, full at first. Times are seconds of a clock that never goes back, given by the caller."""

    __slots__ = ("_at_s", "_tokens", "capacity", "rate_per_s")

    def __init__(self, rate_per_s: float, capacity: float, now_s: float) -> None:
        assert rate_per_s > 0, "a bucket that never fills is none"
        assert capacity > 0
        self.rate_per_s = rate_per_s
        self.capacity = capacity
        self._tokens = capacity
        self._at_s = now_s

    def take(self, amount: float, now_s: float) -> float:
        """Take tokens, if need be on credit; return the seconds until the debt is paid."""
        self._fill(now_s)
        self._tokens -= amount
        return self._debt_s()

    def give_back(self, amount: float, now_s: float) -> None:
        """Put back what was taken for something that did not happen."""
        self._fill(now_s)
        self._tokens = min(self.capacity, self._tokens + amount)

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until there is no debt."""
        self._fill(now_s)
        return self._debt_s()

    def is_full(self, now_s: float) -> bool:
        """Whether it is as good as new: then it need not be remembered."""
        self._fill(now_s)
        return self._tokens >= self.capacity

    def change(self, rate_per_s: float, capacity: float, now_s: float) -> None:
        """Fill at another rate from now on; a debt stays, and is paid at the new rate."""
        self._fill(now_s)
        self.rate_per_s = rate_per_s
        self.capacity = capacity
        self._tokens = min(self._tokens, capacity)

    def _fill(self, now_s: float) -> None:
        self._tokens = min(self.capacity, self._tokens + (now_s - self._at_s) * self.rate_per_s)
        self._at_s = now_s

    def _debt_s(self) -> float:
        return max(0.0, -self._tokens / self.rate_per_s)


class RecentlyUsed(Generic[K]):
    """Buckets by key, the same rate for all. Of too many, the one that was used longest ago is forgotten."""

    def __init__(self, rate_per_s: float, capacity: float, *, count_max: int) -> None:
        self._rate_per_s = rate_per_s
        self._capacity = capacity
        self._count_max = count_max
        self._buckets: OrderedDict[K, TokenBucket] = OrderedDict()

    def get(self, key: K, now_s: float) -> TokenBucket:
        """Return the bucket of a key; a new one is full."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(self._rate_per_s, self._capacity, now_s)
            if len(self._buckets) > self._count_max:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return bucket

    def __len__(self) -> int:
        return len(self._buckets)

    def __iter__(self) -> Iterator[K]:
        return iter(self._buckets)
