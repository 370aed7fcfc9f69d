"""Whatever a client sends, the server answers it or closes the connection, goes on serving others, and keeps its data.
Shown by raw sockets against a server process: noise, lies about lengths, and random requests for every API there is."""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss.client.kernel.runtime import wait_for
from fluss.errors import ErrorCode
from fluss.protocol.api import APIS, ApiKey
from fluss.protocol.frame import ResponseFrame, ResponseType
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.arrow_batch import encode_arrow_batch
from fluss.record.compression import NO_COMPRESSION
from fluss.schema.serde import table_to_json
from fluss.schema.table_options import TABLE_OPTIONS
from fluss.testing.cluster import ServerProcess
from tests.integration import lying_keys
from tests.integration.hostile import (
    INSIDE_THE_SERVER,
    LOCALHOST,
    MessageMaker,
    RawConnection,
    damaged_bytes,
    error_of,
    request_bytes,
    request_type,
    served_keys,
)

# Every API is asked so often. The seed is fixed: a failure can be repeated, and a change is not judged by luck.
REQUESTS_PER_API = 150
SEED = 20
MIB = 1024 * 1024
# All attacks of this file together; an idle server has less than 100 MiB, and the fetch memory alone is 256 MiB.
RSS_BYTES_MAX = 900 * MIB

SCHEMA = pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string())])
ROWS = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "name": ["a", "b", "c"]}, schema=SCHEMA)
BATCH = bytes(encode_arrow_batch(ROWS, 1, NO_COMPRESSION))
KV_BATCH = lying_keys.sealed([lying_keys.record(bytes([id]), bytes([0, id, 1, 97])) for id in (1, 2, 3)])
KV_DELETES = lying_keys.sealed([lying_keys.record(bytes([id])) for id in (2, 9)])
PARTITIONED = pa.schema([*SCHEMA, pa.field("p", pa.string())])
# What attackers may do what they like with; the table that must not change has an id that they never guess.
PREY = {
    "log": fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=3),
    "parts": fluss.TableDescriptor(fluss.Schema(PARTITIONED), bucket_count=2, partition_keys=["p"]),
    "keys": fluss.TableDescriptor(fluss.Schema(SCHEMA, primary_keys=["id"]), bucket_count=2),
    "keys_in_parts": fluss.TableDescriptor(
        fluss.Schema(PARTITIONED, primary_keys=["id", "p"]), bucket_count=2, partition_keys=["p"]
    ),
    "sums": fluss.TableDescriptor(
        fluss.Schema(SCHEMA, primary_keys=["id"], aggregations={"name": "listagg"}),
        bucket_count=1,
        properties={"table.merge-engine": "aggregation"},
    ),
    "rows": fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1, log_format="INDEXED"),
}
KEPT = fluss.TablePath("kept", "safe")
SASL_PASSWORD = "kangaroo-7"

CONFIG = f"""
bind.listeners: PLAIN://127.0.0.1:0, CLIENT://127.0.0.1:0
security.protocol.map: CLIENT:sasl
security.sasl.plain.credentials: alice:{SASL_PASSWORD}
authorizer.enabled: true
super.users: User:ANONYMOUS;User:alice
tablet-server.id: 4242
durability: os
server.buffer.memory-size: 64 mb
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("hostile")
    (directory / "server.yaml").write_text(CONFIG)
    with ServerProcess(directory / "data", "--config", str(directory / "server.yaml")) as running:
        create_tables(running)
        yield running
        peak_bytes = memory_bytes(running, "VmHWM")
        assert running.stop() == 0
        # Nothing an attacker did is found only at the next start.
        running.start()
        assert_serves(running)
        assert "Traceback" not in running.log_text
        assert SASL_PASSWORD not in running.log_text
        assert peak_bytes < RSS_BYTES_MAX


def connect(server: ServerProcess) -> fluss.FlussConnection:
    return wait_for(fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": server.bootstrap_servers})))


def create_tables(server: ServerProcess) -> None:
    with connect(server) as connection:
        admin = connection.get_admin()
        for database in ("prey", KEPT.database_name):
            wait_for(admin.create_database(database))
        for name, descriptor in PREY.items():
            wait_for(admin.create_table(fluss.TablePath("prey", name), descriptor))
        for name in ("parts", "keys_in_parts"):
            wait_for(admin.create_partition(fluss.TablePath("prey", name), {"p": "x"}))
        wait_for(admin.create_table(KEPT, PREY["log"]))
        writer = wait_for(connection.get_table(KEPT)).new_append().create_writer()
        writer.write_arrow_batch(ROWS)
        wait_for(writer.flush())


def assert_serves(server: ServerProcess) -> None:
    """A normal client finds what was there, unchanged, and can do what it could do before."""
    with connect(server) as connection:
        admin = connection.get_admin()
        table = wait_for(connection.get_table(KEPT))
        scanner = wait_for(table.new_scan().create_record_batch_log_scanner())
        scanner.subscribe_buckets(dict.fromkeys(range(3), fluss.EARLIEST_OFFSET))
        assert scanner.to_arrow().sort_by("id").to_pydict() == ROWS.to_pydict()
        assert wait_for(admin.list_tables(KEPT.database_name)) == [KEPT.table_name]
        path = fluss.TablePath(KEPT.database_name, "passing")
        wait_for(admin.create_table(path, PREY["log"]))
        wait_for(admin.drop_table(path))


def memory_bytes(server: ServerProcess, field: str = "VmRSS") -> int:
    status = Path(f"/proc/{server.process_id}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def table_ids(server: ServerProcess) -> list[int]:
    """Return the ids of the prey that is left."""
    ids = []
    with RawConnection(server.port) as connection:
        for name in PREY:
            path = pb.PbTablePath(database_name="prey", table_name=name)
            answer = connection.ask(
                ApiKey.GET_TABLE_INFO, 0, pb.GetTableInfoRequest(table_path=path).SerializeToString()
            )
            if answer is not None and answer.response_type is ResponseType.SUCCESS:
                ids.append(pb.GetTableInfoResponse.FromString(bytes(answer.body)).table_id)
    return ids


def known_values(server: ServerProcess) -> dict[str, list[Any]]:
    """Return values by field name that get a request past its first checks."""
    return {
        "database_name": ["prey"],
        "table_name": [*PREY, "new"],
        "table_id": table_ids(server),
        "partition_id": [0, 1],
        "partition_name": ["x"],
        "bucket_id": [0, 1, 2],
        "key": ["p"],
        "value": ["x", "y"],
        "schema_id": [1, 2],
        "records": [BATCH, BATCH * 2, BATCH[:-3], b"", *[KV_BATCH] * 4, KV_BATCH * 2, KV_BATCH[:-3], KV_DELETES],
        "keys": [b"\1", b"\2", b"\xff\xff\xff\xff\x0f", b""],
        "target_columns": [0, 0, 1],
        "agg_mode": [0, 1],
        "insert_if_not_exists": [True],
        "call_seq_id": [0, 1],
        "batch_size_bytes": [1, MIB],
        "close_scanner": [False],
        "acks": [-1, 0, 1],
        "timeout_ms": [0, 1000],
        "fetch_offset": [0, 1, -1, -2],
        "max_bytes": [0, 1, MIB],
        "max_fetch_bytes": [1, MIB],
        "max_wait_ms": [0, 5],
        "offset_type": [0, 1, 2, 3],
        "limit": [0, 1, 5],
        "op_type": [0, 1, 2, 3],
        "config_key": [*TABLE_OPTIONS, "datalake.x", "remote.data.dirs", "kv.snapshot.interval"],
        "column_name": ["added", "id"],
        "column_position_type": [0, 0, 1],
        "resource_type": [1, 2, 3],
        "resource_name": ["prey", "prey.log", "*"],
        "permission_type": [1, 2],
        "operation_type": [1, 2, 3, 4],
        "principal_type": ["User"],
        "principal_name": ["bob", "*"],
        "host": ["*", LOCALHOST],
        "producer_id": ["producer"],
        "function": list(range(13)),
        "field_id": [0, 1],
        "literal_type": list(range(20)),
        "protocol": ["PLAIN", "PLAINTEXT"],
    }


def requests(key: ApiKey, rng: random.Random, known: dict[str, list[Any]]) -> list[bytes]:
    """Return bodies for one API: right in form, some with a few bytes damaged."""
    maker = MessageMaker(rng, known)
    bodies = []
    for _ in range(REQUESTS_PER_API):
        message: Any = maker.make(request_type(key))
        # Patience is tested elsewhere.
        for name in ("max_wait_ms", "timeout_ms"):
            if name in message.DESCRIPTOR.fields_by_name and getattr(message, name) > 1000:
                setattr(message, name, 10)
        body = message.SerializePartialToString()
        bodies.append(damaged_bytes(rng, body) if rng.random() < 0.25 else body)
    return bodies


def check_answer(key: ApiKey, answer: ResponseFrame | None) -> None:
    """An answer is a message of its API, or an error with a code and a sentence that nobody needs the log for."""
    assert answer is not None, f"the connection was closed after a request for {key.name}"
    error = error_of(answer)
    if error is None:
        APIS[key].response.decode(answer.body)
        return
    assert INSIDE_THE_SERVER not in error.error_message, f"{key.name}: {error.error_message}"
    assert len(error.error_message) > 5
    assert error.error_code != 0


# Requests that are right in form


@pytest.mark.parametrize("key", sorted(APIS), ids=lambda key: ApiKey(key).name)
def test_any_request_is_answered_with_a_message_or_a_typed_error(server: ServerProcess, key: int) -> None:
    create_prey_again(server)
    is_served = key in served_keys(server.port)
    bodies = requests(ApiKey(key), random.Random(f"{SEED}/{key}"), known_values(server))
    with RawConnection(server.port) as connection:
        for request_id, body in enumerate(bodies):
            connection.send(key, request_id, body, version=request_id % 3 - 1)
        answers = [connection.read() for _ in bodies]
        for answer in answers:
            check_answer(ApiKey(key), answer)
            assert is_served or error_code(answer) == ErrorCode.UNSUPPORTED_VERSION
        assert sorted(answer.request_id for answer in answers) == list(range(len(bodies)))
    assert_serves(server)


def create_prey_again(server: ServerProcess) -> None:
    """Requests for other APIs may have dropped some of it."""
    with RawConnection(server.port) as connection:
        database = pb.CreateDatabaseRequest(database_name="prey", ignore_if_exists=True)
        connection.ask(ApiKey.CREATE_DATABASE, 0, database.SerializeToString())
        for name, descriptor in PREY.items():
            table = pb.CreateTableRequest(
                table_path=pb.PbTablePath(database_name="prey", table_name=name),
                table_json=table_to_json(descriptor),
                ignore_if_exists=True,
            )
            assert connection.ask(ApiKey.CREATE_TABLE, 1, table.SerializeToString()) is not None


# Bytes that are no requests


def test_noise_is_answered_or_cut_off_but_never_left_hanging(server: ServerProcess) -> None:
    rng = random.Random(SEED)
    for _ in range(60):
        with RawConnection(server.port, timeout_s=120) as connection:
            connection.send_bytes(rng.randbytes(rng.choice((1, 4, 12, 100, 70_000))))
            connection.end_sending()
            while (answer := connection.read()) is not None:
                assert answer.response_type is not ResponseType.SUCCESS
    assert_serves(server)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 7, 2**31 - 1, 100 * MIB + 1])
def test_a_length_that_no_request_has_is_the_end_of_the_connection(server: ServerProcess, length: int) -> None:
    with RawConnection(server.port, timeout_s=120) as connection:
        connection.send_bytes(struct.pack(">i", length) + bytes(100))
        answer = connection.read()
        assert answer is not None
        assert answer.response_type is ResponseType.SERVER_FAILURE
        assert connection.read() is None
    assert_serves(server)


def test_requests_that_are_cut_off_anywhere_leave_nothing_behind(server: ServerProcess) -> None:
    path = pb.PbTablePath(database_name="prey", table_name="half")
    message = pb.CreateTableRequest(
        table_path=path, table_json=table_to_json(PREY["log"]), ignore_if_exists=True
    ).SerializeToString()
    whole = request_bytes(ApiKey.CREATE_TABLE, 1, message)
    for size in range(0, len(whole), 7):
        with RawConnection(server.port) as connection:
            connection.send_bytes(whole[:size])
    with RawConnection(server.port) as connection:
        answer = connection.ask(ApiKey.TABLE_EXISTS, 1, pb.TableExistsRequest(table_path=path).SerializeToString())
        assert answer is not None
        assert not pb.TableExistsResponse.FromString(bytes(answer.body)).exists
    assert_serves(server)


def test_unknown_apis_and_versions_are_refused_one_by_one(server: ServerProcess) -> None:
    with RawConnection(server.port) as connection:
        for request_id, key in enumerate(
            (-(2**15), -1, 0, 999, 1065, 2**15 - 1, ApiKey.STOP_REPLICA, ApiKey.ADJUST_ISR)
        ):
            answer = connection.ask(key, request_id, b"", version=request_id - 4)
            assert answer is not None
            assert answer.request_id == request_id
            assert (error := error_of(answer)) is not None
            assert error.error_code == ErrorCode.UNSUPPORTED_VERSION
        # The connection is as good as new.
        answer = connection.ask(ApiKey.LIST_DATABASES, 99, b"")
        assert answer is not None
        assert answer.response_type is ResponseType.SUCCESS


# Before logging in


def test_nothing_but_the_handshake_is_answered_before_logging_in(server: ServerProcess) -> None:
    rng = random.Random(SEED)
    known = known_values(server)
    with RawConnection(server.ports["CLIENT"]) as connection:
        for request_id, key in enumerate(served_keys(server.port)):
            if key in (ApiKey.API_VERSIONS, ApiKey.AUTHENTICATE):
                continue
            body = MessageMaker(rng, known).make(request_type(key)).SerializePartialToString()
            answer = connection.ask(key, request_id, body)
            assert answer is not None
            assert (error := error_of(answer)) is not None
            assert error.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
    assert_serves(server)


def test_strangers_may_not_send_large_requests(server: ServerProcess) -> None:
    with RawConnection(server.ports["CLIENT"], timeout_s=120) as connection:
        connection.send_bytes(struct.pack(">ihhi", 50 * MIB, ApiKey.PRODUCE_LOG, 0, 1))
        answer = connection.read()
        assert answer is not None
        assert answer.response_type is ResponseType.SERVER_FAILURE


def test_guessing_passwords_becomes_slow_and_ends(server: ServerProcess) -> None:
    def guess(connection: RawConnection, password: str) -> pb.ErrorResponse | None:
        token = f"\0alice\0{password}".encode()
        request = pb.AuthenticateRequest(protocol="PLAIN", token=token)
        answer = connection.ask(ApiKey.AUTHENTICATE, 1, request.SerializeToString())
        assert answer is not None
        return error_of(answer)

    begun = time.monotonic()
    with RawConnection(server.ports["CLIENT"]) as connection:
        errors = [guess(connection, f"guess {n}") for n in range(5)]
        assert {error.error_code for error in errors if error} == {ErrorCode.AUTHENTICATE_EXCEPTION}
        last = guess(connection, SASL_PASSWORD)
        assert last is not None
        assert "connect again" in last.error_message
    with RawConnection(server.ports["CLIENT"]) as connection:
        assert guess(connection, SASL_PASSWORD) is None
    assert time.monotonic() - begun > 1.5, "after five guesses one is checked every two seconds"


# Too much of everything


def ask(server: ServerProcess, key: ApiKey, message: Any, *, timeout_s: float = 120.0) -> ResponseFrame:
    with RawConnection(server.port, timeout_s=timeout_s) as connection:
        answer = connection.ask(key, 1, message.SerializeToString())
    assert answer is not None
    return answer


def error_code(answer: ResponseFrame) -> int:
    error = error_of(answer)
    return 0 if error is None else error.error_code


def fetch_request(table_id: int, entry_count: int, *, wait_ms: int = 0, bytes_max: int = MIB) -> pb.FetchLogRequest:
    table = pb.PbFetchLogReqForTable(table_id=table_id, projection_pushdown_enabled=False)
    for bucket_id in range(entry_count):
        table.buckets_req.add(bucket_id=bucket_id % 3, fetch_offset=0, max_fetch_bytes=bytes_max)
    return pb.FetchLogRequest(
        follower_server_id=-1, max_bytes=bytes_max, min_bytes=1, max_wait_ms=wait_ms, tables_req=[table]
    )


def test_lists_have_an_end(server: ServerProcess) -> None:
    begun = time.monotonic()
    endless = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=0, table_id=1, bucket_id=[7] * 1_000_000)
    assert error_code(ask(server, ApiKey.LIST_OFFSETS, endless)) == ErrorCode.CORRUPT_MESSAGE
    names = pb.MetadataRequest(table_path=[pb.PbTablePath(database_name="d", table_name="t")] * 200_000)
    assert error_code(ask(server, ApiKey.GET_METADATA, names)) == ErrorCode.CORRUPT_MESSAGE
    assert time.monotonic() - begun < 60
    assert_serves(server)


def test_fetches_of_very_many_buckets_are_answered_and_wait_within_bounds(server: ServerProcess) -> None:
    create_prey_again(server)
    (table_id, *_) = table_ids(server)
    answer = ask(server, ApiKey.FETCH_LOG, fetch_request(table_id, 65_536))
    assert answer.response_type is ResponseType.SUCCESS
    with RawConnection(server.port) as connection:
        waiting = fetch_request(table_id, 65_536, wait_ms=60_000).SerializeToString()
        for request_id in range(8):
            connection.send(ApiKey.FETCH_LOG, request_id, waiting)
        assert_serves(server)
    assert_serves(server)


def test_a_produce_request_of_very_many_buckets_is_answered(server: ServerProcess) -> None:
    buckets = [pb.PbProduceLogReqForBucket(bucket_id=n, records=b"x") for n in range(30_000)]
    request = pb.ProduceLogRequest(acks=-1, table_id=0, timeout_ms=1000, buckets_req=buckets)
    answer = ask(server, ApiKey.PRODUCE_LOG, request)
    assert len(pb.ProduceLogResponse.FromString(bytes(answer.body)).buckets_resp) == 30_000
    assert_serves(server)


def test_clients_that_never_read_their_answers_hold_little_memory(server: ServerProcess) -> None:
    create_prey_again(server)
    (table_id, *_) = table_ids(server)
    large = pa.RecordBatch.from_pydict({"id": [1] * 80_000, "name": ["x" * 90] * 80_000}, schema=SCHEMA)
    batch = bytes(encode_arrow_batch(large, 1, NO_COMPRESSION))
    for _ in range(8):
        produce = pb.ProduceLogRequest(acks=-1, table_id=table_id, timeout_ms=20_000)
        produce.buckets_req.add(bucket_id=0, records=batch)
        ask(server, ApiKey.PRODUCE_LOG, produce)
    fetch = fetch_request(table_id, 1, bytes_max=2**31 - 1).SerializeToString()
    readers = [RawConnection(server.port) for _ in range(30)]
    try:
        for reader in readers:
            for request_id in range(10):
                reader.send(ApiKey.FETCH_LOG, request_id, fetch)
        # What they want would be gigabytes. Others are served meanwhile.
        deadline = time.monotonic() + 0.7
        while time.monotonic() < deadline:
            assert_serves(server)
        assert memory_bytes(server) < RSS_BYTES_MAX
    finally:
        for reader in readers:
            reader.close()


def test_clients_that_never_finish_their_requests_hold_little_memory(server: ServerProcess) -> None:
    before = memory_bytes(server)
    senders = [socket.create_connection((LOCALHOST, server.port)) for _ in range(20)]
    try:
        for sender in senders:
            sender.setblocking(False)
            sender.send(struct.pack(">ihhi", 90 * MIB, ApiKey.PRODUCE_LOG, 0, 1))
        deadline = time.monotonic() + 0.7
        while time.monotonic() < deadline:
            for sender in senders:
                try:
                    sender.send(bytes(MIB))
                except BlockingIOError:
                    continue
        # One may go on with its 90 MiB, the others share 32 MiB.
        assert memory_bytes(server) - before < 250 * MIB
        assert_serves(server)
    finally:
        for sender in senders:
            sender.close()


def test_very_many_connections_are_taken_and_too_many_are_told_so(server: ServerProcess) -> None:
    # One address has nine of ten places, on the machine itself.
    connections = [RawConnection(server.port, timeout_s=120) for _ in range(850)]
    try:
        assert_serves(server)
        connections += [RawConnection(server.port, timeout_s=120) for _ in range(200)]
        answers = [connection.ask(ApiKey.LIST_DATABASES, 1, b"") for connection in connections[-10:]]
        assert {answer.response_type if answer else None for answer in answers} <= {ResponseType.SERVER_FAILURE, None}
    finally:
        for connection in connections:
            connection.close()
    while True:
        try:
            assert_serves(server)
            return
        except fluss.FlussError:
            # The server has not noticed yet that they are gone.
            time.sleep(0.05)


def test_tables_come_quickly_and_stay_within_their_limits(server: ServerProcess) -> None:
    table_json = table_to_json(PREY["log"])

    def create(name: str, body: bytes = table_json) -> bytes:
        path = pb.PbTablePath(database_name="prey", table_name=name)
        return pb.CreateTableRequest(table_path=path, table_json=body, ignore_if_exists=True).SerializeToString()

    def altered(**values: Any) -> bytes:
        return json.dumps({**json.loads(table_json), **values}).encode()

    def columns(data_type: dict[str, Any], count: int) -> bytes:
        entries = [{"name": f"c{n}", "data_type": data_type, "id": n} for n in range(count)]
        return altered(schema={"version": 1, "columns": entries, "highest_field_id": count - 1})

    def nested(depth: int) -> dict[str, Any]:
        return {"type": "ARRAY", "element_type": nested(depth - 1)} if depth else {"type": "INTEGER"}

    invalid_table = ErrorCode.INVALID_TABLE_EXCEPTION
    expected = {
        create("x" * 200): 0,
        create("x" * 201): invalid_table,
        create("wide", columns({"type": "INTEGER"}, 1000)): 0,
        create("deep", columns(nested(10), 1)): 0,
        create("too-deep", columns(nested(400), 1)): invalid_table,
        create("bomb-1", b'{"a":' * 100_000 + b"1" + b"}" * 100_000): invalid_table,
        create("bomb-2", b"[" * 1_000_000): invalid_table,
        create("bomb-3", b'{"version":' + b"9" * 100_000 + b"}"): invalid_table,
        create("long", altered(custom_properties={"k": "v" * MIB})): 0,
        create("longer", altered(custom_properties={"k": "v" * 5 * MIB})): invalid_table,
        create("buckets", altered(bucket_count=2**31 - 1)): ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
    }
    bodies = [*expected, *(create(f"many_{n}") for n in range(300))]
    codes: dict[int, int] = {}
    with RawConnection(server.port, timeout_s=120) as connection:
        for request_id, body in enumerate(bodies):
            connection.send(ApiKey.CREATE_TABLE, request_id, body)
        for _ in bodies:
            answer = connection.read()
            assert answer is not None
            assert answer.request_id is not None
            codes[answer.request_id] = error_code(answer)
    assert [codes[request_id] for request_id in range(len(expected))] == list(expected.values())
    assert {codes[request_id] for request_id in range(len(expected), len(bodies))} == {0}
    drop = pb.DropDatabaseRequest(database_name="prey", ignore_if_not_exists=False, cascade=True)
    assert error_code(ask(server, ApiKey.DROP_DATABASE, drop)) == 0
    assert_serves(server)


@pytest.mark.slow
def test_floods_of_access_rules_and_producers_are_taken(server: ServerProcess) -> None:
    rule = pb.PbAclInfo(
        resource_type=3,
        resource_name="prey.log",
        principal_type="User",
        host="*",
        operation_type=3,
        permission_type=2,
    )
    request = pb.CreateAclsRequest()
    for number in range(10_000):
        request.acl.add(principal_name=f"user {number}").MergeFrom(rule)
    assert error_code(ask(server, ApiKey.CREATE_ACLS, request)) == 0
    with RawConnection(server.port) as connection:
        for number in range(300):
            offsets = pb.PbProducerTableOffsets(table_id=1)
            offsets.bucket_offsets.add(bucket_id=0, log_end_offset=1)
            register = pb.RegisterProducerOffsetsRequest(producer_id=f"p{number}", table_offsets=[offsets])
            connection.send(ApiKey.REGISTER_PRODUCER_OFFSETS, number, register.SerializeToString())
        for _ in range(300):
            check_answer(ApiKey.REGISTER_PRODUCER_OFFSETS, connection.read())
    assert_serves(server)
