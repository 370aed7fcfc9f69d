"""Options of the server do what they say, those that could be taken for mere numbers most of all.
Shown by starting a server with one unusual value and looking at what clients, connections and files make of it."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import EARLIEST_OFFSET, blocking, embedded
from fluss.embedded import EmbeddedServer
from fluss.errors import ErrorCode, FlussError
from fluss.net.channel import Channel
from fluss.net.transport import run
from fluss.protocol import api as apis
from fluss.protocol.bulk_messages import BucketRecords, ProduceLogRequest
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.arrow_batch import encode_arrow_batch
from fluss.record.compression import NO_COMPRESSION
from fluss.server.options.server_options import ServerOptions
from fluss.server.process import FlussServer
from fluss.testing.waiting import eventually
from tests.integration.servers import serving

ARROW_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SCHEMA = blocking.Schema(ARROW_SCHEMA)
PATH = blocking.TablePath("fluss", "t")
TIMEOUT_S = 120
BUCKETS = [blocking.TableBucket(0, number) for number in range(5)]


def create_table(connection: blocking.FlussConnection, **description: Any) -> blocking.FlussTable:
    connection.get_admin().create_table(PATH, blocking.TableDescriptor(SCHEMA, **description))
    return connection.get_table(PATH)


def append_each(table: blocking.FlussTable, *numbers: int) -> None:
    """Append rows one after the other, each in a batch of its own."""
    writer = table.new_append().create_writer()
    for number in numbers:
        writer.append([number, f"n{number}"]).wait()


def ids(table: blocking.FlussTable) -> list[int]:
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, EARLIEST_OFFSET)
    found: list[int] = scanner.to_arrow()["id"].to_pylist()
    return found


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(FlussError) as caught:
        call()
    return caught.value.error_code


def log_files(tmp_path: Path, pattern: str) -> list[Path]:
    return sorted((tmp_path / "data" / "fluss").glob(f"t-*/**/log-0/{pattern}"))


# Where the server listens, and who may come in


async def test_clients_are_told_the_advertised_address(tmp_path: Path) -> None:
    options = {"advertised.listeners": "FLUSS://streams.example:4711"}
    with embedded.start(options, data_dir=tmp_path) as server:
        assert server.address() == "streams.example:4711"
        async with await Channel.connect("127.0.0.1", server.port) as channel:
            nodes = await channel.request(apis.GET_METADATA, pb.MetadataRequest(), timeout_s=TIMEOUT_S)
            for node in (nodes.coordinator_server, *nodes.tablet_servers):
                assert (node.host, node.port) == ("streams.example", 4711)


def test_users_come_from_the_jaas_text_and_a_listener_may_have_its_own(tmp_path: Path) -> None:
    module = "org.apache.fluss.security.auth.sasl.plain.PlainLoginModule required"
    options = {
        "bind.listeners": "INNER://127.0.0.1:0, OUTER://127.0.0.1:0",
        "security.protocol.map": "INNER:SASL, OUTER:SASL",
        "security.sasl.plain.jaas.config": f'{module} user_ann="one";',
        "security.sasl.listener.name.outer.plain.jaas.config": f'{module} user_bob="two";',
    }
    with embedded.start(options, data_dir=tmp_path) as server:
        for listener, user, password, is_right in (
            ("INNER", "ann", "one", True),
            ("INNER", "bob", "two", False),
            ("OUTER", "bob", "two", True),
            ("OUTER", "ann", "one", False),
        ):
            config = server.config(
                listener, security_protocol="sasl", security_sasl_username=user, security_sasl_password=password
            )
            if is_right:
                blocking.FlussConnection.create(config).close()
            else:
                assert code_of(lambda config=config: blocking.FlussConnection.create(config)) == 46


@pytest.mark.parametrize("ignore_case", [False, True])
def test_rights_may_be_meant_for_a_user_in_any_case(tmp_path: Path, ignore_case: bool) -> None:
    options = {
        "bind.listeners": "CLIENT://127.0.0.1:0, FLUSS://127.0.0.1:0",
        "internal.listener.name": "FLUSS",
        "security.protocol.map": "CLIENT:SASL",
        "security.sasl.plain.credentials": "alice:secret",
        "authorizer.enabled": True,
        "security.acl.principal.ignore-case": ignore_case,
    }
    alice = {"security_protocol": "sasl", "security_sasl_username": "alice", "security_sasl_password": "secret"}
    resource = blocking.AclResource.database("fluss")
    right = blocking.AclBinding(resource, "User:ALICE", blocking.AclOperation.DESCRIBE)
    with (
        embedded.start(options, data_dir=tmp_path) as server,
        blocking.FlussConnection.create(server.config("FLUSS")) as operator,
        blocking.FlussConnection.create(server.config("CLIENT", **alice)) as connection,
    ):
        operator.get_admin().create_acls([right])
        assert (connection.get_admin().list_databases() == ["fluss"]) is ignore_case


# The process


@pytest.mark.parametrize(("durability", "is_synced"), [("fsync", True), ("os", False)])
def test_an_acknowledged_row_is_on_the_disk_or_in_the_operating_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, is_synced: bool
) -> None:
    synced: list[str] = []
    fdatasync = os.fdatasync

    def watched(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fdatasync(descriptor)

    with serving(tmp_path, durability=durability) as (_, connection):
        table = create_table(connection)
        append_each(table, 0)
        monkeypatch.setattr(os, "fdatasync", watched)
        append_each(table, 1, 2, 3)
        assert any(path.endswith(".log") for path in synced) is is_synced
        assert ids(table) == [0, 1, 2, 3]


def test_the_server_has_the_number_and_the_rack_it_is_given(tmp_path: Path) -> None:
    with serving(tmp_path, tablet_server__id=7, tablet_server__rack="east") as (server, connection):
        assert [node.uid for node in connection.get_admin().get_server_nodes()] == ["cs-0", "ts-7"]
        table = create_table(connection)
        append_each(table, 1)
        assert ids(table) == [1]

        async def main() -> str:
            async with await Channel.connect("127.0.0.1", server.port) as channel:
                nodes = await channel.request(apis.GET_METADATA, pb.MetadataRequest(), timeout_s=TIMEOUT_S)
                return nodes.tablet_servers[0].rack

        assert run(main()) == "east"


async def test_a_request_above_the_limit_ends_the_connection_and_harms_nobody(tmp_path: Path) -> None:
    with serving(tmp_path, netty__server__max_request_size="64kb") as (server, connection):
        async with await Channel.connect("127.0.0.1", server.port) as channel:
            for size, is_taken in ((60_000, True), (70_000, False)):
                message = pb.DatabaseExistsRequest(database_name="x" * size)
                request = channel.request(apis.DATABASE_EXISTS, message, timeout_s=TIMEOUT_S)
                if is_taken:
                    assert not (await request).exists
                    continue
                with pytest.raises(FlussError, match="65536"):
                    await request
            assert not channel.is_open
        assert connection.get_admin().list_databases() == ["fluss"]


def _waiting_fetch(table_id: int, wait_ms: int) -> pb.FetchLogRequest:
    """A fetch that finds nothing and waits."""
    bucket = pb.PbFetchLogReqForBucket(bucket_id=0, fetch_offset=0, max_fetch_bytes=1024)
    table = pb.PbFetchLogReqForTable(table_id=table_id, projection_pushdown_enabled=False, buckets_req=[bucket])
    return pb.FetchLogRequest(
        follower_server_id=-1, max_bytes=1024, min_bytes=1, max_wait_ms=wait_ms, tables_req=[table]
    )


async def _is_held_up(server: EmbeddedServer, api: apis.Api[Any, Any], slow: object) -> bool:
    """Send a request that waits and then something else; return whether the latter had to wait for the former."""
    async with await Channel.connect("127.0.0.1", server.port) as channel:
        waiting = asyncio.ensure_future(channel.request(api, slow, timeout_s=TIMEOUT_S))
        await asyncio.sleep(0)
        await channel.request(apis.LIST_DATABASES, pb.ListDatabasesRequest(), timeout_s=TIMEOUT_S)
        await asyncio.sleep(0)
        is_answered = waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
        return is_answered


@pytest.mark.parametrize(("most", "is_held_up"), [(1, True), (2, False)])
def test_one_connection_has_no_more_requests_under_way_than_allowed(
    tmp_path: Path, most: int, is_held_up: bool
) -> None:
    with serving(tmp_path, netty__server__max_queued_requests=most) as (server, connection):
        # Whoever is held up waits it out; if nobody is, it may take as long as it likes.
        fetch = _waiting_fetch(create_table(connection).get_table_info().table_id, 500 if is_held_up else 100_000)
        assert run(_is_held_up(server, apis.FETCH_LOG, fetch)) is is_held_up


@pytest.mark.parametrize(("memory", "is_held_up"), [("1mb", True), ("8mb", False)])
def test_who_has_used_up_the_memory_for_requests_is_not_read_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str, is_held_up: bool
) -> None:
    with serving(tmp_path, durability="fsync", server__buffer__memory_size=memory) as (server, connection):
        table_id = create_table(connection).get_table_info().table_id
        rows = pa.record_batch([[1], ["x" * 1_200_000]], schema=ARROW_SCHEMA)
        bucket = BucketRecords(0, encode_arrow_batch(rows, 1, NO_COMPRESSION))
        # Rows are held until they are on the disk.
        is_released = threading.Event()
        monkeypatch.setattr(os, "fdatasync", lambda descriptor: is_released.wait(100))
        produce = ProduceLogRequest(-1, table_id, TIMEOUT_S * 1000, [bucket])
        if is_held_up:
            threading.Timer(0.5, is_released.set).start()
        assert run(_is_held_up(server, apis.PRODUCE_LOG, produce)) is is_held_up
        is_released.set()


async def test_an_idle_connection_is_closed_and_one_with_traffic_is_not(tmp_path: Path) -> None:
    with embedded.start({"netty.connection.max-idle-time": "2 s"}, data_dir=tmp_path) as server:
        async with (
            await Channel.connect("127.0.0.1", server.port) as idle,
            await Channel.connect("127.0.0.1", server.port) as busy,
        ):
            async with asyncio.timeout(120):
                while idle.is_open:
                    await busy.request(apis.LIST_DATABASES, pb.ListDatabasesRequest(), timeout_s=TIMEOUT_S)
                    await asyncio.sleep(0.02)
            assert busy.is_open


async def test_more_clients_than_allowed_are_told_so(tmp_path: Path) -> None:
    with embedded.start({"server.max-connections": 2}, data_dir=tmp_path) as server:
        async with await Channel.connect("127.0.0.1", server.port):
            second = await Channel.connect("127.0.0.1", server.port)
            with pytest.raises(FlussError, match="2 connections"):
                await Channel.connect("127.0.0.1", server.port)
            await second.close()
            # The place is free again as soon as the server has noticed.
            async with asyncio.timeout(120):
                while True:
                    try:
                        await (await Channel.connect("127.0.0.1", server.port)).close()
                    except FlussError:
                        await asyncio.sleep(0.01)
                    else:
                        return


# Tables


def test_limits_and_defaults_of_tables(tmp_path: Path) -> None:
    options = {"default__bucket__number": 3, "max__bucket__num": 5, "max__partition__num": 2}
    with serving(tmp_path, **options) as (_, connection):
        admin = connection.get_admin()
        assert create_table(connection).get_table_info().num_buckets == 3
        larger = blocking.TablePath("fluss", "larger")
        admin.create_table(larger, blocking.TableDescriptor(SCHEMA, bucket_count=5))
        too_large = blocking.TableDescriptor(SCHEMA, bucket_count=6)
        path = blocking.TablePath("fluss", "too_large")
        assert code_of(lambda: admin.create_table(path, too_large)) == ErrorCode.BUCKET_MAX_NUM_EXCEPTION
        partitioned = blocking.TablePath("fluss", "partitioned")
        admin.create_table(partitioned, blocking.TableDescriptor(SCHEMA, partition_keys=["name"]))
        for name in ("a", "b"):
            admin.create_partition(partitioned, {"name": name})
        one_more = code_of(lambda: admin.create_partition(partitioned, {"name": "c"}))
        assert one_more == ErrorCode.PARTITION_MAX_NUM_EXCEPTION


def test_what_would_make_more_buckets_than_the_server_may_have_leaves_no_trace(tmp_path: Path) -> None:
    hourly = {
        "table.auto-partition.enabled": "true",
        "table.auto-partition.time-unit": "HOUR",
        "table.auto-partition.num-precreate": "150",
    }
    with serving(tmp_path, server__max_buckets=4096) as (_, connection):
        admin = connection.get_admin()
        path = blocking.TablePath("fluss", "hourly")
        huge = blocking.TableDescriptor(SCHEMA, partition_keys=["name"], bucket_count=4096, properties=hourly)
        with pytest.raises(FlussError, match=r"'server[.]max-buckets'") as refusal:
            admin.create_table(path, huge)
        assert refusal.value.error_code == ErrorCode.BUCKET_MAX_NUM_EXCEPTION
        assert f"need {150 * 4096} buckets, and the server has 0 of at most 4096" in refusal.value.message
        assert admin.list_tables("fluss") == []
        assert [each.name for each in (tmp_path / "data").iterdir() if each.is_dir()] == []

        admin.create_table(path, blocking.TableDescriptor(SCHEMA, partition_keys=["name"], bucket_count=2048))
        admin.create_partition(path, {"name": "a"})
        one = blocking.TablePath("fluss", "one")
        admin.create_table(one, blocking.TableDescriptor(SCHEMA, bucket_count=1))
        second = code_of(lambda: admin.create_partition(path, {"name": "b"}))
        assert second == ErrorCode.BUCKET_MAX_NUM_EXCEPTION
        assert len(admin.list_partition_infos(path)) == 1
        # What is dropped makes room.
        admin.drop_table(one)
        admin.create_partition(path, {"name": "b"})
        too_many = code_of(lambda: admin.create_table(one, blocking.TableDescriptor(SCHEMA, bucket_count=1)))
        assert too_many == ErrorCode.BUCKET_MAX_NUM_EXCEPTION
        assert admin.list_tables("fluss") == ["hourly"]
    # A server that has more already serves it, and only refuses more.
    with serving(tmp_path, server__max_buckets=2000) as (_, connection):
        admin = connection.get_admin()
        assert admin.get_cluster_health().num_replicas == 4096
        assert code_of(lambda: admin.create_partition(path, {"name": "c"})) == ErrorCode.BUCKET_MAX_NUM_EXCEPTION
        admin.drop_partition(path, {"name": "a"})
        admin.drop_partition(path, {"name": "b"})
        assert code_of(lambda: admin.create_partition(path, {"name": "c"})) == ErrorCode.BUCKET_MAX_NUM_EXCEPTION


@pytest.mark.parametrize(
    ("key", "primary_keys", "is_allowed"),
    [
        ("allow__create__log__tables", [], False),
        ("allow__create__log__tables", ["id"], True),
        ("allow__create__kv__tables", [], True),
        ("allow__create__kv__tables", ["id"], False),
    ],
)
def test_a_kind_of_tables_can_be_forbidden(tmp_path: Path, key: str, primary_keys: list[str], is_allowed: bool) -> None:
    with serving(tmp_path, **{key: False}) as (_, connection):
        admin = connection.get_admin()
        descriptor = blocking.TableDescriptor(blocking.Schema(ARROW_SCHEMA, primary_keys))
        if is_allowed:
            admin.create_table(PATH, descriptor)
        else:
            assert code_of(lambda: admin.create_table(PATH, descriptor)) == ErrorCode.INVALID_TABLE_EXCEPTION


def test_partitions_by_time_are_looked_after_at_an_interval(tmp_path: Path) -> None:
    with serving(tmp_path, auto_partition__check__interval="50ms") as (_, connection):
        admin = connection.get_admin()
        properties = {"table.auto-partition.enabled": "true", "table.auto-partition.time-unit": "YEAR"}
        create_table(connection, partition_keys=["name"], properties=properties)

        def names() -> set[str]:
            return {info.partition_name for info in admin.list_partition_infos(PATH)}

        whole = names()
        assert len(whole) == 2
        admin.drop_partition(PATH, {"name": max(whole)})
        eventually(lambda: names() == whole)


def test_offsets_of_producers_are_kept_for_a_while(tmp_path: Path) -> None:
    options = {
        "coordinator__producer_offsets__ttl": "600ms",
        "coordinator__producer_offsets__cleanup_interval": "50ms",
    }
    with serving(tmp_path, **options) as (server, connection):
        admin = connection.get_admin()
        before_ms = time.time_ns() // 1_000_000

        def registered() -> Any:
            # On a busy machine they may have expired before they are asked for; then they are new again.
            admin.register_producer_offsets("job", {blocking.TableBucket(0, 0): 1})
            return admin.get_producer_offsets("job")

        kept = eventually(registered)
        after_ms = time.time_ns() // 1_000_000
        assert before_ms + 600 <= kept.expiration_time <= after_ms + 600
        eventually(lambda: admin.get_producer_offsets("job") is None)

        def stored() -> list[Any]:
            with sqlite3.connect(f"file:{server.data_dir / 'metadata.sqlite'}?mode=ro", uri=True) as database:
                found = database.execute("SELECT producer_id FROM producer_offsets").fetchall()
            database.close()
            return found

        # Nobody has to ask for what has expired to make it disappear from the disk.
        eventually(lambda: stored() == [])


def test_what_is_kept_for_producers_is_bounded(tmp_path: Path) -> None:
    """By coordinator.producer-offsets.max-ttl, coordinator.producer-offsets.max-per-user, and
    coordinator.producer-offsets.max-offsets."""
    options = {
        "coordinator__producer_offsets__ttl": "1 h",
        "coordinator__producer_offsets__max_ttl": "2 h",
        "coordinator__producer_offsets__max_per_user": 2,
        "coordinator__producer_offsets__max_offsets": 5,
    }
    with serving(tmp_path, **options) as (_, connection):
        admin = connection.get_admin()
        assert code_of(lambda: admin.register_producer_offsets("large", dict.fromkeys(BUCKETS, 1))) == 63
        assert admin.register_producer_offsets("a", {BUCKETS[0]: 1}, ttl_ms=2**62)
        kept = admin.get_producer_offsets("a")
        assert kept is not None
        assert kept.expiration_time <= time.time_ns() // 1_000_000 + 2 * 3_600_000
        assert admin.register_producer_offsets("b", {BUCKETS[0]: 1})
        assert code_of(lambda: admin.register_producer_offsets("c", {BUCKETS[0]: 1})) == 63


# Logs


def test_segments_end_at_their_size(tmp_path: Path) -> None:
    with serving(tmp_path, log__segment__file_size="1kb") as (_, connection):
        table = create_table(connection, properties={"table.log.arrow.compression.type": "NONE"})
        append_each(table, *range(12))
        files = log_files(tmp_path, "*.log")
        assert len(files) > 2
        assert all(file.stat().st_size <= 1024 for file in files)
        assert ids(table) == list(range(12))


def test_segments_end_when_their_index_is_full(tmp_path: Path) -> None:
    options = {"log__index__file_size": "64b", "log__index__interval_size": "1b"}
    with serving(tmp_path, **options) as (_, connection):
        table = create_table(connection)
        append_each(table, *range(20))
        files = log_files(tmp_path, "*.log")
        assert len(files) > 2
        assert all(index.stat().st_size <= 64 for index in log_files(tmp_path, "*index"))
        assert ids(table) == list(range(20))


def test_an_index_has_an_entry_for_so_many_bytes(tmp_path: Path) -> None:
    sizes = {}
    for interval in ("1b", "2kb"):
        directory = tmp_path / interval
        with serving(directory, log__index__interval_size=interval, log__segment__file_size="8kb") as (_, connection):
            table = create_table(connection)
            append_each(table, *range(60))
            assert ids(table) == list(range(60))
        first, *_ = log_files(directory, "*.index")
        sizes[interval] = first.stat().st_size
    assert sizes["1b"] > 4 * sizes["2kb"] > 0


def test_it_is_noted_at_an_interval_what_need_not_be_read_again(tmp_path: Path) -> None:
    def noted() -> str:
        file = tmp_path / "data" / "recovery-point-offset-checkpoint"
        return file.read_text().splitlines()[-1] if file.exists() else ""

    with serving(tmp_path, log__flush__offset__checkpoint_interval="50ms") as (_, connection):
        table = create_table(connection)
        for count in (1, 2):
            append_each(table, count)
            # Table, bucket, offset.
            eventually(lambda count=count: noted() == f"0 0 {count}")


@pytest.mark.parametrize("rolls_active", [False, True])
def test_expired_segments_leave_at_an_interval_the_active_one_if_wanted(tmp_path: Path, rolls_active: bool) -> None:
    options = {
        "log__segment__file_size": "120b",
        "log__retention__check_interval": "50ms",
        "log__retention__roll_active_segment__enabled": rolls_active,
    }
    with serving(tmp_path, **options) as (_, connection):
        table = create_table(connection, properties={"table.log.ttl": "100ms"})
        append_each(table, 1, 2, 3)
        admin = connection.get_admin()
        # Every batch has a segment of its own; the last one is still written to.
        eventually(lambda: admin.list_offsets(PATH, [0], "earliest") == {0: 3 if rolls_active else 2})
        time.sleep(0.15)
        assert ids(table) == ([] if rolls_active else [3])
        append_each(table, 4)
        assert admin.list_offsets(PATH, [0], "latest") == {0: 4}


def test_silent_writers_are_forgotten_at_an_interval(tmp_path: Path) -> None:
    options = {"server__writer_id__expiration_time": "50ms", "server__writer_id__expiration_check_interval": "20ms"}
    with serving(tmp_path, **options) as (_, connection):
        writer = create_table(connection).new_append().create_writer()
        writer.append([1, "x"]).wait()
        known = [1]

        def is_forgotten() -> bool:
            # The server does not know any more which number comes next, so the writer has to begin anew.
            time.sleep(0.3)
            try:
                writer.append([2, "x"]).wait()
            except FlussError as error:
                return error.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
            known.append(2)
            return False

        eventually(is_forgotten)
        writer.append([3, "x"]).wait()
        assert ids(connection.get_table(PATH)) == [*known, 3]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("log.filter.max-conditions", "2", "3 conditions or more, this server takes 2"),
        ("log.filter.max-literals", "1", "2 values or more, this server takes 1"),
        ("log.filter.max-size", "64 b", "bytes or more, this server takes 64"),
    ],
)
def test_a_filter_may_cost_so_much(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, value: str, reason: str
) -> None:
    with serving(tmp_path, **{key: value}) as (_, connection):
        table = create_table(connection, properties={"table.statistics.columns": "*"})
        append_each(table, 1, 2, 3)
        assert filtered_ids(table, blocking.col("id") == 2) == [2]
        with caplog.at_level(logging.INFO, "fluss.client.scan.fetch.fetcher"):
            large = (blocking.col("id") == 2) | (blocking.col("name") == "n" * 50)
            assert filtered_ids(table, large) == [2], "the client stops sending what is refused, and filters alone"
        assert reason in caplog.text


def test_a_fetch_looks_at_so_many_batches(tmp_path: Path) -> None:
    with serving(tmp_path, log__filter__max_batches=2) as (_, connection):
        table = create_table(connection, properties={"table.statistics.columns": "*"})
        append_each(table, *range(11))
        assert filtered_ids(table, blocking.col("id") == 9) == [9], "the client goes on until it is there"


def filtered_ids(table: blocking.FlussTable, predicate: blocking.Predicate) -> list[int]:
    scanner = table.new_scan().filter(predicate).create_record_batch_log_scanner()
    scanner.subscribe(0, EARLIEST_OFFSET)
    found: list[int] = scanner.to_arrow()["id"].to_pylist()
    return found


def test_writes_depend_on_how_full_the_disk_is(tmp_path: Path) -> None:
    options = {
        "server__data_disk__write_limit_ratio": 0.000000001,
        "server__data_disk__write_recover_ratio": 0,
        "server__data_disk__check_interval": "20ms",
    }
    with serving(tmp_path, **options) as (server, connection):
        create_table(connection)
        config = server.config(writer_enable_idempotence=False, writer_retries=0, writer_batch_timeout_ms=0)
        with blocking.FlussConnection.create(config) as impatient:
            table = impatient.get_table(PATH)
            writer = table.new_append().create_writer()
            assert code_of(writer.append([1, "x"]).wait) == ErrorCode.DISK_WRITE_LOCKED
            assert ids(table) == []
            limit, recover = "server.data-disk.write-limit-ratio", "server.data-disk.write-recover-ratio"
            connection.get_admin().alter_cluster_configs(set_configs={limit: "1.0", recover: "0.999"})

            def is_written() -> bool:
                try:
                    writer.append([2, "x"]).wait()
                except FlussError:
                    return False
                return True

            eventually(is_written)
            assert ids(table) == [2]


async def test_buckets_and_open_logs_can_be_seen(tmp_path: Path) -> None:
    given = {"data.dir": str(tmp_path), "bind.listeners": "FLUSS://127.0.0.1:0", "server.max-buckets": 50_000}
    async with FlussServer(ServerOptions(given)) as server:
        config = fluss.Config({"bootstrap.servers": f"127.0.0.1:{server.listeners[0].port}"})
        async with await fluss.FlussConnection.create(config) as connection:
            admin = connection.get_admin()
            path = fluss.TablePath("fluss", "many")
            descriptor = fluss.TableDescriptor(fluss.Schema(ARROW_SCHEMA), bucket_count=1000)
            await admin.create_table(path, descriptor)
            values = server.metrics.values()
            assert values["fluss_buckets", ()] == 1000
            assert values["fluss_buckets_max", ()] == 50_000
            assert values["fluss_open_logs", ()] == 0
            await admin.list_offsets(path, range(10), fluss.OffsetSpec.latest())
            values = server.metrics.values()
            assert values["fluss_open_logs", ()] == 10
            assert values["fluss_failed_buckets", ()] == values["fluss_tables_without_room", ()] == 0
            await admin.drop_table(path)
            assert server.metrics.values()["fluss_buckets", ()] == 0
