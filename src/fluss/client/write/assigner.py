"""Which bucket a row without a bucket key goes to. Rows with one go where their key belongs: see ``splitter``.

An assigner serves one table, or one partition of it. Threads that use it at the same time may get the same bucket,
which does no harm.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Final

STICKY: Final = "sticky"
ROUND_ROBIN: Final = "round_robin"


class StickyAssigner:
    """Stays with a bucket until its batch is closed, so that batches get full; then another one, at random."""

    def __init__(self, bucket_count: int, rng: random.Random) -> None:
        self._rng = rng
        self._all_buckets = range(bucket_count)
        self._available: Collection[int] = self._all_buckets
        self.bucket_id = rng.randrange(bucket_count)

    def prefer(self, buckets: Collection[int]) -> None:
        """Choose from these buckets, because the others have no leader. If there are none, choose from all."""
        self._available = buckets or self._all_buckets

    def move(self) -> int:
        """Choose another bucket, if there is another one to choose."""
        others = [bucket_id for bucket_id in self._available if bucket_id != self.bucket_id]
        self.bucket_id = self._rng.choice(others or list(self._available))
        return self.bucket_id


class RoundRobinAssigner:
    """Takes the next bucket for every row, or for every Arrow batch; the first one is random."""

    def __init__(self, bucket_count: int, rng: random.Random) -> None:
        self._bucket_count = bucket_count
        self._next = rng.randrange(bucket_count)

    def take(self) -> int:
        bucket_id = self._next
        self._next = (bucket_id + 1) % self._bucket_count
        return bucket_id
