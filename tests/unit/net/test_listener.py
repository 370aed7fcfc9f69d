"""A listener answers what it should, in time, within its limits, and survives whatever clients do.

Real sockets on the loopback, on both event loops; hostile clients write bytes by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import socket
import struct

import pytest

from fluss.errors import AuthenticationError, FlussError, NetworkError
from fluss.net.admission import Admission
from fluss.net.burst_log import BurstLog
from fluss.net.channel import Channel
from fluss.net.limits import ByteBudget
from fluss.net.listener import Answer, Listener, ListenerSettings, RequestContext
from fluss.net.listener_state import Shared
from fluss.net.login_throttle import LoginThrottle
from fluss.net.quotas import Quotas
from fluss.net.server_connection import ServerConnection
from fluss.net.transport import new_event_loop
from fluss.net.transport import run as run_on_default_loop
from fluss.protocol import api as apis
from fluss.protocol import bulk_messages
from fluss.protocol import frame as frames
from fluss.protocol.api import ApiKey, ServerRole
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials, UserTable
from fluss.testing.waiting import eventually_async

MIB = 1024 * 1024
LOCALHOST = "127.0.0.1"


def _table_request(name: str) -> pb.TableExistsRequest:
    return pb.TableExistsRequest(table_path=pb.PbTablePath(database_name="d", table_name=name))


def _exists(context: RequestContext, request: pb.TableExistsRequest) -> pb.TableExistsResponse:
    return pb.TableExistsResponse(exists=request.table_path.table_name == "t")


PLAIN_HANDLERS = {ApiKey.TABLE_EXISTS: _exists}


def _request_bytes(api, message, request_id: int = 0) -> bytes:
    return b"".join(frames.request_frame(api.key, 0, request_id, api.request.encode(message)))


async def _read_response(reader: asyncio.StreamReader) -> frames.ResponseFrame:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return frames.parse_response(memoryview(await reader.readexactly(length)))


async def _connect(listener: Listener, **options) -> Channel:
    return await Channel.connect(LOCALHOST, listener.port, **options)


@contextlib.asynccontextmanager
async def _raw_connection(listener: Listener):
    reader, writer = await asyncio.open_connection(LOCALHOST, listener.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def _steady(value):
    """Wait until a value has not changed for a while and for many turns of the loop, and return it."""
    found, turns = value(), 0
    while turns < 100:
        await asyncio.sleep(0.001)
        turns = turns + 1 if value() == found else 0
        found = value()
    return found


# Answers


async def test_a_thousand_pipelined_requests_are_all_answered():
    async with Listener(ListenerSettings(), PLAIN_HANDLERS) as listener, await _connect(listener) as channel:
        answers = await asyncio.gather(
            *(
                channel.request(apis.TABLE_EXISTS, _table_request("t" if n % 3 else "x"), timeout_s=120)
                for n in range(1000)
            )
        )
        assert [answer.exists for answer in answers] == [n % 3 != 0 for n in range(1000)]


async def test_answers_overtake_each_other():
    gates = {name: asyncio.Event() for name in "abc"}

    async def wait(context, request):
        await gates[request.table_path.table_name].wait()
        return pb.TableExistsResponse(exists=True)

    async with (
        Listener(ListenerSettings(), {ApiKey.TABLE_EXISTS: wait}) as listener,
        await _connect(listener) as channel,
    ):
        finished = []

        async def ask(name):
            await channel.request(apis.TABLE_EXISTS, _table_request(name), timeout_s=120)
            finished.append(name)

        tasks = [asyncio.create_task(ask(name)) for name in "abc"]
        for name in "cab":
            gates[name].set()
            await eventually_async(lambda name=name: name in finished)
        await asyncio.gather(*tasks)
        assert finished == ["c", "a", "b"]


async def test_a_waiting_request_does_not_hold_up_later_ones():
    data_arrived = asyncio.Event()

    async def fetch(context, request):
        await data_arrived.wait()
        return bulk_messages.FetchLogResponse()

    handlers = {ApiKey.FETCH_LOG: fetch, ApiKey.TABLE_EXISTS: _exists}
    async with Listener(ListenerSettings(), handlers) as listener, await _connect(listener) as channel:
        long_poll = asyncio.create_task(
            channel.request(apis.FETCH_LOG, pb.FetchLogRequest(follower_server_id=-1, max_bytes=1), timeout_s=120)
        )
        for _ in range(20):
            assert (await channel.request(apis.TABLE_EXISTS, _table_request("t"), timeout_s=120)).exists
        assert not long_poll.done()
        data_arrived.set()
        assert await long_poll == bulk_messages.FetchLogResponse()


async def test_handlers_are_started_in_the_order_of_arrival_whatever_their_kind():
    started = []

    def plain(context, request):
        started.append(request.table_path.table_name)
        return pb.TableExistsResponse(exists=True)

    async def asynchronous(context, request):
        started.append(request.table_path.table_name)
        await asyncio.sleep(0)
        return pb.GetTableInfoResponse(table_id=1, schema_id=1, table_json=b"", created_time=0, modified_time=0)

    def plain_then_waiting(context, request):
        started.append(request.table_path.table_name)

        async def rest():
            await asyncio.sleep(0)
            return pb.GetTableSchemaResponse(schema_id=1, schema_json=b"")

        return rest()

    handlers = {
        ApiKey.TABLE_EXISTS: plain,
        ApiKey.GET_TABLE_INFO: asynchronous,
        ApiKey.GET_TABLE_SCHEMA: plain_then_waiting,
    }
    kinds = (
        (apis.TABLE_EXISTS, pb.TableExistsRequest),
        (apis.GET_TABLE_INFO, pb.GetTableInfoRequest),
        (apis.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest),
    )
    async with Listener(ListenerSettings(), handlers) as listener, await _connect(listener) as channel:
        names = [str(n) for n in range(60)]
        await asyncio.gather(
            *(
                channel.request(
                    kinds[n % 7 % 3][0],
                    kinds[n % 7 % 3][1](table_path=pb.PbTablePath(database_name="d", table_name=name)),
                    timeout_s=120,
                )
                for n, name in enumerate(names)
            )
        )
        assert started == names


async def test_a_handler_learns_where_a_request_comes_from():
    contexts = []

    def remember(context, request):
        contexts.append(context)
        return bulk_messages.LimitScanResponse()

    def remember_put(context, request):
        contexts.append(context)
        return pb.PutKvResponse()

    settings = ListenerSettings(name="CLIENT", check_credentials=UserTable({"bob": "pw"}))
    handlers = {ApiKey.LIMIT_SCAN: remember, ApiKey.PUT_KV: remember_put}
    async with (
        Listener(settings, handlers) as listener,
        await _connect(listener, credentials=Credentials("bob", "pw")) as channel,
    ):
        await channel.request(apis.LIMIT_SCAN, pb.LimitScanRequest(table_id=1, bucket_id=0, limit=1), timeout_s=120)
        await channel.request(apis.PUT_KV, bulk_messages.PutKvRequest(-1, 1, 1), timeout_s=120)
    scan, put = contexts
    assert (str(scan.principal), scan.listener_name, scan.api_version) == ("User:bob", "CLIENT", 0)
    assert scan.peer_address.startswith("127.0.0.1:")
    assert (put.api_key, put.api_version) == (ApiKey.PUT_KV, 2)


async def test_bulk_payloads_travel_in_both_directions():
    payload = bytes(range(256)) * (5 * MIB // 256)

    def produce(context, request):
        assert [len(bucket.records_view) for bucket in request.buckets] == [5 * MIB, 0]
        assert request.buckets[0].records_view == payload
        return pb.ProduceLogResponse()

    def fetch(context, request):
        pieces = (memoryview(payload)[:100], memoryview(payload)[100:])
        bucket = bulk_messages.FetchedBucket(0, high_watermark=9, records=pieces)
        return bulk_messages.FetchLogResponse([bulk_messages.FetchedTable(7, [bucket])])

    handlers = {ApiKey.PRODUCE_LOG: produce, ApiKey.FETCH_LOG: fetch}
    async with Listener(ListenerSettings(), handlers) as listener, await _connect(listener) as channel:
        buckets = [bulk_messages.BucketRecords(0, payload), bulk_messages.BucketRecords(1, b"")]
        await asyncio.gather(
            *(
                channel.request(apis.PRODUCE_LOG, bulk_messages.ProduceLogRequest(-1, 7, 1, buckets), timeout_s=120)
                for _ in range(4)
            )
        )
        request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1)
        answer = await channel.request(apis.FETCH_LOG, request, timeout_s=120)
        assert answer.tables[0].buckets[0].records_view == payload


# Errors


async def test_errors_of_handlers_reach_the_client_and_the_connection_survives(caplog):
    with caplog.at_level(logging.ERROR):

        def handle(context, request):
            name = request.table_path.table_name
            if name == "missing":
                raise FlussError("Table d.missing does not exist.", 7)
            if name == "bug":
                raise RuntimeError("password=hunter2")
            return "not a message"

        async def handle_later(context, request):
            await asyncio.sleep(0)
            if request.table_path.table_name == "cancelled":
                raise asyncio.CancelledError
            return handle(context, request)

        handlers = {ApiKey.TABLE_EXISTS: handle, ApiKey.GET_TABLE_INFO: handle_later}
        async with Listener(ListenerSettings(), handlers) as listener, await _connect(listener) as channel:
            for api, request_type in (
                (apis.TABLE_EXISTS, pb.TableExistsRequest),
                (apis.GET_TABLE_INFO, pb.GetTableInfoRequest),
            ):
                for name, code, text in (
                    ("missing", 7, "Table d.missing does not exist."),
                    ("bug", -1, f"{api.name} failed inside the server (RuntimeError); its log has the details"),
                    ("wrong", -1, f"{api.name} failed inside the server (TypeError); its log has the details"),
                ):
                    path = pb.PbTablePath(database_name="d", table_name=name)
                    with pytest.raises(FlussError) as raised:
                        await channel.request(api, request_type(table_path=path), timeout_s=120)
                    assert (raised.value.error_code, raised.value.message) == (code, text)
            path = pb.PbTablePath(database_name="d", table_name="cancelled")
            with pytest.raises(FlussError, match="CancelledError"):
                await channel.request(apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path), timeout_s=120)
            assert channel.is_open
    assert [record.exc_info is not None for record in caplog.records] == [True] * 5
    assert "RuntimeError" in caplog.text


async def test_unknown_apis_and_undecodable_bodies_are_answered_and_the_connection_survives():
    async with Listener(ListenerSettings(), PLAIN_HANDLERS) as listener, _raw_connection(listener) as (reader, writer):
        for data, code in (
            (b"".join(frames.request_frame(1005, 0, 1, [])), 2),
            (b"".join(frames.request_frame(77, 0, 1, [])), 2),
            (b"".join(frames.request_frame(ApiKey.TABLE_EXISTS, 0, 1, [b"\xff"])), 3),
            (b"".join(frames.request_frame(ApiKey.TABLE_EXISTS, 0, 1, [])), 3),
        ):
            writer.write(data)
            response = await _read_response(reader)
            assert (response.response_type, response.request_id) == (frames.ResponseType.ERROR, 1)
            assert pb.ErrorResponse.FromString(bytes(response.body)).error_code == code
        writer.write(_request_bytes(apis.TABLE_EXISTS, _table_request("t"), 9))
        response = await _read_response(reader)
        assert (response.response_type, response.request_id) == (frames.ResponseType.SUCCESS, 9)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (struct.pack(">i", 2 * MIB) + bytes(1 * MIB), "more than the limit"),
        (struct.pack(">i", -1) + bytes(100), "fewer than the 8"),
        (struct.pack(">i", 7) + bytes(7), "fewer than the 8"),
    ],
    ids=["oversized", "negative", "short"],
)
async def test_a_bad_frame_is_answered_with_a_server_failure_and_a_closed_connection(data, text):
    settings = ListenerSettings(frame_bytes_max=1 * MIB)
    async with Listener(settings, PLAIN_HANDLERS) as listener:
        async with _raw_connection(listener) as (reader, writer):
            writer.write(_request_bytes(apis.TABLE_EXISTS, _table_request("t")) + data)
            responses = [await _read_response(reader)]
            if responses[0].response_type is frames.ResponseType.SUCCESS:
                responses.append(await _read_response(reader))
            assert responses[-1].response_type is frames.ResponseType.SERVER_FAILURE
            error = pb.ErrorResponse.FromString(bytes(responses[-1].body))
            assert error.error_code == -1
            assert text in error.error_message
            assert await reader.read() == b""
        await eventually_async(lambda: listener.connection_count == 0)
        async with await _connect(listener) as channel:
            assert (await channel.request(apis.TABLE_EXISTS, _table_request("t"), timeout_s=120)).exists


async def test_a_client_that_dies_in_the_middle_of_a_frame_leaves_nothing_behind():
    async with Listener(ListenerSettings(), PLAIN_HANDLERS) as listener:
        for size in (2, 20, 100_000):
            async with _raw_connection(listener) as (_, writer):
                writer.write((struct.pack(">i", 5 * MIB) + bytes(size))[:size])
                await writer.drain()
                await eventually_async(lambda: listener.connection_count == 1)
            await eventually_async(lambda: listener.connection_count == 0)


async def test_waiting_handlers_are_cancelled_when_their_client_leaves():
    outcomes = []

    begun = []

    async def wait(context, request):
        begun.append(request)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            outcomes.append(request.table_path.table_name)
            raise

    async with Listener(ListenerSettings(), {ApiKey.TABLE_EXISTS: wait}) as listener:
        async with _raw_connection(listener) as (_, writer):
            for n in range(3):
                writer.write(_request_bytes(apis.TABLE_EXISTS, _table_request(str(n)), n))
            await writer.drain()
            await eventually_async(lambda: len(begun) == 3)
        await eventually_async(lambda: len(outcomes) == 3)
        assert sorted(outcomes) == ["0", "1", "2"]


async def test_a_handler_that_never_began_is_put_away_without_a_trace(scripted_transport):
    begun = []

    async def handle(context, request):
        begun.append(request)

    clock = asyncio.get_running_loop().time
    shared = Shared(
        {ApiKey.TABLE_EXISTS: handle},
        {ApiKey.TABLE_EXISTS: apis.TABLE_EXISTS},
        arriving_memory=ByteBudget(MIB),
        request_memory=ByteBudget(MIB),
        answer_memory=ByteBudget(MIB),
        throttle=LoginThrottle(clock),
        clock=clock,
        admission=Admission(1000),
        quotas=Quotas(clock),
        bursts=BurstLog(logging.getLogger()),
    )
    connection = ServerConnection(ListenerSettings(), shared, lambda connection: None, lambda connection: None)
    connection.connection_made(scripted_transport())
    data = _request_bytes(apis.TABLE_EXISTS, _table_request("t")) * 3
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))
    # The client is gone before the first handler took its first step: a coroutine that is never awaited would warn.
    connection.connection_lost(None)
    await eventually_async(lambda: connection.tasks == frozenset())
    assert begun == []
    assert shared.request_memory.used_bytes == 0


# Limits


async def test_no_more_requests_are_started_than_allowed_and_all_are_answered():
    release = asyncio.Event()
    running, most = 0, 0

    async def count(context, request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return pb.TableExistsResponse(exists=True)

    settings = ListenerSettings(in_flight_requests_max=5)
    async with Listener(settings, {ApiKey.TABLE_EXISTS: count}) as listener, await _connect(listener) as channel:
        tasks = [
            asyncio.create_task(channel.request(apis.TABLE_EXISTS, _table_request("t"), timeout_s=120))
            for _ in range(60)
        ]
        await eventually_async(lambda: running == 5)
        await asyncio.sleep(0.02)
        release.set()
        await asyncio.gather(*tasks)
        assert (running, most) == (0, 5)


async def test_at_the_request_limit_the_socket_is_no_longer_read():
    release = asyncio.Event()

    async def wait(context, request):
        await release.wait()
        return pb.ProduceLogResponse()

    settings = ListenerSettings(in_flight_requests_max=3)
    async with (
        Listener(settings, {ApiKey.PRODUCE_LOG: wait}) as listener,
        _raw_connection(listener) as (reader, writer),
    ):
        request = bulk_messages.ProduceLogRequest(1, 1, 1, [bulk_messages.BucketRecords(0, bytes(1 * MIB))])
        data = _request_bytes(apis.PRODUCE_LOG, request)
        for _ in range(40):
            writer.write(data)
        # The system's buffers take a few of these; the rest stays with the client.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await writer.drain()
        assert writer.transport.get_write_buffer_size() > 10 * MIB
        release.set()
        for _ in range(40):
            assert (await _read_response(reader)).response_type is frames.ResponseType.SUCCESS


async def test_the_memory_of_requests_is_bounded_over_all_connections():
    release = asyncio.Event()
    started = []

    async def wait(context, request):
        started.append(context.peer_address)
        await release.wait()
        return pb.ProduceLogResponse()

    settings = ListenerSettings(in_flight_bytes_max=1 * MIB)
    async with (
        Listener(settings, {ApiKey.PRODUCE_LOG: wait}) as listener,
        await _connect(listener) as first,
        await _connect(listener) as second,
    ):
        large = bulk_messages.ProduceLogRequest(1, 1, 1, [bulk_messages.BucketRecords(0, bytes(2 * MIB))])
        tasks = [asyncio.create_task(first.request(apis.PRODUCE_LOG, large, timeout_s=120))]
        await eventually_async(lambda: len(started) == 1)
        tasks += [
            asyncio.create_task(channel.request(apis.PRODUCE_LOG, large, timeout_s=120))
            for channel in (second, first, second)
        ]
        await asyncio.sleep(0.05)
        assert len(started) == 1, "the first request alone is above the limit"
        release.set()
        await asyncio.gather(*tasks)
        assert len(started) == 4


async def test_a_client_that_does_not_read_is_paused_and_then_disconnected():
    served = 0

    def fetch(context, request):
        nonlocal served
        served += 1
        bucket = bulk_messages.FetchedBucket(0, high_watermark=1, records=bytes(1 * MIB))
        return bulk_messages.FetchLogResponse([bulk_messages.FetchedTable(1, [bucket])])

    now = 1000.0
    settings = ListenerSettings(unsent_bytes_max=2 * MIB, stalled_timeout_s=0.15)
    async with Listener(settings, {ApiKey.FETCH_LOG: fetch}, clock=lambda: now) as listener:
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            client.setblocking(False)
            await loop.sock_connect(client, (LOCALHOST, listener.port))
            request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1)
            await loop.sock_sendall(client, _request_bytes(apis.FETCH_LOG, request) * 200)
            await eventually_async(lambda: served > 0)
            paused_at = await _steady(lambda: served)
            now += 1.0
            assert paused_at < 30, "answers pile up for a client that does not read them"
            await eventually_async(lambda: listener.connection_count == 0)
            assert served == paused_at


async def test_a_handler_learns_when_its_answer_has_left_or_never_will():
    sent = []
    bucket = bulk_messages.FetchedBucket(0, high_watermark=1, records=bytes(32 * MIB))
    responses = {
        1: bulk_messages.FetchLogResponse(),
        2: "not a message",
        3: bulk_messages.FetchLogResponse([bulk_messages.FetchedTable(1, [bucket])]),
    }

    def fetch(context, request):
        return Answer(responses[request.max_bytes], lambda: sent.append(request.max_bytes))

    def request(number):
        return pb.FetchLogRequest(follower_server_id=-1, max_bytes=number)

    async with Listener(ListenerSettings(), {ApiKey.FETCH_LOG: fetch}) as listener:
        async with await _connect(listener) as channel:
            await channel.request(apis.FETCH_LOG, request(1), timeout_s=120)
            with pytest.raises(FlussError, match="failed inside the server"):
                await channel.request(apis.FETCH_LOG, request(2), timeout_s=120)
        assert sent == [1, 2]
        with socket.socket() as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, (LOCALHOST, listener.port))
            await loop.sock_sendall(client, _request_bytes(apis.FETCH_LOG, request(3)))
            await loop.sock_recv(client, 1)
            assert sent == [1, 2], "most of the answer is still here"
        await eventually_async(lambda: listener.connection_count == 0)
        assert sent == [1, 2, 3]


async def test_a_slow_but_steady_reader_gets_everything():
    def fetch(context, request):
        bucket = bulk_messages.FetchedBucket(0, high_watermark=1, records=bytes(1 * MIB))
        return bulk_messages.FetchLogResponse([bulk_messages.FetchedTable(1, [bucket])])

    now = 1000.0
    settings = ListenerSettings(unsent_bytes_max=2 * MIB, stalled_timeout_s=0.2)
    async with (
        Listener(settings, {ApiKey.FETCH_LOG: fetch}, clock=lambda: now) as listener,
        _raw_connection(listener) as (reader, writer),
    ):
        writer.write(_request_bytes(apis.FETCH_LOG, pb.FetchLogRequest(follower_server_id=-1, max_bytes=1)) * 20)
        for _ in range(20):
            await asyncio.sleep(0.02)
            now += 0.15
            assert len((await _read_response(reader)).body) > 1 * MIB


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not():
    now, looked_at_count = 1000.0, 0

    def clock():
        nonlocal looked_at_count
        looked_at_count += 1
        return now

    async def both_are_checked():
        """Wait until each connection was checked at the present time: without traffic nothing else asks for it."""
        count = looked_at_count
        await eventually_async(lambda: looked_at_count >= count + 4)

    listener = Listener(ListenerSettings(idle_timeout_s=600.0, stalled_timeout_s=0.04), PLAIN_HANDLERS, clock=clock)
    async with listener, await _connect(listener) as idle, await _connect(listener) as busy:
        await both_are_checked()
        now += 599.0
        await both_are_checked()
        await busy.request(apis.TABLE_EXISTS, _table_request("t"), timeout_s=120)
        await both_are_checked()
        assert idle.is_open
        now += 2.0
        await eventually_async(lambda: not idle.is_open)
        assert busy.is_open
        with pytest.raises(NetworkError):
            await idle.request(apis.TABLE_EXISTS, _table_request("t"), timeout_s=120)


async def test_clients_above_the_limit_are_told_so():
    async with Listener(ListenerSettings(connections_max=2), PLAIN_HANDLERS) as listener:
        async with await _connect(listener) as first, await _connect(listener):
            with pytest.raises(NetworkError, match="limit of 2 connections"):
                await _connect(listener)
            assert (await first.request(apis.TABLE_EXISTS, _table_request("t"), timeout_s=120)).exists
        await eventually_async(lambda: listener.connection_count == 0)
        async with await _connect(listener):
            assert listener.connection_count == 1


# Authentication


async def test_right_wrong_and_missing_credentials():
    settings = ListenerSettings(check_credentials=UserTable({"bob": "pw"}))
    async with Listener(settings, PLAIN_HANDLERS) as listener:
        async with await _connect(listener, credentials=Credentials("bob", "pw")) as channel:
            assert (await channel.request(apis.TABLE_EXISTS, _table_request("t"), timeout_s=120)).exists
        for credentials in (Credentials("bob", "PW"), Credentials("eve", "pw")):
            with pytest.raises(AuthenticationError, match="wrong user name or password"):
                await _connect(listener, credentials=credentials)
        async with await _connect(listener) as channel:
            for _ in range(2):
                with pytest.raises(AuthenticationError, match="requires authentication"):
                    await channel.request(apis.TABLE_EXISTS, _table_request("t"), timeout_s=120)


async def test_two_listeners_share_one_table_of_handlers():
    secured = ListenerSettings(name="CLIENT", check_credentials=UserTable({"bob": "pw"}))
    async with (
        Listener(ListenerSettings(name="INTERNAL", server_type=ServerRole.TABLET_SERVER), PLAIN_HANDLERS) as plain,
        Listener(secured, PLAIN_HANDLERS) as sasl,
    ):
        async with await _connect(plain) as channel:
            assert channel.server_type is ServerRole.TABLET_SERVER
            await channel.request(apis.TABLE_EXISTS, _table_request("t"), timeout_s=120)
        with pytest.raises(AuthenticationError, match="takes no credentials"):
            await _connect(plain, credentials=Credentials("bob", "pw"))
        async with await _connect(sasl, credentials=Credentials("bob", "pw")) as channel:
            assert channel.server_type is None
            await channel.request(apis.TABLE_EXISTS, _table_request("t"), timeout_s=120)


async def test_a_broken_credentials_checker_closes_the_connection_and_is_logged(caplog):
    def broken(username, password):
        raise KeyError("users")

    async with Listener(ListenerSettings(check_credentials=broken), PLAIN_HANDLERS) as listener:
        with pytest.raises(NetworkError):
            await _connect(listener, credentials=Credentials("bob", "hunter2"))
    assert "KeyError" in caplog.text
    assert "hunter2" not in caplog.text


# The end


async def test_stopping_lets_received_requests_finish_and_takes_no_new_ones():
    release = asyncio.Event()

    async def wait(context, request):
        begun.append(request)
        await release.wait()
        return pb.TableExistsResponse(exists=True)

    begun = []
    listener = Listener(ListenerSettings(in_flight_requests_max=2), {ApiKey.TABLE_EXISTS: wait})
    await listener.start()
    channel = await _connect(listener)
    # Two are started, the others wait for them on the server.
    tasks = [
        asyncio.create_task(channel.request(apis.TABLE_EXISTS, _table_request("t"), timeout_s=120)) for _ in range(5)
    ]
    await eventually_async(lambda: len(begun) == 2)
    # What the others have sent lies in the socket by now, and the server reads while it waits.
    await asyncio.sleep(0.1)
    stopping = asyncio.create_task(listener.stop(grace_s=120))
    await asyncio.sleep(0.02)
    with pytest.raises(NetworkError):
        await _connect(listener)
    release.set()
    assert [answer.exists for answer in await asyncio.gather(*tasks)] == [True] * 5
    await stopping
    await listener.stop()
    await eventually_async(lambda: not channel.is_open)
    await channel.close()


async def test_stopping_cuts_off_requests_that_take_too_long():
    outcomes = []

    async def wait(context, request):
        outcomes.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            outcomes.append("cleaned up")

    listener = Listener(ListenerSettings(), {ApiKey.TABLE_EXISTS: wait})
    await listener.start()
    channel = await _connect(listener)
    task = asyncio.create_task(channel.request(apis.TABLE_EXISTS, _table_request("t"), timeout_s=120))
    await eventually_async(lambda: outcomes == ["begun"])
    await listener.stop(grace_s=0.05)
    assert outcomes == ["begun", "cleaned up"]
    with pytest.raises(NetworkError):
        await task
    await channel.close()


async def test_stopping_before_starting_and_starting_on_a_taken_port():
    idle = Listener(ListenerSettings(), PLAIN_HANDLERS)
    await idle.stop()
    async with Listener(ListenerSettings(), PLAIN_HANDLERS) as listener:
        taken = Listener(ListenerSettings(port=listener.port), PLAIN_HANDLERS)
        with pytest.raises(FlussError, match=f"cannot listen on 127.0.0.1:{listener.port}"):
            await taken.start()


def test_the_default_loop_is_uvloop_where_it_is_installed():
    expected = "asyncio" if importlib.util.find_spec("uvloop") is None else "uvloop"

    async def kind() -> str:
        return type(asyncio.get_running_loop()).__module__.partition(".")[0]

    assert run_on_default_loop(kind()) == expected
    loop = new_event_loop()
    loop.close()
    assert type(loop).__module__.partition(".")[0] == expected
