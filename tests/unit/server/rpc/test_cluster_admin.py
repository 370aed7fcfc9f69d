"""The cluster itself: its health, its configuration while it runs, tags of servers, and rebalancing one server.

Every request goes over a socket to a coordinator with its metadata in a real file.
"""

from __future__ import annotations

import time

import pytest

from fluss.errors import FlussError
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.server.coordinator.dynamic_configs import DynamicConfigs
from fluss.server.coordinator.metadata.metadata_store import MetadataStore
from fluss.server.model import BucketHealth
from tests.unit.server.coordinator.support import create_request, descriptor, path, spec

CREDENTIALS = "security.sasl.plain.credentials"
SET, DELETE, APPEND, SUBTRACT = range(4)


def _alter(*changes: tuple[str, str | None, int]) -> pb.AlterClusterConfigsRequest:
    return pb.AlterClusterConfigsRequest(
        alter_configs=[pb.PbAlterConfig(config_key=key, config_value=value, op_type=op) for key, value, op in changes]
    )


async def _change(cluster, key: str, value: str | None, op: int = SET) -> None:
    await cluster.ask(apis.ALTER_CLUSTER_CONFIGS, _alter((key, value, op)))


async def _described(cluster) -> dict[str, tuple[str, str]]:
    response = await cluster.ask(apis.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest())
    return {entry.config_key: (entry.config_value, entry.config_source) for entry in response.configs}


# Health


@pytest.mark.parametrize(("active", "status"), [(5, 0), (4, 2)])
async def test_health_is_green_when_all_buckets_work(make_cluster, active, status):
    async with make_cluster() as cluster:
        cluster.host.health_now = BucketHealth(5, active)
        health = await cluster.ask(apis.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest())
        assert (health.num_replicas, health.num_leader_replicas) == (5, 5)
        assert (health.in_sync_replicas, health.active_leader_replicas) == (active, active)
        assert health.status == status


# Configuration


async def test_dynamic_values_win_over_initial_ones_and_survive_a_restart(make_cluster):
    initial = {"server.data-disk.write-limit-ratio": "0.9", "netty.server.max-queued-requests": "500"}
    async with make_cluster(initial_configs=initial) as cluster:
        await _change(cluster, "server.data-disk.write-limit-ratio", "0.95")
    async with make_cluster(initial_configs=initial) as cluster:
        described = await _described(cluster)
        assert described["server.data-disk.write-limit-ratio"] == ("0.95", "DYNAMIC_SERVER_CONFIG")
        assert described["netty.server.max-queued-requests"] == ("500", "INITIAL_SERVER_CONFIG")
        await _change(cluster, "server.data-disk.write-limit-ratio", None, DELETE)
        described = await _described(cluster)
        assert described["server.data-disk.write-limit-ratio"] == ("0.9", "INITIAL_SERVER_CONFIG")


async def test_secrets_are_never_shown(make_cluster):
    initial = {
        CREDENTIALS: "admin:hush,alice:hush:too",
        "security.sasl.plain.jaas.config": 'X required user_a="hush";',
        "datalake.paimon.s3.secret-key": "hush",
        "some.password": "hush",
    }
    async with make_cluster(initial_configs=initial) as cluster:
        described = await _described(cluster)
        assert described[CREDENTIALS][0] == "admin:***,alice:***"
        assert "hush" not in str(described)
        error = await cluster.refused(apis.ALTER_CLUSTER_CONFIGS, _alter((CREDENTIALS, "hush", SET)))
        assert error.error_code == 64
        assert "hush" not in error.message


REFUSED = {
    "a key that is fixed": ("netty.server.max-queued-requests", "1", SET),
    "a key that does not exist": ("kv.snapshot.intervall", "1 s", SET),
    "a key that cannot be changed at run time": ("kv.rocksdb.shared-rate-limiter.bytes-per-sec", "1 mb", SET),
    "a prefix without a name": ("datalake.", "1", SET),
    "a duration that is none": ("kv.snapshot.interval", "soon", SET),
    "a ratio above one": ("server.data-disk.write-limit-ratio", "1.5", SET),
    "a ratio that is not a number": ("server.data-disk.write-limit-ratio", "nan", SET),
    "a lake format that is none": ("datalake.format", "delta", SET),
    "a lake without a format": ("datalake.enabled", "true", SET),
    "appending to a single value": ("kv.snapshot.interval", "1 s", APPEND),
    "subtracting from a single value": ("kv.snapshot.interval", "1 s", SUBTRACT),
    "an operation that is none": ("kv.snapshot.interval", "1 s", 7),
    "setting nothing": ("kv.snapshot.interval", None, SET),
    "a value without end": ("remote.data.dirs", "/x" * 600_000, SET),
    "deleting a key that is fixed": ("netty.server.max-queued-requests", None, DELETE),
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED.keys())
async def test_a_change_that_cannot_be_refuses_the_whole_request(make_cluster, change):
    async with make_cluster() as cluster:
        request = _alter(("datalake.paimon.warehouse", "/lake", SET), change)
        assert await cluster.code(apis.ALTER_CLUSTER_CONFIGS, request) == 64
        assert await _described(cluster) == {}


async def test_a_misspelt_key_comes_with_the_nearest_match(make_cluster):
    async with make_cluster() as cluster:
        error = await cluster.refused(apis.ALTER_CLUSTER_CONFIGS, _alter(("kv.snapshot.intervall", "1 s", SET)))
        assert "did you mean 'kv.snapshot.interval'?" in error.message


async def test_ratios_are_checked_together(make_cluster):
    async with make_cluster() as cluster:
        request = _alter(
            ("server.data-disk.write-limit-ratio", "0.5", SET), ("server.data-disk.write-recover-ratio", "0.6", SET)
        )
        assert await cluster.code(apis.ALTER_CLUSTER_CONFIGS, request) == 64


async def test_users_are_appended_and_subtracted(make_cluster):
    async with make_cluster(initial_configs={CREDENTIALS: "admin:0"}) as cluster:
        await _change(cluster, CREDENTIALS, "alice:1,bob:2", APPEND)
        assert cluster.coordinator.configs.value(CREDENTIALS) == "admin:0,alice:1,bob:2"
        await _change(cluster, CREDENTIALS, "alice:3", APPEND)
        assert cluster.coordinator.configs.value(CREDENTIALS) == "admin:0,alice:3,bob:2"
        await _change(cluster, CREDENTIALS, "bob,admin:any", SUBTRACT)
        assert cluster.coordinator.configs.value(CREDENTIALS) == "alice:3"


async def test_lists_are_appended_and_subtracted(make_cluster):
    async with make_cluster() as cluster:
        await _change(cluster, "remote.data.dirs", "/a,/b", SET)
        await _change(cluster, "remote.data.dirs", "/b,/c", APPEND)
        assert cluster.coordinator.configs.value("remote.data.dirs") == "/a,/b,/c"
        await _change(cluster, "remote.data.dirs", "/a,/x", SUBTRACT)
        assert cluster.coordinator.configs.value("remote.data.dirs") == "/b,/c"
        await _change(cluster, "remote.data.dirs", "/b,/c", SUBTRACT)
        assert cluster.coordinator.configs.value("remote.data.dirs") is None


async def test_long_lists_are_combined_quickly_and_do_not_grow_without_end(make_cluster):
    async def append_without_end(cluster):
        for first in range(0, 1_000_000, 20_000):
            more = ",".join(f"/{number}" for number in range(first, first + 20_000))
            await _change(cluster, "remote.data.dirs", more, APPEND)

    async with make_cluster() as cluster:
        begun = time.process_time()
        with pytest.raises(FlussError, match="characters, at most") as refusal:
            await append_without_end(cluster)
        assert refusal.value.error_code == 64
        few = ",".join(f"/{number}" for number in range(10))
        await _change(cluster, "remote.data.dirs", few, SUBTRACT)
        assert cluster.coordinator.configs.value("remote.data.dirs").startswith("/10,/11,")
        assert time.process_time() - begun < 10


async def test_a_part_that_watches_a_key_is_asked_and_told(make_cluster):
    async with make_cluster() as cluster:
        configs = cluster.coordinator.configs
        told = []

        def check(text):
            if text == "3 s":
                raise FlussError("not three")

        stop = configs.on_change("kv.snapshot.interval", told.append, check=check)
        await _change(cluster, "kv.snapshot.interval", "1 s")
        await _change(cluster, "kv.snapshot.interval", "1 s")
        assert await cluster.code(apis.ALTER_CLUSTER_CONFIGS, _alter(("kv.snapshot.interval", "3 s", SET))) == 64
        await _change(cluster, "datalake.format", "paimon")
        await _change(cluster, "kv.snapshot.interval", None, DELETE)
        assert told == ["1 s", None]
        stop()
        await _change(cluster, "kv.snapshot.interval", "9 s")
        assert told == ["1 s", None]


async def test_one_who_cannot_follow_a_change_does_not_undo_it(make_cluster, caplog):
    async with make_cluster() as cluster:
        told = []

        def failing(text):
            raise RuntimeError("a bug")

        cluster.coordinator.configs.on_change("kv.snapshot.interval", failing)
        cluster.coordinator.configs.on_change("kv.snapshot.interval", told.append)
        await _change(cluster, "kv.snapshot.interval", "1 s")
        assert told == ["1 s"]
    assert "could not be followed" in caplog.text


async def test_an_initial_value_that_is_none_is_refused_at_the_start(tmp_path):
    store = await MetadataStore.open(tmp_path / "metadata.sqlite")
    try:
        with pytest.raises(FlussError) as failure:
            await DynamicConfigs.open(store, {"kv.snapshot.interval": "soon"})
        assert failure.value.error_code == 64
    finally:
        await store.close()


# Tags


def _tag(request_type, *server_ids: int, tag: int = 0):
    return request_type(server_ids=server_ids, server_tag=tag)


async def test_tags_are_added_and_removed_for_all_servers_or_none(make_cluster):
    async with make_cluster() as cluster:
        add, remove = pb.AddServerTagRequest, pb.RemoveServerTagRequest
        for message, code in (
            (_tag(add, 0, 1), 58),
            (_tag(add, 0, tag=7), -1),
        ):
            assert await cluster.code(apis.ADD_SERVER_TAG, message) == code
        assert await cluster.code(apis.REMOVE_SERVER_TAG, _tag(remove, 0)) == 60
        await cluster.ask(apis.ADD_SERVER_TAG, _tag(add, 0, tag=1))
        await cluster.ask(apis.ADD_SERVER_TAG, _tag(add, 0, tag=1))
        assert await cluster.code(apis.ADD_SERVER_TAG, _tag(add, 0)) == 59
        assert await cluster.code(apis.REMOVE_SERVER_TAG, _tag(remove, 0)) == 60
        assert await cluster.code(apis.REMOVE_SERVER_TAG, _tag(remove, 0, 1, tag=1)) == 58
    async with make_cluster() as cluster:
        await cluster.ask(apis.REMOVE_SERVER_TAG, _tag(pb.RemoveServerTagRequest, 0, tag=1))
        assert await cluster.code(apis.REMOVE_SERVER_TAG, _tag(pb.RemoveServerTagRequest, 0, tag=1)) == 60


async def test_a_server_that_is_permanently_offline_gets_no_new_buckets(make_cluster):
    async with make_cluster() as cluster:
        await cluster.create("fluss.p", descriptor({"id": "INTEGER", "dt": "STRING"}, partition_key=["dt"]))
        await cluster.ask(apis.ADD_SERVER_TAG, _tag(pb.AddServerTagRequest, 0))
        assert await cluster.code(apis.CREATE_TABLE, create_request("fluss.t", descriptor())) == 17
        partition = pb.CreatePartitionRequest(
            table_path=path("fluss.p"), partition_spec=spec(dt="1"), ignore_if_not_exists=False
        )
        assert await cluster.code(apis.CREATE_PARTITION, partition) == 17
        await cluster.ask(apis.REMOVE_SERVER_TAG, _tag(pb.RemoveServerTagRequest, 0))
        await cluster.create("fluss.t", descriptor())


# Rebalancing


async def test_a_rebalance_of_one_server_is_done_at_once(make_cluster):
    async with make_cluster() as cluster:
        progress = pb.ListRebalanceProgressRequest
        assert await cluster.code(apis.LIST_REBALANCE_PROGRESS, progress()) == 62
        assert await cluster.code(apis.CANCEL_REBALANCE, pb.CancelRebalanceRequest()) == 62
        rebalance_id = (await cluster.ask(apis.REBALANCE, pb.RebalanceRequest(goals=[0, 1]))).rebalance_id
        for request in (progress(), progress(rebalance_id=rebalance_id)):
            response = await cluster.ask(apis.LIST_REBALANCE_PROGRESS, request)
            assert (response.rebalance_id, response.rebalance_status) == (rebalance_id, 3)
            assert not response.table_progress
        assert await cluster.code(apis.LIST_REBALANCE_PROGRESS, progress(rebalance_id="other")) == 62
        cancel = pb.CancelRebalanceRequest(rebalance_id=rebalance_id)
        assert await cluster.code(apis.CANCEL_REBALANCE, cancel) == 62
        assert await cluster.code(apis.REBALANCE, pb.RebalanceRequest(goals=[9])) == 61
