"""The bootstrap servers are asked in order, with the retries and the errors that users were promised.
Shown with real servers, with ports where nobody listens, and with addresses that cannot be any."""

from __future__ import annotations

import asyncio
import socket

import pytest

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.servers import Bootstrap, parse_address, split_addresses
from fluss.config import Config
from fluss.errors import FlussError, NetworkError
from fluss.net.channel import Channel
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import UserTable
from tests.fakes.scripted_server import ScriptedServer
from tests.ports import free_port


class _Pauses:
    """Instead of sleeping: notes how long, and may do something meanwhile."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def _sasl(address: str, username: str, password: str) -> Config:
    return Config(
        {
            "bootstrap.servers": address,
            "security.protocol": "sasl",
            "security.sasl.username": username,
            "security.sasl.password": password,
        }
    )


def test_addresses_are_separated_by_commas_and_blanks_do_not_count() -> None:
    assert split_addresses(" a:1 ,, b:2,") == ["a:1", "b:2"]
    for nothing in ("", " , ,"):
        with pytest.raises(FlussError, match="No bootstrap servers configured"):
            split_addresses(nothing)


def test_an_address_is_a_host_and_a_port() -> None:
    assert parse_address("localhost:9123") == ("localhost", 9123)
    assert parse_address("[::1]:65535") == ("::1", 65535)


@pytest.mark.parametrize(
    "text", ["localhost", "localhost:", ":9123", "localhost:x", "localhost:0", "localhost:65536", "::1:9123", "a b:1"]
)
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(FlussError) as caught:
        parse_address(text)
    assert f"Invalid bootstrap address '{text}'" in caught.value.message
    assert caught.value.error_code == -2


async def test_the_first_server_that_answers_is_enough() -> None:
    async with ScriptedServer() as server:
        dead = f"127.0.0.1:{free_port()}"
        config = Config({"bootstrap.servers": f"not an address, {dead}, {server.address}, 127.0.0.1:1"})
        cluster = await Cluster.connect(config)
        assert [node.port for node in cluster.tablet_servers] == [server.port]
        await cluster.close()


async def test_several_servers_are_each_tried_once_and_the_last_failure_to_connect_is_raised() -> None:
    pauses = _Pauses()
    first, last = free_port(), free_port()
    config = Config({"bootstrap.servers": f"127.0.0.1:{first},127.0.0.1:{last},nonsense"})
    with pytest.raises(NetworkError, match=f"127.0.0.1:{last}") as caught:
        await Cluster.connect(config, sleep=pauses)
    assert caught.value.is_retriable
    assert pauses.seconds == []


async def test_a_single_server_gets_three_more_chances() -> None:
    pauses = _Pauses()
    port = free_port()
    with pytest.raises(NetworkError, match=f"127.0.0.1:{port}") as caught:
        await Cluster.connect(Config({"bootstrap.servers": f"127.0.0.1:{port}"}), sleep=pauses)
    assert caught.value.error_code == 1
    assert pauses.seconds == [0.1, 0.2, 0.4]


async def test_a_single_server_that_comes_up_meanwhile_is_found() -> None:
    server = ScriptedServer(port=free_port())

    async def start_server(seconds: float) -> None:
        await server.start()

    # The port is known, but nobody listens on it until the first pause.
    config = Config({"bootstrap.servers": f"127.0.0.1:{server._listener.settings.port}"})
    cluster = await Cluster.connect(config, sleep=start_server)
    await cluster.close()
    await server.stop()


async def test_names_that_do_not_exist_are_mistakes_not_outages() -> None:
    pauses = _Pauses()
    config = Config({"bootstrap.servers": "no-such-host.invalid:9123"})
    with pytest.raises(FlussError, match=r"Invalid bootstrap address 'no-such-host.invalid:9123'") as caught:
        await Cluster.connect(config, sleep=pauses)
    assert caught.value.error_code == -2
    assert pauses.seconds == []


class _Resolver:
    """Finds every name, or fails as it is told to, once for each failure."""

    def __init__(self, *failures: OSError | None) -> None:
        self._failures = list(failures)

    async def __call__(self, host: str, port: int) -> None:
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure


def _bootstrap(address: str, resolver: _Resolver, pauses: _Pauses) -> Bootstrap:
    async def connect(host: str, port: int) -> Channel:
        return await Channel.connect(host, port)

    return Bootstrap(address, connect, connect_timeout_s=5, request_timeout_s=5, sleep=pauses, resolve=resolver)


@pytest.mark.parametrize("code", [socket.EAI_AGAIN, socket.EAI_FAIL])
async def test_a_name_that_cannot_be_resolved_for_now_is_an_outage(code: int) -> None:
    pauses = _Pauses()
    async with ScriptedServer() as server:
        outage = socket.gaierror(code, "Temporary failure in name resolution")
        assert await _bootstrap(server.address, _Resolver(outage), pauses).ask(pb.MetadataRequest())
        assert pauses.seconds == [0.1]
        lasting = _bootstrap(server.address, _Resolver(*[outage] * 4), pauses)
        with pytest.raises(NetworkError, match="cannot be resolved at the moment: Temporary failure") as caught:
            await lasting.ask(pb.MetadataRequest())
    assert caught.value.is_retriable


async def test_a_name_that_was_known_before_is_no_mistake() -> None:
    async with ScriptedServer() as server:
        unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        bootstrap = _bootstrap(server.address, _Resolver(None, *[unknown] * 4), _Pauses())
        await bootstrap.ask(pb.MetadataRequest())
        with pytest.raises(NetworkError, match="Name or service not known"):
            await bootstrap.ask(pb.MetadataRequest())
        await bootstrap.ask(pb.MetadataRequest())
        new = _bootstrap(server.address, _Resolver(unknown), _Pauses())
        with pytest.raises(FlussError, match="Invalid bootstrap address") as caught:
            await new.ask(pb.MetadataRequest())
    assert not caught.value.is_retriable


async def test_when_no_address_is_one_all_reasons_are_given() -> None:
    with pytest.raises(FlussError) as caught:
        await Cluster.connect(Config({"bootstrap.servers": "nonsense,also:nonsense"}))
    assert caught.value.error_code == -2
    assert "'nonsense'" in caught.value.message
    assert "'also:nonsense'" in caught.value.message


async def test_a_server_that_hangs_up_is_an_outage() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(NetworkError):
        await Cluster.connect(Config({"bootstrap.servers": f"127.0.0.1:{port}"}), sleep=_Pauses())
    server.close()
    await server.wait_closed()


async def test_a_server_that_says_nothing_is_given_up_after_the_request_timeout() -> None:
    ended = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()
        ended.set()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = Config({"bootstrap.servers": f"127.0.0.1:{port}", "request-timeout": 50})
    pauses = _Pauses()
    with pytest.raises(FlussError, match=r"said nothing for 0.05 s. It is probably not a Fluss server") as caught:
        await Cluster.connect(config, sleep=pauses)
    assert caught.value.error_code == 25
    # It is not asked once more: that would take as long again.
    assert pauses.seconds == []
    await ended.wait()
    server.close()
    await server.wait_closed()


async def test_wrong_credentials_are_code_46_and_are_not_tried_again() -> None:
    pauses = _Pauses()
    async with ScriptedServer(check_credentials=UserTable({"admin": "admin-secret"})) as server:
        for config in (
            _sasl(server.address, "admin", "wrong-secret"),
            _sasl(server.address, "nobody", "admin-secret"),
            Config({"bootstrap.servers": server.address}),
        ):
            with pytest.raises(FlussError) as caught:
                await Cluster.connect(config, sleep=pauses)
            assert caught.value.error_code == 46
            assert "secret" not in str(caught.value)
    assert pauses.seconds == []
    assert server.requests[ApiKey.GET_METADATA] == 0


async def test_right_credentials_open_every_connection() -> None:
    async with ScriptedServer(check_credentials=UserTable({"admin": "admin-secret"})) as server:
        cluster = await Cluster.connect(_sasl(server.address, "admin", "admin-secret"))
        await cluster.refresh()
        assert server.requests[ApiKey.GET_METADATA] == 2
        await cluster.close()


async def test_a_client_with_credentials_is_refused_by_a_server_that_wants_none() -> None:
    async with ScriptedServer() as server:
        with pytest.raises(FlussError) as caught:
            await Cluster.connect(_sasl(server.address, "admin", "admin-secret"))
        assert caught.value.error_code == 46


async def test_a_config_that_contradicts_itself_is_refused_before_anybody_is_asked() -> None:
    async with ScriptedServer() as server:
        with pytest.raises(FlussError, match=r"scanner.log.fetch.min-bytes"):
            await Cluster.connect(server.config(**{"scanner_log_fetch_min__bytes": 0}))
        assert server.connection_count == 0
