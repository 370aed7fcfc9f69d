"""Clients that want more than their share: memory stays within its limits, and others are served all the same.

A real listener on both event loops, raw sockets that send half requests, read no answers, or never stop asking.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time

import pytest

from fluss.net.channel import Channel
from fluss.net.listener import Listener, ListenerSettings
from fluss.protocol import api as apis
from fluss.protocol import bulk_messages
from fluss.protocol import frame as frames
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials, UserTable
from fluss.testing.waiting import eventually_async

MIB = 1024 * 1024
LOCALHOST = "127.0.0.1"
TIMEOUT_S = 120
NO_DATABASES = pb.ListDatabasesRequest()


def _databases(context, request) -> pb.ListDatabasesResponse:
    return pb.ListDatabasesResponse()


async def _produced(context, request) -> pb.ProduceLogResponse:
    return pb.ProduceLogResponse()


HANDLERS = {ApiKey.LIST_DATABASES: _databases, ApiKey.PRODUCE_LOG: _produced}


def _produce(byte_count: int) -> bulk_messages.ProduceLogRequest:
    return bulk_messages.ProduceLogRequest(1, 1, 1, [bulk_messages.BucketRecords(0, bytes(byte_count))])


def _encoded(api, message) -> bytes:
    return b"".join(frames.request_frame(api.key, 0, 0, api.request.encode(message)))


@contextlib.asynccontextmanager
async def _greedy_sockets(listener: Listener, count: int):
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as opened:
        sockets = []
        for _ in range(count):
            client = opened.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            client.setblocking(False)
            await loop.sock_connect(client, (LOCALHOST, listener.port))
            sockets.append(client)
        yield sockets


async def _push(client: socket.socket, data: bytes) -> int:
    """Send until nothing more is taken for a moment and many turns of the loop; return how much was."""
    view, quiet_since, quiet_turns = memoryview(data), time.monotonic(), 0
    while view and (time.monotonic() - quiet_since < 0.1 or quiet_turns < 500):
        quiet_turns += 1
        try:
            sent = client.send(view[: 256 * 1024])
        except BlockingIOError:
            sent = 0
        if sent:
            view, quiet_since, quiet_turns = view[sent:], time.monotonic(), 0
        await asyncio.sleep(0)
    return len(data) - len(view)


def _arriving_bytes(listener: Listener) -> int:
    return listener.shared.arriving_memory.used_bytes


def _unsent_bytes(listener: Listener) -> int:
    return listener.shared.answer_memory.used_bytes


async def test_half_requests_are_held_within_a_limit_and_small_ones_pass():
    settings = ListenerSettings(in_flight_bytes_max=8 * MIB)
    async with Listener(settings, HANDLERS) as listener, _greedy_sockets(listener, 10) as sockets:
        half = _encoded(apis.PRODUCE_LOG, _produce(8 * MIB))[: 4 * MIB]
        for client in sockets:
            await _push(client, half)
        # Half of the limit is for requests that arrive; one of them may go on beyond it, and another one may be
        # what exhausted it.
        assert 4 * MIB <= _arriving_bytes(listener) <= 12 * MIB
        async with await Channel.connect(LOCALHOST, listener.port) as channel:
            await channel.request(apis.LIST_DATABASES, NO_DATABASES, timeout_s=TIMEOUT_S)
            await channel.request(apis.PRODUCE_LOG, _produce(1000), timeout_s=TIMEOUT_S)
        for client in sockets:
            client.close()
        async with await Channel.connect(LOCALHOST, listener.port) as channel:
            await channel.request(apis.PRODUCE_LOG, _produce(8 * MIB), timeout_s=TIMEOUT_S)
        # The loop may hear of some of the closed connections after that of the request.
        await eventually_async(lambda: _arriving_bytes(listener) == 0)


async def test_writers_that_together_exceed_the_limit_all_get_through():
    settings = ListenerSettings(in_flight_bytes_max=2 * MIB)
    async with Listener(settings, HANDLERS) as listener, contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(await Channel.connect(LOCALHOST, listener.port)) for _ in "1234"]
        await asyncio.gather(
            *(
                channel.request(apis.PRODUCE_LOG, _produce(3 * MIB), timeout_s=TIMEOUT_S)
                for channel in channels
                for _ in range(5)
            )
        )
        assert _arriving_bytes(listener) == 0
        assert listener.shared.request_memory.used_bytes == 0


async def test_a_client_that_takes_too_long_to_send_is_cut_off_only_when_memory_is_short():
    now = 1000.0
    settings = ListenerSettings(in_flight_bytes_max=8 * MIB, stalled_timeout_s=0.04)
    listener = Listener(settings, HANDLERS, clock=lambda: now)
    async with listener, _greedy_sockets(listener, 6) as sockets:
        half = _encoded(apis.PRODUCE_LOG, _produce(6 * MIB))[: 3 * MIB]
        await _push(sockets[0], half)
        now += 10.0
        await asyncio.sleep(0.05)
        assert listener.connection_count == 6, "there is memory for all of them"
        for client in sockets[1:]:
            await _push(client, half)
        now += 10.0
        async with asyncio.timeout(TIMEOUT_S):
            while _arriving_bytes(listener):
                await asyncio.sleep(0.01)
                now += 1.0
        async with await Channel.connect(LOCALHOST, listener.port) as channel:
            await channel.request(apis.PRODUCE_LOG, _produce(6 * MIB), timeout_s=TIMEOUT_S)


async def test_answers_that_are_not_taken_are_held_within_a_limit_and_others_are_answered():
    answer = bulk_messages.FetchLogResponse(
        [bulk_messages.FetchedTable(1, [bulk_messages.FetchedBucket(0, high_watermark=1, records=bytes(MIB))])]
    )
    handlers = {ApiKey.FETCH_LOG: lambda context, request: answer, ApiKey.LIST_DATABASES: _databases}
    settings = ListenerSettings(unsent_bytes_max=64 * MIB, unsent_bytes_total_max=8 * MIB)
    async with Listener(settings, handlers) as listener, _greedy_sockets(listener, 10) as sockets:
        fetches = _encoded(apis.FETCH_LOG, pb.FetchLogRequest(follower_server_id=-1, max_bytes=1)) * 50
        for client in sockets:
            await _push(client, fetches)
        # Beyond the limit every client has one answer.
        assert _unsent_bytes(listener) < (8 + 10 + 1) * MIB
        async with await Channel.connect(LOCALHOST, listener.port) as channel:
            fetch = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1)
            for _ in range(3):
                await channel.request(apis.FETCH_LOG, fetch, timeout_s=TIMEOUT_S)
                await channel.request(apis.LIST_DATABASES, NO_DATABASES, timeout_s=TIMEOUT_S)
    assert _unsent_bytes(listener) == 0


@pytest.mark.parametrize("api", [apis.LIST_DATABASES, apis.API_VERSIONS], ids=lambda api: api.name)
async def test_a_client_that_never_stops_asking_does_not_keep_others_waiting(api):
    async with Listener(ListenerSettings(), HANDLERS) as listener, _greedy_sockets(listener, 4) as sockets:
        message = pb.ApiVersionsRequest(client_software_name="", client_software_version="")
        flood = _encoded(api, message if api is apis.API_VERSIONS else NO_DATABASES) * 200_000
        floods = [asyncio.create_task(_push(client, flood)) for client in sockets]
        async with await Channel.connect(LOCALHOST, listener.port) as channel:
            begun = time.monotonic()
            for _ in range(10):
                await channel.request(apis.LIST_DATABASES, NO_DATABASES, timeout_s=TIMEOUT_S)
            assert time.monotonic() - begun < TIMEOUT_S
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)


async def test_what_a_handler_waits_for_does_not_hold_the_encoded_request():
    release = asyncio.Event()

    async def wait(context, request) -> bulk_messages.FetchLogResponse:
        await release.wait()
        return bulk_messages.FetchLogResponse()

    handlers = {ApiKey.FETCH_LOG: wait, ApiKey.PRODUCE_LOG: _produced}
    settings = ListenerSettings(in_flight_bytes_max=2 * MIB)
    async with Listener(settings, handlers) as listener, await Channel.connect(LOCALHOST, listener.port) as channel:
        padded = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1)
        # An unknown field: number 2047, 512 KiB.
        padded.MergeFromString(b"\xfa\x7f" + b"\x80\x80\x20" + bytes(512 * 1024))
        fetches = [asyncio.create_task(channel.request(apis.FETCH_LOG, padded, timeout_s=TIMEOUT_S)) for _ in range(20)]
        await channel.request(apis.PRODUCE_LOG, _produce(MIB), timeout_s=TIMEOUT_S)
        await eventually_async(lambda: not listener.shared.request_memory.used_bytes)
        assert not any(fetch.done() for fetch in fetches)
        release.set()
        await asyncio.gather(*fetches)


async def test_places_are_not_kept_for_clients_that_do_not_log_in():
    now = 1000.0
    settings = ListenerSettings(check_credentials=UserTable({"bob": "pw"}), login_timeout_s=0.04)
    listener = Listener(settings, HANDLERS, clock=lambda: now)
    credentials = Credentials("bob", "pw")
    async with (
        listener,
        _greedy_sockets(listener, 3) as sockets,
        await Channel.connect(LOCALHOST, listener.port, credentials=credentials) as channel,
    ):
        await asyncio.sleep(0.03)
        assert listener.connection_count == 4
        now += 1.0
        # Saying something does not help.
        await _push(sockets[0], b"".join(frames.request_frame(ApiKey.LIST_DATABASES, 0, 0, [])))
        await eventually_async(lambda: listener.connection_count <= 1)
        await channel.request(apis.LIST_DATABASES, NO_DATABASES, timeout_s=TIMEOUT_S)


async def test_a_client_that_resets_the_connection_does_not_hold_up_the_end(caplog):
    listener = Listener(ListenerSettings(), HANDLERS)
    await listener.start()
    async with _greedy_sockets(listener, 1) as (client,):
        await _push(client, _encoded(apis.LIST_DATABASES, NO_DATABASES) * 1000)
        await asyncio.sleep(0.02)
    # The client is gone with unread answers, and the loop has not looked at the socket since.
    begun = time.monotonic()
    await listener.stop(grace_s=TIMEOUT_S)
    assert time.monotonic() - begun < TIMEOUT_S / 2
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_client_that_is_refused_for_ever_does_not_fill_the_log(caplog):
    async with Listener(ListenerSettings(), HANDLERS) as listener, _greedy_sockets(listener, 1) as (client,):
        refused = b"".join(frames.request_frame(9999, 0, 0, []))
        with caplog.at_level(logging.INFO, logger="fluss.net.server_connection"):
            await _push(client, refused * 1000)
            last = "that are refused are not logged"
            await eventually_async(lambda: any(record.getMessage().endswith(last) for record in caplog.records))
            await asyncio.sleep(0.05)
    messages = [record.getMessage() for record in caplog.records]
    assert len([message for message in messages if "is not served here" in message]) == 10
    assert messages[-1].endswith(last)
