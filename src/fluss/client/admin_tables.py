"""Tables and their partitions: the part of the admin that creates, describes, alters and drops them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from fluss.client.admin_calls import AdminCalls, checked, checked_path, checked_text
from fluss.client.cluster import Cluster
from fluss.client.leader_calls import ask_leaders
from fluss.errors import ErrorCode, FlussError
from fluss.integers import int32
from fluss.protocol import api as apis
from fluss.protocol.convert import (
    partition_info,
    pb_added_column,
    pb_config_changes,
    pb_partition_spec,
    pb_table_path,
    raise_failure,
    schema_info,
    table_bucket,
    table_info,
)
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.partition import PartitionInfo, PartitionSpec
from fluss.schema.schema import Column, column_from_arrow
from fluss.schema.serde import table_to_json
from fluss.schema.table import SchemaInfo, TableBucket, TableInfo, TablePath, TableStats


class TableAdmin(AdminCalls):
    """Operations on tables and partitions."""

    async def create_table(
        self, table_path: TablePath, table_descriptor: TableDescriptor, ignore_if_exists: bool | None = None
    ) -> None:
        """Create a table; code 8 if it exists, 4 if the database is missing, 15, 17 and others if it cannot be."""
        descriptor = checked("table_descriptor", table_descriptor, TableDescriptor)
        request = pb.CreateTableRequest(
            table_path=pb_table_path(checked_path(table_path)),
            table_json=table_to_json(descriptor),
            ignore_if_exists=ignore_if_exists is not None and checked("ignore_if_exists", ignore_if_exists, bool),
        )
        await self._ask(apis.CREATE_TABLE, request)

    async def drop_table(self, table_path: TablePath, ignore_if_not_exists: bool = False) -> None:
        """Drop a table with all its data; code 7 if it is missing."""
        request = pb.DropTableRequest(
            table_path=pb_table_path(checked_path(table_path)),
            ignore_if_not_exists=checked("ignore_if_not_exists", ignore_if_not_exists, bool),
        )
        await self._ask(apis.DROP_TABLE, request)

    async def alter_table(
        self,
        table_path: TablePath,
        *,
        add_columns: Iterable[Column | pa.Field] = (),
        set_properties: Mapping[str, str] | None = None,
        reset_properties: Iterable[str] | None = None,
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Add columns at the end, or change properties; code 7 if the table is missing, 56 if it cannot be done.

        New columns must be nullable. Keys that do not begin with ``table.`` are custom properties. Columns and
        properties cannot be changed in one call. Scanners and writers that exist keep the schema they have.
        """
        request = pb.AlterTableRequest(
            table_path=pb_table_path(checked_path(table_path)),
            ignore_if_not_exists=checked("ignore_if_not_exists", ignore_if_not_exists, bool),
            config_changes=pb_config_changes(set_properties, reset_properties),
            add_columns=[_pb_add_column(column) for column in add_columns],
        )
        await self._ask(apis.ALTER_TABLE, request)

    async def list_tables(self, database_name: str) -> list[str]:
        """List the tables of a database; code 4 if it is missing."""
        request = pb.ListTablesRequest(database_name=checked_text("database_name", database_name))
        return list((await self._ask(apis.LIST_TABLES, request)).table_name)

    async def table_exists(self, table_path: TablePath) -> bool:
        """Whether there is a table of this name that may be seen."""
        request = pb.TableExistsRequest(table_path=pb_table_path(checked_path(table_path)))
        return (await self._ask(apis.TABLE_EXISTS, request)).exists

    async def get_table_info(self, table_path: TablePath) -> TableInfo:
        """Describe a table; code 7 if it is missing."""
        return await self._run(self._table_info(checked_path(table_path)))

    async def get_table(self, table_path: TablePath) -> TableInfo:
        """Describe a table: the older name of ``get_table_info``."""
        return await self.get_table_info(table_path)

    async def _table_info(self, path: TablePath) -> TableInfo:
        request = pb.GetTableInfoRequest(table_path=pb_table_path(path))
        response = await self._cluster.request_coordinator(apis.GET_TABLE_INFO, request)
        info = table_info(path, response)
        # Whoever asks wants to know how the table is now; so should everything else on this connection.
        await self._cluster.refresh([path])
        return info

    async def get_table_schema(self, table_path: TablePath, schema_id: int | None = None) -> SchemaInfo:
        """Return the newest schema of a table, or an older one by its id; code 9 if there is none."""
        request = pb.GetTableSchemaRequest(table_path=pb_table_path(checked_path(table_path)))
        if schema_id is not None:
            request.schema_id = int32("schema_id", schema_id)
        response = await self._ask(apis.GET_TABLE_SCHEMA, request)
        return schema_info(response)

    async def get_table_stats(self, table_path: TablePath, partition_name: str | None = None) -> TableStats:
        """Count the rows of a table, or of one of its partitions, without reading them; codes 7, 36 and 37."""
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
        return TableStats._create(await ask_leaders(self._cluster, path, buckets, self._row_counts))

    async def _row_counts(self, leader_id: int, buckets: list[TableBucket]) -> dict[TableBucket, int]:
        table_id = buckets[0].table_id
        request = pb.GetTableStatsRequest(
            table_id=table_id,
            buckets_req=[
                pb.PbTableStatsReqForBucket(partition_id=bucket.partition_id, bucket_id=bucket.bucket_id)
                for bucket in buckets
            ],
        )
        response = await self._cluster.request(leader_id, apis.GET_TABLE_STATS, request)
        counts = {}
        for answer in response.buckets_resp:
            raise_failure(answer)
            counts[table_bucket(table_id, answer)] = answer.row_count
        return counts

    # Partitions

    async def create_partition(
        self,
        table_path: TablePath,
        partition_spec: PartitionSpec | Mapping[str, str],
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a partition; code 42 if it exists, 43 if the spec does not fit, 37 if the table has no partitions."""
        request = pb.CreatePartitionRequest(
            table_path=pb_table_path(checked_path(table_path)),
            partition_spec=pb_partition_spec(PartitionSpec.of(partition_spec)),
            ignore_if_not_exists=checked("ignore_if_exists", ignore_if_exists, bool),
        )
        await self._ask(apis.CREATE_PARTITION, request)

    async def drop_partition(
        self,
        table_path: TablePath,
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
        self, table_path: TablePath, partition_spec: PartitionSpec | Mapping[str, str] | None = None
    ) -> list[PartitionInfo]:
        """List partitions, all or those with the given values; code 37 if the table has no partitions."""
        spec = None if partition_spec is None else PartitionSpec.of(partition_spec)
        return await self._run(partition_infos(self._cluster, checked_path(table_path), spec))

    async def list_partition_infos_with_spec(
        self, table_path: TablePath, partition_spec: PartitionSpec | Mapping[str, str] | None
    ) -> list[PartitionInfo]:
        """Another name of ``list_partition_infos`` with a spec."""
        return await self.list_partition_infos(table_path, partition_spec)


async def partition_infos(cluster: Cluster, path: TablePath, spec: PartitionSpec | None = None) -> list[PartitionInfo]:
    """Ask for the partitions of a table, all or those with the given values. Runs on the loop of the cluster."""
    request = pb.ListPartitionInfosRequest(table_path=pb_table_path(path))
    if spec is not None:
        request.partial_partition_spec.CopyFrom(pb_partition_spec(spec))
    response = await cluster.request_coordinator(apis.LIST_PARTITION_INFOS, request)
    return [partition_info(message) for message in response.partitions_info]


def check_partitioned(info: TableInfo) -> None:
    """Refuse to look for partitions in a table that has none (code 37)."""
    if not info.is_partitioned():
        raise FlussError(
            f"Table '{info.table_path}' is not a partitioned table", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION
        )


def _pb_add_column(column: Column | pa.Field) -> pb.PbAddColumn:
    if isinstance(column, pa.Field):
        column = column_from_arrow(column)
    checked("a new column", column, Column)
    checked_text("a column name", column.name)
    if column.comment is not None:
        checked_text("a column comment", column.comment)
    return pb_added_column(column)
