"""Loops over a scanner: what a poll has returned, handed out one by one.

A scanner stands where its loop stands, not where its last poll does: what was polled and not handed out counts as not
read. It is handed out by the next loop, and goes back into the buffer when the scanner is used in another way.
"""

from __future__ import annotations

import operator
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fluss.client.scan.fetch.buffer import FROM_SNAPSHOT, Subscription
from fluss.client.scan.fetch.polling import Runs
from fluss.client.scan.records import RecordRun
from fluss.schema.table import TableBucket


@dataclass(frozen=True, slots=True, eq=False)
class PolledRun:
    """A run of a poll, and the items that it is handed out as: one for each record, or one for all of them."""

    subscription: Subscription
    run: RecordRun
    # The rows as they came: those of the run are dropped when they are converted.
    batch: pa.RecordBatch
    item_count: int
    # Knows how many are left. Threads may share it: each item goes to one of them.
    items: Iterator[Any]

    @property
    def used_count(self) -> int:
        return self.item_count - operator.length_hint(self.items)

    @property
    def is_unused(self) -> bool:
        return self.subscription.is_active and self.used_count < self.item_count

    @property
    def position(self) -> int:
        """Where the first unused item stands; FROM_SNAPSHOT for rows of a snapshot."""
        return FROM_SNAPSHOT if self.run.is_snapshot else self._offset(self.used_count)

    def rest(self) -> RecordRun:
        """Return the records that were not used."""
        run, first = self.run, self.used_count
        return RecordRun(
            run.bucket,
            run.base_offset if run.is_snapshot else self._offset(first),
            run.timestamp_ms,
            self.batch.slice(first),
            run.data_types,
            None if run.change_types is None else run.change_types[first:],
            None if run.offsets is None else run.offsets[first:],
        )

    def _offset(self, index: int) -> int:
        return self.run.base_offset + index if self.run.offsets is None else int(self.run.offsets[index])


class Unused:
    """What polls of a loop have returned and the loop has not handed out yet. May be shared by threads.

    ``items_of`` makes the items of a run.
    """

    def __init__(self, items_of: Callable[[RecordRun], Sequence[Any]]) -> None:
        self._items_of = items_of
        self._lock = threading.Lock()
        self._polled: deque[PolledRun] = deque()

    def __bool__(self) -> bool:
        return bool(self._polled)

    def add(self, runs: Runs) -> None:
        """Take what a poll has returned, all of it or nothing."""
        polled = []
        for subscription, run in runs:
            assert run.batch is not None
            batch, items = run.batch, self._items_of(run)
            polled.append(PolledRun(subscription, run, batch, len(items), iter(items)))
        self._polled.extend(polled)

    def first(self) -> PolledRun | None:
        """Return the first run that has something unused, and forget those before it.

        The loop hands out its ``items`` as long as its ``subscription`` is active: a bucket may be read no more.
        """
        with self._lock:
            while self._polled and not self._polled[0].is_unused:
                self._polled.popleft()
            return self._polled[0] if self._polled else None

    def positions(self) -> dict[TableBucket, int]:
        """Return where each bucket stands that has something here; FROM_SNAPSHOT for rows of a snapshot."""
        found: dict[TableBucket, int] = {}
        with self._lock:
            for polled in self._polled:
                if polled.is_unused:
                    found.setdefault(polled.run.bucket, polled.position)
        return found

    def give_back(self) -> Runs:
        """Return what is here as a poll would have, and forget it."""
        with self._lock:
            unused = [polled for polled in self._polled if polled.is_unused]
            self._polled.clear()
        return [(polled.subscription, polled.rest()) for polled in unused]
