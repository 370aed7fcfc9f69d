"""Lookups share requests, wait no longer than they must, and come to an end whatever the server does.
Shown on real sockets with a server that keeps rows in memory and fails on demand."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.connection import FlussConnection
from fluss.client.kernel.runtime import runtime
from fluss.client.lookup.lookupers import Lookuper
from fluss.client.lookup.pending import pause_within, reason_of
from fluss.errors import ErrorCode, FlussError, RequestTimeoutError
from fluss.protocol.api import ApiKey
from fluss.schema.schema import Schema
from fluss.testing.waiting import eventually_async
from tests.fakes.faulty_server import Fault
from tests.fakes.lookup_server import PATH, USERS, LookupServer

EVENTS = Schema(
    pa.schema([("region", pa.string()), ("id", pa.int32()), ("name", pa.string())]), primary_keys=["region", "id"]
)


@asynccontextmanager
async def lookuper_of(server: LookupServer, **options: str | int) -> AsyncIterator[Lookuper]:
    async with await FlussConnection.create(server.config(**options)) as connection:
        yield (await connection.get_table(PATH)).new_lookup().create_lookuper()


@asynccontextmanager
async def lookuper_of_users(server: LookupServer, **options: str | int) -> AsyncIterator[Lookuper]:
    """Make a lookuper for a table of a thousand users."""
    server.add_table()
    server.put_users(range(1000))
    async with lookuper_of(server, **options) as lookuper:
        yield lookuper


def user(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"user {number}"}


def many(lookuper: Lookuper, numbers: range) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(lookuper.lookup([number])) for number in numbers]


# Sharing requests


async def test_rows_are_found_by_keys_of_every_form(server: LookupServer) -> None:
    async with lookuper_of_users(server) as lookuper:
        assert await lookuper.lookup({"id": 1}) == user(1)
        assert await lookuper.lookup([2]) == user(2)
        assert await lookuper.lookup((3,)) == user(3)
        assert await lookuper.lookup([-1]) is None
        assert list(await lookuper.lookup([5]) or {}) == ["id", "name"]


async def test_lookups_at_the_same_time_share_requests_and_get_their_own_rows(server: LookupServer) -> None:
    async with lookuper_of_users(server) as lookuper:
        numbers = [number % 1200 for number in range(3000)]
        rows = await asyncio.gather(*(lookuper.lookup([number]) for number in numbers))
        assert rows == [user(number) if number < 1000 else None for number in numbers]
        assert sum(server.request_sizes) == 3000
        assert max(server.request_sizes) == 128
        assert len(server.request_sizes) < 100


async def test_a_lookup_alone_does_not_wait_for_others(server: LookupServer) -> None:
    # Were anything to wait for company, it would wait for an hour.
    async with lookuper_of_users(server, lookup__batch_timeout_ms=3_600_000) as lookuper:
        await lookuper.lookup([0])
        for number in range(20):
            assert await lookuper.lookup([number]) == user(number)
        assert server.request_sizes == [1] * 21


async def test_lookups_collect_while_others_are_on_the_way(server: LookupServer) -> None:
    async with lookuper_of_users(server, lookup__batch_timeout_ms=3_600_000) as lookuper:
        await lookuper.lookup([0])
        server.hold()
        first = many(lookuper, range(1))
        await eventually_async(lambda: len(server.requests) == 2)
        later = many(lookuper, range(1, 51))
        await eventually_async(lambda: len(lookuper._client._waiting) == 50)
        assert len(server.requests) == 2
        server.release()
        assert await asyncio.gather(*first, *later) == [user(number) for number in range(51)]
        assert server.request_sizes == [1, 1, 50]


async def test_full_requests_do_not_wait(server: LookupServer) -> None:
    async with lookuper_of_users(server, lookup__max_batch_size=10, lookup__batch_timeout_ms=3_600_000) as lookuper:
        await lookuper.lookup([0])
        server.hold()
        lookups = many(lookuper, range(1))
        await eventually_async(lambda: len(server.requests) == 2)
        lookups += many(lookuper, range(1, 36))
        await eventually_async(lambda: len(server.requests) == 5)
        assert server.request_sizes == [1, 1, 10, 10, 10]
        assert server.in_progress == 4
        server.release()
        assert len(await asyncio.gather(*lookups)) == 36
        assert server.request_sizes[5:] == [5]


async def test_a_lookup_waits_for_company_only_so_long(server: LookupServer) -> None:
    # Longer than it takes to begin three of them, also on a busy machine.
    async with lookuper_of_users(server, lookup__batch_timeout_ms=2000) as lookuper:
        await lookuper.lookup([0])
        server.hold()
        lookups = many(lookuper, range(1))
        await eventually_async(lambda: len(server.requests) == 2)
        lookups += many(lookuper, range(1, 4))
        # The answer to the one before does not come, and they go all the same.
        await eventually_async(lambda: len(server.requests) == 3)
        assert server.request_sizes == [1, 1, 3]
        server.release()
        await asyncio.gather(*lookups)


async def test_so_many_requests_are_on_the_way_and_no_more(server: LookupServer) -> None:
    async with lookuper_of_users(
        server, lookup__max_batch_size=10, lookup__max_inflight_requests=3, lookup__batch_timeout_ms=1
    ) as lookuper:
        await lookuper.lookup([0])
        server.hold()
        lookups = many(lookuper, range(1000))
        await eventually_async(lambda: server.in_progress == 3)
        # All that were not sent wait; a request that did not wait for company has fewer than ten.
        await eventually_async(lambda: len(lookuper._client._waiting) >= 970)
        await asyncio.sleep(0.05)
        assert server.in_progress == 3
        assert 970 <= len(lookuper._client._waiting) < 1000
        server.release()
        assert await asyncio.gather(*lookups) == [user(number) for number in range(1000)]
        assert server.in_progress_max == 3


async def test_callers_wait_when_too_many_lookups_wait_to_be_sent(server: LookupServer) -> None:
    async with lookuper_of_users(
        server,
        lookup__queue_size=50,
        lookup__max_batch_size=10,
        lookup__max_inflight_requests=1,
        lookup__batch_timeout_ms=3_600_000,
    ) as lookuper:
        await lookuper.lookup([0])
        server.hold()
        before = many(lookuper, range(1))
        await eventually_async(lambda: len(server.requests) == 2)
        lookups = many(lookuper, range(500))
        await eventually_async(lambda: lookuper._client._intake.caller_count == 450)
        assert lookuper._client._intake.waiting_count == 50
        server.release()
        await asyncio.gather(*before)
        assert await asyncio.gather(*lookups) == [user(number) for number in range(500)]
        assert max(server.request_sizes) == 10
        assert not lookuper._client._waiting


async def test_callers_who_give_up_waiting_leave_their_turn_to_others(server: LookupServer) -> None:
    async with lookuper_of_users(server, lookup__queue_size=5, lookup__max_inflight_requests=1) as lookuper:
        await lookuper.lookup([0])
        server.hold()
        before = many(lookuper, range(1))
        await eventually_async(lambda: len(server.requests) == 2)
        queued = many(lookuper, range(5))
        await eventually_async(lambda: len(lookuper._client._waiting) == 5)
        givers_up, patient = many(lookuper, range(20)), many(lookuper, range(20))
        await eventually_async(lambda: lookuper._client._intake.caller_count == 40)
        for lookup in (*queued, *givers_up):
            lookup.cancel()
        server.release()
        assert await asyncio.gather(*before, *patient) == [user(0), *map(user, range(20))]


async def test_lookupers_of_one_table_share_requests_and_so_do_threads(server: LookupServer) -> None:
    server.add_table()
    server.put_users(range(1000))
    found: dict[int, Any] = {}
    async with await FlussConnection.create(server.config(lookup__batch_timeout_ms=3_600_000)) as connection:
        table = await connection.get_table(PATH)
        await table.new_lookup().lookup([0])
        server.hold()
        alone = asyncio.create_task(table.new_lookup().lookup([0]))
        await eventually_async(lambda: len(server.requests) == 2)

        async def look_up(number: int) -> None:
            found[number] = await table.new_lookup().create_lookuper().lookup([number])

        threads = [threading.Thread(target=asyncio.run, args=(look_up(number),)) for number in range(8)]
        for thread in threads:
            thread.start()
        client = connection._get_lookup_client()
        await eventually_async(lambda: len(client._waiting) == 8)
        server.release()
        await alone
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert server.request_sizes == [1, 1, 8]
    assert found == {number: user(number) for number in range(8)}


async def test_requests_of_very_many_lookups_leave_the_loop_free(server: LookupServer) -> None:
    # Requests that are not full go when an answer comes, and not after some time.
    options = {"lookup__max_batch_size": 5000, "lookup__batch_timeout_ms": 3_600_000}
    async with lookuper_of_users(server, **options) as lookuper:
        numbers = [number % 1100 for number in range(6000)]
        # While the first answer is missing, the others come together.
        server.hold()
        lookups = [asyncio.ensure_future(lookuper.lookup([number])) for number in numbers]
        await eventually_async(lambda: max(*server.request_sizes, len(lookuper._client._waiting), 0) > 1500)
        server.release()
        rows = await asyncio.gather(*lookups)
        assert rows == [user(number) if number < 1000 else None for number in numbers]
        assert max(server.request_sizes) > 1500


async def test_rows_of_many_buckets_come_in_one_request(server: LookupServer) -> None:
    server.add_table(bucket_count=7)
    server.put_users(range(100))
    async with lookuper_of(server, lookup__batch_timeout_ms=3_600_000) as lookuper:
        await lookuper.lookup([0])
        server.hold()
        first = many(lookuper, range(1))
        await eventually_async(lambda: len(server.requests) == 2)
        rest = many(lookuper, range(100))
        await eventually_async(lambda: len(lookuper._client._waiting) == 100)
        server.release()
        assert await asyncio.gather(*first, *rest) == [user(0), *map(user, range(100))]
        assert [len(request.buckets_req) for request in server.requests] == [1, 1, 7]


# Failures


@pytest.mark.parametrize(
    "fault",
    [
        Fault(bucket_code=ErrorCode.KV_STORAGE_EXCEPTION),
        Fault(bucket_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        Fault(request_code=ErrorCode.STORAGE_EXCEPTION),
        Fault(is_cut=True),
    ],
    ids=["bucket", "leader", "request", "connection"],
)
async def test_what_may_pass_is_tried_again(server: LookupServer, fault: Fault) -> None:
    async with lookuper_of_users(server) as lookuper:
        server.faults.extend([fault] * 3)
        assert await lookuper.lookup([7]) == user(7)
        assert len(server.requests) == 4


async def test_what_does_not_pass_is_raised_with_its_code(server: LookupServer) -> None:
    async with lookuper_of_users(server) as lookuper:
        for fault in (Fault(bucket_code=48), Fault(request_code=48), Fault(bucket_code=12345)):
            server.faults.append(fault)
            with pytest.raises(FlussError) as caught:
                await lookuper.lookup([7])
            assert caught.value.error_code == fault.bucket_code + fault.request_code
        assert await lookuper.lookup([7]) == user(7)


async def test_retries_are_counted(server: LookupServer) -> None:
    async with lookuper_of_users(server, lookup__max_retries=2) as lookuper:
        server.default_fault = Fault(bucket_code=ErrorCode.KV_STORAGE_EXCEPTION)
        with pytest.raises(FlussError, match="refused with 11") as caught:
            await lookuper.lookup([7])
        assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION
        assert len(server.requests) == 3


async def test_retries_end_with_the_request_timeout(server: LookupServer) -> None:
    async with lookuper_of_users(server, request_timeout=3000) as lookuper:
        server.default_fault = Fault(bucket_code=ErrorCode.KV_STORAGE_EXCEPTION)
        started = time.monotonic()
        with pytest.raises(FlussError) as caught:
            await lookuper.lookup([7])
        assert caught.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION
        assert time.monotonic() - started >= 0.2
        assert len(server.requests) > 2


def test_the_end_of_the_time_does_not_hide_what_a_server_said() -> None:
    refused, late = FlussError("busy", ErrorCode.KV_STORAGE_EXCEPTION), RequestTimeoutError("no answer")
    assert reason_of(refused, late) is refused
    assert reason_of(None, late) is late
    assert reason_of(late, refused) is refused


def test_pauses_get_longer_up_to_a_limit() -> None:
    assert [pause_within(attempts, 30) for attempts in (1, 2, 3, 7, 1000)] == [0.02, 0.04, 0.08, 1.0, 1.0]
    assert pause_within(7, 0.5) == 0.25


async def test_a_server_that_says_nothing_is_given_up_after_the_request_timeout(server: LookupServer) -> None:
    # The first request keeps the others from being sent, and they have an end all the same.
    async with lookuper_of_users(
        server, request_timeout=3000, lookup__max_batch_size=10, lookup__max_inflight_requests=1
    ) as lookuper:
        await lookuper.lookup([0])
        server.hold()
        lookups = many(lookuper, range(40))
        outcomes = await asyncio.gather(*lookups, return_exceptions=True)
        assert {getattr(outcome, "error_code", None) for outcome in outcomes} == {25}
        server.release()
        assert await lookuper.lookup([1]) == user(1)


async def test_answers_that_cannot_be_right_are_errors(server: LookupServer) -> None:
    async with lookuper_of_users(server) as lookuper:
        for fault, text in ((Fault(is_omitted=True), "did not answer"), (Fault(is_short=True), "answered 0 of 1")):
            server.faults.append(fault)
            with pytest.raises(FlussError, match=text) as caught:
                await lookuper.lookup([7])
            assert caught.value.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


async def test_a_damaged_row_is_an_error_for_those_who_want_it_and_is_not_asked_for_again(server: LookupServer) -> None:
    async with lookuper_of_users(server) as lookuper:
        values = server.values[1, None, 0]
        values[next(iter(values))] = b"\x01\x00\xff"
        outcomes = await asyncio.gather(*many(lookuper, range(200)), return_exceptions=True)
        assert isinstance(outcomes[0], FlussError)
        assert "cannot be read" in outcomes[0].message
        assert outcomes[0].error_code == ErrorCode.CLIENT_ERROR
        assert outcomes[1:] == [user(number) for number in range(1, 200)]
        assert sum(server.request_sizes) == 200


async def test_rows_that_are_too_large_together_are_asked_for_apart(server: LookupServer) -> None:
    async with lookuper_of_users(server) as lookuper:
        server.answer_bytes_max = 50
        rows = await asyncio.gather(*(lookuper.lookup([number]) for number in range(100)))
        assert rows == [user(number) for number in range(100)]
        server.answer_bytes_max = 5
        with pytest.raises(FlussError) as caught:
            await lookuper.lookup([1])
        assert caught.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION


async def test_a_server_that_comes_back_is_found_again(server: LookupServer) -> None:
    async with lookuper_of_users(server) as lookuper:
        assert await lookuper.lookup([1]) == user(1)
        server.stop_listening()
        waiting = many(lookuper, range(300))
        await asyncio.sleep(0.1)
        server.listen_again()
        assert await asyncio.gather(*waiting) == [user(number) for number in range(300)]


async def test_lookups_follow_the_leader(server: LookupServer) -> None:
    with LookupServer(server_id=1) as second:
        for one in (server, second):
            one.scripted.peers = {0: server.scripted.port, 1: second.scripted.port}
            one.add_table()
            one.put_users(range(10))
        second.scripted.tables = server.scripted.tables
        async with lookuper_of(server) as lookuper:
            assert await lookuper.lookup([1]) == user(1)
            server.add_table(leaders=[1])
            server.default_fault = Fault(bucket_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
            assert await lookuper.lookup([2]) == user(2)
            assert (len(server.requests), len(second.requests)) == (2, 1)


async def test_a_bucket_without_a_leader_is_waited_for(server: LookupServer) -> None:
    server.add_table(leaders=[None])
    server.put_users(range(10))
    async with lookuper_of(server) as lookuper:
        waiting = many(lookuper, range(10))
        await asyncio.sleep(0.05)
        server.add_table()
        assert await asyncio.gather(*waiting) == [user(number) for number in range(10)]


async def test_a_bucket_that_gets_no_leader_is_code_44_in_the_end(server: LookupServer) -> None:
    server.add_table(leaders=[None])
    async with lookuper_of(server, request_timeout=3000) as lookuper:
        with pytest.raises(FlussError, match="no leader") as caught:
            await lookuper.lookup([1])
        assert caught.value.error_code == ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION


async def test_a_table_that_was_created_again_is_code_7(server: LookupServer) -> None:
    async with lookuper_of_users(server) as lookuper:
        await lookuper.lookup([1])
        server.add_table(table_id=2)
        server.default_fault = Fault(bucket_code=ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)
        with pytest.raises(FlussError, match="created again") as caught:
            await lookuper.lookup([1])
        assert caught.value.error_code == ErrorCode.TABLE_NOT_EXIST


# Partitions


def put_event(server: LookupServer, region: str, number: int, partition_id: int) -> dict[str, Any]:
    row = {"region": region, "id": number, "name": f"event {number}"}
    server.put(row, partition_id=partition_id)
    return row


async def test_rows_are_found_in_their_partitions(server: LookupServer) -> None:
    server.add_table(EVENTS, partition_keys=("region",), bucket_count=3)
    server.add_partition("EU", 10)
    server.add_partition("US", 11)
    rows = [
        put_event(server, region, number, 10 + index)
        for number in range(50)
        for index, region in enumerate(("EU", "US"))
    ]
    async with lookuper_of(server) as lookuper:
        keys = [{"region": row["region"], "id": row["id"]} for row in rows]
        assert await asyncio.gather(*map(lookuper.lookup, keys)) == rows
        assert await lookuper.lookup(["EU", 7]) == rows[14]


async def test_a_partition_that_does_not_exist_has_no_rows_until_it_does(server: LookupServer) -> None:
    server.add_table(EVENTS, partition_keys=("region",))
    async with lookuper_of(server) as lookuper:
        assert await lookuper.lookup(["EU", 1]) is None
        assert await asyncio.gather(*(lookuper.lookup([f"r{number}", 1]) for number in range(40))) == [None] * 40
        assert not server.requests
        server.add_partition("EU", 10)
        row = put_event(server, "EU", 1, 10)
        assert await lookuper.lookup(["EU", 1]) == row


async def test_a_partition_that_is_dropped_or_created_again_is_noticed(server: LookupServer) -> None:
    server.add_table(EVENTS, partition_keys=("region",))
    server.add_partition("EU", 10)
    row = put_event(server, "EU", 1, 10)
    async with lookuper_of(server) as lookuper:
        assert await lookuper.lookup(["EU", 1]) == row
        server.drop_partition("EU")
        assert await lookuper.lookup(["EU", 1]) is None
        server.add_partition("EU", 20)
        assert await lookuper.lookup(["EU", 1]) is None
        again = put_event(server, "EU", 1, 20)
        assert await lookuper.lookup(["EU", 1]) == again
        server.drop_partition("EU")
        server.add_partition("EU", 30)
        newest = put_event(server, "EU", 1, 30)
        assert await lookuper.lookup(["EU", 1]) == newest


# Schemas


async def test_rows_of_other_schemas_have_the_columns_of_the_lookuper(server: LookupServer) -> None:
    old = USERS
    server.add_table()
    server.put({"id": 1, "name": "old"})
    async with await FlussConnection.create(server.config()) as connection:
        before = (await connection.get_table(PATH)).new_lookup().create_lookuper()
        new = old.with_added_columns([*Schema(pa.schema([("age", pa.int32())])).columns])
        server.add_table(new, schema_id=2)
        server.put({"id": 2, "name": "new", "age": 30})
        after = (await connection.get_table(PATH)).new_lookup().create_lookuper()
        assert await after.lookup([1]) == {"id": 1, "name": "old", "age": None}
        assert await after.lookup([2]) == {"id": 2, "name": "new", "age": 30}
        assert await before.lookup([1]) == {"id": 1, "name": "old"}
        assert await before.lookup([2]) == {"id": 2, "name": "new"}
        # As many as are converted column by column, and of both schemas.
        rows = await asyncio.gather(*(after.lookup([1 + number % 2]) for number in range(100)))
        assert [row["age"] for row in rows if row is not None] == [None, 30] * 50
        assert server.scripted.requests[ApiKey.GET_TABLE_SCHEMA] <= 1


# Ends


async def test_a_caller_that_is_cancelled_disturbs_nobody(server: LookupServer) -> None:
    async with lookuper_of_users(server, lookup__batch_timeout_ms=3_600_000) as lookuper:
        await lookuper.lookup([0])
        server.hold()
        sent = many(lookuper, range(1))
        await eventually_async(lambda: len(server.requests) == 2)
        queued = many(lookuper, range(100))
        await eventually_async(lambda: len(lookuper._client._waiting) == 100)
        for lookup in (*sent, *queued[::2]):
            lookup.cancel()
        server.release()
        assert await asyncio.gather(*queued[1::2]) == [user(number) for number in range(1, 100, 2)]
        assert all(lookup.cancelled() for lookup in (*sent, *queued[::2]))
        # Those who had not been sent never were.
        assert server.request_sizes == [1, 1, 50]


async def test_a_caller_may_give_up_after_a_time_of_its_own(server: LookupServer) -> None:
    async with lookuper_of_users(server) as lookuper:
        server.hold()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lookuper.lookup([1]), 0.05)
        server.release()
        assert await lookuper.lookup([1]) == user(1)


async def test_closing_ends_lookups_that_wait(server: LookupServer) -> None:
    server.add_table()
    config = server.config(lookup__queue_size=20, lookup__max_batch_size=5, lookup__max_inflight_requests=2)
    connection = await FlussConnection.create(config)
    lookuper = (await connection.get_table(PATH)).new_lookup().create_lookuper()
    await lookuper.lookup([0])
    server.hold()
    lookups = many(lookuper, range(100))
    await eventually_async(lambda: lookuper._client._intake.caller_count > 0)
    many_keys = asyncio.create_task(lookuper.lookup_many([[1]]))
    await asyncio.sleep(0.02)
    await connection.close()
    outcomes = await asyncio.gather(*lookups, many_keys, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, FlussError), outcome
        assert "the connection is closed" in outcome.message
    for late in (lookuper.lookup([1]), lookuper.lookup_many([[1]])):
        with pytest.raises(FlussError, match="closed"):
            await late
    await lookuper._client.close()


async def test_the_loop_of_a_caller_may_end_before_its_lookup(server: LookupServer) -> None:
    async with lookuper_of_users(server) as lookuper:
        await lookuper.lookup([0])
        server.hold()

        async def give_up() -> None:
            lookup = asyncio.ensure_future(lookuper.lookup([1]))
            await eventually_async(lambda: len(server.requests) == 2)
            lookup.cancel()

        await asyncio.to_thread(asyncio.run, give_up())
        server.release()
        assert await lookuper.lookup([2]) == user(2)


def test_lookups_work_without_an_event_loop_of_the_caller(server: LookupServer) -> None:
    server.add_table()
    server.put_users(range(10))
    lookups = runtime()

    async def open_and_ask() -> Any:
        async with lookuper_of(server) as lookuper:
            return await lookuper.lookup([3])

    assert lookups.run(open_and_ask()) == user(3)


async def test_what_nobody_uses_any_more_is_forgotten(server: LookupServer) -> None:
    async with lookuper_of_users(server) as lookuper:
        client = lookuper._client
        await asyncio.gather(*(lookuper.lookup([number]) for number in range(300)))
        assert len(client._tables) == 1
        assert not client._queues
        assert not client._waiting
        await eventually_async(lambda: not client._tasks)
        client.table(lookuper._info, lookuper._table.method)
        assert len(client._tables) == 1
    gc.collect()
