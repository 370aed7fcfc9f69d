"""Reads the current rows of buckets into the buffer of a scanner, each bucket as it was at one moment.

Buckets are read side by side, a few at a time, and a bucket is asked for more only while the buffer has room:

    begun -> leader known -> session opened -> rows, rows, rows -> read: its changes follow from ``log_offset`` on

A leader that cannot return rows has copied them to remote storage before: then, and for users that prefer it, the
session is one of files.

What has been received last is held back until the answer behind it is there. So a session that is lost before the
consumer has seen any of its rows is opened again. A session that is lost later is a ``SnapshotLostError``: new rows
would not fit those already seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final, Protocol

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.leaders import find_leaders
from fluss.client.kernel.shared_calls import cancel_all
from fluss.client.scan.fetch.buffer import FROM_SNAPSHOT, Chunk, Frame, ScanBuffer, Subscription
from fluss.client.scan.fetch.kv_files import KvFileSession, SnapshotUnreadableError
from fluss.errors import CorruptMessageError, ErrorCode, FlussError, NetworkError
from fluss.protocol import api as apis
from fluss.protocol.bulk_messages import ScanKvResponse
from fluss.protocol.convert import raise_failure
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.table import TableBucket, TableInfo

# After these the same call may be made again. If it was a lost answer after all, the server refuses it.
_BUSY_CODES: Final = frozenset({ErrorCode.REQUEST_TIME_OUT, ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION})
# A server that does not answer forgets an abandoned session by itself, after some minutes.
_CLOSE_TIMEOUT_S: Final = 5.0
logger = logging.getLogger(__name__)
# Buckets that are read at a time: enough to keep a server and the decoder busy.
_READS_MAX: Final = 4
# Sessions that are open at a time when they are opened ahead. A server has room for 200, for all its clients.
_SESSIONS_MAX: Final = 128
# First rows of a session that is opened ahead: small, because they wait in memory for their turn.
_AHEAD_BYTES_MAX: Final = 64 * 1024


class SnapshotLostError(FlussError):
    """The rows of a bucket can no longer be read as they were, and some of them have been read already (code 66)."""

    bucket: TableBucket


class Host(Protocol):
    """The fetcher of the scanner, as far as it is needed here."""

    def may_fetch(self) -> bool:
        """Whether the consumer polls and the buffer has room; if not, ``SnapshotFetcher.resume`` is called later."""

    def note_error(self, subscription: Subscription, error: FlussError) -> None:
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
    which they are read lie close together. Otherwise a session is opened when its rows are needed. ``from_files`` reads
    snapshots of remote storage, whatever servers can do.
    """

    def __init__(
        self,
        cluster: Cluster,
        table_info: TableInfo,
        buffer: ScanBuffer,
        host: Host,
        *,
        opens_ahead: bool,
        row_limit: int | None = None,
        from_files: bool = False,
    ) -> None:
        self._from_files = from_files
        self._cluster = cluster
        self._info = table_info
        self._buffer = buffer
        self._host = host
        self._row_limit = row_limit
        # Who reads sessions ahead reads no changes behind them, which would bring rows of a while ago up to now.
        self._needs_rows_of_now = opens_ahead
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

    def resume(self) -> None:
        """Look again whether something may be fetched."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def close(self) -> None:
        """Stop everything, and give back what servers keep for it."""
        await cancel_all(list(self._tasks.values()))

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
                except (SnapshotLostError, SnapshotUnreadableError) as error:
                    self._host.fail(subscription, error)
                    return
                except FlussError as error:
                    await self._back_off(subscription, error)
        self._host.snapshot_read(subscription, log_offset)

    async def _read_once(self, subscription: Subscription) -> int:
        """Put the rows of one moment into the buffer, and return the offset of that moment."""
        await self._permission()
        leader_id = await self._leader(subscription)
        session: KvSession | KvFileSession | None = None
        try:
            session = await self._session(leader_id, subscription.bucket)
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
            if session is not None:
                await session.close()
        return session.log_offset

    async def _session(self, leader_id: int, bucket: TableBucket) -> KvSession | KvFileSession:
        """Return what the rows are read with: of now from the leader, or of a while ago from files."""
        is_offered = not self._from_files and await self._cluster.offers(leader_id, apis.SCAN_KV)
        if self._needs_rows_of_now or is_offered:
            return KvSession(self._cluster, leader_id, bucket)
        return KvFileSession(self._cluster, self._info.table_path, bucket)

    async def _read_rest(
        self, subscription: Subscription, session: KvSession | KvFileSession, held: memoryview
    ) -> memoryview:
        """Read until the end, and return the last rows."""
        is_seen = False
        while session.has_more:
            await self._permission()
            try:
                following = await session.next(bytes_max=self._bytes_max)
            except FlussError as error:
                if error.error_code in _BUSY_CODES:
                    await self._back_off(subscription, error)
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
        """Wait until the consumer polls and the buffer has room."""
        while not self._host.may_fetch():
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        # Wakes the reads of other buckets, too: ``resume`` may not be called again before they are needed.
        self.resume()

    async def _leader(self, subscription: Subscription) -> int:
        leader_id = self._cluster.leader_of(subscription.bucket)
        if leader_id is None:
            errors = await find_leaders(self._cluster, self._info, [subscription.bucket])
            if errors:
                raise errors[subscription.bucket]
            leader_id = self._cluster.leader_of(subscription.bucket)
            assert leader_id is not None, "found right before"
        return leader_id

    async def _back_off(self, subscription: Subscription, error: FlussError) -> None:
        """Note what went wrong, and wait for a while, longer each time."""
        bucket = subscription.bucket
        logger.debug("the rows of %s cannot be read now: %s", bucket, error.message)
        if error.stale_metadata or error.error_code == ErrorCode.FENCED_LEADER_EPOCH_EXCEPTION:
            self._cluster.forget_leaders(bucket.table_id, bucket.partition_id)
        self._host.note_error(subscription, error)
        await asyncio.sleep(subscription.next_backoff_s())


def _lost(subscription: Subscription, cause: FlussError) -> SnapshotLostError:
    lost = SnapshotLostError(
        f"The rows of {subscription.bucket} cannot be read to their end: the server no longer has them as they were "
        f"when the read began ({cause.message}); read again, rows that came before may have changed since",
        ErrorCode.SCANNER_EXPIRED,
    )
    lost.bucket = subscription.bucket
    return lost


class KvSession:
    """One scan session: the rows of one bucket as they were at one moment, batch after batch.

        open -> a snapshot at ``log_offset``, and its first rows
        next -> further rows, as long as ``has_more``; after the last ones the server has closed the session by itself
        close -> gives the snapshot up before its end

    A session lives on the server that opened it. After an error it cannot be continued: the server counts the calls,
    and one whose answer is lost cannot be repeated. The exception is a server that has no memory for an answer just
    now: it says so with one of ``_BUSY_CODES``, and has not counted the call. Belongs to the loop of the cluster; one
    call at a time.
    """

    def __init__(self, cluster: Cluster, leader_id: int, bucket: TableBucket) -> None:
        self._cluster = cluster
        self._leader_id = leader_id
        self._bucket = bucket
        self._scanner_id: bytes | None = None
        self._call_count = 0
        # Set by ``open``: every change before this offset is in the rows, and none from it on.
        self.log_offset = 0
        self.has_more = False

    async def open(self, *, bytes_max: int, row_limit: int | None = None) -> memoryview:
        """Pin the rows of now and return the first of them, about ``bytes_max`` bytes but at least one row.

        ``row_limit`` is for the whole session. The result is empty for an empty bucket. Raises 12, 20, 69 and the like.
        """
        request = pb.ScanKvRequest(
            bucket_scan_req=pb.PbScanReqForBucket(
                table_id=self._bucket.table_id,
                partition_id=self._bucket.partition_id,
                bucket_id=self._bucket.bucket_id,
                limit=row_limit,
            ),
            call_seq_id=0,
            batch_size_bytes=bytes_max,
        )
        opening = asyncio.ensure_future(self._ask(request))
        try:
            response = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The server opens the session all the same, and has room for few of them.
            with contextlib.suppress(FlussError):
                self._accept(await opening)
            await self.close()
            raise
        records = self._accept(response)
        if response.log_offset is None or response.log_offset < 0:
            raise CorruptMessageError(f"a server has opened {self._bucket} without saying at which offset")
        self.log_offset = response.log_offset
        return records

    async def next(self, *, bytes_max: int) -> memoryview:
        """Return further rows; only while ``has_more``. After an error the session is gone, except for _BUSY_CODES."""
        assert self._scanner_id is not None, "there is nothing more"
        request = pb.ScanKvRequest(
            scanner_id=self._scanner_id, call_seq_id=self._call_count + 1, batch_size_bytes=bytes_max
        )
        try:
            response = await self._ask(request)
        except FlussError as error:
            if error.error_code not in _BUSY_CODES:
                self._scanner_id = None
            raise
        self._call_count += 1
        return self._accept(response)

    async def close(self) -> None:
        """Tell the server, if it still keeps the session, to drop it. Never fails; may be called again."""
        scanner_id, self._scanner_id = self._scanner_id, None
        self.has_more = False
        if scanner_id is None:
            return
        request = pb.ScanKvRequest(scanner_id=scanner_id, close_scanner=True)
        try:
            await self._cluster.request(self._leader_id, apis.SCAN_KV, request, timeout_s=_CLOSE_TIMEOUT_S)
        except FlussError as error:
            logger.debug("the scan session of %s was not closed: %s", self._bucket, error.message)

    async def _ask(self, request: pb.ScanKvRequest) -> ScanKvResponse:
        response = await self._cluster.request(self._leader_id, apis.SCAN_KV, request)
        raise_failure(response)
        return response

    def _accept(self, response: ScanKvResponse) -> memoryview:
        self.has_more = bool(response.has_more_results)
        if response.scanner_id is not None:
            self._scanner_id = bytes(response.scanner_id)
        records = response.records_view
        if not self.has_more:
            self._scanner_id = None
        elif self._scanner_id is None or not records:
            # Without this, a broken server could be asked for ever.
            raise CorruptMessageError(f"a server has announced more rows of {self._bucket} and sent none")
        return records
