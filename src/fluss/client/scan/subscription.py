"""Which buckets a scanner reads, where it stands in each of them, and which of them are fetched together.

Subscription     one bucket from one starting offset on
Subscriptions    the current one of every bucket, as the user chose them
FetchGroup       those that are fetched with one request
LeaderQueue      the groups of one leader
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from fluss.client.kernel.leaders import BucketKey
from fluss.client.kernel.retry import FETCHES
from fluss.client.scan.fetch_messages import FetchRequests, FetchResponses
from fluss.errors import FlussError
from fluss.protocol.codec import Parts
from fluss.schema.table import TableBucket

# The place before the log: first the rows that a bucket has now, then its changes from exactly there. Only inside this
# package; no server and no user sees it.
FROM_SNAPSHOT: Final = -3


class Subscription:
    """One bucket, read from one starting offset on.

    Subscribing again ends a subscription and begins another one. So what still arrives for the old one, buffered or on
    its way, is told apart by ``is_active``, and cannot be taken for data of the new one.
    """

    __slots__ = (
        "bucket",
        "failure_count",
        "group",
        "is_active",
        "is_damaged",
        "is_snapshot_begun",
        "last_error",
        "offset_fetch",
        "offset_stop",
        "position",
        "request_entry",
        "snapshot_offset",
    )

    def __init__(self, bucket: TableBucket, offset: int, offset_stop: int | None = None) -> None:
        self.bucket = bucket
        # Nothing is fetched from here on; None if there is no end.
        self.offset_stop = offset_stop
        # The offset of the next record the consumer gets; EARLIEST_OFFSET until the first one is known, FROM_SNAPSHOT
        # until all rows of a snapshot have been read. Moved by the consumer only.
        self.position = offset
        self.is_active = True
        # Whether the consumer has had rows of the snapshot; then it must be the same one to its end.
        self.is_snapshot_begun = False
        # Which changes are in the rows of the snapshot: all before this offset. Known before the first of the rows.
        self.snapshot_offset: int | None = None
        # Whether the records at the position cannot be decoded. Nothing behind them is read, then.
        self.is_damaged = False
        # The rest belongs to the fetcher, on the event loop. How far records have been fetched:
        self.offset_fetch = offset
        self.request_entry: bytes | None = None
        self.group: FetchGroup | None = None
        # Tries that failed since the last one that did not, and why the last one failed.
        self.failure_count = 0
        self.last_error: FlussError | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether there is any use in more records."""
        return self.is_active and not self.is_damaged

    @property
    def is_fetched(self) -> bool:
        """Whether all records before the stop have been fetched."""
        return self.offset_stop is not None and self.offset_fetch >= self.offset_stop

    @property
    def key(self) -> BucketKey:
        return self.bucket.partition_id, self.bucket.bucket_id

    def entry(self, requests: FetchRequests) -> bytes:
        """Return the part of a fetch request for this bucket; it is the same until the offset changes."""
        if self.request_entry is None:
            self.request_entry = requests.entry(self.bucket, self.offset_fetch)
        return self.request_entry

    def next_backoff_s(self) -> float:
        """Return how long to wait before the next try, longer after each failure."""
        self.failure_count += 1
        return FETCHES.pause_s(self.failure_count)

    def __repr__(self) -> str:
        return f"Subscription({self.bucket}, position={self.position}, is_active={self.is_active})"


class Subscriptions:
    """The current subscription of every bucket, in the order in which they began. May be shared by threads.

    ``on_change`` is told which subscriptions are to be fetched from now on, and which ones have ended.
    """

    def __init__(self, on_change: Callable[[Sequence[Subscription], Sequence[Subscription]], None]) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._current: dict[TableBucket, Subscription] = {}

    def begin(
        self, offsets: Mapping[TableBucket, int], stops: Mapping[TableBucket, int] | None = None
    ) -> list[Subscription]:
        """Read buckets from offsets on. What was read of them before, and is still under way, is dropped.

        Nothing is fetched from the ``stops`` on, where there are any, except what comes along with records before.
        """
        begun, ended = self._replace(offsets, stops or {})
        self._on_change(begun, ended)
        return begun

    def park(self, offsets: Mapping[TableBucket, int]) -> None:
        """Stand at offsets of buckets like ``begin``, but have nothing fetched from there."""
        _, ended = self._replace(offsets, {})
        self._on_change((), ended)

    def end(self, buckets: Iterable[TableBucket]) -> None:
        """Read buckets no more; those that are not read anyway do not matter."""
        with self._lock:
            ended = self._removed(buckets)
        self._on_change((), ended)

    def _replace(
        self, offsets: Mapping[TableBucket, int], stops: Mapping[TableBucket, int]
    ) -> tuple[list[Subscription], list[Subscription]]:
        begun = [Subscription(bucket, offset, stops.get(bucket)) for bucket, offset in offsets.items()]
        with self._lock:
            ended = self._removed(offsets)
            self._current.update((subscription.bucket, subscription) for subscription in begun)
        return begun, ended

    def _removed(self, buckets: Iterable[TableBucket]) -> list[Subscription]:
        removed = [found for bucket in buckets if (found := self._current.pop(bucket, None)) is not None]
        for subscription in removed:
            subscription.is_active = False
        return removed

    def positions(self) -> dict[TableBucket, int]:
        """Return the offset of the next record of every bucket; FROM_SNAPSHOT where rows come first."""
        with self._lock:
            return {bucket: subscription.position for bucket, subscription in self._current.items()}

    def amid_snapshot(self) -> TableBucket | None:
        """Return a bucket of whose snapshot the consumer has had some rows but not all, if there is one."""
        with self._lock:
            for bucket, subscription in self._current.items():
                if subscription.is_snapshot_begun and subscription.position == FROM_SNAPSHOT:
                    return bucket
        return None


class FetchGroup:
    """Buckets of one leader that are fetched with one request, in order.

    Buckets whose records have arrived go to the end, so that all get their turn when a response cannot hold the
    records of all of them.
    """

    __slots__ = ("_request", "responses", "subscriptions", "task")

    def __init__(self) -> None:
        self.subscriptions: dict[Subscription, None] = {}
        self.responses = FetchResponses()
        # What waits for the answer to the request, while there is one.
        self.task: asyncio.Task[None] | None = None
        self._request: Parts | None = None

    def request(self, requests: FetchRequests) -> Parts:
        """Return the encoded request; it is the same until something changes."""
        if self._request is None:
            self._request = requests.request(
                [each.request_entry or each.entry(requests) for each in self.subscriptions]
            )
        return self._request

    def add(self, subscriptions: Iterable[Subscription]) -> None:
        for subscription in subscriptions:
            self.subscriptions[subscription] = None
            subscription.group = self
        self.responses.forget()
        self._request = None

    def remove(self, subscription: Subscription) -> None:
        del self.subscriptions[subscription]
        subscription.group = None
        self._request = None

    def move_on(self, subscription: Subscription, offset: int) -> None:
        """Fetch a bucket from another offset next time, after all others."""
        del self.subscriptions[subscription]
        self.subscriptions[subscription] = None
        subscription.offset_fetch = offset
        subscription.request_entry = None
        self._request = None

    def forget_request(self) -> None:
        self._request = None


class LeaderQueue:
    """The buckets of one leader: in groups that are under way, and in one that waits to be sent."""

    __slots__ = ("out_count", "server_id", "waiting")

    def __init__(self, server_id: int) -> None:
        self.server_id = server_id
        self.out_count = 0
        self.waiting: FetchGroup | None = None

    def wait(self, group: FetchGroup) -> None:
        """Let a group be part of the next request."""
        if self.waiting is None:
            self.waiting = group
        elif group is not self.waiting:
            self.waiting.add(group.subscriptions)
