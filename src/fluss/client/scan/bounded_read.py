"""Reading to the end: everything from where a scanner stands up to the latest offsets at the beginning of the read.

A bucket is done when its position has reached its stop, whether or not the last records before the stop were ever
delivered: batches may be empty, or left out by a filter. A bucket that begins with the rows of a snapshot is not done
before the last of them; the snapshot may well be beyond the stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.table_calls import bucket_offsets
from fluss.client.scan.polling import Poller, Runs
from fluss.client.scan.reader import BatchReader
from fluss.client.scan.records import RecordRun
from fluss.client.scan.subscription import FROM_SNAPSHOT, Subscription
from fluss.errors import FlussError, RequestTimeoutError
from fluss.schema.offsets import EARLIEST_OFFSET, OffsetSpec
from fluss.schema.table import TableBucket, TablePath

# How long one poll of a bounded read waits before it looks whether there is still hope.
_POLL_TIMEOUT_S: Final = 0.5
# What one step returns at most, so that a read in batches needs no more memory.
BATCHES_PER_POLL_MAX: Final = 100
BYTES_PER_POLL_MAX: Final = 64 * 1024 * 1024


async def bounds(
    cluster: Cluster, path: TablePath, starts: Mapping[TableBucket, int]
) -> dict[TableBucket, tuple[int, int]]:
    """Return where to begin and where to stop in each bucket that has something in between, or a snapshot."""
    latest = await bucket_offsets(cluster, path, starts, OffsetSpec.latest())
    for bucket, start in starts.items():
        if start > latest[bucket]:
            raise FlussError(f"Offset {start} of {bucket} of {path} is out of range: its log ends at {latest[bucket]}")
    # A log may have an end and nothing before it.
    unresolved = [bucket for bucket, start in starts.items() if start == EARLIEST_OFFSET and latest[bucket] > 0]
    earliest = await bucket_offsets(cluster, path, unresolved, OffsetSpec.earliest())
    resolved = {bucket: _resolved(start, earliest.get(bucket, 0)) for bucket, start in starts.items()}
    return {bucket: (start, latest[bucket]) for bucket, start in resolved.items() if start < latest[bucket]}


def _resolved(start: int, earliest: int) -> int:
    return earliest if start == EARLIEST_OFFSET else start


class BoundedRead:
    """One pass over some subscriptions, each up to its own stop.

    ``on_done`` is told of subscriptions that have reached their stops and are to be ended. ``patience_s`` is how long
    the read waits while nothing at all happens before it fails; pauses of the consumer do not count.
    """

    def __init__(
        self,
        poller: Poller,
        reader: BatchReader,
        stops: Mapping[Subscription, int],
        on_done: Callable[[list[Subscription]], None],
        *,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._poller = poller
        self._reader = reader
        self._stops = dict(stops)
        self._on_done = on_done
        self._patience_s = patience_s
        self._clock = clock
        self._waited_s = 0.0
        self._has_moved = False

    @property
    def is_done(self) -> bool:
        return not self._stops

    @property
    def unfinished(self) -> list[Subscription]:
        return list(self._stops)

    def runs(self) -> Iterator[RecordRun]:
        """Yield everything, blocking."""
        while not self.is_done:
            yield from self.step()

    async def runs_async(self) -> list[RecordRun]:
        """Return everything."""
        runs: list[RecordRun] = []
        while not self.is_done:
            runs += await self.step_async()
        return runs

    def step(self) -> list[RecordRun]:
        """Read some of it, blocking; there may be nothing for a while."""
        begun_s = self._clock()
        return self._taken(self._poller.poll(self._collect, _POLL_TIMEOUT_S), begun_s)

    async def step_async(self) -> list[RecordRun]:
        """Like ``step``, without blocking the event loop."""
        begun_s = self._clock()
        return self._taken(await self._poller.poll_async(self._collect, _POLL_TIMEOUT_S), begun_s)

    def restart(self, subscription: Subscription, stop: int) -> None:
        """Read a bucket again, with a new subscription, instead of the one it had."""
        self._stops = {other: at for other, at in self._stops.items() if other.bucket != subscription.bucket}
        self._stops[subscription] = stop

    def _collect(self, runs: Runs) -> bool:
        done: list[Subscription] = []
        try:
            self._read_some(runs, done)
        finally:
            if done:
                self._on_done(done)
        return self.is_done

    def _read_some(self, runs: Runs, done: list[Subscription]) -> None:
        byte_count = 0
        while self._stops and len(runs) < BATCHES_PER_POLL_MAX and byte_count < BYTES_PER_POLL_MAX:
            step = self._reader.next_run(offset_stop=self._stops.__getitem__)
            if step is None:
                return
            subscription, run = step
            self._has_moved = True
            if run is not None:
                assert run.batch is not None
                byte_count += run.batch.nbytes
                runs.append((subscription, run))
            if subscription.position >= self._stops[subscription]:
                del self._stops[subscription]
                # From now on the reader passes over what else has been fetched for it.
                subscription.is_active = False
                done.append(subscription)

    def _taken(self, runs: Runs, begun_s: float) -> list[RecordRun]:
        self._waited_s = 0.0 if self._has_moved else self._waited_s + self._clock() - begun_s
        self._has_moved = False
        if self._waited_s > self._patience_s:
            raise self._no_progress()
        return [run for _, run in runs]

    def _no_progress(self) -> FlussError:
        for subscription in self._stops:
            if subscription.trouble is not None:
                return subscription.trouble
        subscription, stop = next(iter(self._stops.items()))
        if subscription.position == FROM_SNAPSHOT:
            return RequestTimeoutError(f"No rows of {subscription.bucket} came for {self._patience_s:g} s")
        return RequestTimeoutError(
            f"No records of {subscription.bucket} came for {self._patience_s:g} s; it is at offset "
            f"{subscription.position} and should reach {stop}"
        )
