"""A limit scan of a primary-key table returns the first rows in the order of their keys; and tables count their rows.

A real server on a real socket over real stores.
"""

from __future__ import annotations

from typing import Any

import pytest

from fluss.errors import ErrorCode
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.server.kv.bucket import KvBucket
from fluss.server.tablet.manager import TabletSettings
from fluss.testing.waiting import eventually_async
from tests.unit.server.merge.merging import Delete
from tests.unit.server.rpc.kv_server import KvServer, kv_table, quick, serving_kv
from tests.unit.server.tablet.support import make_table, rows


async def _scan(server: KvServer, limit: int, bucket: int = 0) -> Any:
    request = pb.LimitScanRequest(table_id=server.table.table_id, bucket_id=bucket, limit=limit)
    return await server.request(apis.LIMIT_SCAN, request)


async def _row_counts(server: KvServer, *buckets: int, table_id: int | None = None) -> list[int]:
    """Return the number of rows of each bucket; errors are below zero."""
    request = pb.GetTableStatsRequest(table_id=server.table.table_id if table_id is None else table_id)
    for bucket in buckets:
        request.buckets_req.add(bucket_id=bucket)
    answers = (await server.request(apis.GET_TABLE_STATS, request)).buckets_resp
    assert [answer.bucket_id for answer in answers] == list(buckets)
    return [answer.row_count if answer.HasField("row_count") else -answer.error_code for answer in answers]


async def test_the_first_rows_come_in_key_order(tmp_path):
    async with serving_kv(tmp_path) as server:
        empty = await _scan(server, 5)
        assert (empty.error_code, empty.is_log_table, server.values_of(empty.records_view)) == (None, False, [])
        await server.put(*((id, f"row {id}") for id in (9, 4, 0, 3, 8, 1, 2, 7, 6, 5)))
        for limit in (0, 1, 5, 10, 11, 2**31 - 1):
            answer = await _scan(server, limit)
            assert not answer.is_log_table
            expected = [(id, f"row {id}") for id in range(min(limit, 10))]
            assert server.values_of(answer.records_view) == expected
        await server.put(Delete((0,)), (1, "new"))
        assert server.values_of((await _scan(server, 2)).records_view) == [(1, "new"), (2, "row 2")]
        assert (await _scan(server, -1)).error_code == ErrorCode.INVALID_SCAN_REQUEST
        assert (await _scan(server, 1, bucket=7)).error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        await eventually_async(lambda: server.used_bytes == 0)


async def test_more_than_an_answer_may_hold_is_refused_and_not_cut(tmp_path):
    settings = TabletSettings(limit_scan_bytes_max=5000)
    async with serving_kv(tmp_path, settings=settings) as server:
        await server.put(*((id, "x" * 1000) for id in range(10)))
        assert len(server.values_of((await _scan(server, 4)).records_view)) == 4
        answer = await _scan(server, 5)
        assert answer.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert "fewer" in answer.error_message


async def test_rows_are_counted_by_bucket_also_after_a_restart(tmp_path):
    table, log_table = kv_table(buckets=2), make_table(2, "log")
    async with serving_kv(tmp_path, table, log_table) as server:
        assert await _row_counts(server, 0, 1) == [0, 0]
        await server.put(*((id, "x") for id in range(100)))
        await server.put(*(Delete((id,)) for id in range(30)), (40, "y"), (1000, "z"), Delete((1000,)))
        await server.put((1, "x"), bucket=1)
        assert await _row_counts(server, 0, 1, 7) == [70, 1, -ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION]
        await server.server.append(rows(0, 5), table_id=2)
        assert await _row_counts(server, 0, table_id=2) == [5]
    async with serving_kv(tmp_path, table, log_table) as server:
        assert await _row_counts(server, 1, 0) == [1, 70]
        assert await _row_counts(server) == []


@pytest.mark.parametrize(("image", "expected"), [("FULL", 1), ("WAL", -ErrorCode.INVALID_TABLE_EXCEPTION)])
async def test_rows_are_counted_unless_the_changelog_has_no_old_ones(tmp_path, image, expected):
    table = kv_table(properties={"table.changelog.image": image})
    async with serving_kv(tmp_path, table, settings=quick()) as server:
        await server.put((1, "one"), (1, "uno"))
        assert await _row_counts(server, 0) == [expected]


async def test_a_bucket_that_is_asked_for_many_times_is_counted_once(tmp_path, monkeypatch):
    """A small request must not have a store asked a hundred thousand times."""
    asked: list[KvBucket] = []
    row_count = KvBucket.row_count
    monkeypatch.setattr(KvBucket, "row_count", lambda bucket: asked.append(bucket) or row_count(bucket))
    async with serving_kv(tmp_path) as server:
        await server.put((1, "a"), (2, "b"))
        assert await _row_counts(server, 0, 0, 7, 0, 7) == [2, 2, -21, 2, -21]
        assert len(asked) == 1
