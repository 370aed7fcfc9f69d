"""Databases, tables and partitions: the part of the admin that creates, describes, alters and drops them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import pyarrow as pa

from fluss.client.admin.base import AdminCalls, also_named, checked, checked_path, checked_text
from fluss.client.kernel.leaders import ask_leaders
from fluss.client.kernel.missing_partitions import check_possible, create_partition
from fluss.client.kernel.table_calls import leader_row_counts, partition_infos
from fluss.errors import ErrorCode, FlussError
from fluss.integers import int32
from fluss.protocol import api as apis
from fluss.protocol.convert import (
    database_info,
    database_summary,
    pb_added_column,
    pb_config_changes,
    pb_partition_spec,
    pb_table_path,
    schema_info,
    table_info,
)
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.descriptor import DatabaseDescriptor, DatabaseInfo, DatabaseSummary, TableDescriptor
from fluss.schema.schema import Column, column_from_arrow, shown_names
from fluss.schema.serde import database_to_json, table_to_json
from fluss.schema.table import PartitionInfo, PartitionSpec, SchemaInfo, TableBucket, TableInfo, TablePath, TableStats
from fluss.schema.value_objects import string_dict, string_list

_NAMED = also_named("name", "database_name")
# How servers say that they cannot change columns in this way.
_REFUSED_CODES: Final = frozenset(
    {ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_ALTER_TABLE_EXCEPTION, ErrorCode.UNSUPPORTED_VERSION}
)


class CatalogAdmin(AdminCalls):
    """Operations on databases, tables and partitions. The keyword for a database is ``database_name``, or ``name``."""

    # Databases

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

    # Tables

    async def create_table(
        self, table_path: TablePath | str, table_descriptor: TableDescriptor, ignore_if_exists: bool | None = None
    ) -> None:
        """Create a table; code 8 if it exists, 4 if the database is missing, 15, 17 and others if it cannot be."""
        descriptor = checked("table_descriptor", table_descriptor, TableDescriptor)
        request = pb.CreateTableRequest(
            table_path=pb_table_path(checked_path(table_path)),
            table_json=table_to_json(descriptor),
            ignore_if_exists=ignore_if_exists is not None and checked("ignore_if_exists", ignore_if_exists, bool),
        )
        await self._ask(apis.CREATE_TABLE, request)

    async def drop_table(self, table_path: TablePath | str, ignore_if_not_exists: bool = False) -> None:
        """Drop a table with all its data; code 7 if it is missing."""
        request = pb.DropTableRequest(
            table_path=pb_table_path(checked_path(table_path)),
            ignore_if_not_exists=checked("ignore_if_not_exists", ignore_if_not_exists, bool),
        )
        await self._ask(apis.DROP_TABLE, request)

    async def alter_table(
        self,
        table_path: TablePath | str,
        *,
        add_columns: Iterable[Column | pa.Field] = (),
        drop_columns: Iterable[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        set_properties: Mapping[str, str] | None = None,
        reset_properties: Iterable[str] | None = None,
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Add columns at the end, or change properties; code 7 if the table is missing, 56 if it cannot be done.

        New columns must be nullable. Keys that do not begin with ``table.`` are custom properties. Columns and
        properties cannot be changed in one call. Scanners and writers that exist keep the schema they have.

        ``drop_columns`` and ``rename_columns`` (``{"old": "new"}``) are in the protocol, and no server can do them yet:
        neither this one nor any release of Apache Fluss up to 1.0. They are sent, for servers that will; until then the
        error says how to do without.
        """
        path = checked_path(table_path)
        dropped = [checked_text("a column name", name) for name in string_list("drop_columns", drop_columns)]
        renamed = string_dict("rename_columns", rename_columns)
        request = pb.AlterTableRequest(
            table_path=pb_table_path(path),
            ignore_if_not_exists=checked("ignore_if_not_exists", ignore_if_not_exists, bool),
            config_changes=pb_config_changes(set_properties, reset_properties),
            add_columns=[_pb_add_column(column) for column in add_columns],
            drop_columns=[pb.PbDropColumn(column_name=name) for name in dropped],
            rename_columns=[
                pb.PbRenameColumn(old_column_name=old, new_column_name=new) for old, new in renamed.items()
            ],
        )
        if not (dropped or renamed):
            await self._ask(apis.ALTER_TABLE, request)
            return
        try:
            await self._ask(apis.ALTER_TABLE, request)
        except FlussError as error:
            if error.error_code not in _REFUSED_CODES:
                raise
            raise FlussError(
                f"{error.message.rstrip('.')}. {_way_around(path, dropped, renamed)}", error.error_code
            ) from None
        await self._run(self._check_columns_gone(path, dropped, renamed))

    async def _check_columns_gone(self, path: TablePath, dropped: list[str], renamed: Mapping[str, str]) -> None:
        """Refuse to believe a server that has passed over what it does not know, as those before 0.9.1 do."""
        if not await self._exists(path):
            return
        names = (await self._table_info(path)).schema.column_names
        left = [name for name in (*dropped, *renamed) if name in names and name not in renamed.values()]
        if left:
            raise FlussError(
                f"The server has left {shown_names(left)} of {path} as it was: it is too old for this. "
                + _way_around(path, dropped, renamed),
                ErrorCode.UNSUPPORTED_VERSION,
            )

    async def list_tables(self, database_name: str) -> list[str]:
        """List the tables of a database; code 4 if it is missing."""
        request = pb.ListTablesRequest(database_name=checked_text("database_name", database_name))
        return list((await self._ask(apis.LIST_TABLES, request)).table_name)

    async def table_exists(self, table_path: TablePath | str) -> bool:
        """Whether there is a table of this name that may be seen."""
        return await self._run(self._exists(checked_path(table_path)))

    async def _exists(self, path: TablePath) -> bool:
        request = pb.TableExistsRequest(table_path=pb_table_path(path))
        return (await self._cluster.request_coordinator(apis.TABLE_EXISTS, request)).exists

    async def get_table_info(self, table_path: TablePath | str) -> TableInfo:
        """Describe a table; code 7 if it is missing."""
        return await self._run(self._table_info(checked_path(table_path)))

    async def get_table(self, table_path: TablePath | str) -> TableInfo:
        """Describe a table: the older name of ``get_table_info``."""
        return await self.get_table_info(table_path)

    async def _table_info(self, path: TablePath) -> TableInfo:
        request = pb.GetTableInfoRequest(table_path=pb_table_path(path))
        response = await self._cluster.request_coordinator(apis.GET_TABLE_INFO, request)
        info = table_info(path, response)
        # The caller wants to know how the table is now; so should everything else on this connection.
        await self._cluster.refresh([path])
        return info

    async def get_table_schema(self, table_path: TablePath | str, schema_id: int | None = None) -> SchemaInfo:
        """Return the newest schema of a table, or an older one by its id; code 9 if there is none."""
        request = pb.GetTableSchemaRequest(table_path=pb_table_path(checked_path(table_path)))
        if schema_id is not None:
            request.schema_id = int32("schema_id", schema_id)
        response = await self._ask(apis.GET_TABLE_SCHEMA, request)
        return schema_info(response)

    async def get_table_stats(self, table_path: TablePath | str, partition_name: str | None = None) -> TableStats:
        """Count the rows of a table, or of one of its partitions, without reading them; codes 7, 36 and 37.

        Servers count the offsets of a log table. A few of them have no row: those that writes leave which are repeated
        exactly once, by Spark or with ``fluss load --resume``.
        """
        name = None if partition_name is None else checked_text("partition_name", partition_name)
        return await self._run(self._table_stats(checked_path(table_path), name))

    async def _table_stats(self, path: TablePath, partition_name: str | None) -> TableStats:
        info = await self._table_info(path)
        if partition_name is not None:
            check_partitioned(info)
            await self._cluster.refresh([path], partitions=[(path, partition_name)])
            partition_ids: list[int | None] = [await self._cluster.partition_id(path, partition_name)]
        elif info.is_partitioned():
            partition_ids = [partition.partition_id for partition in await partition_infos(self._cluster, path)]
        else:
            partition_ids = [None]
        buckets = [
            TableBucket.new_with_partition(info.table_id, partition_id, bucket_id)
            for partition_id in partition_ids
            for bucket_id in range(info.num_buckets)
        ]
        return TableStats._create(
            await ask_leaders(self._cluster, path, buckets, partial(leader_row_counts, self._cluster))
        )

    # Partitions

    async def create_partition(
        self,
        table_path: TablePath | str,
        partition_spec: PartitionSpec | Mapping[str, str],
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a partition; code 42 if it exists, 43 if the spec does not fit, 37 if the table has no partitions.

        Values are texts, such as ``{"day": "2026-11-16"}``. One that no row can have in its column is refused with
        code 43.
        """
        path, spec = checked_path(table_path), PartitionSpec.of(partition_spec)
        await self._run(self._create_partition(path, spec, checked("ignore_if_exists", ignore_if_exists, bool)))

    async def _create_partition(self, path: TablePath, spec: PartitionSpec, ignore_if_exists: bool) -> None:
        # Not every server looks at the types of values.
        known = self._cluster.table_info(path)
        try:
            self._check_possible(known, spec)
        except FlussError:
            # Another table may have the name by now.
            known = None
        if known is None:
            with suppress(FlussError):
                await self._cluster.refresh([path])
            self._check_possible(self._cluster.table_info(path), spec)
        await create_partition(self._cluster, path, spec, ignore_if_exists=ignore_if_exists)

    def _check_possible(self, info: TableInfo | None, spec: PartitionSpec) -> None:
        if info is not None and info.is_partitioned():
            check_possible(info, spec)

    async def drop_partition(
        self,
        table_path: TablePath | str,
        partition_spec: PartitionSpec | Mapping[str, str],
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Drop a partition with its data; code 36 if it is missing, 37 if the table has no partitions."""
        request = pb.DropPartitionRequest(
            table_path=pb_table_path(checked_path(table_path)),
            partition_spec=pb_partition_spec(PartitionSpec.of(partition_spec)),
            ignore_if_not_exists=checked("ignore_if_not_exists", ignore_if_not_exists, bool),
        )
        await self._ask(apis.DROP_PARTITION, request)

    async def list_partition_infos(
        self, table_path: TablePath | str, partition_spec: PartitionSpec | Mapping[str, str] | None = None
    ) -> list[PartitionInfo]:
        """List partitions, all or those with the given values; code 37 if the table has no partitions."""
        spec = None if partition_spec is None else PartitionSpec.of(partition_spec)
        return await self._run(partition_infos(self._cluster, checked_path(table_path), spec))

    async def list_partition_infos_with_spec(
        self, table_path: TablePath | str, partition_spec: PartitionSpec | Mapping[str, str] | None
    ) -> list[PartitionInfo]:
        """Another name of ``list_partition_infos`` with a spec."""
        return await self.list_partition_infos(table_path, partition_spec)


def check_partitioned(info: TableInfo) -> None:
    """Refuse to look for partitions in a table that has none (code 37)."""
    if not info.is_partitioned():
        raise FlussError(
            f"Table '{info.table_path}' is not a partitioned table", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION
        )


def _way_around(path: TablePath, dropped: list[str], renamed: Mapping[str, str]) -> str:
    """Say how to have what a server cannot do."""
    hints = []
    if dropped:
        hints.append(f"To do without {shown_names(dropped)}, leave it out where you read, with columns=[...]")
    if renamed:
        old, new = next(iter(renamed.items()))
        hints.append(f"To have '{old}' as '{new}', name it so where you read, with to_arrow().rename_columns(...)")
    copy = f"or create a new table with the columns that you want, and copy the rows of {path} into it with write_arrow"
    return f"{'; '.join(hints)}; {copy} (upsert_arrow, if there is a primary key)"


def _pb_add_column(column: Column | pa.Field) -> pb.PbAddColumn:
    if isinstance(column, pa.Field):
        column = column_from_arrow(column)
    checked("a new column", column, Column)
    checked_text("a column name", column.name)
    if column.comment is not None:
        checked_text("a column comment", column.comment)
    return pb_added_column(column)
