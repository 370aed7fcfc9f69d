"""Keeps the buffer of a scanner filled: asks the leaders of its buckets for records, again and again.

Every leader gets one request for all its buckets. Its answer is followed by the next request at once, while the
records wait in the buffer to be decoded: so the server is never idle as long as the buffer has room. Only buckets
that come in while a request is under way, because they are new or have been moved, do not wait for its answer but
get a request of their own, if there is none yet.

    subscribed -> leader known -> in a group of its queue -> fetched -> ... until unsubscribed, or until its stop
                  leader unknown -> metadata is read -^
                  answered with an error -> backoff -> leader looked up again
                  in remote storage -> read from there -> leader looked up again
                  current rows come first -> they are read by the SnapshotFetcher -> leader looked up
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.leaders import BucketKey, find_leaders
from fluss.client.kernel.shared_calls import cancel_all
from fluss.client.scan.fetch.buffer import (
    FROM_SNAPSHOT,
    Chunk,
    FetchGroup,
    Frame,
    LeaderQueue,
    ScanBuffer,
    Subscription,
)
from fluss.client.scan.fetch.fetch_messages import ENCODED_FETCH_LOG, FetchRequests, RequestForm
from fluss.client.scan.fetch.remote import RemoteLog
from fluss.client.scan.fetch.snapshot_fetcher import SnapshotFetcher
from fluss.errors import CorruptRecordError, ErrorCode, FlussError, RequestTimeoutError, error_for_code
from fluss.protocol.bulk_messages import FetchedBucket
from fluss.record.log_batch import measure_batches
from fluss.schema.table import TableInfo

# One under way, and one for buckets that came in meanwhile.
_REQUESTS_PER_SERVER_MAX: Final = 2
# Nothing is fetched for a scanner that was not polled for so long.
_UNPOLLED_S_MAX: Final = 60.0
# A server that answers at once although there is nothing new is asked again after this.
_SILENCE_PAUSE_S: Final = 0.02

# Errors of a bucket that pass; polls do not raise them.
_PASSING_CODES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.LOG_STORAGE_EXCEPTION,
        ErrorCode.KV_STORAGE_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        ErrorCode.FENCED_LEADER_EPOCH_EXCEPTION,
        ErrorCode.STORAGE_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
        # Of scan sessions whose rows the consumer has not seen; they are opened again.
        ErrorCode.SCANNER_EXPIRED,
        ErrorCode.UNKNOWN_SCANNER_ID,
        ErrorCode.INVALID_SCAN_REQUEST,
        ErrorCode.TOO_MANY_SCANNERS,
    }
)
# Errors of a bucket after which its leader is looked up again.
_MOVED_CODES: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        ErrorCode.INVALID_COORDINATOR_EXCEPTION,
        ErrorCode.FENCED_LEADER_EPOCH_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
    }
)

logger = logging.getLogger(__name__)


class OffsetOutOfRangeError(FlussError):
    """A bucket does not have the records that were asked for: no longer, or not yet."""


class Fetcher:
    """Fetches for one scanner. Everything runs on the event loop of the client, except where it says otherwise.

    ``rows_only`` reads snapshots and not the changes behind them. Their sessions are opened ahead then, and have at
    most ``row_limit`` rows each. ``from_files`` reads snapshots of remote storage, whatever servers can do.
    """

    def __init__(
        self,
        cluster: Cluster,
        table_info: TableInfo,
        requests: FetchRequests,
        buffer: ScanBuffer,
        remote: RemoteLog,
        *,
        loop: asyncio.AbstractEventLoop,
        rows_only: bool = False,
        row_limit: int | None = None,
        from_files: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._path = table_info.table_path
        self._table_id = table_info.table_id
        self._info = table_info
        self._requests = requests
        self._buffer = buffer
        self._remote = remote
        self._snapshots = SnapshotFetcher(
            *(cluster, table_info, buffer, self), opens_ahead=rows_only, row_limit=row_limit, from_files=from_files
        )
        self._rows_only = rows_only
        self._loop = loop
        self._clock = clock
        config = cluster.config
        self._timeout_s = (config.request_timeout_ms + config.scanner_log_fetch_wait_max_time_ms) / 1000
        self._by_key: dict[BucketKey, Subscription] = {}
        self._queues: dict[int, LeaderQueue] = {}
        # Buckets whose leader is not known.
        self._leaderless: dict[Subscription, None] = {}
        self._is_searching = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_idle = True
        self._polled_s = float("-inf")
        self._is_closed = False
        # Told that a partition was dropped, by a scanner that lets go of those; otherwise polls raise it.
        self.on_missing_partition: Callable[[], None] | None = None

    # From any thread

    def note_poll(self) -> None:
        """Say that the consumer is polling: only then anything is fetched."""
        # ``may_fetch`` sets ``_is_idle`` before it looks at the time, here it is the other way round. So either the
        # loop sees this poll and fetches, or this thread sees that the loop is idle and wakes it.
        self._polled_s = self._clock()
        if self._is_idle:
            self._call_soon(self._pump)

    def resume(self) -> None:
        """Go on after the buffer was full."""
        self._call_soon(self._resume)

    def pause(self) -> None:
        """Fetch nothing more until the next poll."""
        self._polled_s = float("-inf")

    def change(self, begun: Sequence[Subscription], ended: Sequence[Subscription]) -> None:
        """Fetch for some subscriptions from now on, and no more for others."""
        self._call_soon(self._change, begun, ended)

    def _call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            logger.debug("the event loop of the client has ended; %s is left undone", callback)

    # Subscriptions

    def _change(self, begun: Sequence[Subscription], ended: Sequence[Subscription]) -> None:
        if self._is_closed:
            return
        for subscription in ended:
            self._drop(subscription)
        for subscription in begun:
            self._by_key[subscription.key] = subscription
        self._snapshots.begin(subscription for subscription in begun if subscription.offset_fetch == FROM_SNAPSHOT)
        self._assign(subscription for subscription in begun if subscription.offset_fetch != FROM_SNAPSHOT)

    def _drop(self, subscription: Subscription) -> None:
        if self._by_key.get(subscription.key) is subscription:
            del self._by_key[subscription.key]
        group = subscription.group
        if group is not None:
            group.remove(subscription)
            if not group.subscriptions and group.task is not None:
                # The answer is of no use any more, and buckets that wait may need its place.
                group.task.cancel()
        self._leaderless.pop(subscription, None)
        self._snapshots.drop(subscription)

    def _assign(self, subscriptions: Iterable[Subscription]) -> None:
        """Give buckets to their leaders."""
        newcomers: dict[int, list[Subscription]] = {}
        for subscription in subscriptions:
            if not subscription.is_wanted or subscription.is_fetched:
                continue
            leader_id = self._cluster.leader_of(subscription.bucket)
            if leader_id is None:
                self._leaderless[subscription] = None
            else:
                newcomers.setdefault(leader_id, []).append(subscription)
        for leader_id, group_members in newcomers.items():
            queue = self._queues.setdefault(leader_id, LeaderQueue(leader_id))
            group = FetchGroup()
            group.add(group_members)
            queue.wait(group)
        self._pump()

    async def close(self) -> None:
        """Stop fetching. What is buffered is dropped, and waiting polls end."""
        self._is_closed = True
        await cancel_all(list(self._tasks))
        await self._snapshots.close()
        self._remote.close()
        self._by_key.clear()
        self._queues.clear()
        self._leaderless.clear()
        self._buffer.close()

    # Sending

    def _pump(self) -> None:
        """Send what can be sent."""
        if self._is_closed or not self.may_fetch():
            return
        self._snapshots.resume()
        for queue in list(self._queues.values()):
            group = queue.waiting
            if group is not None and not group.subscriptions:
                queue.waiting = group = None
            if group is not None and self._has_lost_leader(group):
                queue.waiting = group = None
            if group is not None and queue.out_count < _REQUESTS_PER_SERVER_MAX:
                self._send(queue, group)
            elif queue.out_count == 0:
                del self._queues[queue.server_id]
        if self._leaderless and not self._is_searching:
            self._is_searching = True
            self._start(self._search_leaders())

    def _has_lost_leader(self, group: FetchGroup) -> bool:
        """Whether the server of a group was lost while the group waited; then its leaders are looked up again."""
        if self._cluster.leader_of(next(iter(group.subscriptions)).bucket) is not None:
            return False
        for subscription in list(group.subscriptions):
            group.remove(subscription)
            self._leaderless[subscription] = None
        return True

    def may_fetch(self) -> bool:
        """Whether the consumer polls and the buffer has room. If not, ``_pump`` is called when that changes."""
        self._is_idle = True
        if self._clock() - self._polled_s > _UNPOLLED_S_MAX:
            return False
        self._is_idle = False
        return self._buffer.has_room()

    def _resume(self) -> None:
        self._remote.resume()
        self._pump()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug of ours. Without this, polls would wait for ever.
            logger.error("fetching from %s has failed", self._path, exc_info=error)
            for subscription in self._by_key.values():
                self.fail(subscription, FlussError(f"Fetching from {self._path} has failed: {error!r}"))

    def _send(self, queue: LeaderQueue, group: FetchGroup) -> None:
        queue.waiting = None
        queue.out_count += 1
        group.task = self._start(self._fetch(queue, group))
        group.task.add_done_callback(partial(self._fetched, queue, group))

    def _fetched(self, queue: LeaderQueue, group: FetchGroup, task: asyncio.Task[None]) -> None:
        """Let a group be part of the next request, together with what else is waiting."""
        group.task = None
        queue.out_count -= 1
        if group.subscriptions and task.cancelled():
            # Cancelled from outside, because the loop is about to end.
            return
        if group.subscriptions:
            queue.wait(group)
        self._pump()

    async def _fetch(self, queue: LeaderQueue, group: FetchGroup) -> None:
        """Fetch again and again, as long as nothing else has to be considered before the next request."""
        while True:
            form = self._requests.form
            request = group.request(self._requests)
            started_s = self._loop.time()
            try:
                body = await self._cluster.request(
                    queue.server_id, ENCODED_FETCH_LOG, request, timeout_s=self._timeout_s
                )
                has_news = self._accept(group, body, form)
            except FlussError as error:
                self._request_failed(queue, group, error, form)
                return
            if not has_news and self._loop.time() - started_s < _SILENCE_PAUSE_S:
                await asyncio.sleep(_SILENCE_PAUSE_S)
            if not group.subscriptions or queue.waiting is not None or not self.may_fetch():
                return

    # Receiving

    def _accept(self, group: FetchGroup, body: memoryview, form: RequestForm) -> bool:
        """Put the records of a response into the buffer; False if it had nothing new."""
        fetched = group.responses.decode(body)
        frame = Frame(len(body))
        chunks: list[Chunk] = []
        silent: list[memoryview] = []
        failed: list[Subscription] = []
        for bucket, entry in fetched:
            subscription = self._by_key.get((bucket.partition_id, bucket.bucket_id))
            # Others were unsubscribed or moved while the request was under way.
            if subscription is None or subscription.group is not group:
                continue
            if bucket.error_code:
                failed.append(subscription)
                self._bucket_failed(subscription, bucket, form)
                continue
            self.recovered(subscription)
            if bucket.remote_log_fetch_info is not None:
                group.remove(subscription)
                self._start(self._read_remote(subscription, bucket))
            elif (chunk := self._chunk(group, subscription, bucket, frame, form.is_projected)) is not None:
                chunks.append(chunk)
            else:
                silent.append(entry)
        if chunks:
            self._buffer.hold(frame)
            # Only after the next request has left: the consumer that this wakes up competes with this thread.
            self._loop.call_soon(self._buffer.put, chunks)
        if failed:
            last_error = failed[0].last_error
            logger.debug(
                "%d buckets of %s cannot be read, the first because of: %s", len(failed), self._path, last_error
            )
            self._retry_later(failed)
        has_news = len(silent) < len(fetched)
        group.responses.remember_silent(silent, body, is_all=not has_news)
        return has_news

    def _chunk(
        self, group: FetchGroup, subscription: Subscription, bucket: FetchedBucket, frame: Frame, is_projected: bool
    ) -> Chunk | None:
        """Return the records of a bucket and move on behind them; None if there are none."""
        records = bucket.records_view
        offset_next = subscription.offset_fetch
        try:
            run = measure_batches(records)
        except CorruptRecordError:
            # The reader meets the damage where it is, after the good batches before it, and says what is wrong.
            group.remove(subscription)
            return Chunk(subscription, frame, records, offset_next, is_projected)
        for offset in (run.offset_next, bucket.filtered_end_offset):
            if offset is not None:
                offset_next = max(offset_next, offset)
        if offset_next == subscription.offset_fetch:
            return None
        group.move_on(subscription, offset_next)
        if subscription.is_fetched:
            group.remove(subscription)
        return Chunk(subscription, frame, records[: run.byte_count], offset_next, is_projected)

    async def _read_remote(self, subscription: Subscription, bucket: FetchedBucket) -> None:
        """Read what the leader no longer has, and go back to the leader for the rest."""
        assert bucket.remote_log_fetch_info is not None
        try:
            subscription.offset_fetch = await self._remote.read(subscription, bucket.remote_log_fetch_info)
            subscription.request_entry = None
        except FlussError as error:
            self.fail(subscription, error)
            self._retry_later([subscription])
            return
        self._assign([subscription])

    def snapshot_read(self, subscription: Subscription, log_offset: int) -> None:
        """Go on with the changes behind a snapshot."""
        subscription.offset_fetch = log_offset
        if not self._rows_only:
            self._assign([subscription])

    # Errors

    def recovered(self, subscription: Subscription) -> None:
        """Note that a bucket can be read again."""
        if subscription.failure_count:
            subscription.failure_count = 0
            subscription.last_error = None
            self._buffer.recover(subscription)

    def _bucket_failed(self, subscription: Subscription, bucket: FetchedBucket, form: RequestForm) -> None:
        assert subscription.group is not None
        assert bucket.error_code is not None
        subscription.group.remove(subscription)
        code = bucket.error_code
        error = error_for_code(code, bucket.error_message)
        if code in _MOVED_CODES:
            self._cluster.forget_leaders(self._table_id, subscription.bucket.partition_id)
        if code == ErrorCode.INVALID_COLUMN_PROJECTION and form.is_projected:
            self._stop_projecting(error)
        elif code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION and form.is_filtered:
            self._stop_filtering(error)
        elif code in _PASSING_CODES:
            subscription.last_error = error
        else:
            self.fail(subscription, self._shown(subscription, error))

    def _shown(self, subscription: Subscription, error: FlussError) -> FlussError:
        """Return the error as polls raise it."""
        where = f"{subscription.bucket} of {self._path}"
        if error.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
            return OffsetOutOfRangeError(
                f"Offset {subscription.offset_fetch} of {where} is out of range: {error.message}"
            )
        if error.error_code == ErrorCode.CORRUPT_MESSAGE:
            return FlussError(f"The server refused to read {where}: corrupt message: {error.message}")
        return error_for_code(error.error_code, f"{where} cannot be read: {error.message}")

    def _stop_filtering(self, error: FlussError) -> None:
        """Fetch all batches from now on: the filter is more than the server takes."""
        logger.info("servers skip no batches of %s from now on: %s", self._path, error.message)
        self._requests.stop_filtering()
        self._forget_requests()

    def _stop_projecting(self, error: FlussError) -> None:
        """Fetch whole rows from now on: some batches are older than some of the columns."""
        logger.info("%s is read without column pushdown from now on: %s", self._path, error.message)
        self._requests.stop_projecting()
        self._forget_requests()

    def _forget_requests(self) -> None:
        for subscription in self._by_key.values():
            if subscription.group is not None:
                subscription.group.forget_request()

    def fail(self, subscription: Subscription, error: FlussError) -> None:
        """Have polls raise an error of a bucket."""
        subscription.last_error = error
        self._buffer.fail(subscription, error)

    def _request_failed(self, queue: LeaderQueue, group: FetchGroup, error: FlussError, form: RequestForm) -> None:
        """Look for the leaders again after the whole request has failed."""
        if error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION and form.is_filtered:
            self._stop_filtering(error)
            return
        logger.debug("tablet server %d could not be asked for records: %s", queue.server_id, error.message)
        subscriptions = list(group.subscriptions)
        if not isinstance(error, RequestTimeoutError):
            self._cluster.forget_server(queue.server_id)
        for partition_id in {subscription.bucket.partition_id for subscription in subscriptions}:
            self._cluster.forget_leaders(self._table_id, partition_id)
        for subscription in subscriptions:
            group.remove(subscription)
            self.note_error(subscription, error)
        self._retry_later(subscriptions)

    def note_error(self, subscription: Subscription, error: FlussError) -> None:
        """Note an error of a bucket, as one that passes or as one that is raised."""
        if error.error_code == ErrorCode.PARTITION_NOT_EXISTS and self.on_missing_partition is not None:
            subscription.last_error = error
            self.on_missing_partition()
        elif error.is_retriable or error.error_code in _PASSING_CODES:
            subscription.last_error = error
        else:
            self.fail(subscription, error)

    def _retry_later(self, subscriptions: Sequence[Subscription]) -> None:
        """Look buckets up again after a while, longer after each failure."""
        by_backoff: dict[float, list[Subscription]] = {}
        for subscription in subscriptions:
            by_backoff.setdefault(subscription.next_backoff_s(), []).append(subscription)
        for backoff_s, group_members in by_backoff.items():
            self._loop.call_later(backoff_s, self._retry, group_members)

    def _retry(self, subscriptions: Sequence[Subscription]) -> None:
        if not self._is_closed:
            self._assign(subscriptions)

    # Leaders

    async def _search_leaders(self) -> None:
        """Read metadata for the buckets that have no leader, and try again later for those that still have none."""
        subscriptions = list(self._leaderless)
        self._leaderless.clear()
        try:
            errors = await find_leaders(self._cluster, self._info, [one.bucket for one in subscriptions])
        finally:
            self._is_searching = False
        found = [subscription for subscription in subscriptions if subscription.bucket not in errors]
        leaderless = [subscription for subscription in subscriptions if subscription.bucket in errors]
        for subscription in leaderless:
            self.note_error(subscription, errors[subscription.bucket])
        self._retry_later(leaderless)
        self._assign(found)
