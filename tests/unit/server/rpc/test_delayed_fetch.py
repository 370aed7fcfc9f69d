"""Fetches that wait are woken by what they wait for and by nothing else, and cost nothing meanwhile.

A real server on a real socket; times are measured only where time is what is promised.
"""

from __future__ import annotations

import asyncio
import time

import pyarrow as pa
import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.protocol import api as apis
from fluss.schema.schema import Schema
from fluss.server.tablet.manager import TabletSettings
from fluss.testing.waiting import eventually_async
from tests.unit.server.tablet.support import (
    SCHEMA,
    HeldFiles,
    Server,
    arrow_batch,
    decoded,
    fetch_request,
    ids,
    make_table,
    rows,
    serving,
    with_schema,
)

LONG_MS = 3_600_000


async def _delayed(server: Server, *buckets, **options) -> asyncio.Task:
    """Start a fetch that finds nothing, and return when it waits."""
    before = server.service.delayed_fetch_count
    options = {"min_bytes": 1, "max_wait_ms": LONG_MS, **options}
    task = asyncio.create_task(server.fetch(*buckets, **options))
    await eventually_async(lambda: server.service.delayed_fetch_count == before + 1)
    return task


async def test_an_append_wakes_the_fetch_that_waits_for_its_bucket_and_no_other(tmp_path):
    async with serving(tmp_path, make_table(buckets=3)) as server:
        other = await _delayed(server, (1, 0))
        waiting = await _delayed(server, (0, 0), (2, 0))
        await server.append(rows(0, 2), 2)
        answers = await waiting
        assert [ids(answer.records_view) for answer in answers] == [[], [0, 1]]
        assert [answer.high_watermark for answer in answers] == [0, 2]
        assert server.service.delayed_fetch_count == 1
        await server.append(rows(0, 1), 1)
        assert ids((await other)[0].records_view) == [0]


async def test_every_fetch_that_waits_for_a_bucket_is_woken(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        tasks = [await _delayed(server, (0, 0)) for _ in range(20)]
        await server.append(rows(0, 1))
        assert [ids(answers[0].records_view) for answers in await asyncio.gather(*tasks)] == [[0]] * 20


async def test_a_fetch_that_finds_no_room_to_wait_is_answered_without_records(tmp_path):
    settings = TabletSettings(delayed_buckets_max=3)
    async with serving(tmp_path, make_table(buckets=2), settings=settings) as server:
        waiting = await _delayed(server, (0, 0), (1, 0))
        answers = await server.fetch((0, 0), (1, 0), min_bytes=1, max_wait_ms=LONG_MS)
        assert [answer.records_view for answer in answers] == [b"", b""]
        assert [answer.error_code for answer in answers] == [None, None]
        # One bucket more fits, and a fetch that leaves makes room.
        one = await _delayed(server, (1, 0))
        await server.append(rows(0, 1), 1)
        await asyncio.gather(waiting, one)
        assert server.service.delayed_fetch_count == 0
        await _delayed(server, (0, 0))


async def test_buckets_that_have_failed_take_room_while_the_others_wait(tmp_path):
    """What is said of them is kept until there is an answer, which can be in weeks."""
    settings = TabletSettings(delayed_buckets_max=4)
    async with serving(tmp_path, make_table(buckets=2), settings=settings) as server:
        # Buckets that do not exist end no wait: they may be about to be made.
        waiting = await _delayed(server, (0, 0), (7, 0), (8, 0), (9, 0))
        late = asyncio.create_task(server.fetch((1, 0), min_bytes=1, max_wait_ms=LONG_MS))
        await eventually_async(late.done)
        assert [answer.records_view for answer in await late] == [b""]
        await server.append(rows(0, 1))
        answers = {answer.bucket_id: answer.error_code for answer in await waiting}
        assert answers == {0: None} | dict.fromkeys((7, 8, 9), ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)
        await _delayed(server, (0, 1), (1, 0))


async def test_a_client_that_goes_while_its_answer_is_held_back_holds_no_memory(tmp_path):
    settings = TabletSettings(delayed_buckets_max=1, retry_answer_delay_ms=LONG_MS)
    async with serving(tmp_path, make_table(buckets=2), settings=settings) as server:
        await server.append(rows(0, 2))
        await _delayed(server, (1, 0))
        channel, memory = await server.connect(), server.service.fetch_memory
        fetch = fetch_request((0, 0), min_bytes=1_000_000, max_wait_ms=LONG_MS)
        request = asyncio.create_task(channel.request(apis.FETCH_LOG, fetch, timeout_s=LONG_MS))
        await eventually_async(lambda: memory.used_bytes > 0)
        await channel.close()
        with pytest.raises(FlussError):
            await request
        await eventually_async(lambda: memory.used_bytes == 0)


async def test_a_fetch_without_min_bytes_or_with_nothing_to_wait_is_answered_at_once(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        for options in ({"max_wait_ms": LONG_MS}, {"min_bytes": 0, "max_wait_ms": LONG_MS}):
            assert (await server.fetch_one(0, **options)).records_view == b""
        for wait_ms in (0, -1):
            assert (await server.fetch_one(0, min_bytes=1, max_wait_ms=wait_ms)).records_view == b""


async def test_without_a_time_a_fetch_waits_a_tenth_of_a_second(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        started_at = time.monotonic()
        assert (await server.fetch_one(0, min_bytes=1)).records_view == b""
        assert time.monotonic() - started_at > 0.09


async def test_a_wait_that_finds_nothing_ends_with_an_empty_answer(tmp_path):
    async with serving(tmp_path, make_table(buckets=2)) as server:
        answers = await server.fetch((0, 0), (1, 0), min_bytes=1, max_wait_ms=30)
        assert [(answer.records_view, answer.high_watermark) for answer in answers] == [(b"", 0)] * 2


async def test_a_fetch_waits_until_there_are_as_many_bytes_as_it_wants(tmp_path):
    async with serving(tmp_path, make_table(buckets=2)) as server:
        one = len(arrow_batch(rows(0, 10)))
        await server.append(rows(0, 10))
        waiting = await _delayed(server, (0, 0), (1, 0), min_bytes=3 * one - 50)
        await server.append(rows(10, 10), 0)
        await server.append(rows(0, 1), 0)
        assert server.service.delayed_fetch_count == 1
        await server.append(rows(0, 10), 1)
        answers = await waiting
        assert [len(ids(answer.records_view)) for answer in answers] == [21, 10]


async def test_a_fetch_that_never_gets_all_it_wants_returns_what_there_is(tmp_path):
    async with serving(tmp_path, make_table(buckets=2)) as server:
        await server.append(rows(0, 2))
        answers = await server.fetch((0, 0), (1, 0), min_bytes=10**6, max_wait_ms=40)
        assert [ids(answer.records_view) for answer in answers] == [[0, 1], []]


async def test_a_waiting_fetch_does_not_block_later_requests_of_its_connection(tmp_path):
    async with serving(tmp_path, make_table(buckets=2)) as server:
        waiting = await _delayed(server, (0, 0))
        for first in range(5):
            await server.append(rows(first, 1), 1)
        assert ids((await server.fetch((1, 0)))[0].records_view) == [0, 1, 2, 3, 4]
        assert not waiting.done()
        await server.append(rows(0, 1))
        await waiting


async def test_unknown_buckets_and_those_not_ready_do_not_end_the_wait_for_the_others(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        server.catalog.add(make_table(2, "later"))
        request = fetch_request((0, 0), (9, 0), min_bytes=1, max_wait_ms=LONG_MS)
        request.tables_req.append(fetch_request((0, 0), table_id=2).tables_req[0])
        waiting = asyncio.create_task(server.request(apis.FETCH_LOG, request))
        await eventually_async(lambda: server.service.delayed_fetch_count == 1)
        await server.append(rows(0, 1))
        first, second = (await waiting).tables
        by_bucket = {bucket.bucket_id: bucket for bucket in first.buckets}
        assert ids(by_bucket[0].records_view) == [0]
        assert by_bucket[9].error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        assert second.buckets[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_any_other_error_is_answered_at_once(tmp_path):
    async with serving(tmp_path, make_table(buckets=2)) as server:
        answers = await server.fetch((0, 0), (1, 77), min_bytes=1, max_wait_ms=LONG_MS)
        assert [answer.error_code for answer in answers] == [None, 19]


async def test_an_answer_of_nothing_but_unknown_buckets_is_held_back(tmp_path):
    async with serving(tmp_path, make_table(), settings=TabletSettings(retry_answer_delay_ms=60_000)) as server:
        waiting = await _delayed(server, (9, 0))
        server.service.drain()
        assert (await waiting)[0].error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


async def test_a_fetch_that_waits_sees_batches_of_a_schema_that_came_later(tmp_path):
    table = make_table()
    wider = Schema(pa.schema([*SCHEMA.to_arrow(), ("extra", pa.int64())]))
    async with serving(tmp_path, table) as server:
        waiting = await _delayed(server, (0, 0), columns=[0])
        altered = with_schema(table, wider)
        server.catalog.add(altered)
        server.manager.table_altered(altered)
        new_rows = rows(1, 1).append_column("extra", pa.array([7], pa.int64()))
        await server.produce(arrow_batch(new_rows, schema_id=2))
        (answer,) = await waiting
        assert decoded(answer.records_view, columns=[0]) == [{"offset": 0, "id": 1}]


async def test_a_dropped_table_wakes_those_who_wait_for_it(tmp_path):
    table = make_table(buckets=2)
    async with serving(tmp_path, table, make_table(2, "other")) as server:
        waiting = await _delayed(server, (0, 0), (1, 0))
        server.catalog.remove(table)
        await server.manager.drop_buckets(table, None)
        assert [answer.error_code for answer in await waiting] == [21, 21]


async def test_a_client_that_goes_away_leaves_nothing_behind(tmp_path):
    async with serving(tmp_path, make_table(buckets=3)) as server:
        channel = await server.connect()
        request = fetch_request((0, 0), (1, 0), (2, 0), min_bytes=1, max_wait_ms=LONG_MS)
        task = asyncio.create_task(channel.request(apis.FETCH_LOG, request, timeout_s=120))
        await eventually_async(lambda: server.service.delayed_fetch_count == 1)
        await channel.close()
        await asyncio.gather(task, return_exceptions=True)
        await eventually_async(lambda: server.service.delayed_fetch_count == 0)
        assert all(bucket._waiters is None for bucket in server.manager.tables[1])


async def test_a_server_that_shuts_down_answers_those_who_wait(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        waiting = await _delayed(server, (0, 0))
        server.service.drain()
        assert (await waiting)[0].records_view == b""
        assert (await server.fetch_one(0, min_bytes=1, max_wait_ms=LONG_MS)).records_view == b""


async def test_only_durable_records_wake_a_fetch(tmp_path):
    files = HeldFiles()
    async with serving(tmp_path, make_table(), files=files) as server:
        waiting = await _delayed(server, (0, 0))
        await server.append(rows(0, 1), acks=1)
        ahead = await _delayed(server, (0, 1))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        files.may_sync.set()
        assert ids((await waiting)[0].records_view) == [0]
        assert not ahead.done(), "the records before its offset are nothing to it"
        await server.append(rows(1, 1))
        assert ids((await ahead)[0].records_view) == [1]


async def test_thousands_of_idle_buckets_cost_nothing_while_a_fetch_waits(tmp_path):
    count = 5000
    async with serving(tmp_path, make_table(buckets=count)) as server:
        waiting = await _delayed(server, *((bucket, 0) for bucket in range(count)))
        await asyncio.sleep(0.05)
        cpu_before = time.thread_time()
        await asyncio.sleep(0.5)
        # A tenth of a percent of one processor; anything that looks at the buckets now and then needs more.
        assert time.thread_time() - cpu_before < 0.05
        await server.append(rows(0, 1), 4321)
        answers = await waiting
        assert len(answers) == count
        assert [answer.bucket_id for answer in answers if len(answer.records_view)] == [4321]
