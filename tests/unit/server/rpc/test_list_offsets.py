"""Offsets are found by kind and by time, bucket by bucket.

A real server on a real socket; the clock is the test's own.
"""

from __future__ import annotations

import pytest

from fluss.errors import ErrorCode
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.server.model import Partition
from fluss.server.rpc.bucket_access import BucketAccess
from fluss.server.rpc.bucket_info import EARLIEST, LATEST, LOG_END, TIMESTAMP
from fluss.server.tablet.manager import TabletSettings
from fluss.storage.log.log_settings import LogSettings
from tests.unit.server.tablet.support import NOW_MS, Clock, MemoryCatalog, make_table, rows, serving

QUICK = TabletSettings(retry_answer_delay_ms=1)


async def test_a_fresh_table_begins_and_ends_at_zero(tmp_path):
    async with serving(tmp_path, make_table(buckets=3)) as server:
        for kind in (EARLIEST, LATEST, LOG_END):
            answers = await server.offsets(2, 0, 1, type=kind)
            assert [(a.bucket_id, a.offset) for a in answers] == [(2, 0), (0, 0), (1, 0)]
            assert not any(a.HasField("error_code") for a in answers)


async def test_after_three_rows_the_latest_offset_is_three(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await server.append(rows(0, 3))
        for kind, offset in ((EARLIEST, 0), (LATEST, 3), (LOG_END, 3)):
            assert [a.offset for a in await server.offsets(0, type=kind)] == [offset]


async def test_a_time_leads_to_the_first_batch_that_is_not_older(tmp_path):
    clock = Clock()
    settings = TabletSettings(log=LogSettings(segment_bytes_max=500))
    async with serving(tmp_path, make_table(), clock=clock, settings=settings) as server:
        for first in range(0, 30, 3):
            clock.now_ms = NOW_MS + 100 * first
            await server.append(rows(first, 3))
        clock.now_ms = NOW_MS + 10_000

        async def at(timestamp: int) -> int:
            (answer,) = await server.offsets(0, type=TIMESTAMP, timestamp=timestamp)
            return answer.offset

        assert await at(NOW_MS - 1) == 0
        assert await at(0) == 0
        for first in range(0, 30, 3):
            assert await at(NOW_MS + 100 * first) == first
            assert await at(NOW_MS + 100 * first + 1) == first + 3
        assert await at(NOW_MS + 2701) == 30, "after the last row and not in the future"
        assert await at(NOW_MS + 10_000) == 30


@pytest.mark.parametrize("is_large", [False, True])
async def test_times_are_found_after_a_restart(tmp_path, is_large):
    clock, table = Clock(), make_table()
    text = "x" * 200_000 if is_large else "x"
    async with serving(tmp_path, table, clock=clock) as server:
        for first in range(8):
            clock.now_ms = NOW_MS + 100 * first
            await server.append(rows(first, 1, text))
    async with serving(tmp_path, table, clock=clock) as server:
        for first in range(8):
            (answer,) = await server.offsets(0, type=TIMESTAMP, timestamp=NOW_MS + 100 * first - 50)
            assert answer.offset == first


async def test_a_time_in_the_future_is_refused(tmp_path):
    async with serving(tmp_path, make_table(buckets=2)) as server:
        answers = await server.offsets(0, 1, type=TIMESTAMP, timestamp=NOW_MS + 1)
        assert [a.error_code for a in answers] == [ErrorCode.INVALID_TIMESTAMP_EXCEPTION] * 2
        assert "future" in answers[0].error_message
        (answer,) = await server.offsets(0, type=TIMESTAMP, timestamp=NOW_MS)
        assert answer.offset == 0, "an empty log ends where it begins"


@pytest.mark.parametrize(("kind", "timestamp"), [(TIMESTAMP, None), (4, None), (-1, 5)])
async def test_unknown_kinds_and_missing_times_are_refused(tmp_path, kind, timestamp):
    async with serving(tmp_path, make_table()) as server:
        (answer,) = await server.offsets(0, type=kind, timestamp=timestamp)
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert answer.error_message


async def test_unknown_buckets_are_answered_beside_the_known_ones(tmp_path):
    async with serving(tmp_path, make_table(), settings=QUICK) as server:
        for kind in (LATEST, TIMESTAMP):
            await server.append(rows(0, 1))
            known, unknown = await server.offsets(0, 8, type=kind, timestamp=NOW_MS)
            assert not known.HasField("error_code")
            assert unknown.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
            assert not unknown.HasField("offset")
        (answer,) = await server.offsets(0, type=LATEST, table_id=9)
        assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        server.catalog.add(make_table(2, "later"))
        (answer,) = await server.offsets(0, type=LATEST, table_id=2)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert "not leader or follower" in answer.error_message


async def test_partitions_have_offsets_of_their_own(tmp_path):
    catalog = MemoryCatalog(make_table(partition_keys=["name"]))
    catalog.add_partition(Partition(5, 1, "p"))
    async with serving(tmp_path, catalog=catalog, settings=QUICK) as server:
        await server.append(rows(0, 4), partition_id=5)
        (answer,) = await server.offsets(0, type=LATEST, partition_id=5)
        assert answer.offset == 4
        (answer,) = await server.offsets(0, type=LATEST, partition_id=6)
        assert "partitionId=6" in answer.error_message


@pytest.mark.parametrize(("kind", "timestamp", "offsets"), [(LATEST, None, (4, 2)), (TIMESTAMP, NOW_MS, (0, 0))])
async def test_a_bucket_that_is_asked_for_again_and_again_is_looked_at_once(
    tmp_path, monkeypatch, kind, timestamp, offsets
):
    looked: list[tuple[int | None, int]] = []
    find = BucketAccess.bucket

    def found(access, table, table_id, partition_id, bucket_id):
        looked.append((partition_id, bucket_id))
        return find(access, table, table_id, partition_id, bucket_id)

    catalog = MemoryCatalog(make_table(partition_keys=["name"], buckets=2))
    catalog.add_partition(Partition(5, 1, "p"))
    catalog.add_partition(Partition(6, 1, "q"))
    async with serving(tmp_path, catalog=catalog, settings=QUICK) as server:
        await server.append(rows(0, 4), partition_id=5)
        await server.append(rows(0, 2), partition_id=6)
        await server.offsets(0, 1, type=LATEST, partition_id=5)
        request = pb.ListOffsetsRequest(
            follower_server_id=-1,
            offset_type=kind,
            table_id=1,
            partition_id=5,
            bucket_id=[1, 0, 7, 0, 7] * 100,
            startTimestamp=timestamp,
        )
        for ids in ([0, 9, 0] * 100, [0, 0]):
            request.more_partitions.add(partition_id=6, bucket_id=ids)
        monkeypatch.setattr(BucketAccess, "bucket", found)
        response = await server.request(apis.LIST_OFFSETS, request)
    assert sorted(looked) == [(5, 0), (5, 1), (5, 7), (6, 0), (6, 9)]
    answers = [(a.bucket_id, a.offset if a.HasField("offset") else a.error_code) for a in response.buckets_resp]
    assert answers == [(1, 0), (0, offsets[0]), (7, 21), (0, offsets[0]), (7, 21)] * 100
    first, second = response.more_partitions
    assert list(first.bucket_id) == [0] * 200
    assert list(first.offset) == [offsets[1]] * 200
    assert [(a.bucket_id, a.error_code) for a in first.failures] == [(9, 21)] * 100
    assert (list(second.bucket_id), list(second.offset)) == ([0, 0], [offsets[1]] * 2)


async def test_rows_are_counted_bucket_by_bucket(tmp_path):
    async with serving(tmp_path, make_table(buckets=2)) as server:
        await server.append(rows(0, 4))
        request = pb.GetTableStatsRequest(table_id=1)
        for bucket in (1, 0, 7):
            request.buckets_req.add(bucket_id=bucket)
        answers = (await server.request(apis.GET_TABLE_STATS, request)).buckets_resp
        assert [(a.bucket_id, a.row_count, a.error_code) for a in answers] == [(1, 0, 0), (0, 4, 0), (7, 0, 21)]
        assert not answers[1].HasField("error_code")
        assert not answers[2].HasField("row_count")
