"""Requests about databases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.convert import config_changes
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.cluster_info import ConfigChange, set_and_deleted
from fluss.schema.database import DatabaseDescriptor
from fluss.schema.naming_rules import check_database_name
from fluss.schema.serde import database_from_json, database_to_json
from fluss.server.authorizer import CLUSTER, Authorizer, Operation, Resource
from fluss.server.coordinator.catalog import DEFAULT_DATABASE, Catalog
from fluss.server.data_dir import FILE_NAMES
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
