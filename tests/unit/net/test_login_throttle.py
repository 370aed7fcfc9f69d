"""Guessing passwords is slow: the check itself waits, nothing behind a guess tells anything, friends come in."""

from __future__ import annotations

import asyncio

import pytest

from fluss.errors import AuthenticationError, ErrorCode, FlussError
from fluss.net.channel import Channel
from fluss.net.listener import Listener, ListenerSettings
from fluss.net.login_throttle import LoginThrottle
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.protocol.session import ClientSession, ErrorReceived, ResponseReceived
from fluss.testing.waiting import eventually_async
from tests.unit.net.test_admission import Clock
from tests.unit.net.test_listener import LOCALHOST, PLAIN_HANDLERS, _table_request


def _waits(throttle: LoginThrottle, address: str, user: str, count: int) -> list[float]:
    """How long guesses one after the other have to wait, without doing so."""
    return [throttle.begin(address, user).wait_s for _ in range(count)]


def test_a_few_mistakes_are_free_then_it_is_one_guess_every_two_seconds():
    clock = Clock()
    throttle = LoginThrottle(clock)
    assert _waits(throttle, "a", "alice", 8) == [0, 0, 0, 0, 0, 2, 4, 6]
    # Other users from there are no way around it; from elsewhere they are not held up.
    assert _waits(throttle, "a", "bob", 1) == [8]
    assert _waits(throttle, "b", "bob", 1) == [0]
    clock.now_s += 8
    assert _waits(throttle, "a", "carol", 1) == [2]
    clock.now_s += 1000
    assert _waits(throttle, "a", "alice", 6) == [0, 0, 0, 0, 0, 2]


def test_many_addresses_are_no_way_around_it():
    throttle = LoginThrottle(Clock())
    waits = [_waits(throttle, f"address {number}", "alice", 1)[0] for number in range(14)]
    assert waits == [0] * 10 + [0.5, 1.0, 1.5, 2.0]


def test_whoever_would_wait_too_long_is_told_to_come_again_and_costs_nothing():
    clock = Clock()
    throttle = LoginThrottle(clock)
    _waits(throttle, "a", "alice", 10)
    for _ in range(100):
        with pytest.raises(FlussError, match="too many wrong passwords") as caught:
            throttle.begin("a", "bob")
        assert caught.value.error_code == ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION
    clock.now_s += 2
    assert _waits(throttle, "a", "bob", 1) == [10]


def test_right_passwords_cost_nothing_and_neither_do_guesses_that_were_not_checked():
    throttle = LoginThrottle(Clock())
    for _ in range(100):
        attempt = throttle.begin("a", "alice")
        assert attempt.wait_s == 0
        attempt.succeeded()
        attempt = throttle.begin("a", "bob")
        assert attempt.wait_s == 0
        attempt.withdraw()
    # Many connections at once are not many guesses.
    attempts = [throttle.begin("b", "alice") for _ in range(5)]
    for attempt in attempts:
        attempt.succeeded()
    assert _waits(throttle, "b", "alice", 5) == [0] * 5


def test_a_user_under_attack_comes_in_from_where_it_came_before():
    throttle = LoginThrottle(Clock())
    throttle.begin("home", "alice").succeeded()
    for number in range(30):
        throttle.begin(f"address {number}", "alice")
    with pytest.raises(FlussError):
        throttle.begin("elsewhere", "alice")
    assert throttle.begin("home", "alice").wait_s == 0
    # Guessing from there is as slow as from anywhere.
    assert _waits(throttle, "home", "alice", 6)[-1] > 0


def test_random_names_and_addresses_take_no_more_than_bounded_memory():
    throttle = LoginThrottle(Clock())
    for number in range(10_500):
        throttle.begin(f"address {number}", f"user {number}" * 1000)
        throttle.remember((f"address {number}", number))
    assert (len(throttle._addresses), len(throttle._users), len(throttle._known)) == (10_000,) * 3


# On a listener. Its clock stands still unless a test moves it.


def _guess_bytes(session: ClientSession, password: str, user: str = "eve") -> bytes:
    request = pb.AuthenticateRequest(protocol="PLAIN", token=f"\0{user}\0{password}".encode())
    return b"".join(session.request(apis.AUTHENTICATE, request)[1])


async def test_a_guess_is_not_checked_before_its_turn_and_nothing_behind_it_is_looked_at():
    clock, guesses, handled = Clock(), [], []

    def check(user: str, password: str) -> bool:
        guesses.append(password)
        return password == "right"

    def exists(context, request):
        handled.append(context.principal.name)
        return pb.TableExistsResponse(exists=True)

    settings = ListenerSettings(check_credentials=check, login_timeout_s=100_000)
    async with Listener(settings, {apis.TABLE_EXISTS.key: exists}, clock=clock) as listener:
        for number in range(5):
            with pytest.raises(AuthenticationError, match="wrong user name or password"):
                await Channel.connect(LOCALHOST, listener.port, credentials=Credentials("eve", f"guess {number}"))
        guesses.clear()
        # The right password, and a request whose answer would tell that it is right.
        reader, writer = await asyncio.open_connection(LOCALHOST, listener.port)
        session = ClientSession()
        writer.write(_guess_bytes(session, "right"))
        writer.write(b"".join(session.request(apis.TABLE_EXISTS, _table_request("t"))[1]))
        await eventually_async(lambda: any(c._login_task is not None for c in listener._connections))
        # An honest user from elsewhere comes in meanwhile.
        other_reader, other = await asyncio.open_connection(LOCALHOST, listener.port, local_addr=("127.0.0.9", 0))
        other_session = ClientSession()
        other.write(_guess_bytes(other_session, "right", "bob"))
        (answer,) = other_session.feed(await other_reader.read(1000))
        assert isinstance(answer, ResponseReceived)
        other.close()
        assert (guesses, handled) == (["right"], [])
        clock.now_s += 1
        await asyncio.sleep(0.3)
        assert (guesses, handled) == (["right"], [])
        clock.now_s += 1
        answers = []
        while len(answers) < 2:
            answers += session.feed(await reader.read(1000))
        assert all(isinstance(answer, ResponseReceived) for answer in answers)
        assert (guesses, handled) == (["right", "right"], ["eve"])
        writer.close()


async def test_a_guess_whose_connection_is_gone_is_never_checked_and_costs_nothing():
    clock, guesses = Clock(), []
    settings = ListenerSettings(check_credentials=lambda user, password: bool(guesses.append(password)))
    async with Listener(settings, PLAIN_HANDLERS, clock=clock) as listener:
        for _ in range(5):
            listener.shared.throttle.begin(LOCALHOST, "eve")
        _, writer = await asyncio.open_connection(LOCALHOST, listener.port)
        writer.write(_guess_bytes(ClientSession(), "guess"))
        await eventually_async(lambda: any(c._login_task is not None for c in listener._connections))
        connections = tuple(listener._connections)
        logins = [connection._login_task for connection in connections]
        for connection in connections:
            connection.abort()
        await eventually_async(lambda: listener.connection_count == 0)
        await eventually_async(lambda: all(login is None or login.done() for login in logins))
        assert listener.shared.throttle.begin(LOCALHOST, "eve").wait_s == 2
        clock.now_s += 100
        await asyncio.sleep(0.3)
        assert guesses == []
        writer.close()


async def test_logging_in_again_is_checked_and_a_wrong_password_ends_the_connection():
    settings = ListenerSettings(check_credentials=lambda user, password: password == f"pw of {user}")
    async with Listener(settings, PLAIN_HANDLERS) as listener:
        for user, password, is_right in (
            ("eve", "pw of eve", True),
            ("eve", "wrong", False),
            ("bob", "pw of bob", False),
        ):
            reader, writer = await asyncio.open_connection(LOCALHOST, listener.port)
            session = ClientSession()
            writer.write(_guess_bytes(session, "pw of eve"))
            (answer,) = session.feed(await reader.read(1000))
            assert isinstance(answer, ResponseReceived)
            writer.write(_guess_bytes(session, password, user))
            (answer,) = session.feed(await reader.read(1000))
            assert isinstance(answer, ResponseReceived if is_right else ErrorReceived)
            if not is_right:
                assert await reader.read(1000) == b""
            writer.close()


async def test_many_guesses_in_one_packet_are_checked_only_up_to_a_limit():
    guesses = []

    def check(user: str, password: str) -> bool:
        guesses.append(password)
        return password == "guess 20"

    async with Listener(ListenerSettings(check_credentials=check), {}) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        session = ClientSession()
        for number in range(30):
            request = pb.AuthenticateRequest(protocol="PLAIN", token=f"\0eve\0guess {number}".encode())
            writer.writelines([bytes(part) for part in session.request(apis.AUTHENTICATE, request)[1]])
        answers = []
        while len(answers) < 30:
            answers += session.feed(await reader.read(65536))
        writer.close()
        await writer.wait_closed()
    assert len(guesses) == 5
    assert all(isinstance(answer, ErrorReceived) for answer in answers)
    assert "too many failed logins" in answers[-1].error.message
