"""The files of a log: segments roll, indexes leave the memory, old segments expire, and the end is orderly.
Real files and a real committer, or a disk in memory and a committer that works when it is told to."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.net.transport import run
from fluss.storage.log.committer import Committer
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.vfs import OsFiles
from fluss.testing.faultfs import FaultFiles
from tests.unit.storage.log.support import (
    DIRECTORY,
    NOW_MS,
    Clock,
    SteppedLog,
    append_all,
    bodies,
    body_of,
    code_of,
    contents,
    drive,
    make_batch,
    open_log,
    read_batches,
    real_log,
)

BATCH_BYTES = len(make_batch())


# Segments


async def test_every_batch_may_have_a_segment_of_its_own(tmp_path: Path) -> None:
    async with real_log(tmp_path / "log-0", segment_bytes_max=120) as log:
        batches = [make_batch(b"%03d" % index * 20) for index in range(30)]
        await append_all(log, batches)
        assert log.segment_count == 30
        assert bodies(log) == [b"%03d" % index * 20 for index in range(30)]
        assert [log.read(offset, 1000, at_least_one_batch=True)[0] for offset in (29, 3, 17)] == [29, 3, 17]
    names = {path.name for path in (tmp_path / "log-0").iterdir()}
    assert {f"{index:020d}.log" for index in range(30)} < names
    assert {f"{index:020d}.index" for index in range(30)} < names
    assert {name for name in names if "snapshot" in name} == {f"{index:020d}.writer_snapshot" for index in (29, 30)}


def test_an_append_larger_than_a_segment_gets_one_of_its_own() -> None:
    log = SteppedLog(segment_bytes_max=2 * BATCH_BYTES)
    for body in (b"row", b"x" * 1000, b"row", b"row", b"row"):
        log.append(body)
    assert log.log.segment_count == 4
    assert [len(body) for body in bodies(log.log)] == [3, 1000, 3, 3, 3]


def test_a_segment_ends_when_its_index_is_full() -> None:
    log = SteppedLog(index_bytes_max=24, index_interval_bytes=0)
    for _ in range(7):
        log.append()
    assert log.log.segment_count == 3
    assert len(bodies(log.log)) == 7


def test_the_index_of_a_full_segment_leaves_the_memory() -> None:
    log = SteppedLog(segment_bytes_max=10 * BATCH_BYTES, index_interval_bytes=0)
    for _ in range(25):
        log.append()
    assert [segment.is_live for segment in log.log._local.segments] == [False, False, True]
    for offset in range(25):
        assert next(read_batches(log.log, offset=offset)).header.base_offset == offset


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "content", [None, b"", b"\x7f" * 96, b"\0" * 96, b"half"], ids=["missing", "empty", "noise", "zeros", "half"]
)
def test_an_index_that_leads_astray_is_made_again(suffix: str, content: bytes | None) -> None:
    log = SteppedLog(segment_bytes_max=10 * BATCH_BYTES, index_interval_bytes=0)
    for _ in range(15):
        log.clock.now_ms += 10
        log.append()
    path = DIRECTORY / f"{0:020d}{suffix}"
    good = log.files.read(path, 0, 1000)
    log.log._local.segments[0]._is_index_stored = False
    if content is None:
        log.files.remove(path)
    else:
        log.files.change(path, good[: len(good) // 2] if content == b"half" else content)
    assert [next(read_batches(log.log, offset=offset)).header.base_offset for offset in range(10)] == list(range(10))
    assert [log.log.offset_for_timestamp(NOW_MS + 10 * (index + 1)) for index in range(10)] == list(range(10))
    # A time index may have any number of entries; with fewer of them it is only slower.
    if suffix == ".index" or content in (None, b"\x7f" * 96):
        assert log.files.read(path, 0, 1000) == good


def test_an_index_that_cannot_be_written_is_kept_in_memory() -> None:
    log = SteppedLog(segment_bytes_max=5 * BATCH_BYTES, index_interval_bytes=0)
    log.files.fail_next("replace", ".index")
    for _ in range(12):
        log.append()
    assert [segment.is_live for segment in log.log._local.segments] == [True, False, True]
    log.files.remove(DIRECTORY / f"{5:020d}.index")
    log.files.fail_next("replace", ".index")
    assert len(bodies(log.log)) == 12
    assert log.log._local.segments[1].is_live


def test_times_lead_to_the_first_batch_that_is_not_older() -> None:
    log = SteppedLog(segment_bytes_max=5 * BATCH_BYTES, index_interval_bytes=2 * BATCH_BYTES)
    times_ms = []
    for index in range(23):
        log.clock.now_ms += index % 3 * 10
        times_ms.append(log.clock.now_ms)
        log.append(rows=2)
    for time_ms in range(NOW_MS - 1, log.clock.now_ms + 2):
        expected = next((2 * index for index, at_ms in enumerate(times_ms) if at_ms >= time_ms), 46)
        assert log.log.offset_for_timestamp(time_ms) == expected


def test_times_of_what_is_not_durable_do_not_count() -> None:
    log = SteppedLog()
    log.append()
    log.clock.now_ms += 10
    log.log.append(make_batch())
    assert log.log.offset_for_timestamp(NOW_MS + 5) == 1
    assert log.log.timestamp_max_ms == NOW_MS + 10


# Expiry


def with_segments(count: int) -> SteppedLog:
    """Return a log with a batch per segment, a second apart."""
    log = SteppedLog(segment_bytes_max=1)
    for index in range(count):
        log.append(b"%d" % index)
        log.clock.now_ms += 1000
    return log


def expire(log: SteppedLog, before_ms: int, **options: Any) -> int:
    return run(drive(log.committer, log.log.expire_segments(before_ms, **options)))


def test_segments_leave_when_everything_in_them_is_old() -> None:
    log = with_segments(5)
    assert expire(log, NOW_MS) == 0
    assert expire(log, NOW_MS + 1001) == 2
    assert (log.log.offset_start, log.log.segment_count) == (2, 3)
    assert bodies(log.log) == [b"2", b"3", b"4"]
    with pytest.raises(FlussError, match="the log has 2 to 5"):
        log.log.read(1, 100, at_least_one_batch=True)
    assert {name[:20] for name in log.files.names(DIRECTORY) if "snapshot" not in name} == {
        f"{offset:020d}" for offset in (2, 3, 4)
    }


def test_the_owner_that_protects_a_log_decides_what_may_leave() -> None:
    log = with_segments(5)
    asked = []

    async def protect(offset: int) -> int:
        asked.append(offset)
        return 2

    assert expire(log, NOW_MS, protect=protect) == 0
    assert asked == [], "nothing was to leave"
    assert expire(log, NOW_MS + 10_000, protect=protect) == 2
    assert asked == [4]
    assert bodies(log.log) == [b"2", b"3", b"4"]
    assert expire(log, NOW_MS + 10_000, protect=protect) == 0


def test_the_last_segment_stays_unless_it_may_be_rolled() -> None:
    log = with_segments(3)
    assert expire(log, NOW_MS + 10_000) == 2
    assert bodies(log.log) == [b"2"]
    assert expire(log, NOW_MS + 10_000) == 0
    assert expire(log, NOW_MS + 10_000, roll_active=True) == 1
    assert (log.log.offset_start, log.log.offset_next, log.log.segment_count) == (3, 3, 1)
    assert expire(log, NOW_MS + 10_000, roll_active=True) == 0, "an empty segment has no age"
    assert log.log.timestamp_max_ms == NOW_MS + 2000
    assert log.log.offset_for_timestamp(0) == 3
    assert log.append(b"new") == 3
    assert bodies(log.log) == [b"new"]


def test_what_is_on_its_way_to_the_disk_does_not_expire() -> None:
    log = with_segments(2)
    log.log.append(make_batch(b"2"))
    log.log.append(make_batch(b"3"))
    task_result = run(_expire_without_committing(log))
    assert task_result == 1
    log.committer.step()
    assert bodies(log.log) == [b"1", b"2", b"3"]


async def _expire_without_committing(log: SteppedLog) -> int:
    return await log.log.expire_segments(NOW_MS + 10_000, roll_active=True)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("operation", ["sync_directory", "remove"])
def test_segments_that_could_not_be_removed_go_before_those_behind_them(operation: str, number: int) -> None:
    log = with_segments(4)
    log.files.fail_next(operation, number=number)
    with pytest.raises(OSError, match=r"Too many|Input/output"):
        run(drive(log.committer, log.log.expire_segments(NOW_MS + 10_000)))
    assert log.log.offset_start == 3, "readers do not wait for the disk"
    for body in (b"4", b"5"):
        log.append(body)
    assert run(drive(log.committer, log.log.expire_segments(NOW_MS + 10_000))) == 2
    log.files.crash()
    again, _ = open_log(log.files, log.committer)
    assert bodies(again) == [b"5"]


def test_a_writer_is_known_after_all_its_rows_have_expired() -> None:
    log = SteppedLog(segment_bytes_max=1)
    log.append(writer=7, sequence=0)
    assert expire(log, NOW_MS + 1, roll_active=True) == 1
    log.files.crash()
    reopened, _ = open_log(log.files, log.committer, settings=log.settings, clock=log.clock)
    assert reopened.append(make_batch(writer=7, sequence=0)).is_duplicate
    assert reopened.append(make_batch(writer=7, sequence=1)).offset_base == 1


# Ends


def test_flush_brings_to_the_disk_what_was_left_to_the_operating_system() -> None:
    log = SteppedLog(is_synced=False, segment_bytes_max=2 * BATCH_BYTES)
    for _ in range(5):
        log.append()
    assert (log.log.offset_high_watermark, log.log.recovery_offset) == (5, 0)
    run(drive(log.committer, log.log.flush()))
    assert log.log.recovery_offset == 5
    log.append()
    log.files.crash()
    reopened, _ = open_log(log.files, log.committer, settings=log.settings, recovery_offset=5)
    assert reopened.offset_next >= 5


async def test_a_flush_is_not_disturbed_by_what_comes_meanwhile() -> None:
    class SlowFiles(FaultFiles):
        may_sync = threading.Event()

        def sync(self, path: Path) -> None:
            assert self.may_sync.wait(120)
            super().sync(path)

    files = SlowFiles()
    log = SteppedLog(files=files, is_synced=False, segment_bytes_max=1)
    log.append()
    flushing = asyncio.ensure_future(log.log.flush())
    await asyncio.sleep(0)
    log.log.append(make_batch())
    assert log.log.segment_count == 2, "the new segment is not on the disk yet"
    files.may_sync.set()
    await flushing
    assert log.log.failure is None
    assert log.log.recovery_offset == 1


def test_a_flush_that_fails_ends_all_writing() -> None:
    log = SteppedLog(is_synced=False)
    log.append()
    log.files.fail_next("sync")
    with pytest.raises(FlussError, match="read-only") as caught:
        run(drive(log.committer, log.log.flush()))
    assert caught.value.error_code == ErrorCode.STORAGE_EXCEPTION
    assert log.log.recovery_offset == 0
    assert code_of(lambda: log.log.append(make_batch())) == ErrorCode.STORAGE_EXCEPTION
    assert bodies(log.log) == [b"row"]


async def test_closing_writes_everything_and_may_be_repeated(tmp_path: Path) -> None:
    files = OsFiles()
    committer = Committer(files)
    committer.start()
    log, _ = open_log(files, committer, directory=tmp_path / "log-0")
    last = [log.append(make_batch(b"%d" % index, writer=1, sequence=index)) for index in range(50)][-1]
    await log.close()
    assert log.is_durable(last)
    await log.close()
    assert code_of(lambda: log.append(make_batch())) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert files.descriptor_count == 0
    again, result = open_log(files, committer, directory=tmp_path / "log-0", was_clean=True, recovery_offset=50)
    assert (result.segments_scanned, result.offset_next) == (0, 50)
    assert again.append(make_batch(b"49", writer=1, sequence=49)).offset_base == 49
    assert bodies(again) == [b"%d" % index for index in range(50)]
    await again.close()
    await committer.stop()


async def test_no_append_slips_in_while_a_log_is_closed() -> None:
    log = SteppedLog()
    log.log.append(make_batch(b"a"))
    closing = asyncio.ensure_future(log.log.close())
    await asyncio.sleep(0)
    assert code_of(lambda: log.log.append(make_batch(b"b"))) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await drive(log.committer, asyncio.wait_for(closing, 120))
    assert bodies(log.log) == [b"a"]


async def test_a_deleted_log_leaves_nothing_and_tells_those_who_wait(tmp_path: Path) -> None:
    directory = tmp_path / "db" / "t-1" / "log-0"
    for _ in range(20):
        files = OsFiles()
        committer = Committer(files)
        committer.start()
        log, _ = open_log(files, committer, directory=directory)
        result = log.append(make_batch())
        waiting = asyncio.ensure_future(log.wait_durable(result))
        await asyncio.sleep(0)
        await log.delete()
        with pytest.raises(FlussError, match="dropped") as caught:
            await waiting
        assert caught.value.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        with pytest.raises(FlussError, match="dropped"):
            await asyncio.wait_for(log.wait_written(result), 120)
        await committer.stop()
        assert not directory.exists()
        assert not list(tmp_path.rglob("*.log"))
        assert files.descriptor_count == 0


def test_a_reader_of_a_log_that_is_deleted_meanwhile_is_told_so() -> None:
    log = SteppedLog()
    log.append()
    run(log.log.delete())
    for act in (
        lambda: log.log.read(0, 9, at_least_one_batch=True),
        lambda: log.log.offset_for_timestamp(NOW_MS),
        lambda: log.log.append(make_batch()),
    ):
        assert code_of(act) == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


async def test_an_idle_log_has_no_directory_and_no_descriptor(tmp_path: Path) -> None:
    async with real_log(tmp_path / "log-0") as log:
        assert log.append(b"").offset_next == 0
    assert not (tmp_path / "log-0").exists()


def test_files_that_cannot_be_read_are_reported() -> None:
    log = with_segments(3)
    log.files.remove(DIRECTORY / f"{1:020d}.log")
    with pytest.raises(CorruptRecordError, match=r"1\.log is missing; offset 1 was in it"):
        log.log.read(1, 100, at_least_one_batch=True)
    log.files.change(DIRECTORY / f"{2:020d}.log", b"")
    with pytest.raises(CorruptRecordError, match=r"2\.log, byte 0"):
        log.log.read(2, 100, at_least_one_batch=True)
    log.files.stop_after(0)
    assert code_of(lambda: log.log.read(0, 100, at_least_one_batch=True)) == ErrorCode.LOG_STORAGE_EXCEPTION
    assert code_of(lambda: log.log.offset_for_timestamp(NOW_MS)) == ErrorCode.LOG_STORAGE_EXCEPTION


# All at once


async def test_readers_are_never_disturbed_by_appends_rolls_and_expiry(tmp_path: Path) -> None:
    files = OsFiles(descriptors_max=4)
    committer = Committer(files)
    committer.start()
    settings = LogSettings(segment_bytes_max=3000, index_interval_bytes=200)
    clock = Clock()
    log, _ = open_log(files, committer, directory=tmp_path / "log-0", settings=settings, clock=clock)
    is_over = threading.Event()
    read_counts = [0, 0, 0]

    def read(seed: int) -> None:
        rng = random.Random(seed)
        while not is_over.is_set():
            offset = rng.randint(log.offset_start, log.offset_high_watermark)
            try:
                for batch in read_batches(log, offset=offset, bytes_max=rng.choice((100, 1000, 5000))):
                    assert int(body_of(batch)[:10]) == batch.header.base_offset
                    read_counts[seed] += 1
                    if rng.random() < 0.02:
                        break
                log.offset_for_timestamp(NOW_MS + rng.randint(0, clock.now_ms - NOW_MS))
            except FlussError as error:
                if error.error_code != ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
                    raise

    with ThreadPoolExecutor(3) as threads:
        jobs = [threads.submit(read, seed) for seed in range(3)]
        expired = 0
        while (expired < 20 or sum(read_counts) < 500) and not any(job.done() for job in jobs):
            for _ in range(10):
                clock.now_ms += 1
                result = log.append(make_batch(b"%010d" % log.offset_next * 10, rows=3))
            await log.wait_durable(result)
            expired += await log.expire_segments(clock.now_ms - 100, roll_active=True)
        is_over.set()
        for job in jobs:
            job.result(120)
    await log.close()
    reopened, _ = open_log(
        files, committer, directory=tmp_path / "log-0", was_clean=True, recovery_offset=log.offset_next
    )
    assert contents(reopened) == contents(log)
    await committer.stop()
    files.forget(tmp_path)
