"""What is said about copies of tables that this server does not make: snapshots, leases, remote logs, lakes.

Every request goes over a socket to a coordinator with one table of each kind.
"""

from __future__ import annotations

from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from tests.unit.server.coordinator.support import descriptor, path, spec

COLUMNS = {"id": "INTEGER", "dt": "STRING"}


async def _tables(cluster) -> None:
    await cluster.create("fluss.log", descriptor())
    await cluster.create("fluss.kv", descriptor(primary_key=["id"], bucket_key=["id"], bucket_count=3))
    await cluster.create("fluss.parts", descriptor(COLUMNS, primary_key=["id", "dt"], partition_key=["dt"]))
    await cluster.create("fluss.log_parts", descriptor(COLUMNS, partition_key=["dt"]))
    for table in ("fluss.parts", "fluss.log_parts"):
        request = pb.CreatePartitionRequest(
            table_path=path(table), partition_spec=spec(dt="a"), ignore_if_not_exists=False
        )
        await cluster.ask(apis.CREATE_PARTITION, request)


def _latest(table: str, partition: str | None = None) -> pb.GetLatestKvSnapshotsRequest:
    return pb.GetLatestKvSnapshotsRequest(table_path=path(table), partition_name=partition)


async def test_buckets_of_primary_key_tables_have_no_snapshots(make_cluster):
    async with make_cluster() as cluster:
        await _tables(cluster)
        response = await cluster.ask(apis.GET_LATEST_KV_SNAPSHOTS, _latest("fluss.kv"))
        assert response.table_id == cluster.table("fluss.kv").table_id
        assert not response.HasField("partition_id")
        assert [bucket.bucket_id for bucket in response.latest_snapshots] == [0, 1, 2]
        assert not any(bucket.HasField("snapshot_id") for bucket in response.latest_snapshots)
        response = await cluster.ask(apis.GET_LATEST_KV_SNAPSHOTS, _latest("fluss.parts", "a"))
        assert response.partition_id == 0


async def test_snapshots_are_refused_where_there_can_be_none(make_cluster):
    async with make_cluster() as cluster:
        await _tables(cluster)
        for message, code in (
            (_latest("fluss.missing"), 7),
            (_latest("fluss.log"), 20),
            (_latest("fluss.log_parts", "a"), 20),
            (_latest("fluss.kv", "a"), 37),
            (_latest("fluss.parts"), 36),
            (_latest("fluss.parts", "b"), 36),
        ):
            assert await cluster.code(apis.GET_LATEST_KV_SNAPSHOTS, message) == code


async def test_a_single_snapshot_does_not_exist(make_cluster):
    async with make_cluster() as cluster:
        await _tables(cluster)
        for table_id in (1, 99):
            request = pb.GetKvSnapshotMetadataRequest(table_id=table_id, bucket_id=0, snapshot_id=1)
            assert await cluster.code(apis.GET_KV_SNAPSHOT_METADATA, request) == 41


async def test_lists_by_id_are_empty_or_refused(make_cluster):
    async with make_cluster() as cluster:
        await _tables(cluster)
        log, kv, parts, log_parts = range(4)
        response = await cluster.ask(apis.LIST_KV_SNAPSHOTS, pb.ListKvSnapshotsRequest(table_id=kv))
        assert response.table_id == kv
        assert not response.active_snapshots
        for request, code in (
            (pb.ListKvSnapshotsRequest(table_id=log), 20),
            (pb.ListKvSnapshotsRequest(table_id=99), 7),
            (pb.ListKvSnapshotsRequest(table_id=kv, partition_id=0), 37),
            (pb.ListKvSnapshotsRequest(table_id=parts), 36),
            (pb.ListKvSnapshotsRequest(table_id=parts, partition_id=1), 36),
        ):
            assert await cluster.code(apis.LIST_KV_SNAPSHOTS, request) == code
        for table_id, partition_id in ((log, None), (kv, None), (parts, 0), (log_parts, 1)):
            request = pb.ListRemoteLogManifestsRequest(table_id=table_id, partition_id=partition_id)
            assert not (await cluster.ask(apis.LIST_REMOTE_LOG_MANIFESTS, request)).manifests
        missing = pb.ListRemoteLogManifestsRequest(table_id=log_parts)
        assert await cluster.code(apis.LIST_REMOTE_LOG_MANIFESTS, missing) == 36


async def test_leases_are_about_primary_key_tables_and_get_nothing(make_cluster):
    async with make_cluster() as cluster:
        await _tables(cluster)

        def acquire(table_id: int) -> pb.AcquireKvSnapshotLeaseRequest:
            bucket = pb.PbKvSnapshotLeaseForBucket(bucket_id=0, snapshot_id=1)
            lease = pb.PbKvSnapshotLeaseForTable(table_id=table_id, bucket_snapshots=[bucket])
            return pb.AcquireKvSnapshotLeaseRequest(lease_id="l", lease_duration_ms=1000, snapshots_to_lease=[lease])

        def release(table_id: int) -> pb.ReleaseKvSnapshotLeaseRequest:
            bucket = pb.PbTableBucket(table_id=table_id, bucket_id=0)
            return pb.ReleaseKvSnapshotLeaseRequest(lease_id="l", buckets_to_release=[bucket])

        response = await cluster.ask(apis.ACQUIRE_KV_SNAPSHOT_LEASE, acquire(1))
        assert [table.table_id for table in response.unavailable_snapshots] == [1]
        await cluster.ask(apis.RELEASE_KV_SNAPSHOT_LEASE, release(1))
        await cluster.ask(apis.DROP_KV_SNAPSHOT_LEASE, pb.DropKvSnapshotLeaseRequest(lease_id="never there"))
        for table_id, code in ((0, 20), (99, 7)):
            assert await cluster.code(apis.ACQUIRE_KV_SNAPSHOT_LEASE, acquire(table_id)) == code
            assert await cluster.code(apis.RELEASE_KV_SNAPSHOT_LEASE, release(table_id)) == code


async def test_there_is_no_lake_snapshot_of_any_table(make_cluster):
    async with make_cluster() as cluster:
        await _tables(cluster)
        for request, code in (
            (pb.GetLakeSnapshotRequest(table_path=path("fluss.log")), 53),
            (pb.GetLakeSnapshotRequest(table_path=path("fluss.log"), snapshot_id=3), 53),
            (pb.GetLakeSnapshotRequest(table_path=path("fluss.log"), readable=True), 53),
            (pb.GetLakeSnapshotRequest(table_path=path("fluss.log"), snapshot_id=3, readable=True), -1),
            (pb.GetLakeSnapshotRequest(table_path=path("fluss.missing")), 7),
        ):
            assert await cluster.code(apis.GET_LAKE_SNAPSHOT, request) == code


async def test_local_files_need_no_token(make_cluster):
    async with make_cluster() as cluster:
        response = await cluster.ask(apis.GET_FILESYSTEM_SECURITY_TOKEN, pb.GetFileSystemSecurityTokenRequest())
        assert (response.schema, response.token) == ("file", b"")
        assert not response.HasField("expiration_time")


async def test_what_only_other_servers_ask_is_not_served(make_cluster):
    async with make_cluster() as cluster:
        for api, message in (
            (apis.CONTROLLED_SHUTDOWN, pb.ControlledShutdownRequest(tablet_server_id=0, tablet_server_epoch=0)),
            (apis.ADJUST_ISR, pb.AdjustIsrRequest(serverId=0)),
        ):
            assert await cluster.code(api, message) == 2
