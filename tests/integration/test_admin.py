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

ARROW_SCHEMA = pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string())])
LOG_TABLE = fluss.TableDescriptor(fluss.Schema(ARROW_SCHEMA), bucket_count=2)
REGION_SCHEMA = fluss.Schema(pa.schema([pa.field("id", pa.int32()), pa.field("region", pa.string())]))
REGION_TABLE = fluss.TableDescriptor(REGION_SCHEMA, partition_keys=["region"], bucket_count=1)
USERS = "admin:admin-secret,alice:alice-secret"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedServer]:
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


def _code(call: Callable[[], Coroutine[Any, Any, Any]]) -> int:
    """Return the code that a call fails with."""
    with pytest.raises(fluss.FlussError) as caught:
        asyncio.run(call())
    assert caught.value.message
    return caught.value.error_code


def _sasl_config(server: embedded.EmbeddedServer, username: str, password: str) -> fluss.Config:
    return server.config(
        "CLIENT", security_protocol="sasl", security_sasl_username=username, security_sasl_password=password
    )


# Databases


def test_a_database_from_its_creation_to_its_end(admin: fluss.FlussAdmin) -> None:
    async def main() -> None:
        descriptor = fluss.DatabaseDescriptor("for tests", {"owner": "team", "tier": "1"})
        began_ms = time.time_ns() // 1_000_000
        assert await admin.create_database("life", descriptor, ignore_if_exists=False) is None
        assert await admin.database_exists("life")
        assert "life" in await admin.list_databases()
        info = await admin.get_database_info("life")
        assert (info.database_name, info.get_database_descriptor()) == ("life", descriptor)
        assert began_ms - 1000 <= info.created_time <= info.modified_time <= began_ms + 60_000
        await admin.drop_database("life", ignore_if_not_exists=False, cascade=True)
        assert not await admin.database_exists("life")
        assert "life" not in await admin.list_databases()

    asyncio.run(main())


def test_the_default_database_is_there(admin: fluss.FlussAdmin) -> None:
    assert asyncio.run(admin.database_exists("fluss"))


def test_a_database_needs_no_descriptor(admin: fluss.FlussAdmin) -> None:
    async def main() -> None:
        await admin.create_database("plain", ignore_if_exists=False)
        assert (await admin.get_database_info("plain")).get_database_descriptor() == fluss.DatabaseDescriptor()
        await admin.drop_database("plain")

    asyncio.run(main())


def test_databases_that_exist_or_do_not(admin: fluss.FlussAdmin, database: str) -> None:
    assert _code(lambda: admin.create_database(database)) == fluss.ErrorCode.DATABASE_ALREADY_EXIST
    assert _code(lambda: admin.create_database("no/slashes")) == fluss.ErrorCode.INVALID_DATABASE_EXCEPTION
    for call in (admin.get_database_info, admin.drop_database, admin.list_tables, admin.alter_database):
        assert _code(lambda call=call: call("missing")) == fluss.ErrorCode.DATABASE_NOT_EXIST
    asyncio.run(admin.create_database(database, ignore_if_exists=True))
    asyncio.run(admin.drop_database("missing", ignore_if_not_exists=True))
    asyncio.run(admin.alter_database("missing", comment="x", ignore_if_not_exists=True))


def test_a_database_with_tables_goes_only_with_cascade(admin: fluss.FlussAdmin, database: str) -> None:
    path = fluss.TablePath(database, "t")
    asyncio.run(admin.create_table(path, LOG_TABLE))
    assert _code(lambda: admin.drop_database(database, cascade=False)) == fluss.ErrorCode.DATABASE_NOT_EMPTY
    asyncio.run(admin.drop_database(database))
    assert not asyncio.run(admin.table_exists(path))


def test_in_older_programs_the_flag_comes_before_the_descriptor(admin: fluss.FlussAdmin, database: str) -> None:
    async def main() -> None:
        await admin.create_database(database, True)
        await admin.create_database("older", True, fluss.DatabaseDescriptor("c"))
        assert (await admin.get_database_info("older")).get_database_descriptor().comment == "c"
        await admin.drop_database("older", True, True)

    asyncio.run(main())
    assert _code(lambda: admin.create_database(database, False)) == 6


def test_comment_and_properties_of_a_database_can_be_changed(admin: fluss.FlussAdmin, database: str) -> None:
    async def main() -> None:
        await admin.alter_database(database, comment="new", set_properties={"a": "1", "b": "2"})
        await admin.alter_database(database, set_properties={"a": "3"}, reset_properties=["b"])
        descriptor = (await admin.get_database_info(database)).get_database_descriptor()
        assert descriptor == fluss.DatabaseDescriptor("new", {"a": "3"})
        await admin.alter_database(database, comment="")
        assert (await admin.get_database_info(database)).get_database_descriptor().comment is None

    asyncio.run(main())


def test_summaries_count_tables(admin: fluss.FlussAdmin, database: str) -> None:
    async def main() -> None:
        for name in ("a", "b"):
            await admin.create_table(fluss.TablePath(database, name), LOG_TABLE)
        (summary,) = [s for s in await admin.list_database_summaries() if s.database_name == database]
        assert summary.table_count == 2
        assert summary.created_time == (await admin.get_database_info(database)).created_time

    asyncio.run(main())


# Tables


def test_a_table_from_its_creation_to_its_end(admin: fluss.FlussAdmin, database: str) -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_tables_that_exist_or_do_not(admin: fluss.FlussAdmin, database: str) -> None:
    path, missing = fluss.TablePath(database, "t"), fluss.TablePath(database, "missing")
    asyncio.run(admin.create_table(path, LOG_TABLE))
    assert _code(lambda: admin.create_table(path, LOG_TABLE)) == fluss.ErrorCode.TABLE_ALREADY_EXIST
    asyncio.run(admin.create_table(path, LOG_TABLE, ignore_if_exists=True))
    for call in (admin.get_table_info, admin.get_table, admin.drop_table, admin.alter_table, admin.get_table_stats):
        assert _code(lambda call=call: call(missing)) == fluss.ErrorCode.TABLE_NOT_EXIST
    asyncio.run(admin.drop_table(missing, ignore_if_not_exists=True))
    asyncio.run(admin.alter_table(missing, set_properties={"a": "b"}, ignore_if_not_exists=True))
    assert not asyncio.run(admin.table_exists(missing))


def test_tables_that_cannot_be(admin: fluss.FlussAdmin, database: str) -> None:
    elsewhere = fluss.TablePath("missing", "t")
    assert _code(lambda: admin.create_table(elsewhere, LOG_TABLE)) == fluss.ErrorCode.DATABASE_NOT_EXIST
    bad_name = fluss.TablePath(database, "no/slashes")
    assert _code(lambda: admin.create_table(bad_name, LOG_TABLE)) == fluss.ErrorCode.INVALID_TABLE_EXCEPTION
    replicated = fluss.TableDescriptor(fluss.Schema(ARROW_SCHEMA), properties={"table.replication.factor": "3"})
    path = fluss.TablePath(database, "t")
    assert _code(lambda: admin.create_table(path, replicated)) == fluss.ErrorCode.INVALID_REPLICATION_FACTOR


def test_columns_can_be_added_and_older_schemas_stay_known(admin: fluss.FlussAdmin, database: str) -> None:
    async def main() -> None:
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

    asyncio.run(main())
    path = fluss.TablePath(database, "t")
    again = pa.field("score", pa.float32())
    assert _code(lambda: admin.alter_table(path, add_columns=[again])) == fluss.ErrorCode.INVALID_ALTER_TABLE_EXCEPTION
    assert _code(lambda: admin.get_table_schema(path, 9)) == fluss.ErrorCode.SCHEMA_NOT_EXIST


def test_properties_of_a_table_can_be_changed(admin: fluss.FlussAdmin, database: str) -> None:
    async def main() -> None:
        path = fluss.TablePath(database, "t")
        await admin.create_table(path, LOG_TABLE)
        await admin.alter_table(path, set_properties={"table.log.ttl": "3 d", "owner": "a", "tier": "1"})
        await admin.alter_table(path, reset_properties=["owner"])
        info = await admin.get_table_info(path)
        assert info.get_properties()["table.log.ttl"] == "3 d"
        assert info.get_custom_properties() == {"tier": "1"}

    asyncio.run(main())
    change = {"table.log.format": "INDEXED"}
    path = fluss.TablePath(database, "t")
    assert _code(lambda: admin.alter_table(path, set_properties=change)) == 56


def test_row_counts_are_known_without_reading(
    connection: fluss.FlussConnection, admin: fluss.FlussAdmin, database: str
) -> None:
    async def main() -> None:
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

    asyncio.run(main())
    plain, regions = fluss.TablePath(database, "t"), fluss.TablePath(database, "regions")
    assert _code(lambda: admin.get_table_stats(plain, "US")) == fluss.ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION
    assert _code(lambda: admin.get_table_stats(regions, "AP")) == fluss.ErrorCode.PARTITION_NOT_EXISTS


# Partitions


def test_a_partition_from_its_creation_to_its_end(admin: fluss.FlussAdmin, database: str) -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_partitions_that_exist_or_do_not(admin: fluss.FlussAdmin, database: str) -> None:
    path, plain = fluss.TablePath(database, "t"), fluss.TablePath(database, "plain")
    asyncio.run(admin.create_table(path, REGION_TABLE))
    asyncio.run(admin.create_table(plain, LOG_TABLE))
    asyncio.run(admin.create_partition(path, {"region": "US"}))
    exists = _code(lambda: admin.create_partition(path, {"region": "US"}))
    assert exists == fluss.ErrorCode.PARTITION_ALREADY_EXISTS
    asyncio.run(admin.create_partition(path, {"region": "US"}, ignore_if_exists=True))
    wrong_key = _code(lambda: admin.create_partition(path, {"country": "US"}))
    assert wrong_key == fluss.ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
    missing = _code(lambda: admin.drop_partition(path, {"region": "EU"}))
    assert missing == fluss.ErrorCode.PARTITION_NOT_EXISTS
    asyncio.run(admin.drop_partition(path, {"region": "EU"}, ignore_if_not_exists=True))
    for call in (
        lambda: admin.create_partition(plain, {"region": "US"}),
        lambda: admin.drop_partition(plain, {"region": "US"}),
        lambda: admin.list_partition_infos(plain),
        lambda: admin.list_partition_offsets(plain, "US", [0], fluss.OffsetSpec.latest()),
    ):
        assert _code(call) == fluss.ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION


# Offsets


def test_offsets_by_kind_and_in_both_generations_of_names(
    connection: fluss.FlussConnection, admin: fluss.FlussAdmin, database: str
) -> None:
    async def main() -> None:
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

    asyncio.run(main())
    path = fluss.TablePath(database, "t")
    soon = fluss.OffsetSpec.timestamp(time.time_ns() // 1_000_000 + 3_600_000)
    assert _code(lambda: admin.list_offsets(path, [0], soon)) == fluss.ErrorCode.INVALID_TIMESTAMP_EXCEPTION
    missing = fluss.TablePath(database, "missing")
    assert _code(lambda: admin.list_offsets(missing, [0], "latest")) == fluss.ErrorCode.TABLE_NOT_EXIST


def test_offsets_of_partitions_by_name(
    connection: fluss.FlussConnection, admin: fluss.FlussAdmin, database: str
) -> None:
    async def main() -> None:
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

    asyncio.run(main())
    path = fluss.TablePath(database, "t")
    missing = _code(lambda: admin.list_partition_offsets(path, "AP", [0], fluss.OffsetSpec.latest()))
    assert missing == fluss.ErrorCode.PARTITION_NOT_EXISTS


def test_questions_about_offsets_that_make_no_sense(admin: fluss.FlussAdmin, database: str) -> None:
    async def main() -> None:
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

    asyncio.run(main())


def test_a_table_without_a_lake_has_no_lake_snapshot(admin: fluss.FlussAdmin, database: str) -> None:
    path = fluss.TablePath(database, "t")
    asyncio.run(admin.create_table(path, LOG_TABLE))
    assert _code(lambda: admin.get_latest_lake_snapshot(path)) in (
        fluss.ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
        fluss.ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
    )


def test_producers_keep_positions(admin: fluss.FlussAdmin, database: str) -> None:
    async def main() -> None:
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

    asyncio.run(main())


# The cluster


def test_servers_are_listed_coordinator_first(admin: fluss.FlussAdmin, server: embedded.EmbeddedServer) -> None:
    nodes = asyncio.run(admin.get_server_nodes())
    assert [node.server_type for node in nodes] == ["CoordinatorServer", "TabletServer"]
    assert [node.uid for node in nodes] == ["cs-0", "ts-0"]
    for node in nodes:
        # A client is told the address of the listener it came in by.
        assert f"{node.host}:{node.port}" == server.address("CLIENT")
        assert repr(node).startswith("ServerNode(")


def test_listing_servers_does_not_disturb_a_writer(
    connection: fluss.FlussConnection, admin: fluss.FlussAdmin, database: str
) -> None:
    async def main() -> None:
        path = fluss.TablePath(database, "t")
        await admin.create_table(path, LOG_TABLE)
        writer = (await connection.get_table(path)).new_append().create_writer()
        writer.append([1, "x"])
        await admin.get_server_nodes()
        writer.append([2, "x"])
        await writer.flush()
        assert (await admin.get_table_stats(path)).row_count == 2

    asyncio.run(main())


def test_the_health_of_the_cluster(admin: fluss.FlussAdmin) -> None:
    health = asyncio.run(admin.get_cluster_health())
    assert health.status == fluss.HealthStatus.GREEN
    assert health.num_replicas == health.in_sync_replicas
    assert health.num_leader_replicas == health.active_leader_replicas


def test_options_of_the_cluster_can_be_seen_and_changed(admin: fluss.FlussAdmin) -> None:
    async def main() -> None:
        key = "log.replica.min-in-sync-replicas-number"
        await admin.alter_cluster_configs(set_configs={key: "1"})
        entries = {entry.key: entry for entry in await admin.describe_cluster_configs()}
        assert (entries[key].value, entries[key].is_dynamic) == ("1", True)
        assert not entries["bind.listeners"].is_dynamic
        assert "admin-secret" not in repr(entries)
        await admin.alter_cluster_configs(reset_configs=[key])
        assert not any(entry.is_dynamic for entry in await admin.describe_cluster_configs() if entry.key == key)

    asyncio.run(main())
    unknown = {"no.such.option": "1"}
    assert _code(lambda: admin.alter_cluster_configs(set_configs=unknown)) == fluss.ErrorCode.CONFIG_EXCEPTION


def test_servers_can_be_tagged(admin: fluss.FlussAdmin) -> None:
    tag, other = fluss.ServerTag.TEMPORARY_OFFLINE, fluss.ServerTag.PERMANENT_OFFLINE
    asyncio.run(admin.add_server_tag([0], tag))
    assert _code(lambda: admin.add_server_tag([0], other)) == 59
    asyncio.run(admin.remove_server_tag([0], tag))
    assert _code(lambda: admin.remove_server_tag([0], tag)) == 60
    assert _code(lambda: admin.add_server_tag([9], tag)) == 58
    with pytest.raises(fluss.FlussError, match="Unknown server tag"):
        asyncio.run(admin.add_server_tag([0], 7))  # type: ignore[arg-type]  # the mistake is the point


# Who may do what


def test_rights_can_be_granted_seen_and_taken_away(
    server: embedded.EmbeddedServer, admin: fluss.FlussAdmin, database: str
) -> None:
    path = fluss.TablePath(database, "t")
    asyncio.run(admin.create_table(path, LOG_TABLE))
    resource = fluss.AclResource.table(path)
    entry = fluss.AclBinding(resource, "User:alice", fluss.AclOperation.READ)
    with asyncio.run(fluss.FlussConnection.create(_sasl_config(server, "alice", "alice-secret"))) as alice:
        hers = alice.get_admin()
        assert not asyncio.run(hers.table_exists(path))
        assert _code(lambda: hers.get_table_info(path)) == fluss.ErrorCode.AUTHORIZATION_EXCEPTION
        # Metadata hides the table; the reason is found out all the same.
        assert _code(lambda: alice.get_table(path)) == fluss.ErrorCode.AUTHORIZATION_EXCEPTION
        assert _code(lambda: hers.create_acls([entry])) == fluss.ErrorCode.AUTHORIZATION_EXCEPTION

        asyncio.run(admin.create_acls([entry]))
        assert asyncio.run(admin.list_acls(fluss.AclFilter.on(resource))) == [entry]
        assert entry in asyncio.run(admin.list_acls())
        assert asyncio.run(admin.list_acls(fluss.AclFilter(principal="User:bob"))) == []
        assert asyncio.run(hers.table_exists(path))
        assert asyncio.run(alice.get_table(path)).get_table_path() == path
        # To read is not to change.
        assert _code(lambda: hers.drop_table(path)) == fluss.ErrorCode.AUTHORIZATION_EXCEPTION

        assert asyncio.run(admin.drop_acls([fluss.AclFilter.on(resource)])) == [entry]
        assert asyncio.run(admin.list_acls(fluss.AclFilter.on(resource))) == []
        assert not asyncio.run(hers.table_exists(path))


def test_without_access_control_rights_are_code_47(tmp_path: Path) -> None:
    with (
        embedded.start(data_dir=tmp_path) as server,
        asyncio.run(fluss.FlussConnection.create(server.config())) as connection,
    ):
        admin = connection.get_admin()
        assert _code(lambda: admin.list_acls()) == fluss.ErrorCode.SECURITY_DISABLED_EXCEPTION


def test_right_credentials_let_users_in(server: embedded.EmbeddedServer) -> None:
    for name in ("admin", "alice"):
        with asyncio.run(fluss.FlussConnection.create(_sasl_config(server, name, f"{name}-secret"))) as connection:
            nodes = asyncio.run(connection.get_admin().get_server_nodes())
            assert [f"{node.host}:{node.port}" for node in nodes] == [server.address("CLIENT")] * 2
            assert asyncio.run(connection.get_admin().database_exists("fluss"))


def test_wrong_credentials_are_code_46_and_are_not_shown(server: embedded.EmbeddedServer) -> None:
    for name, password in (("admin", "wrong-secret"), ("nobody", "admin-secret")):
        config = _sasl_config(server, name, password)
        with pytest.raises(fluss.FlussError) as caught:
            asyncio.run(fluss.FlussConnection.create(config))
        assert caught.value.error_code == fluss.ErrorCode.AUTHENTICATE_EXCEPTION
        assert password not in str(caught.value) + repr(config)


def test_clients_and_listeners_that_disagree_about_security(server: embedded.EmbeddedServer) -> None:
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
            asyncio.run(fluss.FlussConnection.create(config))
    asyncio.run(fluss.FlussConnection.create(plain_listener)).close()


# Threads and loops


def test_one_admin_serves_many_loops_in_many_threads(admin: fluss.FlussAdmin) -> None:
    async def main() -> None:
        answers = await asyncio.gather(*(admin.database_exists("fluss") for _ in range(20)))
        assert answers == [True] * 20

    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda _: asyncio.run(main()), range(8)):
            pass


def test_the_admin_may_be_awaited(connection: fluss.FlussConnection) -> None:
    async def main() -> None:
        assert await connection.get_admin() is connection.get_admin()

    asyncio.run(main())
    assert repr(connection.get_admin()) == "FlussAdmin()"


def test_arguments_of_the_wrong_class_are_type_errors(admin: fluss.FlussAdmin) -> None:
    path = fluss.TablePath("fluss", "t")
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: admin.create_database(7),  # type: ignore[arg-type]  # the mistake is the point, here and below
        lambda: admin.create_database("d", "comment"),  # type: ignore[arg-type]
        lambda: admin.drop_database("d", "yes"),  # type: ignore[arg-type]
        lambda: admin.create_table("fluss.t", LOG_TABLE),  # type: ignore[arg-type]
        lambda: admin.create_table(path, ARROW_SCHEMA),
        lambda: admin.create_partition(path, {"region": 7}),  # type: ignore[dict-item]
        lambda: admin.get_table_info("fluss.t"),  # type: ignore[arg-type]
        lambda: admin.list_partition_offsets(path, 7, [0], "latest"),  # type: ignore[arg-type]
        lambda: admin.alter_table(path, add_columns=["name"]),
        lambda: admin.create_acls(["everything"]),  # type: ignore[list-item]
    ]
    for call in calls:
        with pytest.raises(TypeError):
            asyncio.run(call())
    with pytest.raises(fluss.FlussError, match="UTF-8"):
        asyncio.run(admin.database_exists("\udc80"))
