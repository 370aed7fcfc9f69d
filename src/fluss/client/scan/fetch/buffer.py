"""What a scanner knows of its buckets: where it stands in each, and what has been fetched and not been read yet.

    Subscription     one bucket from one starting offset on
    Subscriptions    the current one of every bucket, as the user chose them
    FetchGroup       those that are fetched with one request
    LeaderQueue      the groups of one leader
    ScanBuffer       what has arrived: filled by the fetcher on the event loop, emptied by polls

Bytes are counted by received frame: a frame stays in memory until the last of its chunks is read or dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fluss.client.kernel.leaders import BucketKey
from fluss.client.kernel.runtime import is_blocking
from fluss.client.scan.fetch.fetch_messages import FetchRequests, FetchResponses
from fluss.errors import FlussError
from fluss.protocol.codec import Parts
from fluss.retry import FETCHES
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

    def park_read(self, read: Sequence[Subscription]) -> None:
        """Stand where subscriptions are that were read to their end, but not where others have taken their place."""
        with self._lock:
            # The read may have been given up on another thread while it came to the end of a bucket.
            ended = [each for each in read if self._current.get(each.bucket) is each]
            self._removed([each.bucket for each in ended])
            self._current.update((each.bucket, Subscription(each.bucket, each.position)) for each in ended)
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

    def __bool__(self) -> bool:
        """Whether anything is read."""
        return bool(self._current)

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


@dataclass(slots=True, eq=False)
class Frame:
    """Received memory that several chunks share."""

    byte_count: int
    chunk_count: int = 0


@dataclass(slots=True, eq=False)
class Chunk:
    """The records of one bucket in one frame: log batches, of which the last may be cut off, or one value batch."""

    subscription: Subscription
    frame: Frame
    records: memoryview
    # Where to go on after this chunk, which may be behind its last record when a filter has left records out. After
    # rows of a snapshot it is FROM_SNAPSHOT, except after the last ones: there it is the offset of the snapshot.
    offset_next: int
    # Whether the server has cut columns out.
    is_projected: bool
    # Whether these are rows of a snapshot.
    is_values: bool = False


class ScanBuffer:
    """Chunks in the order of their arrival, and the failures of buckets that have nothing to read because of them.

    Safe for use by several threads. ``has_room`` turns False at ``bytes_max``: it is up to the fetcher to stop then,
    so what was already on its way comes on top. When there is room again, ``on_room`` is called once, on the thread
    that made room.
    """

    def __init__(self, bytes_max: int, on_room: Callable[[], None]) -> None:
        self._bytes_max = bytes_max
        self._on_room = on_room
        self._condition = threading.Condition(threading.Lock())
        self._chunks: deque[Chunk] = deque()
        self._failures: dict[Subscription, FlussError] = {}
        # Why nothing more will come of any bucket.
        self._final_failure: FlussError | None = None
        self._bytes_held = 0
        self._is_room_wanted = False
        self._is_closed = False
        # Counts everything a waiting poll should look at.
        self._news_count = 0
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()

    # The fetcher's side

    def hold(self, frame: Frame) -> None:
        """Count a frame whose chunks are about to be put."""
        with self._condition:
            self._bytes_held += frame.byte_count

    def put(self, chunks: Sequence[Chunk]) -> None:
        """Add the chunks of one frame that is held, all of them at once."""
        with self._condition:
            chunks[0].frame.chunk_count = len(chunks)
            self._chunks.extend(chunks)
            self._announce()

    def fail(self, subscription: Subscription, error: FlussError) -> None:
        """Have polls raise an error until ``recover`` or the end of the subscription."""
        with self._condition:
            if subscription.is_active:
                self._failures[subscription] = error
                self._announce()

    def recover(self, subscription: Subscription) -> None:
        with self._condition:
            self._failures.pop(subscription, None)

    def fail_all(self, error: FlussError) -> None:
        """Have polls raise an error for good, in turn with what was fetched before."""
        with self._condition:
            self._final_failure = error
            self._announce()

    def has_room(self) -> bool:
        """Whether more may be fetched; if not, ``on_room`` will tell when."""
        with self._condition:
            self._is_room_wanted = self._bytes_held >= self._bytes_max
            return not self._is_room_wanted

    def close(self) -> None:
        """Drop everything and end every wait."""
        with self._condition:
            self._is_closed = True
            self._chunks.clear()
            self._failures.clear()
            self._bytes_held = 0
            self._announce()

    def _announce(self) -> None:
        self._news_count += 1
        self._condition.notify_all()
        for loop, waiter in self._waiters:
            _settle_on(loop, waiter)
        self._waiters.clear()

    # The consumer's side

    @property
    def bytes_held(self) -> int:
        return self._bytes_held

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def news_count(self) -> int:
        """How much has happened so far. Read it before looking for data, and give it to ``wait`` if there was none."""
        return self._news_count

    @property
    def has_something(self) -> bool:
        """Whether there is anything to read, or to raise."""
        return bool(self._chunks or self._failures or self._final_failure or self._is_closed)

    def take(self) -> Chunk | None:
        """Remove the first chunk. The caller calls ``release`` when it has read the chunk."""
        with self._condition:
            return self._chunks.popleft() if self._chunks else None

    def behind(self, chunk: Chunk) -> Chunk | None:
        """Return the chunk behind another one, which may have been taken already, and leave it where it is."""
        with self._condition:
            try:
                place = self._chunks.index(chunk) + 1
            except ValueError:
                place = 0
            return self._chunks[place] if place < len(self._chunks) else None

    def release(self, chunk: Chunk) -> None:
        with self._condition:
            has_made_room = self._release(chunk)
        if has_made_room:
            self._on_room()

    def _release(self, chunk: Chunk) -> bool:
        chunk.frame.chunk_count -= 1
        if chunk.frame.chunk_count or self._is_closed:
            return False
        self._bytes_held -= chunk.frame.byte_count
        if not self._is_room_wanted or self._bytes_held >= self._bytes_max:
            return False
        self._is_room_wanted = False
        return True

    def drop_ended(self) -> None:
        """Drop what belongs to subscriptions that have ended."""
        with self._condition:
            dropped = [chunk for chunk in self._chunks if not chunk.subscription.is_active]
            if dropped:
                self._chunks = deque(chunk for chunk in self._chunks if chunk.subscription.is_active)
            self._failures = {key: error for key, error in self._failures.items() if key.is_active}
            has_made_room = sum(map(self._release, dropped)) > 0
        if has_made_room:
            self._on_room()

    def failure(self) -> FlussError | None:
        """Return a copy of the oldest failure, to be raised."""
        with self._condition:
            error = next(iter(self._failures.values()), self._final_failure)
        return None if error is None else error.copied()

    async def wait(self, news_count: int, timeout_s: float | None) -> bool:
        """Wait until there is more than ``news_count`` news; False if that takes longer than ``timeout_s``."""
        if is_blocking():
            return self.block(news_count, timeout_s)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._condition:
            if self._news_count != news_count or self._is_closed:
                return True
            self._waiters.add((loop, waiter))
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            return False
        finally:
            with self._condition:
                self._waiters.discard((loop, waiter))
        return True

    def block(self, news_count: int, timeout_s: float | None) -> bool:
        """Like ``wait``, for the calling thread."""
        with self._condition:
            return self._condition.wait_for(lambda: self._news_count != news_count or self._is_closed, timeout_s)


def _settle_on(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    def settle() -> None:
        if not waiter.done():
            waiter.set_result(None)

    # A loop may be closed while something waits on it; then there is nothing left to wake.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)
