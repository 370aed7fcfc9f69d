"""Requests about tables and their schemas.

Requests about partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.net.server_connection import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.convert import config_changes, partition_spec, pb_partition_spec, table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.names import check_database_name, check_table_name
from fluss.schema.partition import (
    PartitionSpec,
    check_partition_spec,
    ordered_values,
    partition_name,
    qualified_partition_name,
    spec_of_partition_name,
)
from fluss.schema.schema import shown_names
from fluss.schema.serde import schema_to_json, table_from_json
from fluss.schema.table import TablePath
from fluss.schema.table_options import AUTO_PARTITION_PREFIX
from fluss.server.authorizer import Authorizer, Operation, Resource
from fluss.server.coordinator.auto_partitioner import AutoPartitioner, AutoPartitionRule
from fluss.server.coordinator.catalog import Catalog
from fluss.server.coordinator.nodes import ServerTags
from fluss.server.coordinator.settings import CoordinatorSettings
from fluss.server.coordinator.table_descriptors import (
    check_request,
    with_added_columns,
    with_changed_properties,
    with_defaults,
)
from fluss.server.coordinator.table_texts import TableTexts
from fluss.server.coordinator.table_validation import TableLimits, check_bucket_count, check_replicas, validate_table
from fluss.server.model import Clock, Table
from fluss.server.rpc.handler_group import ChangeHandler, check_partitioned


class TableHandlers:
    """Creates, describes, changes and drops tables."""

    def __init__(
        self,
        catalog: Catalog,
        authorizer: Authorizer,
        texts: TableTexts,
        tags: ServerTags,
        auto_partitioner: AutoPartitioner,
        settings: CoordinatorSettings,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._authorizer = authorizer
        self._texts = texts
        self._tags = tags
        self._auto_partitioner = auto_partitioner
        self._settings = settings
        self._clock = clock

    def readers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.LIST_TABLES: self._list,
            ApiKey.TABLE_EXISTS: self._exists,
            ApiKey.GET_TABLE_INFO: self._info,
            ApiKey.GET_TABLE_SCHEMA: self._schema,
        }

    def changers(self) -> Mapping[ApiKey, ChangeHandler]:
        return {
            ApiKey.CREATE_TABLE: self._create,
            ApiKey.ALTER_TABLE: self._alter,
            ApiKey.DROP_TABLE: self._drop,
        }

    # Reading

    def _list(self, context: RequestContext, request: pb.ListTablesRequest) -> pb.ListTablesResponse:
        database_name = request.database_name
        return pb.ListTablesResponse(
            table_name=[
                name
                for name in self._catalog.table_names(database_name)
                if self._authorizer.shows(context, Operation.DESCRIBE, Resource.table(TablePath(database_name, name)))
            ]
        )

    def _exists(self, context: RequestContext, request: pb.TableExistsRequest) -> pb.TableExistsResponse:
        path = table_path(request.table_path)
        exists = self._catalog.table_by_path(path) is not None
        is_shown = self._authorizer.allows(context, Operation.DESCRIBE, Resource.table(path))
        return pb.TableExistsResponse(exists=exists and is_shown)

    def _info(self, context: RequestContext, request: pb.GetTableInfoRequest) -> pb.GetTableInfoResponse:
        path = table_path(request.table_path)
        self._authorizer.check(context, Operation.DESCRIBE, Resource.table(path))
        table = self._catalog.existing_table(path)
        return pb.GetTableInfoResponse(
            table_id=table.table_id,
            schema_id=table.schema_id,
            table_json=self._texts.table_json(table),
            created_time=table.created_ms,
            modified_time=table.modified_ms,
        )

    def _schema(self, context: RequestContext, request: pb.GetTableSchemaRequest) -> pb.GetTableSchemaResponse:
        path = table_path(request.table_path)
        self._authorizer.check(context, Operation.DESCRIBE, Resource.table(path))
        table = self._catalog.table_by_path(path)
        if table is None:
            raise FlussError(f"Table {path} does not exist and has no schema.", ErrorCode.SCHEMA_NOT_EXIST)
        schema_id = request.schema_id if request.HasField("schema_id") else table.schema_id
        schema = table.schemas.get(schema_id)
        if schema is None:
            raise FlussError(
                f"Table {path} has no schema of id {schema_id}; the newest one is {table.schema_id}",
                ErrorCode.SCHEMA_NOT_EXIST,
            )
        return pb.GetTableSchemaResponse(schema_id=schema_id, schema_json=schema_to_json(schema))

    # Changing

    async def _create(self, context: RequestContext, request: pb.CreateTableRequest) -> pb.CreateTableResponse:
        path = table_path(request.table_path)
        _check_names(path)
        self._authorizer.check(context, Operation.CREATE, Resource.database(path.database_name))
        descriptor = self._complete(table_from_json(request.table_json))
        table = await self._catalog.create_table(path, descriptor, ignore_if_exists=request.ignore_if_exists)
        if table is not None:
            await self._auto_partitioner.look_at(table)
        return pb.CreateTableResponse()

    def _complete(self, descriptor: TableDescriptor) -> TableDescriptor:
        """Return what is stored for what was sent, or refuse it."""
        self._check_allowed(descriptor)
        descriptor = with_defaults(descriptor, self._settings, self._texts.lake())
        validate_table(descriptor, self._limits())
        check_replicas(descriptor, self._tags.assignable_count)
        return descriptor

    def _check_allowed(self, descriptor: TableDescriptor) -> None:
        kind, is_allowed = "a log table", self._settings.log_tables_allowed
        if descriptor.has_primary_key():
            kind, is_allowed = "a primary-key table", self._settings.kv_tables_allowed
        if not is_allowed:
            raise FlussError(f"Creating {kind} is not allowed on this cluster", ErrorCode.INVALID_TABLE_EXCEPTION)

    def _limits(self) -> TableLimits:
        return TableLimits(self._settings.bucket_count_max, self._texts.lake())

    async def _alter(self, context: RequestContext, request: pb.AlterTableRequest) -> pb.AlterTableResponse:
        path = table_path(request.table_path)
        _check_names(path)
        self._authorizer.check(context, Operation.ALTER, Resource.table(path))
        check_request(request)
        table = await self._catalog.alter_table(
            path, lambda table: self._altered(table, request), ignore_if_not_exists=request.ignore_if_not_exists
        )
        if table is not None and any(c.config_key.startswith(AUTO_PARTITION_PREFIX) for c in request.config_changes):
            await self._auto_partitioner.look_at(table)
        return pb.AlterTableResponse()

    def _altered(self, table: Table, request: pb.AlterTableRequest) -> Table:
        if request.add_columns:
            return with_added_columns(table, request.add_columns, self._texts.lake())
        changes = config_changes(request.config_changes, invalid=ErrorCode.UNKNOWN_SERVER_ERROR)
        return with_changed_properties(table, changes, self._limits(), now_ms=self._clock())

    async def _drop(self, context: RequestContext, request: pb.DropTableRequest) -> pb.DropTableResponse:
        path = table_path(request.table_path)
        self._authorizer.check(context, Operation.DROP, Resource.table(path))
        await self._catalog.drop_table(path, ignore_if_not_exists=request.ignore_if_not_exists)
        return pb.DropTableResponse()


def _check_names(path: TablePath) -> None:
    check_database_name(path.database_name)
    check_table_name(path.table_name)


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
                    partition_id=partition.partition_id, partition_spec=pb_partition_spec(spec)
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
