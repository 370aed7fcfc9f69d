"""Logs are opened, made, dropped and closed with their tables; damage and leftovers keep no other log from working.

Real directories; a crash is a copy of the data directory taken while the server runs.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
import time
from pathlib import Path

import pytest

from fluss.errors import ErrorCode
from fluss.schema.table import TableBucket
from fluss.server.model import BucketHealth, Partition
from fluss.server.tablet.manager import TabletManager, TabletSettings
from fluss.storage.log.checkpoint_file import decode_checkpoint
from fluss.storage.log.log_settings import LogSettings
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


async def _all_ids(server: Server, bucket: int = 0, **options) -> list[int]:
    (answer,) = await server.fetch((bucket, 0), **options)
    assert answer.error_code is None, answer
    return ids(answer.records_view)


def _crashed(data_dir: Path, copy: Path) -> Path:
    """Return what a server would find that was killed right now."""
    shutil.copytree(data_dir, copy)
    return copy


@pytest.mark.parametrize("is_fsync_required", [True, False])
async def test_everything_is_there_after_a_clean_restart(tmp_path, is_fsync_required):
    table = make_table(buckets=2)
    settings = TabletSettings(is_fsync_required=is_fsync_required)
    async with serving(tmp_path, table, settings=settings) as server:
        assert not (tmp_path / MARKER).exists()
        await server.append(rows(0, 5))
        await server.append(rows(7, 1), 1)
    assert (tmp_path / MARKER).exists()
    for name in (RECOVERY, HIGH_WATERMARKS):
        offsets = decode_checkpoint((tmp_path / name).read_bytes())
        assert offsets == {TableBucket(1, 0): 5, TableBucket(1, 1): 1}
    async with serving(tmp_path, table, settings=settings) as server:
        assert not (tmp_path / MARKER).exists(), "from now on a crash is a crash"
        assert [await _all_ids(server, bucket) for bucket in (0, 1)] == [[0, 1, 2, 3, 4], [7]]
        assert await server.append(rows(5, 1)) == 5


async def test_what_was_acknowledged_is_there_after_a_crash(tmp_path):
    table = make_table()
    async with serving(tmp_path / "data", table) as server:
        await server.append(rows(0, 5))
        copy = _crashed(tmp_path / "data", tmp_path / "copy")
    segment = copy / "db/t-1/log-0/00000000000000000000.log"
    with segment.open("ab") as file:
        file.write(arrow_batch(rows(5, 5))[:-3])
    async with serving(copy, table) as server:
        assert await _all_ids(server) == [0, 1, 2, 3, 4]
        assert await server.append(rows(5, 1)) == 5


async def test_after_a_crash_writers_are_known_from_the_log_whatever_their_numbers_and_snapshots(tmp_path):
    """A writer that was forgotten may begin anew, so its numbers in the log need not follow each other."""
    clock, table = Clock(), make_table()
    settings = TabletSettings(log=LogSettings(segment_bytes_max=300))
    async with serving(tmp_path / "data", table, clock=clock, settings=settings) as server:
        for sequence in range(3):
            await server.produce(arrow_batch(rows(sequence, 1), writer_id=9, sequence=sequence))
        clock.now_ms += 8 * 86_400_000
        await server.manager.retention.expire_writers()
        for sequence in range(2):
            await server.produce(arrow_batch(rows(3 + sequence, 1), writer_id=9, sequence=sequence))
        copy = _crashed(tmp_path / "data", tmp_path / "copy")
    directory = copy / "db/t-1/log-0"
    for name in ("00000000000000000002", "00000000000000000005", "00000000000000000999"):
        # Damaged ones, and one of rows that are not there.
        (directory / f"{name}.writer_snapshot").write_bytes(b"{ this is no snapshot")
    async with serving(copy, table, clock=clock, settings=settings) as server:
        again = await server.produce(arrow_batch(rows(4, 1), writer_id=9, sequence=1))
        assert again.base_offset == 4, "the last batch is recognised"
        gap = await server.produce(arrow_batch(rows(5, 1), writer_id=9, sequence=3))
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
        assert (await server.produce(arrow_batch(rows(5, 1), writer_id=9, sequence=2))).base_offset == 5
        found = []
        for offset in range(6):
            found += [n for n in ids((await server.fetch_one(offset)).records_view) if n == offset]
        assert found == list(range(6))


async def test_checkpoints_are_written_while_the_server_runs_and_only_when_something_changed(tmp_path):
    async with serving(tmp_path, make_table()) as server:
        await server.append(rows(0, 5))
        await server.manager.checkpoint()
        path = tmp_path / RECOVERY
        assert decode_checkpoint(path.read_bytes()) == {TableBucket(1, 0): 5}
        path.unlink()
        await server.manager.checkpoint()
        assert not path.exists()
        await server.append(rows(5, 1))
        await server.manager.checkpoint()
        assert decode_checkpoint(path.read_bytes()) == {TableBucket(1, 0): 6}


async def test_checkpoints_flush_what_the_operating_system_has(tmp_path):
    async with serving(tmp_path, make_table(), settings=TabletSettings(is_fsync_required=False)) as server:
        await server.append(rows(0, 5))
        await server.manager.checkpoint()
        assert decode_checkpoint((tmp_path / RECOVERY).read_bytes()) == {TableBucket(1, 0): 5}


async def test_a_damaged_checkpoint_is_no_reason_not_to_start(tmp_path, caplog):
    table = make_table()
    async with serving(tmp_path, table) as server:
        await server.append(rows(0, 5))
    (tmp_path / RECOVERY).write_bytes(b"0\n7\nnonsense")
    async with serving(tmp_path, table) as server:
        assert await _all_ids(server) == [0, 1, 2, 3, 4]
    assert "recovery offsets are not known" in caplog.text


# Damage


def _damage(data_dir: Path, position: int) -> Path:
    segment = data_dir / "db/t-1/log-0/00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    data[position] ^= 0xFF
    segment.write_bytes(data)
    return segment


async def test_a_damaged_log_is_offline_and_the_others_work(tmp_path, caplog):
    table = make_table(buckets=2)
    async with serving(tmp_path, table) as server:
        for first in (0, 10):
            await server.append(rows(first, 10), 0)
        await server.append(rows(0, 1), 1)
    segment = _damage(tmp_path, 100)
    content = segment.read_bytes()
    for start in range(2):  # The second one must not take for a torn tail what the first one refused.
        async with serving(tmp_path, table, settings=QUICK) as server:
            fetched = (await server.fetch((0, 0)))[0]
            assert server.manager.health() == BucketHealth(bucket_count=2, active_count=1)
            produced = await server.produce(arrow_batch(rows(0, 1)))
            (listed,) = await server.offsets(0, type=1)
            for answer in (fetched, produced, listed):
                assert answer.error_code == ErrorCode.STORAGE_EXCEPTION
                assert segment.name in answer.error_message, "the name, without the directories of the machine"
                assert "offset 0" in answer.error_message
            assert await server.append(rows(start + 1, 1), 1) == start + 1
            assert await _all_ids(server, 1) == list(range(start + 2))
        assert segment.read_bytes() == content, "the files are left as they are"
        assert not (tmp_path / MARKER).exists(), "the next start has to look again"
        assert decode_checkpoint((tmp_path / RECOVERY).read_bytes())[TableBucket(1, 0)] == 20
    assert "offline" in caplog.text


async def test_a_damaged_log_can_be_dropped_with_its_table(tmp_path):
    table = make_table()
    async with serving(tmp_path, table) as server:
        for first in (0, 10):
            await server.append(rows(first, 10), 0)
    _damage(tmp_path, 100)
    async with serving(tmp_path, table, make_table(2, "other")) as server:
        assert (await server.fetch_one()).error_code == ErrorCode.STORAGE_EXCEPTION
        assert server.manager.health().active_count == 1
        server.catalog.remove(table)
        await server.manager.drop_buckets(table, None)
        await eventually_async(lambda: not (tmp_path / "db").exists())
        assert server.manager.health() == BucketHealth(1, 1)


async def test_a_start_that_fails_does_not_count_as_a_clean_shutdown(tmp_path):
    class UnreadableCatalog(MemoryCatalog):
        def tables(self):
            raise RuntimeError("the catalog cannot be read")

    # The test run may have a server of its own.
    before = set(threading.enumerate())
    (tmp_path / MARKER).touch()
    manager = TabletManager(tmp_path, UnreadableCatalog(), TabletSettings(), clock=Clock())
    with pytest.raises(RuntimeError, match="cannot be read"):
        await manager.start()
    await manager.stop()
    assert not (tmp_path / MARKER).exists()
    started = set(threading.enumerate()) - before
    assert not [thread.name for thread in started if thread.name.startswith("fluss-committer")]


# Tables come and go


async def test_new_tables_and_partitions_work_at_once_and_again_changes_nothing(tmp_path):
    async with serving(tmp_path) as server:
        table, partitioned = make_table(), make_table(2, "p", partition_keys=["name"])
        partition = Partition(9, 2, "x")
        server.catalog.add(table)
        server.catalog.add(partitioned)
        server.catalog.add_partition(partition)
        for _ in range(2):
            await server.manager.open_buckets(table, None)
            await server.manager.open_buckets(partitioned, partition)
            await server.append(rows(0, 1))
            await server.append(rows(0, 1), table_id=2, partition_id=9)
        assert await _all_ids(server) == [0, 0]
        assert await _all_ids(server, table_id=2, partition_id=9) == [0, 0]
        assert server.manager.health() == BucketHealth(2, 2)


async def test_a_dropped_table_is_gone_at_once_and_its_bytes_soon(tmp_path):
    table, other = make_table(buckets=3), make_table(2, "t")
    async with serving(tmp_path, table, other, settings=QUICK) as server:
        await server.append(rows(0, 1), 1)
        await server.append(rows(5, 1), table_id=2)
        for _ in range(2):
            await server.manager.drop_buckets(table, None)
        answer = await server.produce(arrow_batch(rows(0, 1)))
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "the catalog of this test still has it"
        server.catalog.remove(table)
        answer = await server.produce(arrow_batch(rows(0, 1)))
        assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        await eventually_async(lambda: not (tmp_path / "db/t-1").exists())
        assert await _all_ids(server, table_id=2) == [5], "a table of the same name is another table"
    assert decode_checkpoint((tmp_path / RECOVERY).read_bytes()) == {TableBucket(2, 0): 1}


async def test_one_partition_can_be_dropped_while_another_goes_on(tmp_path):
    table = make_table(partition_keys=["name"])
    catalog = MemoryCatalog(table)
    gone, kept = Partition(5, 1, "a"), Partition(6, 1, "b")
    catalog.add_partition(gone)
    catalog.add_partition(kept)
    async with serving(tmp_path, catalog=catalog) as server:
        for partition in (gone, kept):
            await server.append(rows(0, 1), partition_id=partition.partition_id)
        catalog.remove_partition(gone)
        await server.manager.drop_buckets(table, gone)
        await eventually_async(lambda: not (tmp_path / "db/t-1/a-p5").exists())
        assert await _all_ids(server, partition_id=6) == [0]


async def test_writes_that_wait_are_answered_when_their_table_is_dropped(tmp_path):
    table = make_table()
    async with serving(tmp_path, table, settings=QUICK) as server:
        tasks = [asyncio.create_task(server.produce(arrow_batch(rows(n, 1)))) for n in range(20)]
        await asyncio.sleep(0)
        server.catalog.remove(table)
        await server.manager.drop_buckets(table, None)
        for answer in await asyncio.gather(*tasks):
            assert answer.error_code in (0, ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)
        await eventually_async(lambda: not (tmp_path / "db").exists())


# Leftovers


async def test_directories_of_dropped_tables_are_removed_at_start_and_nothing_else_is(tmp_path):
    partitioned = make_table(2, "p", partition_keys=["name"])
    catalog = MemoryCatalog(make_table(), partitioned)
    catalog.add_partition(Partition(9, 2, "x"))
    residue = ["db/t-7/log-0", "db/p-2/y-p8/log-0", "gone/t-8/kv-3", "db/t-1/log-0.deleted", "db/p-2/log-0"]
    others = ["notes/readme/x", "db/t-1/logs", "db/t-1/3", "db/p-2/x-p9/log-0/deep/er", "a/b-x/log-0"]
    for name in [*residue, *others]:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("content")
    async with serving(tmp_path, catalog=catalog):
        await eventually_async(lambda: not any((tmp_path / name).exists() for name in residue))
    assert all((tmp_path / name / "file").exists() for name in others)
    assert not (tmp_path / "gone").exists()


async def test_without_any_table_the_logs_are_left_alone(tmp_path, caplog):
    for name in ("db/t-7/log-0", "db/t-8/log-0.deleted"):
        (tmp_path / name).mkdir(parents=True)
    async with serving(tmp_path):
        await eventually_async(lambda: not (tmp_path / "db/t-8").exists())
    assert (tmp_path / "db/t-7/log-0").exists()
    assert "in case the metadata was lost" in caplog.text


# Many


async def test_thousands_of_buckets_start_quickly_and_leave_no_trace_on_disk(tmp_path):
    table = make_table(buckets=4000)
    started_at = time.process_time()
    async with serving(tmp_path, table) as server:
        assert server.manager.health() == BucketHealth(4000, 4000)
        assert await server.append(rows(0, 1), 3999) == 0
    # Measured: 0.3 s for both; a file or a thread per bucket would take many times as long.
    assert time.process_time() - started_at < 5
    assert [path.name for path in (tmp_path / "db/t-1").iterdir()] == ["log-3999"]


async def test_a_log_of_many_segments_is_opened_again(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    table = make_table()
    settings = TabletSettings(log=LogSettings(segment_bytes_max=300))
    async with serving(tmp_path / "data", table, settings=settings) as server:
        for first in range(0, 60, 3):
            await server.append(rows(first, 3))
        copy = _crashed(tmp_path / "data", tmp_path / "copy")
    for data_dir in (tmp_path / "data", copy):
        async with serving(data_dir, table, settings=settings) as server:
            found, offset = [], 0
            while offset < 60:
                page = ids((await server.fetch_one(offset)).records_view)
                found += page
                offset += len(page)
            assert found == list(range(60))
