"""Fetches return what they should: from the right offset, below the high watermark, within limits, for every client.

A real server on a real socket; what is returned is decoded and compared with what was written.
"""

from __future__ import annotations

import asyncio
import random
import threading

import pyarrow as pa
import pytest

from fluss.errors import ErrorCode
from fluss.protocol import api as apis
from fluss.record.log_batch import MAGIC_V0, iter_batches
from fluss.schema.schema import Schema
from fluss.server.model import Partition
from fluss.server.tablet.manager import TabletSettings
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.vfs import OsFiles
from fluss.testing.waiting import eventually_async
from tests.unit.server.tablet.support import (
    SCHEMA,
    MemoryCatalog,
    arrow_batch,
    batch_with_statistics,
    decoded,
    fetch_request,
    ids,
    make_table,
    rows,
    serving,
    with_schema,
)

QUICK = TabletSettings(retry_answer_delay_ms=1)
BATCH_BYTES = len(arrow_batch(rows(0, 10)))


async def test_an_offset_inside_a_batch_returns_the_whole_batch(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await server.append(rows(0, 10))
        answer = await server.fetch_one(3)
        assert ids(answer.records_view) == list(range(10))
        assert (answer.high_watermark, answer.log_start_offset, answer.error_code) == (10, 0, None)
        await server.append(rows(10, 5))
        assert ids((await server.fetch_one(10)).records_view) == [10, 11, 12, 13, 14]


async def test_the_end_of_the_log_is_empty_and_no_error(tmp_path):
    async with serving(tmp_path, make_table(buckets=2)) as server:
        await server.append(rows(0, 2))
        written, empty = await server.fetch((0, 2), (1, 0))
        assert (written.records_view, written.high_watermark, written.error_code) == (b"", 2, None)
        assert (empty.records_view, empty.high_watermark, empty.log_start_offset) == (b"", 0, 0)
        assert written.records is not None, "the field is there, if only with nothing in it"


@pytest.mark.parametrize("offset", [3, 10**15, -1, -3, -(2**62)])
async def test_an_offset_outside_the_log_is_out_of_range(tmp_path, offset):
    async with serving(tmp_path, make_table()) as server:
        await server.append(rows(0, 2))
        answer = await server.fetch_one(offset)
        assert answer.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
        assert "from 0 to 2" in answer.error_message
        assert answer.records is None
        assert answer.high_watermark is None


async def test_minus_two_is_the_earliest_offset(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await server.append(rows(0, 2))
        assert ids((await server.fetch_one(-2)).records_view) == [0, 1]


async def test_unknown_tables_and_buckets_are_answered_one_by_one(tmp_path):
    async with serving(tmp_path, make_table(), settings=QUICK) as server:
        await server.append(rows(0, 1))
        request = fetch_request((0, 0), (5, 0), (-1, 0))
        request.tables_req.append(fetch_request((0, 0), table_id=77).tables_req[0])
        known, unknown = (await server.request(apis.FETCH_LOG, request)).tables
        assert (known.table_id, unknown.table_id) == (1, 77)
        by_bucket = {bucket.bucket_id: bucket for bucket in known.buckets}
        assert ids(by_bucket[0].records_view) == [0]
        assert by_bucket[5].error_code == by_bucket[-1].error_code == unknown.buckets[0].error_code == 21
        assert "TableBucket{tableId=77, bucket=0}" in unknown.buckets[0].error_message


async def test_a_table_of_the_catalog_that_is_not_open_yet_is_worth_another_try(tmp_path):
    async with serving(tmp_path, make_table(), settings=QUICK) as server:
        server.catalog.add(make_table(2, "later", buckets=3))
        (answer,) = await server.fetch((2, 0), table_id=2)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert "not leader or follower" in answer.error_message
        (answer,) = await server.fetch((3, 0), table_id=2)
        assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


async def test_partitions_are_read_by_their_ids(tmp_path):
    table = make_table(partition_keys=["name"])
    catalog = MemoryCatalog(table)
    for partition_id in (11, 12):
        catalog.add_partition(Partition(partition_id, 1, f"p{partition_id}"))
    async with serving(tmp_path, catalog=catalog) as server:
        await server.append(rows(0, 2), partition_id=11)
        await server.append(rows(5, 1), partition_id=12)
        for partition_id, expected in ((11, [0, 1]), (12, [5])):
            (answer,) = await server.fetch((0, 0), partition_id=partition_id)
            assert (answer.partition_id, ids(answer.records_view)) == (partition_id, expected)


async def test_a_request_that_names_a_follower_is_answered_like_that_of_a_client(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await server.append(rows(0, 2))
        (answer,) = await server.fetch((0, 0), follower=3)
        assert ids(answer.records_view) == [0, 1]


# Limits


async def test_a_limit_slightly_above_one_batch_returns_exactly_as_many_bytes(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        for first in (0, 10, 20):
            await server.append(rows(first, 10))
        for limits in ({"max_bytes": BATCH_BYTES + 20}, {"bucket_bytes": BATCH_BYTES + 20}):
            answer = await server.fetch_one(0, **limits)
            assert len(answer.records_view) == BATCH_BYTES + 20
            assert ids(answer.records_view) == list(range(10)), "only the first batch is whole"


async def test_a_large_piece_of_a_batch_is_not_sent(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await server.append(rows(0, 10))
        await server.append(rows(10, 1, text="x" * 100_000))
        answer = await server.fetch_one(0, bucket_bytes=BATCH_BYTES + 50_000)
        assert len(answer.records_view) == BATCH_BYTES
        answer = await server.fetch_one(10, bucket_bytes=50_000)
        assert ids(answer.records_view) == [10]


@pytest.mark.parametrize("limits", [{"max_bytes": 1}, {"bucket_bytes": 0}, {"max_bytes": -5, "bucket_bytes": -5}])
async def test_at_least_one_batch_is_returned_however_small_the_limits(tmp_path, limits):
    async with serving(tmp_path, make_table()) as server:
        await server.append(rows(0, 10))
        await server.append(rows(10, 10))
        assert ids((await server.fetch_one(0, **limits)).records_view) == list(range(10))


async def test_after_the_first_bucket_with_data_limits_are_strict(tmp_path):
    async with serving(tmp_path, make_table(buckets=4)) as server:
        for bucket in (1, 2, 3):
            await server.append(rows(0, 10), bucket)
        answers = await server.fetch(*((bucket, 0) for bucket in range(4)), max_bytes=BATCH_BYTES + 60)
        assert sorted(len(answer.records_view) for answer in answers) == [0, 0, 0, BATCH_BYTES]
        assert all(answer.error_code is None for answer in answers)
        answers = await server.fetch(*((bucket, 0) for bucket in range(4)), max_bytes=2 * BATCH_BYTES)
        assert sorted(len(answer.records_view) for answer in answers) == [0, 0, BATCH_BYTES, BATCH_BYTES]


async def test_a_bucket_limit_below_its_first_batch_returns_nothing_after_the_first_bucket(tmp_path):
    async with serving(tmp_path, make_table(buckets=2)) as server:
        for bucket in (0, 1):
            await server.append(rows(0, 10), bucket)
        answers = await server.fetch((0, 0), (1, 0), bucket_bytes=BATCH_BYTES - 1)
        assert sorted(len(answer.records_view) for answer in answers) == [0, BATCH_BYTES]


async def test_every_bucket_gets_its_turn_when_one_fetch_has_room_for_one_batch(tmp_path):
    async with serving(tmp_path, make_table(buckets=5)) as server:
        for bucket in range(5):
            await server.append(rows(0, 10), bucket)
        offsets = dict.fromkeys(range(5), 0)
        for _ in range(60):
            if all(offset == 10 for offset in offsets.values()):
                break
            for answer in await server.fetch(*offsets.items(), max_bytes=1):
                offsets[answer.bucket_id] += len(ids(answer.records_view))
        assert offsets == dict.fromkeys(range(5), 10)


async def test_no_answer_is_larger_than_the_server_allows(tmp_path):
    settings = TabletSettings(fetch_response_bytes_max=3 * BATCH_BYTES)
    async with serving(tmp_path, make_table(), settings=settings) as server:
        for first in range(0, 100, 10):
            await server.append(rows(first, 10))
        answer = await server.fetch_one(0, max_bytes=2**31 - 1, bucket_bytes=2**31 - 1)
        assert len(answer.records_view) == 3 * BATCH_BYTES


async def test_a_log_of_many_small_segments_is_read_from_end_to_end_without_gaps(tmp_path):
    settings = TabletSettings(log=LogSettings(segment_bytes_max=120))
    async with serving(tmp_path, make_table(), settings=settings) as server:
        for first in range(0, 30, 3):
            await server.append(rows(first, 3))
        assert len(list((tmp_path / "db/t-1/log-0").glob("*.log"))) == 10
        for columns in (None, [0]):
            found, offset = [], 0
            while offset < 30:
                answer = await server.fetch_one(offset, columns=columns)
                batches = list(iter_batches(answer.records_view))
                found += [batch.header.base_offset for batch in batches]
                offset = batches[-1].header.offset_next
            assert found == list(range(0, 30, 3))


class _WatchedFiles(OsFiles):
    """Notes which threads read."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: set[str] = set()

    def read(self, path, position, byte_count):
        self.readers.add(threading.current_thread().name)
        return super().read(path, position, byte_count)


async def test_old_bytes_are_read_by_threads_and_new_ones_at_once(tmp_path):
    files = _WatchedFiles()
    settings = TabletSettings(log=LogSettings(segment_bytes_max=1000))
    async with serving(tmp_path, make_table(), settings=settings, files=files) as server:
        for first in range(0, 100, 10):
            await server.append(rows(first, 10))
        files.readers.clear()
        assert ids((await server.fetch_one(0)).records_view)[0] == 0
        assert {name.rsplit("_", 1)[0] for name in files.readers} == {"fluss-reader"}
        files.readers.clear()
        assert ids((await server.fetch_one(90)).records_view) == list(range(90, 100))
        assert files.readers == {threading.main_thread().name}


async def test_a_bucket_that_is_named_twice_is_read_once(tmp_path):
    async with serving(tmp_path, make_table(buckets=2)) as server:
        for first in (0, 10, 20):
            await server.append(rows(first, 10))
        answers = await server.fetch((0, 0), (1, 0), (0, 10), (0, 20))
        assert [(answer.bucket_id, ids(answer.records_view)) for answer in answers] == [
            (0, list(range(20, 30))),
            (1, []),
        ]


# Memory


async def test_an_answer_is_counted_until_it_has_left(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        big = 64 * 1024 * 1024
        noise = pa.record_batch({"id": pa.array([1], pa.int32()), "name": pa.array(["x" * big])})
        await server.append(noise)
        memory = server.service.fetch_memory
        channel = await server.connect()
        task = asyncio.create_task(channel.request(apis.FETCH_LOG, fetch_request((0, 0)), timeout_s=120))
        await eventually_async(lambda: memory.used_bytes > big)
        assert len((await task).tables[0].buckets[0].records_view) > big
        await eventually_async(lambda: memory.used_bytes == 0)
        task = asyncio.create_task(channel.request(apis.FETCH_LOG, fetch_request((0, 0)), timeout_s=120))
        await eventually_async(lambda: memory.used_bytes > big)
        await channel.close()
        await asyncio.gather(task, return_exceptions=True)
        await eventually_async(lambda: memory.used_bytes == 0)


async def test_when_memory_is_short_fetches_return_one_batch_each(tmp_path):
    settings = TabletSettings(fetch_memory_bytes_max=BATCH_BYTES)
    async with serving(tmp_path, make_table(), settings=settings) as server:
        for first in (0, 10, 20):
            await server.append(rows(first, 10))
        server.service.fetch_memory.count(BATCH_BYTES, "another client")
        answer = await server.fetch_one(0)
        assert ids(answer.records_view) == list(range(10))
        server.service.fetch_memory.give_back(BATCH_BYTES, "another client")


async def test_fetches_beyond_the_memory_get_one_batch_or_nothing_but_no_error(tmp_path):
    settings = TabletSettings(fetch_memory_bytes_max=BATCH_BYTES)
    async with serving(tmp_path, make_table(), settings=settings) as server:
        await server.append(rows(0, 10))
        memory, channel = server.service.fetch_memory, await server.connect()
        memory.count(BATCH_BYTES, "another client")
        fetches = (channel.request(apis.FETCH_LOG, fetch_request((0, 0)), timeout_s=120) for _ in range(5))
        answers = [answer.tables[0].buckets[0] for answer in await asyncio.gather(*fetches)]
        # There is one loan at a time for a client; how many hear that there is nothing is a matter of moments.
        lengths = [len(ids(answer.records_view)) for answer in answers]
        assert lengths[0] == 10
        assert set(lengths) <= {0, 10}
        assert [answer.error_code for answer in answers] == [None] * 5
        memory.count(BATCH_BYTES, "a third client")
        assert (await server.fetch_one(0)).records_view == b"", "twice the budget is used"
        memory.give_back(BATCH_BYTES, "another client")
        memory.give_back(BATCH_BYTES, "a third client")
        assert ids((await server.fetch_one(0)).records_view) == list(range(10))


# Columns


@pytest.mark.parametrize(("columns", "names"), [([0], {"id"}), ([1], {"name"}), ([0, 1], {"id", "name"})])
async def test_only_the_wanted_columns_are_returned(tmp_path, columns, names):
    async with serving(tmp_path, make_table()) as server:
        await server.append(rows(0, 3))
        await server.append(rows(0, 0))
        await server.append(rows(3, 2))
        answer = await server.fetch_one(1, columns=columns)
        found = decoded(answer.records_view, columns=columns)
        assert [row["offset"] for row in found] == [0, 1, 2, 4, 5]
        assert all(row.keys() == {"offset", *names} for row in found)
        headers = [batch.header for batch in iter_batches(answer.records_view)]
        assert [header.base_offset for header in headers] == [0, 3, 4], "empty batches move the offset, too"
        assert answer.high_watermark == 6


@pytest.mark.parametrize("columns", [[2, 3], [1, 0], [0, 0], [-1], []])
async def test_columns_that_cannot_be_selected_are_refused(tmp_path, columns):
    async with serving(tmp_path, make_table()) as server:
        await server.append(rows(0, 1))
        answer = await server.fetch_one(0, columns=columns)
        assert answer.error_code == ErrorCode.INVALID_COLUMN_PROJECTION
        assert "projection" in answer.error_message


@pytest.mark.parametrize("log_format", ["INDEXED", "COMPACTED"])
async def test_columns_of_row_formats_cannot_be_selected(tmp_path, log_format):
    async with serving(tmp_path, make_table(log_format=log_format)) as server:
        answer = await server.fetch_one(0, columns=[0])
        assert answer.error_code == ErrorCode.INVALID_COLUMN_PROJECTION
        assert "only ARROW can be projected" in answer.error_message


async def test_columns_are_looked_up_in_the_schema_of_each_batch(tmp_path):
    table = make_table()
    wider = Schema(pa.schema([*SCHEMA.to_arrow(), ("extra", pa.int64())]))
    async with serving(tmp_path, table) as server:
        await server.append(rows(0, 1))
        altered = with_schema(table, wider)
        server.catalog.add(altered)
        server.manager.table_altered(altered)
        new_rows = rows(1, 1).append_column("extra", pa.array([7], pa.int64()))
        await server.produce(arrow_batch(new_rows, schema_id=2))
        assert (await server.fetch_one(0, columns=[2])).error_code == ErrorCode.INVALID_COLUMN_PROJECTION
        found = decoded((await server.fetch_one(1, columns=[2])).records_view, wider, [2])
        assert found == [{"offset": 1, "extra": 7}]
        found = decoded((await server.fetch_one(0, columns=[0])).records_view, columns=[0])
        assert [row["id"] for row in found] == [0, 1]


async def test_projected_batches_are_whole_and_within_the_limits(tmp_path):
    async with serving(tmp_path, make_table(buckets=2)) as server:
        for first in range(0, 100, 10):
            await server.append(rows(first, 10))
        await server.append(rows(0, 10), 1)
        one = len((await server.fetch_one(90, columns=[0])).records_view)
        answer = await server.fetch_one(0, columns=[0], bucket_bytes=3 * one + 10)
        assert len(answer.records_view) == 3 * one
        answer = await server.fetch_one(0, columns=[0], bucket_bytes=1)
        assert len(answer.records_view) == one, "the first batch is returned all the same"
        answers = await server.fetch((0, 0), (1, 0), columns=[0], max_bytes=one)
        assert sorted(len(answer.records_view) for answer in answers) == [0, one]
        assert len((await server.fetch_one(0, columns=[0])).records_view) == 10 * one


async def test_projected_batches_with_statistics_are_readable_by_every_client(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await server.produce(batch_with_statistics(rows(0, 3)))
        payload = (await server.fetch_one(0, columns=[1])).records_view
        assert [batch.header.magic for batch in iter_batches(payload)] == [MAGIC_V0]
        assert [row["name"] for row in decoded(payload, columns=[1])] == ["row 0", "row 1", "row 2"]


async def test_any_limits_return_every_row_once_and_in_order(tmp_path):
    rng = random.Random(11)
    settings = TabletSettings(log=LogSettings(segment_bytes_max=2000))
    async with serving(tmp_path, make_table(buckets=3), settings=settings) as server:
        written = dict.fromkeys(range(3), 0)
        for _ in range(60):
            bucket, count = rng.randrange(3), rng.randrange(1, 30)
            await server.append(rows(written[bucket], count), bucket)
            written[bucket] += count
        for columns in (None, [0]):
            offsets, seen = dict.fromkeys(written, 0), {bucket: [] for bucket in written}
            for _ in range(2000):
                if offsets == written:
                    break
                limits = {"max_bytes": rng.randrange(5000), "bucket_bytes": rng.randrange(3000)}
                for answer in await server.fetch(*offsets.items(), columns=columns, **limits):
                    for row in decoded(answer.records_view, columns=columns):
                        if row["offset"] >= offsets[answer.bucket_id]:
                            seen[answer.bucket_id].append(row["id"])
                    offsets[answer.bucket_id] = len(seen[answer.bucket_id])
            assert seen == {bucket: list(range(count)) for bucket, count in written.items()}


async def test_many_fetches_at_once_are_all_answered(tmp_path):
    settings = TabletSettings(fetch_memory_bytes_max=4 * BATCH_BYTES, log=LogSettings(segment_bytes_max=3000))
    async with serving(tmp_path, make_table(buckets=4), settings=settings) as server:
        for bucket in range(4):
            for first in range(0, 50, 10):
                await server.append(rows(first, 10), bucket)
        answers = await asyncio.gather(*(server.fetch((n % 4, 0), (3 - n % 4, 20)) for n in range(40)))
        assert all(any(len(bucket.records_view) for bucket in answer) for answer in answers)
        await eventually_async(lambda: server.service.fetch_memory.used_bytes == 0)
