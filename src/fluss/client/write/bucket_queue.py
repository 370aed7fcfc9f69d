"""Encoded batches that wait to be sent to one bucket."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import Final

from fluss.client.write.batch import Batch
from fluss.client.write.physical_table import PhysicalTable

BACKOFF_S_MIN: Final = 0.1
BACKOFF_S_MAX: Final = 1.0
_BY_ORDER = attrgetter("order")


class Backoff:
    """Longer and longer pauses after failures, until something succeeds."""

    __slots__ = ("_pause_s", "until_s")

    def __init__(self) -> None:
        self._pause_s = 0.0
        self.until_s = 0.0

    def begin(self, now_s: float) -> None:
        """Something failed. Failures during a pause belong to the one that began it."""
        if now_s >= self.until_s:
            self._pause_s = min(max(self._pause_s * 2, BACKOFF_S_MIN), BACKOFF_S_MAX)
            self.until_s = now_s + self._pause_s

    def hold(self, until_s: float) -> None:
        """Pause at least that long, whether or not something failed."""
        self.until_s = max(self.until_s, until_s)

    def end(self) -> None:
        """Something succeeded."""
        self._pause_s = self.until_s = 0.0


class BucketQueue:
    """The batches of one bucket in the order in which they must arrive. Belongs to the event loop."""

    __slots__ = ("_order_next", "backoff", "bucket_id", "table", "waiting")

    def __init__(self, table: PhysicalTable, bucket_id: int) -> None:
        self.table = table
        self.bucket_id = bucket_id
        self.waiting: list[Batch] = []
        self.backoff = Backoff()
        self._order_next = 0

    def add(self, batch: Batch, now_s: float) -> None:
        """Put a new batch at the end."""
        batch.order = self._order_next
        batch.queued_at_s = now_s
        self._order_next += 1
        self.waiting.append(batch)

    def put_back(self, batch: Batch) -> None:
        """Put a batch that has to be sent again where it was, before all that came after it."""
        insort(self.waiting, batch, key=_BY_ORDER)
