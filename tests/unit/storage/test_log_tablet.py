"""The log of a bucket: what is appended is stamped, becomes visible when it is durable, and is read back as it was.
Real files and a real committer, or a disk in memory and a committer that works when it is told to."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.net.transport import run
from fluss.record.log_batch import assign_offset, iter_batches
from fluss.storage.log.committer import Committer
from fluss.storage.log.tablet import LogSettings, LogTablet
from fluss.storage.vfs import OsFiles
from fluss.testing.faultfs import FaultFiles
from tests.unit.storage.support import (
    DATA_DIRECTORY,
    DIRECTORY,
    NOW_MS,
    Clock,
    SteppedCommitter,
    append_all,
    bodies,
    body_of,
    contents,
    drive,
    make_batch,
    open_log,
    read_batches,
)

BATCH_BYTES = len(make_batch())


class Stepped:
    """A log on a disk in memory, written when the test says so."""

    def __init__(self, *, is_synced: bool = True, files: FaultFiles | None = None, **settings: int) -> None:
        self.files = files or FaultFiles()
        self.files.make_directory(DATA_DIRECTORY)
        self.committer = SteppedCommitter(self.files, is_synced=is_synced)
        self.clock = Clock()
        self.settings = LogSettings(**settings)
        self.log, _ = open_log(self.files, self.committer, settings=self.settings, clock=self.clock)

    def append(self, body: bytes = b"row", **facts: int) -> int:
        """Append one batch, durably, and return its offset."""
        result = self.log.append(make_batch(body, **facts))
        self.committer.step()
        return result.offset_base


@asynccontextmanager
async def real_log(directory: Path, **settings: int) -> AsyncIterator[LogTablet]:
    """A log on the disk of the machine, written by the thread of a committer."""
    files = OsFiles()
    committer = Committer(files)
    committer.start()
    log, _ = open_log(files, committer, directory=directory, settings=LogSettings(**settings))
    try:
        yield log
        await log.close()
    finally:
        await committer.stop()


def code_of(action: Callable[[], object]) -> ErrorCode:
    with pytest.raises(FlussError) as caught:
        action()
    return ErrorCode(caught.value.error_code)


# Appending


def test_batches_get_offsets_one_after_the_other_and_are_read_back_as_they_were(tmp_path: Path) -> None:
    async def main() -> None:
        async with real_log(tmp_path / "log-0") as log:
            results = await append_all(log, [make_batch(b"a", rows=3), make_batch(b"b"), make_batch(b"c", rows=2)])
            assert [(result.offset_base, result.offset_next) for result in results] == [(0, 3), (3, 4), (4, 6)]
            assert (log.offset_start, log.offset_high_watermark, log.offset_next) == (0, 6, 6)
            assert bodies(log) == [b"a", b"b", b"c"]
            assert [batch.header.base_offset for batch in read_batches(log)] == [0, 3, 4]
            assert {batch.header.commit_timestamp for batch in read_batches(log)} == {NOW_MS}
            assert log.size_bytes == 3 * BATCH_BYTES - 6

    run(main())


def test_several_batches_are_one_append_with_one_time() -> None:
    log = Stepped()
    data = make_batch(b"a", rows=2) + make_batch(b"b") + make_batch(b"c", rows=4)
    result = log.log.append(data)
    log.committer.step()
    assert (result.offset_base, result.offset_next, result.commit_timestamp_ms) == (0, 7, NOW_MS)
    assert [batch.header.base_offset for batch in read_batches(log.log)] == [0, 2, 3]
    assert log.log.read(0, 10_000, at_least_one_batch=True) == data, "the caller's own bytes are stamped and stored"


def test_the_memory_of_the_caller_is_written_to_only_if_it_can_be() -> None:
    log = Stepped()
    batch = bytes(make_batch(b"a"))
    log.append(b"first")
    result = log.log.append(batch)
    log.committer.step()
    assert batch == make_batch(b"a")
    assert result.offset_base == 1
    assert bodies(log.log) == [b"first", b"a"]


def test_bytes_behind_the_last_whole_batch_are_left_out() -> None:
    log = Stepped()
    result = log.log.append(make_batch(b"a") + make_batch(b"b")[:-1])
    assert (result.offset_base, result.offset_next) == (0, 1)
    log.append(b"c")
    assert bodies(log.log) == [b"a", b"c"]


@pytest.mark.parametrize("data", [b"", b"\0" * 11, bytes(make_batch()[:-1])])
def test_an_append_without_a_whole_batch_changes_nothing(data: bytes) -> None:
    log = Stepped()
    result = log.log.append(data)
    assert (result.offset_base, result.offset_next, result.is_duplicate) == (0, 0, False)
    assert log.log.is_durable(result)
    assert not log.committer.step(), "there is nothing to write"
    assert not log.files.exists(DIRECTORY)


def test_a_batch_without_rows_takes_an_offset() -> None:
    log = Stepped()
    assert log.append(b"", rows=0) == 0
    assert log.append(b"a") == 1
    assert bodies(log.log) == [b"", b"a"]


def test_damage_in_any_batch_refuses_the_whole_append() -> None:
    log = Stepped()
    data = make_batch(b"a", writer=1, sequence=0) + make_batch(b"b", writer=1, sequence=1)
    data[-1] ^= 1
    assert code_of(lambda: log.log.append(data)) == ErrorCode.CORRUPT_RECORD_EXCEPTION
    assert log.log.offset_next == 0
    assert not log.committer.step()
    assert log.append(b"a", writer=1, sequence=0) == 0, "the writer may begin"


def test_a_batch_over_the_limit_is_refused_with_its_own_code() -> None:
    log = Stepped(batch_bytes_max=100)
    assert code_of(lambda: log.log.append(make_batch(b"x" * 60))) == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert code_of(lambda: log.log.append(make_batch(b"x" * 60)[:90])) == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert log.append(b"x" * 52) == 0


def test_more_offsets_than_an_index_can_tell_apart_are_refused() -> None:
    log = Stepped()
    huge = make_batch(b"x", rows=2**31 - 2)
    assert code_of(lambda: log.log.append(huge + huge)) == ErrorCode.CORRUPT_RECORD_EXCEPTION
    assert log.append(b"x", rows=2**31 - 2) == 0
    assert log.append(b"y", rows=2) == 2**31 - 2
    assert log.append(b"z") == 2**31
    assert log.log.segment_count == 2
    assert bodies(log.log) == [b"x", b"y", b"z"]


def test_commit_times_do_not_go_back_when_the_clock_does() -> None:
    log = Stepped(segment_bytes_max=BATCH_BYTES)
    for delta_ms in (0, -500, 200, -100, 1000):
        log.clock.now_ms = NOW_MS + delta_ms
        log.append()
    times_ms = [batch.header.commit_timestamp - NOW_MS for batch in read_batches(log.log)]
    assert times_ms == [0, 0, 200, 200, 1000]
    assert log.log.timestamp_max_ms == NOW_MS + 1000


# Idempotent writers


def test_a_repeated_batch_gets_the_answer_of_the_first() -> None:
    log = Stepped()
    log.append(b"other", rows=4)
    first = log.log.append(make_batch(b"a", rows=2, writer=7, sequence=0))
    log.clock.now_ms += 1000
    again = log.log.append(make_batch(b"a", rows=2, writer=7, sequence=0))
    assert again.is_duplicate
    assert (again.offset_base, again.offset_next, again.commit_timestamp_ms) == (4, 6, NOW_MS)
    assert not log.log.is_durable(again), "a repetition is not safer than the first copy"
    log.committer.step()
    assert log.log.is_durable(first)
    assert log.log.is_durable(again)
    assert bodies(log.log) == [b"other", b"a"]


def test_whether_a_batch_is_repeated_can_be_asked_without_appending_it() -> None:
    log = Stepped()
    assert log.log.find_duplicate(7, 0) is None
    assert code_of(lambda: log.log.find_duplicate(7, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
    log.append(rows=2, writer=7, sequence=0)
    found = log.log.find_duplicate(7, 0)
    assert found is not None
    assert (found.offset_base, found.offset_next, found.is_duplicate) == (0, 2, True)
    assert log.log.find_duplicate(7, 1) is None
    assert log.log.find_duplicate(-1, -1) is None, "who has no number never repeats himself"
    assert log.log.offset_next == 2


def test_a_repeated_batch_waits_for_the_first_one_and_fails_with_it() -> None:
    async def main() -> None:
        log = Stepped()
        log.log.append(make_batch(writer=7, sequence=0))
        again = log.log.append(make_batch(writer=7, sequence=0))
        waiting = asyncio.ensure_future(log.log.wait_durable(again))
        await asyncio.sleep(0)
        assert not waiting.done()
        log.files.fail_next("write")
        log.committer.step()
        with pytest.raises(FlussError, match="nothing of this append was stored"):
            await waiting
        third = log.log.append(make_batch(writer=7, sequence=0))
        assert not third.is_duplicate
        await drive(log.committer, log.log.wait_durable(third))

    run(main())


def test_a_batch_out_of_order_is_refused() -> None:
    log = Stepped()
    log.append(writer=7, sequence=0)
    for sequence in (2, 5):
        refused = make_batch(writer=7, sequence=sequence)
        assert code_of(lambda: log.log.append(refused)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION  # noqa: B023
    assert log.log.offset_next == 1


def test_silent_writers_are_forgotten() -> None:
    log = Stepped(writer_expiration_ms=1000)
    log.append(writer=7, sequence=0)
    log.clock.now_ms += 1000
    assert log.log.expire_writers() == 0
    log.clock.now_ms += 1
    assert log.log.expire_writers() == 1
    assert log.log.writer_count == 0
    assert log.append(writer=7, sequence=0) == 1


# Visibility


def test_nothing_is_visible_before_it_is_durable() -> None:
    log = Stepped()
    log.append(b"a")
    log.log.append(make_batch(b"b", rows=2))
    assert (log.log.offset_high_watermark, log.log.offset_next, log.log.pending_bytes) == (1, 3, BATCH_BYTES - 2)
    assert bodies(log.log) == [b"a"]
    assert log.log.read(1, 1000, at_least_one_batch=True) == b""
    assert log.log.read(3, 1000, at_least_one_batch=True) == b""
    assert code_of(lambda: log.log.read(4, 1000, at_least_one_batch=True)) == 19
    log.committer.step()
    assert bodies(log.log) == [b"a", b"b"]
    assert log.log.pending_bytes == 0


def test_written_comes_before_durable() -> None:
    async def main() -> None:
        log = Stepped()
        seen = []
        for name, wait in (("written", log.log.wait_written), ("durable", log.log.wait_durable)):
            result = log.log.append(make_batch())
            waiting = asyncio.ensure_future(wait(result))
            waiting.add_done_callback(lambda _, name=name: seen.append(name))
        await asyncio.sleep(0)
        log.files.fail_next("sync")
        log.committer.step()
        with pytest.raises(FlussError, match="read-only"):
            await waiting
        assert seen == ["written", "durable"], "the first has succeeded before the second failed"

    run(main())


def test_whoever_asks_late_whether_it_is_written_need_not_wait_for_the_sync(tmp_path: Path) -> None:
    class SlowFiles(OsFiles):
        may_sync = threading.Event()
        is_syncing = threading.Event()

        def sync(self, path: Path) -> None:
            self.is_syncing.set()
            assert self.may_sync.wait(120)
            super().sync(path)

    async def main() -> None:
        files = SlowFiles()
        committer = Committer(files)
        committer.start()
        log, _ = open_log(files, committer, directory=tmp_path / "log-0")
        result = log.append(make_batch())
        assert await asyncio.to_thread(files.is_syncing.wait, 10)
        await asyncio.wait_for(log.wait_written(result), 120)
        assert not log.is_durable(result)
        files.may_sync.set()
        await log.wait_durable(result)
        await log.close()
        await committer.stop()

    run(main())


def test_a_log_that_is_held_back_shows_what_is_durable_when_it_is_told_to() -> None:
    log = Stepped()
    log.append(b"before")
    log.log.hold_back()
    seen: list[int] = []
    log.log.on_advance(lambda tablet: seen.append(tablet.offset_high_watermark))
    results = []
    for body in (b"one", b"two", b"three"):
        results.append(log.log.append(make_batch(body)))
        log.committer.step()
    assert [log.log.is_durable(result) for result in results] == [True] * 3
    assert (log.log.offset_durable, log.log.offset_high_watermark, seen) == (4, 1, [])
    assert bodies(log.log) == [b"before"]

    log.log.show_until(3)
    assert bodies(log.log) == [b"before", b"one", b"two"]
    log.log.show_until(2)
    log.log.show_until(100)
    assert (log.log.offset_high_watermark, seen) == (4, [3, 4])
    log.log.append(make_batch(b"not durable"))
    log.log.show_until(100)
    assert log.log.offset_high_watermark == 4


def test_a_failed_write_takes_back_nothing_that_is_durable_and_held_back() -> None:
    log = Stepped()
    log.log.hold_back()
    log.append(b"kept")
    log.files.fail_next("write")
    lost = log.log.append(make_batch(b"lost"))
    log.committer.step()
    assert not log.log.is_durable(lost)
    assert (log.log.offset_durable, log.log.offset_next, log.log.offset_high_watermark) == (1, 1, 0)
    log.log.show_until(1)
    assert bodies(log.log) == [b"kept"]


def test_listeners_hear_of_every_advance_until_they_leave() -> None:
    log = Stepped()
    seen: list[int] = []
    remove = log.log.on_advance(lambda tablet: seen.append(tablet.offset_high_watermark))
    log.log.append(make_batch())
    log.append(rows=3)
    log.append()
    assert seen == [4, 5], "one call for what became durable together"
    remove()
    remove()
    log.append()
    assert seen == [4, 5]


# Reading


def test_a_read_starts_with_the_batch_that_holds_the_offset() -> None:
    log = Stepped()
    log.append(b"a", rows=10)
    log.append(b"b", rows=10)
    for offset, expected in ((0, 0), (3, 0), (9, 0), (10, 10), (19, 10)):
        batches = list(iter_batches(log.log.read(offset, 10_000, at_least_one_batch=False)))
        assert batches[0].header.base_offset == expected


def test_a_read_is_cut_at_the_limit_but_can_have_one_whole_batch() -> None:
    log = Stepped()
    whole = b""
    for body in (b"a", b"b"):
        batch = make_batch(body)
        assign_offset(batch, log.append(body), NOW_MS)
        whole += batch
    size = len(whole) // 2
    assert log.log.read(0, size + 7, at_least_one_batch=True) == whole[: size + 7]
    assert log.log.read(0, 5, at_least_one_batch=True) == whole[:size]
    assert log.log.read(0, 5, at_least_one_batch=False) == whole[:5]
    assert log.log.read(0, 0, at_least_one_batch=False) == b""
    assert log.log.read(1, 10_000, at_least_one_batch=False) == whole[size:]


def test_an_offset_outside_of_the_log_is_refused_with_what_there_is() -> None:
    log = Stepped()
    log.append(rows=5)
    for offset in (-1, 6, 2**62):
        with pytest.raises(FlussError, match=f"offset {offset} .* out of range: the log has 0 to 5") as caught:
            log.log.read(offset, 100, at_least_one_batch=True)
        assert caught.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION


def test_an_empty_log_can_be_read_at_its_start() -> None:
    log = Stepped()
    assert log.log.read(0, 100, at_least_one_batch=True) == b""
    assert code_of(lambda: log.log.read(1, 100, at_least_one_batch=True)) == 19
    assert log.log.offset_for_timestamp(0) == 0
    assert log.log.timestamp_max_ms == -1
    assert (log.log.size_bytes, log.log.segment_count) == (0, 0)


def test_a_read_stays_within_one_segment() -> None:
    log = Stepped(segment_bytes_max=2 * BATCH_BYTES)
    for _ in range(5):
        log.append()
    sizes = [len(log.log.read(offset, 10_000, at_least_one_batch=True)) // BATCH_BYTES for offset in range(5)]
    assert sizes == [2, 1, 2, 1, 1]


def test_only_what_was_written_moments_ago_may_be_read_on_the_event_loop() -> None:
    log = Stepped(index_interval_bytes=4096)
    assert log.log.is_cached(0, 1000)
    log.append(b"x" * 600_000)
    assert log.log.is_cached(0, 200_000)
    assert not log.log.is_cached(0, 400_000), "a large read takes long wherever it is from"
    assert log.log.is_cached(1, 400_000), "there is nothing yet"
    log.append(b"x" * 600_000)
    assert log.log.is_cached(1, 200_000)
    assert not log.log.is_cached(0, 200_000), "it is no longer new"


# Segments


def test_every_batch_may_have_a_segment_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())


def test_an_append_larger_than_a_segment_gets_one_of_its_own() -> None:
    log = Stepped(segment_bytes_max=2 * BATCH_BYTES)
    for body in (b"row", b"x" * 1000, b"row", b"row", b"row"):
        log.append(body)
    assert log.log.segment_count == 4
    assert [len(body) for body in bodies(log.log)] == [3, 1000, 3, 3, 3]


def test_a_segment_ends_when_its_index_is_full() -> None:
    log = Stepped(index_bytes_max=24, index_interval_bytes=0)
    for _ in range(7):
        log.append()
    assert log.log.segment_count == 3
    assert len(bodies(log.log)) == 7


def test_the_index_of_a_full_segment_leaves_the_memory() -> None:
    log = Stepped(segment_bytes_max=10 * BATCH_BYTES, index_interval_bytes=0)
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
    log = Stepped(segment_bytes_max=10 * BATCH_BYTES, index_interval_bytes=0)
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
    log = Stepped(segment_bytes_max=5 * BATCH_BYTES, index_interval_bytes=0)
    log.files.fail_next("replace", ".index")
    for _ in range(12):
        log.append()
    assert [segment.is_live for segment in log.log._local.segments] == [True, False, True]
    log.files.remove(DIRECTORY / f"{5:020d}.index")
    log.files.fail_next("replace", ".index")
    assert len(bodies(log.log)) == 12
    assert log.log._local.segments[1].is_live


def test_times_lead_to_the_first_batch_that_is_not_older() -> None:
    log = Stepped(segment_bytes_max=5 * BATCH_BYTES, index_interval_bytes=2 * BATCH_BYTES)
    times_ms = []
    for index in range(23):
        log.clock.now_ms += index % 3 * 10
        times_ms.append(log.clock.now_ms)
        log.append(rows=2)
    for time_ms in range(NOW_MS - 1, log.clock.now_ms + 2):
        expected = next((2 * index for index, at_ms in enumerate(times_ms) if at_ms >= time_ms), 46)
        assert log.log.offset_for_timestamp(time_ms) == expected


def test_times_of_what_is_not_durable_do_not_count() -> None:
    log = Stepped()
    log.append()
    log.clock.now_ms += 10
    log.log.append(make_batch())
    assert log.log.offset_for_timestamp(NOW_MS + 5) == 1
    assert log.log.timestamp_max_ms == NOW_MS + 10


# Expiry


def with_segments(count: int) -> Stepped:
    """Return a log with a batch per segment, a second apart."""
    log = Stepped(segment_bytes_max=1)
    for index in range(count):
        log.append(b"%d" % index)
        log.clock.now_ms += 1000
    return log


def expire(log: Stepped, before_ms: int, **options: Any) -> int:
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


def test_whoever_protects_a_log_decides_what_may_leave() -> None:
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


async def _expire_without_committing(log: Stepped) -> int:
    return await log.log.expire_segments(NOW_MS + 10_000, roll_active=True)


def test_a_writer_is_known_after_all_its_rows_have_expired() -> None:
    log = Stepped(segment_bytes_max=1)
    log.append(writer=7, sequence=0)
    assert expire(log, NOW_MS + 1, roll_active=True) == 1
    log.files.crash()
    reopened, _ = open_log(log.files, log.committer, settings=log.settings, clock=log.clock)
    assert reopened.append(make_batch(writer=7, sequence=0)).is_duplicate
    assert reopened.append(make_batch(writer=7, sequence=1)).offset_base == 1


# Ends


def test_flush_brings_to_the_disk_what_was_left_to_the_operating_system() -> None:
    log = Stepped(is_synced=False, segment_bytes_max=2 * BATCH_BYTES)
    for _ in range(5):
        log.append()
    assert (log.log.offset_high_watermark, log.log.recovery_offset) == (5, 0)
    run(drive(log.committer, log.log.flush()))
    assert log.log.recovery_offset == 5
    log.append()
    log.files.crash()
    reopened, _ = open_log(log.files, log.committer, settings=log.settings, recovery_offset=5)
    assert reopened.offset_next >= 5


def test_a_flush_is_not_disturbed_by_what_comes_meanwhile() -> None:
    class SlowFiles(FaultFiles):
        may_sync = threading.Event()

        def sync(self, path: Path) -> None:
            assert self.may_sync.wait(120)
            super().sync(path)

    async def main() -> None:
        files = SlowFiles()
        log = Stepped(files=files, is_synced=False, segment_bytes_max=1)
        log.append()
        flushing = asyncio.ensure_future(log.log.flush())
        await asyncio.sleep(0)
        log.log.append(make_batch())
        assert log.log.segment_count == 2, "the new segment is not on the disk yet"
        files.may_sync.set()
        await flushing
        assert log.log.failure is None
        assert log.log.recovery_offset == 1

    run(main())


def test_a_flush_that_fails_ends_all_writing() -> None:
    log = Stepped(is_synced=False)
    log.append()
    log.files.fail_next("sync")
    with pytest.raises(FlussError, match="read-only") as caught:
        run(drive(log.committer, log.log.flush()))
    assert caught.value.error_code == ErrorCode.STORAGE_EXCEPTION
    assert log.log.recovery_offset == 0
    assert code_of(lambda: log.log.append(make_batch())) == ErrorCode.STORAGE_EXCEPTION
    assert bodies(log.log) == [b"row"]


def test_closing_writes_everything_and_may_be_repeated(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())


def test_no_append_slips_in_while_a_log_is_closed() -> None:
    async def main() -> None:
        log = Stepped()
        log.log.append(make_batch(b"a"))
        closing = asyncio.ensure_future(log.log.close())
        await asyncio.sleep(0)
        assert code_of(lambda: log.log.append(make_batch(b"b"))) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await drive(log.committer, asyncio.wait_for(closing, 120))
        assert bodies(log.log) == [b"a"]

    run(main())


def test_a_deleted_log_leaves_nothing_and_tells_those_who_wait(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())


def test_whoever_reads_a_log_that_is_deleted_meanwhile_is_told_so() -> None:
    log = Stepped()
    log.append()
    run(log.log.delete())
    for act in (
        lambda: log.log.read(0, 9, at_least_one_batch=True),
        lambda: log.log.offset_for_timestamp(NOW_MS),
        lambda: log.log.append(make_batch()),
    ):
        assert code_of(act) == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


def test_an_idle_log_has_no_directory_and_no_descriptor(tmp_path: Path) -> None:
    async def main() -> None:
        async with real_log(tmp_path / "log-0") as log:
            assert log.append(b"").offset_next == 0
        assert not (tmp_path / "log-0").exists()

    run(main())


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


def test_readers_are_never_disturbed_by_appends_rolls_and_expiry(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())
