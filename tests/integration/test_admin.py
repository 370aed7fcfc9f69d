"""Administration from end to end: what the client asks is what a real server does, with the documented codes.
Shown against one server with a plain and a SASL listener, by many calls from fresh event loops and threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import embedded
from fluss.client.kernel.runtime import wait_for
from tests.java.cluster import JavaCluster

ARROW_SCHEMA = pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string())])
LOG_TABLE = fluss.TableDescriptor(fluss.Schema(ARROW_SCHEMA), bucket_count=2)
REGION_SCHEMA = fluss.Schema(pa.schema([pa.field("id", pa.int32()), pa.field("region", pa.string())]))
REGION_TABLE = fluss.TableDescriptor(REGION_SCHEMA, partition_keys=["region"], bucket_count=1)
USERS = "admin:admin-secret,alice:alice-secret"


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, java_cluster: JavaCluster | None
) -> Iterator[JavaCluster | embedded.EmbeddedServer]:
    if java_cluster is not None:
        yield java_cluster
        return
    options = {
        "bind.listeners": "PLAIN_CLIENT://127.0.0.1:0, CLIENT://127.0.0.1:0",
        "internal.listener.name": "PLAIN_CLIENT",
        "security.protocol.map": "CLIENT:sasl",
        "security.sasl.enabled.mechanisms": "plain",
        "security.sasl.plain.credentials": USERS,
        "authorizer.enabled": True,
        "super.users": "User:admin",
    }
    with embedded.start(options, data_dir=tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def connection(server: embedded.EmbeddedServer) -> Iterator[fluss.FlussConnection]:
    """One connection of a super user for all tests, made on a loop that is gone when they run."""
    with asyncio.run(fluss.FlussConnection.create(_sasl_config(server, "admin", "admin-secret"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def admin(connection: fluss.FlussConnection) -> fluss.FlussAdmin:
    return connection.get_admin()


@pytest.fixture
def database(admin: fluss.FlussAdmin, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of the test's own."""
    name = f"db_{abs(hash(request.node.name))}"
    wait_for(admin.create_database(name))
    yield name
    wait_for(admin.drop_database(name, ignore_if_not_exists=True))


async def _code(call: Coroutine[Any, Any, Any]) -> int:
    """Return the code that a call fails with."""
    with pytest.raises(fluss.FlussError) as caught:
        await call
    assert caught.value.message
    return caught.value.error_code


def _sasl_config(server: embedded.EmbeddedServer, username: str, password: str) -> fluss.Config:
    return server.config(
        "CLIENT", security_protocol="sasl", security_sasl_username=username, security_sasl_password=password
    )


# Databases


async def test_a_database_needs_no_descriptor(admin: fluss.FlussAdmin) -> None:
    await admin.create_database("plain", ignore_if_exists=False)
    assert (await admin.get_database_info("plain")).get_database_descriptor() == fluss.DatabaseDescriptor()
    await admin.drop_database("plain")


@pytest.mark.only_here("0.9 cannot change databases")
async def test_databases_that_do_not_exist_or_cannot(admin: fluss.FlussAdmin) -> None:
    assert await _code(admin.create_database("no/slashes")) == fluss.ErrorCode.INVALID_DATABASE_EXCEPTION
    assert await _code(admin.alter_database("missing")) == fluss.ErrorCode.DATABASE_NOT_EXIST
    await admin.alter_database("missing", comment="x", ignore_if_not_exists=True)


async def test_a_database_with_tables_goes_only_with_cascade(admin: fluss.FlussAdmin, database: str) -> None:
    path = fluss.TablePath(database, "t")
    await admin.create_table(path, LOG_TABLE)
    assert await _code(admin.drop_database(database, cascade=False)) == fluss.ErrorCode.DATABASE_NOT_EMPTY
    await admin.drop_database(database)
    assert not await admin.table_exists(path)


async def test_in_older_programs_the_flag_comes_before_the_descriptor(admin: fluss.FlussAdmin, database: str) -> None:
    await admin.create_database(database, True)
    await admin.create_database("older", True, fluss.DatabaseDescriptor("c"))
    assert (await admin.get_database_info("older")).get_database_descriptor().comment == "c"
    await admin.drop_database("older", True, True)
    assert await _code(admin.create_database(database, False)) == 6


@pytest.mark.only_here("0.9 cannot change databases")
async def test_comment_and_properties_of_a_database_can_be_changed(admin: fluss.FlussAdmin, database: str) -> None:
    await admin.alter_database(database, comment="new", set_properties={"a": "1", "b": "2"})
    await admin.alter_database(database, set_properties={"a": "3"}, reset_properties=["b"])
    descriptor = (await admin.get_database_info(database)).get_database_descriptor()
    assert descriptor == fluss.DatabaseDescriptor("new", {"a": "3"})
    await admin.alter_database(database, comment="")
    assert (await admin.get_database_info(database)).get_database_descriptor().comment is None


@pytest.mark.only_here("there, a summary and a database differ by milliseconds in when it was made")
async def test_summaries_count_tables(admin: fluss.FlussAdmin, database: str) -> None:
    for name in ("a", "b"):
        await admin.create_table(fluss.TablePath(database, name), LOG_TABLE)
    (summary,) = [s for s in await admin.list_database_summaries() if s.database_name == database]
    assert summary.table_count == 2
    assert summary.created_time == (await admin.get_database_info(database)).created_time


# Tables


async def test_a_table_from_its_creation_to_its_end(admin: fluss.FlussAdmin, database: str) -> None:
    path = fluss.TablePath(database, "users")
    schema = fluss.Schema(ARROW_SCHEMA, primary_keys=["id"])
    descriptor = fluss.TableDescriptor(
        schema,
        bucket_count=3,
        bucket_keys=["id"],
        comment="all users",
        log_format="arrow",
        kv_format="indexed",
        properties={"table.replication.factor": "1"},
        custom_properties={"owner": "team"},
    )
    await admin.create_table(path, descriptor, ignore_if_exists=False)
    assert await admin.table_exists(path)
    assert await admin.list_tables(database) == ["users"]
    info = await admin.get_table_info(path)
    assert info.table_path == path
    assert (info.comment, info.num_buckets, info.schema_id) == ("all users", 3, 1)
    assert (info.get_primary_keys(), info.get_bucket_keys(), info.get_partition_keys()) == (["id"], ["id"], [])
    assert info.get_column_names() == ["id", "name"]
    assert info.has_primary_key()
    assert not info.is_partitioned()
    assert info.get_properties()["table.replication.factor"] == "1"
    assert info.get_custom_properties() == {"owner": "team"}
    # The older name returns the same.
    assert (await admin.get_table(path)).table_id == info.table_id
    assert await admin.drop_table(path) is None
    assert not await admin.table_exists(path)
    assert await admin.list_tables(database) == []


@pytest.mark.only_here("there, a change of nothing is not looked at, so a missing table is none")
async def test_tables_that_do_not_exist(admin: fluss.FlussAdmin, database: str) -> None:
    missing = fluss.TablePath(database, "missing")
    for call in (admin.get_table, admin.alter_table, admin.get_table_stats):
        assert await _code(call(missing)) == fluss.ErrorCode.TABLE_NOT_EXIST
    await admin.alter_table(missing, set_properties={"a": "b"}, ignore_if_not_exists=True)


@pytest.mark.only_here("our server has one replica of everything, a cluster can have three")
async def test_tables_that_cannot_be(admin: fluss.FlussAdmin, database: str) -> None:
    elsewhere = fluss.TablePath("missing", "t")
    assert await _code(admin.create_table(elsewhere, LOG_TABLE)) == fluss.ErrorCode.DATABASE_NOT_EXIST
    bad_name = fluss.TablePath(database, "no/slashes")
    assert await _code(admin.create_table(bad_name, LOG_TABLE)) == fluss.ErrorCode.INVALID_TABLE_EXCEPTION
    replicated = fluss.TableDescriptor(fluss.Schema(ARROW_SCHEMA), properties={"table.replication.factor": "3"})
    path = fluss.TablePath(database, "t")
    assert await _code(admin.create_table(path, replicated)) == fluss.ErrorCode.INVALID_REPLICATION_FACTOR


async def test_columns_can_be_added_and_older_schemas_stay_known(admin: fluss.FlussAdmin, database: str) -> None:
    path = fluss.TablePath(database, "t")
    await admin.create_table(path, LOG_TABLE)
    score = pa.field("score", pa.float32(), metadata={"comment": "out of ten"})
    tags = fluss.Column("tags", fluss.DataTypes.array(fluss.DataTypes.string()))
    await admin.alter_table(path, add_columns=[score, tags])
    newest = await admin.get_table_schema(path)
    assert newest.schema_id == 2
    assert newest.schema.get_columns()[2:] == [("score", "float"), ("tags", "array<string>")]
    assert newest.schema.column("score").comment == "out of ten"
    first = await admin.get_table_schema(path, 1)
    assert (first.schema_id, first.schema.column_names) == (1, ["id", "name"])
    info = await admin.get_table_info(path)
    assert (info.schema_id, info.schema) == (2, newest.schema)
    path = fluss.TablePath(database, "t")
    again = pa.field("score", pa.float32())
    assert await _code(admin.alter_table(path, add_columns=[again])) == fluss.ErrorCode.INVALID_ALTER_TABLE_EXCEPTION
    assert await _code(admin.get_table_schema(path, 9)) == fluss.ErrorCode.SCHEMA_NOT_EXIST


@pytest.mark.only_here("the first half of the sentence is that of our server")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"drop_columns": ["name"]}, "cannot be dropped; .* leave it out where you read, with columns="),
        (
            {"rename_columns": {"name": "title"}},
            "cannot be renamed; .* To have 'name' as 'title', name it so where you read",
        ),
    ],
    ids=["drop", "rename"],
)
async def test_columns_that_cannot_be_dropped_or_renamed_are_refused_with_a_way_around(
    admin: fluss.FlussAdmin, database: str, change: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fluss.TablePath(database, "t")
    await admin.create_table(path, LOG_TABLE)
    with pytest.raises(fluss.FlussError, match=f"{said}.*copy the rows of {path}"):
        await admin.alter_table(path, **change)
    assert await _code(admin.alter_table(path, set_properties={"a": "b"}, **change)) == 56

    def pass_over(_path: fluss.TablePath, request: Any) -> None:
        """What servers do that have never heard of these changes."""
        request.ClearField("drop_columns")
        request.ClearField("rename_columns")

    monkeypatch.setattr("fluss.server.rpc.tables._check_alteration", pass_over)
    with pytest.raises(fluss.FlussError, match=r"it is too old for this.*copy the rows") as raised:
        await admin.alter_table(path, **change)
    assert raised.value.error_code == fluss.ErrorCode.UNSUPPORTED_VERSION
    assert (await admin.get_table_info(path)).schema.column_names == ["id", "name"]
    with pytest.raises(TypeError):
        await admin.alter_table(path, **dict.fromkeys(change, "name"))


@pytest.mark.only_here("0.9 cannot change table.log.ttl")
async def test_properties_of_a_table_can_be_changed(admin: fluss.FlussAdmin, database: str) -> None:
    path = fluss.TablePath(database, "t")
    await admin.create_table(path, LOG_TABLE)
    await admin.alter_table(path, set_properties={"table.log.ttl": "3 d", "owner": "a", "tier": "1"})
    await admin.alter_table(path, reset_properties=["owner"])
    info = await admin.get_table_info(path)
    assert info.get_properties()["table.log.ttl"] == "3 d"
    assert info.get_custom_properties() == {"tier": "1"}
    change = {"table.log.format": "INDEXED"}
    path = fluss.TablePath(database, "t")
    assert await _code(admin.alter_table(path, set_properties=change)) == 56


async def test_row_counts_are_known_without_reading(
    connection: fluss.FlussConnection, admin: fluss.FlussAdmin, database: str
) -> None:
    path = fluss.TablePath(database, "t")
    await admin.create_table(path, LOG_TABLE)
    assert (await admin.get_table_stats(path)).row_count == 0
    writer = (await connection.get_table(path)).new_append().create_writer()
    for number in range(10):
        writer.append([number, "x"])
    await writer.flush()
    stats = await admin.get_table_stats(path)
    assert stats.row_count == 10
    assert [bucket.bucket_id for bucket in stats.row_count_by_bucket] == [0, 1]

    regions = fluss.TablePath(database, "regions")
    await admin.create_table(regions, REGION_TABLE)
    for region in ("US", "EU"):
        await admin.create_partition(regions, {"region": region})
    writer = (await connection.get_table(regions)).new_append().create_writer()
    writer.append([1, "US"])
    writer.append([2, "EU"])
    writer.append([3, "US"])
    await writer.flush()
    assert (await admin.get_table_stats(regions)).row_count == 3
    assert (await admin.get_table_stats(regions, "US")).row_count == 2
    plain, regions = fluss.TablePath(database, "t"), fluss.TablePath(database, "regions")
    assert await _code(admin.get_table_stats(plain, "US")) == fluss.ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION
    assert await _code(admin.get_table_stats(regions, "AP")) == fluss.ErrorCode.PARTITION_NOT_EXISTS


# Partitions


async def test_a_partition_from_its_creation_to_its_end(admin: fluss.FlussAdmin, database: str) -> None:
    path = fluss.TablePath(database, "t")
    schema = fluss.Schema(
        pa.schema([pa.field("id", pa.int32()), pa.field("day", pa.string()), pa.field("region", pa.string())])
    )
    await admin.create_table(path, fluss.TableDescriptor(schema, partition_keys=["day", "region"], bucket_count=1))
    assert await admin.list_partition_infos(path) == []
    # The order of the values does not matter, the order of the keys does.
    spec = {"region": "EMEA", "day": "2024-01-15"}
    assert await admin.create_partition(path, spec) is None
    (info,) = await admin.list_partition_infos(path)
    assert info.partition_name == "2024-01-15$EMEA"
    assert info.get_partition_spec() == fluss.PartitionSpec(spec)
    assert repr(info) == f"PartitionInfo(partition_id={info.partition_id}, partition_name='2024-01-15$EMEA')"

    await admin.create_partition(path, fluss.PartitionSpec({"day": "2024-01-16", "region": "EMEA"}))
    await admin.create_partition(path, {"day": "2024-01-15", "region": "US"})
    filtered = await admin.list_partition_infos(path, partition_spec={"day": "2024-01-15"})
    assert {info.partition_name for info in filtered} == {"2024-01-15$EMEA", "2024-01-15$US"}
    same = await admin.list_partition_infos_with_spec(path, fluss.PartitionSpec({"day": "2024-01-15"}))
    assert {info.partition_id for info in same} == {info.partition_id for info in filtered}

    await admin.drop_partition(path, spec)
    names = {info.partition_name for info in await admin.list_partition_infos(path)}
    assert names == {"2024-01-16$EMEA", "2024-01-15$US"}


async def test_a_table_without_partitions_has_no_offsets_of_one(admin: fluss.FlussAdmin, database: str) -> None:
    plain = fluss.TablePath(database, "plain")
    await admin.create_table(plain, LOG_TABLE)
    asked = await _code(admin.list_partition_offsets(plain, "US", [0], fluss.OffsetSpec.latest()))
    assert asked == fluss.ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION


# Offsets


async def test_offsets_by_kind_and_in_both_generations_of_names(
    connection: fluss.FlussConnection, admin: fluss.FlussAdmin, database: str
) -> None:
    path = fluss.TablePath(database, "t")
    await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(ARROW_SCHEMA), bucket_count=1))
    assert await admin.list_offsets(path, [0], fluss.OffsetSpec.earliest()) == {0: 0}
    assert await admin.list_offsets(path, [0], fluss.OffsetSpec.latest()) == {0: 0}
    before_ms = time.time_ns() // 1_000_000 - 1000
    writer = (await connection.get_table(path)).new_append().create_writer()
    for number in range(3):
        writer.append([number, "x"])
    await writer.flush()
    assert await admin.list_offsets(path, bucket_ids=[0], offset_spec=fluss.OffsetSpec.earliest()) == {0: 0}
    assert await admin.list_offsets(path, bucket_ids=(0,), offset_spec=fluss.OffsetSpec.latest()) == {0: 3}
    assert await admin.list_offsets(path, [0], fluss.OffsetSpec.timestamp(before_ms)) == {0: 0}
    await asyncio.sleep(0.01)
    now_ms = time.time_ns() // 1_000_000
    assert await admin.list_offsets(path, [0], fluss.OffsetSpec.timestamp(now_ms)) == {0: 3}

    assert await admin.list_offsets(path, bucket_ids=[0], offset_type="LATEST") == {0: 3}
    assert await admin.list_offsets(path, [0], "earliest") == {0: 0}
    by_time = await admin.list_offsets(path, bucket_ids=[0], offset_type="timestamp", timestamp=before_ms)
    assert by_time == {0: 0}
    path = fluss.TablePath(database, "t")
    soon = fluss.OffsetSpec.timestamp(time.time_ns() // 1_000_000 + 3_600_000)
    assert await _code(admin.list_offsets(path, [0], soon)) == fluss.ErrorCode.INVALID_TIMESTAMP_EXCEPTION
    missing = fluss.TablePath(database, "missing")
    assert await _code(admin.list_offsets(missing, [0], "latest")) == fluss.ErrorCode.TABLE_NOT_EXIST


async def test_offsets_of_partitions_by_name(
    connection: fluss.FlussConnection, admin: fluss.FlussAdmin, database: str
) -> None:
    path = fluss.TablePath(database, "t")
    await admin.create_table(path, REGION_TABLE)
    for region in ("US", "EU"):
        await admin.create_partition(path, {"region": region})
    writer = (await connection.get_table(path)).new_append().create_writer()
    writer.append([1, "US"])
    writer.append([2, "US"])
    await writer.flush()
    latest = fluss.OffsetSpec.latest()
    assert await admin.list_partition_offsets(path, "US", [0], latest) == {0: 2}
    older = await admin.list_partition_offsets(path, partition_name="EU", bucket_ids=[0], offset_type="latest")
    assert older == {0: 0}
    path = fluss.TablePath(database, "t")
    missing = await _code(admin.list_partition_offsets(path, "AP", [0], fluss.OffsetSpec.latest()))
    assert missing == fluss.ErrorCode.PARTITION_NOT_EXISTS


async def test_questions_about_offsets_that_make_no_sense(admin: fluss.FlussAdmin, database: str) -> None:
    path, regions = fluss.TablePath(database, "t"), fluss.TablePath(database, "regions")
    latest = fluss.OffsetSpec.latest()
    await admin.create_table(path, LOG_TABLE)
    await admin.create_table(regions, REGION_TABLE)
    for bucket_ids, offset, words in (
        ([], latest, "Buckets are empty"),
        ([-1], latest, "Invalid bucket_id: -1"),
        ([2], latest, "No leader found for table bucket"),
        ([0], "newest", "Invalid offset_type"),
        ([0], "timestamp", "timestamp must be provided"),
    ):
        with pytest.raises(fluss.FlussError, match=words) as caught:
            await admin.list_offsets(path, bucket_ids, offset)
        assert caught.value.error_code == fluss.ErrorCode.CLIENT_ERROR
    with pytest.raises(fluss.FlussError, match="list_partition_offsets"):
        await admin.list_offsets(regions, [0], latest)
    for bucket_ids, offset in ((["0"], latest), ("0", latest), (0, latest), ([0], 1), ([0], None)):
        with pytest.raises(TypeError):
            await admin.list_offsets(path, bucket_ids, offset)


async def test_producers_keep_positions(admin: fluss.FlussAdmin, database: str) -> None:
    path = fluss.TablePath(database, "t")
    await admin.create_table(path, LOG_TABLE)
    table_id = (await admin.get_table_info(path)).table_id
    offsets = {fluss.TableBucket(table_id, 0): 5, fluss.TableBucket(table_id, 1): 7}
    assert await admin.get_producer_offsets("job-1") is None
    assert await admin.register_producer_offsets("job-1", offsets, ttl_ms=60_000) is True
    assert await admin.register_producer_offsets("job-1", {}) is False
    kept = await admin.get_producer_offsets("job-1")
    assert kept is not None
    assert (kept.producer_id, kept.offsets) == ("job-1", offsets)
    assert kept.expiration_time > time.time_ns() // 1_000_000
    await admin.delete_producer_offsets("job-1")
    assert await admin.get_producer_offsets("job-1") is None
    await admin.delete_producer_offsets("job-1")


# The cluster


@pytest.mark.only_here("a cluster has three tablet servers, at addresses of their own")
async def test_servers_are_listed_coordinator_first(admin: fluss.FlussAdmin, server: embedded.EmbeddedServer) -> None:
    nodes = await admin.get_server_nodes()
    assert [node.server_type for node in nodes] == ["CoordinatorServer", "TabletServer"]
    assert [node.uid for node in nodes] == ["cs-0", "ts-0"]
    for node in nodes:
        # A client is told the address of the listener it came in by.
        assert f"{node.host}:{node.port}" == server.address("CLIENT")
        assert repr(node).startswith("ServerNode(")


async def test_listing_servers_does_not_disturb_a_writer(
    connection: fluss.FlussConnection, admin: fluss.FlussAdmin, database: str
) -> None:
    path = fluss.TablePath(database, "t")
    await admin.create_table(path, LOG_TABLE)
    writer = (await connection.get_table(path)).new_append().create_writer()
    writer.append([1, "x"])
    await admin.get_server_nodes()
    writer.append([2, "x"])
    await writer.flush()
    assert (await admin.get_table_stats(path)).row_count == 2


@pytest.mark.only_here("0.9 does not tell its health")
async def test_the_health_of_the_cluster(admin: fluss.FlussAdmin) -> None:
    health = await admin.get_cluster_health()
    assert health.status == fluss.HealthStatus.GREEN
    assert health.num_replicas == health.in_sync_replicas
    assert health.num_leader_replicas == health.active_leader_replicas


@pytest.mark.only_here("other options can be changed there")
async def test_options_of_the_cluster_can_be_seen_and_changed(admin: fluss.FlussAdmin) -> None:
    key = "log.replica.min-in-sync-replicas-number"
    await admin.alter_cluster_configs(set_configs={key: "1"})
    entries = {entry.key: entry for entry in await admin.describe_cluster_configs()}
    assert (entries[key].value, entries[key].is_dynamic) == ("1", True)
    assert not entries["bind.listeners"].is_dynamic
    assert "admin-secret" not in repr(entries)
    await admin.alter_cluster_configs(reset_configs=[key])
    assert not any(entry.is_dynamic for entry in await admin.describe_cluster_configs() if entry.key == key)
    unknown = {"no.such.option": "1"}
    assert await _code(admin.alter_cluster_configs(set_configs=unknown)) == fluss.ErrorCode.CONFIG_EXCEPTION


@pytest.mark.only_here("there, a tag that is not set can be removed")
async def test_servers_can_be_tagged(admin: fluss.FlussAdmin) -> None:
    tag, other = fluss.ServerTag.TEMPORARY_OFFLINE, fluss.ServerTag.PERMANENT_OFFLINE
    await admin.add_server_tag([0], tag)
    assert await _code(admin.add_server_tag([0], other)) == 59
    await admin.remove_server_tag([0], tag)
    assert await _code(admin.remove_server_tag([0], tag)) == 60
    assert await _code(admin.add_server_tag([9], tag)) == 58
    with pytest.raises(fluss.FlussError, match="Unknown server tag"):
        await admin.add_server_tag([0], 7)  # type: ignore[arg-type]  # the mistake is the point


# Who may do what


@pytest.mark.only_here("there, whoever asks may know that a table exists")
async def test_rights_can_be_granted_seen_and_taken_away(
    server: embedded.EmbeddedServer, admin: fluss.FlussAdmin, database: str
) -> None:
    path = fluss.TablePath(database, "t")
    await admin.create_table(path, LOG_TABLE)
    resource = fluss.AclResource.table(path)
    entry = fluss.AclBinding(resource, "User:alice", fluss.AclOperation.READ)
    with await fluss.FlussConnection.create(_sasl_config(server, "alice", "alice-secret")) as alice:
        hers = alice.get_admin()
        assert not await hers.table_exists(path)
        assert await _code(hers.get_table_info(path)) == fluss.ErrorCode.AUTHORIZATION_EXCEPTION
        # Metadata hides the table; the reason is found out all the same.
        assert await _code(alice.get_table(path)) == fluss.ErrorCode.AUTHORIZATION_EXCEPTION
        assert await _code(hers.create_acls([entry])) == fluss.ErrorCode.AUTHORIZATION_EXCEPTION

        await admin.create_acls([entry])
        assert await admin.list_acls(fluss.AclFilter.on(resource)) == [entry]
        assert entry in await admin.list_acls()
        assert await admin.list_acls(fluss.AclFilter(principal="User:bob")) == []
        assert await hers.table_exists(path)
        assert (await alice.get_table(path)).get_table_path() == path
        # To read is not to change.
        assert await _code(hers.drop_table(path)) == fluss.ErrorCode.AUTHORIZATION_EXCEPTION

        assert await admin.drop_acls([fluss.AclFilter.on(resource)]) == [entry]
        assert await admin.list_acls(fluss.AclFilter.on(resource)) == []
        assert not await hers.table_exists(path)


async def test_without_access_control_rights_are_code_47(tmp_path: Path) -> None:
    with (
        embedded.start(data_dir=tmp_path) as server,
        await fluss.FlussConnection.create(server.config()) as connection,
    ):
        admin = connection.get_admin()
        assert await _code(admin.list_acls()) == fluss.ErrorCode.SECURITY_DISABLED_EXCEPTION


@pytest.mark.only_here("a cluster has three tablet servers, at addresses of their own")
async def test_right_credentials_let_users_in(server: embedded.EmbeddedServer) -> None:
    for name in ("admin", "alice"):
        with await fluss.FlussConnection.create(_sasl_config(server, name, f"{name}-secret")) as connection:
            nodes = await connection.get_admin().get_server_nodes()
            assert [f"{node.host}:{node.port}" for node in nodes] == [server.address("CLIENT")] * 2
            assert await connection.get_admin().database_exists("fluss")


async def test_wrong_credentials_are_code_46_and_are_not_shown(server: embedded.EmbeddedServer) -> None:
    for name, password in (("admin", "wrong-secret"), ("nobody", "admin-secret")):
        config = _sasl_config(server, name, password)
        with pytest.raises(fluss.FlussError) as caught:
            await fluss.FlussConnection.create(config)
        assert caught.value.error_code == fluss.ErrorCode.AUTHENTICATE_EXCEPTION
        assert password not in str(caught.value) + repr(config)


@pytest.mark.only_here("there, a listener without SASL ignores who logs in")
async def test_clients_and_listeners_that_disagree_about_security(server: embedded.EmbeddedServer) -> None:
    plain_listener = server.config("PLAIN_CLIENT")
    for config in (
        server.config("CLIENT"),
        server.config("PLAIN_CLIENT", security_protocol="sasl", security_sasl_username="admin"),
        server.config(
            "PLAIN_CLIENT",
            security_protocol="SASL",
            security_sasl_username="admin",
            security_sasl_password="admin-secret",
        ),
    ):
        with pytest.raises(fluss.FlussError):
            await fluss.FlussConnection.create(config)
    (await fluss.FlussConnection.create(plain_listener)).close()


# Threads and loops


def test_one_admin_serves_many_loops_in_many_threads(admin: fluss.FlussAdmin) -> None:
    async def main() -> None:
        answers = await asyncio.gather(*(admin.database_exists("fluss") for _ in range(20)))
        assert answers == [True] * 20

    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda _: asyncio.run(main()), range(8)):
            pass


async def test_the_admin_may_be_awaited(connection: fluss.FlussConnection) -> None:
    assert await connection.get_admin() is connection.get_admin()
    assert repr(connection.get_admin()) == "FlussAdmin()"


async def test_arguments_of_the_wrong_class_are_type_errors(admin: fluss.FlussAdmin) -> None:
    path = fluss.TablePath("fluss", "t")
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: admin.create_database(7),  # type: ignore[arg-type]  # the mistake is the point, here and below
        lambda: admin.create_database("d", "comment"),  # type: ignore[arg-type]
        lambda: admin.drop_database("d", "yes"),  # type: ignore[arg-type]
        lambda: admin.create_table(("fluss", "t"), LOG_TABLE),  # type: ignore[arg-type]
        lambda: admin.create_table(path, ARROW_SCHEMA),
        lambda: admin.create_partition(path, {"region": 7}),  # type: ignore[dict-item]
        lambda: admin.get_table_info(("fluss", "t")),  # type: ignore[arg-type]
        lambda: admin.list_partition_offsets(path, 7, [0], "latest"),  # type: ignore[arg-type]
        lambda: admin.alter_table(path, add_columns=["name"]),
        lambda: admin.create_acls(["everything"]),  # type: ignore[list-item]
    ]
    for call in calls:
        with pytest.raises(TypeError):
            await call()
    with pytest.raises(fluss.FlussError, match="UTF-8"):
        await admin.database_exists("\udc80")
