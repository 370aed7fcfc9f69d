"""A channel matches answers to requests, gives up in time, and fails loudly and completely when the connection does.

Against the real listener where the server behaves, against hand-written servers where it does not; on both loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import tracemalloc

import pytest

from fluss.errors import CorruptMessageError, FlussError, NetworkError, RequestTimeoutError, UnsupportedVersionError
from fluss.net.channel import Channel, ChannelSettings
from fluss.net.listener import Listener, ListenerSettings
from fluss.protocol import api as apis
from fluss.protocol import bulk_messages
from fluss.protocol import frame as frames
from fluss.protocol.api import APIS, ApiKey, ServerRole
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.testing.waiting import eventually_async

MIB = 1024 * 1024
LOCALHOST = "127.0.0.1"
METADATA = apis.GET_METADATA


def _metadata_named(name: str) -> pb.MetadataRequest:
    request = pb.MetadataRequest()
    request.table_path.add(database_name="d", table_name=name)
    return request


def _answer_named(name: str) -> pb.MetadataResponse:
    response = pb.MetadataResponse()
    response.tablet_servers.add(node_id=1, host=name, port=1)
    return response


def _api_versions(server_type: int | None = None) -> pb.ApiVersionsResponse:
    response = pb.ApiVersionsResponse()
    if server_type is not None:
        response.server_type = server_type
    for api in APIS.values():
        response.api_versions.add(api_key=api.key, min_version=0, max_version=api.versions.highest)
    return response


async def _read_request(reader: asyncio.StreamReader) -> frames.RequestFrame:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return frames.parse_request(memoryview(await reader.readexactly(length)))


def _success(request: frames.RequestFrame, response) -> bytes:
    return b"".join(frames.success_frame(request.request_id, [response.SerializeToString()]))


@contextlib.asynccontextmanager
async def _server(behaviour, *, handshake: bool = True):
    """Serve one scripted conversation per connection; yield the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if handshake:
                writer.write(_success(await _read_request(reader), _api_versions()))
            await behaviour(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, LOCALHOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()
        # The conversations end when their clients do.
        await asyncio.sleep(0.01)


async def test_answers_in_any_order_reach_the_right_requests():
    async def reversing(reader, writer):
        requests = [await _read_request(reader) for _ in range(50)]
        for request in reversed(requests):
            name = METADATA.request.decode(request.body).table_path[0].table_name
            writer.write(_success(request, _answer_named(name)))
        await reader.read()

    async with _server(reversing) as port, await Channel.connect(LOCALHOST, port) as channel:
        answers = await asyncio.gather(
            *(channel.request(METADATA, _metadata_named(str(n)), timeout_s=120) for n in range(50))
        )
        assert [answer.tablet_servers[0].host for answer in answers] == [str(n) for n in range(50)]
        assert channel.in_flight_count == 0


async def test_a_timeout_names_what_was_waited_for_and_the_late_answer_is_dropped():
    async def late_once(reader, writer):
        first = await _read_request(reader)
        second = await _read_request(reader)
        writer.write(_success(first, _answer_named("late")))
        writer.write(_success(second, _answer_named("in time")))
        await reader.read()

    async with _server(late_once) as port, await Channel.connect(LOCALHOST, port) as channel:
        with pytest.raises(RequestTimeoutError) as raised:
            await channel.request(METADATA, pb.MetadataRequest(), timeout_s=0.05)
        assert raised.value.error_code == 25
        assert raised.value.message == (f"GET_METADATA timed out: no answer to it from 127.0.0.1:{port} within 0.05 s")
        assert (channel.in_flight_count, channel._session.pending_count) == (0, 0)
        answer = await channel.request(METADATA, pb.MetadataRequest(), timeout_s=120)
        assert answer.tablet_servers[0].host == "in time"


async def test_a_cancelled_request_is_forgotten_and_the_channel_goes_on():
    release = asyncio.Event()
    begun = []

    async def wait(context, request):
        begun.append(request)
        await release.wait()
        return pb.MetadataResponse()

    async with (
        Listener(ListenerSettings(), {ApiKey.GET_METADATA: wait}) as listener,
        await Channel.connect(LOCALHOST, listener.port) as channel,
    ):
        tasks = [asyncio.create_task(channel.request(METADATA, pb.MetadataRequest(), timeout_s=120)) for _ in range(10)]
        await eventually_async(lambda: len(begun) == 10)
        for task in tasks[::2]:
            task.cancel()
        release.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError, pb.MetadataResponse] * 5
        assert channel.in_flight_count == 0
        await channel.request(METADATA, pb.MetadataRequest(), timeout_s=120)


@pytest.mark.parametrize("sent_bytes", [0, 3, 7, 20])
async def test_a_server_that_dies_in_the_middle_of_a_frame_fails_every_request(sent_bytes):
    async def dying(reader, writer):
        request = await _read_request(reader)
        await _read_request(reader)
        writer.write(_success(request, _answer_named("x" * 100))[:sent_bytes])

    async with _server(dying) as port:
        channel = await Channel.connect(LOCALHOST, port)
        tasks = [asyncio.create_task(channel.request(METADATA, pb.MetadataRequest(), timeout_s=120)) for _ in range(2)]
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [NetworkError, NetworkError]
        assert errors[0] is not errors[1]
        assert f"127.0.0.1:{port} was closed" in str(errors[0])
        assert not channel.is_open
        with pytest.raises(NetworkError):
            await channel.request(METADATA, pb.MetadataRequest(), timeout_s=120)
        await channel.close()


async def test_a_server_failure_fails_every_request_with_its_code():
    async def failing(reader, writer):
        await _read_request(reader)
        writer.write(
            b"".join(frames.failure_frame(pb.ErrorResponse(error_code=26, error_message="disk").SerializeToString()))
        )
        await reader.read()

    async with _server(failing) as port:
        channel = await Channel.connect(LOCALHOST, port)
        with pytest.raises(FlussError, match="disk") as raised:
            await channel.request(METADATA, pb.MetadataRequest(), timeout_s=120)
        assert raised.value.error_code == 26
        with pytest.raises(FlussError, match="disk"):
            await channel.request(METADATA, pb.MetadataRequest(), timeout_s=120)
        await channel.close()


@pytest.mark.parametrize("nonsense", [struct.pack(">i", -3), struct.pack(">ib", 5, 9) + bytes(4), b"\x7f" * 8])
async def test_nonsense_from_the_server_ends_the_connection(nonsense):
    async def babbling(reader, writer):
        await _read_request(reader)
        writer.write(nonsense)
        await reader.read()

    settings = ChannelSettings(response_frame_bytes_max=100 * MIB)
    async with _server(babbling) as port:
        channel = await Channel.connect(LOCALHOST, port, settings=settings)
        with pytest.raises(NetworkError, match="given up"):
            await channel.request(METADATA, pb.MetadataRequest(), timeout_s=120)
        assert not channel.is_open
        await channel.close()


async def test_an_undecodable_answer_fails_its_request_only():
    async def confused(reader, writer):
        writer.write(b"".join(frames.success_frame((await _read_request(reader)).request_id, [b"\xff\xff"])))
        writer.write(_success(await _read_request(reader), _answer_named("fine")))
        await reader.read()

    async with _server(confused) as port, await Channel.connect(LOCALHOST, port) as channel:
        with pytest.raises(CorruptMessageError):
            await channel.request(METADATA, pb.MetadataRequest(), timeout_s=120)
        assert (await channel.request(METADATA, pb.MetadataRequest(), timeout_s=120)).tablet_servers[0].host == "fine"


async def test_closing_fails_what_waits_and_may_be_repeated():
    async def silent(reader, writer):
        await reader.read()

    async with _server(silent) as port:
        channel = await Channel.connect(LOCALHOST, port)
        task = asyncio.create_task(channel.request(METADATA, pb.MetadataRequest(), timeout_s=120))
        await asyncio.sleep(0)
        await asyncio.gather(channel.close(), channel.close())
        await channel.close()
        with pytest.raises(NetworkError, match="closed by this side"):
            await task
        with pytest.raises(NetworkError, match="closed by this side"):
            await channel.request(METADATA, pb.MetadataRequest(), timeout_s=120)
        assert "closed" in repr(channel)


# Connecting


async def test_a_port_without_a_listener_is_a_network_error():
    with socket.create_server((LOCALHOST, 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(NetworkError, match=f"no connection to 127.0.0.1:{port}") as raised:
        await Channel.connect(LOCALHOST, port)
    assert raised.value.is_retriable
    with pytest.raises(NetworkError, match="no connection to"):
        await Channel.connect("x" * 300, 1)


async def test_a_server_that_accepts_and_says_nothing_is_given_up():
    async def silent(reader, writer):
        await reader.read()

    settings = ChannelSettings(handshake_timeout_s=0.05)
    async with _server(silent, handshake=False) as port:
        with pytest.raises(RequestTimeoutError, match=r"has said nothing for 0\.05 s"):
            await Channel.connect(LOCALHOST, port, settings=settings)


async def test_a_connection_that_cannot_be_made_in_time_is_given_up():
    # A full backlog that is not accepted from: further connections stay half open.
    with socket.socket() as full, contextlib.ExitStack() as fillers:
        full.bind((LOCALHOST, 0))
        full.listen(0)
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        settings = ChannelSettings(connect_timeout_s=0.1)
        with pytest.raises(NetworkError, match=r"within 0\.1 s"):
            await Channel.connect(LOCALHOST, full.getsockname()[1], settings=settings)


async def test_localhost_is_reached_by_name():
    async with (
        Listener(ListenerSettings(), {}) as listener,
        await Channel.connect("localhost", listener.port) as channel,
    ):
        assert channel.is_open


@pytest.mark.parametrize(
    ("announced", "expected", "is_accepted"),
    [
        (ServerRole.COORDINATOR, ServerRole.COORDINATOR, True),
        (ServerRole.TABLET_SERVER, None, True),
        (None, ServerRole.COORDINATOR, True),
        (ServerRole.TABLET_SERVER, ServerRole.COORDINATOR, False),
    ],
)
async def test_a_server_of_another_type_than_expected_is_refused(announced, expected, is_accepted):
    async with Listener(ListenerSettings(server_type=announced), {}) as listener:
        if is_accepted:
            async with await Channel.connect(LOCALHOST, listener.port, expected_server_type=expected) as channel:
                assert channel.server_type is announced
        else:
            with pytest.raises(NetworkError, match="is a tablet server, not a coordinator") as raised:
                await Channel.connect(LOCALHOST, listener.port, expected_server_type=expected)
            assert raised.value.stale_metadata


async def test_an_api_the_server_does_not_announce_is_not_sent():
    async with Listener(ListenerSettings(), {}) as listener, await Channel.connect(LOCALHOST, listener.port) as channel:
        with pytest.raises(UnsupportedVersionError, match="GET_METADATA"):
            await channel.request(METADATA, pb.MetadataRequest(), timeout_s=120)
        assert channel.in_flight_count == 0
        assert channel.is_open


async def test_a_temporarily_failing_authentication_is_repeated_after_growing_pauses():
    attempts, pauses = [], []

    def check(username, password):
        attempts.append(username)
        if len(attempts) <= 4:
            raise FlussError("the directory is down", 51)
        return True

    async def sleep(delay_s):
        pauses.append(delay_s)

    async with Listener(ListenerSettings(check_credentials=check), {}) as listener:
        channel = await Channel.connect(
            LOCALHOST, listener.port, credentials=Credentials("bob", "pw"), rng=random.Random(1), sleep=sleep
        )
        await channel.close()
    assert attempts == ["bob"] * 5
    for pause, planned in zip(pauses, [0.1, 0.2, 0.4, 0.8], strict=True):
        assert planned * 0.8 <= pause <= planned * 1.2


async def test_a_challenge_is_answered_with_a_second_round():
    tokens = []

    async def challenging(reader, writer):
        for challenge in (b"more", b""):
            request = await _read_request(reader)
            tokens.append(apis.AUTHENTICATE.request.decode(request.body).token)
            writer.write(_success(request, pb.AuthenticateResponse(challenge=challenge)))
        await reader.read()

    async with _server(challenging) as port:
        channel = await Channel.connect(LOCALHOST, port, credentials=Credentials("bob", "pw"))
        await channel.close()
    assert tokens == [b"\0bob\0pw", b"more"]


async def test_small_requests_are_not_delayed_by_the_system():
    async with Listener(ListenerSettings(), {}) as listener, await Channel.connect(LOCALHOST, listener.port) as channel:
        connection = channel._transport.get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


# Limits


async def test_above_the_limit_requests_wait_and_are_sent_in_their_order():
    seen = []

    async def one_by_one(reader, writer):
        for _ in range(20):
            request = await _read_request(reader)
            seen.append(METADATA.request.decode(request.body).table_path[0].table_name)
            await asyncio.sleep(0)
            writer.write(_success(request, pb.MetadataResponse()))
        await reader.read()

    settings = ChannelSettings(in_flight_requests_max=3)
    async with _server(one_by_one) as port, await Channel.connect(LOCALHOST, port, settings=settings) as channel:
        tasks = [
            asyncio.create_task(channel.request(METADATA, _metadata_named(str(n)), timeout_s=120)) for n in range(21)
        ]
        await asyncio.sleep(0)
        assert channel.in_flight_count == 3
        # One of those that wait is cancelled: it is never sent, and nothing of it is kept.
        tasks.pop(10).cancel()
        await asyncio.sleep(0)
        assert len(channel._waiting) == 17
        await asyncio.gather(*tasks)
    assert seen == [str(n) for n in range(21) if n != 10]


async def test_a_newcomer_does_not_overtake_those_that_wait(scripted_transport):
    channel = Channel("server:1", ChannelSettings(unsent_bytes_max=1000))
    transport = scripted_transport(channel._protocol)
    channel._connected(transport)
    transport.unsent_bytes = 1000
    tasks = [asyncio.create_task(channel.request(METADATA, _metadata_named("first"), timeout_s=120))]
    await asyncio.sleep(0)
    # The socket takes bytes without telling; only a drained transport reports.
    transport.unsent_bytes = 500
    tasks.append(asyncio.create_task(channel.request(METADATA, _metadata_named("second"), timeout_s=120)))
    await asyncio.sleep(0)
    assert transport.written == []
    channel._protocol.resume_writing()
    await asyncio.sleep(0)
    sent = b"".join(transport.written)
    assert 0 < sent.index(b"first") < sent.index(b"second")
    await channel.close()
    assert all(isinstance(error, NetworkError) for error in await asyncio.gather(*tasks, return_exceptions=True))


async def test_waiting_for_room_counts_towards_the_timeout():
    async def silent(reader, writer):
        await reader.read()

    settings = ChannelSettings(in_flight_requests_max=1)
    async with _server(silent) as port, await Channel.connect(LOCALHOST, port, settings=settings) as channel:
        first = asyncio.create_task(channel.request(METADATA, pb.MetadataRequest(), timeout_s=120))
        await asyncio.sleep(0)
        with pytest.raises(RequestTimeoutError, match="no room to send it"):
            await channel.request(METADATA, pb.MetadataRequest(), timeout_s=0.05)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_a_server_that_does_not_read_holds_requests_back_on_this_side():
    release = asyncio.Event()

    async def reading_late(reader, writer):
        await release.wait()
        for _ in range(30):
            writer.write(_success(await _read_request(reader), pb.ProduceLogResponse()))
        await reader.read()

    request = bulk_messages.ProduceLogRequest(1, 1, 1, [bulk_messages.BucketRecords(0, bytes(1 * MIB))])
    settings = ChannelSettings(unsent_bytes_max=3 * MIB)
    async with _server(reading_late) as port, await Channel.connect(LOCALHOST, port, settings=settings) as channel:
        tasks = [asyncio.create_task(channel.request(apis.PRODUCE_LOG, request, timeout_s=120)) for _ in range(30)]
        await eventually_async(lambda: channel.in_flight_count >= 3)
        await asyncio.sleep(0.05)
        assert 3 <= channel.in_flight_count < 25
        release.set()
        await asyncio.gather(*tasks)


async def test_a_large_payload_is_sent_without_being_copied():
    async def swallow(connection: socket.socket, byte_count: int) -> None:
        loop = asyncio.get_running_loop()
        target = memoryview(bytearray(256 * 1024))
        while byte_count > 0:
            byte_count -= await loop.sock_recv_into(connection, target[: min(byte_count, len(target))])

    loop = asyncio.get_running_loop()
    payload = bytes(32 * MIB)
    with socket.create_server((LOCALHOST, 0)) as server:
        server.setblocking(False)
        connecting = asyncio.create_task(Channel.connect(LOCALHOST, server.getsockname()[1]))
        connection, _ = await loop.sock_accept(server)
        with connection:
            connection.setblocking(False)
            # The handshake: the size of our own ApiVersions request is in its first four bytes.
            (length,) = struct.unpack(">i", await loop.sock_recv(connection, 4))
            await swallow(connection, length)
            await loop.sock_sendall(
                connection, b"".join(frames.success_frame(0, [_api_versions().SerializeToString()]))
            )
            channel = await connecting
            tracemalloc.start()
            request = bulk_messages.ProduceLogRequest(1, 1, 1, [bulk_messages.BucketRecords(0, payload)])
            task = asyncio.create_task(channel.request(apis.PRODUCE_LOG, request, timeout_s=120))
            await swallow(connection, 32 * MIB)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await channel.close()
    assert peak < 2 * MIB
