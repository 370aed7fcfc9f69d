"""GetMetadata, which clients ask for most often: the servers, and the leaders of the buckets of tables.

Nearly all of an answer are its buckets, and those of all tables and partitions with equally many buckets are the same
bytes. They are encoded once, and the answers are made of them without a copy: 4,096 buckets of a partition would take
milliseconds of the event loop each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.codec import EncodedMessage, Parts
from fluss.protocol.convert import pb_table_path, table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.protowire import length_prefix
from fluss.schema.table import TablePath
from fluss.server.authorizer import Authorizer, Operation, Resource
from fluss.server.coordinator.catalog import Catalog
from fluss.server.coordinator.nodes import COORDINATOR_ID, Nodes
from fluss.server.coordinator.settings import CoordinatorSettings
from fluss.server.coordinator.table_service import TableService
from fluss.server.model import Partition, Table
from fluss.server.rpc.handler_group import ChangeHandler

_LEADER_EPOCH = 0
_TABLES_FIELD: Final = pb.MetadataResponse.TABLE_METADATA_FIELD_NUMBER
_PARTITIONS_FIELD: Final = pb.MetadataResponse.PARTITION_METADATA_FIELD_NUMBER


class MetadataHandlers:
    """Answers from memory, whatever is asked for and nothing more. Tables the sender may not see are left out."""

    def __init__(
        self,
        catalog: Catalog,
        nodes: Nodes,
        authorizer: Authorizer,
        tables: TableService,
        settings: CoordinatorSettings,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._catalog = catalog
        self._nodes = nodes
        self._authorizer = authorizer
        self._table_json = tables.table_json
        self._remote_data_dir = tables.remote_data_dir
        self._missing_partition_delay_s = settings.missing_partition_delay_ms / 1000
        self._sleep = sleep

    def readers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.GET_METADATA: self._metadata}

    def changers(self) -> Mapping[ApiKey, ChangeHandler]:
        return {}

    def _metadata(
        self, context: RequestContext, request: pb.MetadataRequest
    ) -> EncodedMessage | Awaitable[EncodedMessage]:
        try:
            return self._answer(context, request)
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            # Writers whose partition does not exist ask again at once, for as long as it takes.
            return self._refuse_later(error)

    async def _refuse_later(self, error: FlussError) -> EncodedMessage:
        await self._sleep(self._missing_partition_delay_s)
        raise error

    def _answer(self, context: RequestContext, request: pb.MetadataRequest) -> EncodedMessage:
        response = pb.MetadataResponse()
        address = self._nodes.address(context.listener_name)
        if address is not None:
            self._add_servers(response, *address)
        parts: Parts = [response.SerializeToString()]
        for table in self._tables(context, map(table_path, request.table_path)):
            parts += self._table_parts(table)
        for partition in self._partitions(context, request):
            parts += self._partition_parts(partition)
        return EncodedMessage(pb.MetadataResponse, parts)

    def _add_servers(self, response: pb.MetadataResponse, host: str, port: int) -> None:
        node = pb.PbServerNode(node_id=COORDINATOR_ID, host=host, port=port)
        response.coordinator_server.CopyFrom(node)
        response.tablet_servers.add(
            node_id=self._nodes.tablet_server_id, host=host, port=port, rack=self._nodes.rack or None
        )

    def _tables(self, context: RequestContext, paths: Iterable[TablePath]) -> Iterable[Table]:
        for path in dict.fromkeys(paths):
            if self._is_shown(context, path):
                yield self._catalog.existing_table(path)

    def _partitions(self, context: RequestContext, request: pb.MetadataRequest) -> Iterable[Partition]:
        """Yield the partitions that are asked for by name or by id, each once."""
        found: dict[int, Partition] = {}
        for message in request.partitions_path:
            # Some clients name tables without partitions here, too.
            if message.HasField("partition_name") and self._is_shown(context, table_path(message)):
                partition = self._partition_by_name(table_path(message), message.partition_name)
                found[partition.partition_id] = partition
        for partition_id in request.partitions_id:
            found[partition_id] = self._partition_by_id(context, partition_id, request)
        return found.values()

    def _is_shown(self, context: RequestContext, path: TablePath) -> bool:
        return self._authorizer.allows(context, Operation.DESCRIBE, Resource.table(path))

    def _partition_by_name(self, path: TablePath, name: str) -> Partition:
        table = self._catalog.existing_table(path)
        partition = self._catalog.partitions_of(table.table_id).get(name)
        if partition is None:
            # Clients compare this text.
            raise FlussError(f"Table partition '{path}(p={name})' does not exist.", ErrorCode.PARTITION_NOT_EXISTS)
        return partition

    def _partition_by_id(self, context: RequestContext, partition_id: int, request: pb.MetadataRequest) -> Partition:
        """Return a partition. Those of tables that the sender may not see are missing as if they did not exist."""
        partition = self._catalog.partition_by_id(partition_id)
        table = None if partition is None else self._catalog.table_by_id(partition.table_id)
        if partition is None or table is None or not self._is_shown(context, table.path):
            # An id does not say of which table it was, but most clients ask for that one as well.
            paths = {table_path(message) for message in request.table_path}
            where = f" in {paths.pop()}" if len(paths) == 1 else ""
            raise FlussError(
                f"The partition id '{partition_id}' does not exist{where}; it may have been dropped: list the "
                "partitions of the table again, and take one of their ids",
                ErrorCode.PARTITION_NOT_EXISTS,
            )
        return partition

    def _table_parts(self, table: Table) -> Parts:
        metadata = pb.PbTableMetadata(
            table_path=pb_table_path(table.path),
            table_id=table.table_id,
            schema_id=table.schema_id,
            table_json=self._table_json(table),
            created_time=table.created_ms,
            modified_time=table.modified_ms,
            remote_data_dir=self._remote_data_dir(table.table_id),
        ).SerializeToString()
        # The buckets of a partitioned table are those of its partitions.
        buckets = b"" if table.is_partitioned else self._buckets(table)
        return [length_prefix(_TABLES_FIELD, len(metadata) + len(buckets)) + metadata, buckets]

    def _partition_parts(self, partition: Partition) -> Parts:
        table = self._catalog.table_by_id(partition.table_id)
        assert table is not None, "a partition goes together with its table"
        metadata = pb.PbPartitionMetadata(
            table_id=partition.table_id, partition_name=partition.name, partition_id=partition.partition_id
        ).SerializeToString()
        buckets = self._buckets(table)
        return [length_prefix(_PARTITIONS_FIELD, len(metadata) + len(buckets)) + metadata, buckets]

    def _buckets(self, table: Table) -> bytes:
        return _buckets_led_by(self._nodes.tablet_server_id, table.bucket_count, is_partition=table.is_partitioned)


@lru_cache(maxsize=64)
def _buckets_led_by(server_id: int, bucket_count: int, *, is_partition: bool) -> bytes:
    """Return buckets with one replica each, encoded as the field of a table or a partition."""
    buckets = [
        pb.PbBucketMetadata(
            bucket_id=bucket_id, leader_id=server_id, replica_id=[server_id], leader_epoch=_LEADER_EPOCH
        )
        for bucket_id in range(bucket_count)
    ]
    owner = pb.PbPartitionMetadata if is_partition else pb.PbTableMetadata
    return owner(bucket_metadata=buckets).SerializePartialToString()
