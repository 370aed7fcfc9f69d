"""No filter costs more than its share: it has limits, works by turns in some of the threads, and stops with its client.

A real server on a real socket; its disk waits where a test says so, so that nothing depends on how fast anything is.
"""

from __future__ import annotations

import asyncio
import threading
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from fluss.errors import ErrorCode
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.predicates import predicate_to_pb
from fluss.record.log_batch import iter_batches
from fluss.schema.predicate import FilterLimits, Predicate, col
from fluss.server.tablet.manager import TabletSettings
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.vfs import OsFiles
from fluss.testing.waiting import eventually_async
from tests.unit.server.tablet.support import (
    SCHEMA,
    TIMEOUT_S,
    Server,
    batch_with_statistics,
    fetch_request,
    ids,
    make_table,
    rows,
    serving,
)

LONG_MS = 3_600_000
# A segment takes one batch: every look at the log is a read of its own.
SMALL_SEGMENTS = LogSettings(segment_bytes_max=100)
# What is not in the newest segment is read in threads.
OLD = TabletSettings(log=SMALL_SEGMENTS)
NOTHING = col("id") > 1_000_000


def _message(predicate: Predicate) -> pb.PbPredicate:
    return predicate_to_pb(predicate.bind(SCHEMA))


def _any_of(count: int) -> Predicate:
    return reduce(lambda left, right: left | right, [col("id") == -number - 1 for number in range(count)])


def _nested(levels: int) -> pb.PbPredicate:
    message = _message(NOTHING)
    for _ in range(levels - 1):
        message = pb.PbPredicate(type=1, compound=pb.PbCompoundPredicate(function=0, children=[message]))
    return message


async def _write(server: Server, count: int, **options: Any) -> None:
    for number in range(count):
        await server.produce(batch_with_statistics(rows(number * 10, 10)), **options)


async def _fetch(server: Server, offset: int, predicate: Predicate, **options: Any) -> Any:
    return await server.fetch_one(offset, predicate=_message(predicate), filter_schema_id=1, **options)


# Limits


@pytest.mark.parametrize(
    ("limits", "predicate", "message"),
    [
        ({"conditions_max": 20}, _message(_any_of(20)), "21 conditions or more, this server takes 20: ask for a list"),
        ({"literals_max": 50}, _message(col("id").is_in(list(range(51)))), "51 values or more, this server takes 50"),
        ({"literals_max": 200}, _message(col("id").is_in(list(range(201)))), "201 values or more"),
        ({"bytes_max": 2000}, _message(col("name") == "x" * 2000), "bytes or more, this server takes 2000"),
        ({}, _nested(33), "nested at most 32 levels deep; write it flatter"),
    ],
    ids=["conditions", "values", "in a thread", "bytes", "depth"],
)
async def test_a_filter_beyond_a_limit_is_refused_with_a_sentence(
    tmp_path: Path, limits: dict[str, int], predicate: pb.PbPredicate, message: str
) -> None:
    settings = TabletSettings(filters=FilterLimits(**limits))
    async with serving(tmp_path, make_table(), settings=settings) as server:
        for count in (0, 1):
            answer = await server.fetch_one(
                0, predicate=predicate, filter_schema_id=1, min_bytes=1, max_wait_ms=LONG_MS
            )
            assert answer.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
            assert message in (answer.error_message or "")
            assert not answer.records_view, "with or without records to read, the filter is refused"
            await _write(server, 1 - count)
        assert (await _fetch(server, 0, NOTHING)).filtered_end_offset == 10, "the next one is served"


async def test_filters_of_one_request_share_the_limits_and_other_tables_are_read(tmp_path: Path) -> None:
    tables = [make_table(table_id, f"t{table_id}") for table_id in (1, 2, 3)]
    settings = TabletSettings(filters=FilterLimits(conditions_max=15))
    async with serving(tmp_path, *tables, settings=settings) as server:
        for table_id in (1, 2, 3):
            await _write(server, 1, table_id=table_id)
        request = fetch_request((0, 0), table_id=1, predicate=_message(_any_of(9)), filter_schema_id=1)
        second = fetch_request((0, 0), table_id=2, predicate=_message(_any_of(9)), filter_schema_id=1)
        request.tables_req.extend([*second.tables_req, *fetch_request((0, 0), table_id=3).tables_req])
        answer = await server.request(apis.FETCH_LOG, request)
        first, refused, plain = (table.buckets[0] for table in answer.tables)
        assert (first.error_code, first.filtered_end_offset) == (None, 10)
        assert refused.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert ids(plain.records_view) == list(range(10))


async def test_the_largest_filter_that_is_allowed_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path, make_table()) as server:
        await _write(server, 3)
        answer = await _fetch(server, 0, _any_of(2047))
        assert (answer.error_code, answer.filtered_end_offset) == (None, 30)
        answer = await _fetch(server, 0, col("id").is_in(list(range(-16_000, 1))))
        assert ids(answer.records_view) == list(range(10))


async def test_a_fetch_looks_at_so_many_batches_and_says_how_far_it_came(tmp_path: Path) -> None:
    async with serving(tmp_path, make_table(), settings=TabletSettings(filter_batches_max=7)) as server:
        await _write(server, 20)
        reached = [0]
        while reached[-1] < 200:
            answer = await _fetch(server, reached[-1], NOTHING, min_bytes=1, max_wait_ms=0)
            assert not list(iter_batches(answer.records_view))
            reached.append(answer.filtered_end_offset)
        assert reached == [0, 70, 140, 200]


async def test_the_newest_batches_are_filtered_without_a_thread(tmp_path: Path) -> None:
    async with serving(tmp_path, make_table()) as server:
        await _write(server, 3)
        turns = server.service.filter_turns
        # Whoever needs a thread waits for a turn.
        async with turns.turn("another"), turns.turn("yet another"):
            assert ids((await _fetch(server, 10, col("id") >= 0)).records_view) == list(range(10, 30))
            assert (await _fetch(server, 10, NOTHING)).filtered_end_offset == 30
            # It waits for more, and is woken by it.
            channel = await server.connect()
            request = fetch_request(
                (0, 20), predicate=_message(col("id") >= 30), filter_schema_id=1, min_bytes=1, max_wait_ms=LONG_MS
            )
            waiting = asyncio.create_task(channel.request(apis.FETCH_LOG, request, timeout_s=TIMEOUT_S))
            await eventually_async(lambda: server.service.delayed_fetch_count == 1)
            await server.produce(batch_with_statistics(rows(30, 10)))
            assert ids((await waiting).tables[0].buckets[0].records_view) == list(range(30, 40))


async def test_more_than_the_event_loop_has_time_for_is_filtered_in_a_thread(tmp_path: Path) -> None:
    async with serving(tmp_path, make_table()) as server:
        await _write(server, 100)
        assert (await _fetch(server, 0, NOTHING)).filtered_end_offset == 1000
        assert ids((await _fetch(server, 0, col("id") >= 0)).records_view) == list(range(1000))
        await eventually_async(lambda: server.service.fetch_memory.used_bytes == 0)


async def test_a_filter_that_is_known_counts_like_a_new_one(tmp_path: Path) -> None:
    tables = [make_table(table_id, f"t{table_id}") for table_id in (1, 2)]
    settings = TabletSettings(filters=FilterLimits(conditions_max=15))
    async with serving(tmp_path, *tables, settings=settings) as server:
        requests = []
        for table_id in (1, 2):
            await _write(server, 1, table_id=table_id)
            requests.append(
                fetch_request((0, 0), table_id=table_id, predicate=_message(_any_of(9)), filter_schema_id=1)
            )
            for _ in range(2):
                answer = await server.request(apis.FETCH_LOG, requests[-1])
                assert answer.tables[0].buckets[0].filtered_end_offset == 10
        requests[0].tables_req.extend(requests[1].tables_req)
        answer = await server.request(apis.FETCH_LOG, requests[0])
        assert [table.buckets[0].error_code for table in answer.tables] == [None, ErrorCode.RECORD_TOO_LARGE_EXCEPTION]


# Turns


class WaitingFiles(OsFiles):
    """A disk whose reads of some files wait until they may go on, and are counted."""

    def __init__(self, part_of_path: str) -> None:
        super().__init__()
        self.may_read = threading.Event()
        self.may_read.set()
        self.waiting_count = 0
        self.read_count = 0
        self._part_of_path = part_of_path
        self._lock = threading.Lock()

    def read(self, path: Path, position: int, byte_count: int) -> Any:
        if self._part_of_path in str(path):
            self._count(1)
            self.may_read.wait()
            self._count(-1)
        return super().read(path, position, byte_count)

    def _count(self, change: int) -> None:
        with self._lock:
            self.waiting_count += change
            self.read_count += change > 0


async def _in_flight(server: Server, count: int, predicate: Predicate, connections: int = 1) -> list[asyncio.Task[Any]]:
    request = fetch_request((0, 0), predicate=_message(predicate), filter_schema_id=1)
    channels = [await server.connect() for _ in range(connections)]
    return [
        asyncio.create_task(channels[number % connections].request(apis.FETCH_LOG, request, timeout_s=TIMEOUT_S))
        for number in range(count)
    ]


@pytest.mark.parametrize("predicate", [NOTHING, _any_of(500)], ids=["small", "large"])
async def test_filters_leave_threads_to_fetches_without_one(tmp_path: Path, predicate: Predicate) -> None:
    files = WaitingFiles("/greedy-1/")
    tables = [make_table(1, "greedy"), make_table(2, "modest")]
    async with serving(tmp_path, *tables, files=files, settings=OLD) as server:
        await _write(server, 2, table_id=1)
        await _write(server, 2, table_id=2)
        files.may_read.clear()
        greedy = await _in_flight(server, 32, predicate, connections=16)
        try:
            await eventually_async(lambda: files.waiting_count == 2)
            # Columns are cut out in a thread.
            modest = await server.fetch_one(0, table_id=2, columns=[0])
            assert len(list(iter_batches(modest.records_view))) == 2
            assert files.waiting_count == 2
        finally:
            files.may_read.set()
        for answer in await asyncio.gather(*greedy):
            assert answer.tables[0].buckets[0].filtered_end_offset == 20


async def test_a_connection_with_many_filters_waits_for_itself(tmp_path: Path) -> None:
    files = WaitingFiles("/t-1/")
    settings = TabletSettings(filter_threads=1, log=SMALL_SEGMENTS)
    async with serving(tmp_path, make_table(), files=files, settings=settings) as server:
        await _write(server, 2)
        files.may_read.clear()
        order: list[str] = []
        greedy = await _in_flight(server, 20, NOTHING)
        await eventually_async(lambda: files.waiting_count == 1)
        modest = await _in_flight(server, 1, NOTHING)
        for who, task in [*(("greedy", task) for task in greedy), ("modest", modest[0])]:
            task.add_done_callback(lambda _, who=who: order.append(who))
        await eventually_async(lambda: server.service.filter_turns.waiting_count == 20)
        files.may_read.set()
        await asyncio.gather(*greedy, *modest)
        assert order.index("modest") <= 4, "it is the next but one of those that are served"


# The end


async def test_work_stops_when_the_connection_is_gone(tmp_path: Path) -> None:
    files = WaitingFiles("/t-1/")
    async with serving(tmp_path, make_table(), files=files, settings=OLD) as server:
        await _write(server, 12)
        turns = server.service.filter_turns
        assert (await _fetch(server, 0, NOTHING)).filtered_end_offset == 120
        reads_of_a_fetch, files.read_count = files.read_count, 0
        files.may_read.clear()
        greedy = await _in_flight(server, 10, NOTHING)
        await eventually_async(lambda: files.waiting_count == 2)
        await server.channels[-1].close()
        await asyncio.gather(*greedy, return_exceptions=True)
        await eventually_async(lambda: turns.used_bytes == 0)
        files.may_read.set()
        await eventually_async(lambda: turns.free_count == 2)
        assert reads_of_a_fetch >= 12, "a look at each segment"
        assert files.read_count <= 2 * 4, "both were at their first batch, and read nothing behind it"
        assert (await _fetch(server, 0, NOTHING)).filtered_end_offset == 120


async def test_filters_that_wait_are_answered_without_work_when_the_server_stops(tmp_path: Path) -> None:
    files = WaitingFiles("/t-1/")
    async with serving(tmp_path, make_table(), files=files, settings=OLD) as server:
        await _write(server, 2)
        files.may_read.clear()
        greedy = await _in_flight(server, 50, NOTHING, connections=5)
        await eventually_async(lambda: server.service.filter_turns.waiting_count == 48)
        server.service.drain()
        files.may_read.set()
        answers = [answer.tables[0].buckets[0] for answer in await asyncio.gather(*greedy)]
        assert all(answer.error_code is None for answer in answers)
        assert sum(answer.filtered_end_offset == 20 for answer in answers) == 2, "those that were at work"


async def test_filters_of_fetches_that_wait_for_records_have_a_limit_together(tmp_path: Path) -> None:
    settings = TabletSettings(filter_memory_bytes_max=20_000)
    async with serving(tmp_path, make_table(), settings=settings) as server:
        await _write(server, 1)
        request = fetch_request(
            (0, 0), predicate=_message(_any_of(500)), filter_schema_id=1, min_bytes=1, max_wait_ms=LONG_MS
        )
        assert 8_000 < len(request.tables_req[0].filter_predicate) < 20_000
        turns = server.service.filter_turns

        async def fetch(channel: Any) -> Any:
            answer = await channel.request(apis.FETCH_LOG, request, timeout_s=TIMEOUT_S)
            return answer.tables[0].buckets[0]

        first, second = [await server.connect() for _ in range(2)]
        waiting = [asyncio.create_task(fetch(first))]
        await eventually_async(lambda: server.service.delayed_fetch_count == 1)
        turned_away = await fetch(first)
        assert (turned_away.error_code, turned_away.filtered_end_offset) == (None, None), "try again"
        waiting.append(asyncio.create_task(fetch(second)))
        await eventually_async(lambda: server.service.delayed_fetch_count == 2)
        assert turns.used_bytes == 2 * len(request.tables_req[0].filter_predicate)
        await server.produce(batch_with_statistics(rows(-5, 10)))
        for answer in await asyncio.gather(*waiting):
            assert ids(answer.records_view) == list(range(-5, 5))
        assert turns.used_bytes == 0
