"""Loops over a scanner: what a poll has returned, handed out one by one.

A scanner stands where its loop stands, not where its last poll does: what was polled and not handed out counts as not
read. It is handed out by the next loop, and goes back into the buffer when the scanner is used in another way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fluss.client.scan.buffer import FROM_SNAPSHOT, Subscription
from fluss.client.scan.polling import Runs
from fluss.client.scan.records import RecordRun
from fluss.schema.table import TableBucket


@dataclass(frozen=True, slots=True, eq=False)
class _Polled:
    """A run of a poll, with its rows as they came: those of a run are dropped when they are converted."""

    subscription: Subscription
    run: RecordRun
    batch: pa.RecordBatch

    def rest(self, index: int) -> RecordRun:
        """Return the records from one on."""
        run = self.run
        return RecordRun(
            run.bucket,
            self.offset(index),
            run.timestamp_ms,
            self.batch.slice(index),
            run.data_types,
            None if run.change_types is None else run.change_types[index:],
            None if run.offsets is None else run.offsets[index:],
        )

    def offset(self, index: int) -> int:
        run = self.run
        if run.is_snapshot:
            return run.base_offset
        return run.base_offset + index if run.offsets is None else int(run.offsets[index])


class Unused:
    """What polls of a loop have returned and the loop has not handed out yet. May be shared by threads.

    ``items_of`` makes the items of a run that the loop hands out: one for each record, or one for all of them.
    """

    def __init__(self, items_of: Callable[[RecordRun], Sequence[Any]]) -> None:
        self._items_of = items_of
        self._items: deque[tuple[_Polled, int, Any]] = deque()

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, runs: Runs) -> None:
        """Take what a poll has returned."""
        for subscription, run in runs:
            assert run.batch is not None
            polled = _Polled(subscription, run, run.batch)
            self._items.extend([(polled, index, item) for index, item in enumerate(self._items_of(run))])

    def take(self) -> Iterator[Any]:
        """Hand out one item after the other, as long as there are any, except of buckets that are not read any more."""
        items = self._items
        while items:
            try:
                polled, _, item = items.popleft()
            except IndexError:
                # Another thread was faster.
                return
            if polled.subscription.is_active:
                yield item

    def positions(self) -> dict[TableBucket, int]:
        """Return where each bucket stands that has something here; FROM_SNAPSHOT for rows of a snapshot."""
        found: dict[TableBucket, int] = {}
        for polled, index, _ in list(self._items):
            if polled.subscription.is_active and polled.run.bucket not in found:
                found[polled.run.bucket] = FROM_SNAPSHOT if polled.run.is_snapshot else polled.offset(index)
        return found

    def give_back(self) -> Runs:
        """Return what is here as a poll would have, and forget it."""
        runs: Runs = []
        last: _Polled | None = None
        while self._items:
            polled, index, _ = self._items.popleft()
            if polled is not last:
                runs.append((polled.subscription, polled.rest(index)))
                last = polled
        return runs
