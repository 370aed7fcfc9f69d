"""The metadata request: all servers always, only what was asked for, and the codes and texts that clients compare.

Every request goes over a socket to a coordinator with its metadata in a real file.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from fluss.net.listener import ListenerSettings
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from tests.unit.server.coordinator.support import NOW_MS, descriptor, path, spec

PARTITIONED = descriptor({"id": "INTEGER", "dt": "STRING"}, partition_key=["dt"], bucket_count=2)


def _partition_path(table: str, name: str | None) -> pb.PbPhysicalTablePath:
    database_name, table_name = table.split(".")
    return pb.PbPhysicalTablePath(database_name=database_name, table_name=table_name, partition_name=name)


async def _ask(cluster, **request) -> pb.MetadataResponse:
    return await cluster.ask(apis.GET_METADATA, pb.MetadataRequest(**request))


async def _create_partition(cluster, table: str, value: str) -> int:
    request = pb.CreatePartitionRequest(
        table_path=path(table), partition_spec=spec(dt=value), ignore_if_not_exists=False
    )
    await cluster.ask(apis.CREATE_PARTITION, request)
    return (await cluster.partitions(table))[value]


def _check_servers(cluster, response: pb.MetadataResponse) -> None:
    (tablet_server,) = response.tablet_servers
    for node in (response.coordinator_server, tablet_server):
        assert (node.node_id, node.host, node.port) == (0, "server.example", cluster.listener.port)
        assert not node.HasField("listeners")


async def test_an_empty_request_gets_the_servers_and_nothing_else(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        response = await _ask(cluster)
        _check_servers(cluster, response)
        assert not response.table_metadata
        assert not response.partition_metadata


async def test_a_client_is_told_the_address_of_the_listener_it_came_by(make_cluster):
    async with make_cluster(listener=ListenerSettings(name="CLIENT")) as cluster:
        cluster.coordinator.nodes.set_listener("OTHER", "elsewhere", 1)
        _check_servers(cluster, await _ask(cluster))


async def test_a_table_comes_with_its_descriptor_and_a_leader_for_every_bucket(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor(bucket_count=3))
        await cluster.create("fluss.other", descriptor())
        response = await _ask(cluster, table_path=[path("fluss.t"), path("fluss.t")])
        _check_servers(cluster, response)
        (table,) = response.table_metadata
        assert (table.table_path.database_name, table.table_path.table_name) == ("fluss", "t")
        assert (table.table_id, table.schema_id) == (0, 1)
        assert (table.created_time, table.modified_time) == (NOW_MS, NOW_MS)
        assert json.loads(table.table_json) == (await cluster.info("fluss.t"))[1]
        assert json.loads(table.table_json)["bucket_count"] == 3
        buckets = [(b.bucket_id, b.leader_id, list(b.replica_id), b.leader_epoch) for b in table.bucket_metadata]
        assert buckets == [(0, 0, [0], 0), (1, 0, [0], 0), (2, 0, [0], 0)]


async def test_the_description_follows_changes(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        await _ask(cluster, table_path=[path("fluss.t")])
        await cluster.alter("fluss.t", values={"custom": "1"})
        (table,) = (await _ask(cluster, table_path=[path("fluss.t")])).table_metadata
        assert json.loads(table.table_json)["custom_properties"] == {"custom": "1"}


async def test_partitions_come_only_when_they_are_asked_for(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.p", PARTITIONED)
        first = await _create_partition(cluster, "fluss.p", "a")
        second = await _create_partition(cluster, "fluss.p", "b")
        response = await _ask(cluster, table_path=[path("fluss.p")])
        (table,) = response.table_metadata
        assert not table.bucket_metadata
        assert not response.partition_metadata
        response = await _ask(cluster, partitions_path=[_partition_path("fluss.p", "a")])
        (partition,) = response.partition_metadata
        assert (partition.table_id, partition.partition_name, partition.partition_id) == (0, "a", first)
        assert [(bucket.bucket_id, bucket.leader_id) for bucket in partition.bucket_metadata] == [(0, 0), (1, 0)]
        response = await _ask(cluster, table_path=[path("fluss.p")], partitions_id=[second, second])
        assert [partition.partition_name for partition in response.partition_metadata] == ["b"]


async def test_a_partition_path_without_a_name_is_no_partition(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        response = await _ask(cluster, table_path=[path("fluss.t")], partitions_path=[_partition_path("fluss.t", None)])
        assert len(response.table_metadata) == 1
        assert not response.partition_metadata


@pytest.mark.parametrize("table", ["fluss.missing", "missing.t", "not a.name"])
async def test_a_missing_table_refuses_the_request(make_cluster, table):
    async with make_cluster() as cluster:
        await cluster.create("fluss.t", descriptor())
        error = await cluster.refused(apis.GET_METADATA, pb.MetadataRequest(table_path=[path("fluss.t"), path(table)]))
        assert (error.error_code, error.message) == (7, f"Table '{table}' does not exist.")
        missing = pb.MetadataRequest(partitions_path=[_partition_path(table, "a")])
        assert await cluster.code(apis.GET_METADATA, missing) == 7


async def test_missing_partitions_are_refused_with_texts_that_clients_compare(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.p", PARTITIONED)
        by_name = pb.MetadataRequest(partitions_path=[_partition_path("fluss.p", "a")])
        error = await cluster.refused(apis.GET_METADATA, by_name)
        assert error.error_code == 36
        assert error.message == "Table partition 'fluss.p(p=a)' does not exist."
        by_id = pb.MetadataRequest(table_path=[path("fluss.p")], partitions_id=[7])
        error = await cluster.refused(apis.GET_METADATA, by_id)
        assert error.error_code == 36
        assert error.message.startswith(
            "The partition id '7' does not exist in fluss.p; it may have been dropped: list"
        )
        error = await cluster.refused(apis.GET_METADATA, pb.MetadataRequest(partitions_id=[7]))
        assert error.message.startswith("The partition id '7' does not exist; it may have been dropped: list")


async def test_the_news_of_a_missing_partition_is_held_back_a_little(make_cluster):
    """Some writers ask again at once, without end. Others are not held up meanwhile."""
    async with make_cluster(settings={"missing_partition_delay_ms": 2000}) as cluster:
        await cluster.create("fluss.p", PARTITIONED)
        missing = pb.MetadataRequest(partitions_path=[_partition_path("fluss.p", "a")])
        loop = asyncio.get_running_loop()
        begun = loop.time()
        waiting = asyncio.create_task(cluster.refused(apis.GET_METADATA, missing))
        await _ask(cluster, table_path=[path("fluss.p")])
        assert not waiting.done()
        await waiting
        assert loop.time() - begun >= 1.9
