"""Quotas: the rate holds exactly, for whom it is meant, and whoever is above it is read no further."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.metrics import Metrics
from fluss.net.channel import Channel
from fluss.net.listener import Listener, ListenerSettings
from fluss.net.quotas import QuotaKind, QuotaRates, Quotas
from fluss.net.token_bucket import RecentlyUsed, TokenBucket
from fluss.protocol import api as apis
from fluss.protocol.api import ApiKey
from fluss.protocol.bulk_messages import BucketRecords, ProduceLogRequest
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import ANONYMOUS, Credentials, Principal, UserTable
from fluss.testing.waiting import eventually_async
from tests.unit.net.test_admission import Clock
from tests.unit.net.test_listener import LOCALHOST, _raw_connection, _request_bytes

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")


# One bucket


def test_what_was_saved_up_is_free_and_the_rest_is_paid_for_exactly():
    bucket = TokenBucket(10, 20, 0.0)
    assert bucket.take(20, 0.0) == 0
    assert bucket.take(5, 0.0) == 0.5
    assert bucket.take(5, 0.25) == 0.75
    assert bucket.wait_s(0.5) == 0.5
    assert bucket.wait_s(1.0) == 0
    assert not bucket.is_full(2.9)
    assert bucket.is_full(3.0)
    assert bucket.take(100, 100.0) == 8
    bucket.give_back(75, 100.0)
    assert bucket.wait_s(100.0) == 0.5
    bucket.change(1, 2, 100.0)
    assert bucket.wait_s(100.0) == 5
    bucket.give_back(1000, 100.0)
    assert bucket.take(2, 100.0) == 0


@given(
    st.integers(1, 1000),
    st.integers(1, 1000),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 2000)), min_size=1, max_size=50),
)
def test_whoever_waits_as_told_never_exceeds_the_rate(rate, capacity, steps):
    """Over any time: no more than what was saved up, what came meanwhile, and the last thing on credit."""
    bucket = TokenBucket(rate, capacity, 0.0)
    now_s, used = 0.0, 0
    for pause_s, amount in steps:
        now_s += pause_s / 10 + bucket.wait_s(now_s + pause_s / 10)
        assert used <= capacity + rate * now_s + 1e-6
        bucket.take(amount, now_s)
        used += amount


def test_only_so_many_are_remembered_and_those_in_use_stay():
    buckets = RecentlyUsed[int](1, 1, count_max=100)
    for number in range(1000):
        buckets.get(number, 0.0)
        buckets.get(-1, 0.0).take(1, 0.0)
    assert len(buckets) == 100
    assert buckets.get(-1, 0.0).wait_s(0.0) > 0


# Who is limited


def test_nobody_asks_as_long_as_nobody_is_limited():
    quotas = Quotas(Clock())
    assert not quotas.is_active
    quotas.set_rates(QuotaKind.FETCH, QuotaRates(0, {"alice": 0}))
    assert not quotas.is_active
    quotas.set_rates(QuotaKind.FETCH, QuotaRates(0, {"alice": 5}))
    assert quotas.is_active
    quotas.set_rates(QuotaKind.FETCH, QuotaRates())
    assert not quotas.is_active


def test_each_user_and_each_anonymous_address_has_its_own():
    quotas = Quotas(Clock())
    quotas.set_rates(QuotaKind.PRODUCE, QuotaRates(100, {"bob": 1000, "ANONYMOUS": 10, "10.0.0.7": 0}))
    assert quotas.client(ALICE, "10.0.0.1").charge(QuotaKind.PRODUCE, 200) == 1
    # From another address it is the same user.
    assert quotas.client(ALICE, "10.0.0.2").wait_s() == 1
    assert quotas.client(BOB, "10.0.0.1").charge(QuotaKind.PRODUCE, 200) == 0
    assert quotas.client(ANONYMOUS, "10.0.0.1").charge(QuotaKind.PRODUCE, 20) == 1
    assert quotas.client(ANONYMOUS, "10.0.0.2").wait_s() == 0
    assert quotas.client(ANONYMOUS, "10.0.0.7").charge(QuotaKind.PRODUCE, 10_000) == 0
    assert quotas.client(ALICE, "").charge(QuotaKind.FETCH, 10_000) == 0, "another kind"


def test_a_changed_quota_holds_at_once_and_debts_stay():
    clock = Clock()
    quotas = Quotas(clock)
    quotas.set_rates(QuotaKind.REQUESTS, QuotaRates(10))
    alice = quotas.client(ALICE, "")
    assert alice.charge(QuotaKind.REQUESTS, 30) == 2
    quotas.set_rates(QuotaKind.REQUESTS, QuotaRates(20))
    assert alice.wait_s() == 1
    quotas.set_rates(QuotaKind.REQUESTS, QuotaRates())
    assert alice.wait_s() == 0
    assert alice.charge(QuotaKind.REQUESTS, 1_000_000) == 0


def test_clients_are_remembered_in_a_bounded_number():
    quotas = Quotas(Clock())
    quotas.set_rates(QuotaKind.REQUESTS, QuotaRates(1))
    for number in range(10_100):
        quotas.client(ANONYMOUS, f"address {number}")
    assert len(quotas._clients) == 10_000


def test_use_rates_limits_and_delays_are_shown():
    clock, metrics = Clock(), Metrics()
    quotas = Quotas(clock)
    quotas.show(metrics)
    quotas.set_rates(QuotaKind.PRODUCE, QuotaRates(100))
    alice = quotas.client(ALICE, "")
    for _ in range(20):
        clock.now_s += 1
        alice.charge(QuotaKind.PRODUCE, 150)
    alice.throttled(QuotaKind.PRODUCE, 2.5)
    labels = (("kind", "produce"), ("user", "alice"))
    values = metrics.values()
    assert values["fluss_quota_used_total", labels] == 3000
    assert values["fluss_quota_limit_per_second", labels] == 100
    assert values["fluss_quota_throttle_seconds_total", labels] == 2.5
    assert 130 < values["fluss_quota_rate_per_second", labels] < 170
    clock.now_s += 1000
    assert metrics.values()["fluss_quota_rate_per_second", labels] < 10
    clock.now_s += 1000
    assert metrics.values()["fluss_quota_rate_per_second", labels] == 0


# On a connection. The clock stands still unless a test moves it, so a debt lasts as long as the test wants.


def _produce(byte_count: int) -> ProduceLogRequest:
    return ProduceLogRequest(-1, 1, 1000, [BucketRecords(0, bytes(byte_count))])


async def _ask(channel: Channel, byte_count: int):
    return await channel.request(apis.PRODUCE_LOG, _produce(byte_count), timeout_s=120)


def _handlers(started: list[str]):
    def produce(context, request):
        started.append(context.principal.name)
        return pb.ProduceLogResponse()

    return {ApiKey.PRODUCE_LOG: produce}


@pytest.fixture
def users() -> ListenerSettings:
    return ListenerSettings(check_credentials=UserTable({"alice": "pw", "bob": "pw"}))


async def test_above_the_quota_nothing_more_is_started_or_read_until_it_is_paid(users):
    clock, started = Clock(), []
    quotas = Quotas(clock)
    quotas.set_rates(QuotaKind.PRODUCE, QuotaRates(1_000_000))
    async with (
        Listener(users, _handlers(started), quotas=quotas) as listener,
        await Channel.connect(LOCALHOST, listener.port, credentials=Credentials("alice", "pw")) as alice,
        await Channel.connect(LOCALHOST, listener.port, credentials=Credentials("alice", "pw")) as alice_again,
        await Channel.connect(LOCALHOST, listener.port, credentials=Credentials("bob", "pw")) as bob,
    ):
        # A hundred seconds' worth. It is carried out, and from then on alice is in debt.
        first = asyncio.create_task(_ask(alice, 101_000_000 // 4))
        await eventually_async(lambda: len(started) == 1)
        waiting = [asyncio.create_task(_ask(channel, 1_000_000)) for channel in (alice, alice_again) for _ in range(20)]
        # Bob is not held up by her.
        for _ in range(3):
            await _ask(bob, 1000)
        await asyncio.sleep(0.05)
        assert started == ["alice", "bob", "bob", "bob"]
        # No more than a request that was on its way and what the system had buffered is held in memory.
        held = listener.shared.request_memory.used_bytes + listener.shared.arriving_memory.used_bytes
        assert held < 8_000_000
        assert not first.done()
        clock.now_s += 1000
        await first
        # Paid: one after the other goes on, each in its turn.
        while not all(task.done() for task in waiting):
            clock.now_s += 10
            await asyncio.sleep(0.01)
        assert started.count("alice") == 41


async def test_the_answer_to_a_fetch_is_held_back_and_counts(users):
    clock = Clock()
    quotas = Quotas(clock)
    quotas.set_rates(QuotaKind.FETCH, QuotaRates(10))

    def lookup(context, request):
        return pb.LookupResponse()

    async with (
        Listener(ListenerSettings(), {ApiKey.LOOKUP: lookup}, quotas=quotas) as listener,
        await Channel.connect(LOCALHOST, listener.port) as channel,
    ):
        client = quotas.client(ANONYMOUS, LOCALHOST)
        client.charge(QuotaKind.FETCH, 10)
        first = asyncio.create_task(channel.request(apis.LOOKUP, pb.LookupRequest(table_id=1), timeout_s=120))
        (connection,) = await eventually_async(lambda: [c for c in listener._connections if c._outbox.is_held])
        assert not first.done()
        assert connection._outbox.unsent_bytes > 0, "held bytes are counted like those that a client does not take"
        # However long it is held, the client is not taken for one that does not read.
        connection.check_time()
        clock.now_s += 100
        await first
        assert not connection._outbox.is_held


async def test_requests_are_counted_also_those_that_the_connection_answers_itself():
    clock = Clock()
    quotas = Quotas(clock)
    quotas.set_rates(QuotaKind.REQUESTS, QuotaRates(5))
    started: list[str] = []
    async with (
        Listener(ListenerSettings(), _handlers(started), quotas=quotas) as listener,
        await Channel.connect(LOCALHOST, listener.port) as channel,
    ):
        # The handshake was one.
        tasks = [asyncio.create_task(_ask(channel, 10)) for _ in range(20)]
        await eventually_async(lambda: len(started) == 5)
        await asyncio.sleep(0.05)
        assert len(started) == 5
        while not all(task.done() for task in tasks):
            clock.now_s += 1
            await asyncio.sleep(0.01)
        assert len(started) == 20


async def test_a_stop_waits_for_no_quota():
    quotas = Quotas(Clock())
    quotas.set_rates(QuotaKind.REQUESTS, QuotaRates(1))
    started: list[str] = []
    async with Listener(ListenerSettings(), _handlers(started), quotas=quotas) as listener:
        channel = await Channel.connect(LOCALHOST, listener.port)
        tasks = [asyncio.create_task(_ask(channel, 10)) for _ in range(2)]
        await eventually_async(lambda: len(started) == 1)
        await listener.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(started) == 2, "what was received is carried out"
        await channel.close()


async def test_a_client_in_debt_that_breaks_the_protocol_gets_its_last_word_at_once():
    quotas = Quotas(Clock())
    quotas.set_rates(QuotaKind.REQUESTS, QuotaRates(1))
    async with (
        Listener(ListenerSettings(), _handlers([]), quotas=quotas) as listener,
        _raw_connection(listener) as (reader, writer),
    ):
        request = _request_bytes(
            apis.API_VERSIONS, pb.ApiVersionsRequest(client_software_name="test", client_software_version="1"), 1
        )
        # The clock stands still, so the debt of three requests is never paid.
        writer.write(3 * request + b"\xff" * 64)
        assert len(await reader.read()) > len(request), "answers, and why the connection ends"
        await eventually_async(lambda: listener.connection_count == 0)
