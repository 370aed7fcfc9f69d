"""The coordinator's state as a whole: everything that is loaded from disk when a server starts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fluss.server.authorizer import Authorizer
from fluss.server.coordinator.catalog import Catalog
from fluss.server.coordinator.dynamic_configs import DynamicConfigs
from fluss.server.coordinator.lake_snapshots import LakeHistory, LakeOffsetsFiles, LakeSnapshots
from fluss.server.coordinator.lake_tiering import LakeTiering
from fluss.server.coordinator.metadata.metadata_store import FILE_NAME, MetadataStore
from fluss.server.coordinator.nodes import Nodes, ServerTags
from fluss.server.coordinator.producers import ProducerRegistry, RowIds, WriterIds
from fluss.server.coordinator.settings import CoordinatorSettings
from fluss.server.model import Clock
from fluss.storage.remote.file_systems import FileSystemOptions
from fluss.storage.remote.security_tokens import SecurityTokens


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The parts of a coordinator. A server uses them in this order:

        coordinator = await Coordinator.open(data_dir, settings, nodes, authorizer, initial_configs, clock=clock)
        # A bucket host over coordinator.catalog is started. Then:
        service = CoordinatorService(coordinator, bucket_host)
        await service.start()
        # Listeners with service.handlers() are started, and stopped at the end.
        await service.stop()
        # The bucket host is stopped.
        await coordinator.close()

    The stored entries of the access control list are in the authorizer as soon as the coordinator is open.
    """

    store: MetadataStore
    catalog: Catalog
    nodes: Nodes
    authorizer: Authorizer
    configs: DynamicConfigs
    tags: ServerTags
    writer_ids: WriterIds
    row_ids: RowIds
    producers: ProducerRegistry
    lake_snapshots: LakeSnapshots
    lake_tiering: LakeTiering
    tokens: SecurityTokens
    settings: CoordinatorSettings
    clock: Clock
    rng: random.Random

    @classmethod
    async def open(
        cls,
        data_dir: Path,
        settings: CoordinatorSettings,
        nodes: Nodes,
        authorizer: Authorizer,
        initial_configs: Mapping[str, str],
        *,
        clock: Clock,
        tokens: SecurityTokens | None = None,
        lake_files: LakeOffsetsFiles | None = None,
        rng: random.Random | None = None,
    ) -> Coordinator:
        """Load everything. A file that is damaged or of a newer version is refused with a FlussError.

        ``initial_configs`` are the options of the server itself as texts by key. ``tokens`` are for clients that read
        remote storage; unless given, there is none. ``lake_files`` are in remote storage, too; unless given, in a
        directory beside the data.
        """
        store = await MetadataStore.open(data_dir / FILE_NAME)
        try:
            authorizer.add(await store.load_acls())
            catalog = await Catalog.open(store, clock=clock, bucket_count_max=settings.total_bucket_count_max)
            files = lake_files or LakeOffsetsFiles.open((), FileSystemOptions({}), data_dir)
            return cls(
                store=store,
                catalog=catalog,
                nodes=nodes,
                authorizer=authorizer,
                configs=await DynamicConfigs.open(store, initial_configs, is_super_user=settings.is_super_user),
                tags=await ServerTags.open(store, [nodes.tablet_server_id]),
                writer_ids=await WriterIds.open(store),
                row_ids=RowIds(store),
                producers=await ProducerRegistry.open(store, settings, clock=clock),
                lake_snapshots=await LakeSnapshots.open(
                    catalog, store.lake_snapshots, files, LakeHistory(*await store.load_history(), data_dir)
                ),
                lake_tiering=LakeTiering(catalog, await store.next_coordinator_epoch(), clock),
                tokens=tokens or SecurityTokens(None, FileSystemOptions({})),
                settings=settings,
                clock=clock,
                rng=rng or random.Random(),
            )
        except BaseException:
            await store.close()
            raise

    async def close(self) -> None:
        """Close the file. Nothing can be changed any more; what is in memory can still be read."""
        await self.store.close()
