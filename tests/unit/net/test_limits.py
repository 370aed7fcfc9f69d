"""Shared memory is counted exactly, one of those who wait can always go on, and guessing passwords gets slower.
The budget alone, a clock that the test moves, and a real listener with many guesses in one packet."""

from __future__ import annotations

import asyncio
import time

import pytest

from fluss.errors import AuthenticationError
from fluss.net.channel import Channel
from fluss.net.limits import ByteBudget, LoginThrottle
from fluss.net.listener import Listener, ListenerSettings
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.protocol.session import ClientSession, ErrorReceived


def _waiting(budget: ByteBudget, name: str, woken: list[str]):
    def resume() -> None:
        woken.append(name)

    budget.wait(resume)
    return resume


def test_a_connection_that_waits_is_told_once_when_there_is_room():
    budget, woken = ByteBudget(10), []
    budget.take(12)
    for name in ("a", "b"):
        _waiting(budget, name, woken)
    budget.give_back(2)
    assert (budget.is_exhausted, woken) == (True, [])
    budget.give_back(1)
    budget.give_back(9)
    assert (budget.is_exhausted, woken, budget.used_bytes) == (False, ["a", "b"], 0)


def test_counting_anew_wakes_none_unless_it_became_less():
    budget, woken = ByteBudget(10), []
    budget.take(9)
    _waiting(budget, "a", woken)
    budget.replace(4, 4)
    budget.replace(4, 5)
    assert (budget.used_bytes, budget.is_exhausted, woken) == (10, True, [])
    budget.replace(5, 1)
    assert (budget.used_bytes, woken) == (6, ["a"])


def test_one_is_the_first_until_it_leaves():
    budget, woken = ByteBudget(10), []
    budget.take(10)
    first, second = _waiting(budget, "first", woken), _waiting(budget, "second", woken)
    assert budget.may_be_first(first)
    assert budget.may_be_first(first)
    assert not budget.may_be_first(second)
    budget.leave(second)
    assert not budget.may_be_first(second)
    budget.wait(second)
    budget.leave(first)
    assert woken == ["second"], "another one may be the first now"
    assert budget.may_be_first(second)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_few_mistakes_are_free_then_the_delay_doubles_up_to_a_limit():
    throttle = LoginThrottle(Clock())
    delays = [throttle.failed("1.2.3.4") for _ in range(12)]
    assert delays[:3] == [0, 0, 0]
    assert delays[3:6] == [0.1, 0.2, 0.4]
    assert delays[-1] == 3.0


def test_addresses_are_counted_apart_and_forgotten_when_they_are_quiet():
    clock = Clock()
    throttle = LoginThrottle(clock)
    for _ in range(5):
        throttle.failed("1.2.3.4")
    assert throttle.failed("5.6.7.8") == 0
    clock.now_s += 50
    assert throttle.failed("1.2.3.4") > 0
    clock.now_s += 61
    assert throttle.failed("1.2.3.4") == 0


def test_no_more_than_a_bounded_number_of_addresses_is_remembered():
    throttle = LoginThrottle(Clock())
    for _ in range(5):
        throttle.failed("first")
    for number in range(10_000):
        throttle.failed(f"address {number}")
    assert len(throttle._failures) == 10_000
    assert throttle.failed("first") == 0


async def test_a_listener_answers_repeated_failures_late_and_right_passwords_at_once():
    settings = ListenerSettings(check_credentials=lambda user, password: password == "right")
    async with Listener(settings, {}) as listener:
        begun = time.monotonic()
        for _ in range(5):
            with pytest.raises(AuthenticationError, match="wrong user name or password"):
                await Channel.connect("127.0.0.1", listener.port, credentials=Credentials("eve", "wrong"))
        assert time.monotonic() - begun >= 0.1 + 0.2
        for _ in range(20):
            longest_s = listener.shared.throttle.failed("127.0.0.1")
        late = asyncio.create_task(Channel.connect("127.0.0.1", listener.port, credentials=Credentials("eve", "wrong")))
        async with await Channel.connect("127.0.0.1", listener.port, credentials=Credentials("bob", "right")):
            assert longest_s >= 1
            assert not late.done(), "the right password overtakes the wrong one"
        late.cancel()
        await asyncio.wait([late])


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
