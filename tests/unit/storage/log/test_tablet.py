"""The log of a bucket: what is appended is stamped, becomes visible when it is durable, and is read back as it was.
Real files and a real committer, or a disk in memory and a committer that works when it is told to."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.record.log_batch import assign_offset, iter_batches
from fluss.storage.log.committer import Committer
from fluss.storage.vfs import OsFiles
from tests.unit.storage.log.support import (
    DIRECTORY,
    NOW_MS,
    SteppedLog,
    append_all,
    bodies,
    code_of,
    drive,
    make_batch,
    open_log,
    read_batches,
    real_log,
)

BATCH_BYTES = len(make_batch())


# Appending


async def test_batches_get_offsets_one_after_the_other_and_are_read_back_as_they_were(tmp_path: Path) -> None:
    async with real_log(tmp_path / "log-0") as log:
        results = await append_all(log, [make_batch(b"a", rows=3), make_batch(b"b"), make_batch(b"c", rows=2)])
        assert [(result.offset_base, result.offset_next) for result in results] == [(0, 3), (3, 4), (4, 6)]
        assert (log.offset_start, log.offset_high_watermark, log.offset_next) == (0, 6, 6)
        assert bodies(log) == [b"a", b"b", b"c"]
        assert [batch.header.base_offset for batch in read_batches(log)] == [0, 3, 4]
        assert {batch.header.commit_timestamp for batch in read_batches(log)} == {NOW_MS}
        assert log.size_bytes == 3 * BATCH_BYTES - 6


def test_several_batches_are_one_append_with_one_time() -> None:
    log = SteppedLog()
    data = make_batch(b"a", rows=2) + make_batch(b"b") + make_batch(b"c", rows=4)
    result = log.log.append(data)
    log.committer.step()
    assert (result.offset_base, result.offset_next, result.commit_timestamp_ms) == (0, 7, NOW_MS)
    assert [batch.header.base_offset for batch in read_batches(log.log)] == [0, 2, 3]
    assert log.log.read(0, 10_000, at_least_one_batch=True) == data, "the caller's own bytes are stamped and stored"


def test_the_memory_of_the_caller_is_written_to_only_if_it_can_be() -> None:
    log = SteppedLog()
    batch = bytes(make_batch(b"a"))
    log.append(b"first")
    result = log.log.append(batch)
    log.committer.step()
    assert batch == make_batch(b"a")
    assert result.offset_base == 1
    assert bodies(log.log) == [b"first", b"a"]


def test_bytes_behind_the_last_whole_batch_are_left_out() -> None:
    log = SteppedLog()
    result = log.log.append(make_batch(b"a") + make_batch(b"b")[:-1])
    assert (result.offset_base, result.offset_next) == (0, 1)
    log.append(b"c")
    assert bodies(log.log) == [b"a", b"c"]


@pytest.mark.parametrize("data", [b"", b"\0" * 11, bytes(make_batch()[:-1])])
def test_an_append_without_a_whole_batch_changes_nothing(data: bytes) -> None:
    log = SteppedLog()
    result = log.log.append(data)
    assert (result.offset_base, result.offset_next, result.is_duplicate) == (0, 0, False)
    assert log.log.is_durable(result)
    assert not log.committer.step(), "there is nothing to write"
    assert not log.files.exists(DIRECTORY)


def test_a_batch_without_rows_takes_an_offset() -> None:
    log = SteppedLog()
    assert log.append(b"", rows=0) == 0
    assert log.append(b"a") == 1
    assert bodies(log.log) == [b"", b"a"]


def test_damage_in_any_batch_refuses_the_whole_append() -> None:
    log = SteppedLog()
    data = make_batch(b"a", writer=1, sequence=0) + make_batch(b"b", writer=1, sequence=1)
    data[-1] ^= 1
    assert code_of(lambda: log.log.append(data)) == ErrorCode.CORRUPT_RECORD_EXCEPTION
    assert log.log.offset_next == 0
    assert not log.committer.step()
    assert log.append(b"a", writer=1, sequence=0) == 0, "the writer may begin"


def test_a_batch_that_was_just_built_is_taken_as_any_other() -> None:
    built, sent = SteppedLog(batch_bytes_max=100), SteppedLog(batch_bytes_max=100)
    for sequence, rows in enumerate((3, 0, 1)):
        batch = make_batch(b"a" if rows else b"", rows=rows, writer=7, sequence=sequence)
        assert built.log.append_built(bytearray(batch)) == sent.log.append(batch)
        built.committer.step()
        sent.committer.step()
    assert built.log.read(0, 10_000, at_least_one_batch=True) == sent.log.read(0, 10_000, at_least_one_batch=True)
    assert built.log.find_duplicate(7, 2) == sent.log.find_duplicate(7, 2)
    too_large = make_batch(b"x" * 60)
    assert code_of(lambda: built.log.append_built(too_large)) == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    built.log.drop()
    assert code_of(lambda: built.log.append_built(make_batch())) == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


def test_a_batch_over_the_limit_is_refused_with_its_own_code() -> None:
    log = SteppedLog(batch_bytes_max=100)
    assert code_of(lambda: log.log.append(make_batch(b"x" * 60))) == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert code_of(lambda: log.log.append(make_batch(b"x" * 60)[:90])) == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert log.append(b"x" * 52) == 0


def test_more_offsets_than_an_index_can_tell_apart_are_refused() -> None:
    log = SteppedLog()
    huge = make_batch(b"x", rows=2**31 - 2)
    assert code_of(lambda: log.log.append(huge + huge)) == ErrorCode.CORRUPT_RECORD_EXCEPTION
    assert log.append(b"x", rows=2**31 - 2) == 0
    assert log.append(b"y", rows=2) == 2**31 - 2
    assert log.append(b"z") == 2**31
    assert log.log.segment_count == 2
    assert bodies(log.log) == [b"x", b"y", b"z"]


def test_commit_times_do_not_go_back_when_the_clock_does() -> None:
    log = SteppedLog(segment_bytes_max=BATCH_BYTES)
    for delta_ms in (0, -500, 200, -100, 1000):
        log.clock.now_ms = NOW_MS + delta_ms
        log.append()
    times_ms = [batch.header.commit_timestamp - NOW_MS for batch in read_batches(log.log)]
    assert times_ms == [0, 0, 200, 200, 1000]
    assert log.log.timestamp_max_ms == NOW_MS + 1000


# Idempotent writers


def test_a_repeated_batch_gets_the_answer_of_the_first() -> None:
    log = SteppedLog()
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
    log = SteppedLog()
    assert log.log.find_duplicate(7, 0) is None
    assert code_of(lambda: log.log.find_duplicate(7, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
    log.append(rows=2, writer=7, sequence=0)
    found = log.log.find_duplicate(7, 0)
    assert found is not None
    assert (found.offset_base, found.offset_next, found.is_duplicate) == (0, 2, True)
    assert log.log.find_duplicate(7, 1) is None
    assert log.log.find_duplicate(-1, -1) is None, "who has no number never repeats himself"
    assert log.log.offset_next == 2


async def test_a_repeated_batch_waits_for_the_first_one_and_fails_with_it() -> None:
    log = SteppedLog()
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


def test_a_batch_out_of_order_is_refused() -> None:
    log = SteppedLog()
    log.append(writer=7, sequence=0)
    for sequence in (2, 5):
        refused = make_batch(writer=7, sequence=sequence)
        assert code_of(lambda: log.log.append(refused)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION  # noqa: B023
    assert log.log.offset_next == 1


def test_silent_writers_are_forgotten() -> None:
    log = SteppedLog(writer_expiration_ms=1000)
    log.append(writer=7, sequence=0)
    log.clock.now_ms += 1000
    assert log.log.expire_writers() == 0
    log.clock.now_ms += 1
    assert log.log.expire_writers() == 1
    assert log.log.writer_count == 0
    assert log.append(writer=7, sequence=0) == 1


# Visibility


def test_nothing_is_visible_before_it_is_durable() -> None:
    log = SteppedLog()
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


async def test_written_comes_before_durable() -> None:
    log = SteppedLog()
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


async def test_a_writer_that_asks_late_whether_it_is_written_need_not_wait_for_the_sync(tmp_path: Path) -> None:
    class SlowFiles(OsFiles):
        may_sync = threading.Event()
        is_syncing = threading.Event()

        def sync(self, path: Path) -> None:
            self.is_syncing.set()
            assert self.may_sync.wait(120)
            super().sync(path)

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


def test_a_log_that_is_held_back_shows_what_is_durable_when_it_is_told_to() -> None:
    log = SteppedLog()
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
    log = SteppedLog()
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
    log = SteppedLog()
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
    log = SteppedLog()
    log.append(b"a", rows=10)
    log.append(b"b", rows=10)
    for offset, expected in ((0, 0), (3, 0), (9, 0), (10, 10), (19, 10)):
        batches = list(iter_batches(log.log.read(offset, 10_000, at_least_one_batch=False)))
        assert batches[0].header.base_offset == expected


def test_a_read_is_cut_at_the_limit_but_can_have_one_whole_batch() -> None:
    log = SteppedLog()
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
    log = SteppedLog()
    log.append(rows=5)
    for offset in (-1, 6, 2**62):
        with pytest.raises(FlussError, match=f"offset {offset} .* out of range: the log has 0 to 5") as caught:
            log.log.read(offset, 100, at_least_one_batch=True)
        assert caught.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION


def test_an_empty_log_can_be_read_at_its_start() -> None:
    log = SteppedLog()
    assert log.log.read(0, 100, at_least_one_batch=True) == b""
    assert code_of(lambda: log.log.read(1, 100, at_least_one_batch=True)) == 19
    assert log.log.offset_for_timestamp(0) == 0
    assert log.log.timestamp_max_ms == -1
    assert (log.log.size_bytes, log.log.segment_count) == (0, 0)


def test_a_read_stays_within_one_segment() -> None:
    log = SteppedLog(segment_bytes_max=2 * BATCH_BYTES)
    for _ in range(5):
        log.append()
    sizes = [len(log.log.read(offset, 10_000, at_least_one_batch=True)) // BATCH_BYTES for offset in range(5)]
    assert sizes == [2, 1, 2, 1, 1]


def test_only_what_was_written_moments_ago_may_be_read_on_the_event_loop() -> None:
    log = SteppedLog(index_interval_bytes=4096)
    assert log.log.is_cached(0, 1000)
    log.append(b"x" * 600_000)
    assert log.log.is_cached(0, 200_000)
    assert not log.log.is_cached(0, 400_000), "a large read takes long wherever it is from"
    assert log.log.is_cached(1, 400_000), "there is nothing yet"
    log.append(b"x" * 600_000)
    assert log.log.is_cached(1, 200_000)
    assert not log.log.is_cached(0, 200_000), "it is no longer new"
