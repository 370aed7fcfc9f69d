"""Buckets are numbers until they are used: what a start and a drop cost, and that nothing is lost or mistaken by it.

Real directories and a real server; a crash is a copy of the data directory taken while the server runs.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fluss.errors import ErrorCode
from fluss.protocol import api as apis
from fluss.protocol import bulk_messages
from fluss.schema.table import TableBucket
from fluss.server.model import BucketHealth, Partition
from fluss.server.options.server_options import ServerOptions
from fluss.server.tablet.buckets import HostedBucket, NotOpenError
from fluss.server.tablet.manager import TabletManager, TabletSettings
from fluss.storage.log.checkpoint_file import decode_checkpoint
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.log.tablet import LogTablet
from fluss.storage.vfs import OsFiles
from fluss.testing.waiting import eventually_async
from tests.unit.server.tablet.support import (
    HIGH_WATERMARKS,
    MARKER,
    QUICK,
    RECOVERY,
    Clock,
    MemoryCatalog,
    Server,
    arrow_batch,
    ids,
    make_table,
    rows,
    serving,
)

SEGMENT = "00000000000000000000.log"


def _open_buckets(server: Server, table_id: int = 1) -> list[int]:
    return sorted(bucket.bucket.bucket_id for bucket in server.manager.tables[table_id] if bucket.tablet is not None)


async def _all_ids(server: Server, bucket: int = 0, **options) -> list[int]:
    (answer,) = await server.fetch((bucket, 0), **options)
    assert answer.error_code is None, answer
    return ids(answer.records_view)


class SlowFiles(OsFiles):
    """A disk that lists directories of logs only when it may, and counts how often."""

    def __init__(self) -> None:
        super().__init__()
        self.may_list = asyncio.Event()
        self.may_list.set()
        self.listed: list[str] = []
        self._loop = asyncio.get_running_loop()

    def names(self, directory):
        if directory.name.startswith("log-"):
            self.listed.append(directory.name)
            asyncio.run_coroutine_threadsafe(self.may_list.wait(), self._loop).result()
        return super().names(directory)


# Opening


async def test_a_start_opens_nothing_and_a_request_opens_what_it_asks_for(tmp_path):
    table = make_table(buckets=100)
    async with serving(tmp_path, table) as server:
        for bucket in range(0, 100, 10):
            await server.append(rows(bucket, 1), bucket)
    async with serving(tmp_path, table) as server:
        assert _open_buckets(server) == []
        assert server.manager.health() == BucketHealth(100, 100)
        assert await _all_ids(server, 30) == [30]
        assert await _all_ids(server, 31) == []
        (offset,) = await server.offsets(40, type=1)
        assert offset.offset == 1
        assert await server.append(rows(1, 1), 50) == 1
        assert _open_buckets(server) == [30, 31, 40, 50]
    # What nobody has touched is noted as it was, and nothing was made that is not needed.
    expected = {TableBucket(1, bucket): 1 for bucket in range(0, 100, 10)} | {TableBucket(1, 50): 2}
    for name in (RECOVERY, HIGH_WATERMARKS):
        assert decode_checkpoint((tmp_path / name).read_bytes()) == expected
    assert sorted(path.name for path in (tmp_path / "db/t-1").iterdir()) == [f"log-{n}" for n in range(0, 100, 10)]


@pytest.mark.parametrize("is_new", [True, False])
async def test_thousands_of_buckets_can_be_asked_for_at_once(tmp_path, is_new):
    table = make_table(buckets=3000)
    catalog = MemoryCatalog() if is_new else MemoryCatalog(table)
    async with serving(tmp_path, catalog=catalog) as server:
        if is_new:
            catalog.add(table)
            await server.manager.open_buckets(table, None)
        answers = await server.offsets(*range(1000), type=1)
        assert {(answer.error_code, answer.offset) for answer in answers} == {(0, 0)}
        assert {answer.error_code for answer in await server.fetch(*((bucket, 0) for bucket in range(2000)))} == {None}
        batch = bytes(arrow_batch(rows(0, 1)))
        entries = [bulk_messages.BucketRecords(bucket, bytearray(batch)) for bucket in range(2000, 2400)]
        request = bulk_messages.ProduceLogRequest(-1, 1, 60_000, entries)
        written = (await server.request(apis.PRODUCE_LOG, request)).buckets_resp
        assert [(each.bucket_id, each.error_code, each.base_offset) for each in written] == [
            (bucket, 0, 0) for bucket in range(2000, 2400)
        ]
        assert await _all_ids(server, 2399) == [0]


async def test_requests_that_come_while_a_log_is_opened_wait_in_their_order_and_open_it_once(tmp_path):
    table = make_table(buckets=2)
    async with serving(tmp_path, table) as server:
        for bucket in (0, 1):
            await server.append(rows(0, 1), bucket)
    files = SlowFiles()
    async with serving(tmp_path, table, files=files) as server:
        assert await _all_ids(server, 1) == [0]
        files.listed.clear()
        files.may_list.clear()

        def produce(sequence: int) -> asyncio.Task:
            """Send a batch of an idempotent writer to both buckets, of which one is open."""
            payload = bytes(arrow_batch(rows(sequence + 1, 1), writer_id=7, sequence=sequence))
            entries = [bulk_messages.BucketRecords(bucket, bytearray(payload)) for bucket in (0, 1)]
            return asyncio.create_task(
                server.request(apis.PRODUCE_LOG, bulk_messages.ProduceLogRequest(-1, 1, 30_000, entries))
            )

        writes = [produce(sequence) for sequence in range(5)]
        read = asyncio.create_task(server.fetch((0, 0)))
        await eventually_async(lambda: len(files.listed) > 0)
        # Others are served meanwhile, also by the same server.
        assert (await server.offsets(1, type=0))[0].offset == 0
        assert not any(write.done() for write in writes)
        files.may_list.set()
        for sequence, write in enumerate(writes):
            answers = (await write).buckets_resp
            assert [(each.error_code, each.base_offset) for each in answers] == [(0, sequence + 1)] * 2
        assert ids((await read)[0].records_view)[:1] == [0]
        assert await _all_ids(server) == await _all_ids(server, 1) == list(range(6))
        assert files.listed == ["log-0"]


@pytest.mark.parametrize("is_used_again", [True, False])
async def test_a_bucket_that_was_found_while_its_log_was_closed_is_opened_once(tmp_path, is_used_again):
    # Two logs, and two stores of rows by key, wrote over each other, and a stop waited for the second one for ever.
    async with serving(tmp_path, make_table(buckets=1)) as server:
        await server.append(rows(0, 1))
        group = server.manager.tables[1].group(None)
        found = group[0]
        closing = asyncio.create_task(found.close())
        await asyncio.sleep(0)
        with pytest.raises(NotOpenError) as not_open:
            found.log()
        await closing
        assert not group.in_use
        if is_used_again:
            await server.append(rows(1, 1))
        hosted = await found.open()
        assert hosted is group[0]
        assert hosted is not_open.value.bucket
        assert hosted.log().offset_next == 1 + is_used_again
        done: list[str] = []
        found.when_open(lambda: done.append("at once"))
        assert done
        assert found.tablet is None


async def test_a_log_that_a_request_has_asked_for_meanwhile_is_not_closed(tmp_path):
    async with serving(tmp_path, make_table(buckets=1)) as server:
        await server.append(rows(0, 1))
        bucket = server.manager.tables[1].group(None)[0]
        bucket.is_used = False
        closing = asyncio.create_task(server.manager._upkeep._close_unused([bucket]))
        # Before the task has begun.
        log = bucket.log()
        await closing
        assert bucket.log() is log


async def test_a_write_that_waited_too_long_for_its_log_is_refused_and_not_made_later(tmp_path):
    table = make_table()
    async with serving(tmp_path, table) as server:
        await server.append(rows(0, 1))
    files = SlowFiles()
    async with serving(tmp_path, table, files=files) as server:
        files.may_list.clear()
        answer = await server.produce(arrow_batch(rows(1, 1)), timeout_ms=20)
        assert answer.error_code == ErrorCode.REQUEST_TIME_OUT
        files.may_list.set()
        assert await _all_ids(server) == [0]


async def test_a_table_that_is_dropped_while_its_log_is_opened_leaves_nothing(tmp_path):
    table = make_table()
    async with serving(tmp_path, table) as server:
        await server.append(rows(0, 1))
    files = SlowFiles()
    async with serving(tmp_path, table, settings=QUICK, files=files) as server:
        files.may_list.clear()
        write = asyncio.create_task(server.produce(arrow_batch(rows(1, 1))))
        await eventually_async(lambda: len(files.listed) > 0)
        server.catalog.remove(table)
        await server.manager.drop_buckets(table, None)
        assert (await write).error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        files.may_list.set()
        await eventually_async(lambda: not (tmp_path / "db").exists())


class ScarceFiles(OsFiles):
    """There are no descriptors left for segments."""

    is_scarce = True
    refused_count = 0

    def size(self, path):
        if self.is_scarce and path.name == SEGMENT:
            self.refused_count += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return super().size(path)


async def test_a_shortage_of_descriptors_passes_and_damage_stays(tmp_path):
    table = make_table()
    async with serving(tmp_path, table) as server:
        await server.append(rows(0, 1))
    files = ScarceFiles()
    async with serving(tmp_path, table, settings=QUICK, files=files) as server:
        (answer,) = await server.fetch((0, 0))
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert server.manager.health() == BucketHealth(1, 1)
        files.is_scarce = False
        assert await _all_ids(server) == [0]


async def test_a_log_that_is_missing_is_reported_when_it_is_asked_for(tmp_path):
    table = make_table(buckets=2)
    async with serving(tmp_path, table) as server:
        await server.append(rows(0, 3), 1)
    shutil.rmtree(tmp_path / "db/t-1/log-1")
    for _ in range(2):
        async with serving(tmp_path, table, settings=QUICK) as server:
            (answer,) = await server.fetch((1, 0))
            assert answer.error_code == ErrorCode.STORAGE_EXCEPTION
            assert "though 3 offsets of it were written" in answer.error_message
            assert (await server.produce(arrow_batch(rows(0, 1)), 1)).error_code == ErrorCode.STORAGE_EXCEPTION
            assert server.manager.health() == BucketHealth(2, 1)
        assert not (tmp_path / MARKER).exists()


# After a crash


TORN = arrow_batch(rows(99, 5))[:-3]


def _crashed_with_torn_tail(data_dir: Path, copy: Path) -> Path:
    shutil.copytree(data_dir, copy)
    (copy / RECOVERY).unlink(missing_ok=True)
    with (copy / "db/t-1/log-0" / SEGMENT).open("ab") as file:
        file.write(TORN)
    return copy


@pytest.mark.parametrize("is_stopped_at_once", [True, False])
async def test_a_torn_tail_that_nobody_asked_for_is_still_cut_off_after_a_clean_stop(tmp_path, is_stopped_at_once):
    table = make_table(buckets=2)
    async with serving(tmp_path / "data", table) as server:
        await server.append(rows(0, 5))
        await server.append(rows(0, 1), 1)
        copy = _crashed_with_torn_tail(tmp_path / "data", tmp_path / "copy")
    size = (copy / "db/t-1/log-0" / SEGMENT).stat().st_size
    if is_stopped_at_once:
        # The stop comes before the background has looked at any log.
        async with _hosting(copy, table) as manager:
            manager._upkeep.stop()
        assert (copy / "db/t-1/log-0" / SEGMENT).stat().st_size == size
        assert not (copy / MARKER).exists(), "there is something left to look at"
    else:
        async with serving(copy, table) as server:
            # Nothing has asked for them, but they have been looked through.
            assert _open_buckets(server) == []
            assert (copy / "db/t-1/log-0" / SEGMENT).stat().st_size < size
        assert (copy / MARKER).exists()
    async with serving(copy, table) as server:
        assert await _all_ids(server) == [0, 1, 2, 3, 4]
        assert await server.append(rows(5, 1)) == 5
        assert await _all_ids(server, 1) == [0]


@pytest.mark.parametrize("is_asked_for", [False, True])
async def test_a_log_that_cannot_be_looked_through_for_a_while_is_not_called_clean(tmp_path, is_asked_for):
    table = make_table(buckets=2)
    async with serving(tmp_path / "data", table) as server:
        await server.append(rows(0, 5))
        copy = _crashed_with_torn_tail(tmp_path / "data", tmp_path / "copy")
    files = ScarceFiles()
    async with _hosting(copy, table, files=files) as manager:
        if is_asked_for:
            await (group := manager.tables[1].group(None))[0].open()
            assert group[0].tablet is None
        await eventually_async(lambda: files.refused_count > 0)
    assert not (copy / MARKER).exists(), "there is something left to look at"
    # Later, in the same run, it can be looked at.
    files = ScarceFiles()
    async with _hosting(copy, table, files=files, recovery_retry_ms=1) as manager:
        await eventually_async(lambda: files.refused_count > 1)
        files.is_scarce = False
        await eventually_async(lambda: not manager._background)
    assert not (copy / "db/t-1/log-0" / SEGMENT).read_bytes().endswith(TORN)
    assert (copy / MARKER).exists()
    async with serving(copy, table) as server:
        assert await _all_ids(server) == [0, 1, 2, 3, 4]


@asynccontextmanager
async def _hosting(data_dir: Path, table, *, files=None, **settings) -> AsyncIterator:
    manager = TabletManager(data_dir, MemoryCatalog(table), TabletSettings(**settings), clock=Clock(), files=files)
    async with manager:
        yield manager


async def test_after_a_crash_damage_is_found_without_a_request(tmp_path):
    table = make_table(buckets=3)
    async with serving(tmp_path / "data", table) as server:
        for first in (0, 10):
            await server.append(rows(first, 10), 1)
        await server.append(rows(0, 1), 2)
        await server.manager.checkpoint()
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
    segment = tmp_path / "copy/db/t-1/log-1" / SEGMENT
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    async with serving(tmp_path / "copy", table, settings=QUICK) as server:
        assert server.manager.health() == BucketHealth(3, 2)
        (answer,) = await server.fetch((1, 0))
        assert answer.error_code == ErrorCode.STORAGE_EXCEPTION
    assert not (tmp_path / "copy" / MARKER).exists()


# Idle logs


async def test_logs_that_are_not_used_are_closed_and_opened_again(tmp_path):
    table = make_table(buckets=20)
    open_logs_max = ServerOptions({"server.max-open-logs": 4}).open_logs_max
    settings = replace(QUICK, open_logs_max=open_logs_max, log=LogSettings(segment_bytes_max=300))
    async with serving(tmp_path, table, settings=settings) as server:
        for turn in range(4):
            for bucket in range(20):
                assert await server.append(rows(turn, 1), bucket) == turn
            # All were used since the last look; at the next one most are idle.
            await server.manager._upkeep.close_idle()
            assert len(_open_buckets(server)) == 20
            await server.manager._upkeep.close_idle()
            assert len(_open_buckets(server)) == 4
        for bucket in range(20):
            (offset,) = await server.offsets(bucket, type=1)
            assert offset.offset == 4
        copy = tmp_path.with_name(tmp_path.name + "-copy")
        shutil.copytree(tmp_path, copy)
    assert (tmp_path / MARKER).exists()
    for data_dir in (tmp_path, copy):
        async with serving(data_dir, table, settings=settings) as server:
            for bucket in range(20):
                found: list[int] = []
                while len(found) < 4:
                    (answer,) = await server.fetch((bucket, len(found)))
                    found += ids(answer.records_view)
                assert found == [0, 1, 2, 3]
                assert await server.append(rows(4, 1), bucket) == 4


async def test_a_writer_goes_on_with_its_numbers_in_a_log_that_was_closed_in_between(tmp_path):
    async with serving(tmp_path, make_table(), settings=replace(QUICK, open_logs_max=0)) as server:
        for sequence in range(3):
            batch = arrow_batch(rows(sequence, 1), writer_id=7, sequence=sequence)
            assert (await server.produce(bytearray(batch))).base_offset == sequence
            for _ in range(2):
                await server.manager._upkeep.close_idle()
            assert _open_buckets(server) == []
            # Sent again, it is recognised.
            assert (await server.produce(bytearray(batch))).base_offset == sequence


async def test_a_fetch_that_waits_keeps_its_log_open_and_is_answered(tmp_path):
    async with serving(tmp_path, make_table(), settings=replace(QUICK, open_logs_max=0)) as server:
        waiting = asyncio.create_task(server.fetch((0, 0), min_bytes=1, max_wait_ms=60_000))
        await eventually_async(lambda: any(bucket._waiters for bucket in server.manager.tables[1]))
        for _ in range(3):
            await server.manager._upkeep.close_idle()
        assert _open_buckets(server) == [0]
        await server.append(rows(0, 1))
        assert ids((await waiting)[0].records_view) == [0]


# Retention


async def test_segments_of_logs_that_nobody_has_opened_expire(tmp_path):
    clock = Clock()
    table = make_table(buckets=50, properties={"table.log.ttl": "1 h"})
    settings = replace(QUICK, log=LogSettings(segment_bytes_max=300))
    async with serving(tmp_path, table, settings=settings, clock=clock) as server:
        for first in range(4):
            await server.append(rows(first, 2), 7)
        await server.append(rows(0, 1), 8)
    before = len(list((tmp_path / "db/t-1/log-7").glob("*.log")))
    assert before > 1
    async with serving(tmp_path, table, settings=settings, clock=clock) as server:
        await server.manager.retention.expire_segments()
        assert _open_buckets(server) == [], "nothing has expired"
        clock.now_ms += 3 * 3_600_000
        await server.manager.retention.expire_segments()
        assert len(list((tmp_path / "db/t-1/log-7").glob("*.log"))) == 1
        assert _open_buckets(server) == [7], "the other log has one segment, which is still written to"
        server.manager.retention.rolls_active_segment = True
        await server.manager.retention.expire_segments()
        assert _open_buckets(server) == [7, 8]
        assert (await server.offsets(8, type=0))[0].offset == 1


async def test_a_log_of_which_segments_are_being_removed_is_not_closed(tmp_path):
    class HeldFiles(OsFiles):
        def __init__(self) -> None:
            super().__init__()
            self.may_remove = asyncio.Event()
            self.is_removing = False
            self._loop = asyncio.get_running_loop()

        def remove(self, path):
            if path.suffix == ".log":
                self.is_removing = True
                asyncio.run_coroutine_threadsafe(self.may_remove.wait(), self._loop).result()
            super().remove(path)

    clock, files = Clock(), HeldFiles()
    table = make_table(properties={"table.log.ttl": "1 h"})
    settings = replace(QUICK, open_logs_max=0, log=LogSettings(segment_bytes_max=300))
    async with serving(tmp_path, table, settings=settings, clock=clock, files=files) as server:
        for first in range(4):
            await server.append(rows(first, 2))
        clock.now_ms += 3 * 3_600_000
        expiring = asyncio.create_task(server.manager.retention.expire_segments())
        await eventually_async(lambda: files.is_removing)
        for _ in range(3):
            await server.manager._upkeep.close_idle()
        assert _open_buckets(server) == [0]
        files.may_remove.set()
        await expiring
        for _ in range(2):
            await server.manager._upkeep.close_idle()
        assert _open_buckets(server) == []
        (start,) = await server.offsets(0, type=0)
        assert start.offset > 0
        assert await server.append(rows(9, 1)) == 8


# Dropping


async def test_a_stop_interrupts_a_deletion_and_the_next_start_goes_on(tmp_path):
    class StuckFiles(OsFiles):
        def __init__(self) -> None:
            super().__init__()
            self.removed = 0

        def remove_tree(self, path):
            if path.name.startswith("log-"):
                self.removed += 1
                if self.removed == 3:
                    # The server is stopped in the middle.
                    server.manager._reaper._is_stopping.set()
            super().remove_tree(path)

    table, other = make_table(buckets=20), make_table(2, "other")
    files = StuckFiles()
    async with serving(tmp_path, table, other, settings=QUICK, files=files) as server:
        for bucket in range(20):
            await server.append(rows(0, 1), bucket)
        server.catalog.remove(table)
        await server.manager.drop_buckets(table, None)
        await eventually_async(lambda: server.manager._reaper.is_idle)
    assert [path.name for path in (tmp_path / "db").iterdir()] == ["t-1.deleted"]
    assert len(list((tmp_path / "db/t-1.deleted").iterdir())) == 17
    async with serving(tmp_path, other, settings=QUICK):
        await eventually_async(lambda: not (tmp_path / "db").exists())


async def test_empty_directories_of_dropped_tables_and_partitions_go_at_the_next_start(tmp_path):
    table = make_table(2, "p", partition_keys=["name"])
    catalog = MemoryCatalog(make_table(), table)
    catalog.add_partition(Partition(9, 2, "x"))
    for name in (
        "db/t-7",
        "gone/t-8",
        "db/p-2/y-p8",
        "db/p-2/x-p9",
        "db/q-3.deleted/a-p4/log-1",
        "db/p-2/z-p3.deleted",
    ):
        (tmp_path / name).mkdir(parents=True)
    async with serving(tmp_path, catalog=catalog) as server:
        await eventually_async(lambda: server.manager._reaper.is_idle)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_dir()) == [
        "db",
        "db/p-2",
        "db/p-2/x-p9",
    ]


async def test_all_partitions_of_a_table_can_be_dropped_at_once(tmp_path):
    table = make_table(buckets=50, partition_keys=["name"])
    catalog = MemoryCatalog(table)
    partitions = [Partition(number, 1, f"p{number}") for number in range(20)]
    for partition in partitions:
        catalog.add_partition(partition)
    async with serving(tmp_path, catalog=catalog, settings=QUICK) as server:
        assert server.manager.health() == BucketHealth(1000, 1000)
        for partition in partitions[:5]:
            await server.append(rows(0, 1), 49, partition_id=partition.partition_id)
        waiting = asyncio.create_task(
            server.fetch((3, 0), partition_id=7, min_bytes=1, max_wait_ms=60_000),
        )
        await eventually_async(lambda: any(bucket._waiters for bucket in server.manager.tables[1]))
        for partition in partitions:
            catalog.remove_partition(partition)
            await server.manager.drop_buckets(table, partition)
        assert server.manager.health() == BucketHealth(0, 0)
        assert (await waiting)[0].error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        await eventually_async(lambda: not (tmp_path / "db").exists())


async def test_open_logs_of_a_dropped_table_are_freed_without_a_garbage_collection(tmp_path):
    """Collections need not look at them, then."""
    table = make_table(buckets=320)
    catalog = MemoryCatalog(table)

    def log_count() -> int:
        return sum(type(each) in (LogTablet, HostedBucket, NotOpenError) for each in gc.get_objects())

    async with serving(tmp_path, catalog=catalog, settings=QUICK) as server:
        gc.collect()
        gc.disable()
        try:
            before = log_count()
            # Not all of them can be opened at once.
            await server.offsets(*range(300), type=1)
            await eventually_async(lambda: log_count() == before + 600)
            for bucket_id in range(300, 320):
                await server.append(rows(0, 1), bucket_id)
            await eventually_async(lambda: log_count() == before + 640)
            catalog.remove(table)
            await server.manager.drop_buckets(table, None)
            await eventually_async(lambda: log_count() == before)
        finally:
            gc.enable()
