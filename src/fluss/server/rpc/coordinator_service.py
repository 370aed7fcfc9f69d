"""The coordinator's side of the protocol: all handlers together, and what runs beside them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from fluss.errors import ErrorCode, FlussError
from fluss.metrics import Metrics
from fluss.net.request_handler import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.server.coordinator.auto_partitioner import AutoPartitioner
from fluss.server.coordinator.coordinator import Coordinator
from fluss.server.coordinator.lake_tiering import TieringState
from fluss.server.coordinator.table_service import LakeCatalog, TableService
from fluss.server.model import BucketHost
from fluss.server.periodic import Periodic
from fluss.server.rpc.cluster_admin import AclHandlers, ClusterHandlers
from fluss.server.rpc.get_metadata import MetadataHandlers
from fluss.server.rpc.handler_group import ChangeHandler, HandlerGroup
from fluss.server.rpc.lake import LakeHandlers
from fluss.server.rpc.table_copies import SnapshotFiles, SnapshotHandlers
from fluss.server.rpc.tables import DatabaseHandlers, PartitionHandlers, TableHandlers
from fluss.server.rpc.writer_ids import WriterHandlers

_LAKE_CLEANUP_INTERVAL_MS = 60_000

logger = logging.getLogger(__name__)


class CoordinatorService:
    """Serves the catalog. ``handlers`` can be used by any number of listeners of one event loop."""

    def __init__(
        self, coordinator: Coordinator, bucket_host: BucketHost, snapshot_files: SnapshotFiles | None = None
    ) -> None:
        """Take the state and the host that keeps the buckets, which has opened those of all tables already.

        ``snapshot_files`` tells the files of snapshots in remote storage; None if there is none.
        """
        catalog, authorizer, settings = coordinator.catalog, coordinator.authorizer, coordinator.settings
        configs, tags, clock = coordinator.configs, coordinator.tags, coordinator.clock
        catalog.attach(bucket_host)
        self._writer_ids = coordinator.writer_ids
        self._bucket_count_max = settings.total_bucket_count_max
        self._auto_partitioner = AutoPartitioner(
            catalog, settings, clock=clock, rng=coordinator.rng, server_count=lambda: tags.assignable_count
        )
        self._producer_cleanup = Periodic(
            "clean-up of producer offsets",
            settings.producer_offsets_cleanup_interval_ms,
            coordinator.producers.remove_expired,
        )
        self._running_changes = RunningChanges(bucket_host.check_change)
        self._lake_tiering = coordinator.lake_tiering
        self._lake_cleanup = Periodic(
            "clean-up of lake snapshots", _LAKE_CLEANUP_INTERVAL_MS, coordinator.lake_snapshots.forget_dropped
        )
        tables = TableService(
            *(catalog, configs, tags, self._auto_partitioner, settings, clock),
            *(LakeCatalog(configs), coordinator.lake_snapshots, self._lake_tiering),
        )
        self._groups: tuple[HandlerGroup, ...] = (
            DatabaseHandlers(catalog, authorizer),
            TableHandlers(catalog, authorizer, tables),
            PartitionHandlers(catalog, authorizer, tables),
            MetadataHandlers(catalog, coordinator.nodes, authorizer, tables, settings),
            WriterHandlers(catalog, authorizer, self._writer_ids, coordinator.producers),
            SnapshotHandlers(
                *(catalog, authorizer, coordinator.store.remote_logs, coordinator.store.kv_snapshots),
                *(snapshot_files, coordinator.tokens, clock),
            ),
            LakeHandlers(catalog, authorizer, coordinator.lake_snapshots, self._lake_tiering),
            AclHandlers(coordinator.store, authorizer),
            ClusterHandlers(bucket_host, self._auto_partitioner, configs, tags, authorizer, coordinator.rng),
        )

    def handlers(self) -> dict[ApiKey, Handler]:
        """Return the handler of each request."""
        handlers: dict[ApiKey, Handler] = {}
        for group in self._groups:
            changers: Mapping[ApiKey, Handler] = {
                key: self._running_changes.uninterrupted(handler) for key, handler in group.changers().items()
            }
            for key, handler in {**group.readers(), **changers}.items():
                assert key not in handlers, f"{key.name} has two handlers"
                handlers[key] = handler
        return handlers

    @property
    def crowded_count(self) -> int:
        """How many tables lack partitions by time because a limit is reached."""
        return self._auto_partitioner.crowded_count

    def show(self, metrics: Metrics) -> None:
        """Show the limit of buckets, and what it is in the way of."""
        metrics.gauge("fluss_buckets_max", "The most buckets that there may be.", lambda: self._bucket_count_max)
        metrics.gauge(
            "fluss_tables_without_room",
            "Tables that lack partitions by time because a limit of partitions or buckets is reached.",
            lambda: self._auto_partitioner.crowded_count,
        )
        for state in TieringState:
            metrics.gauge(
                f"fluss_lake_tables_{state}",
                f"Tables with a lake whose next round of tiering is {state}.",
                partial(self._count_tiered, state),
            )
        metrics.gauge(
            "fluss_lake_failed_rounds",
            "Rounds of tiering that failed, or whose service fell silent, since the start.",
            lambda: sum(table.failure_count for table in self._lake_tiering.tables()),
        )

    def _count_tiered(self, state: TieringState) -> int:
        return sum(table.state is state for table in self._lake_tiering.tables())

    async def start(self) -> None:
        """Bring the partitions by time up to date, and keep looking after them. The bucket host must be ready."""
        await self._auto_partitioner.start()
        self._producer_cleanup.start()
        self._lake_tiering.start()
        self._lake_cleanup.start()

    async def stop(self) -> None:
        """Finish the changes that were begun and give back what was reserved. The listeners have stopped before."""
        await self._auto_partitioner.stop()
        await self._producer_cleanup.stop()
        await self._lake_cleanup.stop()
        await self._running_changes.finish()
        await self._writer_ids.close()


class RunningChanges:
    """Keeps changes going whose client has gone, and waits for them at the end.

    At most ``count_max`` are under way or wait for their turn; further ones are told to come back (code 25).
    """

    def __init__(self, check_change: Callable[[], None] = lambda: None, *, count_max: int = 10_000) -> None:
        """``check_change`` raises why nothing may be changed any more."""
        self._check_change = check_change
        self._tasks: set[asyncio.Task[Any]] = set()
        self._count_max = count_max

    def uninterrupted(self, handler: ChangeHandler) -> Handler:
        """Return a handler that gives up waiting when its client disconnects, while the change goes on."""

        def start(context: RequestContext, request: Any) -> Awaitable[Any]:
            self._check_change()
            if len(self._tasks) >= self._count_max:
                raise FlussError(
                    f"{len(self._tasks)} changes wait for their turn; try again later", ErrorCode.REQUEST_TIME_OUT
                )
            task = asyncio.get_running_loop().create_task(handler(context, request))
            answer = asyncio.shield(task)
            self._tasks.add(task)
            task.add_done_callback(partial(self._finished, answer))
            return answer

        return start

    async def finish(self) -> None:
        """Wait until nothing is going on."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _finished(self, answer: asyncio.Future[Any], task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if answer.cancelled() and error is not None and not isinstance(error, FlussError):
            logger.error("a change failed whose client had gone", exc_info=error)
