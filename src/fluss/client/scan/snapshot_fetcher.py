"""Reads the current rows of buckets into the buffer of a scanner, each bucket as it was at one moment.

Buckets are read side by side, a few at a time, and a bucket is asked for more only while the buffer has room:

    begun -> leader known -> session opened -> rows, rows, rows -> read: its changes follow from ``log_offset`` on

What has been received last is held back until the answer behind it is there. So a session that is lost while nobody
has seen any of its rows is opened again. A session that is lost later is a ``SnapshotLostError``: new rows would not
fit those already seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.leaders import LeaderSearch
from fluss.client.scan.buffer import Chunk, Frame, ScanBuffer
from fluss.client.scan.kv_session import BUSY_CODES, KvSession
from fluss.client.scan.subscription import FROM_SNAPSHOT, Subscription
from fluss.errors import ErrorCode, FlussError, NetworkError
from fluss.schema.table import TableBucket

# Buckets that are read at a time: enough to keep a server and the decoder busy.
_READS_MAX: Final = 4
# Sessions that are open at a time when they are opened ahead. A server has room for 200, for all its clients.
_SESSIONS_MAX: Final = 128
# First rows of a session that is opened ahead: small, because they wait in memory for their turn.
_AHEAD_BYTES_MAX: Final = 64 * 1024

logger = logging.getLogger(__name__)


class SnapshotLostError(FlussError):
    """The rows of a bucket can no longer be read as they were, and some of them have been read already (code 66)."""

    bucket: TableBucket


class Host(Protocol):
    """The fetcher of the scanner, as far as it is needed here."""

    def may_fetch(self) -> bool:
        """Whether somebody polls and the buffer has room; if not, ``SnapshotFetcher.go_on`` is called later."""

    def troubled(self, subscription: Subscription, error: FlussError) -> None:
        """Note an error of a bucket that will be tried again."""

    def recovered(self, subscription: Subscription) -> None:
        """Note that a bucket can be read again."""

    def fail(self, subscription: Subscription, error: FlussError) -> None:
        """Have polls raise an error of a bucket that will not be tried again."""

    def snapshot_read(self, subscription: Subscription, log_offset: int) -> None:
        """Take over a bucket whose rows are all in the buffer."""


class SnapshotFetcher:
    """Reads current rows for one scanner. Belongs to the event loop.

    ``opens_ahead`` opens the sessions of all buckets at once before most of them are read, so that the moments at
    which they are read lie close together. Otherwise a session is opened when its rows are needed.
    """

    def __init__(
        self,
        cluster: Cluster,
        leaders: LeaderSearch,
        buffer: ScanBuffer,
        host: Host,
        *,
        opens_ahead: bool,
        row_limit: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._leaders = leaders
        self._buffer = buffer
        self._host = host
        self._row_limit = row_limit
        self._bytes_max = cluster.config.scanner_log_fetch_max_bytes_for_bucket
        self._bytes_first = min(self._bytes_max, _AHEAD_BYTES_MAX) if opens_ahead else self._bytes_max
        self._session_slots = asyncio.Semaphore(_SESSIONS_MAX if opens_ahead else _READS_MAX)
        self._read_slots = asyncio.Semaphore(_READS_MAX)
        self._tasks: dict[Subscription, asyncio.Task[None]] = {}
        self._waiting: list[asyncio.Future[None]] = []

    def begin(self, subscriptions: Iterable[Subscription]) -> None:
        """Read the rows of these buckets, and hand them back when that is done."""
        for subscription in subscriptions:
            task = asyncio.ensure_future(self._read(subscription))
            self._tasks[subscription] = task
            task.add_done_callback(partial(self._finished, subscription))

    def drop(self, subscription: Subscription) -> None:
        """Stop reading a bucket, if its rows are being read."""
        task = self._tasks.get(subscription)
        if task is not None:
            task.cancel()

    def go_on(self) -> None:
        """Look again whether something may be fetched."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def close(self) -> None:
        """Stop everything, and give back what servers keep for it."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _finished(self, subscription: Subscription, task: asyncio.Task[None]) -> None:
        del self._tasks[subscription]
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug of ours. Without this, polls would wait for ever.
            logger.error("reading the rows of %s has failed", subscription.bucket, exc_info=error)
            self._host.fail(subscription, FlussError(f"Reading the rows of {subscription.bucket} failed: {error!r}"))

    async def _read(self, subscription: Subscription) -> None:
        log_offset = None
        async with self._session_slots:
            while log_offset is None:
                try:
                    log_offset = await self._read_once(subscription)
                except SnapshotLostError as error:
                    self._host.fail(subscription, error)
                    return
                except FlussError as error:
                    await self._pause(subscription, error)
        self._host.snapshot_read(subscription, log_offset)

    async def _read_once(self, subscription: Subscription) -> int:
        """Put the rows of one moment into the buffer, and return the offset of that moment."""
        await self._permission()
        leader_id = await self._leader(subscription)
        session = KvSession(self._cluster, leader_id, subscription.bucket)
        try:
            held = await session.open(bytes_max=self._bytes_first, row_limit=self._row_limit)
            subscription.snapshot_offset = session.log_offset
            if session.has_more:
                async with self._read_slots:
                    held = await self._read_rest(subscription, session, held)
            self._put(subscription, held, session.log_offset)
        except NetworkError:
            self._cluster.forget_server(leader_id)
            raise
        finally:
            await session.close()
        return session.log_offset

    async def _read_rest(self, subscription: Subscription, session: KvSession, held: memoryview) -> memoryview:
        """Read until the end, and return the last rows."""
        is_seen = False
        while session.has_more:
            await self._permission()
            try:
                following = await session.next(bytes_max=self._bytes_max)
            except FlussError as error:
                if error.error_code in BUSY_CODES:
                    await self._pause(subscription, error)
                    continue
                if is_seen:
                    raise _lost(subscription, error) from error
                raise
            self._put(subscription, held, FROM_SNAPSHOT)
            is_seen, held = True, following
        return held

    def _put(self, subscription: Subscription, records: memoryview, offset_next: int) -> None:
        self._host.recovered(subscription)
        frame = Frame(len(records))
        self._buffer.hold(frame)
        self._buffer.put([Chunk(subscription, frame, records, offset_next, is_projected=False, is_values=True)])

    async def _permission(self) -> None:
        """Wait until somebody polls and the buffer has room."""
        while not self._host.may_fetch():
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        # Whoever finds out first tells the others: nobody may come along to tell them.
        self.go_on()

    async def _leader(self, subscription: Subscription) -> int:
        leader_id = self._cluster.leader_of(subscription.bucket)
        if leader_id is None:
            errors = await self._leaders.find([subscription])
            if errors:
                raise errors[subscription]
            leader_id = self._cluster.leader_of(subscription.bucket)
            assert leader_id is not None, "found right before"
        return leader_id

    async def _pause(self, subscription: Subscription, error: FlussError) -> None:
        """Note what went wrong, and wait for a while, longer each time."""
        bucket = subscription.bucket
        logger.info("the rows of %s cannot be read now: %s", bucket, error.message)
        if error.stale_metadata or error.error_code == ErrorCode.FENCED_LEADER_EPOCH_EXCEPTION:
            self._cluster.forget_leaders(bucket.table_id, bucket.partition_id)
        self._host.troubled(subscription, error)
        await asyncio.sleep(subscription.next_pause_s())


def _lost(subscription: Subscription, cause: FlussError) -> SnapshotLostError:
    lost = SnapshotLostError(
        f"The rows of {subscription.bucket} cannot be read to their end: the server no longer has them as they were "
        f"when the read began ({cause.message}); read again, rows that came before may have changed since",
        ErrorCode.SCANNER_EXPIRED,
    )
    lost.bucket = subscription.bucket
    return lost
