"""The server as a process: what it says, how it ends, what it refuses, and how its listeners differ.
Shown by starting ``python -m fluss.server`` and speaking to it over real connections."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import fluss
from fluss.errors import AuthenticationError, ErrorCode, FlussError
from fluss.net.channel import Channel
from fluss.net.transport import run
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.serde import table_to_json
from fluss.schema.types import DataTypes
from fluss.server.__main__ import main
from fluss.server.data_dir import DataDirectory
from fluss.storage.log.file_names import CLEAN_SHUTDOWN_MARKER
from fluss.testing.cluster import ServerProcess, wait_until_ready
from fluss.testing.waiting import eventually

TIMEOUT_S = 120
TWO_LISTENERS = """
bind.listeners: PLAIN_CLIENT://127.0.0.1:0, CLIENT://127.0.0.1:0
security.protocol.map: CLIENT:sasl
security.sasl.enabled.mechanisms: plain
security.sasl.plain.credentials: admin:secret,alice:secret2
zookeeper.address: localhost:2181
"""


def run_server(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a server that ends by itself."""
    command = [sys.executable, "-m", "fluss.server", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)


def only_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


async def request(port: int, api: apis.Api, message, credentials: Credentials | None = None):
    async with await Channel.connect("127.0.0.1", port, credentials=credentials) as channel:
        return await channel.request(api, message, timeout_s=TIMEOUT_S)


def ask(port: int, api: apis.Api, message, credentials: Credentials | None = None):
    """Connect, ask one thing, and disconnect."""
    return run(request(port, api, message, credentials))


def create_table(port: int, name: str) -> None:
    schema = Schema.builder().column("id", DataTypes.int()).build()
    path = pb.PbTablePath(database_name="fluss", table_name=name)
    descriptor = table_to_json(TableDescriptor(schema, bucket_count=1))
    ask(port, apis.CREATE_TABLE, pb.CreateTableRequest(table_path=path, table_json=descriptor, ignore_if_exists=False))


def table_names(port: int) -> Sequence[str]:
    return list(ask(port, apis.LIST_TABLES, pb.ListTablesRequest(database_name="fluss")).table_name)


@pytest.fixture(scope="module")
def two_listeners(tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("two-listeners")
    config = directory / "server.yaml"
    config.write_text(TWO_LISTENERS)
    with ServerProcess(directory / "data", "--config", str(config)) as server:
        yield server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_says_that_clients_can_connect_and_a_signal_ends_in_order(tmp_path: Path, number: int) -> None:
    with ServerProcess(tmp_path / "data") as server:
        assert server.ready_line == (
            f"Flussbett {fluss.__version__} ready on 127.0.0.1:{server.port} (FLUSS, PLAINTEXT), "
            f"data in {tmp_path / 'data'}, durability fsync"
        )
        wait_until_ready("127.0.0.1", server.port)
        assert not (tmp_path / "data" / CLEAN_SHUTDOWN_MARKER).exists()
        server.send_signal(number)
        assert server.wait() == 0
        assert (tmp_path / "data" / CLEAN_SHUTDOWN_MARKER).exists()
        assert "Traceback" not in server.log_text


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    # The server gives a client that stays connected a second to leave.
    with ServerProcess(tmp_path / "data") as server, socket.create_connection(("127.0.0.1", server.port)):
        server.send_signal(signal.SIGTERM)
        eventually(lambda: "stopping" in server.log_text)
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM


def test_a_stop_that_takes_too_long_says_what_it_waited_for() -> None:
    program = """
import asyncio
from fluss.server.process import request_stop

async def serve_for_ever():
    stop = asyncio.Event()
    request_stop(stop, timeout_s=0.1)
    await stop.wait()
    await asyncio.Event().wait()

asyncio.run(serve_for_ever())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ended.returncode == 1
    assert "the server did not stop within 0.1 s and is ended" in ended.stderr
    assert " in serve_for_ever:9 > Event.wait:" in ended.stderr
    assert "most recent call first" in ended.stderr


def test_tables_are_there_again_after_stop_and_after_kill(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        create_table(server.port, "before_stop")
        port = server.port
        server.restart()
        assert server.port == port
        create_table(port, "before_kill")
        server.kill()
        server.start()
        assert set(table_names(port)) == {"before_stop", "before_kill"}


def test_a_waiting_fetch_is_answered_when_the_server_stops(tmp_path: Path) -> None:
    async def fetch_while_stopping(server: ServerProcess) -> pb.FetchLogResponse:
        async with await Channel.connect("127.0.0.1", server.port) as channel:
            fetch = pb.FetchLogRequest(
                follower_server_id=-1,
                max_bytes=1024,
                min_bytes=1,
                max_wait_ms=TIMEOUT_S * 1000,
                tables_req=[
                    pb.PbFetchLogReqForTable(
                        table_id=0,
                        projection_pushdown_enabled=False,
                        buckets_req=[pb.PbFetchLogReqForBucket(bucket_id=0, fetch_offset=0, max_fetch_bytes=1024)],
                    )
                ],
            )
            waiting = asyncio.ensure_future(channel.request(apis.FETCH_LOG, fetch, timeout_s=TIMEOUT_S))
            await asyncio.sleep(0)
            # The answer to a later request shows that the server has seen the fetch.
            await channel.request(apis.LIST_DATABASES, pb.ListDatabasesRequest(), timeout_s=TIMEOUT_S)
            server.send_signal(signal.SIGTERM)
            return await waiting

    with ServerProcess(tmp_path / "data") as server:
        create_table(server.port, "t")
        begun = time.monotonic()
        response = run(fetch_while_stopping(server))
        assert server.wait() == 0
        assert time.monotonic() - begun < TIMEOUT_S / 2
        assert response is not None


def test_a_directory_that_a_server_uses_is_refused_with_its_process(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        answer = run_server("--data-dir", str(tmp_path / "data"), "--port", "0")
        assert answer.returncode == 1
        assert f"in use by process {server.process_id}; stop it" in only_line(answer.stderr)
        assert answer.stdout == ""


def test_a_port_that_is_in_use_is_refused_and_leaves_the_directory_in_order(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = run_server("--data-dir", str(tmp_path / "data"), "--port", str(port), "--log-level", "error")
    assert answer.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: the port is in use" in only_line(answer.stderr)
    assert "choose another port with --port (0 takes a free one)" in only_line(answer.stderr)
    assert (tmp_path / "data" / CLEAN_SHUTDOWN_MARKER).exists()
    DataDirectory.acquire(tmp_path / "data").release()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--config", "missing.yaml"], "missing.yaml cannot be read: No such file"),
        (["-D", "log.segment.file-sise=1gb"], "did you mean 'log.segment.file-size'?"),
        (["-D", "log.segment.file-size=big"], "expected a memory size with a unit"),
        (["-D", "security.protocol.map=FLUSS:sasl"], "set 'security.sasl.plain.credentials'"),
    ],
)
def test_wrong_options_are_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert main(["--data-dir", str(tmp_path / "data"), *arguments]) == 1
    assert expected in only_line(capsys.readouterr().err)
    assert not (tmp_path / "data").exists()


def test_a_file_that_is_not_yaml_is_refused_with_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("a: b\nsecurity.sasl.plain.credentials: 'admin:hush\n")
    assert main(["--data-dir", str(tmp_path / "data"), "--config", str(config)]) == 1
    message = only_line(capsys.readouterr().err)
    assert "not valid YAML: line" in message
    assert "hush" not in message


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    DataDirectory.acquire(tmp_path / "data").release()
    damaged = tmp_path / "data" / "metadata.sqlite"
    damaged.write_bytes(b"no database" * 1000)
    answer = run_server("--data-dir", str(tmp_path / "data"), "--port", "0", "--log-level", "error")
    assert answer.returncode == 1
    assert str(damaged) in only_line(answer.stderr)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--data-dir ./data"),
        (["--data-dir", "d", "--port", "99999"], "not a port"),
        (["--data-dir", "d", "--durability", "never"], "invalid choice"),
        (["--data-dir", "d", "-D", "novalue"], "expected KEY=VALUE"),
        (["--data-dir", "d", "--port", "1", "-D", "bind.listeners=A://h:1"], "do not go with 'bind.listeners'"),
        (["--dat", "d"], "unrecognized arguments"),
    ],
)
def test_wrong_usage_is_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert expected in capsys.readouterr().err


def test_print_config_shows_values_and_origins_but_no_passwords(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(TWO_LISTENERS)
    monkeypatch.setenv("FLUSS_DURABILITY", "os")
    assert main(["--print-config", "--config", str(config), "-D", "default.bucket.number=3"]) == 0
    printed = capsys.readouterr().out
    lines = {line.partition(":")[0]: " ".join(line.split()) for line in printed.splitlines()}
    assert lines["default.bucket.number"] == "default.bucket.number: 3 # command line"
    assert lines["durability"] == "durability: os # environment FLUSS_DURABILITY"
    assert lines["security.sasl.plain.credentials"] == f'security.sasl.plain.credentials: "***" # {config} line 5'
    assert lines["max.bucket.num"] == "max.bucket.num: 4096 # default"
    # As a value; there are options with the word in their key.
    assert "secret" not in printed.replace("s3.secret-key:", "").replace("client.secret:", "")


def test_options_without_effect_are_named_once(two_listeners: ServerProcess) -> None:
    assert two_listeners.log_text.count("no effect in this server: zookeeper.address") == 1


@pytest.mark.parametrize(
    ("listener", "credentials"), [("PLAIN_CLIENT", None), ("CLIENT", Credentials("alice", "secret2"))]
)
def test_clients_are_told_the_address_of_the_listener_they_came_in_by(
    two_listeners: ServerProcess, listener: str, credentials: Credentials | None
) -> None:
    port = two_listeners.ports[listener]
    metadata = ask(port, apis.GET_METADATA, pb.MetadataRequest(), credentials)
    assert (metadata.coordinator_server.host, metadata.coordinator_server.port) == ("127.0.0.1", port)
    assert [(node.host, node.port) for node in metadata.tablet_servers] == [("127.0.0.1", port)]


@pytest.mark.parametrize("credentials", [Credentials("alice", "secret"), Credentials("eve", "secret2")])
def test_a_wrong_password_and_an_unknown_user_are_refused_alike(
    two_listeners: ServerProcess, credentials: Credentials
) -> None:
    with pytest.raises(AuthenticationError, match="wrong user name or password") as caught:
        ask(two_listeners.ports["CLIENT"], apis.GET_METADATA, pb.MetadataRequest(), credentials)
    assert caught.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
    assert "secret" not in two_listeners.log_text


def test_a_client_without_credentials_is_refused_on_a_sasl_listener(two_listeners: ServerProcess) -> None:
    with pytest.raises(AuthenticationError, match="requires authentication"):
        ask(two_listeners.ports["CLIENT"], apis.GET_METADATA, pb.MetadataRequest())


def test_credentials_are_refused_on_a_plaintext_listener(two_listeners: ServerProcess) -> None:
    with pytest.raises(FlussError, match="takes no credentials"):
        ask(
            two_listeners.ports["PLAIN_CLIENT"],
            apis.GET_METADATA,
            pb.MetadataRequest(),
            Credentials("alice", "secret2"),
        )


def test_users_can_be_changed_while_the_server_runs_and_stay_changed(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(TWO_LISTENERS)
    key, append = "security.sasl.plain.credentials", 2
    with ServerProcess(tmp_path / "data", "--config", str(config)) as server:
        change = pb.PbAlterConfig(config_key=key, config_value="bob:secret3", op_type=append)
        ask(
            server.ports["PLAIN_CLIENT"],
            apis.ALTER_CLUSTER_CONFIGS,
            pb.AlterClusterConfigsRequest(alter_configs=[change]),
        )
        ask(server.ports["CLIENT"], apis.GET_METADATA, pb.MetadataRequest(), Credentials("bob", "secret3"))
        server.restart()
        for credentials in (Credentials("bob", "secret3"), Credentials("alice", "secret2")):
            ask(server.ports["CLIENT"], apis.GET_METADATA, pb.MetadataRequest(), credentials)


def test_rights_are_enforced_except_for_super_users_and_on_the_internal_listener(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(
        TWO_LISTENERS + "authorizer.enabled: true\nsuper.users: User:admin\ninternal.listener.name: PLAIN_CLIENT\n"
    )
    create = pb.CreateDatabaseRequest(database_name="d", ignore_if_exists=True)
    with ServerProcess(tmp_path / "data", "--config", str(config)) as server:
        with pytest.raises(FlussError) as caught:
            ask(server.ports["CLIENT"], apis.CREATE_DATABASE, create, Credentials("alice", "secret2"))
        assert caught.value.error_code == ErrorCode.AUTHORIZATION_EXCEPTION
        ask(server.ports["CLIENT"], apis.CREATE_DATABASE, create, Credentials("admin", "secret"))
        ask(server.ports["PLAIN_CLIENT"], apis.CREATE_DATABASE, create)
