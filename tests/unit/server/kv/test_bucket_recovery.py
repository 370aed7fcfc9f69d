"""A store is brought up to date from where it stopped, from a copy, or from the beginning; what is lost is named.
Real logs and stores, of which directories are removed, copied and exchanged between two starts of a server."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.schema.table import TableBucket
from fluss.server.kv.kv_runtime import KvSettings
from fluss.server.kv.recovery import Recovery
from fluss.server.tablet.manager import TabletSettings
from fluss.server.tablet.scrub_repairs import ScrubRepairs
from fluss.storage.kv.store import KvResources
from fluss.storage.kv.store_settings import KvStoreSettings
from fluss.storage.log.log_settings import LogSettings
from fluss.testing.faultfs import FaultFiles
from fluss.testing.waiting import eventually_async
from tests.unit.server.kv.bucket_support import (
    KV_DIRECTORY,
    SCHEMA,
    SNAPSHOTS_DIRECTORY,
    TABLE,
    Bucket,
    HeldDisk,
    crashed,
    hosting,
)
from tests.unit.server.merge.merging import Delete, decode_value, make_table
from tests.unit.server.tablet.support import Clock
from tests.unit.storage.kv.support import open_store

DAY_MS = 86_400_000
# A segment for every batch or two, so that there is something to expire.
SMALL_SEGMENTS = TabletSettings(log=LogSettings(segment_bytes_max=400), kv=KvSettings(open_retry_ms=0))


def small_reads(**more: Any) -> KvSettings:
    return KvSettings(recovery_bytes=100, **more)


async def write_history(bucket: Bucket) -> list[tuple]:
    """Write inserts, updates and deletes, and return the rows that are left."""
    for number in range(10):
        await bucket.put((number, "first"), (number + 1, "second"))
    await bucket.put(Delete((3, None)), Delete((77, None)))
    await bucket.put(Delete((77, None)))
    return sorted(await bucket.rows())


@pytest.mark.parametrize("log_format", ["ARROW", "COMPACTED", "INDEXED"])
@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
async def test_the_changelog_alone_gives_the_same_rows(tmp_path, log_format, kv_format):
    table = make_table(SCHEMA, {"log.format": log_format, "kv.format": kv_format})
    async with hosting(tmp_path, table) as bucket:
        rows = await write_history(bucket)
    shutil.rmtree(tmp_path / KV_DIRECTORY)
    async with hosting(tmp_path, table, kv=small_reads()) as bucket:
        assert sorted(await bucket.rows()) == rows
        assert await bucket.kv.row_count() == len(rows)
        assert (await bucket.kv.store()).state.applied_offset == bucket.log.offset_high_watermark


@pytest.mark.parametrize("image", ["FULL", "WAL"])
async def test_batches_that_change_a_key_several_times_are_replayed_to_their_last_change(tmp_path, image):
    table = make_table(SCHEMA, {"changelog.image": image})
    async with hosting(tmp_path, table) as bucket:
        await bucket.put((1, "a"), (2, "a"), (1, "b"), Delete((1, None)), (3, "a"), (1, "c"), Delete((3, None)))
        await bucket.put(Delete((2, None)), (2, "b"), (4, "a"), (2, "c"), Delete((4, None)), (3, "b"), (3, "c"))
        await bucket.put((5, "a"), Delete((1, None)))
        rows = await bucket.rows()
        assert rows == [(2, "c"), (3, "c"), (5, "a")]
        row_count = await bucket.kv.row_count()
    shutil.rmtree(tmp_path / KV_DIRECTORY)
    for kv in (small_reads(), KvSettings()):
        async with hosting(tmp_path, table, kv=kv) as bucket:
            assert await bucket.rows() == rows
            assert await bucket.kv.row_count() == row_count
        shutil.rmtree(tmp_path / KV_DIRECTORY)


async def test_rows_are_not_counted_where_the_changelog_does_not_tell_new_ones_from_old_ones(tmp_path):
    table = make_table(SCHEMA, {"changelog.image": "WAL"})
    async with hosting(tmp_path, table) as bucket:
        rows = await write_history(bucket)
        assert await bucket.kv.row_count() is None
    shutil.rmtree(tmp_path / KV_DIRECTORY)
    async with hosting(tmp_path, table) as bucket:
        assert sorted(await bucket.rows()) == rows
        assert await bucket.kv.row_count() is None


async def test_after_a_clean_stop_nothing_is_replayed_and_after_a_crash_what_was_not_flushed(tmp_path):
    replayed = []

    async def replay(data_dir: Path) -> list[int]:
        async with hosting(data_dir) as bucket:
            resources = KvResources(KvStoreSettings())
            directories = bucket.kv._life._directories
            recovery = Recovery(bucket.log, TABLE, directories, resources, read_bytes=2**20)
            store = await asyncio.to_thread(recovery.run, is_damaged=False)
            assert store.state.applied_offset == bucket.log.offset_next
            await asyncio.to_thread(store.close)
            replayed.append(recovery.replayed_bytes)

    async with hosting(tmp_path / "data") as bucket:
        await bucket.put((1, "a"))
        await bucket.kv.flush()
        size_bytes = bucket.log.size_bytes
        await bucket.put((2, "b"))
        await bucket.put((3, "c"))
        rest_bytes = bucket.log.size_bytes - size_bytes
        crash = crashed(tmp_path / "data", tmp_path / "crash")
    await replay(tmp_path / "data")
    await replay(crash)
    assert replayed == [0, rest_bytes]


async def test_a_store_is_flushed_by_bytes_and_at_an_interval(tmp_path):
    async def flushed_offset(bucket: Bucket) -> int:
        return (await bucket.kv.store()).flushed_offset

    async with hosting(tmp_path / "bytes", kv=KvSettings(flush_bytes=300, flush_interval_ms=0)) as bucket:
        await bucket.put((1, "a"))
        assert await flushed_offset(bucket) == 0
        while not await flushed_offset(bucket):
            await bucket.put((1, "a"))
    async with hosting(tmp_path / "time", kv=KvSettings(flush_interval_ms=20)) as bucket:
        await bucket.put((1, "a"))
        while await flushed_offset(bucket) != 1:
            await asyncio.sleep(0.005)
        bucket.manager.kv_runtime.set_flush_interval(0)
        await bucket.put((2, "a"))
        await asyncio.sleep(0.05)
        assert await flushed_offset(bucket) == 1
        bucket.manager.kv_runtime.set_flush_interval(20)
        while await flushed_offset(bucket) != 2:
            await asyncio.sleep(0.005)


async def test_a_store_that_is_ahead_of_its_changelog_is_built_again(tmp_path, caplog):
    """Without syncs a loss of power can cost the end of the log, while RocksDB has synced what came of it."""
    async with hosting(tmp_path) as bucket:
        await bucket.put((1, "a"))
        short_log = crashed(tmp_path / "db/t-1/log-0", tmp_path / "short")
        await bucket.put((1, "lost"), (2, "lost"))
    shutil.rmtree(tmp_path / "db/t-1/log-0")
    short_log.rename(tmp_path / "db/t-1/log-0")
    for name in ("recovery-point-offset-checkpoint", ".fluss_cleanshutdown"):
        (tmp_path / name).unlink()
    async with hosting(tmp_path) as bucket:
        assert await bucket.rows() == [(1, "a")]
        assert await bucket.kv.row_count() == 1
    assert "it is built again" in caplog.text


async def test_a_rebuild_that_was_interrupted_goes_on(tmp_path):
    async with hosting(tmp_path) as bucket:
        rows = await write_history(bucket)
        log, directories = bucket.log, bucket.kv._life._directories
    shutil.rmtree(tmp_path / KV_DIRECTORY)
    resources = KvResources(KvStoreSettings())
    recovery = Recovery(log, TABLE, directories, resources, read_bytes=1)
    read, reads = log.read, []

    def counted(offset: int, *args: Any, **more: Any) -> memoryview:
        reads.append(offset)
        if len(reads) == 5:
            recovery.cancel()
        return read(offset, *args, **more)

    recovery._log = _Reads(log, counted)
    with pytest.raises(FlussError, match="interrupted"):
        recovery.run(is_damaged=False)
    async with hosting(tmp_path) as bucket:
        assert sorted(await bucket.rows()) == rows


class _Reads:
    """A log that tells about its reads."""

    def __init__(self, log: Any, read: Any) -> None:
        self._log = log
        self.read = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


async def test_a_long_recovery_says_how_far_it_is(tmp_path, caplog):
    async with hosting(tmp_path) as bucket:
        await write_history(bucket)
        log, directories = bucket.log, bucket.kv._life._directories
    shutil.rmtree(tmp_path / KV_DIRECTORY)
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 3.0
        return now_s

    resources = KvResources(KvStoreSettings())
    recovery = Recovery(log, TABLE, directories, resources, read_bytes=1, clock=clock)
    with caplog.at_level(logging.INFO):
        recovery.run(is_damaged=False).close()
    assert f"of {log.offset_next} has been replayed" in caplog.text
    assert "is up to date after" in caplog.text


async def test_requests_that_come_while_a_store_is_being_built_are_told_to_try_again(tmp_path):
    async with hosting(tmp_path) as bucket:
        await write_history(bucket)
    shutil.rmtree(tmp_path / KV_DIRECTORY)
    async with hosting(tmp_path, kv=small_reads(open_wait_ms=0)) as bucket:
        answers = [bucket.begin((number, "later")) for number in range(3)]
        with pytest.raises(FlussError, match=r"being opened.*try again") as error:
            await bucket.kv.store()
        assert error.value.error_code == ErrorCode.KV_STORAGE_EXCEPTION
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
        assert {outcome.error_code for outcome in outcomes} == {ErrorCode.KV_STORAGE_EXCEPTION}
        await eventually_async(lambda: bucket.kv._life.current is not None)
        assert len(await bucket.rows()) == 10


# Changelogs that expire


EXPIRING = make_table(SCHEMA, {"log.ttl": "7d"})


async def expire(bucket: Bucket) -> None:
    bucket.clock.now_ms += 8 * DAY_MS
    await bucket.manager.retention.expire_segments()


def snapshots(data_dir: Path) -> list[int]:
    """Return the copies that count."""
    return sorted(int(path.name) for path in (data_dir / SNAPSHOTS_DIRECTORY).iterdir() if path.name != "unfinished")


async def test_a_changelog_is_kept_whole_unless_its_table_says_otherwise(tmp_path):
    async with hosting(tmp_path, settings=SMALL_SEGMENTS) as bucket:
        await write_history(bucket)
        await expire(bucket)
        assert bucket.log.offset_start == 0
        assert not (tmp_path / SNAPSHOTS_DIRECTORY).exists()


@pytest.mark.parametrize("is_store_lost", [True, False])
async def test_a_changelog_expires_once_there_is_a_copy_of_its_rows(tmp_path, is_store_lost):
    clock = Clock()
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS, clock=clock) as bucket:
        await write_history(bucket)
        assert not (tmp_path / SNAPSHOTS_DIRECTORY).exists()
        await expire(bucket)
        assert 0 < bucket.log.offset_start < bucket.log.offset_next
        (copied,) = snapshots(tmp_path)
        assert copied >= bucket.log.offset_start
        await bucket.put((1, "after"), Delete((2, None)))
        rows, start = sorted(await bucket.rows()), bucket.log.offset_start
    if is_store_lost:
        shutil.rmtree(tmp_path / KV_DIRECTORY)
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS, clock=clock) as bucket:
        assert bucket.log.offset_start == start
        assert sorted(await bucket.rows()) == rows
        assert await bucket.kv.row_count() == len(rows)
        await bucket.put((1, "again"))
        assert bucket.changelog()[-2:] == [("-U", (1, "after")), ("+U", (1, "again"))]


async def test_one_copy_is_kept_and_none_is_made_without_need(tmp_path):
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        await write_history(bucket)
        await expire(bucket)
        (first,) = snapshots(tmp_path)
        await expire(bucket)
        assert snapshots(tmp_path) == [first], "nothing was left to expire"
        for number in range(5):
            await bucket.put((number, "new"))
        await expire(bucket)
        (second,) = snapshots(tmp_path)
        assert second > first
        assert await bucket.kv.protect(second - 1) == second
        assert snapshots(tmp_path) == [second]
        end = bucket.log.offset_next
        for _ in range(2):
            assert await bucket.kv.protect(end + 1) == end, "the store has not come further"
            assert snapshots(tmp_path) == [end]


async def test_copies_that_are_not_finished_damaged_or_of_another_log_are_not_used(tmp_path):
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        await write_history(bucket)
        await expire(bucket)
        await bucket.put((1, "after"))
        rows, end = sorted(await bucket.rows()), bucket.log.offset_next
    for name in ("unfinished", f"{end:020d}", f"{end + 1:020d}", f"{0:020d}"):
        (tmp_path / SNAPSHOTS_DIRECTORY / name).mkdir()
        (tmp_path / SNAPSHOTS_DIRECTORY / name / "CURRENT").write_bytes(b"nonsense")
    shutil.rmtree(tmp_path / KV_DIRECTORY)
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        assert sorted(await bucket.rows()) == rows


@pytest.mark.parametrize("harm", ["missing", "damaged"])
async def test_rows_that_are_nowhere_any_more_are_named_and_the_others_work(tmp_path, harm):
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        await write_history(bucket)
        await expire(bucket)
        start = bucket.log.offset_start
        (copy,) = (tmp_path / SNAPSHOTS_DIRECTORY).iterdir()
    shutil.rmtree(tmp_path / KV_DIRECTORY)
    if harm == "missing":
        backup = copy.rename(tmp_path / "backup")
    else:
        (copy / "CURRENT").write_bytes(b"nonsense")
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        with pytest.raises(FlussError, match=f"begins at offset {start}.*Restore") as error:
            await bucket.kv.store()
        assert error.value.error_code == ErrorCode.STORAGE_EXCEPTION
        with pytest.raises(FlussError, match="is lost"):
            await bucket.put((1, "a"))
        assert bucket.changelog(), "the changelog can be read"
        await expire(bucket)
        assert bucket.log.offset_start == start, "nothing more expires"
        if harm == "missing":
            backup.rename(copy)
            assert len(await bucket.rows()) == 10
        else:
            with pytest.raises(FlussError, match="is lost"):
                await ScrubRepairs(bucket.manager.tables).copy_damaged(TableBucket(1, 0), [copy / "CURRENT"])
            assert copy.exists(), "it is all that is left"


class BusyDisk(FaultFiles):
    """A disk that something else happens on while it syncs a file."""

    def __init__(self, data_dir: Path, seed: int = 0) -> None:
        super().__init__(seed)
        self.make_directory(data_dir)
        self.meanwhile: Callable[[], None] | None = None

    def sync(self, path: Path) -> None:
        super().sync(path)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


# What was acknowledged may be lost with the power.
UNSYNCED = replace(SMALL_SEGMENTS, is_fsync_required=False)


def numbered(first: int, end: int) -> list[tuple[int, str]]:
    return [(number, f"row {number}") for number in range(first, end)]


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("seed", range(3))
async def test_a_copy_is_never_ahead_of_what_a_loss_of_power_leaves_of_the_changelog(tmp_path, seed, shares):
    disk, clock = BusyDisk(tmp_path, seed), Clock()
    options = {"settings": UNSYNCED, "clock": clock, "files": disk, "shares": shares}
    async with hosting(tmp_path, EXPIRING, **options) as bucket:
        loop = asyncio.get_running_loop()

        async def write(first: int, end: int) -> None:
            for row in numbered(first, end):
                await bucket.put(row)

        await write(0, 20)
        await expire(bucket)
        assert bucket.log.offset_start > 0
        await write(20, 30)
        # Writers go on while the changelog is brought to the disk.
        disk.meanwhile = lambda: asyncio.run_coroutine_threadsafe(write(30, 35), loop).result()
        await expire(bucket)
        (copied,) = snapshots(tmp_path)
        assert bucket.log.offset_start <= copied <= bucket.log.recovery_offset
        assert bucket.log.offset_next == 35, "rows came meanwhile"
        disk.stop_after(0)
    disk.crash()
    async with hosting(tmp_path, EXPIRING, **options) as bucket:
        assert copied <= bucket.log.offset_next
        assert await bucket.rows() == numbered(0, bucket.log.offset_next)


async def test_a_copy_does_not_count_if_its_changelog_cannot_be_brought_to_the_disk(tmp_path):
    disk = BusyDisk(tmp_path)
    async with hosting(tmp_path, EXPIRING, settings=UNSYNCED, files=disk) as bucket:
        for row in numbered(0, 20):
            await bucket.put(row)
        await expire(bucket)
        (first,) = snapshots(tmp_path)
        await bucket.put((20, "row 20"))
        disk.fail_next("sync", "log-0")
        with pytest.raises(FlussError):
            await bucket.kv.protect(first + 1)
        assert snapshots(tmp_path) == [first]
        disk.stop_after(0)
    disk.crash()
    async with hosting(tmp_path, EXPIRING, settings=UNSYNCED, files=disk) as bucket:
        end = bucket.log.offset_next
        assert await bucket.rows() == numbered(0, end)
        await bucket.put((end, f"row {end}"))
        assert await bucket.kv.protect(end + 1) == end + 1
        assert [path.name for path in (tmp_path / SNAPSHOTS_DIRECTORY).iterdir()] == [f"{end + 1:020d}"]


async def test_copies_that_are_wanted_at_the_same_time_are_made_one_after_the_other(tmp_path):
    async with hosting(tmp_path, settings=SMALL_SEGMENTS) as bucket:

        async def write_and_protect(row: tuple[int, str]) -> int:
            return await bucket.kv.protect(await bucket.put(row))

        offsets = await asyncio.gather(*(write_and_protect(row) for row in numbered(0, 10)))
        assert snapshots(tmp_path) == [max(offsets)]
        rows = await bucket.rows()
        (copy,) = (tmp_path / SNAPSHOTS_DIRECTORY).iterdir()
        crash = crashed(copy, tmp_path / "copy")
    with open_store(crash) as store:
        assert store.state.applied_offset == max(offsets)
        assert store.state.row_count == len(rows)


async def test_a_copy_that_is_ahead_of_the_log_goes_before_the_log_grows_past_it(tmp_path, caplog):
    """The end of a log can be lost also behind a sync, and be restored from an older backup."""
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        for row in numbered(0, 10):
            await bucket.put(row)
        short_log = crashed(tmp_path / "db/t-1/log-0", tmp_path / "short")
        for number in range(10, 15):
            await bucket.put((number, "lost"))
        copied = await bucket.kv.protect(15)
        assert snapshots(tmp_path) == [copied]
    shutil.rmtree(tmp_path / "db/t-1/log-0")
    short_log.rename(tmp_path / "db/t-1/log-0")
    for name in ("recovery-point-offset-checkpoint", ".fluss_cleanshutdown"):
        (tmp_path / name).unlink()
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        assert await bucket.rows() == numbered(0, 10)
        assert snapshots(tmp_path) == []
        assert "is ahead of the log" in caplog.text
        for row in numbered(10, 30):
            await bucket.put(row)
        assert await bucket.kv.protect(copied - 1) == 30, "the old copy has other rows"
        await expire(bucket)
        assert bucket.log.offset_start > copied
    shutil.rmtree(tmp_path / KV_DIRECTORY)
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        assert await bucket.rows() == numbered(0, 30)


# Several blocks, and nothing that compression makes smaller.
MANY = [(number, random.Random(number).randbytes(40).hex()) for number in range(400)]


def damage_shared_file(data_dir: Path, copied: int) -> None:
    """Change a byte in the middle of the largest SST file that the store and a copy share."""
    copy = data_dir / SNAPSHOTS_DIRECTORY / f"{copied:020d}"
    shared = [path for path in (data_dir / KV_DIRECTORY).glob("*.sst") if (copy / path.name).exists()]
    path = max(shared, key=lambda path: path.stat().st_size)
    assert path.samefile(copy / path.name)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


async def read_until_mended(bucket: Bucket) -> list[tuple]:
    """Read as often as a patient reader would; damage is reported as readers do."""
    for _ in range(3):
        store = await bucket.kv.store()
        try:
            return await bucket.rows()
        except KvDamagedError as error:
            bucket.kv.store_failed(store, error)
    raise AssertionError("the damage is found again and again")


async def test_a_copy_that_shares_the_damage_of_its_store_is_passed_over_and_removed(tmp_path, caplog):
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        await bucket.put(*MANY)
        await bucket.put((0, "second"))
        await expire(bucket)
        assert bucket.log.offset_start > 0
        (older,) = snapshots(tmp_path)
        copy = tmp_path / SNAPSHOTS_DIRECTORY / f"{older:020d}"
        saved = crashed(copy, tmp_path / "saved")
        await bucket.put((1, "third"))
        newer = await bucket.kv.protect(older + 1)
    # As a crash leaves it before the older copy is removed.
    saved.rename(copy)
    assert snapshots(tmp_path) == [older, newer]
    damage_shared_file(tmp_path, newer)
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        assert sorted(await read_until_mended(bucket)) == [(0, "second"), (1, "third"), *MANY[2:]]
        assert snapshots(tmp_path) == [older]
        assert "is damaged, and was not needed" in caplog.text


async def test_a_damaged_copy_is_used_and_kept_if_nothing_else_is_left(tmp_path, caplog):
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        await bucket.put(*MANY)
        await bucket.put((0, "second"))
        await expire(bucket)
        (copied,) = snapshots(tmp_path)
    damage_shared_file(tmp_path, copied)
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        with pytest.raises(AssertionError, match="again and again"):
            await read_until_mended(bucket)
        assert "as there is no other one" in caplog.text
        assert snapshots(tmp_path) == [copied]
        # Other blocks can be read.
        store = await bucket.kv.store()
        (value,) = store.first_values(1, bytes_max=2**20)
        assert decode_value(EXPIRING, value) == (0, "second")
        assert not await bucket.kv.can_be_built()


async def test_what_is_not_in_the_store_yet_does_not_expire(tmp_path):
    disk = HeldDisk()
    settings = TabletSettings(log=LogSettings(segment_bytes_max=1))
    async with hosting(tmp_path, EXPIRING, settings=settings, files=disk) as bucket:
        await bucket.put((1, "a"))
        await bucket.put((2, "b"))
        bucket.clock.now_ms += 8 * DAY_MS
        asked: list[int] = []

        async def protect(offset: int) -> int:
            asked.append(offset)
            return await bucket.kv.protect(offset) - 1

        assert await bucket.log.expire_segments(bucket.clock.now_ms, protect=protect) == 1
        assert asked == [1]
        assert bucket.log.offset_start == 1


async def test_a_dropped_table_takes_its_copies_with_it(tmp_path):
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        await write_history(bucket)
        await expire(bucket)
        await bucket.manager.drop_buckets(bucket.table, None)
        await eventually_async(lambda: not (tmp_path / "db").exists())


async def test_copies_of_tables_that_were_dropped_while_the_server_was_down_are_removed(tmp_path):
    async with hosting(tmp_path, EXPIRING, settings=SMALL_SEGMENTS) as bucket:
        await write_history(bucket)
        await expire(bucket)
    other = replace(TABLE, table_id=2)
    async with hosting(tmp_path, other, settings=SMALL_SEGMENTS) as bucket:
        await bucket.put((1, "a"))
        await eventually_async(lambda: not (tmp_path / "db/t-1").exists())
        assert await bucket.rows() == [(1, "a")]
