"""Sends batches to the leaders of their buckets, and deals with what comes back.

A round looks at the buckets that have something to send, takes at most one batch of each, and sends one request per
server, table and choice of columns. Answers are handled as they come; a bucket is looked at again when a batch was
added to it, when an answer for it has come, when its leader was found, and when a pause is over. Buckets never wait for
each other.

With many batches on their way, a small one is kept until the one before it in its bucket is answered, and is then sent
as one with those that have come meanwhile: the busier the server, the larger the batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.leaders import LEADERLESS_S_MAX, TableLeaders
from fluss.client.kernel.missing_partitions import MissingPartitions
from fluss.client.kernel.shared_calls import cancel_all
from fluss.client.kernel.table_calls import is_gone
from fluss.client.write.batch import Batch, BucketQueue, Idempotence, Verdict, allocate_writer_id
from fluss.client.write.blocks import PhysicalTable
from fluss.config import Config
from fluss.errors import ErrorCode, FlussError, NetworkError, RequestTimeoutError, error_for_code
from fluss.integers import INT32_MAX
from fluss.protocol import api as apis
from fluss.protocol.bulk_messages import BucketRecords, ProduceLogRequest, PutKvRequest
from fluss.protocol.convert import partition_id
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.retry import METADATA, WRITES, Backoff, RetryPolicy
from fluss.schema.table import TableBucket

# With so many batches on their way the server has enough to do.
_BUSY_BATCHES: Final = 256
# What a batch costs beyond its rows is little for batches of this size: they gain nothing by being joined.
_JOINED_BYTES_MAX: Final = 64 * 1024
# A table or partition that a server does not know may not have reached it yet.
_MISSING_CODES: Final = frozenset({int(ErrorCode.TABLE_NOT_EXIST), int(ErrorCode.PARTITION_NOT_EXISTS)})

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """The options that sending depends on."""

    acks: int
    retries: int
    in_flight_max: int
    request_bytes_max: int
    request_timeout_s: float
    throttle_s_max: float
    is_idempotent: bool
    # Batches that wait are joined up to this size; 0: each is sent as it is.
    joined_bytes_max: int = 0
    batch_retry: RetryPolicy = WRITES
    leader_retry: RetryPolicy = METADATA
    # How long a bucket may be without a leader before that is worth a warning.
    leaderless_s_max: float = LEADERLESS_S_MAX

    @classmethod
    def of(cls, config: Config) -> SenderSettings:
        return cls(
            acks=config.required_acks,
            retries=config.writer_retries,
            in_flight_max=config.writer_max_inflight_requests_per_bucket,
            request_bytes_max=config.writer_request_max_size,
            request_timeout_s=config.request_timeout_ms / 1000,
            throttle_s_max=config.writer_kv_backpressure_max_throttle_ms / 1000,
            is_idempotent=config.writer_enable_idempotence,
            joined_bytes_max=min(_JOINED_BYTES_MAX, config.writer_batch_size),
        )


class _Sent(NamedTuple):
    """A batch in a request, where it came from and where it went."""

    batch: Batch
    queue: BucketQueue
    bucket: TableBucket


class Sender:
    """Takes encoded batches, and ends each of them once. Belongs to the event loop."""

    def __init__(self, cluster: Cluster, settings: SenderSettings, idempotence: Idempotence | None = None) -> None:
        """``idempotence`` numbers the batches; without one, they are numbered as the settings say."""
        self._cluster = cluster
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._idempotence = idempotence or Idempotence(
            is_enabled=settings.is_idempotent, in_flight_max=settings.in_flight_max
        )
        self._searches = _LeaderSearches(cluster, settings, self._look_at, self._leaderless)
        self._queues: dict[tuple[PhysicalTable, int], BucketQueue] = {}
        # Buckets to look at in the next round, in the order in which they asked for it.
        self._asking: dict[BucketQueue, None] = {}
        self._is_round_scheduled = False
        self._rounds = 0
        # Buckets that wait for a writer id.
        self._without_writer_id: dict[BucketQueue, None] = {}
        self._allocation: asyncio.Task[None] | None = None
        self._allocation_backoff = Backoff(settings.batch_retry)
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight: dict[Batch, BucketQueue] = {}
        self._closed_with: FlussError | None = None

    def add(self, table: PhysicalTable, batch: Batch) -> None:
        """Send a batch after all that were added for its bucket before."""
        if self._closed_with is not None:
            batch.end(self._closed_with)
            return
        key = table, batch.bucket_id
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = BucketQueue(table, batch.bucket_id, self._settings.batch_retry)
        queue.add(batch, self._loop.time())
        self._look_at(queue)

    def trouble_of(self, tables: Collection[PhysicalTable]) -> str | None:
        """Say what keeps batches of some tables from being stored, if something is known to."""
        for (table, _), queue in self._queues.items():
            if queue.trouble is not None and table in tables:
                return queue.trouble.message
        return None

    def partition_ids(self, table_id: int) -> set[int]:
        """Return the partitions of a table that batches were sent to."""
        return self._idempotence.partition_ids(table_id)

    def forget(self, table_id: int, tables: Collection[PhysicalTable], partition_ids: Collection[int]) -> None:
        """Forget partitions that are gone, unless something is on its way to them. Their ids never come back."""
        busy = {queue.table for queue in self._in_flight.values()}
        busy |= {table for (table, _), queue in self._queues.items() if queue.waiting}
        gone = set(tables) - busy
        self._queues = {key: queue for key, queue in self._queues.items() if key[0] not in gone}
        self._searches.forget(gone)
        self._idempotence.forget(table_id, partition_ids)

    async def close(self, error: FlussError) -> None:
        """Stop at once. Whatever has no end yet ends with ``error``."""
        self._closed_with = error
        self._asking.clear()
        for queue in self._queues.values():
            self._fail_waiting(queue, error)
        for batch in list(self._in_flight):
            self._end(batch, error)
        await cancel_all([*self._tasks, *([self._allocation] if self._allocation is not None else [])])
        await self._searches.close()

    # Rounds

    def _look_at(self, queue: BucketQueue) -> None:
        self._asking[queue] = None
        if not self._is_round_scheduled and self._closed_with is None:
            self._is_round_scheduled = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        self._is_round_scheduled = False
        asking, self._asking = self._asking, {}
        by_server: dict[int, list[tuple[BucketQueue, TableBucket]]] = {}
        joined_bytes_max = self._settings.joined_bytes_max if len(self._in_flight) >= _BUSY_BATCHES else 0
        for queue in asking:
            if not queue.waiting or self._is_pausing(queue):
                continue
            leader = self._searches.leader_of(queue)
            if leader is None:
                continue
            server_id, bucket = leader
            alone = queue.is_worth_waiting(joined_bytes_max)
            if not self._idempotence.may_send(queue.waiting[0], bucket, alone=alone):
                continue
            if self._idempotence.needs_writer_id(bucket):
                self._without_writer_id[queue] = None
            else:
                by_server.setdefault(server_id, []).append((queue, bucket))
        if self._without_writer_id:
            self._allocate_writer_id()
        self._rounds += 1
        for server_id, ready in by_server.items():
            self._send_to(server_id, ready)

    def _send_to(self, server_id: int, ready: list[tuple[BucketQueue, TableBucket]]) -> None:
        """Send the first batch of each bucket, as many as fit a request; the others get their turn in the next round.

        Each round begins with another bucket, so that large batches of one do not keep the others out for ever.
        """
        first = self._rounds % len(ready)
        request_bytes = 0
        by_request: dict[tuple[int, tuple[int, ...] | None], list[_Sent]] = {}
        for queue, bucket in ready[first:] + ready[:first]:
            if request_bytes and request_bytes + queue.waiting[0].size_bytes > self._settings.request_bytes_max:
                self._look_at(queue)
                continue
            room_bytes = self._settings.request_bytes_max - request_bytes
            batch = queue.take(min(self._settings.joined_bytes_max, room_bytes))
            request_bytes += batch.size_bytes
            self._idempotence.begin(batch, bucket)
            batch.seal()
            self._in_flight[batch] = queue
            by_request.setdefault((bucket.table_id, batch.targets), []).append(_Sent(batch, queue, bucket))
            if queue.waiting:
                self._look_at(queue)
        for (table_id, targets), sent in by_request.items():
            self._start(self._send(server_id, table_id, targets, sent))

    def _is_pausing(self, queue: BucketQueue) -> bool:
        return self._loop.time() < queue.backoff.until_s

    def _throttle(self, queue: BucketQueue, pressure: float) -> None:
        """Leave a bucket alone for a while, because its server asks for it; others go on."""
        pause_s = self._settings.throttle_s_max * min(pressure, 1.0) ** 2
        queue.backoff.hold(self._loop.time() + pause_s)
        self._come_back(queue)

    def _come_back(self, queue: BucketQueue) -> None:
        # A little later than the end of the pause, so that the clock agrees that it is over.
        self._loop.call_at(queue.backoff.until_s + 0.001, self._look_at, queue)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Requests and answers

    async def _send(self, server_id: int, table_id: int, targets: tuple[int, ...] | None, sent: list[_Sent]) -> None:
        buckets = [BucketRecords(s.bucket.bucket_id, s.batch.parts, s.bucket.partition_id) for s in sent]
        try:
            response = await self._request(server_id, table_id, targets, buckets)
        except FlussError as error:
            for item in sent:
                self._refused(item, error)
        except Exception as error:
            # A fault of the client itself: the writers must not be left waiting because of it.
            logger.exception("a write request could not be made")
            text = f"the write request could not be made: {type(error).__name__}: {error}"
            for item in sent:
                self._refused(item, FlussError(text))
        else:
            self._answered(sent, response)

    async def _request(
        self, server_id: int, table_id: int, targets: tuple[int, ...] | None, buckets: list[BucketRecords]
    ) -> pb.ProduceLogResponse | pb.PutKvResponse:
        acks, timeout_s = self._settings.acks, self._settings.request_timeout_s
        timeout_ms = min(int(timeout_s * 1000), INT32_MAX)
        if targets is None:
            append = ProduceLogRequest(acks, table_id, timeout_ms, buckets)
            return await self._cluster.request(server_id, apis.PRODUCE_LOG, append, timeout_s=timeout_s)
        put = PutKvRequest(acks, table_id, timeout_ms, targets, buckets)
        return await self._cluster.request(server_id, apis.PUT_KV, put, timeout_s=timeout_s)

    def _answered(self, sent: list[_Sent], response: pb.ProduceLogResponse | pb.PutKvResponse) -> None:
        answers = {(partition_id(answer), answer.bucket_id): answer for answer in response.buckets_resp}
        for item in sent:
            answer = answers.get((item.bucket.partition_id, item.bucket.bucket_id))
            if answer is None:
                text = f"the server did not say what became of a batch for {item.bucket} of {item.queue.table.name}"
                self._refused(item, FlussError(text, ErrorCode.UNKNOWN_SERVER_ERROR))
            elif answer.error_code:
                self._refused(item, error_for_code(answer.error_code, answer.error_message))
            else:
                self._stored(item, answer.pressure if isinstance(answer, pb.PbPutKvRespForBucket) else 0.0)

    def _stored(self, item: _Sent, pressure: float = 0.0) -> None:
        """A batch has arrived. ``pressure``, from 0 to 1, is how hard the server finds it to keep up."""
        self._idempotence.acknowledged(item.batch)
        item.queue.backoff.succeeded()
        item.queue.trouble = None
        self._end(item.batch, None)
        if pressure > 0:
            self._throttle(item.queue, pressure)
        else:
            self._look_at(item.queue)

    def _refused(self, item: _Sent, error: FlussError) -> None:
        """Decide what happens to a batch that was sent and not stored, or may have been: its answer was lost."""
        batch, queue = item.batch, item.queue
        if batch not in self._in_flight:
            return
        if error.stale_metadata:
            self._cluster.forget_leaders(item.bucket.table_id, item.bucket.partition_id)
        verdict = self._idempotence.judge(batch, error.error_code)
        if verdict is Verdict.STORED:
            self._stored(item)
            return
        if verdict is Verdict.UNKNOWN:
            error = _unknown(batch, error)
        has_retries_left = batch.attempts < self._settings.retries
        if not has_retries_left or not (self._may_pass(batch, error) or verdict is Verdict.RETRY):
            self._idempotence.failed(batch, error.error_code)
            self._end(batch, error)
        else:
            logger.log(_level(error), "a batch for %s of %s is sent again: %s", item.bucket, queue.table.name, error)
            self._send_again(batch, queue, error)
        self._look_at(queue)

    def _may_pass(self, batch: Batch, error: FlussError) -> bool:
        """Whether an error can be over when the batch is sent again."""
        if error.error_code == ErrorCode.SCHEMA_NOT_EXIST:
            # A server that has not heard of a new schema yet will soon.
            return self._loop.time() - batch.queued_at_s < self._settings.request_timeout_s
        return error.is_retriable

    def _send_again(self, batch: Batch, queue: BucketQueue, error: FlussError) -> None:
        del self._in_flight[batch]
        batch.attempts += 1
        self._idempotence.put_back(batch)
        queue.put_back(batch)
        queue.trouble = error
        queue.backoff.failed(self._loop.time())
        self._come_back(queue)
        if error.error_code == ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION:
            self._throttle(queue, 1.0)

    def _end(self, batch: Batch, error: FlussError | None) -> None:
        self._in_flight.pop(batch, None)
        batch.end(error)

    # What goes wrong before anything is sent

    def _fail_waiting(self, queue: BucketQueue, error: FlussError) -> None:
        waiting, queue.waiting = queue.waiting, []
        for batch in waiting:
            self._idempotence.failed(batch, error.error_code)
            self._end(batch, error)

    def _leaderless(self, queue: BucketQueue, search: _LeaderSearch, error: FlussError) -> None:
        """The bucket has no known leader: every batch that waits for it has failed once more."""
        now_s = self._loop.time()
        kept: list[Batch] = []
        for batch in queue.waiting:
            if self._may_wait(batch, search, error, now_s):
                kept.append(batch)
            else:
                self._idempotence.failed(batch, error.error_code)
                self._end(batch, error)
        queue.waiting = kept
        queue.trouble = error if kept else None
        if kept:
            self._look_at(queue)

    def _may_wait(self, batch: Batch, search: _LeaderSearch, error: FlussError, now_s: float) -> bool:
        if search.is_certain:
            return False
        if error.error_code in _MISSING_CODES:
            # Time counts, not attempts: servers hear of what is new one after the other.
            since_s = max(batch.queued_at_s, search.missing_since_s or 0.0)
            return now_s - since_s < self._settings.request_timeout_s
        batch.attempts += 1
        return error.is_retriable and batch.attempts <= self._settings.retries

    # The writer id

    def _allocate_writer_id(self) -> None:
        if self._allocation is None:
            self._allocation = self._loop.create_task(self._get_writer_id())

    async def _get_writer_id(self) -> None:
        """Ask for a writer id. A failure counts for the batches that wait as if they had been sent and refused."""
        pause_s = self._allocation_backoff.until_s - self._loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        paths = {queue.table.path for queue in self._without_writer_id if queue.waiting}
        error: FlussError | None = None
        try:
            self._idempotence.writer_id = await allocate_writer_id(self._cluster, paths)
        except FlussError as failure:
            error = failure
        except Exception as failure:
            # A fault of the client itself: the writers must not be left waiting because of it.
            logger.exception("a writer id could not be asked for")
            error = FlussError(f"a writer id could not be asked for: {type(failure).__name__}: {failure}")
        if error is None:
            self._allocation_backoff.succeeded()
        else:
            logger.log(_level(error), "no writer id: %s", error)
            self._allocation_backoff.failed(self._loop.time())
            for queue in self._without_writer_id:
                self._fail_hopeless(queue, error)
        self._allocation = None
        queues, self._without_writer_id = self._without_writer_id, {}
        for queue in queues:
            self._look_at(queue)

    def _fail_hopeless(self, queue: BucketQueue, error: FlussError) -> None:
        """Count an attempt of every batch that waits, and end those whose error does not pass or was their last."""
        kept: list[Batch] = []
        for batch in queue.waiting:
            if error.is_retriable and batch.attempts < self._settings.retries:
                batch.attempts += 1
                kept.append(batch)
            else:
                self._idempotence.failed(batch, error.error_code)
                self._end(batch, error)
        queue.waiting = kept
        queue.trouble = error if kept else None


def _level(error: FlussError) -> int:
    """Return how loud to be about a failure that may pass; that a server is lost is logged where it is noticed."""
    return logging.DEBUG if isinstance(error, NetworkError | RequestTimeoutError) else logging.INFO


def _unknown(batch: Batch, cause: FlussError) -> FlussError:
    return FlussError(
        f"writer id {batch.writer_id} was given up while a batch was out under it ({cause.message}); whether the batch "
        "was stored is not known, and it is not sent again",
        ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION,
    )


class _LeaderSearch:
    """The search for the leaders of one physical table, and the queues that wait for it."""

    __slots__ = (
        "backoff",
        "is_certain",
        "leaderless_since_s",
        "leaders",
        "missing_since_s",
        "queues",
        "task",
        "warned",
    )

    def __init__(self, leaders: TableLeaders, backoff: Backoff) -> None:
        self.leaders = leaders
        self.backoff = backoff
        self.queues: dict[BucketQueue, None] = {}
        self.task: asyncio.Task[None] | None = None
        # Since when the server says that there is no such table or partition.
        self.missing_since_s: float | None = None
        # Buckets that rows wait for and that have no leader, as the cluster says: since when, and which are in the log.
        self.leaderless_since_s: dict[int, float] = {}
        self.warned: set[int] = set()
        # Whether what the last attempt failed with will not pass.
        self.is_certain = False


class _LeaderSearches:
    """Looks for leaders in the background. Belongs to the event loop.

    ``on_found`` is called with a queue that was refused a leader when it may ask again, ``on_failed`` when the search
    failed; it is then repeated, with pauses, as long as batches wait.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: SenderSettings,
        on_found: Callable[[BucketQueue], None],
        on_failed: Callable[[BucketQueue, _LeaderSearch, FlussError], None],
    ) -> None:
        self._cluster = cluster
        self._retry = settings.leader_retry
        self._leaderless_s_max = settings.leaderless_s_max
        self._on_found = on_found
        self._on_failed = on_failed
        self._searches: dict[PhysicalTable, _LeaderSearch] = {}
        self._missing_partitions = MissingPartitions(cluster)
        self._loop = asyncio.get_running_loop()

    def leader_of(self, queue: BucketQueue) -> tuple[int, TableBucket] | None:
        """Return the server that leads a bucket, and the name of the bucket; or None, and begin to look for it."""
        table = queue.table
        search = self._searches.get(table)
        if search is None:
            leaders = TableLeaders(self._cluster, table.info, table.partition_name, purpose="write to it")
            search = self._searches[table] = _LeaderSearch(leaders, Backoff(self._retry))
        server_id = search.leaders.leader_of(queue.bucket_id)
        if server_id is not None:
            return server_id, search.leaders.buckets[queue.bucket_id]
        search.queues[queue] = None
        if search.task is None:
            search.task = self._loop.create_task(self._search(table, search))
        return None

    def forget(self, tables: Iterable[PhysicalTable]) -> None:
        """Forget tables, unless their leaders are being looked for right now."""
        for table in tables:
            search = self._searches.get(table)
            if search is not None and search.task is None:
                del self._searches[table]

    async def close(self) -> None:
        await cancel_all([search.task for search in self._searches.values() if search.task is not None])
        await self._missing_partitions.close()

    async def _search(self, table: PhysicalTable, search: _LeaderSearch) -> None:
        pause_s = search.backoff.until_s - self._loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        error: FlussError | None = None
        search.is_certain = False
        try:
            await self._find(table, search)
        except FlussError as failure:
            error = failure
        except Exception as failure:
            # A fault of the client itself: the writers must not be left waiting because of it.
            logger.exception("looking up the leaders of %s failed", table.name)
            error = FlussError(f"looking up the leaders of {table.name} failed: {type(failure).__name__}: {failure}")
        if error is None:
            self._found(table, search)
        else:
            self._failed(search, error)
        queues, search.queues, search.task = list(search.queues), {}, None
        if error is None:
            self._watch(table, search, [queue.bucket_id for queue in queues])
        for queue in queues:
            if search.leaders.leader_of(queue.bucket_id) is not None:
                self._on_found(queue)
            else:
                self._on_failed(queue, search, error or search.leaders.no_leader(queue.bucket_id))

    async def _find(self, table: PhysicalTable, search: _LeaderSearch) -> None:
        """Find leaders. What does not exist is known to be missing if the coordinator says so; partitions are created,
        if they are to be.
        """
        bucket_ids = [queue.bucket_id for queue in search.queues]
        try:
            await search.leaders.find(bucket_ids)
        except FlussError as error:
            if error.error_code == ErrorCode.TABLE_NOT_EXIST:
                search.is_certain = await is_gone(self._cluster, table.info)
            if table.partition_name is None or error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            missing = await self._missing_partitions.require(table.info, table.partition_name)
            if missing is not None:
                search.is_certain = True
                raise missing from None
            await search.leaders.find(bucket_ids)

    def _found(self, table: PhysicalTable, search: _LeaderSearch) -> None:
        leaders = search.leaders
        search.missing_since_s = None
        led = [bucket_id for bucket_id in range(len(leaders.buckets)) if leaders.leader_of(bucket_id) is not None]
        table.prefer_buckets(led)
        if len(led) == len(leaders.buckets):
            search.backoff.succeeded()
        else:
            search.backoff.failed(self._loop.time())

    def _watch(self, table: PhysicalTable, search: _LeaderSearch, bucket_ids: Iterable[int]) -> None:
        """Log which buckets stay without a leader, once, and that they have one again."""
        now_s = self._loop.time()
        since_s = search.leaderless_since_s
        for bucket_id in [id_ for id_ in since_s if search.leaders.leader_of(id_) is not None]:
            leaderless_s = now_s - since_s.pop(bucket_id)
            if bucket_id in search.warned:
                search.warned.discard(bucket_id)
                logger.warning("bucket %d of %s has a leader again, after %.0f s", bucket_id, table.name, leaderless_s)
        for bucket_id in bucket_ids:
            if search.leaders.leader_of(bucket_id) is None:
                since_s.setdefault(bucket_id, now_s)
        late = [id_ for id_, began_s in since_s.items() if now_s - began_s >= self._leaderless_s_max]
        new = [bucket_id for bucket_id in late if bucket_id not in search.warned]
        if new:
            search.warned.update(new)
            logger.warning(
                "%s; rows for it have waited for %.0f s, and are sent when it has one%s",
                search.leaders.no_leader(new[0]).message,
                now_s - since_s[new[0]],
                "" if len(new) == 1 else f"; the same is true of buckets {', '.join(map(str, new[1:]))}",
            )

    def _failed(self, search: _LeaderSearch, error: FlussError) -> None:
        if search.is_certain:
            # Writing to it again asks again, at once: it may have been created.
            search.backoff.succeeded()
            return
        now_s = self._loop.time()
        search.backoff.failed(now_s)
        if error.error_code not in _MISSING_CODES:
            search.missing_since_s = None
        elif search.missing_since_s is None:
            search.missing_since_s = now_s
