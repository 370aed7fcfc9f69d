"""Tables that exist: described, listed, dropped, and found missing with the codes and texts that clients know.

Every request goes over a socket to a coordinator with its metadata in a real file.
"""

from __future__ import annotations

import json

import pytest

from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from tests.unit.server.coordinator.support import descriptor, new_column, path


def _drop(table: str, *, ignore: bool = False) -> pb.DropTableRequest:
    return pb.DropTableRequest(table_path=path(table), ignore_if_not_exists=ignore)


async def _names(cluster, database: str = "fluss") -> list[str]:
    return list((await cluster.ask(apis.LIST_TABLES, pb.ListTablesRequest(database_name=database))).table_name)


async def _exists(cluster, table: str) -> bool:
    return (await cluster.ask(apis.TABLE_EXISTS, pb.TableExistsRequest(table_path=path(table)))).exists


async def test_lists_and_existence_follow_at_once(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        assert await _names(cluster) == ["t"]
        assert await _exists(cluster, "fluss.t")
        await cluster.ask(apis.DROP_TABLE, _drop("fluss.t"))
        assert await _names(cluster) == []
        assert not await _exists(cluster, "fluss.t")


@pytest.mark.parametrize("table", ["fluss.missing", "missing.t", "fluss.not a name"])
async def test_a_missing_table_is_refused_whatever_its_name(make_cluster, table):
    async with make_cluster() as cluster:
        error = await cluster.refused(apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path(table)))
        assert (error.error_code, error.message) == (7, f"Table '{table}' does not exist.")
        error = await cluster.refused(apis.DROP_TABLE, _drop(table))
        assert (error.error_code, error.message) == (7, f"Table {table} does not exist.")
        await cluster.ask(apis.DROP_TABLE, _drop(table, ignore=True))
        assert await cluster.code(apis.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest(table_path=path(table))) == 9
        assert not await _exists(cluster, table)


async def test_dropping_lets_go_of_the_buckets_after_the_table_has_disappeared(make_cluster):
    async with make_cluster() as cluster:
        table = await cluster.create("fluss.t", descriptor())
        seen = []
        drop_buckets = cluster.host.drop_buckets

        async def watched(table, partition):
            seen.append(cluster.catalog.table_by_id(table.table_id))
            await drop_buckets(table, partition)

        cluster.host.drop_buckets = watched
        await cluster.ask(apis.DROP_TABLE, _drop("fluss.t"))
        assert seen == [None]
        assert (table.table_id, None) not in cluster.host.open


async def test_a_drop_stands_even_if_the_host_cannot_delete(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())

        async def failing(table, partition):
            raise OSError("the disk is gone")

        cluster.host.drop_buckets = failing
        await cluster.ask(apis.DROP_TABLE, _drop("fluss.t"))
        assert not await _exists(cluster, "fluss.t")


async def test_schemas_are_found_by_id_and_the_newest_without(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        await cluster.alter("fluss.t", columns=[new_column("extra", {"type": "STRING"})])
        for schema_id, names in ((1, ["id", "name"]), (2, ["id", "name", "extra"]), (None, ["id", "name", "extra"])):
            request = pb.GetTableSchemaRequest(table_path=path("fluss.t"), schema_id=schema_id)
            response = await cluster.ask(apis.GET_TABLE_SCHEMA, request)
            assert response.schema_id == (schema_id or 2)
            assert [column["name"] for column in json.loads(response.schema_json)["columns"]] == names
        missing = pb.GetTableSchemaRequest(table_path=path("fluss.t"), schema_id=3)
        assert await cluster.code(apis.GET_TABLE_SCHEMA, missing) == 9


async def test_lake_tables_show_where_their_lake_is_but_no_secrets(make_cluster):
    async with make_cluster() as cluster:
        configs = {
            "datalake.format": "paimon",
            "datalake.paimon.warehouse": "/lake",
            "datalake.paimon.s3.secret-key": "hush",
            "datalake.paimon.jdbc.password": "hush",
            "datalake.iceberg.uri": "elsewhere",
        }
        changes = [pb.PbAlterConfig(config_key=key, config_value=value, op_type=0) for key, value in configs.items()]
        await cluster.ask(apis.ALTER_CLUSTER_CONFIGS, pb.AlterClusterConfigsRequest(alter_configs=changes))
        await cluster.create("fluss.lake", descriptor(properties={"table.datalake.enabled": "true"}))
        await cluster.create("fluss.plain", descriptor())
        described = (await cluster.info("fluss.lake"))[1]["properties"]
        assert described["table.datalake.paimon.warehouse"] == "/lake"
        assert "table.datalake.iceberg.uri" not in described
        metadata = await cluster.ask(apis.GET_METADATA, pb.MetadataRequest(table_path=[path("fluss.lake")]))
        in_metadata = json.loads(metadata.table_metadata[0].table_json)["properties"]
        assert in_metadata == described
        assert "hush" not in str(described)
        assert "table.datalake.paimon.warehouse" not in (await cluster.info("fluss.plain"))[1]["properties"]
