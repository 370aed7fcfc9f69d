"""A server inside this process, or as its child: started in a moment, reachable, and gone when it should be.
Shown with real servers, in threads and in processes, inside and outside of event loops."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import fluss.embedded
from fluss.embedded import EmbeddedServer
from fluss.errors import ErrorCode, FlussError
from fluss.net.channel import Channel
from fluss.net.transport import run
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.server.process import FlussServer
from fluss.testing.waiting import eventually

both_kinds = pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
SASL = {
    "bind.listeners": "OPEN://127.0.0.1:0,CLIENT://127.0.0.1:0",
    "security.protocol.map": "CLIENT:SASL",
    "security.sasl.plain.credentials": "alice:secret",
}


async def database_names(port: int, credentials: Credentials | None = None) -> list[str]:
    async with await Channel.connect("127.0.0.1", port, credentials=credentials) as channel:
        response = await channel.request(apis.LIST_DATABASES, pb.ListDatabasesRequest(), timeout_s=120)
        return list(response.database_name)


async def create_database(port: int, name: str) -> None:
    async with await Channel.connect("127.0.0.1", port) as channel:
        request = pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=False)
        await channel.request(apis.CREATE_DATABASE, request, timeout_s=120)


def is_running(process_id: int) -> bool:
    try:
        # A process that has ended but was not waited for still has its number.
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_gone(process_id: int) -> None:
    eventually(lambda: not is_running(process_id), "the end of the server")


@both_kinds
def test_a_server_answers_and_leaves_nothing_behind(process: bool) -> None:
    begun = time.process_time()
    with fluss.embedded.start(process=process) as server:
        assert run(database_names(server.port)) == ["fluss"]
        # Inside this process it is the work of some milliseconds.
        assert process or time.process_time() - begun < 1
        data_dir, process_id = server.data_dir, server.process_id
        assert (data_dir / "metadata.sqlite").exists()
        assert server.bootstrap_servers == f"127.0.0.1:{server.port}"
        assert repr(server) == f"EmbeddedServer(on 127.0.0.1:{server.port})"
    assert not data_dir.exists()
    assert (process_id == os.getpid()) is not process
    assert not process or not is_running(process_id)


@both_kinds
def test_a_server_leaves_no_threads_behind(process: bool) -> None:
    # In a process of its own: here is a server for other tests, too, which starts threads when it needs them.
    program = f"""
        import threading, fluss.embedded
        from fluss.net.channel import Channel
        from fluss.net.transport import run
        from fluss.testing.waiting import eventually

        async def connect(port):
            async with await Channel.connect("127.0.0.1", port):
                pass

        with fluss.embedded.start(process={process}) as server:
            run(connect(server.port))
        # The thread that gives memory back belongs to the process, and ends some seconds later.
        eventually(lambda: threading.enumerate() == [threading.main_thread()], "the end of the server's threads")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=600)


async def test_a_server_works_in_async_with_and_does_not_block_the_loop() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    async with EmbeddedServer(process=True) as server:
        assert ticks > 0
        assert await database_names(server.port) == ["fluss"]
    ticking.cancel()


async def test_a_server_can_be_started_inside_a_running_loop_as_in_a_notebook() -> None:
    with fluss.embedded.start() as server:
        assert await database_names(server.port) == ["fluss"]


@both_kinds
def test_restart_keeps_data_and_port(process: bool) -> None:
    with fluss.embedded.start(process=process) as server:
        port, data_dir = server.port, server.data_dir
        run(create_database(port, "mine"))
        server.restart()
        assert (server.port, server.data_dir) == (port, data_dir)
        assert set(run(database_names(port))) == {"fluss", "mine"}


def test_a_killed_server_comes_back_with_its_data() -> None:
    with fluss.embedded.start(process=True) as server:
        process_id = server.process_id
        run(create_database(server.port, "mine"))
        server.kill()
        assert not is_running(process_id)
        server.restart()
        assert set(run(database_names(server.port))) == {"fluss", "mine"}
        assert server.process_id != process_id


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a port cannot be kept")
def test_nobody_else_gets_the_port_of_a_killed_server() -> None:
    with fluss.embedded.start(process=True) as server:
        server.kill()
        address = "127.0.0.1", server.port
        # Whoever asks for any free port is given none that could not be bound like this.
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        server.restart()
        assert run(database_names(address[1])) == ["fluss"]
    with socket.create_server(address):
        """A server that was stopped keeps nothing."""


def test_a_killed_server_need_not_come_back() -> None:
    with fluss.embedded.start(process=True) as server:
        data_dir = server.data_dir
        server.kill()
    assert not data_dir.exists()


def test_a_server_in_this_process_cannot_be_killed() -> None:
    with fluss.embedded.start() as server, pytest.raises(FlussError, match="process=True"):
        server.kill()


def test_a_given_directory_stays_and_can_be_used_again(tmp_path: Path) -> None:
    for _ in range(2):
        with fluss.embedded.start({"durability": "os"}, data_dir=tmp_path / "data") as server:
            assert server.data_dir == tmp_path / "data"
    assert (tmp_path / "data" / "metadata.sqlite").exists()


@both_kinds
def test_listeners_with_and_without_passwords(process: bool) -> None:
    with fluss.embedded.start(SASL, process=process) as server:
        host, _, port = server.address("CLIENT").partition(":")
        assert host == "127.0.0.1"
        assert run(database_names(int(port), Credentials("alice", "secret"))) == ["fluss"]
        with pytest.raises(FlussError) as caught:
            run(database_names(int(port), Credentials("alice", "wrong")))
        assert caught.value.error_code == ErrorCode.AUTHENTICATE_EXCEPTION
        assert run(database_names(server.port)) == ["fluss"]
        with pytest.raises(FlussError, match="there are OPEN, CLIENT"):
            server.address("OTHER")


def test_the_client_config_leads_to_the_server_and_takes_properties() -> None:
    with fluss.embedded.start(SASL) as server:
        config = server.config("CLIENT", security_protocol="sasl", security_sasl_username="alice")
        assert config.bootstrap_servers == server.address("CLIENT")
        assert (config.security_protocol, config.security_sasl_username) == ("sasl", "alice")
        assert server.config().bootstrap_servers == server.bootstrap_servers
        with pytest.raises(TypeError, match="no property writer_ackz"):
            server.config(writer_ackz="1")


@both_kinds
def test_a_failed_start_is_reported_and_cleaned_up(tmp_path: Path, process: bool) -> None:
    with pytest.raises(FlussError, match=r"did you mean 'max\.bucket\.num'"):
        fluss.embedded.start({"max.bucket.numb": 1}, process=process)
    with fluss.embedded.start(data_dir=tmp_path / "data") as server:
        second = EmbeddedServer({"data.dir": str(tmp_path / "data")}, port=server.port, process=process)
        with pytest.raises(FlussError, match="in use"):
            second.start()
    # Nothing of the failure is left.
    with second:
        assert run(database_names(second.port)) == ["fluss"]


def test_a_port_that_is_taken_is_reported() -> None:
    with fluss.embedded.start() as server, pytest.raises(FlussError, match="cannot listen on"):
        fluss.embedded.start(port=server.port)


def test_what_needs_a_running_server_says_so() -> None:
    server = EmbeddedServer()
    for use in (lambda: server.port, lambda: server.data_dir, server.restart, server.kill, server.config):
        with pytest.raises(FlussError, match="was not started"):
            use()
    server.stop()
    assert repr(server) == "EmbeddedServer(not started)"


def test_starting_twice_is_refused_and_stopping_twice_is_not() -> None:
    server = fluss.embedded.start()
    with pytest.raises(FlussError, match="running already"):
        server.start()
    server.stop()
    server.stop()
    # Temporary data does not outlive a stop, but the server can begin anew.
    with server:
        assert run(database_names(server.port)) == ["fluss"]


def test_the_child_ends_in_order_when_its_parent_is_killed(tmp_path: Path) -> None:
    program = f"""
        import fluss.embedded, time
        server = fluss.embedded.start(data_dir={str(tmp_path / "data")!r}, process=True)
        print(server.process_id, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child_id = int(parent.stdout.readline())
        assert is_running(child_id)
        parent.kill()
    wait_until_gone(child_id)
    assert (tmp_path / "data" / ".fluss_cleanshutdown").exists()


def test_the_child_ends_even_if_a_forked_process_keeps_its_pipe_open() -> None:
    program = """
        import os, time
        import fluss.embedded
        server = fluss.embedded.start(process=True)
        forked = os.fork()
        if forked == 0:
            time.sleep(60)
            os._exit(0)
        print(server.process_id, forked, flush=True)
        os._exit(0)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child_id, forked_id = map(int, parent.stdout.readline().split())
    try:
        wait_until_gone(child_id)
        assert is_running(forked_id)
    finally:
        os.kill(forked_id, signal.SIGKILL)


@both_kinds
def test_a_server_that_nobody_stops_is_stopped_at_the_end_of_the_program(process: bool, tmp_path: Path) -> None:
    program = f"""
        import fluss.embedded
        fluss.embedded.start(data_dir={str(tmp_path / "data")!r}, process={process})
        temporary = fluss.embedded.start(process={process})
        print(temporary.data_dir)
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert (tmp_path / "data" / ".fluss_cleanshutdown").exists()
    assert not Path(answer.stdout.strip()).exists()


def test_passwords_do_not_show_in_the_command_line_of_a_child() -> None:
    with fluss.embedded.start(SASL, process=True) as server:
        command = Path(f"/proc/{server.process_id}/cmdline").read_bytes()
        assert b"fluss" in command
        assert b"secret" not in command


def test_a_stop_that_takes_long_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on, stop = threading.Event(), FlussServer.stop

    async def stop_later(server: FlussServer) -> None:
        await asyncio.to_thread(goes_on.wait)
        await stop(server)

    monkeypatch.setattr(fluss.embedded, "_STOP_REPORT_S", 0.05)
    monkeypatch.setattr(fluss.embedded, "_STOP_REPORTS_MAX", 2)
    monkeypatch.setattr(FlussServer, "stop", stop_later)
    threads_before = set(threading.enumerate())
    server = fluss.embedded.start()
    try:
        with pytest.raises(FlussError, match=r"within 0\.1 s; its thread goes on trying\. It waits for: .*stop_later"):
            server.stop()
        told = [record.message for record in caplog.records if record.name == "fluss.embedded"]
        assert len(told) == 2
        assert all("it waits for" in message and "stop_later" in message for message in told)
    finally:
        goes_on.set()
        for thread in set(threading.enumerate()) - threads_before:
            if thread.name == "fluss-server":
                thread.join()
