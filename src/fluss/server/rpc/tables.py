"""Requests about databases, tables, their schemas and their partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.convert import (
    COLUMN_POSITION_LAST,
    added_column,
    config_changes,
    partition_spec,
    pb_partition_spec,
    table_path,
)
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.cluster_info import ConfigChange, set_and_deleted
from fluss.schema.descriptor import DatabaseDescriptor
from fluss.schema.schema import Column, shown_names
from fluss.schema.serde import database_from_json, database_to_json, schema_to_json, table_from_json
from fluss.schema.table import (
    TablePath,
    check_column_name,
    check_database_name,
    check_table_name,
    spec_of_partition_name,
)
from fluss.server.authorizer import CLUSTER, Authorizer, Operation, Resource
from fluss.server.coordinator.catalog import DEFAULT_DATABASE, Catalog
from fluss.server.coordinator.table_service import TableService
from fluss.server.data_dir import FILE_NAMES
from fluss.server.model import Table
from fluss.server.rpc.handler_group import ChangeHandler


class DatabaseHandlers:
    """Creates, describes, changes and drops databases."""

    def __init__(self, catalog: Catalog, authorizer: Authorizer) -> None:
        self._catalog = catalog
        self._authorizer = authorizer

    def readers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.LIST_DATABASES: self._list,
            ApiKey.DATABASE_EXISTS: self._exists,
            ApiKey.GET_DATABASE_INFO: self._info,
        }

    def changers(self) -> Mapping[ApiKey, ChangeHandler]:
        return {
            ApiKey.CREATE_DATABASE: self._create,
            ApiKey.ALTER_DATABASE: self._alter,
            ApiKey.DROP_DATABASE: self._drop,
        }

    def _list(self, context: RequestContext, request: pb.ListDatabasesRequest) -> pb.ListDatabasesResponse:
        names = [
            name
            for name in self._catalog.database_names()
            if self._authorizer.shows(context, Operation.DESCRIBE, Resource.database(name))
        ]
        if not request.include_summary:
            return pb.ListDatabasesResponse(database_name=names)
        return pb.ListDatabasesResponse(database_summary=[self._summary(name) for name in names])

    def _summary(self, name: str) -> pb.PbDatabaseSummary:
        database = self._catalog.existing_database(name)
        return pb.PbDatabaseSummary(
            database_name=name, created_time=database.created_ms, table_count=self._catalog.table_count(name)
        )

    def _exists(self, context: RequestContext, request: pb.DatabaseExistsRequest) -> pb.DatabaseExistsResponse:
        name = request.database_name
        exists = self._catalog.database(name) is not None
        is_shown = name == DEFAULT_DATABASE or self._authorizer.allows(
            context, Operation.DESCRIBE, Resource.database(name)
        )
        return pb.DatabaseExistsResponse(exists=exists and is_shown)

    def _info(self, context: RequestContext, request: pb.GetDatabaseInfoRequest) -> pb.GetDatabaseInfoResponse:
        self._authorizer.check(context, Operation.DESCRIBE, Resource.database(request.database_name))
        database = self._catalog.existing_database(request.database_name)
        return pb.GetDatabaseInfoResponse(
            database_json=database_to_json(database.descriptor),
            created_time=database.created_ms,
            modified_time=database.modified_ms,
        )

    async def _create(self, context: RequestContext, request: pb.CreateDatabaseRequest) -> pb.CreateDatabaseResponse:
        self._authorizer.check(context, Operation.CREATE, CLUSTER)
        _check_new_name(request.database_name)
        descriptor = database_from_json(request.database_json) if request.database_json else DatabaseDescriptor()
        await self._catalog.create_database(
            request.database_name, descriptor, ignore_if_exists=request.ignore_if_exists
        )
        return pb.CreateDatabaseResponse()

    async def _alter(self, context: RequestContext, request: pb.AlterDatabaseRequest) -> pb.AlterDatabaseResponse:
        self._authorizer.check(context, Operation.ALTER, Resource.database(request.database_name))
        changes = config_changes(request.config_changes, invalid=ErrorCode.UNKNOWN_SERVER_ERROR)
        comment = request.comment if request.HasField("comment") else None
        await self._catalog.alter_database(
            request.database_name,
            lambda descriptor: _changed(descriptor, changes, comment),
            ignore_if_not_exists=request.ignore_if_not_exists,
        )
        return pb.AlterDatabaseResponse()

    async def _drop(self, context: RequestContext, request: pb.DropDatabaseRequest) -> pb.DropDatabaseResponse:
        self._authorizer.check(context, Operation.DROP, Resource.database(request.database_name))
        await self._catalog.drop_database(
            request.database_name, ignore_if_not_exists=request.ignore_if_not_exists, cascade=request.cascade
        )
        return pb.DropDatabaseResponse()


def _check_new_name(name: str) -> None:
    """Refuse a name that no database can have, or that a file of the server has (code 16)."""
    check_database_name(name)
    if name.lower() in FILE_NAMES:
        raise FlussError(
            f"Database name '{name}' is the name of a file of the server; choose another one",
            ErrorCode.INVALID_DATABASE_EXCEPTION,
        )


def _changed(
    descriptor: DatabaseDescriptor, changes: Iterable[ConfigChange], comment: str | None
) -> DatabaseDescriptor:
    """Return a descriptor with other properties and comment. No comment leaves it, an empty one removes it."""
    values, deleted = set_and_deleted(changes)
    properties = {key: value for key, value in descriptor.custom_properties.items() if key not in deleted}
    return DatabaseDescriptor(descriptor.comment if comment is None else comment or None, {**properties, **values})


class TableHandlers:
    """Creates, describes, changes and drops tables."""

    def __init__(self, catalog: Catalog, authorizer: Authorizer, tables: TableService) -> None:
        self._catalog = catalog
        self._authorizer = authorizer
        self._tables = tables

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
        """List the tables that the sender may see.

        A client that may not see a database learns nothing from the answer, nor from how long it takes: the list is
        made from what it may see, and is empty for a database that does not exist, too.
        """
        database_name = request.database_name
        if self._authorizer.allows(context, Operation.DESCRIBE, Resource.database(database_name)):
            self._catalog.existing_database(database_name)
        if self._authorizer.shows_all_tables(context, database_name):
            exists = self._catalog.database(database_name) is not None
            return pb.ListTablesResponse(table_name=self._catalog.table_names(database_name) if exists else ())
        names = self._authorizer.tables_with_entries(context, database_name)
        paths = [TablePath(database_name, name) for name in names]
        shown = [path for path in paths if self._authorizer.shows(context, Operation.DESCRIBE, Resource.table(path))]
        return pb.ListTablesResponse(
            table_name=sorted(path.table_name for path in shown if self._catalog.table_by_path(path) is not None)
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
            table_json=self._tables.table_json(table),
            created_time=table.created_ms,
            modified_time=table.modified_ms,
            remote_data_dir=self._tables.remote_data_dir(table.table_id),
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
        descriptor = table_from_json(request.table_json)
        await self._tables.create(path, descriptor, ignore_if_exists=request.ignore_if_exists)
        return pb.CreateTableResponse()

    async def _alter(self, context: RequestContext, request: pb.AlterTableRequest) -> pb.AlterTableResponse:
        path = table_path(request.table_path)
        _check_names(path)
        self._authorizer.check(context, Operation.ALTER, Resource.table(path))
        _check_alteration(path, request)
        ignore_if_not_exists = request.ignore_if_not_exists
        if request.add_columns:
            columns = _added_columns(request.add_columns)
            await self._tables.add_columns(path, columns, ignore_if_not_exists=ignore_if_not_exists)
        else:
            changes = _config_changes(request.config_changes)
            await self._tables.alter_properties(path, changes, ignore_if_not_exists=ignore_if_not_exists)
        return pb.AlterTableResponse()

    async def _drop(self, context: RequestContext, request: pb.DropTableRequest) -> pb.DropTableResponse:
        path = table_path(request.table_path)
        self._authorizer.check(context, Operation.DROP, Resource.table(path))
        await self._catalog.drop_table(path, ignore_if_not_exists=request.ignore_if_not_exists)
        return pb.DropTableResponse()


def _check_names(path: TablePath) -> None:
    check_database_name(path.database_name)
    check_table_name(path.table_name)


def _check_alteration(path: TablePath, request: pb.AlterTableRequest) -> None:
    """Refuse what no table supports: both kinds of changes at once (code 56), or other changes of columns (code -1)."""
    has_column_changes = request.add_columns or request.drop_columns or request.rename_columns or request.modify_columns
    if request.config_changes and has_column_changes:
        raise FlussError(
            f"Change either the columns or the properties of {path}, and send the other as a second request",
            ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
        )
    for what, columns in (
        ("dropped", request.drop_columns),
        ("renamed", request.rename_columns),
        ("modified", request.modify_columns),
    ):
        if columns:
            raise FlussError(
                f"Columns cannot be {what}; the only supported change is to add columns at the end",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )


def _added_columns(messages: Iterable[pb.PbAddColumn]) -> Iterator[Column]:
    for message in messages:
        if message.column_position_type != COLUMN_POSITION_LAST:
            raise FlussError(
                f"Column '{message.column_name}' can only be added at the end", ErrorCode.UNKNOWN_SERVER_ERROR
            )
        check_column_name(message.column_name)
        yield added_column(message)


def _config_changes(messages: Iterable[pb.PbAlterConfig]) -> Iterator[ConfigChange]:
    for message in messages:
        yield from config_changes((message,), invalid=ErrorCode.UNKNOWN_SERVER_ERROR)


class PartitionHandlers:
    """Creates, lists and drops partitions."""

    def __init__(self, catalog: Catalog, authorizer: Authorizer, tables: TableService) -> None:
        self._catalog = catalog
        self._authorizer = authorizer
        self._tables = tables

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
                    partition_id=partition.partition_id,
                    partition_spec=pb_partition_spec(spec),
                    remote_data_dir=self._tables.remote_data_dir(partition.partition_id),
                )
        if request.HasField("dropped_from_id"):
            for dropped in self._catalog.dropped_partitions_of(table.table_id, request.dropped_from_id):
                response.dropped_partitions.add(
                    partition_id=dropped.partition_id,
                    partition_name=dropped.name,
                    log_end_offsets=dropped.log_ends,
                )
        return response

    async def _create(self, context: RequestContext, request: pb.CreatePartitionRequest) -> pb.CreatePartitionResponse:
        table = self._partitioned_table(context, Operation.WRITE, table_path(request.table_path))
        spec = partition_spec(request.partition_spec)
        # The protocol calls it so; it means to ignore a partition that exists.
        await self._tables.create_partition(table, spec, ignore_if_exists=request.ignore_if_not_exists)
        return pb.CreatePartitionResponse()

    async def _drop(self, context: RequestContext, request: pb.DropPartitionRequest) -> pb.DropPartitionResponse:
        table = self._partitioned_table(context, Operation.WRITE, table_path(request.table_path))
        spec = partition_spec(request.partition_spec)
        await self._tables.drop_partition(table, spec, ignore_if_not_exists=request.ignore_if_not_exists)
        return pb.DropPartitionResponse()

    def _partitioned_table(self, context: RequestContext, operation: Operation, path: TablePath) -> Table:
        self._authorizer.check(context, operation, Resource.table(path))
        return self._tables.partitioned_table(path)
