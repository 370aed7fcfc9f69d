"""Who comes in, how fast passwords can be guessed, and how much one client may use: a real server, real clients."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import blocking, embedded
from fluss.errors import ErrorCode, FlussError
from fluss.net.channel import Channel
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.cluster_info import ConfigOp
from fluss.server.options.server_options import ServerOptions
from fluss.server.process import FlussServer
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually
from tests.ports import free_port

LOCALHOST = "127.0.0.1"
CREDENTIALS = "security.sasl.plain.credentials"
SASL = {
    "bind.listeners": "CLIENT://127.0.0.1:0",
    "security.protocol.map": "CLIENT:SASL",
    CREDENTIALS: "admin:root,alice:old",
}
ARROW_SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
SCHEMA = blocking.Schema(ARROW_SCHEMA)
PATH = blocking.TablePath("fluss", "t")


def _connect(server: embedded.EmbeddedServer, user: str, password: str) -> blocking.FlussConnection:
    config = server.config(
        "CLIENT", security_protocol="sasl", security_sasl_username=user, security_sasl_password=password
    )
    return blocking.FlussConnection.create(config)


def _alter(connection: blocking.FlussConnection, key: str, op: ConfigOp, value: str = "") -> None:
    admin = connection.get_admin()
    if op is ConfigOp.DELETE:
        admin.alter_cluster_configs(reset_configs=[key])
    else:
        admin.alter_cluster_configs(**{f"{op.name.lower()}_configs": {key: value}})


# Connections


def test_one_address_has_no_more_places_than_its_option_says(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "-D", "server.max-connections-per-address=3") as server:
        # A server that answers has counted what was connected before.
        clients = [socket.create_connection((LOCALHOST, server.port)) for _ in range(8)]
        refused = 0
        for client in clients[3:]:
            client.settimeout(60)
            refused += b"your address has its limit of 3 connections" in client.recv(1000)
        assert refused == 5
        other = socket.create_connection((LOCALHOST, server.port), source_address=("127.0.0.9", 0))
        other.sendall(struct.pack(">ihhi", 8, 1000, 0, 7))
        other.settimeout(60)
        assert b"your address" not in other.recv(1000)
        for client in (*clients, other):
            client.close()
        lines = [line for line in server.log_text.splitlines() if "listener: refused the connection" in line]
        assert len(lines) == 1


def test_a_request_has_to_arrive_in_time(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "-D", "server.request-arrival-timeout=1s") as server:
        client = socket.create_connection((LOCALHOST, server.port))
        client.settimeout(0.2)
        client.sendall(struct.pack(">i", 100_000))

        def is_cut_off() -> bool:
            try:
                client.sendall(b"\0")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        eventually(is_cut_off)
        client.close()
        assert "it takes too long to send a request" in server.log_text


def test_a_client_has_to_log_in_in_time(tmp_path: Path) -> None:
    with embedded.start({**SASL, "server.login-timeout": "1s"}, data_dir=tmp_path) as server:
        client = socket.create_connection((LOCALHOST, server.port))
        client.settimeout(60)
        assert client.recv(1) == b""
        client.close()


# Passwords


def test_a_changed_password_ends_the_sessions_that_were_made_with_the_old_one(tmp_path: Path) -> None:
    with embedded.start({**SASL, "super.users": "User:admin"}, data_dir=tmp_path) as server:
        admin, alice = _connect(server, "admin", "root"), _connect(server, "alice", "old")
        assert alice.get_admin().list_databases() == ["fluss"]
        _alter(admin, CREDENTIALS, ConfigOp.APPEND, "bob:new")
        assert alice.get_admin().list_databases() == ["fluss"], "another user's password is not hers"
        # The one who changes her own password is told that it was changed.
        _alter(alice, CREDENTIALS, ConfigOp.APPEND, "alice:new")

        def is_locked_out() -> bool:
            try:
                alice.get_admin().list_databases()
            except FlussError as error:
                return error.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
            return False

        eventually(is_locked_out)
        assert _connect(server, "alice", "new").get_admin().list_databases() == ["fluss"]
        assert admin.get_admin().list_databases() == ["fluss"]
        _alter(admin, CREDENTIALS, ConfigOp.SUBTRACT, "alice:")
        with pytest.raises(FlussError, match="wrong user name or password"):
            _connect(server, "alice", "new")


@pytest.mark.parametrize("ignore_case", [False, True])
def test_the_password_of_a_super_user_cannot_be_set_by_request(tmp_path: Path, ignore_case: bool) -> None:
    options = {**SASL, "super.users": "User:admin;User:later", "security.acl.principal.ignore-case": ignore_case}
    with embedded.start(options, data_dir=tmp_path) as server:
        alice = _connect(server, "alice", "old")
        names = ["admin", "later", *(["ADMIN", "Later"] if ignore_case else [])]
        for name in names:
            # Not even to the password that it has: the answer would tell a guess.
            for password in ("root", "other"):
                for op in (ConfigOp.SET, ConfigOp.APPEND, ConfigOp.SUBTRACT):
                    with pytest.raises(FlussError, match="is a super user") as caught:
                        _alter(alice, CREDENTIALS, op, f"bob:b, {name}:{password}")
                    assert caught.value.error_code == ErrorCode.CONFIG_EXCEPTION
        # Nor is it lost when all others are replaced.
        _alter(alice, CREDENTIALS, ConfigOp.SET, "alice:old,bob:b")
        for user, password in (("admin", "root"), ("alice", "old"), ("bob", "b")):
            _connect(server, user, password).close()
        alice.close()
    # Also if an earlier version has stored another one, or the configuration has a new one.
    with embedded.start({**options, CREDENTIALS: "admin:new"}, data_dir=tmp_path) as server:
        _connect(server, "admin", "new").close()
        _connect(server, "bob", "b").close()
        with pytest.raises(FlussError, match="wrong user name or password"):
            _connect(server, "admin", "root")


# Quotas


def _append(connection: blocking.FlussConnection, byte_count: int) -> float:
    """Append about so many bytes, and return how long it took."""
    writer = connection.get_table(PATH).new_append().create_writer()
    began_s = time.monotonic()
    writer.write_arrow_batch(pa.record_batch([[1], ["x" * byte_count]], schema=ARROW_SCHEMA))
    writer.flush()
    return time.monotonic() - began_s


def test_quotas_hold_from_the_start_and_can_be_changed_while_the_server_runs(tmp_path: Path) -> None:
    quota, overrides = "quota.produce.bytes-per-second", "quota.produce.bytes-per-second.overrides"
    options = {**SASL, overrides: "alice=500kb", "quota.fetch.bytes-per-second": "1gb"}
    with embedded.start({"durability": "os", **options}, data_dir=tmp_path) as server:
        admin, alice = _connect(server, "admin", "root"), _connect(server, "alice", "old")
        properties = {"table.log.arrow.compression.type": "NONE"}
        admin.get_admin().create_table(PATH, blocking.TableDescriptor(SCHEMA, properties=properties))
        # Two seconds' worth, of which one was saved up: whoever is above its quota waits, however fast the machine.
        assert _append(alice, 1_024_000) >= 0.9
        _alter(admin, overrides, ConfigOp.SUBTRACT, "alice=")
        _alter(admin, quota, ConfigOp.SET, "250kb")
        assert _append(alice, 1_024_000) >= 1.5
        for wrong in ("-1", "much"):
            with pytest.raises(FlussError, match="is no value for"):
                _alter(admin, "quota.requests-per-second", ConfigOp.SET, wrong)
        with pytest.raises(FlussError, match="is no value for"):
            _alter(admin, overrides, ConfigOp.APPEND, "alice=much")
        _alter(admin, quota, ConfigOp.DELETE)
        _alter(admin, "quota.requests-per-second", ConfigOp.SET, "4")
        began_s = time.monotonic()
        for _ in range(12):
            admin.get_admin().list_databases()
        assert time.monotonic() - began_s >= 1.5
        alice.close()
        admin.close()


def test_fetches_are_answered_at_the_quota(tmp_path: Path) -> None:
    with embedded.start({"durability": "os", "quota.fetch.bytes-per-second": "500kb"}, data_dir=tmp_path) as server:
        connection = blocking.FlussConnection.create(server.config())
        properties = {"table.log.arrow.compression.type": "NONE"}
        connection.get_admin().create_table(PATH, blocking.TableDescriptor(SCHEMA, properties=properties))
        _append(connection, 1_024_000)
        began_s = time.monotonic()
        scanner = connection.get_table(PATH).new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        assert scanner.to_arrow().num_rows == 1
        assert time.monotonic() - began_s >= 0.9
        connection.close()


async def test_names_have_quotas_of_their_own(tmp_path: Path) -> None:
    options = ServerOptions(
        {
            "data.dir": str(tmp_path),
            "bind.listeners": "FLUSS://127.0.0.1:0",
            "quota.fetch.bytes-per-second.overrides": "127.0.0.1=3mb, ::1=4mb, ANONYMOUS=5mb",
            "quota.requests-per-second.overrides": "127.0.0.1=1000, alice=7",
        }
    )
    async with FlussServer(options) as server:
        async with await Channel.connect(LOCALHOST, server.listeners[0].port) as channel:
            await channel.request(apis.LIST_DATABASES, pb.ListDatabasesRequest(), timeout_s=120)
        values = server.metrics.values()
        address = ("address", LOCALHOST)
        assert values["fluss_quota_limit_per_second", (address, ("kind", "fetch"))] == 3 * 1024 * 1024
        assert values["fluss_quota_limit_per_second", (address, ("kind", "requests"))] == 1000
        assert values["fluss_quota_used_total", (address, ("kind", "requests"))] == 2
        assert values["fluss_connections_refused_total", (("listener", "FLUSS"),)] == 0
        assert "fluss_connections{" in server.metrics.text()


# Metrics


def test_metrics_can_be_read_over_http(tmp_path: Path) -> None:
    port = free_port()
    options = {
        "metrics.reporter.prometheus.port": port,
        "metrics.reporter.prometheus.host": "localhost",
        "quota.requests-per-second": 1_000_000,
    }
    with embedded.start(options, data_dir=tmp_path) as server:
        with blocking.FlussConnection.create(server.config()) as connection:
            connection.get_admin().list_databases()
            with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=60) as answer:
                text = answer.read().decode()
        assert f'fluss_quota_limit_per_second{{address="{LOCALHOST}",kind="requests"}} 1000000' in text
        assert 'fluss_connections{listener="FLUSS"} ' in text
        assert "# TYPE fluss_connections_refused_total counter" in text
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://localhost:{port}/", timeout=60)
        with socket.create_connection((LOCALHOST, port)) as hostile:
            hostile.settimeout(60)
            hostile.sendall(bytes(100_000))
            with contextlib.suppress(ConnectionResetError):
                assert hostile.recv(1000) == b""
        with pytest.raises(FlussError, match="metrics cannot be shown"):
            embedded.start(options, data_dir=tmp_path / "second")
