"""Group commit: many appends become durable in one round, in order; a failure hits its own log and no other.
A disk in memory that fails on demand, rounds carried out one by one, and the real thread where threads matter."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from fluss.buffers import BytesLike
from fluss.errors import ErrorCode, FlussError
from fluss.net.transport import run
from fluss.storage.log import committer as committer_module
from fluss.storage.log.append_result import AppendResult
from fluss.storage.log.committer import CommitRound, Committer
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.log.tablet import LogTablet
from fluss.storage.vfs import OsFiles
from fluss.testing.faultfs import FaultFiles
from tests.unit.storage.log.support import (
    DATA_DIRECTORY,
    DIRECTORY,
    SteppedCommitter,
    bodies,
    drive,
    make_batch,
    open_log,
    quiet_logs,
)

BATCH_BYTES = len(make_batch(b"w0"))


class CountingFiles(FaultFiles):
    """Counts what the committer asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.make_directory(DATA_DIRECTORY)
        self.counts: Counter[str] = Counter()

    def write(self, path, parts, position):
        self.counts["write"] += 1
        super().write(path, parts, position)

    def sync(self, path):
        self.counts["sync"] += 1
        super().sync(path)

    def sync_directory(self, path):
        self.counts[f"sync {path.name}"] += 1
        super().sync_directory(path)


class Server:
    """Some logs on one disk, with one committer."""

    def __init__(self, log_count: int = 1, *, is_synced: bool = True, segment_bytes_max: int = 10_000) -> None:
        self.files = CountingFiles()
        self.committer = SteppedCommitter(self.files, is_synced=is_synced)
        self.settings = LogSettings(segment_bytes_max=segment_bytes_max)
        self.logs = [self.open(index) for index in range(log_count)]

    def open(self, index: int = 0, *, recovery_offset: int = 0) -> LogTablet:
        directory = DIRECTORY.with_name(f"log-{index}")
        return open_log(
            self.files,
            self.committer,
            directory=directory,
            settings=self.settings,
            recovery_offset=recovery_offset,
        )[0]

    @property
    def log(self) -> LogTablet:
        return self.logs[0]

    def append(self, text: str, index: int = 0) -> AppendResult:
        """Append without committing. ``w1`` is the batch with sequence 1 of writer ord("w")."""
        return self.logs[index].append(make_batch(text.encode(), writer=ord(text[0]), sequence=int(text[1:])))


def failure_of(result: AppendResult) -> ErrorCode:
    assert result.history.failure is not None
    return ErrorCode(result.history.failure.error_code)


@pytest.fixture(autouse=True)
def _quiet() -> object:
    with quiet_logs():
        yield


# Rounds


def test_many_appends_become_durable_by_one_write_and_one_sync() -> None:
    server = Server(segment_bytes_max=1_000_000)
    server.append("w0")
    server.committer.step()
    server.files.counts.clear()
    results = [server.append(f"w{index}") for index in range(1, 500)]
    server.committer.step()
    assert all(server.log.is_durable(result) for result in results)
    assert server.files.counts == {"write": 1, "sync": 1}


def test_new_logs_of_one_table_share_the_syncs_of_the_directories_above() -> None:
    server = Server(20)
    for index in range(20):
        server.append("w0", index)
    server.committer.step()
    counts = server.files.counts
    assert (counts["write"], counts["sync"]) == (20, 20)
    assert [counts[f"sync {name}"] for name in ("t-1", "db", "data", "log-0", "log-19")] == [1, 1, 1, 1, 1]
    server.files.crash()
    assert all(bodies(server.open(index)) == [b"w0"] for index in range(20))


def test_what_is_left_to_the_operating_system_is_not_synced() -> None:
    server = Server(3, is_synced=False)
    results = [server.append("w0", index) for index in range(3)]
    server.committer.step()
    assert all(server.logs[index].is_durable(result) for index, result in enumerate(results))
    assert server.files.counts == {"write": 3}


async def test_a_slow_disk_makes_large_rounds(tmp_path: Path) -> None:
    class SlowFiles(OsFiles):
        def __init__(self) -> None:
            super().__init__()
            self.may_sync = threading.Event()
            self.is_syncing = threading.Event()
            self.sync_count = 0

        def sync(self, path):
            self.is_syncing.set()
            assert self.may_sync.wait(120)
            self.sync_count += 1
            super().sync(path)

    files = SlowFiles()
    committer = Committer(files)
    committer.start()
    log, _ = open_log(files, committer, directory=tmp_path / "db" / "t-1" / "log-0")
    order: list[int] = []
    first = log.append(make_batch())
    assert await asyncio.to_thread(files.is_syncing.wait, 10)
    waits = []
    for index in range(300):
        waiting = asyncio.ensure_future(log.wait_durable(log.append(make_batch(b"%d" % index))))
        waiting.add_done_callback(lambda _, index=index: order.append(index))
        waits.append(waiting)
    await asyncio.sleep(0)
    assert not log.is_durable(first)
    files.may_sync.set()
    await asyncio.gather(*waits)
    await asyncio.sleep(0)
    assert files.sync_count == 2
    assert order == list(range(300)), "writers are told in the order of their appends"
    await log.close()
    await committer.stop()


async def test_stopping_carries_out_what_was_submitted_and_may_be_repeated(tmp_path: Path) -> None:
    files = OsFiles()
    committer = Committer(files)
    await committer.settle()
    committer.start()
    logs = [open_log(files, committer, directory=tmp_path / f"log-{index}")[0] for index in range(30)]
    results = [(log, log.append(make_batch())) for log in logs for _ in range(3)]
    await committer.stop()
    assert all(log.is_durable(result) for log, result in results)
    await committer.stop()
    await committer.settle()
    files.forget(tmp_path)


async def test_settling_waits_for_what_is_under_way(tmp_path: Path) -> None:
    files = OsFiles()
    committer = Committer(files)
    committer.start()
    log, _ = open_log(files, committer, directory=tmp_path / "log-0")
    for _ in range(20):
        result = log.append(make_batch())
        await committer.settle()
        assert log.is_durable(result)
    await log.close()
    await committer.stop()


# Without syncs: small appends are written at once


async def _unsynced(files: OsFiles | FaultFiles, directory: Path = DIRECTORY) -> tuple[Committer, LogTablet]:
    """A log with a first batch in it, whose committer has nothing to do."""
    committer = Committer(files, is_synced=False)
    committer.start()
    log, _ = open_log(files, committer, directory=directory)
    await log.wait_durable(log.append(make_batch(b"w0", writer=1, sequence=0)))
    await _resting(committer)
    return committer, log


async def _resting(committer: Committer) -> None:
    while committer._is_in_round:
        await asyncio.sleep(0.001)


@pytest.fixture
def _never_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No write takes too long for the loop, however busy the machine is."""
    monkeypatch.setattr(committer_module, "_QUICK_S_MAX", 3600.0)


@pytest.mark.usefixtures("_never_slow")
async def test_a_small_append_is_written_when_it_returns(tmp_path: Path) -> None:
    files = OsFiles()
    committer, log = await _unsynced(files, tmp_path / "log-0")
    advances: list[int] = []
    log.on_advance(lambda log: advances.append(log.offset_high_watermark))
    for sequence in range(1, 20):
        result = log.append(make_batch(b"w%d" % sequence, writer=1, sequence=sequence))
        assert log.is_durable(result)
        await log.wait_durable(result)
    assert advances == list(range(2, 21))
    large = log.append(make_batch(bytes(100_000), writer=1, sequence=20))
    small = log.append(make_batch(b"w21", writer=1, sequence=21))
    # The thread has the large one; what comes behind it waits for its turn.
    assert not log.is_durable(small)
    await log.wait_durable(small)
    assert log.is_durable(large)
    assert bodies(log) == [*(b"w%d" % sequence for sequence in range(20)), bytes(100_000), b"w21"]
    assert log.pending_bytes == 0
    await log.close()
    await committer.stop()


async def test_an_append_behind_one_whose_report_is_on_its_way_is_not_told_before_it(tmp_path: Path) -> None:
    files = OsFiles()
    committer, log = await _unsynced(files, tmp_path / "log-0")
    large = log.append(make_batch(bytes(100_000), writer=1, sequence=1))
    # The thread is done, and the loop has not heard of it yet.
    while log._pending.end_written.offset_next < large.offset_next or committer._is_in_round:
        pass
    small = log.append(make_batch(b"w2", writer=1, sequence=2))
    assert not log.is_durable(small)
    await log.wait_durable(small)
    assert (log.offset_durable, log.offset_high_watermark) == (3, 3)
    await log.close()
    await committer.stop()


@pytest.mark.usefixtures("_never_slow")
async def test_a_small_append_that_cannot_be_written_fails_alone() -> None:
    files = FaultFiles()
    files.make_directory(DATA_DIRECTORY)
    committer, log = await _unsynced(files)
    files.fail_next("write", number=errno.ENOSPC)
    result = log.append(make_batch(b"w1", writer=1, sequence=1))
    with pytest.raises(FlussError, match="nothing of this append was stored"):
        await log.wait_durable(result)
    again = log.append(make_batch(b"w1", writer=1, sequence=1))
    await log.wait_durable(again)
    assert bodies(log) == [b"w0", b"w1"]
    await committer.stop()


@pytest.mark.usefixtures("_never_slow")
async def test_a_small_append_without_a_descriptor_is_written_when_there_is_one() -> None:
    files = FaultFiles()
    files.make_directory(DATA_DIRECTORY)
    committer, log = await _unsynced(files)
    files.fail_next("write", number=errno.EMFILE)
    result = log.append(make_batch(b"w1", writer=1, sequence=1))
    assert not log.is_durable(result)
    async with asyncio.timeout(60):
        await log.wait_durable(result)
    assert bodies(log) == [b"w0", b"w1"]
    await committer.stop()


async def test_after_a_slow_write_the_loop_writes_nothing_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer_module, "_QUICK_S_MAX", 0.0)
    files = FaultFiles()
    files.make_directory(DATA_DIRECTORY)
    committer, log = await _unsynced(files)
    threads: list[str] = []
    write = files.write

    def watched(path: Path, parts: Sequence[BytesLike], position: int) -> None:
        threads.append(threading.current_thread().name)
        write(path, parts, position)

    files.write = watched  # type: ignore[method-assign]
    for sequence in (1, 2):
        await log.wait_durable(log.append(make_batch(b"w", writer=1, sequence=sequence)))
    assert threads == [threading.current_thread().name, "fluss-committer"]
    await committer.stop()


# A full disk


def test_a_full_disk_refuses_appends_and_everything_goes_on_when_there_is_room_again() -> None:
    server = Server(2)
    server.append("w0")
    server.append("w0", 1)
    server.committer.step()
    server.files.space_bytes_max = 2 * BATCH_BYTES + BATCH_BYTES // 2
    refused = [server.append("w1"), server.append("w2")]
    server.committer.step()
    assert [failure_of(result) for result in refused] == [ErrorCode.LOG_STORAGE_EXCEPTION] * 2
    assert "No space left" in str(refused[0].history.failure)
    assert server.log.failure is None
    assert (server.log.offset_next, server.log.offset_high_watermark, server.log.pending_bytes) == (1, 1, 0)
    assert server.files.size(DIRECTORY / f"{0:020d}.log") == BATCH_BYTES, "nothing of it is left"
    server.files.space_bytes_max = None
    again = server.append("w1")
    assert not again.is_duplicate
    assert again.offset_base == 1
    server.append("w2")
    server.committer.step()
    server.files.crash()
    assert bodies(server.open()) == [b"w0", b"w1", b"w2"]
    assert bodies(server.open(1)) == [b"w0"]


def test_the_first_append_of_a_log_may_find_a_full_disk_too() -> None:
    for operation in ("make_directory", "write"):
        server = Server()
        server.files.fail_next(operation, number=errno.ENOSPC)
        refused = server.append("w0")
        server.committer.step()
        assert failure_of(refused) == ErrorCode.LOG_STORAGE_EXCEPTION
        assert (server.log.offset_next, server.log.segment_count) == (0, 0)
        server.append("w0")
        server.committer.step()
        server.files.crash()
        assert bodies(server.open()) == [b"w0"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("operation", ["write", "sync", "sync_directory"])
def test_a_round_that_finds_no_descriptor_goes_on_when_there_is_one(operation: str, number: int) -> None:
    server = Server(2)
    server.files.fail_next(operation, "log-0", number=number)
    kept = server.append("w0")
    other = server.append("w0", 1)
    server.committer.step()
    assert server.log.failure is None
    assert not server.log.is_durable(kept)
    assert server.logs[1].is_durable(other), "others have what they need"
    with pytest.raises(FlussError, match=r"cannot write to .* try again; if it stays so, .* open files") as refusal:
        server.append("w1")
    assert refusal.value.error_code == ErrorCode.LOG_STORAGE_EXCEPTION
    server.committer.step()
    assert server.log.is_durable(kept)
    assert server.append("w1").offset_base == 1, "nothing was taken that was refused"
    server.committer.step()
    server.files.crash()
    assert bodies(server.open()) == [b"w0", b"w1"]


def test_what_comes_while_a_round_waits_for_descriptors_is_written_behind_it() -> None:
    server = Server(segment_bytes_max=2 * BATCH_BYTES)
    server.append("w0")
    server.committer.step()
    server.files.has_descriptors = False
    results = [server.append(f"w{sequence}") for sequence in range(1, 8)]
    for _ in range(3):
        server.committer.step()
    assert not server.log.is_durable(results[0])
    assert bodies(server.log) == [b"w0"]
    server.files.has_descriptors = True
    server.committer.step()
    assert all(map(server.log.is_durable, results))
    assert server.log.pending_bytes == 0
    server.files.crash()
    assert bodies(server.open()) == [b"w%d" % sequence for sequence in range(8)]


@pytest.mark.parametrize("operation", ["write", "sync", "sync_directory", "replace"])
@pytest.mark.parametrize("place", range(4))
def test_a_roll_that_finds_no_descriptor_goes_on_when_there_is_one(operation: str, place: int) -> None:
    server = Server(segment_bytes_max=2 * BATCH_BYTES)
    for sequence in range(2):
        server.append(f"w{sequence}")
        server.committer.step()
    results = [server.append(f"w{sequence}") for sequence in range(2, 9)]
    server.files.fail_next(operation, f"{2 * place:020d}" if operation != "sync_directory" else "", number=errno.EMFILE)
    while not server.log.is_durable(results[-1]):
        assert server.committer.step()
    assert server.log.failure is None
    server.files.crash()
    assert bodies(server.open()) == [b"w%d" % sequence for sequence in range(9)]


def test_a_full_disk_without_descriptors_is_undone_when_there_are_some() -> None:
    server = Server()
    server.append("w0")
    server.committer.step()
    server.files.space_bytes_max = BATCH_BYTES + BATCH_BYTES // 2
    server.files.fail_next("truncate", number=errno.EMFILE)
    refused = server.append("w1")
    server.committer.step()
    assert refused.history.failure is None
    server.committer.step()
    assert failure_of(refused) == ErrorCode.LOG_STORAGE_EXCEPTION
    assert server.log.failure is None
    assert server.files.size(DIRECTORY / f"{0:020d}.log") == BATCH_BYTES
    server.files.space_bytes_max = None
    server.append("w1")
    server.committer.step()
    server.files.crash()
    assert bodies(server.open()) == [b"w0", b"w1"]


def test_a_sync_that_failed_counts_more_than_one_without_a_descriptor() -> None:
    server = Server()
    server.files.fail_next("sync", number=errno.EMFILE)
    server.files.fail_next("sync_directory", "log-0", number=errno.EIO)
    lost = server.append("w0")
    server.committer.step()
    assert failure_of(lost) == ErrorCode.STORAGE_EXCEPTION
    assert server.log.failure is not None


async def test_without_descriptors_to_the_end_writers_are_told_so(tmp_path: Path) -> None:
    files = FaultFiles()
    files.make_directory(DATA_DIRECTORY)
    files.has_descriptors = False
    committer = Committer(files)
    committer.start()
    log, _ = open_log(files, committer)
    result = log.append(make_batch())
    waiting = asyncio.ensure_future(log.wait_durable(result))
    await asyncio.sleep(0)
    await committer.stop()
    with pytest.raises(FlussError, match="Too many open files"):
        await waiting


async def test_a_round_without_descriptors_is_tried_again_by_itself() -> None:
    files = FaultFiles()
    files.make_directory(DATA_DIRECTORY)
    committer = Committer(files)
    committer.start()
    log, _ = open_log(files, committer)
    for operation in ("write", "sync", "sync_directory"):
        files.fail_next(operation, "log-0", number=errno.EMFILE)
    await asyncio.wait_for(log.wait_durable(log.append(make_batch(b"w0"))), 120)
    assert bodies(log) == [b"w0"]
    await committer.stop()


async def test_a_log_that_is_dropped_waits_for_no_descriptors() -> None:
    server = Server()
    server.files.has_descriptors = False
    lost = server.append("w0")
    server.committer.step()
    server.log.drop()
    server.files.has_descriptors = True
    server.committer.step()
    assert failure_of(lost) == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
    assert not server.files.exists(DIRECTORY / f"{0:020d}.log")


@pytest.mark.parametrize("is_synced", [True, False])
async def test_a_flush_without_descriptors_can_be_repeated(is_synced: bool) -> None:
    server = Server(is_synced=is_synced)
    server.append("w0")
    server.committer.step()
    server.files.has_descriptors = False
    if is_synced:
        await server.log.flush()
    else:
        with pytest.raises(FlussError, match=r"cannot be made durable now: .* try again"):
            await server.log.flush()
        assert server.log.recovery_offset == 0
    server.files.has_descriptors = True
    await server.log.flush()
    assert server.log.recovery_offset == 1
    server.files.crash()
    assert bodies(server.open()) == [b"w0"]


async def test_an_answer_is_never_given_for_rows_of_another_append() -> None:
    """After a failed write its offsets are given out again. Who waits late must not take the others' for his own."""
    server = Server()
    lost = server.append("a0")
    server.files.fail_next("write", number=errno.ENOSPC)
    server.committer.step()
    kept = server.append("b0")
    server.committer.step()
    assert (lost.offset_base, lost.offset_next) == (kept.offset_base, kept.offset_next)
    await server.log.wait_durable(kept)
    for wait in (server.log.wait_durable, server.log.wait_written):
        with pytest.raises(FlussError, match="nothing of this append was stored"):
            await wait(lost)
    assert not server.log.is_durable(lost)
    assert server.log.is_durable(kept)


async def test_what_was_durable_before_a_failure_stays_so() -> None:
    server = Server()
    early = server.append("a0")
    server.committer.step()
    late = server.append("a1")
    server.files.fail_next("write")
    server.committer.step()
    await server.log.wait_durable(early)
    assert server.log.is_durable(early)
    assert not server.log.is_durable(late)


def test_appends_between_the_failure_and_the_news_of_it_are_refused_as_well() -> None:
    server = Server()
    reports: list[object] = []
    server.append("w0")
    server.files.fail_next("write")
    server.committer._report = reports.extend  # type: ignore[method-assign]  # The news is on its way.
    server.committer.step()
    between = server.append("w1")
    server.committer.step()
    assert server.log.offset_high_watermark == 0
    for report in reports:
        report()
    assert failure_of(between) == ErrorCode.LOG_STORAGE_EXCEPTION
    del server.committer._report
    assert server.append("w0").offset_base == 0
    server.committer.step()
    assert bodies(server.log) == [b"w0"]


def test_a_write_that_fails_behind_a_roll_leaves_no_trace_of_the_roll() -> None:
    server = Server(segment_bytes_max=2 * BATCH_BYTES)
    server.append("w0")
    server.committer.step()
    for text in ("w1", "w2", "w3", "w4"):
        server.append(text)
    server.files.fail_next("write", f"{3:020d}.log", number=errno.ENOSPC)
    server.files.fail_next("write", f"{4:020d}.log", number=errno.ENOSPC)
    server.committer.step()
    assert (server.log.offset_next, server.log.segment_count) == (1, 1)
    names = server.files.names(DIRECTORY)
    assert [name for name in names if name.endswith(".log")] == [f"{0:020d}.log"]
    assert [name for name in names if "snapshot" in name] == [], "a later log could grow past it"
    # Another history takes the same offsets; a crash must find this one, with the right writers.
    for text in ("x0", "w1", "x1"):
        server.append(text)
    server.committer.step()
    server.files.crash()
    log = server.open()
    assert bodies(log) == [b"w0", b"x0", b"w1", b"x1"]
    assert log.append(make_batch(writer=ord("w"), sequence=2)).offset_base == 4


def test_a_failed_write_to_an_empty_segment_leaves_the_segment() -> None:
    server = Server()
    server.append("w0")
    server.committer.step()
    run(drive(server.committer, server.log.expire_segments(2**60, roll_active=True)))
    assert (server.log.offset_start, server.log.segment_count) == (1, 1)
    server.append("w1")
    server.files.fail_next("write")
    server.committer.step()
    server.files.crash()
    assert server.open(recovery_offset=1).offset_next == 1


# A disk that cannot be trusted


def test_a_failed_sync_ends_all_writing_and_reading_goes_on() -> None:
    server = Server(2)
    server.append("w0")
    server.committer.step()
    server.files.fail_next("sync", "log-0")
    lost, kept = server.append("w1"), server.append("w0", 1)
    server.committer.step()
    assert failure_of(lost) == ErrorCode.STORAGE_EXCEPTION
    assert server.log.failure is not None
    assert server.logs[1].is_durable(kept)
    assert server.logs[1].failure is None
    server.files.counts.clear()
    with pytest.raises(FlussError, match="read-only since a write to it failed") as caught:
        server.append("w2")
    assert caught.value.error_code == ErrorCode.STORAGE_EXCEPTION
    assert not server.committer.step()
    assert server.files.counts == {}, "a sync is never tried again as if it could work"
    assert bodies(server.log) == [b"w0"]
    assert server.log.offset_high_watermark == server.log.recovery_offset == 1
    run(server.log.close())


@pytest.mark.parametrize("operation", ["truncate", "sync", "sync_directory"])
def test_a_failure_that_cannot_be_undone_ends_all_writing(operation: str) -> None:
    server = Server()
    server.append("w0")
    server.committer.step()
    server.files.fail_next("write", number=errno.ENOSPC)
    server.files.fail_next(operation)
    lost = server.append("w1")
    server.committer.step()
    assert failure_of(lost) == ErrorCode.STORAGE_EXCEPTION
    assert bodies(server.log) == [b"w0"]


def test_a_failed_sync_at_a_roll_ends_all_writing() -> None:
    server = Server(segment_bytes_max=BATCH_BYTES)
    server.append("w0")
    server.append("w1")
    server.files.fail_next("sync", f"{0:020d}.log")
    server.committer.step()
    assert server.log.failure is not None
    assert server.log.offset_high_watermark == 0


def test_a_failed_sync_of_a_directory_ends_all_writing() -> None:
    server = Server()
    server.files.fail_next("sync_directory", "t-1")
    lost = server.append("w0")
    server.committer.step()
    assert failure_of(lost) == ErrorCode.STORAGE_EXCEPTION


def test_a_log_that_breaks_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        is_written_awaited = False
        is_halted = False
        error: OSError | None = None

        def write_pending(self) -> CommitRound:
            raise ZeroDivisionError("a bug")

        def halt(self) -> None:
            self.is_halted = True

        def written(self, written: CommitRound) -> None:
            raise AssertionError

        durable = written

        def failed(self, error: OSError, *, is_undone: bool) -> None:
            assert not is_undone
            self.error = error

        def postponed(self, error: OSError) -> None:
            raise AssertionError

    server = Server()
    broken = Broken()
    server.committer.submit(broken)
    kept = server.append("w0")
    server.committer.step()
    assert server.log.is_durable(kept)
    assert broken.is_halted
    assert "ZeroDivisionError: a bug" in str(broken.error)


async def test_a_listener_that_raises_does_not_keep_the_news_from_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def complain(log: LogTablet) -> None:
        raise ZeroDivisionError("a bug")

    files = OsFiles()
    committer = Committer(files)
    committer.start()
    logs = [open_log(files, committer, directory=tmp_path / f"log-{index}")[0] for index in range(3)]
    logs[0].on_advance(complain)
    results = [log.append(make_batch()) for log in logs]
    for log, result in zip(logs, results, strict=True):
        await asyncio.wait_for(log.wait_durable(result), 120)
    await committer.stop()
    files.forget(tmp_path)


def test_failures_are_logged_loudly(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("fluss.storage").setLevel(logging.NOTSET)
    server = Server()
    for number, operation in ((errno.ENOSPC, "write"), (errno.EIO, "sync")):
        server.files.fail_next(operation, number=number)
        server.append("w0")
        server.committer.step()
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.ERROR, logging.CRITICAL]
    assert all(str(DIRECTORY) in record.getMessage() for record in caplog.records)


def test_files_stay_open_from_their_write_to_their_sync_however_many_logs_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer_module, "_LOGS_AT_ONCE", 4)
    files = OsFiles(descriptors_max=8)
    committer = SteppedCommitter(files)
    logs = [open_log(files, committer, directory=tmp_path / f"log-{number}")[0] for number in range(10)]

    def append_to_all() -> list[int]:
        """Return how many logs are durable after each round."""
        for log in logs:
            log.append(make_batch())
        counts = []
        while committer.step():
            counts.append(sum(log.offset_durable == log.offset_next for log in logs))
        return counts

    append_to_all()
    opened: Counter[str] = Counter()
    real_open = os.open

    def counted_open(path: str | Path, *arguments: int) -> int:
        opened[Path(path).suffix] += 1
        return real_open(path, *arguments)

    with monkeypatch.context() as patches:
        patches.setattr(os, "open", counted_open)
        assert append_to_all() == [4, 8, 10], "those that came first are served first"
    assert opened[".log"] <= len(logs)
    assert [bodies(log) for log in logs] == [[b"row", b"row"]] * len(logs)
