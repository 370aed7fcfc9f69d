"""Requests about partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.net.server_connection import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.partition import (
    PartitionSpec,
    check_partition_spec,
    ordered_values,
    partition_name,
    qualified_partition_name,
    spec_of_partition_name,
)
from fluss.schema.schema import shown_names
from fluss.schema.table import TablePath
from fluss.server.authorizer import Authorizer, Operation, Resource
from fluss.server.coordinator.auto_partition import AutoPartitionRule
from fluss.server.coordinator.catalog import Catalog
from fluss.server.coordinator.handler_support import (
    ChangeHandler,
    check_partitioned,
    partition_spec,
    partition_spec_message,
    table_path,
)
from fluss.server.coordinator.server_tags import ServerTags
from fluss.server.coordinator.settings import CoordinatorSettings
from fluss.server.coordinator.table_validation import check_bucket_count, check_replicas
from fluss.server.model import Clock, Table

# The system keeps it; users never create or drop it.
_HISTORICAL_PARTITION: Final = "__historical__"


class PartitionHandlers:
    """Creates, lists and drops partitions."""

    def __init__(
        self,
        catalog: Catalog,
        authorizer: Authorizer,
        tags: ServerTags,
        settings: CoordinatorSettings,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._authorizer = authorizer
        self._tags = tags
        self._settings = settings
        self._clock = clock

    def readers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.LIST_PARTITION_INFOS: self._list}

    def changers(self) -> Mapping[ApiKey, ChangeHandler]:
        return {ApiKey.CREATE_PARTITION: self._create, ApiKey.DROP_PARTITION: self._drop}

    def _list(self, context: RequestContext, request: pb.ListPartitionInfosRequest) -> pb.ListPartitionInfosResponse:
        table = self._partitioned_table(context, Operation.DESCRIBE, table_path(request.table_path))
        keys = table.descriptor.partition_keys
        partial = partition_spec(request.partial_partition_spec)
        unknown = partial.spec_map.keys() - set(keys)
        if unknown:
            raise FlussError(
                f"{shown_names(sorted(unknown))} is no partition key of {table.path}; "
                f"it is partitioned by {shown_names(keys)}",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            )
        response = pb.ListPartitionInfosResponse()
        for partition in self._catalog.partitions_of(table.table_id).values():
            spec = spec_of_partition_name(partition.name, keys)
            if partial.is_contained_in(spec):
                response.partitions_info.add(
                    partition_id=partition.partition_id, partition_spec=partition_spec_message(spec.spec_map)
                )
        return response

    async def _create(self, context: RequestContext, request: pb.CreatePartitionRequest) -> pb.CreatePartitionResponse:
        table = self._partitioned_table(context, Operation.WRITE, table_path(request.table_path))
        keys = table.descriptor.partition_keys
        spec = partition_spec(request.partition_spec)
        check_partition_spec(spec, keys, creating=True)
        rule = AutoPartitionRule.of(table.descriptor, self._settings.time_zone)
        rule.check_new_values(ordered_values(spec, keys), self._clock())
        if not await self._create_if_absent(table, partition_name(spec, keys)) and not request.ignore_if_not_exists:
            raise FlussError(
                f"Partition '{qualified_partition_name(spec, keys)}' already exists for table {table.path}",
                ErrorCode.PARTITION_ALREADY_EXISTS,
            )
        return pb.CreatePartitionResponse()

    async def _create_if_absent(self, table: Table, name: str) -> bool:
        if name in self._catalog.partitions_of(table.table_id):
            return False
        check_bucket_count(table.bucket_count, self._settings.bucket_count_max)
        check_replicas(table.descriptor, self._tags.assignable_count)
        count_max = self._settings.partition_count_max
        return bool(await self._catalog.create_partitions(table.table_id, [name], count_max=count_max))

    async def _drop(self, context: RequestContext, request: pb.DropPartitionRequest) -> pb.DropPartitionResponse:
        table = self._partitioned_table(context, Operation.WRITE, table_path(request.table_path))
        keys = table.descriptor.partition_keys
        spec = partition_spec(request.partition_spec)
        check_partition_spec(spec, keys, creating=False)
        _check_droppable(spec)
        dropped = await self._catalog.drop_partitions(table.table_id, [partition_name(spec, keys)])
        if not dropped and not request.ignore_if_not_exists:
            raise FlussError(
                f"Partition '{qualified_partition_name(spec, keys)}' does not exist for table {table.path}",
                ErrorCode.PARTITION_NOT_EXISTS,
            )
        return pb.DropPartitionResponse()

    def _partitioned_table(self, context: RequestContext, operation: Operation, path: TablePath) -> Table:
        self._authorizer.check(context, operation, Resource.table(path))
        table = self._catalog.existing_table(path)
        check_partitioned(table)
        return table


def _check_droppable(spec: PartitionSpec) -> None:
    if _HISTORICAL_PARTITION in spec.spec_map.values():
        raise FlussError(
            f"Partition '{_HISTORICAL_PARTITION}' belongs to the system and cannot be dropped",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
