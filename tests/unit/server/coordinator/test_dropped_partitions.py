"""Readers are told where the logs of dropped partitions ended: across restarts, for a while, and within bounds."""

from __future__ import annotations

from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.server.coordinator.catalog import DROPS_KEPT_MAX, DROPS_KEPT_MS, DroppedPartitions
from fluss.server.model import PartitionDrop
from tests.unit.server.coordinator.support import Cluster, descriptor, path, spec

_PARTITIONED = descriptor({"id": "INTEGER", "dt": "STRING"}, partition_key=["dt"], bucket_count=3)


async def _add(cluster: Cluster, *names: str) -> None:
    for name in names:
        request = pb.CreatePartitionRequest(
            table_path=path("d.t"), partition_spec=spec(dt=name), ignore_if_not_exists=False
        )
        await cluster.ask(apis.CREATE_PARTITION, request)


async def _drop(cluster: Cluster, name: str) -> None:
    request = pb.DropPartitionRequest(table_path=path("d.t"), partition_spec=spec(dt=name), ignore_if_not_exists=False)
    await cluster.ask(apis.DROP_PARTITION, request)


async def _told(cluster: Cluster, first_id: int | None = 0) -> dict[str, list[int]]:
    request = pb.ListPartitionInfosRequest(table_path=path("d.t"), dropped_from_id=first_id)
    response = await cluster.ask(apis.LIST_PARTITION_INFOS, request)
    return {each.partition_name: list(each.log_end_offsets) for each in response.dropped_partitions}


async def test_where_logs_ended_is_told_on_request_also_after_a_restart(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create_database("d")
        await cluster.create("d.t", _PARTITIONED)
        await _add(cluster, "a", "b", "c")
        ids = await cluster.partitions("d.t")
        await _drop(cluster, "a")
        await _drop(cluster, "b")
        assert await _told(cluster) == {"a": [0, 1, 2], "b": [0, 1, 2]}
        assert await _told(cluster, ids["b"]) == {"b": [0, 1, 2]}
        # Clients of others do not ask.
        assert await _told(cluster, None) == {}
    async with make_cluster() as cluster:
        assert await _told(cluster) == {"a": [0, 1, 2], "b": [0, 1, 2]}
        assert set(await cluster.partitions("d.t")) == {"c"}
        # A partition of the same name is another one.
        await _add(cluster, "a")
        assert await _told(cluster) == {"a": [0, 1, 2], "b": [0, 1, 2]}


async def test_a_dropped_table_takes_them_along(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create_database("d")
        await cluster.create("d.t", _PARTITIONED)
        await _add(cluster, "a")
        await _drop(cluster, "a")
        await cluster.ask(apis.DROP_TABLE, pb.DropTableRequest(table_path=path("d.t"), ignore_if_not_exists=False))
        await cluster.create("d.t", _PARTITIONED)
        assert await _told(cluster) == {}
    async with make_cluster() as cluster:
        assert await _told(cluster) == {}


async def test_they_are_forgotten_after_a_while(make_cluster, clock):
    async with make_cluster() as cluster:
        await cluster.create_database("d")
        await cluster.create("d.t", _PARTITIONED)
        await _add(cluster, "a", "b")
        await _drop(cluster, "a")
        clock.now_ms += DROPS_KEPT_MS + 1
        await _drop(cluster, "b")
        assert await _told(cluster) == {"b": [0, 1, 2]}
    async with make_cluster() as cluster:
        assert await _told(cluster) == {"b": [0, 1, 2]}


def test_no_more_than_so_many_are_kept_the_oldest_go_first():
    known = DroppedPartitions()
    known.put(PartitionDrop(id_, id_ % 2, "p", 1000) for id_ in range(DROPS_KEPT_MAX + 10))
    assert known.take_old(1000) == list(range(10))
    assert known.take_old(1000) == []
    assert known.of_table(0, 0)[0].partition_id == 10
    known.forget_table(0)
    assert known.of_table(0, 0) == []
    assert len(known.of_table(1, 11)) == DROPS_KEPT_MAX // 2
    assert known.take_old(1001 + DROPS_KEPT_MS) == list(range(11, DROPS_KEPT_MAX + 10, 2))
    assert known.of_table(1, 0) == []
