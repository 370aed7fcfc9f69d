"""Everything that is looked up on one connection, from the callers' keys to their rows.

    caller       key -> partition, bucket, bytes (``LookupKeys``) -> ``Intake``, which waits when too many are in there
    event loop   lookups of all callers -> a queue per table and server -> requests -> answers (``LookupMethod``)
                 -> rows (``ValueReader``) -> back to the callers (``pending``)

A lookup is sent at once when no lookup is in flight to its server. Otherwise it waits for others, until an answer
comes back from there, a request is full, or it has waited long enough. So one lookup alone is as fast as it can be, and
of thousands at once each request carries many. Threads talk to each other once per burst, not once per lookup.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar, cast

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.leaders import BucketKey, TableLeaders
from fluss.client.kernel.runtime import Runtime
from fluss.client.kernel.shared_calls import cancel_all
from fluss.client.lookup.keys_and_rows import Located
from fluss.client.lookup.pending import (
    Intake,
    Lookup,
    LookupMethod,
    LookupTable,
    deliver,
    fail,
    pause_within,
    reason_of,
)
from fluss.errors import ErrorCode, FlussError, RequestTimeoutError
from fluss.retry import LOOKUPS
from fluss.row.bucketing import HashVariant
from fluss.schema.table import TableInfo

T = TypeVar("T")

# Partitions that are asked for at the same time, of all that are not known yet.
_SEARCHES_MAX: Final = 16
# Rows that are made on the event loop; more than that keep it busy for too long.
_ROWS_ON_LOOP_MAX: Final = 1000

logger = logging.getLogger(__name__)


class LookupClient:
    """The lookups of one connection. Callers may be in any thread and on any event loop.

    A lookup that fails for a passing reason is sent again, with pauses, until ``request-timeout`` is over or
    ``lookup.max-retries`` are used up; then its caller gets that reason.
    """

    def __init__(self, cluster: Cluster, runtime: Runtime, *, clock: Callable[[], float] = monotonic) -> None:
        config = cluster.config
        self.cluster = cluster
        self.runtime = runtime
        self.clock = clock
        self.hash_variant = cast("HashVariant", config.client_bucket_hash)
        self.timeout_s = config.request_timeout_ms / 1000
        self.retries_max = config.lookup_max_retries
        self._batch_max = config.lookup_max_batch_size
        self._linger_s = config.lookup_batch_timeout_ms / 1000
        # Shared by threads.
        self._intake = Intake(runtime, config.lookup_queue_size, self._take_submitted)
        self._is_closed = False
        self._lock = threading.Lock()
        self._tables: weakref.WeakValueDictionary[tuple[object, ...], LookupTable] = weakref.WeakValueDictionary()
        # Belongs to the event loop.
        self._waiting = self._intake.waiting
        self._queues: dict[tuple[int, LookupTable], _ServerQueue] = {}
        self._in_flight: Counter[int] = Counter()
        self._slots = RequestSlots(config.lookup_max_inflight_requests)
        self._searches = asyncio.Semaphore(_SEARCHES_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: set[asyncio.Task[Any]] = set()

    # For lookupers, in any thread

    def table(self, info: TableInfo, method: LookupMethod[Any]) -> LookupTable:
        """Return what lookups of a table share; lookupers of the same schema get the same, and share requests."""
        key = info.table_id, info.schema_id, info.modified_time, method
        with self._lock:
            table = self._tables.get(key)
            if table is None:
                table = self._tables[key] = LookupTable(self.cluster, info, method)
            return table

    async def look_up(self, table: LookupTable, located: Located) -> Any:
        """Look up one key, from any event loop. A caller that is cancelled gives up its place."""
        if self._intake.is_full():
            await self._intake.wait_for_room()
        lookup = Lookup(table, located, self.clock() + self.timeout_s, asyncio.get_running_loop())
        self._intake.submit(lookup)
        return await lookup.future

    async def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await something that sends its own requests, from any event loop. It ends with the caller or the client."""
        return await self.runtime.bridge(self._run_call(work), cancels=True)

    # On the event loop: from callers to queues

    def _take_submitted(self) -> None:
        self._queue(self._intake.take())
        self._intake.admit(all_of_them=self._is_closed)

    def _queue(self, lookups: Sequence[Lookup]) -> None:
        """Put lookups where they are sent from; those whose leader is not known get there when it is found."""
        if self._is_closed:
            self._give_up(lookups, _closed())
            return
        queues: dict[_ServerQueue, None] = {}
        leaderless: dict[tuple[LookupTable, TableLeaders], list[Lookup]] = {}
        for lookup in lookups:
            leaders = lookup.table.leaders(lookup.partition_name)
            server_id = leaders.leader_of(lookup.bucket_id)
            if server_id is None:
                leaderless.setdefault((lookup.table, leaders), []).append(lookup)
                continue
            lookup.bucket_key = leaders.bucket_keys[lookup.bucket_id]
            queue = self._queues.get((server_id, lookup.table))
            if queue is None:
                queue = self._queues[server_id, lookup.table] = _ServerQueue(server_id, lookup.table)
            queue.waiting.append(lookup)
            queues[queue] = None
        for (table, leaders), waiting in leaderless.items():
            self._start(self._search(table, leaders, waiting), waiting)
        self._send_from(queues)

    async def _search(self, table: LookupTable, leaders: TableLeaders, lookups: Sequence[Lookup]) -> None:
        by_bucket: dict[int, list[Lookup]] = {}
        for lookup in lookups:
            by_bucket.setdefault(lookup.bucket_id, []).append(lookup)
        try:
            async with self._searches:
                exists = await table.find_leaders(leaders, by_bucket)
        except FlussError as error:
            self._try_again(lookups, error)
            return
        if not exists:
            self._waiting.difference_update(lookups)
            deliver(lookups, [table.method.nothing() for _ in lookups])
            return
        for bucket_id, group in by_bucket.items():
            if leaders.leader_of(bucket_id) is None:
                self._try_again(group, leaders.no_leader(bucket_id))
            else:
                self._queue(group)

    # On the event loop: requests

    def _send_from(self, queues: Iterable[_ServerQueue], *, also_partial: bool = False) -> None:
        """Send full requests, and others where nothing is in flight or ``also_partial`` says so."""
        for queue in queues:
            while queue.waiting and self._slots.has_free:
                is_full = len(queue.waiting) >= self._batch_max
                if is_full or also_partial or not self._in_flight[queue.server_id]:
                    self._send(queue)
                else:
                    if queue.timer is None:
                        queue.timer = self.runtime.loop.call_later(self._linger_s, self._overdue, queue)
                    break

    def _overdue(self, queue: _ServerQueue) -> None:
        queue.timer = None
        self._send_from([queue], also_partial=True)

    def _send(self, queue: _ServerQueue) -> None:
        """Send as many lookups as fit a request, without those whose callers wait no more."""
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        taken = [queue.waiting.popleft() for _ in range(min(len(queue.waiting), self._batch_max))]
        # A queue that has something left goes to the end of the line.
        del self._queues[queue.server_id, queue.table]
        if queue.waiting:
            self._queues[queue.server_id, queue.table] = queue
        self._waiting.difference_update(taken)
        now_s = self.clock()
        lookups = [lookup for lookup in taken if lookup.deadline_s > now_s and not lookup.future.done()]
        if len(lookups) < len(taken):
            for lookup in taken:
                if lookup.deadline_s <= now_s:
                    fail([lookup], lookup.failure or self._not_sent())
        if lookups:
            self._slots.take()
            self._in_flight[queue.server_id] += 1
            self._start(self._ask(queue.server_id, queue.table, lookups, now_s), lookups)

    async def _ask(self, server_id: int, table: LookupTable, lookups: Sequence[Lookup], now_s: float) -> None:
        by_bucket: dict[BucketKey, list[Lookup]] = {}
        for lookup in lookups:
            by_bucket.setdefault(lookup.bucket_key, []).append(lookup)
        keys = {bucket_key: [lookup.key for lookup in group] for bucket_key, group in by_bucket.items()}
        timeout_s = max(lookup.deadline_s for lookup in lookups) - now_s
        answers: dict[BucketKey, list[Any] | FlussError]
        try:
            answers = await table.method.ask(self.cluster, server_id, table.info, keys, timeout_s)
        except FlussError as error:
            answers = dict.fromkeys(keys, error)
        finally:
            self._in_flight[server_id] -= 1
            self.free_slot(server_id)
        answered: list[Lookup] = []
        found: list[Any] = []
        for bucket_key, group in by_bucket.items():
            answer = answers[bucket_key]
            if isinstance(answer, FlussError):
                self._refused(server_id, table, group, answer)
            else:
                answered += group
                found += answer
        if answered:
            await self._read(table, answered, found)

    async def _read(self, table: LookupTable, lookups: Sequence[Lookup], answers: Sequence[Any]) -> None:
        """Make rows of answers, and give them to the callers."""
        stored = table.method.stored_values(answers)
        try:
            for schema_id in table.reader.unknown_schemas(stored):
                table.reader.add_schema(schema_id, await self.cluster.schema(table.info.table_path, schema_id))
        except FlussError as error:
            self._waiting.update(lookups)
            self._try_again(lookups, error)
            return
        try:
            if len(stored) <= _ROWS_ON_LOOP_MAX:
                rows = table.reader.rows(stored)
            else:
                rows = await self.runtime.offload(table.reader.twin().rows, stored)
        except FlussError as error:
            if len(lookups) == 1:
                fail(lookups, error)
                return
            # Some row is damaged. Callers that asked for another one get theirs.
            for lookup, answer in zip(lookups, answers, strict=True):
                await self._read(table, [lookup], [answer])
            return
        deliver(lookups, table.method.results(answers, rows))

    async def take_slot(self) -> None:
        """Wait until one more request may be in flight; for requests of many keys, which do not go through queues."""
        if self._is_closed:
            raise _closed()
        await self._slots.wait()

    def free_slot(self, server_id: int) -> None:
        """A request has ended. What was collected for its server goes now, and whatever waited for the slot."""
        self._slots.give_back()
        if self._is_closed:
            return
        queues = list(self._queues.values())
        self._send_from([queue for queue in queues if queue.server_id == server_id], also_partial=True)
        self._send_from(queues)
        self._slots.grant()
        self._intake.admit()

    # On the event loop: failures

    def _refused(self, server_id: int, table: LookupTable, lookups: list[Lookup], error: FlussError) -> None:
        """Deal with lookups in one bucket that the server has not answered."""
        if error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION and len(lookups) > 1:
            self._start(self._ask_in_halves(server_id, table, lookups), lookups)
            return
        if error.stale_metadata:
            table.forget_leaders(lookups[0].bucket_key)
        self._waiting.update(lookups)
        self._try_again(lookups, error)

    async def _ask_in_halves(self, server_id: int, table: LookupTable, lookups: list[Lookup]) -> None:
        """Ask again for rows that are too large for one answer together."""
        middle = len(lookups) // 2
        for half in (lookups[:middle], lookups[middle:]):
            await self._slots.wait()
            self._in_flight[server_id] += 1
            await self._ask(server_id, table, half, self.clock())

    def _try_again(self, lookups: Sequence[Lookup], error: FlussError) -> None:
        """Queue lookups once more after a pause, or tell their callers why not."""
        now_s = self.clock()
        again: list[Lookup] = []
        for lookup in lookups:
            lookup.attempts += 1
            lookup.failure = reason = reason_of(lookup.failure, error)
            may_wait = lookup.attempts <= self.retries_max and lookup.deadline_s - now_s > LOOKUPS.first_s
            if may_wait and error.is_retriable:
                again.append(lookup)
            else:
                self._give_up([lookup], _closed() if self._is_closed else reason)
        if again:
            logger.debug("%d lookups in %s are sent again: %s", len(again), again[0].table.info.table_path, error)
            time_left_s = max(lookup.deadline_s for lookup in again) - now_s
            self._start(self._queue_later(again, pause_within(again[0].attempts, time_left_s)), again)

    async def _queue_later(self, lookups: Sequence[Lookup], pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        self._queue(lookups)

    def _give_up(self, lookups: Sequence[Lookup], error: FlussError) -> None:
        """End lookups that wait to be sent."""
        self._waiting.difference_update(lookups)
        fail(lookups, error)

    def _not_sent(self) -> FlussError:
        return RequestTimeoutError(
            f"the lookup timed out: it could not be sent within {self.timeout_s:g} s, because other requests were on "
            "the way all the time"
        )

    # On the event loop: the end

    def _start(self, work: Coroutine[Any, Any, None], lookups: Sequence[Lookup]) -> None:
        """Do something for lookups in the background; if it does not come to its end, they end with it."""
        task = self.runtime.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, lookups))

    async def _run_call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._is_closed:
            raise _closed()
        task = self.runtime.loop.create_task(work())
        self._calls.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self._is_closed:
                raise _closed() from None
            raise
        finally:
            self._calls.discard(task)

    def _done(self, lookups: Sequence[Lookup], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._give_up(lookups, _closed())
        elif (error := task.exception()) is not None:
            # A fault of the client itself: the callers must not be left waiting because of it.
            logger.error("a lookup could not be made", exc_info=error)
            self._give_up(lookups, FlussError(f"the lookup could not be made: {type(error).__name__}: {error}"))

    async def close(self) -> None:
        """Stop at once. Lookups without an answer fail. May be called again."""
        self._is_closed = True
        self._slots.close(_closed())
        for queue in self._queues.values():
            if queue.timer is not None:
                queue.timer.cancel()
        self._queues.clear()
        await cancel_all([*self._tasks, *self._calls])
        self._give_up(list(self._waiting), _closed())
        self._take_submitted()


class _ServerQueue:
    """Lookups of one table that wait to be sent to one server."""

    __slots__ = ("server_id", "table", "timer", "waiting")

    def __init__(self, server_id: int, table: LookupTable) -> None:
        self.server_id = server_id
        self.table = table
        self.waiting: deque[Lookup] = deque()
        self.timer: asyncio.TimerHandle | None = None


class RequestSlots:
    """Counts requests in flight, up to a limit. Belongs to one event loop.

    Callers that wait for a slot get it in their order, when ``grant`` says that nothing else takes it first.
    """

    def __init__(self, count_max: int) -> None:
        self._free_count = count_max
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def has_free(self) -> bool:
        return self._free_count > 0

    def take(self) -> None:
        """Take a slot, which must be free."""
        assert self._free_count > 0, "every slot is taken"
        self._free_count -= 1

    def give_back(self) -> None:
        """A request has ended."""
        self._free_count += 1

    async def wait(self) -> None:
        """Take a slot as soon as there is one."""
        if self._free_count > 0 and not self._waiting:
            self.take()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The slot had been granted already.
                self.give_back()
                self.grant()
            raise

    def grant(self) -> None:
        """Give the slots that are free to the callers that wait."""
        while self._waiting and self._free_count > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                self.take()
                turn.set_result(None)

    def close(self, error: FlussError) -> None:
        """End all waits with an error."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error)


def _closed() -> FlussError:
    return FlussError("the connection is closed; create a new one")
