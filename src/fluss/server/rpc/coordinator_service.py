"""The coordinator's side of the protocol: all handlers together, and what runs beside them."""

from __future__ import annotations

from collections.abc import Mapping

from fluss.net.server_connection import Handler
from fluss.protocol.api import ApiKey
from fluss.server.coordinator.auto_partitioner import AutoPartitioner
from fluss.server.coordinator.coordinator import Coordinator
from fluss.server.coordinator.table_texts import TableTexts
from fluss.server.model import BucketHost
from fluss.server.periodic import Periodic
from fluss.server.rpc.acls import AclHandlers
from fluss.server.rpc.cluster import ClusterHandlers
from fluss.server.rpc.databases import DatabaseHandlers
from fluss.server.rpc.handler_group import HandlerGroup, RunningChanges
from fluss.server.rpc.metadata import MetadataHandlers
from fluss.server.rpc.snapshots import SnapshotHandlers
from fluss.server.rpc.tables import PartitionHandlers, TableHandlers
from fluss.server.rpc.writers import WriterHandlers


class CoordinatorService:
    """Serves the catalog. ``handlers`` can be used by any number of listeners of one event loop."""

    def __init__(self, coordinator: Coordinator, bucket_host: BucketHost) -> None:
        """Take the state and the host that keeps the buckets, which has opened those of all tables already."""
        catalog, authorizer, settings = coordinator.catalog, coordinator.authorizer, coordinator.settings
        configs, tags, clock = coordinator.configs, coordinator.tags, coordinator.clock
        catalog.attach(bucket_host)
        self._writer_ids = coordinator.writer_ids
        self._auto_partitioner = AutoPartitioner(
            catalog, settings, clock=clock, rng=coordinator.rng, server_count=lambda: tags.assignable_count
        )
        self._producer_cleanup = Periodic(
            "clean-up of producer offsets",
            settings.producer_offsets_cleanup_interval_ms,
            coordinator.producers.remove_expired,
        )
        self._running_changes = RunningChanges()
        texts = TableTexts(catalog, configs)
        self._groups: tuple[HandlerGroup, ...] = (
            DatabaseHandlers(catalog, authorizer),
            TableHandlers(catalog, authorizer, texts, tags, self._auto_partitioner, settings, clock),
            PartitionHandlers(catalog, authorizer, tags, settings, clock),
            MetadataHandlers(catalog, coordinator.nodes, authorizer, texts, settings),
            WriterHandlers(catalog, authorizer, self._writer_ids, coordinator.producers),
            SnapshotHandlers(catalog, authorizer),
            AclHandlers(coordinator.store, authorizer),
            ClusterHandlers(bucket_host, configs, tags, authorizer, coordinator.rng),
        )

    def handlers(self) -> dict[ApiKey, Handler]:
        """Return who answers which request."""
        handlers: dict[ApiKey, Handler] = {}
        for group in self._groups:
            changers: Mapping[ApiKey, Handler] = {
                key: self._running_changes.uninterrupted(handler) for key, handler in group.changers().items()
            }
            for key, handler in {**group.readers(), **changers}.items():
                assert key not in handlers, f"{key.name} has two handlers"
                handlers[key] = handler
        return handlers

    async def start(self) -> None:
        """Bring the partitions by time up to date, and keep looking after them. The bucket host must be ready."""
        await self._auto_partitioner.start()
        self._producer_cleanup.start()

    async def stop(self) -> None:
        """Finish the changes that were begun and give back what was reserved. The listeners have stopped before."""
        await self._auto_partitioner.stop()
        await self._producer_cleanup.stop()
        await self._running_changes.finish()
        await self._writer_ids.close()
