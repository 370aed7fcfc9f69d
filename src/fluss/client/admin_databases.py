"""Databases: the part of the admin that creates, describes and drops them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fluss.client.admin_calls import AdminCalls, also_named, checked, checked_text
from fluss.protocol import api as apis
from fluss.protocol.convert import database_info, database_summary, pb_config_changes
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.database import DatabaseDescriptor, DatabaseInfo, DatabaseSummary
from fluss.schema.serde import database_to_json

_NAMED = also_named("name", "database_name")


class DatabaseAdmin(AdminCalls):
    """Operations on databases. The keyword for the database is ``database_name``, or ``name``."""

    @_NAMED
    async def create_database(
        self,
        database_name: str,
        database_descriptor: DatabaseDescriptor | bool | None = None,
        ignore_if_exists: bool | DatabaseDescriptor = False,
    ) -> None:
        """Create a database; code 6 if it exists, 16 if it cannot have this name.

        In older programs the flag comes before the descriptor, which is understood, too.
        """
        if isinstance(database_descriptor, bool):
            flag, rest = database_descriptor, ignore_if_exists
            database_descriptor, ignore_if_exists = (rest if isinstance(rest, DatabaseDescriptor) else None), flag
        request = pb.CreateDatabaseRequest(
            database_name=checked_text("database_name", database_name),
            ignore_if_exists=checked("ignore_if_exists", ignore_if_exists, bool),
        )
        if database_descriptor is not None:
            descriptor = checked("database_descriptor", database_descriptor, DatabaseDescriptor)
            request.database_json = database_to_json(descriptor)
        await self._ask(apis.CREATE_DATABASE, request)

    @_NAMED
    async def drop_database(self, database_name: str, ignore_if_not_exists: bool = False, cascade: bool = True) -> None:
        """Drop a database, by default with its tables; code 4 if it is missing, 5 if it has tables that must stay."""
        request = pb.DropDatabaseRequest(
            database_name=checked_text("database_name", database_name),
            ignore_if_not_exists=checked("ignore_if_not_exists", ignore_if_not_exists, bool),
            cascade=checked("cascade", cascade, bool),
        )
        await self._ask(apis.DROP_DATABASE, request)

    async def alter_database(
        self,
        database_name: str,
        *,
        comment: str | None = None,
        set_properties: Mapping[str, str] | None = None,
        reset_properties: Iterable[str] | None = None,
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Change the comment (an empty one removes it) and the custom properties of a database; code 4."""
        request = pb.AlterDatabaseRequest(
            database_name=checked_text("database_name", database_name),
            ignore_if_not_exists=checked("ignore_if_not_exists", ignore_if_not_exists, bool),
            config_changes=pb_config_changes(set_properties, reset_properties),
        )
        if comment is not None:
            request.comment = checked_text("comment", comment)
        await self._ask(apis.ALTER_DATABASE, request)

    async def list_databases(self) -> list[str]:
        """List the databases that may be seen, in no particular order."""
        response = await self._ask(apis.LIST_DATABASES, pb.ListDatabasesRequest())
        return list(response.database_name)

    async def list_database_summaries(self) -> list[DatabaseSummary]:
        """List databases with their age and their number of tables."""
        response = await self._ask(apis.LIST_DATABASES, pb.ListDatabasesRequest(include_summary=True))
        return [database_summary(message) for message in response.database_summary]

    @_NAMED
    async def database_exists(self, database_name: str) -> bool:
        """Whether there is a database of this name that may be seen."""
        request = pb.DatabaseExistsRequest(database_name=checked_text("database_name", database_name))
        return (await self._ask(apis.DATABASE_EXISTS, request)).exists

    @_NAMED
    async def get_database_info(self, database_name: str) -> DatabaseInfo:
        """Describe a database; code 4 if it is missing."""
        request = pb.GetDatabaseInfoRequest(database_name=checked_text("database_name", database_name))
        return database_info(database_name, await self._ask(apis.GET_DATABASE_INFO, request))
