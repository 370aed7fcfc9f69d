"""Where the batches of a bucket go: partition ids and leaders, looked up in the background when they are unknown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from fluss.client.cluster import Cluster
from fluss.client.write.bucket_queue import Backoff, BucketQueue
from fluss.client.write.physical_table import PhysicalTable
from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableBucket

# A table or partition that does not exist may be about to be created, or not have reached every server yet.
MISSING_CODES: Final = frozenset({int(ErrorCode.TABLE_NOT_EXIST), int(ErrorCode.PARTITION_NOT_EXISTS)})

logger = logging.getLogger(__name__)


class Route:
    """What is known about the way to one physical table."""

    __slots__ = ("backoff", "buckets", "lookup", "missing_since_s", "partition_id", "queues")

    def __init__(self) -> None:
        self.partition_id: int | None = None
        # The buckets as requests name them; empty until the partition id is known.
        self.buckets: dict[int, TableBucket] = {}
        # Those who wait for the lookup.
        self.queues: dict[BucketQueue, None] = {}
        self.lookup: asyncio.Task[None] | None = None
        self.backoff = Backoff()
        # Since when the server says that there is no such table or partition.
        self.missing_since_s: float | None = None


class Routes:
    """Finds leaders. Belongs to the event loop.

    ``on_found`` is called with a queue that was refused a leader when it may ask again, ``on_failed`` when a lookup
    failed; the lookup is then repeated, with pauses, as long as somebody asks.
    """

    def __init__(
        self,
        cluster: Cluster,
        on_found: Callable[[BucketQueue], None],
        on_failed: Callable[[BucketQueue, Route, FlussError], None],
    ) -> None:
        self._cluster = cluster
        self._on_found = on_found
        self._on_failed = on_failed
        self._routes: dict[PhysicalTable, Route] = {}
        self._loop = asyncio.get_running_loop()

    def leader_of(self, queue: BucketQueue) -> tuple[int, TableBucket] | None:
        """Return the server that leads a bucket, and the name of the bucket; or None, and begin to look it up."""
        route = self._route(queue.table)
        bucket = route.buckets.get(queue.bucket_id)
        server_id = None if bucket is None else self._cluster.leader_of(bucket)
        if bucket is not None and server_id is not None:
            return server_id, bucket
        route.queues[queue] = None
        if route.lookup is None:
            route.lookup = self._loop.create_task(self._look_up(queue.table, route))
        return None

    def forget_leader(self, bucket: TableBucket) -> None:
        """Somebody has found out that the metadata of a bucket is out of date."""
        self._cluster.forget_leaders(bucket.table_id, bucket.partition_id)

    async def close(self) -> None:
        lookups = [route.lookup for route in self._routes.values() if route.lookup is not None]
        for lookup in lookups:
            lookup.cancel()
        if lookups:
            await asyncio.wait(lookups)

    async def _look_up(self, table: PhysicalTable, route: Route) -> None:
        pause_s = route.backoff.until_s - self._loop.time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        error: FlussError | None = None
        try:
            await self._refresh(table, route)
        except FlussError as failure:
            error = failure
        except Exception as failure:
            # A fault of the client itself: nobody may be left waiting because of it.
            logger.exception("looking up the leaders of %s failed", table.name)
            error = FlussError(f"looking up the leaders of {table.name} failed: {type(failure).__name__}: {failure}")
        if error is not None:
            self._note_failure(route, error)
        queues, route.queues, route.lookup = list(route.queues), {}, None
        for queue in queues:
            bucket = route.buckets.get(queue.bucket_id)
            if bucket is not None and self._cluster.leader_of(bucket) is not None:
                self._on_found(queue)
            else:
                self._on_failed(queue, route, error or _no_leader(queue))

    async def _refresh(self, table: PhysicalTable, route: Route) -> None:
        path, partition_name = table.path, table.partition_name
        if partition_name is not None and route.partition_id is None:
            # Known already, if another part of the client has asked for it.
            self._set_partition(table, route, await self._cluster.partition_id(path, partition_name))
        if any(self._cluster.leader_of(route.buckets[queue.bucket_id]) is None for queue in route.queues):
            partitions = [] if partition_name is None else [(path, partition_name)]
            await self._cluster.refresh([path], partitions=partitions)
            if partition_name is not None:
                self._set_partition(table, route, await self._cluster.partition_id(path, partition_name))
        self._check_table(table)
        route.missing_since_s = None
        self._note_leaders(table, route)

    def _set_partition(self, table: PhysicalTable, route: Route, partition_id: int) -> None:
        if partition_id != route.partition_id:
            route.partition_id = partition_id
            route.buckets = _buckets(table, partition_id)

    def _check_table(self, table: PhysicalTable) -> None:
        info = self._cluster.table_info(table.path)
        if info is None or info.table_id != table.table_id:
            raise FlussError(
                f"Table '{table.path}' was dropped and created again; get it anew to write to it",
                ErrorCode.TABLE_NOT_EXIST,
            )

    def _note_leaders(self, table: PhysicalTable, route: Route) -> None:
        led = [number for number, bucket in route.buckets.items() if self._cluster.leader_of(bucket) is not None]
        table.prefer_buckets(led)
        if len(led) == len(route.buckets):
            route.backoff.end()
        else:
            route.backoff.begin(self._loop.time())

    def _note_failure(self, route: Route, error: FlussError) -> None:
        now_s = self._loop.time()
        route.backoff.begin(now_s)
        if error.error_code not in MISSING_CODES:
            route.missing_since_s = None
        elif route.missing_since_s is None:
            route.missing_since_s = now_s

    def _route(self, table: PhysicalTable) -> Route:
        route = self._routes.get(table)
        if route is None:
            route = self._routes[table] = Route()
            if table.partition_name is None:
                route.buckets = _buckets(table, None)
        return route


def _buckets(table: PhysicalTable, partition_id: int | None) -> dict[int, TableBucket]:
    return {
        bucket_id: TableBucket.new_with_partition(table.table_id, partition_id, bucket_id)
        for bucket_id in range(table.bucket_count)
    }


def _no_leader(queue: BucketQueue) -> FlussError:
    return FlussError(
        f"bucket {queue.bucket_id} of {queue.table.name} has no leader at the moment",
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
    )
