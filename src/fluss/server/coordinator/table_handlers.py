"""Requests about tables and their schemas."""

from __future__ import annotations

from collections.abc import Mapping

from fluss.errors import ErrorCode, FlussError
from fluss.net.server_connection import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.names import check_database_name, check_table_name
from fluss.schema.serde import schema_to_json, table_from_json
from fluss.schema.table import TablePath
from fluss.server.authorizer import Authorizer, Operation, Resource
from fluss.server.coordinator.auto_partition import AutoPartitioner
from fluss.server.coordinator.catalog import Catalog
from fluss.server.coordinator.config_changes import read_changes
from fluss.server.coordinator.handler_support import ChangeHandler, table_path
from fluss.server.coordinator.server_tags import ServerTags
from fluss.server.coordinator.settings import CoordinatorSettings
from fluss.server.coordinator.table_alteration import check_request, with_added_columns, with_changed_properties
from fluss.server.coordinator.table_defaults import with_defaults
from fluss.server.coordinator.table_texts import TableTexts
from fluss.server.coordinator.table_validation import TableLimits, check_replicas, validate_table
from fluss.server.model import Clock, Table
from fluss.server.table_options import AUTO_PARTITION_PREFIX


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
        changes = read_changes(request.config_changes, invalid=ErrorCode.UNKNOWN_SERVER_ERROR)
        return with_changed_properties(table, changes, self._limits(), now_ms=self._clock())

    async def _drop(self, context: RequestContext, request: pb.DropTableRequest) -> pb.DropTableResponse:
        path = table_path(request.table_path)
        self._authorizer.check(context, Operation.DROP, Resource.table(path))
        await self._catalog.drop_table(path, ignore_if_not_exists=request.ignore_if_not_exists)
        return pb.DropTableResponse()


def _check_names(path: TablePath) -> None:
    check_database_name(path.database_name)
    check_table_name(path.table_name)
