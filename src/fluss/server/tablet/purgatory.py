"""The purgatory: fetches that are delayed until there are records for them, at no cost while they wait.

A delayed fetch registers once with each of its buckets and sleeps. A bucket that advances wakes only the fetches that
wait for it; each notes which of its buckets have news, so that no idle bucket is looked at again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fluss.errors import FlussError
from fluss.server.tablet.buckets import HostedBucket
from fluss.server.tablet.log_reads import BucketData, Selection
from fluss.storage.log.tablet import LogTablet


class BucketCursor:
    """Where a fetch stands in one bucket."""

    __slots__ = (
        "bytes_max",
        "delayed_fetch",
        "high_watermark",
        "hosted",
        "is_ready",
        "offset",
        "outcome",
        "selection",
        "size_bytes",
        "skipped_to",
    )

    def __init__(
        self, hosted: HostedBucket, log: LogTablet, offset: int, bytes_max: int, selection: Selection | None
    ) -> None:
        self.hosted = hosted
        self.offset = offset
        self.bytes_max = bytes_max
        self.selection = selection
        # As the log was when this fetch last looked; what was there by then has been seen.
        self.high_watermark = log.offset_high_watermark
        self.size_bytes = 0
        self.is_ready = offset < self.high_watermark
        self.outcome: BucketData | FlussError | None = None
        # Everything before this offset was skipped by the filter, if anything was.
        self.skipped_to: int | None = None
        self.delayed_fetch: DelayedFetch | None = None

    def bucket_advanced(self) -> None:
        if self.delayed_fetch is not None:
            self.delayed_fetch.cursor_advanced(self)


class DelayedFetch:
    """One fetch that waits until ``bytes_missing`` bytes have come, or for one of its buckets to disappear.

    Bytes are counted by the growth of the logs: that is cheap, and at worst a little early, when bytes are in the log
    but not visible yet.
    """

    __slots__ = ("_bytes_missing", "_wake_up", "advanced")

    def __init__(self, bytes_missing: int) -> None:
        self._bytes_missing = bytes_missing
        self._wake_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The cursors that have something to read now and had nothing before.
        self.advanced: list[BucketCursor] = []

    def cursor_advanced(self, cursor: BucketCursor) -> None:
        log = cursor.hosted.tablet
        if log is not None and log.offset_high_watermark <= cursor.offset:
            return  # The client is ahead: it has seen records that are not visible (any more).
        if not cursor.is_ready:
            cursor.is_ready = True
            self.advanced.append(cursor)
        if log is None:
            self.wake()
            return
        if self._bytes_missing > 1:
            size_bytes = log.size_bytes
            # Retention may have made the log smaller; a bucket that advanced has at least one byte more.
            self._bytes_missing -= max(1, size_bytes - cursor.size_bytes)
            cursor.size_bytes = size_bytes
        if self._bytes_missing <= 1:
            self.wake()

    def wake(self) -> None:
        if not self._wake_up.done():
            self._wake_up.set_result(None)

    async def sleep(self, cursors: Sequence[BucketCursor], timeout_s: float) -> None:
        """Register with the buckets, sleep, and take the registrations back, also when cancelled."""
        timer = asyncio.get_running_loop().call_later(timeout_s, self.wake)
        try:
            for cursor in cursors:
                cursor.delayed_fetch = self
                cursor.hosted.add_waiter(cursor)
                log = cursor.hosted.tablet
                if self._bytes_missing > 1 and log is not None:
                    cursor.size_bytes = log.size_bytes
                if log is None or log.offset_high_watermark > cursor.high_watermark:
                    self.cursor_advanced(cursor)
            await self._wake_up
        finally:
            timer.cancel()
            for cursor in cursors:
                cursor.hosted.remove_waiter(cursor)
                cursor.delayed_fetch = None


class FetchPurgatory:
    """All delayed fetches, and answers that are held back. When it is closed they wake up, and none waits any more.

    A fetch costs memory for each of its buckets while it waits, also for those that have failed and are answered with
    the others, so together they wait with ``buckets_max`` at most. A fetch that finds no room is to be answered without
    waiting.
    """

    def __init__(self, buckets_max: int, *, retry_answer_delay_ms: int) -> None:
        self._buckets_max = buckets_max
        self._retry_answer_delay_s = retry_answer_delay_ms / 1000
        self._bucket_count = 0
        self._delayed: set[DelayedFetch] = set()
        self._is_closed = False

    @property
    def delayed_count(self) -> int:
        return len(self._delayed)

    def has_room(self, bucket_count: int) -> bool:
        """Whether a fetch of so many buckets may wait."""
        return self._bucket_count + bucket_count <= self._buckets_max

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    async def wait(
        self, cursors: Sequence[BucketCursor], bytes_missing: int, timeout_s: float, *, failed_count: int = 0
    ) -> list[BucketCursor]:
        """Wait for records, at most ``timeout_s``; return the cursors that have something to read since.

        ``failed_count`` is how many buckets of the fetch have failed.
        """
        fetch = DelayedFetch(bytes_missing)
        self._delayed.add(fetch)
        bucket_count = len(cursors) + failed_count
        self._bucket_count += bucket_count
        try:
            if self._is_closed:
                fetch.wake()
            await fetch.sleep(cursors, timeout_s)
        finally:
            self._delayed.discard(fetch)
            self._bucket_count -= bucket_count
        return fetch.advanced

    async def hold_back(self) -> None:
        """Hold back an answer that says nothing but "try again", unless the server is shutting down.

        Some clients try again at once, without end.
        """
        await self.wait((), 1, self._retry_answer_delay_s)

    def close(self) -> None:
        """Wake all that wait: the server is shutting down."""
        self._is_closed = True
        for fetch in self._delayed:
            fetch.wake()
