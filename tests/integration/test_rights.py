"""A user without rights learns nothing and changes nothing, by whatever request of the protocol.
Shown over a real socket with every API key: what is asked about things that exist, and about things that do not, is
answered in the same words. A new API key fails the test until it has a line here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import fluss
from fluss import blocking, embedded
from fluss.errors import ErrorCode, FlussError
from fluss.net.channel import Channel
from fluss.net.transport import run
from fluss.protocol import api as apis
from fluss.protocol.api import ApiKey
from fluss.protocol.bulk_messages import BucketRecords, ProduceLogRequest, PutKvRequest
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.schema.schema import Schema
from fluss.schema.serde import table_to_json
from fluss.schema.types import DataTypes

TIMEOUT_S = 120
OPTIONS = {
    "bind.listeners": "CLIENT://127.0.0.1:0",
    "security.protocol.map": "CLIENT:sasl",
    "security.sasl.plain.credentials": "admin:admin-secret,alice:alice-secret,bob:bob-secret",
    "authorizer.enabled": "true",
    "super.users": "User:admin",
    "durability": "os",
}


@dataclass
class Target:
    """What a request is about: names and numbers of things that exist, or of others that do not."""

    database: str
    table: str
    keyed: str
    parts: str
    table_id: int
    keyed_id: int
    parts_id: int
    partition_id: int
    partition: str
    producer_id: str
    scanner_id: bytes
    principal: str

    @property
    def path(self) -> pb.PbTablePath:
        return self.path_of(self.table)

    def path_of(self, name: str) -> pb.PbTablePath:
        return pb.PbTablePath(database_name=self.database, table_name=name)

    def names(self) -> list[str]:
        return [self.database, self.table, self.keyed, self.parts, self.partition, self.producer_id, self.principal]


MISSING = Target("nodb", "notable", "nokeys", "noparts", 990, 991, 992, 993, "nowhere", "nobody", b"n" * 16, "noone")

# What a user without rights may be told.
FORBIDDEN = "refused with code 48"
UNKNOWN = "every bucket is unknown, code 21"
NOTHING = "an answer without anything in it"
NO_TABLE = "error_code: 7"

# Who may ask without any right, and why that is no harm.
NEEDS_NO_RIGHT = {
    ApiKey.API_VERSIONS: "tells what the server speaks; clients ask before they log in",
    ApiKey.AUTHENTICATE: "is how a client says who it is",
    ApiKey.DROP_KV_SNAPSHOT_LEASE: "there are no leases, and nothing happens",
}
# APIs between the servers of a cluster, which this server does not have.
NOT_SERVED = {
    ApiKey.UPDATE_METADATA,
    ApiKey.NOTIFY_LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.ADJUST_ISR,
    ApiKey.COMMIT_KV_SNAPSHOT,
    ApiKey.COMMIT_REMOTE_LOG_MANIFEST,
    ApiKey.NOTIFY_REMOTE_LOG_OFFSETS,
    ApiKey.NOTIFY_KV_SNAPSHOT_OFFSET,
    ApiKey.NOTIFY_LAKE_TABLE_OFFSET,
    ApiKey.CONTROLLED_SHUTDOWN,
}


def _change(key: str, value: str) -> pb.PbAlterConfig:
    return pb.PbAlterConfig(config_key=key, config_value=value, op_type=0)


def _spec(target: Target) -> pb.PbPartitionSpec:
    return pb.PbPartitionSpec(partition_key_values=[pb.PbKeyValue(key="p", value=target.partition)])


def _json() -> bytes:
    return table_to_json(fluss.TableDescriptor(Schema.builder().column("id", DataTypes.int()).build(), bucket_count=1))


def _acl(target: Target) -> pb.PbAclInfo:
    return pb.PbAclInfo(
        resource_name=f"{target.database}.{target.table}",
        resource_type=4,
        principal_name="alice",
        principal_type="User",
        host="*",
        operation_type=2,
        permission_type=2,
    )


def _acl_filter(target: Target | None = None) -> pb.PbAclFilter:
    acl_filter = pb.PbAclFilter(resource_type=1, operation_type=1, permission_type=1)
    if target is not None:
        acl_filter.resource_name = f"{target.database}.{target.table}"
    return acl_filter


def _offsets(table_id: int) -> list[pb.PbProducerTableOffsets]:
    return [pb.PbProducerTableOffsets(table_id=table_id, bucket_offsets=[pb.PbBucketOffset(bucket_id=0)])]


def _fetch(target: Target) -> pb.FetchLogRequest:
    buckets = [pb.PbFetchLogReqForBucket(bucket_id=0, fetch_offset=0, max_fetch_bytes=1000)]
    table = pb.PbFetchLogReqForTable(table_id=target.table_id, projection_pushdown_enabled=False, buckets_req=buckets)
    return pb.FetchLogRequest(follower_server_id=-1, max_bytes=1000, tables_req=[table])


def _lookup(target: Target, **more: Any) -> pb.LookupRequest:
    buckets = [pb.PbLookupReqForBucket(bucket_id=0, keys=[b"\x00" * 4])]
    return pb.LookupRequest(table_id=target.keyed_id, buckets_req=buckets, **more)


def _lease(target: Target) -> pb.PbKvSnapshotLeaseForTable:
    return pb.PbKvSnapshotLeaseForTable(
        table_id=target.keyed_id, bucket_snapshots=[pb.PbKvSnapshotLeaseForBucket(bucket_id=0, snapshot_id=0)]
    )


Make = Callable[[Target], Any]
# API -> what a user without rights is told about each of these requests.
REQUESTS: dict[ApiKey, list[tuple[str, Make]]] = {
    ApiKey.CREATE_DATABASE: [
        (FORBIDDEN, lambda t: pb.CreateDatabaseRequest(database_name=t.database, ignore_if_exists=True))
    ],
    ApiKey.DROP_DATABASE: [
        (
            FORBIDDEN,
            lambda t: pb.DropDatabaseRequest(database_name=t.database, ignore_if_not_exists=True, cascade=True),
        )
    ],
    ApiKey.ALTER_DATABASE: [
        (
            FORBIDDEN,
            lambda t: pb.AlterDatabaseRequest(
                database_name=t.database, ignore_if_not_exists=True, config_changes=[_change("a", "1")]
            ),
        )
    ],
    ApiKey.LIST_DATABASES: [
        (NOTHING, lambda t: pb.ListDatabasesRequest()),
        (NOTHING, lambda t: pb.ListDatabasesRequest(include_summary=True)),
    ],
    ApiKey.DATABASE_EXISTS: [(NOTHING, lambda t: pb.DatabaseExistsRequest(database_name=t.database))],
    ApiKey.GET_DATABASE_INFO: [(FORBIDDEN, lambda t: pb.GetDatabaseInfoRequest(database_name=t.database))],
    ApiKey.CREATE_TABLE: [
        (
            FORBIDDEN,
            lambda t: pb.CreateTableRequest(table_path=t.path, table_json=_json(), ignore_if_exists=True),
        )
    ],
    ApiKey.DROP_TABLE: [(FORBIDDEN, lambda t: pb.DropTableRequest(table_path=t.path, ignore_if_not_exists=True))],
    ApiKey.ALTER_TABLE: [
        (
            FORBIDDEN,
            lambda t: pb.AlterTableRequest(
                table_path=t.path, ignore_if_not_exists=True, config_changes=[_change("a", "1")]
            ),
        )
    ],
    ApiKey.GET_TABLE_INFO: [(FORBIDDEN, lambda t: pb.GetTableInfoRequest(table_path=t.path))],
    ApiKey.LIST_TABLES: [(NOTHING, lambda t: pb.ListTablesRequest(database_name=t.database))],
    ApiKey.LIST_PARTITION_INFOS: [
        (FORBIDDEN, lambda t: pb.ListPartitionInfosRequest(table_path=t.path_of(t.parts))),
    ],
    ApiKey.TABLE_EXISTS: [(NOTHING, lambda t: pb.TableExistsRequest(table_path=t.path))],
    ApiKey.GET_TABLE_SCHEMA: [(FORBIDDEN, lambda t: pb.GetTableSchemaRequest(table_path=t.path))],
    ApiKey.GET_METADATA: [
        (NOTHING, lambda t: pb.MetadataRequest(table_path=[t.path, t.path_of(t.parts)])),
        (
            NOTHING,
            lambda t: pb.MetadataRequest(
                partitions_path=[
                    pb.PbPhysicalTablePath(database_name=t.database, table_name=t.parts, partition_name=t.partition)
                ]
            ),
        ),
        ("the partition does not exist, code 36", lambda t: pb.MetadataRequest(partitions_id=[t.partition_id])),
    ],
    ApiKey.PRODUCE_LOG: [
        (UNKNOWN, lambda t: ProduceLogRequest(-1, t.table_id, 1000, [BucketRecords(0, b"x" * 64)])),
        (
            UNKNOWN,
            lambda t: ProduceLogRequest(-1, t.parts_id, 1000, [BucketRecords(0, b"x" * 64, t.partition_id)]),
        ),
    ],
    ApiKey.PUT_KV: [(UNKNOWN, lambda t: PutKvRequest(-1, t.keyed_id, 1000, [], [BucketRecords(0, b"x" * 64)]))],
    ApiKey.FETCH_LOG: [(UNKNOWN, _fetch)],
    ApiKey.LOOKUP: [
        (UNKNOWN, _lookup),
        (UNKNOWN, lambda t: _lookup(t, insert_if_not_exists=True, acks=-1, timeout_ms=1000)),
    ],
    ApiKey.PREFIX_LOOKUP: [
        (
            UNKNOWN,
            lambda t: pb.PrefixLookupRequest(
                table_id=t.keyed_id, buckets_req=[pb.PbPrefixLookupReqForBucket(bucket_id=0, keys=[b"\x00"])]
            ),
        )
    ],
    ApiKey.LIMIT_SCAN: [(UNKNOWN, lambda t: pb.LimitScanRequest(table_id=t.table_id, bucket_id=0, limit=1))],
    ApiKey.SCAN_KV: [
        (
            UNKNOWN,
            lambda t: pb.ScanKvRequest(
                bucket_scan_req=pb.PbScanReqForBucket(table_id=t.keyed_id, bucket_id=0),
                call_seq_id=0,
                batch_size_bytes=100,
            ),
        ),
        (
            "there is no such session, code 67",
            lambda t: pb.ScanKvRequest(scanner_id=t.scanner_id, call_seq_id=1, batch_size_bytes=100),
        ),
        ("has_more_results=False", lambda t: pb.ScanKvRequest(scanner_id=t.scanner_id, close_scanner=True)),
    ],
    ApiKey.GET_TABLE_STATS: [
        (
            UNKNOWN,
            lambda t: pb.GetTableStatsRequest(
                table_id=t.table_id, buckets_req=[pb.PbTableStatsReqForBucket(bucket_id=0)]
            ),
        )
    ],
    ApiKey.LIST_OFFSETS: [
        (
            UNKNOWN,
            lambda t: pb.ListOffsetsRequest(
                follower_server_id=-1, offset_type=1, table_id=t.table_id, bucket_id=[0, 5]
            ),
        )
    ],
    ApiKey.INIT_WRITER: [
        (FORBIDDEN, lambda t: pb.InitWriterRequest(table_path=[t.path])),
        (FORBIDDEN, lambda t: pb.InitWriterRequest()),
    ],
    ApiKey.GET_LATEST_KV_SNAPSHOTS: [
        (FORBIDDEN, lambda t: pb.GetLatestKvSnapshotsRequest(table_path=t.path_of(t.keyed)))
    ],
    ApiKey.GET_KV_SNAPSHOT_METADATA: [
        (FORBIDDEN, lambda t: pb.GetKvSnapshotMetadataRequest(table_id=t.keyed_id, bucket_id=0, snapshot_id=0))
    ],
    ApiKey.LIST_KV_SNAPSHOTS: [(FORBIDDEN, lambda t: pb.ListKvSnapshotsRequest(table_id=t.keyed_id))],
    ApiKey.LIST_REMOTE_LOG_MANIFESTS: [
        (FORBIDDEN, lambda t: pb.ListRemoteLogManifestsRequest(table_id=t.table_id)),
        (FORBIDDEN, lambda t: pb.ListRemoteLogManifestsRequest(table_id=t.parts_id, partition_id=t.partition_id)),
    ],
    ApiKey.LAKE_TIERING_HEARTBEAT: [
        (
            NO_TABLE,
            lambda t: pb.LakeTieringHeartbeatRequest(
                request_table=True,
                failed_tables=[pb.PbHeartbeatReqForTable(table_id=t.table_id, coordinator_epoch=0, tiering_epoch=0)],
            ),
        )
    ],
    ApiKey.PREPARE_LAKE_TABLE_SNAPSHOT: [
        (
            NO_TABLE,
            lambda t: pb.PrepareLakeTableSnapshotRequest(
                bucket_offsets=[pb.PbTableOffsets(table_id=t.table_id, table_path=t.path)]
            ),
        )
    ],
    ApiKey.COMMIT_LAKE_TABLE_SNAPSHOT: [
        (
            NO_TABLE,
            lambda t: pb.CommitLakeTableSnapshotRequest(
                lake_table_snapshot_metadata=[
                    pb.PbLakeTableSnapshotMetadata(
                        table_id=t.table_id, snapshot_id=1, tiered_bucket_offsets_file_path="/x"
                    )
                ]
            ),
        )
    ],
    ApiKey.GET_LAKE_SNAPSHOT: [(FORBIDDEN, lambda t: pb.GetLakeSnapshotRequest(table_path=t.path))],
    ApiKey.ACQUIRE_KV_SNAPSHOT_LEASE: [
        (
            FORBIDDEN,
            lambda t: pb.AcquireKvSnapshotLeaseRequest(
                lease_id="l", lease_duration_ms=1, snapshots_to_lease=[_lease(t)]
            ),
        ),
        (NOTHING, lambda t: pb.AcquireKvSnapshotLeaseRequest(lease_id="l", lease_duration_ms=1)),
    ],
    ApiKey.RELEASE_KV_SNAPSHOT_LEASE: [
        (
            FORBIDDEN,
            lambda t: pb.ReleaseKvSnapshotLeaseRequest(
                lease_id="l", buckets_to_release=[pb.PbTableBucket(table_id=t.keyed_id, bucket_id=0)]
            ),
        )
    ],
    ApiKey.CREATE_PARTITION: [
        (
            FORBIDDEN,
            lambda t: pb.CreatePartitionRequest(
                table_path=t.path_of(t.parts), partition_spec=_spec(t), ignore_if_not_exists=True
            ),
        )
    ],
    ApiKey.DROP_PARTITION: [
        (
            FORBIDDEN,
            lambda t: pb.DropPartitionRequest(
                table_path=t.path_of(t.parts), partition_spec=_spec(t), ignore_if_not_exists=True
            ),
        )
    ],
    ApiKey.CREATE_ACLS: [(FORBIDDEN, lambda t: pb.CreateAclsRequest(acl=[_acl(t)]))],
    ApiKey.LIST_ACLS: [
        (NOTHING, lambda t: pb.ListAclsRequest(acl_filter=_acl_filter())),
        (NOTHING, lambda t: pb.ListAclsRequest(acl_filter=_acl_filter(t))),
    ],
    ApiKey.DROP_ACLS: [
        (NOTHING, lambda t: pb.DropAclsRequest(acl_filter=[_acl_filter()])),
        (NOTHING, lambda t: pb.DropAclsRequest(acl_filter=[_acl_filter(t)])),
    ],
    ApiKey.REGISTER_PRODUCER_OFFSETS: [
        (
            FORBIDDEN,
            lambda t: pb.RegisterProducerOffsetsRequest(producer_id=t.producer_id, table_offsets=_offsets(t.table_id)),
        ),
        (FORBIDDEN, lambda t: pb.RegisterProducerOffsetsRequest(producer_id=t.producer_id)),
    ],
    ApiKey.GET_PRODUCER_OFFSETS: [(NOTHING, lambda t: pb.GetProducerOffsetsRequest(producer_id=t.producer_id))],
    ApiKey.DELETE_PRODUCER_OFFSETS: [(NOTHING, lambda t: pb.DeleteProducerOffsetsRequest(producer_id=t.producer_id))],
    ApiKey.DESCRIBE_CLUSTER_CONFIGS: [(FORBIDDEN, lambda t: pb.DescribeClusterConfigsRequest())],
    ApiKey.ALTER_CLUSTER_CONFIGS: [
        (
            FORBIDDEN,
            lambda t: pb.AlterClusterConfigsRequest(alter_configs=[_change("kv.snapshot.interval", "1 s")]),
        )
    ],
    ApiKey.ADD_SERVER_TAG: [(FORBIDDEN, lambda t: pb.AddServerTagRequest(server_ids=[0], server_tag=1))],
    ApiKey.REMOVE_SERVER_TAG: [(FORBIDDEN, lambda t: pb.RemoveServerTagRequest(server_ids=[0], server_tag=1))],
    ApiKey.REBALANCE: [(FORBIDDEN, lambda t: pb.RebalanceRequest(goals=[0]))],
    ApiKey.LIST_REBALANCE_PROGRESS: [(FORBIDDEN, lambda t: pb.ListRebalanceProgressRequest())],
    ApiKey.CANCEL_REBALANCE: [(FORBIDDEN, lambda t: pb.CancelRebalanceRequest())],
    ApiKey.GET_CLUSTER_HEALTH: [(FORBIDDEN, lambda t: pb.GetClusterHealthRequest())],
    # Its keys open the files of all tables.
    ApiKey.GET_FILESYSTEM_SECURITY_TOKEN: [(FORBIDDEN, lambda t: pb.GetFileSystemSecurityTokenRequest())],
    ApiKey.DROP_KV_SNAPSHOT_LEASE: [(NOTHING, lambda t: pb.DropKvSnapshotLeaseRequest(lease_id="l"))],
}


def test_every_api_key_has_an_answer_to_who_may_use_it() -> None:
    answered_elsewhere = {ApiKey.API_VERSIONS, ApiKey.AUTHENTICATE}
    assert set(ApiKey) == REQUESTS.keys() | NOT_SERVED | answered_elsewhere
    assert not REQUESTS.keys() & NOT_SERVED
    assert answered_elsewhere | {ApiKey.DROP_KV_SNAPSHOT_LEASE} == set(NEEDS_NO_RIGHT)


@dataclass
class World:
    server: embedded.EmbeddedServer
    existing: Target

    def connect(self, user: str) -> blocking.FlussConnection:
        credentials = {"security_sasl_username": user, "security_sasl_password": f"{user}-secret"}
        return blocking.FlussConnection.create(self.server.config(security_protocol="sasl", **credentials))

    def ask(self, user: str, api: apis.Api, message: Any) -> Any:
        return run(self._ask(user, api, message))

    async def _ask(self, user: str, api: apis.Api, message: Any) -> Any:
        credentials = Credentials(user, f"{user}-secret")
        async with await Channel.connect("127.0.0.1", self.server.port, credentials=credentials) as channel:
            return await channel.request(api, message, timeout_s=TIMEOUT_S)

    def told(self, user: str, key: ApiKey, message: Any) -> str:
        """Return all that a request is told, as text."""
        try:
            response = self.ask(user, apis.APIS[key], message)
        except FlussError as error:
            return f"error_code: {error.error_code}\n{error.message}"
        if isinstance(response, pb.MetadataResponse):
            # Where the server is, is known to a client that has connected.
            response.ClearField("coordinator_server")
            response.ClearField("tablet_servers")
        return str(response).replace("error_code=", "error_code: ")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with embedded.start(OPTIONS, data_dir=tmp_path_factory.mktemp("rights")) as server:
        target = Target(
            *("hidden_db", "hidden_log", "hidden_keys", "hidden_parts", -1, -1, -1, -1),
            *("hidden_p", "hidden_producer", b"", "bob"),
        )
        world = World(server, target)
        with world.connect("admin") as connection:
            _fill(world, connection)
            yield world


def _fill(world: World, connection: blocking.FlussConnection) -> None:
    """Make a database with a table of each kind, rows, a partition, entries, a producer and a scan session."""
    target, admin = world.existing, connection.get_admin()
    admin.create_database(target.database)
    columns = Schema.builder().column("id", DataTypes.int()).column("p", DataTypes.string())
    schema = columns.build()
    keyed = Schema.builder().column("id", DataTypes.int()).column("p", DataTypes.string()).primary_key(["id"]).build()
    for name, descriptor in (
        (target.table, fluss.TableDescriptor(schema, bucket_count=1)),
        (target.keyed, fluss.TableDescriptor(keyed, bucket_count=1)),
        (target.parts, fluss.TableDescriptor(schema, bucket_count=1, partition_keys=["p"])),
    ):
        admin.create_table(fluss.TablePath(target.database, name), descriptor)
    parts = fluss.TablePath(target.database, target.parts)
    admin.create_partition(parts, {"p": target.partition})
    target.partition_id = admin.list_partition_infos(parts)[0].partition_id
    for attribute, name in (("table_id", target.table), ("keyed_id", target.keyed), ("parts_id", target.parts)):
        info = admin.get_table_info(fluss.TablePath(target.database, name))
        setattr(target, attribute, info.table_id)
    table = connection.get_table(fluss.TablePath(target.database, target.keyed))
    with table.new_upsert().create_writer() as writer:
        for number in range(100):
            writer.upsert([number, "x" * 1000])
    resource = fluss.AclResource.table(fluss.TablePath(target.database, target.table))
    admin.create_acls([fluss.AclBinding(resource, f"User:{target.principal}", fluss.AclOperation.READ)])
    register = pb.RegisterProducerOffsetsRequest(
        producer_id=target.producer_id, table_offsets=_offsets(target.table_id)
    )
    world.ask("admin", apis.REGISTER_PRODUCER_OFFSETS, register)
    scan = pb.ScanKvRequest(
        bucket_scan_req=pb.PbScanReqForBucket(table_id=target.keyed_id, bucket_id=0),
        call_seq_id=0,
        batch_size_bytes=1000,
    )
    target.scanner_id = world.ask("admin", apis.SCAN_KV, scan).scanner_id
    assert target.scanner_id


def state(world: World) -> str:
    """Return everything there is, as the administrator sees it."""
    target = world.existing
    asked = [
        (apis.LIST_DATABASES, pb.ListDatabasesRequest(include_summary=True)),
        (apis.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest(database_name=target.database)),
        (apis.LIST_TABLES, pb.ListTablesRequest(database_name=target.database)),
        (apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=target.path)),
        (apis.LIST_PARTITION_INFOS, pb.ListPartitionInfosRequest(table_path=target.path_of(target.parts))),
        (apis.LIST_ACLS, pb.ListAclsRequest(acl_filter=_acl_filter())),
        (apis.GET_PRODUCER_OFFSETS, pb.GetProducerOffsetsRequest(producer_id=target.producer_id)),
        (apis.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest()),
        (
            apis.LIST_OFFSETS,
            pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=target.table_id, bucket_id=[0]),
        ),
    ]
    return "\n".join(str(world.ask("admin", api, message)) for api, message in asked)


def in_general(text: str, target: Target) -> str:
    """Replace names and numbers by placeholders, so that answers about different things can be compared."""
    text = text.replace(target.scanner_id.hex(), "<session>")
    for index, name in enumerate(target.names()):
        text = text.replace(name, f"<{index}>")
    return re.sub(r"[0-9]{2,}|(?<=Id=)[0-9]+|(?<=id=)[0-9]+|(?<=id: )[0-9]+|(?<= id )'?[0-9]+", "#", text)


EXPECTED = {FORBIDDEN: "error_code: 48", UNKNOWN: "error_code: 21"}


@pytest.mark.parametrize("key", REQUESTS, ids=lambda key: key.name)
def test_a_user_without_rights_cannot_tell_what_exists_from_what_does_not(world: World, key: ApiKey) -> None:
    before = state(world)
    for what, make in REQUESTS[key]:
        about_existing = world.told("alice", key, make(world.existing))
        about_missing = world.told("alice", key, make(MISSING))
        for name in world.existing.names():
            assert name not in about_existing or name in str(make(world.existing)), "only what was asked is repeated"
        generally = in_general(about_existing, world.existing)
        assert generally == in_general(about_missing, MISSING)
        if what == NOTHING:
            assert "error_code" not in about_existing
            assert re.sub(r"filter_results \{\s*\}|exists: False|exists: false", "", about_existing).strip() == ""
        else:
            code = EXPECTED.get(what) or what
            code = re.sub(r".*, code ([0-9]+)", r"error_code: \1", code)
            assert code in about_existing
    assert state(world) == before


def test_apis_of_other_servers_are_not_served(world: World) -> None:
    announced = world.ask(
        "alice", apis.API_VERSIONS, pb.ApiVersionsRequest(client_software_name="x", client_software_version="1")
    )
    served = {version.api_key for version in announced.api_versions}
    assert served.isdisjoint(NOT_SERVED)
    assert served - {ApiKey.API_VERSIONS, ApiKey.AUTHENTICATE} == {int(key) for key in REQUESTS}


def test_a_scan_of_somebody_else_goes_on(world: World) -> None:
    """Neither guessing at a session nor closing it has ended it."""
    for message in (make(world.existing) for _, make in REQUESTS[ApiKey.SCAN_KV]):
        world.told("alice", ApiKey.SCAN_KV, message)
    going_on = pb.ScanKvRequest(scanner_id=world.existing.scanner_id, call_seq_id=1, batch_size_bytes=1000)
    response = world.ask("admin", apis.SCAN_KV, going_on)
    assert not response.error_code
    assert response.has_more_results


def test_who_loses_all_rights_to_a_table_is_told_so_instead_of_waiting_for_it(world: World) -> None:
    """Requests by number are answered as if the table were gone; the client asks by name, and raises the refusal."""
    path = fluss.TablePath(world.existing.database, "revoked")
    schema = Schema.builder().column("id", DataTypes.int()).build()
    resource = fluss.AclResource.table(path)
    with world.connect("admin") as operator, world.connect("bob") as connection:
        admin = operator.get_admin()
        admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        admin.create_acls([fluss.AclBinding(resource, "User:bob", fluss.AclOperation.ALL)])
        table = connection.get_table(path)
        with table.new_append().create_writer() as writer:
            writer.append([1])
        scanner = table.new_scan().create_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        assert len(list(scanner.poll(TIMEOUT_S * 1000))) == 1
        admin.drop_acls([fluss.AclFilter.on(resource)])
        refused = [lambda: scanner.poll(TIMEOUT_S * 1000), lambda: connection.get_table(path)]
        for attempt in refused:
            with pytest.raises(FlussError) as caught:
                attempt()
            assert caught.value.error_code == ErrorCode.AUTHORIZATION_EXCEPTION
        admin.drop_table(path)


def test_a_consumer_needs_to_read_its_table_and_to_write_positions(world: World) -> None:
    path, rows = fluss.TablePath(world.existing.database, "consumed"), fluss.TablePath("fluss", "consumers")
    with world.connect("admin") as operator, world.connect("bob") as connection:
        admin = operator.get_admin()
        schema = Schema.builder().column("id", DataTypes.int()).build()
        admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        with operator.get_table(path).new_append().create_writer() as writer:
            writer.append([1])

        def allow(table: fluss.TablePath, *operations: fluss.AclOperation) -> None:
            resource = fluss.AclResource.table(table)
            admin.create_acls([fluss.AclBinding(resource, "User:bob", operation) for operation in operations])

        allow(path, fluss.AclOperation.READ)
        consumer = connection.get_table(path).consumer("billing")
        with pytest.raises(
            FlussError, match=r"keep their positions in fluss\.consumers, which takes READ and WRITE"
        ) as caught:
            consumer.poll(0)
        assert caught.value.error_code == ErrorCode.AUTHORIZATION_EXCEPTION
        with operator.get_table(path).consumer("first") as first:
            first.poll(0)
        allow(rows, fluss.AclOperation.READ, fluss.AclOperation.WRITE)
        assert len(list(consumer.poll(TIMEOUT_S * 1000))) == 1
        consumer.close()
        assert [info.lag for info in connection.get_table(path).consumers()] == [0, 1]
        admin.drop_table(path)
