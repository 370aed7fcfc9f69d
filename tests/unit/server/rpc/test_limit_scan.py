"""A limit scan of a log table returns the newest rows, whole batches of them, over any number of segments.

A real server on a real socket; rows are cut to the limit as clients do it.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from fluss.errors import ErrorCode
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.log_batch import MAGIC_V0, iter_batches
from fluss.server.model import Partition
from fluss.server.rpc import scans
from fluss.server.tablet import log_reads
from fluss.server.tablet.buckets import RemoteOffsets
from fluss.server.tablet.manager import TabletSettings
from fluss.storage.log.log_settings import LogSettings
from fluss.testing.waiting import eventually_async
from tests.unit.server.tablet.support import (
    MemoryCatalog,
    Server,
    arrow_batch,
    batch_with_statistics,
    ids,
    make_table,
    rows,
    serving,
)

QUICK = TabletSettings(retry_answer_delay_ms=1)


async def _scan(server: Server, limit: int, bucket: int = 0, *, table_id: int = 1, partition_id: int | None = None):
    request = pb.LimitScanRequest(table_id=table_id, bucket_id=bucket, limit=limit, partition_id=partition_id)
    return await server.request(apis.LIMIT_SCAN, request)


async def _newest(server: Server, limit: int) -> list[int]:
    found = ids((await _scan(server, limit)).records_view)
    return found[len(found) - limit :] if limit < len(found) else found


@pytest.mark.parametrize("segment_bytes", [1 << 30, 700])
async def test_the_newest_rows_are_returned_in_order_also_over_segments(tmp_path, segment_bytes):
    settings = TabletSettings(log=LogSettings(segment_bytes_max=segment_bytes))
    async with serving(tmp_path, make_table(), settings=settings) as server:
        assert await _newest(server, 5) == []
        for first in range(0, 60, 4):
            await server.append(rows(first, 4))
            for limit in (1, 4, 5, 1000):
                assert await _newest(server, limit) == list(range(max(0, first + 4 - limit), first + 4))
        assert (await _scan(server, 5)).is_log_table
        await eventually_async(lambda: server.service.fetch_memory.used_bytes == 0)


async def test_a_limit_of_nothing_returns_nothing_and_a_negative_one_is_refused(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await server.append(rows(0, 3))
        answer = await _scan(server, 0)
        assert (answer.error_code, answer.records_view) == (None, b"")
        answer = await _scan(server, -1)
        assert answer.error_code == ErrorCode.INVALID_SCAN_REQUEST


async def test_errors_are_in_the_body_of_the_answer(tmp_path):
    async with serving(tmp_path, make_table(), settings=QUICK) as server:
        answer = await _scan(server, 5, bucket=3)
        assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        assert answer.records is None
        answer = await _scan(server, 5, table_id=9)
        assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


async def test_more_than_the_server_can_return_is_refused_and_not_cut(tmp_path):
    one = len(arrow_batch(rows(10, 10)))
    settings = TabletSettings(limit_scan_bytes_max=2 * one)
    async with serving(tmp_path, make_table(), settings=settings) as server:
        for first in (0, 10, 20):
            await server.append(rows(first, 10))
        assert await _newest(server, 20) == list(range(10, 30))
        answer = await _scan(server, 21)
        assert answer.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert "lower limit" in answer.error_message


async def test_partitions_are_scanned_by_their_ids(tmp_path):
    catalog = MemoryCatalog(make_table(partition_keys=["name"]))
    catalog.add_partition(Partition(5, 1, "p"))
    async with serving(tmp_path, catalog=catalog) as server:
        await server.append(rows(0, 4), partition_id=5)
        assert ids((await _scan(server, 2, partition_id=5)).records_view) == [0, 1, 2, 3]


async def test_batches_with_statistics_are_readable_by_every_client(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await server.produce(batch_with_statistics(rows(0, 2)))
        await server.append(rows(2, 2))
        payload = (await _scan(server, 10)).records_view
        assert [batch.header.magic for batch in iter_batches(payload)] == [MAGIC_V0, MAGIC_V0]
        assert ids(payload) == [0, 1, 2, 3]


async def test_scans_that_wait_for_remote_storage_hold_up_no_others(tmp_path, monkeypatch):
    """However many there are: remote storage can be away for minutes."""
    may_go_on, waiting = threading.Event(), []

    def newest(log, row_count, bytes_max, archive=None):
        if archive is not None:
            waiting.append(archive)
            may_go_on.wait()
        return newest_batches(log, row_count, bytes_max)

    class EmptyRegistry:
        async def load(self):
            return []

    newest_batches = log_reads.newest_batches
    monkeypatch.setattr(scans, "newest_batches", newest)
    settings = TabletSettings(reader_threads=2)
    tables = make_table(), make_table(table_id=2, name="near")
    async with serving(tmp_path, *tables, settings=settings, remote_registry=EmptyRegistry()) as server:
        await server.append(rows(0, 10))
        await server.append(rows(0, 3), table_id=2)
        remote = server.manager.tables[1].groups[None].remote = RemoteOffsets(1)
        remote.ends[0] = 5
        far = [asyncio.create_task(_scan(server, 10)) for _ in range(20)]
        try:
            await eventually_async(lambda: len(waiting) >= 2)
            near = asyncio.create_task(_scan(server, 3, table_id=2))
            await eventually_async(near.done)
            assert ids((await near).records_view) == [0, 1, 2]
            memory = server.service.fetch_memory
            assert memory.used_bytes <= len(waiting) * scans._TAKEN_BYTES, "those that wait for a turn hold none"
        finally:
            may_go_on.set()
        assert [ids((await task).records_view) for task in far] == [list(range(10))] * 20
        await eventually_async(lambda: memory.used_bytes == 0)
