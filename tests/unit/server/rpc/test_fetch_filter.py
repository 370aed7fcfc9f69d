"""A filter leaves out batches that hold no wanted row, never a row that is wanted, and never stands still.

Batches with and without statistics are written to a real server and fetched with filters as clients send them.
"""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.predicates import predicate_to_pb
from fluss.record.log_batch import MAGIC_V0, MAGIC_V1, build_batch, iter_batches
from fluss.schema.predicate import col
from fluss.schema.schema import Schema
from fluss.server.tablet import log_reads
from fluss.server.tablet.manager import TabletSettings
from fluss.storage.log.log_settings import LogSettings
from fluss.testing.waiting import eventually_async
from tests.unit.server.tablet.support import (
    SCHEMA,
    Server,
    arrow_batch,
    batch_with_statistics,
    decoded,
    ids,
    make_table,
    rows,
    serving,
    with_schema,
)

LONG_MS = 3_600_000
SMALL_SEGMENTS = TabletSettings(log=LogSettings(segment_bytes_max=1000))


def _filter(predicate, schema: Schema = SCHEMA) -> pb.PbPredicate:
    return predicate_to_pb(predicate.bind(schema))


async def _fetch(server: Server, offset: int, predicate, **options):
    return await server.fetch_one(offset, predicate=_filter(predicate), filter_schema_id=1, **options)


async def _write(server: Server, *firsts: int) -> None:
    for first in firsts:
        await server.produce(batch_with_statistics(rows(first, 10)))


async def test_a_batch_that_can_match_is_returned_whole_and_the_others_are_left_out(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await _write(server, 0, 100, 200)
        answer = await _fetch(server, 0, col("id") == 105)
        assert ids(answer.records_view) == list(range(100, 110))
        assert answer.filtered_end_offset == 30, "the last batch was skipped"
        answer = await _fetch(server, 0, col("id") >= 205)
        assert (ids(answer.records_view), answer.filtered_end_offset) == (list(range(200, 210)), None)
        assert [batch.header.magic for batch in iter_batches(answer.records_view)] == [MAGIC_V0]


async def test_a_fetch_that_skips_everything_says_how_far_it_came(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await _write(server, 0, 100)
        answer = await _fetch(server, 0, col("id") > 1000)
        assert (answer.records_view, answer.filtered_end_offset, answer.high_watermark) == (b"", 20, 20)
        answer = await _fetch(server, 20, col("id") > 1000)
        assert (answer.records_view, answer.filtered_end_offset) == (b"", None)


async def test_batches_about_which_too_little_is_known_are_kept(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await server.append(rows(0, 10))
        nonsense = build_batch(
            [rows(10, 10).serialize()],
            schema_id=1,
            record_count=10,
            append_only=True,
            magic=MAGIC_V1,
            statistics=b"\x01\x02\x00garbage",
        )
        assert (await server.produce(nonsense)).base_offset == 10
        answer = await _fetch(server, 0, col("id") > 1000)
        assert ids(answer.records_view) == list(range(20))


async def test_a_filter_that_is_not_understood_filters_nothing(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await _write(server, 0)
        predicate = _filter(col("id") > 1000)
        unknown_schema = await server.fetch_one(0, predicate=predicate, filter_schema_id=9)
        predicate.leaf.function = 99
        unknown_function = await server.fetch_one(0, predicate=predicate, filter_schema_id=1)
        for answer in (unknown_schema, unknown_function):
            assert (ids(answer.records_view), answer.filtered_end_offset) == (list(range(10)), None)


async def test_row_formats_are_not_filtered(tmp_path):
    async with serving(tmp_path, make_table(log_format="COMPACTED")) as server:
        answer = await _fetch(server, 0, col("id") > 1000)
        assert (answer.error_code, answer.records_view) == (None, b"")


async def test_columns_and_filter_together(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await _write(server, 0, 100)
        await server.append(rows(0, 0))
        answer = await _fetch(server, 0, col("id") < 50, columns=[1])
        found = decoded(answer.records_view, columns=[1])
        assert [row["name"] for row in found] == [f"row {n}" for n in range(10)]
        assert answer.filtered_end_offset == 21, "an empty batch has nothing that could be wanted"


async def test_batches_of_an_older_schema_are_judged_by_what_they_have(tmp_path):
    table = make_table()
    wider = Schema(pa.schema([*SCHEMA.to_arrow(), ("extra", pa.int64())]))
    async with serving(tmp_path, table) as server:
        await _write(server, 0, 100)
        altered = with_schema(table, wider)
        server.catalog.add(altered)
        server.manager.table_altered(altered)
        options = {"filter_schema_id": 2}
        answer = await server.fetch_one(0, predicate=_filter(col("extra") == 1, wider), **options)
        assert len(ids(answer.records_view)) == 20, "nothing is known about a column that was not there yet"
        answer = await server.fetch_one(0, predicate=_filter(col("id") == 105, wider), **options)
        assert ids(answer.records_view) == list(range(100, 110))


@pytest.mark.parametrize("count", [40])
async def test_a_long_run_of_skipped_segments_is_told_in_steps(tmp_path, monkeypatch, count):
    monkeypatch.setattr(log_reads, "_SCAN_READS_MAX", 4)
    async with serving(tmp_path, make_table(), settings=SMALL_SEGMENTS) as server:
        await _write(server, *range(0, 10 * count, 10))
        await _write(server, 10_000)
        offset, steps, found = 0, 0, []
        while offset < 10 * count + 10:
            answer = await _fetch(server, offset, col("id") >= 10_000, min_bytes=1, max_wait_ms=LONG_MS)
            batches = list(iter_batches(answer.records_view))
            found += ids(answer.records_view)
            before = offset
            offset = max([answer.filtered_end_offset or 0, *(batch.header.offset_next for batch in batches)])
            assert offset > before
            steps += 1
        assert found == list(range(10_000, 10_010))
        assert steps > 4, "no fetch looks at the whole log"


async def test_a_waiting_fetch_is_not_answered_by_batches_it_skips(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        waiting = asyncio.create_task(_fetch(server, 0, col("id") >= 1000, min_bytes=1, max_wait_ms=LONG_MS))
        await eventually_async(lambda: server.service.delayed_fetch_count == 1)
        await _write(server, 0, 100)
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await _write(server, 1000)
        answer = await waiting
        assert ids(answer.records_view) == list(range(1000, 1010))


async def test_a_wait_that_only_skipped_ends_with_the_offset_it_reached(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await _write(server, 0)
        answer = await _fetch(server, 0, col("id") >= 1000, min_bytes=1, max_wait_ms=30)
        assert (answer.records_view, answer.filtered_end_offset, answer.high_watermark) == (b"", 10, 10)


async def test_no_matching_row_is_ever_lost(tmp_path):
    async with serving(tmp_path, make_table(), settings=SMALL_SEGMENTS) as server:
        firsts = [7 * n % 50 * 10 for n in range(50)]
        for index, first in enumerate(firsts):
            batch = rows(first, 10)
            await server.produce(batch_with_statistics(batch) if index % 3 else arrow_batch(batch))
        wanted = {n for n in range(500) if 123 <= n < 287}
        offset, found = 0, set()
        while offset < 500:
            answer = await _fetch(
                server, offset, (col("id") >= 123) & (col("id") < 287), bucket_bytes=1500, columns=[0]
            )
            batches = list(iter_batches(answer.records_view))
            found |= {row["id"] for row in decoded(answer.records_view, columns=[0])}
            offset = max([answer.filtered_end_offset or 0, *(batch.header.offset_next for batch in batches)])
        assert wanted <= found
        assert len(found) < 500


async def test_a_filter_that_skips_nothing_is_asked_less_often_until_it_skips_something(tmp_path, monkeypatch):
    monkeypatch.setattr(log_reads, "_FRUITLESS_BATCHES", 3)
    monkeypatch.setattr(log_reads, "_FRUITLESS_TURNS", 4)
    async with serving(tmp_path, make_table()) as server:
        await _write(server, 0, 10, 20)
        answer = await _fetch(server, 0, col("id") < 100)
        assert len(ids(answer.records_view)) == 30, "none of three batches is skipped"
        await _write(server, 1000)

        async def is_skipped() -> bool:
            return (await _fetch(server, 30, col("id") < 100)).filtered_end_offset == 40

        assert [await is_skipped() for _ in range(4)] == [False, False, False, True]
        assert [await is_skipped() for _ in range(4)] == [True] * 4, "it is worth asking again"
