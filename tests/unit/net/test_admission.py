"""Places: by listener, by address, by descriptors; who is refused is told, and the log stays short."""

from __future__ import annotations

import asyncio
import logging
import re
import socket

import pytest

from fluss.net import server_connection
from fluss.net.admission import Admission, Places, address_key
from fluss.net.burst_log import BurstLog
from fluss.net.listener import Listener, ListenerSettings
from fluss.protocol import frame as frames
from fluss.protocol.session import ServerSession
from fluss.testing.waiting import eventually_async
from tests.unit.net.test_listener import LOCALHOST, PLAIN_HANDLERS, _read_response


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("unknown", "unknown"),
    ],
)
def test_addresses_are_counted_by_what_one_client_can_have(host, key):
    assert address_key(host) == key


def _admitted(admission: Admission, host: str) -> int:
    count = 0
    while admission.admit(host) is None:
        count += 1
    return count


def test_one_address_does_not_get_every_place():
    admission = Admission(1000)
    assert _admitted(admission, "10.0.0.1") == 500
    assert "your address has its limit of 500 connections" in str(admission.admit("10.0.0.1"))
    # Many local programs may share an address, but not all places.
    assert _admitted(Admission(1000), "127.0.0.1") == 900
    assert _admitted(admission, "127.0.0.1") == 500, "the rest"
    assert "its limit of 1000 connections; try later" in str(admission.admit("10.0.0.2"))
    admission.release("10.0.0.1")
    assert admission.admit("10.0.0.2") is None
    assert admission.refused_total == 4


def test_a_given_limit_holds_for_every_address():
    admission = Admission(1000, per_address_max=7)
    assert _admitted(admission, "127.0.0.1") == 7
    assert _admitted(admission, "10.0.0.1") == 7
    assert _admitted(admission, "::ffff:10.0.0.1") == 0
    for _ in range(7):
        admission.release("127.0.0.1")
    assert admission.address_count == 1
    assert _admitted(admission, "127.0.0.1") == 7


def test_all_listeners_together_leave_descriptors_to_files():
    places = Places(10)
    first, second = Admission(1000, 1000, places), Admission(1000, 1000, places)
    assert _admitted(first, "10.0.0.1") == 10
    assert "its limit of 10 connections" in str(second.admit("10.0.0.2"))
    first.release("10.0.0.1")
    assert second.admit("10.0.0.2") is None


def test_only_some_refused_clients_at_a_time_are_told():
    admission = Admission(1)
    told = sum(admission.may_tell() for _ in range(1000))
    assert told == 64
    admission.told()
    assert admission.may_tell()
    assert not admission.may_tell()


async def test_a_burst_is_one_line_and_a_count(caplog):
    logger = logging.getLogger("test.bursts")
    bursts = BurstLog(logger, interval_s=0.05)
    with caplog.at_level(logging.INFO, logger="test.bursts"):
        for number in range(1000):
            bursts.log("kind", logging.WARNING, f"event {number}")
        bursts.log("other", logging.INFO, "another")
        assert caplog.messages == ["event 0", "another"]
        await eventually_async(lambda: len(caplog.messages) == 3)
        assert caplog.messages[2] == "999 times more within 0.05 s, the last: event 999"
        await eventually_async(lambda: not bursts._bursts)
        bursts.log("kind", logging.WARNING, "later")
        bursts.log("kind", logging.WARNING, "later still")
        bursts.close()
    assert caplog.messages[3:] == ["later", "1 times more within 0.05 s, the last: later still"]


async def test_a_flood_of_connections_is_refused_with_one_line_and_leaves_nothing(caplog):
    settings = ListenerSettings(connections_max=10, connections_per_address_max=5)
    with caplog.at_level(logging.INFO, logger="fluss.net"):
        async with Listener(settings, PLAIN_HANDLERS) as listener:
            kept = [await asyncio.open_connection(LOCALHOST, listener.port) for _ in range(5)]
            await eventually_async(lambda: listener.connection_count == 5)
            told = 0
            for _ in range(200):
                reader, writer = await asyncio.open_connection(LOCALHOST, listener.port)
                try:
                    answer = await _read_response(reader)
                    assert answer.response_type is frames.ResponseType.SERVER_FAILURE
                    assert b"your address has its limit of 5 connections" in bytes(answer.body)
                    told += 1
                except (asyncio.IncompleteReadError, ConnectionError):
                    pass
                writer.close()
            assert told > 0
            # However long it takes on a busy machine: one line, and counts.
            assert sum(message.startswith("refused the connection") for message in caplog.messages) == 1
            assert listener.admission.refused_total == 200
            # Another address has a place.
            other = socket.create_connection((LOCALHOST, listener.port), source_address=("127.0.0.9", 0))
            await eventually_async(lambda: listener.admission.address_count == 2)
            other.close()
            for _, writer in kept:
                writer.close()
            await eventually_async(lambda: listener.connection_count == 0)
            assert listener.admission.address_count == 0
        counts = [re.match(r"(\d+) times more", message) for message in caplog.messages]
        assert sum(int(count[1]) for count in counts if count) == 199


async def test_nothing_is_allocated_before_a_connection_has_a_place(monkeypatch):
    made = []
    session = ServerSession
    monkeypatch.setattr(server_connection, "ServerSession", lambda *args, **kw: made.append(1) or session(*args, **kw))
    async with Listener(ListenerSettings(connections_max=1), PLAIN_HANDLERS) as listener:
        _, first = await asyncio.open_connection(LOCALHOST, listener.port)
        await eventually_async(lambda: listener.connection_count == 1)
        for _ in range(5):
            reader, writer = await asyncio.open_connection(LOCALHOST, listener.port)
            writer.write(bytes(100_000))
            assert (await _read_response(reader)).response_type is frames.ResponseType.SERVER_FAILURE
            writer.close()
        assert len(made) == 1
        first.close()


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def test_a_byte_now_and_then_does_not_hold_a_place(caplog):
    clock = Clock()
    settings = ListenerSettings(arrival_timeout_s=30, idle_timeout_s=600)
    async with Listener(settings, PLAIN_HANDLERS, clock=clock) as listener:
        reader, writer = await asyncio.open_connection(LOCALHOST, listener.port)
        await eventually_async(lambda: listener.connection_count == 1)
        (connection,) = listener._connections
        # A request of 100 kB is announced, and arrives a byte every 14 seconds.
        for count, byte in enumerate(b"\0\1\x86\xa0" + bytes(2), start=1):
            writer.write(bytes((byte,)))
            await eventually_async(lambda count=count: connection._session._reader._end == count)
            clock.now_s += 14
            listener._check_connections(asyncio.get_running_loop())
            if count >= 3:
                break
        assert await reader.read() == b""
        await eventually_async(lambda: listener.connection_count == 0)
        writer.close()
    assert any("takes too long to send a request" in message for message in caplog.messages)


async def test_a_slow_line_has_its_time_and_so_has_a_request_that_is_not_read(monkeypatch):
    clock = Clock()
    settings = ListenerSettings(arrival_timeout_s=30, idle_timeout_s=10_000, stalled_timeout_s=10_000)
    async with Listener(settings, PLAIN_HANDLERS, clock=clock) as listener:
        _, writer = await asyncio.open_connection(LOCALHOST, listener.port)
        await eventually_async(lambda: listener.connection_count == 1)
        (connection,) = listener._connections
        writer.write(b"\0\x50\0\0" + bytes(100))
        await eventually_async(lambda: connection._arrival.is_under_way)
        writer.write(bytes(2_000_000))
        await eventually_async(lambda: connection._arrival.byte_count >= 2_000_000)
        # 64 kB each second.
        clock.now_s += 60
        connection.check_time()
        assert listener.connection_count == 1
        # While the server does not read, the time of the client stands still.
        monkeypatch.setattr(connection, "_has_room", lambda: False)
        connection.regulate_reading()
        clock.now_s += 1000
        connection.check_time()
        monkeypatch.undo()
        connection.regulate_reading()
        connection.check_time()
        assert not connection._is_silent()
        clock.now_s += 10
        connection.check_time()
        assert connection._is_silent()
        writer.close()


async def test_a_connection_at_rest_holds_no_receive_buffer():
    clock = Clock()
    async with Listener(ListenerSettings(), PLAIN_HANDLERS, clock=clock) as listener:
        reader, writer = await asyncio.open_connection(LOCALHOST, listener.port)
        await eventually_async(lambda: listener.connection_count == 1)
        (connection,) = listener._connections
        assert len(connection._session._reader._received) == 0
        request = b"".join(frames.request_frame(1000, 0, 1, []))
        for _ in range(2):
            writer.write(request)
            await _read_response(reader)
            assert len(connection._session._reader._received) > 0
            # The first look finds that the answer has left since the last one.
            connection.check_time()
            clock.now_s += 31
            connection.check_time()
            assert len(connection._session._reader._received) == 0
        writer.close()


@pytest.mark.parametrize("timeout_s", [5, 50])
async def test_a_client_has_to_log_in_in_time(timeout_s):
    clock = Clock()
    settings = ListenerSettings(check_credentials=lambda user, password: True, login_timeout_s=timeout_s)
    async with Listener(settings, PLAIN_HANDLERS, clock=clock) as listener:
        _, writer = await asyncio.open_connection(LOCALHOST, listener.port)
        await eventually_async(lambda: listener.connection_count == 1)
        clock.now_s += 20
        (connection,) = listener._connections
        connection.check_time()
        assert connection._is_silent() is (timeout_s == 5)
        writer.close()
