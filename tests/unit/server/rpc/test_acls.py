"""Access control: which right every request needs, how rights are inherited, stored, listed and taken away.

Users log in over a listener with passwords; the matrix asks for everything with no right, with the one that is needed,
and with every other one.
"""

from __future__ import annotations

from time import process_time, thread_time

import pytest

from fluss.errors import FlussError
from fluss.net.listener import ListenerSettings
from fluss.net.request_handler import RequestContext
from fluss.protocol import api as apis
from fluss.protocol.api import ApiKey
from fluss.protocol.convert import bucket_offsets
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import ANONYMOUS, Principal, UserTable
from fluss.schema.acl import AclBinding, AclOperation, AclResource, AclResourceType
from fluss.schema.table import TableBucket, TablePath
from fluss.server.authorizer import CLUSTER, Authorizer, Operation, parse_super_users
from fluss.server.model import KvSnapshotBucket, KvSnapshotEntry
from tests.unit.server.coordinator.support import alter_request, create_request, descriptor, path, spec

USERS = UserTable({user: f"{user}-secret" for user in ("admin", "alice", "bob")})
DATABASE = AclResource.database("d")
TABLE = AclResource.table(TablePath("d", "t"))
PARTITIONED = AclResource.table(TablePath("d", "p"))
KV = AclResource.table(TablePath("d", "k"))
ALICE = "User:alice"


def _secured(**options) -> dict:
    return {
        "listener": ListenerSettings(name="CLIENT", check_credentials=USERS),
        "authorizer": Authorizer(
            super_users=parse_super_users("User:admin"), internal_listener_name="INTERNAL", **options
        ),
    }


def _grant(cluster, operation: AclOperation, resource: AclResource, principal: str = ALICE, host: str = "*") -> None:
    cluster.authorizer.add([AclBinding(resource, principal, operation, host)])


async def _prepared(cluster):
    """Log the administrator in and make a database with three tables."""
    cluster.channel = await cluster.connect("admin")
    await cluster.create_database("d")
    await cluster.create("d.t", descriptor())
    await cluster.create("d.p", descriptor({"id": "INTEGER", "dt": "STRING"}, partition_key=["dt"]))
    await cluster.create("d.k", descriptor(primary_key=["id"]))
    return await cluster.connect("alice")


def _change(key: str, value: str) -> pb.PbAlterConfig:
    return pb.PbAlterConfig(config_key=key, config_value=value, op_type=0)


def _partition(request_type, value: str):
    return request_type(table_path=path("d.p"), partition_spec=spec(dt=value), ignore_if_not_exists=True)


T, P, K = 0, 1, 2  # The ids of the tables.
BUCKET_OFFSETS = [pb.PbProducerTableOffsets(table_id=T, bucket_offsets=[pb.PbBucketOffset(bucket_id=0)])]
LEASE = pb.PbKvSnapshotLeaseForTable(
    table_id=K, bucket_snapshots=[pb.PbKvSnapshotLeaseForBucket(bucket_id=0, snapshot_id=0)]
)
ACL = pb.PbAclInfo(
    resource_name="d.t",
    resource_type=4,
    principal_name="bob",
    principal_type="User",
    host="*",
    operation_type=3,
    permission_type=2,
)

# Request -> the right it needs.
MATRIX = {
    ApiKey.CREATE_DATABASE: (
        pb.CreateDatabaseRequest(database_name="new", ignore_if_exists=True),
        Operation.CREATE,
        CLUSTER,
    ),
    ApiKey.ALTER_DATABASE: (
        pb.AlterDatabaseRequest(database_name="d", ignore_if_not_exists=False, config_changes=[_change("a", "1")]),
        Operation.ALTER,
        DATABASE,
    ),
    ApiKey.DROP_DATABASE: (
        pb.DropDatabaseRequest(database_name="d", ignore_if_not_exists=False, cascade=True),
        Operation.DROP,
        DATABASE,
    ),
    ApiKey.GET_DATABASE_INFO: (pb.GetDatabaseInfoRequest(database_name="d"), Operation.DESCRIBE, DATABASE),
    ApiKey.CREATE_TABLE: (create_request("d.new", descriptor()), Operation.CREATE, DATABASE),
    ApiKey.ALTER_TABLE: (alter_request("d.t", values={"a": "1"}), Operation.ALTER, TABLE),
    ApiKey.DROP_TABLE: (
        pb.DropTableRequest(table_path=path("d.t"), ignore_if_not_exists=False),
        Operation.DROP,
        TABLE,
    ),
    ApiKey.GET_TABLE_INFO: (pb.GetTableInfoRequest(table_path=path("d.t")), Operation.DESCRIBE, TABLE),
    ApiKey.GET_TABLE_SCHEMA: (pb.GetTableSchemaRequest(table_path=path("d.t")), Operation.DESCRIBE, TABLE),
    ApiKey.LIST_PARTITION_INFOS: (
        pb.ListPartitionInfosRequest(table_path=path("d.p")),
        Operation.DESCRIBE,
        PARTITIONED,
    ),
    ApiKey.CREATE_PARTITION: (_partition(pb.CreatePartitionRequest, "1"), Operation.WRITE, PARTITIONED),
    ApiKey.DROP_PARTITION: (_partition(pb.DropPartitionRequest, "1"), Operation.WRITE, PARTITIONED),
    ApiKey.GET_LATEST_KV_SNAPSHOTS: (
        pb.GetLatestKvSnapshotsRequest(table_path=path("d.k")),
        Operation.DESCRIBE,
        KV,
    ),
    ApiKey.LIST_KV_SNAPSHOTS: (pb.ListKvSnapshotsRequest(table_id=K), Operation.DESCRIBE, KV),
    ApiKey.LIST_REMOTE_LOG_MANIFESTS: (pb.ListRemoteLogManifestsRequest(table_id=T), Operation.DESCRIBE, TABLE),
    ApiKey.INIT_WRITER: (pb.InitWriterRequest(table_path=[path("d.k"), path("d.t")]), Operation.WRITE, TABLE),
    ApiKey.ACQUIRE_KV_SNAPSHOT_LEASE: (
        pb.AcquireKvSnapshotLeaseRequest(lease_id="l", lease_duration_ms=1, snapshots_to_lease=[LEASE]),
        Operation.READ,
        KV,
    ),
    ApiKey.RELEASE_KV_SNAPSHOT_LEASE: (
        pb.ReleaseKvSnapshotLeaseRequest(lease_id="l", buckets_to_release=[pb.PbTableBucket(table_id=K, bucket_id=0)]),
        Operation.READ,
        KV,
    ),
    ApiKey.REGISTER_PRODUCER_OFFSETS: (
        pb.RegisterProducerOffsetsRequest(producer_id="p", table_offsets=BUCKET_OFFSETS),
        Operation.WRITE,
        TABLE,
    ),
    ApiKey.CREATE_ACLS: (pb.CreateAclsRequest(acl=[ACL]), Operation.ALL, DATABASE),
    ApiKey.DESCRIBE_CLUSTER_CONFIGS: (pb.DescribeClusterConfigsRequest(), Operation.DESCRIBE, CLUSTER),
    ApiKey.ALTER_CLUSTER_CONFIGS: (
        pb.AlterClusterConfigsRequest(alter_configs=[_change("kv.snapshot.interval", "1 s")]),
        Operation.ALTER,
        CLUSTER,
    ),
    ApiKey.ADD_SERVER_TAG: (pb.AddServerTagRequest(server_ids=[0], server_tag=1), Operation.ALTER, CLUSTER),
    ApiKey.REBALANCE: (pb.RebalanceRequest(goals=[0]), Operation.WRITE, CLUSTER),
    ApiKey.GET_CLUSTER_HEALTH: (pb.GetClusterHealthRequest(), Operation.DESCRIBE, CLUSTER),
}
# Requests that fail for another reason once they are allowed.
MATRIX_THEN_REFUSED = {
    ApiKey.GET_KV_SNAPSHOT_METADATA: (
        pb.GetKvSnapshotMetadataRequest(table_id=K, bucket_id=0, snapshot_id=0),
        Operation.DESCRIBE,
        KV,
        41,
    ),
    ApiKey.GET_LAKE_SNAPSHOT: (pb.GetLakeSnapshotRequest(table_path=path("d.t")), Operation.DESCRIBE, TABLE, 53),
    ApiKey.REMOVE_SERVER_TAG: (
        pb.RemoveServerTagRequest(server_ids=[0], server_tag=0),
        Operation.ALTER,
        CLUSTER,
        60,
    ),
    ApiKey.LIST_REBALANCE_PROGRESS: (pb.ListRebalanceProgressRequest(), Operation.DESCRIBE, CLUSTER, 62),
    ApiKey.CANCEL_REBALANCE: (pb.CancelRebalanceRequest(), Operation.WRITE, CLUSTER, 62),
}
# These filter, are for every user, or need more than one case; each has its own test below.
TESTED_ALONE = {
    ApiKey.LIST_DATABASES,
    ApiKey.DATABASE_EXISTS,
    ApiKey.LIST_TABLES,
    ApiKey.TABLE_EXISTS,
    ApiKey.GET_METADATA,
    ApiKey.GET_PRODUCER_OFFSETS,
    ApiKey.DELETE_PRODUCER_OFFSETS,
    ApiKey.LIST_ACLS,
    ApiKey.DROP_ACLS,
    ApiKey.DROP_KV_SNAPSHOT_LEASE,
    ApiKey.GET_FILESYSTEM_SECURITY_TOKEN,
    ApiKey.LAKE_TIERING_HEARTBEAT,
    ApiKey.PREPARE_LAKE_TABLE_SNAPSHOT,
    ApiKey.COMMIT_LAKE_TABLE_SNAPSHOT,
}


async def test_every_request_that_is_served_is_in_the_matrix(make_cluster):
    async with make_cluster() as cluster:
        assert set(cluster.service.handlers()) == MATRIX.keys() | MATRIX_THEN_REFUSED.keys() | TESTED_ALONE


def _grants(operation: Operation) -> set[Operation]:
    """Return the operations that include an operation, as written in the rules."""
    if operation is Operation.DESCRIBE:
        return set(Operation) - {Operation.ANY}
    return {operation, Operation.ALL}


@pytest.mark.parametrize("key", [*MATRIX, *MATRIX_THEN_REFUSED], ids=lambda key: key.name)
async def test_a_request_needs_one_right_and_nothing_else_will_do(make_cluster, key):
    message, operation, resource, *codes = MATRIX.get(key) or MATRIX_THEN_REFUSED[key]
    api = apis.APIS[key]
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)
        for other in set(Operation) - {Operation.ANY} - _grants(operation):
            _grant(cluster, other, resource)
        assert await cluster.code(api, message, channel=alice) == 48
        _grant(cluster, operation, resource)
        if codes:
            assert await cluster.code(api, message, channel=alice) == codes[0]
        else:
            await cluster.ask(api, message, channel=alice)


async def test_services_of_the_lake_see_and_report_only_tables_that_they_may_write_to(make_cluster, clock):
    async with make_cluster(**_secured(), initial_configs={"datalake.format": "paimon"}) as cluster:
        alice = await _prepared(cluster)
        table_id = (await cluster.create("d.lake", descriptor(properties={"table.datalake.enabled": "true"}))).table_id
        clock.now_ms += 3_600_000
        lake = AclResource.table(TablePath("d", "lake"))

        async def codes() -> list[int]:
            report = pb.PbHeartbeatReqForTable(table_id=table_id, coordinator_epoch=0, tiering_epoch=-7)
            beat = pb.LakeTieringHeartbeatRequest(request_table=False, tiering_tables=[report])
            beaten = await cluster.ask(apis.LAKE_TIERING_HEARTBEAT, beat, channel=alice)
            offered = pb.PbTableOffsets(table_id=table_id, table_path=path("d.lake"))
            prepare = pb.PrepareLakeTableSnapshotRequest(bucket_offsets=[offered])
            prepared = await cluster.ask(apis.PREPARE_LAKE_TABLE_SNAPSHOT, prepare, channel=alice)
            entry = pb.PbLakeTableSnapshotMetadata(
                table_id=table_id, snapshot_id=1, tiered_bucket_offsets_file_path="/etc/passwd"
            )
            commit = pb.CommitLakeTableSnapshotRequest(lake_table_snapshot_metadata=[entry])
            committed = await cluster.ask(apis.COMMIT_LAKE_TABLE_SNAPSHOT, commit, channel=alice)
            return [
                beaten.tiering_table_resp[0].error.error_code,
                prepared.prepare_lake_table_resp[0].error_code,
                committed.table_resp[0].error_code,
            ]

        async def is_handed_out() -> bool:
            beat = pb.LakeTieringHeartbeatRequest(request_table=True)
            return (await cluster.ask(apis.LAKE_TIERING_HEARTBEAT, beat, channel=alice)).HasField("tiering_table")

        for other in set(Operation) - {Operation.ANY} - _grants(Operation.WRITE):
            _grant(cluster, other, lake)
        assert await codes() == [7, 7, 7]
        assert not await is_handed_out()
        _grant(cluster, Operation.WRITE, lake)
        fenced, prepared, refused = await codes()
        assert (fenced, prepared, refused) not in ((7, 7, 7), (0, 0, 0))
        assert prepared == 0
        assert refused, "the file of another program is no offsets file"
        assert await is_handed_out()


# Inheritance


@pytest.mark.parametrize(
    "resource",
    [
        TABLE,
        AclResource(AclResourceType.TABLE, "*"),
        DATABASE,
        AclResource(AclResourceType.DATABASE, "*"),
        CLUSTER,
        AclResource(AclResourceType.CLUSTER, "*"),
    ],
    ids=str,
)
def test_rights_on_what_is_around_count(resource):
    authorizer = Authorizer()
    context = RequestContext(ApiKey.FETCH_LOG, 0, Principal("User", "alice"), "CLIENT", "127.0.0.1:5")
    assert not authorizer.allows(context, Operation.READ, TABLE)
    authorizer.add([AclBinding(resource, ALICE, Operation.READ)])
    assert authorizer.allows(context, Operation.READ, TABLE)
    assert authorizer.allows(context, Operation.DESCRIBE, TABLE)
    assert not authorizer.allows(context, Operation.WRITE, TABLE)


def test_rights_on_something_inside_or_beside_do_not_count():
    authorizer = Authorizer()
    context = RequestContext(ApiKey.FETCH_LOG, 0, Principal("User", "alice"), "CLIENT", "127.0.0.1:5")
    beside = [AclResource.table(TablePath("d", "u")), AclResource.table(TablePath("e", "t")), AclResource.database("e")]
    authorizer.add([AclBinding(resource, ALICE, Operation.ALL) for resource in (*beside, TABLE)])
    assert authorizer.allows(context, Operation.WRITE, TABLE)
    assert not authorizer.allows(context, Operation.DESCRIBE, DATABASE)
    authorizer.remove([AclBinding(TABLE, ALICE, Operation.ALL)])
    assert not authorizer.allows(context, Operation.DESCRIBE, TABLE)


@pytest.mark.parametrize(
    ("principal", "host", "ignore_case", "is_allowed"),
    [
        ("User:alice", "*", False, True),
        ("*:*", "*", False, True),
        ("User:bob", "*", False, False),
        ("Group:alice", "*", False, False),
        ("User:*", "*", False, False),
        ("user:ALICE", "*", False, False),
        ("user:ALICE", "*", True, True),
        ("User:alice", "10.0.0.1", False, True),
        ("User:alice", "10.0.0.2", False, False),
    ],
)
def test_an_entry_is_about_one_principal_and_host_or_all(principal, host, ignore_case, is_allowed):
    authorizer = Authorizer(ignore_case=ignore_case)
    authorizer.add([AclBinding(TABLE, principal, Operation.READ, host)])
    context = RequestContext(ApiKey.FETCH_LOG, 0, Principal("User", "alice"), "CLIENT", "10.0.0.1:5000")
    assert authorizer.allows(context, Operation.READ, TABLE) is is_allowed


def test_an_entry_stays_as_long_as_one_that_says_the_same_is_left():
    authorizer = Authorizer(ignore_case=True)
    context = RequestContext(ApiKey.FETCH_LOG, 0, Principal("User", "alice"), "CLIENT", "10.0.0.1:5000")
    entries = [
        AclBinding(TABLE, principal, Operation.READ, host)
        for principal in (ALICE, "User:Alice", "*:*")
        for host in ("*", "10.0.0.1")
    ]
    authorizer.add([*entries, *entries])
    assert list(authorizer.acls()) == entries
    for entry in entries:
        assert authorizer.allows(context, Operation.READ, TABLE)
        authorizer.remove([entry])
        authorizer.remove([entry])
    assert not authorizer.allows(context, Operation.READ, TABLE)
    assert not list(authorizer.acls())


def test_a_check_costs_the_same_however_many_entries_others_have():
    authorizer = Authorizer()
    authorizer.add([AclBinding(DATABASE, f"User:u{number}", Operation.READ) for number in range(20_000)])
    context = RequestContext(ApiKey.FETCH_LOG, 0, Principal("User", "alice"), "CLIENT", "10.0.0.1:5000")
    start = thread_time()
    for _ in range(1000):
        assert not authorizer.allows(context, Operation.DESCRIBE, TABLE)
    assert thread_time() - start < 0.5


def test_super_users_and_the_internal_listener_are_never_asked():
    authorizer = Authorizer(super_users=parse_super_users(" User:root ; User:admin"), internal_listener_name="INTERNAL")
    for name, listener, is_allowed in (
        ("admin", "CLIENT", True),
        ("root", "CLIENT", True),
        ("alice", "CLIENT", False),
        ("alice", "INTERNAL", True),
    ):
        context = RequestContext(ApiKey.FETCH_LOG, 0, Principal("User", name), listener, "::1:5000")
        assert authorizer.allows(context, Operation.ALL, CLUSTER) is is_allowed
        # Lists are filtered everywhere.
        assert authorizer.shows(context, Operation.DESCRIBE, TABLE) is (is_allowed and listener == "CLIENT")


def test_an_authorizer_that_is_off_allows_everything():
    context = RequestContext(ApiKey.FETCH_LOG, 0, ANONYMOUS, "CLIENT", "unknown")
    Authorizer.disabled().check(context, Operation.ALL, CLUSTER)


@pytest.mark.parametrize("text", ["admin", "User:", ":admin", "User:a;;b"])
def test_super_users_that_are_none_are_refused(text):
    with pytest.raises(FlussError) as failure:
        parse_super_users(text)
    assert failure.value.error_code == 39


# Filters


async def test_lists_show_what_may_be_seen(make_cluster):
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)

        async def databases() -> list[str]:
            response = await cluster.ask(apis.LIST_DATABASES, pb.ListDatabasesRequest(), channel=alice)
            return list(response.database_name)

        async def tables() -> list[str]:
            response = await cluster.ask(apis.LIST_TABLES, pb.ListTablesRequest(database_name="d"), channel=alice)
            return list(response.table_name)

        assert await databases() == []
        assert await tables() == []
        _grant(cluster, Operation.READ, TABLE)
        assert await databases() == []
        assert await tables() == ["t"]
        _grant(cluster, Operation.DESCRIBE, DATABASE)
        assert await databases() == ["d"]
        assert await tables() == ["k", "p", "t"]
        request = pb.ListDatabasesRequest(include_summary=True)
        response = await cluster.ask(apis.LIST_DATABASES, request, channel=alice)
        assert [summary.database_name for summary in response.database_summary] == ["d"]


async def test_what_may_not_be_seen_does_not_exist(make_cluster):
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)

        async def exists(api, message) -> bool:
            return (await cluster.ask(api, message, channel=alice)).exists

        database = pb.DatabaseExistsRequest(database_name="d")
        table = pb.TableExistsRequest(table_path=path("d.t"))
        assert not await exists(apis.DATABASE_EXISTS, database)
        assert not await exists(apis.TABLE_EXISTS, table)
        # Every user knows that there is a default database.
        assert await exists(apis.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="fluss"))
        _grant(cluster, Operation.WRITE, DATABASE)
        assert await exists(apis.DATABASE_EXISTS, database)
        assert await exists(apis.TABLE_EXISTS, table)


async def test_metadata_leaves_out_what_may_not_be_seen(make_cluster):
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)
        await cluster.ask(apis.CREATE_PARTITION, _partition(pb.CreatePartitionRequest, "1"))
        request = pb.MetadataRequest(
            table_path=[path("d.t"), path("d.p")],
            partitions_path=[pb.PbPhysicalTablePath(database_name="d", table_name="p", partition_name="1")],
        )
        response = await cluster.ask(apis.GET_METADATA, request, channel=alice)
        # Nor is a partition told from one that does not exist.
        texts = []
        for partition_id in (0, 7):
            by_id = pb.MetadataRequest(partitions_id=[partition_id])
            error = await cluster.refused(apis.GET_METADATA, by_id, channel=alice)
            texts.append(error.message.replace(str(partition_id), "N"))
            assert error.error_code == 36
        assert texts[0] == texts[1]
        request.partitions_id.append(0)
        assert not response.table_metadata
        assert not response.partition_metadata
        assert response.tablet_servers
        # Not even whether it exists can be found out.
        hidden = pb.MetadataRequest(table_path=[path("d.missing")])
        assert not (await cluster.ask(apis.GET_METADATA, hidden, channel=alice)).table_metadata
        _grant(cluster, Operation.READ, PARTITIONED)
        response = await cluster.ask(apis.GET_METADATA, request, channel=alice)
        assert [table.table_path.table_name for table in response.table_metadata] == ["p"]
        assert [partition.partition_id for partition in response.partition_metadata] == [0]


async def test_writers_without_a_table_need_the_right_everywhere(make_cluster):
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)
        _grant(cluster, Operation.WRITE, TABLE)
        assert await cluster.code(apis.INIT_WRITER, pb.InitWriterRequest(), channel=alice) == 48
        only_other = pb.InitWriterRequest(table_path=[path("d.k")])
        assert await cluster.code(apis.INIT_WRITER, only_other, channel=alice) == 48


async def test_offsets_of_producers_are_filtered_and_deleted_with_rights_on_all(make_cluster):
    """Those from before owners were recorded are judged by the rights to their tables."""
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)
        offsets = [
            pb.PbProducerTableOffsets(table_id=table_id, bucket_offsets=[pb.PbBucketOffset(bucket_id=0)])
            for table_id in (T, P, 99)
        ]
        await cluster.coordinator.producers.register("x", "", bucket_offsets(offsets), None)
        _grant(cluster, Operation.ALL, TABLE)
        get = pb.GetProducerOffsetsRequest(producer_id="x")
        response = await cluster.ask(apis.GET_PRODUCER_OFFSETS, get, channel=alice)
        assert [table.table_id for table in response.table_offsets] == [T]
        delete = pb.DeleteProducerOffsetsRequest(producer_id="x")
        assert await cluster.code(apis.DELETE_PRODUCER_OFFSETS, delete, channel=alice) == 48
        _grant(cluster, Operation.WRITE, CLUSTER)
        await cluster.ask(apis.DELETE_PRODUCER_OFFSETS, delete, channel=alice)


async def test_a_producer_belongs_to_the_user_who_registered_it(make_cluster):
    register = pb.RegisterProducerOffsetsRequest(producer_id="x", table_offsets=BUCKET_OFFSETS)
    get, delete = pb.GetProducerOffsetsRequest(producer_id="x"), pb.DeleteProducerOffsetsRequest(producer_id="x")
    async with make_cluster(**_secured()) as cluster:
        alice, bob = await _prepared(cluster), await cluster.connect("bob")
        for principal in (ALICE, "User:bob"):
            _grant(cluster, Operation.ALL, TABLE, principal)
        assert (await cluster.ask(apis.REGISTER_PRODUCER_OFFSETS, register, channel=alice)).result == 0
    async with make_cluster(**_secured()) as cluster:
        alice, bob = await cluster.connect("alice"), await cluster.connect("bob")
        for principal in (ALICE, "User:bob"):
            _grant(cluster, Operation.ALL, TABLE, principal)
        # Others cannot tell it from one that does not exist, neither by reading nor by deleting it.
        unknown = await cluster.ask(
            apis.GET_PRODUCER_OFFSETS, pb.GetProducerOffsetsRequest(producer_id="none"), channel=bob
        )
        assert await cluster.ask(apis.GET_PRODUCER_OFFSETS, get, channel=bob) == unknown
        await cluster.ask(apis.DELETE_PRODUCER_OFFSETS, delete, channel=bob)
        taken = await cluster.refused(apis.REGISTER_PRODUCER_OFFSETS, register, channel=bob)
        assert taken.error_code == 48
        assert "alice" not in taken.message
        assert (await cluster.ask(apis.GET_PRODUCER_OFFSETS, get, channel=alice)).producer_id == "x"
        assert (await cluster.ask(apis.REGISTER_PRODUCER_OFFSETS, register, channel=alice)).result == 1
        # Who may change the cluster may look after it.
        _grant(cluster, Operation.ALTER, CLUSTER, "User:bob")
        assert (await cluster.ask(apis.GET_PRODUCER_OFFSETS, get, channel=bob)).producer_id == "x"
        await cluster.ask(apis.DELETE_PRODUCER_OFFSETS, delete, channel=alice)
        assert not (await cluster.ask(apis.GET_PRODUCER_OFFSETS, get, channel=alice)).producer_id


async def test_a_producer_without_offsets_needs_the_right_to_write_everywhere(make_cluster):
    register = pb.RegisterProducerOffsetsRequest(producer_id="x")
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)
        _grant(cluster, Operation.ALL, DATABASE)
        assert await cluster.code(apis.REGISTER_PRODUCER_OFFSETS, register, channel=alice) == 48
        _grant(cluster, Operation.WRITE, CLUSTER)
        await cluster.ask(apis.REGISTER_PRODUCER_OFFSETS, register, channel=alice)


@pytest.mark.parametrize("resource", [KV, DATABASE, CLUSTER], ids=str)
async def test_keys_to_remote_storage_are_for_those_who_read_some_table(make_cluster, resource):
    request = pb.GetFileSystemSecurityTokenRequest()
    async with make_cluster(**_secured()) as cluster:
        alice, bob = await _prepared(cluster), await cluster.connect("bob")
        for other in set(Operation) - {Operation.ANY, Operation.ALL, Operation.READ}:
            _grant(cluster, other, resource)
        _grant(cluster, Operation.READ, resource, "User:bob")
        assert await cluster.code(apis.GET_FILESYSTEM_SECURITY_TOKEN, request, channel=alice) == 48
        for reader in (bob, cluster.channel):
            await cluster.ask(apis.GET_FILESYSTEM_SECURITY_TOKEN, request, channel=reader)


async def test_dropping_an_unknown_lease_needs_no_right(make_cluster):
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)
        await cluster.ask(apis.DROP_KV_SNAPSHOT_LEASE, pb.DropKvSnapshotLeaseRequest(lease_id="l"), channel=alice)


async def test_a_lease_is_changed_only_with_the_right_to_read_all_it_has(make_cluster, clock):
    async with make_cluster(**_secured()) as cluster:
        alice, bob = await _prepared(cluster), await cluster.connect("bob")
        snapshots = cluster.coordinator.store.kv_snapshots
        other = await cluster.create("d.other", descriptor(primary_key=["id"]))
        for table_id in (K, other.table_id):
            bucket = TableBucket(table_id, 0)
            await snapshots.begin([KvSnapshotBucket(bucket, "/r", "d")])
            await snapshots.add(KvSnapshotEntry(bucket, 0, "/r", "d", 10, 1, 1, clock.now_ms))
        _grant(cluster, Operation.READ, KV)
        _grant(cluster, Operation.READ, AclResource.table(other.path), "User:bob")

        def acquire(duration_ms: int, *leased: pb.PbKvSnapshotLeaseForTable) -> pb.AcquireKvSnapshotLeaseRequest:
            return pb.AcquireKvSnapshotLeaseRequest(
                lease_id="alices", lease_duration_ms=duration_ms, snapshots_to_lease=leased
            )

        async def leased_count(after_ms: int) -> int:
            return (await snapshots.totals(clock.now_ms + after_ms)).leased_count

        await cluster.ask(apis.ACQUIRE_KV_SNAPSHOT_LEASE, acquire(1000, LEASE), channel=alice)
        of_bob = pb.PbKvSnapshotLeaseForTable(table_id=other.table_id, bucket_snapshots=LEASE.bucket_snapshots)
        # Neither ended nor made longer: not by naming nothing, and not by naming what may be read.
        for request in (acquire(0), acquire(9000), acquire(0, of_bob), acquire(9000, of_bob)):
            assert await cluster.code(apis.ACQUIRE_KV_SNAPSHOT_LEASE, request, channel=bob) == 48
        drop = pb.DropKvSnapshotLeaseRequest(lease_id="alices")
        assert await cluster.code(apis.DROP_KV_SNAPSHOT_LEASE, drop, channel=bob) == 48
        assert [await leased_count(after_ms) for after_ms in (999, 1000)] == [1, 0]
        # Whoever may read all of it may look after it.
        _grant(cluster, Operation.READ, KV, "User:bob")
        await cluster.ask(apis.ACQUIRE_KV_SNAPSHOT_LEASE, acquire(5000, of_bob), channel=bob)
        assert [await leased_count(after_ms) for after_ms in (4999, 5000)] == [2, 0]
        assert await cluster.code(apis.ACQUIRE_KV_SNAPSHOT_LEASE, acquire(1000), channel=alice) == 48
        await cluster.ask(apis.DROP_KV_SNAPSHOT_LEASE, drop, channel=bob)
        assert await leased_count(0) == 0


# Entries by request


def _acl(resource: AclResource, operation: int = 3, principal: str = "alice", **more) -> pb.PbAclInfo:
    fields = {
        "resource_name": resource.name,
        "resource_type": resource.resource_type,
        "principal_name": principal,
        "principal_type": "User",
        "host": "*",
        "operation_type": operation,
        "permission_type": 2,
        **more,
    }
    return pb.PbAclInfo(**fields)


def _filter(resource_type: int = 1, operation_type: int = 1, **more) -> pb.PbAclFilter:
    return pb.PbAclFilter(resource_type=resource_type, operation_type=operation_type, permission_type=1, **more)


async def _listed(cluster, acl_filter: pb.PbAclFilter, channel=None) -> set[tuple[str, str, int]]:
    response = await cluster.ask(apis.LIST_ACLS, pb.ListAclsRequest(acl_filter=acl_filter), channel=channel)
    return {(acl.resource_name, acl.principal_name, acl.operation_type) for acl in response.acl}


async def test_without_an_authorizer_there_are_no_entries(make_cluster):
    async with make_cluster() as cluster:
        for api, message in (
            (apis.CREATE_ACLS, pb.CreateAclsRequest(acl=[ACL])),
            (apis.LIST_ACLS, pb.ListAclsRequest(acl_filter=_filter())),
            (apis.DROP_ACLS, pb.DropAclsRequest(acl_filter=[_filter()])),
        ):
            assert await cluster.code(api, message) == 47


async def test_granted_rights_take_effect_at_once_and_survive_a_restart(make_cluster):
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)
        info = pb.GetTableInfoRequest(table_path=path("d.t"))
        assert await cluster.code(apis.GET_TABLE_INFO, info, channel=alice) == 48
        response = await cluster.ask(apis.CREATE_ACLS, pb.CreateAclsRequest(acl=[_acl(TABLE), _acl(TABLE)]))
        assert [result.HasField("error_code") for result in response.aclRes] == [False, False]
        await cluster.ask(apis.GET_TABLE_INFO, info, channel=alice)
    async with make_cluster(**_secured()) as cluster:
        alice = await cluster.connect("alice")
        info = pb.GetTableInfoRequest(table_path=path("d.t"))
        await cluster.ask(apis.GET_TABLE_INFO, info, channel=alice)
        cluster.channel = await cluster.connect("admin")
        await cluster.ask(apis.DROP_ACLS, pb.DropAclsRequest(acl_filter=[_filter()]))
        assert await cluster.code(apis.GET_TABLE_INFO, info, channel=alice) == 48
    async with make_cluster(**_secured()) as cluster:
        assert not list(cluster.authorizer.acls())


INVALID_ENTRIES = {
    "any resource type": {"resource_type": 1},
    "an unknown resource type": {"resource_type": 9},
    "any operation": {"operation_type": 1},
    "an unknown operation": {"operation_type": 9},
    "any permission": {"permission_type": 1},
    "an unknown permission": {"permission_type": 3},
    "no resource": {"resource_name": ""},
    "no principal": {"principal_name": ""},
    "no type of principal": {"principal_type": ""},
    "an ambiguous type of principal": {"principal_type": "a:b"},
    "no host": {"host": ""},
    "another cluster": {"resource_type": 2, "resource_name": "other"},
}


@pytest.mark.parametrize("fields", INVALID_ENTRIES.values(), ids=INVALID_ENTRIES.keys())
async def test_a_vague_entry_gets_an_error_and_the_others_are_stored(make_cluster, fields):
    async with make_cluster(**_secured()) as cluster:
        await _prepared(cluster)
        request = pb.CreateAclsRequest(acl=[_acl(TABLE, **fields), _acl(KV)])
        first, second = (await cluster.ask(apis.CREATE_ACLS, request)).aclRes
        assert first.error_code == -1
        assert first.error_message
        assert not second.HasField("error_code")
        assert await _listed(cluster, _filter()) == {("d.k", "alice", 3)}


async def test_entries_are_listed_by_whatever_a_filter_says(make_cluster):
    async with make_cluster(**_secured()) as cluster:
        await _prepared(cluster)
        acls = [
            _acl(TABLE),
            _acl(TABLE, operation=4, principal="bob"),
            _acl(DATABASE, operation=2, host="10.0.0.1"),
            _acl(CLUSTER, operation=5, principal="bob"),
        ]
        await cluster.ask(apis.CREATE_ACLS, pb.CreateAclsRequest(acl=acls))
        assert len(await _listed(cluster, _filter())) == 4
        assert await _listed(cluster, _filter(resource_type=4)) == {("d.t", "alice", 3), ("d.t", "bob", 4)}
        assert await _listed(cluster, _filter(operation_type=2)) == {("d", "alice", 2)}
        assert await _listed(cluster, _filter(resource_name="d.t", operation_type=4)) == {("d.t", "bob", 4)}
        assert await _listed(cluster, _filter(principal_name="bob", principal_type="User")) == {
            ("d.t", "bob", 4),
            ("fluss-cluster", "bob", 5),
        }
        # A name without a type says nothing.
        assert len(await _listed(cluster, _filter(principal_name="bob"))) == 4
        assert await _listed(cluster, _filter(host="10.0.0.1")) == {("d", "alice", 2)}
        assert await _listed(cluster, _filter(resource_name="nothing")) == set()


async def test_users_see_the_entries_of_what_they_may_see(make_cluster):
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)
        await cluster.ask(apis.CREATE_ACLS, pb.CreateAclsRequest(acl=[_acl(TABLE), _acl(KV, principal="bob")]))
        assert await _listed(cluster, _filter(), channel=alice) == {("d.t", "alice", 3)}


async def test_dropping_reports_each_entry_under_the_first_filter_it_matches(make_cluster):
    async with make_cluster(**_secured()) as cluster:
        await _prepared(cluster)
        await cluster.ask(apis.CREATE_ACLS, pb.CreateAclsRequest(acl=[_acl(TABLE), _acl(KV), _acl(DATABASE)]))
        request = pb.DropAclsRequest(
            acl_filter=[_filter(resource_name="d.t"), _filter(resource_type=4), _filter(resource_name="nothing")]
        )
        response = await cluster.ask(apis.DROP_ACLS, request)
        dropped = [[match.acl.resource_name for match in result.matching_acls] for result in response.filter_results]
        assert dropped == [["d.t"], ["d.k"], []]
        assert await _listed(cluster, _filter()) == {("d", "alice", 3)}


@pytest.mark.parametrize("sees", [False, True])
async def test_requests_about_entries_do_not_take_longer_than_what_they_say(make_cluster, sees):
    """Neither many filters nor many entries of others hold the server up."""
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)
        others = [f"User:u{number}" for number in range(500)]
        for resource in (TABLE, DATABASE):
            cluster.authorizer.add([AclBinding(resource, other, Operation.READ) for other in others])
        if sees:
            _grant(cluster, Operation.DESCRIBE, CLUSTER)
        filters = [_filter() for _ in range(200)] + [_filter(host=f"10.0.0.{number}") for number in range(800)]
        start = process_time()
        listed = await cluster.ask(apis.LIST_ACLS, pb.ListAclsRequest(acl_filter=_filter()), channel=alice)
        assert len(listed.acl) == (1001 if sees else 0)
        drop = pb.DropAclsRequest(acl_filter=filters)
        if sees:
            assert await cluster.code(apis.DROP_ACLS, drop, channel=alice) == 48
        else:
            response = await cluster.ask(apis.DROP_ACLS, drop, channel=alice)
            assert [len(result.matching_acls) for result in response.filter_results] == [0] * len(filters)
        assert process_time() - start < 1


async def test_who_may_not_change_one_of_the_entries_changes_none(make_cluster):
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)
        _grant(cluster, Operation.ALL, DATABASE)
        mixed = pb.CreateAclsRequest(acl=[_acl(TABLE, principal="bob"), _acl(CLUSTER, principal="bob")])
        assert await cluster.code(apis.CREATE_ACLS, mixed, channel=alice) == 48
        assert await _listed(cluster, _filter(principal_name="bob", principal_type="User")) == set()
        await cluster.ask(apis.CREATE_ACLS, pb.CreateAclsRequest(acl=[_acl(CLUSTER, principal="bob")]))
        _grant(cluster, Operation.DESCRIBE, CLUSTER)
        everything = pb.DropAclsRequest(acl_filter=[_filter()])
        assert await cluster.code(apis.DROP_ACLS, everything, channel=alice) == 48
        assert len(await _listed(cluster, _filter())) == 3


async def test_entries_that_may_not_be_seen_are_neither_dropped_nor_told(make_cluster):
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)
        acls = [_acl(DATABASE, operation=2), _acl(CLUSTER, principal="bob")]
        await cluster.ask(apis.CREATE_ACLS, pb.CreateAclsRequest(acl=acls))
        everything = pb.DropAclsRequest(acl_filter=[_filter()])
        response = await cluster.ask(apis.DROP_ACLS, everything, channel=alice)
        (result,) = response.filter_results
        assert [match.acl.resource_name for match in result.matching_acls] == ["d"]
        assert await _listed(cluster, _filter()) == {("fluss-cluster", "bob", 3)}
        # With nothing left that alice may see there is nothing to drop, and nothing to be refused.
        response = await cluster.ask(apis.DROP_ACLS, everything, channel=alice)
        assert not response.filter_results[0].matching_acls


async def test_tables_of_a_hidden_database_are_listed_like_those_of_a_missing_one(make_cluster):
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)

        async def listed(database: str) -> list[str]:
            request = pb.ListTablesRequest(database_name=database)
            return list((await cluster.ask(apis.LIST_TABLES, request, channel=alice)).table_name)

        assert await listed("d") == await listed("missing") == []
        # An entry for a table that does not exist yet makes none.
        _grant(cluster, Operation.READ, AclResource.table(TablePath("d", "later")))
        assert await listed("d") == []
        _grant(cluster, Operation.READ, TABLE)
        assert await listed("d") == ["t"]
        _grant(cluster, Operation.DESCRIBE, AclResource(AclResourceType.TABLE, "*"))
        assert await listed("d") == ["k", "p", "t"]
        assert await listed("missing") == []
        _grant(cluster, Operation.DESCRIBE, CLUSTER)
        missing = pb.ListTablesRequest(database_name="missing")
        assert await cluster.code(apis.LIST_TABLES, missing, channel=alice) == 4


async def test_who_may_do_everything_with_a_database_may_pass_on_rights_for_its_tables(make_cluster):
    async with make_cluster(**_secured()) as cluster:
        alice = await _prepared(cluster)
        # Everything with the table alone is not enough.
        _grant(cluster, Operation.ALL, TABLE)
        request = pb.CreateAclsRequest(acl=[_acl(TABLE, principal="bob")])
        assert await cluster.code(apis.CREATE_ACLS, request, channel=alice) == 48
        _grant(cluster, Operation.ALL, DATABASE)
        await cluster.ask(apis.CREATE_ACLS, request, channel=alice)
