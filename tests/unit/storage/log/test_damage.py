"""A damaged log serves no wrong row, skips none, and loses none in silence that was known to be durable.
Every cut and every flipped bit of every file of a small log, after a clean shutdown and after crashes."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path

import pytest

from fluss.errors import CorruptRecordError
from fluss.record.log_batch import LENGTH_END, iter_batches
from fluss.storage.log.loader import RecoveryReport
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.log.tablet import LogTablet
from fluss.storage.vfs import Files
from fluss.testing.faultfs import FaultFiles
from tests.damage import bit_flips, truncations
from tests.unit.storage.log.support import (
    DIRECTORY,
    Clock,
    SteppedCommitter,
    make_batch,
    open_log,
    quiet_logs,
    read_batches,
    row_bytes,
)

# Two batches per segment, and an index entry for every batch but the first.
SETTINGS = LogSettings(segment_bytes_max=110, index_interval_bytes=40)
BATCHES = [
    make_batch(b"a0", writer=3, sequence=0),
    make_batch(b"b0", rows=2, writer=5, sequence=0),
    make_batch(b"a1", rows=3, writer=3, sequence=1),
    make_batch(b"", rows=0, writer=5, sequence=1),
    make_batch(b"nobody", rows=2),
    make_batch(b"b2", writer=5, sequence=2),
]
OFFSET_END = 10
NAMED_PLACE = re.compile(rf"{DIRECTORY}/\d{{20}}\.log, byte \d+, offset ")
TIMESTAMP_FIELD = range(LENGTH_END + 1, LENGTH_END + 9)


@dataclass(frozen=True)
class Start:
    """A way in which a server may find a log."""

    name: str
    is_closed: bool
    recovery_offset: int
    is_synced: bool = True


STARTS = [
    Start("clean", is_closed=True, recovery_offset=OFFSET_END),
    Start("crash", is_closed=False, recovery_offset=9),
    Start("crash, nothing known", is_closed=False, recovery_offset=0),
    Start("crash, left to the operating system", is_closed=False, recovery_offset=3, is_synced=False),
]


@dataclass(frozen=True)
class Original:
    """A log before it is damaged."""

    files: FaultFiles
    rows: dict[int, bytes]
    times_ms: dict[int, int]

    def content(self, path: Path) -> bytes:
        return self.files.read(path, 0, self.files.size(path))

    def paths(self, suffix: str) -> list[Path]:
        return sorted(DIRECTORY / name for name in self.files.names(DIRECTORY) if name.endswith(suffix))


def make_original(start: Start) -> Original:
    files = FaultFiles()
    committer = SteppedCommitter(files, is_synced=start.is_synced)
    clock = Clock()
    log, _ = open_log(files, committer, settings=SETTINGS, clock=clock)
    for batch in BATCHES:
        log.append(batch)
        clock.now_ms += 100
    committer.step()
    if start.is_closed:
        asyncio.run(log.close())
    batches = list(read_batches(log))
    assert log.segment_count == 3
    assert log.offset_next == OFFSET_END
    return Original(
        files,
        {batch.header.base_offset: row_bytes(batch.data) for batch in batches},
        {batch.header.base_offset: batch.header.commit_timestamp for batch in batches},
    )


@pytest.fixture(params=STARTS, ids=lambda start: start.name)
def start(request: pytest.FixtureRequest) -> Start:
    found: Start = request.param
    return found


@pytest.fixture(scope="module")
def originals() -> dict[str, Original]:
    return {start.name: make_original(start) for start in STARTS}


@pytest.fixture
def original(originals: dict[str, Original], start: Start) -> Original:
    return originals[start.name]


@dataclass
class Found:
    """What a server has of a damaged log."""

    refusal: CorruptRecordError | None = None
    result: RecoveryReport | None = None
    times_ms: dict[int, int] | None = None


def look(original: Original, start: Start, path: Path, content: bytes) -> Found:
    """Open and read a log of which one file is damaged, and check what must always hold."""
    files = original.files.copy(0)
    files.change(path, content)
    found = Found(times_ms={})
    try:
        log, found.result = open_again(files, start)
        assert log.offset_start == 0
        assert log.offset_next >= start.recovery_offset
        assert found.result.offset_next == log.offset_next
        offset_next = 0
        for batch in read_batches(log):
            assert batch.header.base_offset == offset_next
            assert row_bytes(batch.data) == original.rows[offset_next], "a row has changed"
            found.times_ms[offset_next] = batch.header.commit_timestamp
            offset_next = batch.header.offset_next
        assert offset_next == log.offset_next
    except CorruptRecordError as error:
        found.refusal = error
    assert found.refusal is None or NAMED_PLACE.match(found.refusal.message), found.refusal
    return found


def open_again(files: Files, start: Start) -> tuple[LogTablet, RecoveryReport]:
    return open_log(
        files,
        SteppedCommitter(files, is_synced=start.is_synced),
        settings=SETTINGS,
        was_clean=start.is_closed,
        recovery_offset=start.recovery_offset,
    )


def is_last_batch(original: Original, path: Path, position: int) -> bool:
    """Tell whether a byte of a segment belongs to its last batch."""
    return position >= batch_ends(original.content(path))[-2]


def batch_ends(content: bytes) -> list[int]:
    return [0, *accumulate(batch.header.size for batch in iter_batches(content))]


def may_be_interrupted(original: Original, start: Start, path: Path, position: int) -> bool:
    """Tell whether damage at a byte looks like a write that was interrupted, so that the log may end there."""
    is_last_segment = path == original.paths(".log")[-1]
    return not start.is_closed and is_last_batch(original, path, position) and (is_last_segment or not start.is_synced)


def test_the_log_without_damage_is_as_it_was(original: Original, start: Start) -> None:
    path = original.paths(".log")[0]
    found = look(original, start, path, original.content(path))
    assert found.refusal is None
    assert found.result is not None
    assert found.result.bytes_dropped == 0
    assert found.times_ms == original.times_ms


@pytest.mark.hypothesis
def test_a_flipped_bit_of_a_segment_is_refused_unless_it_looks_like_an_interrupted_write(
    original: Original, start: Start
) -> None:
    with quiet_logs():
        for path in original.paths(".log"):
            content = original.content(path)
            # Each start has bits of its own; all of them have all bits by `make model`.
            part = (None,) if "EXAMPLES" in os.environ else (STARTS.index(start) % 3, None, 3)
            for index, damaged in islice(enumerate(bit_flips(content)), *part):
                found = look(original, start, path, damaged)
                if found.refusal is None and found.times_ms == original.times_ms:
                    pytest.fail(f"bit {index} of {path.name} went unnoticed")
                if found.refusal is None and len(found.times_ms or ()) == len(BATCHES):
                    assert_only_a_time_changed(original, found, path, index // 8)
                elif found.refusal is None:
                    assert may_be_interrupted(original, start, path, index // 8), (path.name, index)
                    assert_cut_is_reported(found)


def assert_cut_is_reported(found: Found) -> None:
    assert found.result is not None
    assert found.result.bytes_dropped > 0
    assert found.result.first_bad_position is not None


def assert_only_a_time_changed(original: Original, found: Found, path: Path, position: int) -> None:
    """The commit time lies outside the checksum; a change that keeps the order of the batches cannot be seen."""
    assert found.times_ms is not None
    changed = [offset for offset, time_ms in found.times_ms.items() if time_ms != original.times_ms[offset]]
    assert len(changed) == 1
    batch_start = 0
    for batch in iter_batches(original.content(path)):
        if batch.header.base_offset == changed[0]:
            assert position - batch_start in TIMESTAMP_FIELD
            return
        batch_start += batch.header.size
    pytest.fail(f"offset {changed[0]} is not in {path}")


def test_a_cut_segment_is_refused_unless_it_looks_like_an_interrupted_write(original: Original, start: Start) -> None:
    with quiet_logs():
        for path in original.paths(".log"):
            content = original.content(path)
            for damaged in truncations(content):
                found = look(original, start, path, damaged)
                if found.refusal is None:
                    is_last_segment = path == original.paths(".log")[-1]
                    assert not start.is_closed
                    assert is_last_segment or not start.is_synced, (path.name, len(damaged))
                    # Nothing tells a file that ends between two batches from a whole one.
                    if not is_last_segment or len(damaged) not in batch_ends(content):
                        assert_cut_is_reported(found)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".writer_snapshot"])
def test_damage_to_what_only_makes_reading_faster_changes_nothing(
    original: Original, start: Start, suffix: str
) -> None:
    paths = original.paths(suffix)
    assert paths
    for path in paths:
        content = original.content(path)
        for damaged in sampled(content):
            found = look(original, start, path, damaged)
            assert found.refusal is None
            assert found.times_ms == original.times_ms


def sampled(content: bytes) -> Iterator[bytes]:
    """Yield every cut and every flipped bit of a small file, a part of them for a larger one."""
    step = 1 if len(content) < 100 else 13
    yield from islice(truncations(content), 0, None, step)
    yield from islice(bit_flips(content), 0, None, step)


def test_damaged_indexes_answer_times_as_before(original: Original, start: Start) -> None:
    times_ms = sorted(set(original.times_ms.values()))
    expected = [min(offset for offset, at_ms in original.times_ms.items() if at_ms >= time_ms) for time_ms in times_ms]
    for path in (*original.paths(".index"), *original.paths(".timeindex")):
        for damaged in (b"", *bit_flips(original.content(path))):
            files = original.files.copy(0)
            files.change(path, damaged)
            log, _ = open_again(files, start)
            assert [log.offset_for_timestamp(time_ms) for time_ms in times_ms] == expected


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".writer_snapshot"])
def test_a_missing_file_is_rebuilt_or_refused(original: Original, start: Start, suffix: str) -> None:
    for path in original.paths(suffix):
        files = original.files.copy(0)
        files.remove(path)
        files.sync_directory(DIRECTORY)
        try:
            log, result = open_again(files, start)
            batches = list(read_batches(log))
        except CorruptRecordError:
            if suffix != ".log":
                raise
            continue
        if suffix != ".log":
            assert len(batches) == len(BATCHES)
        elif path == original.paths(".log")[0]:
            assert log.offset_start > 0, "as if it had expired"
        else:
            assert log.offset_next >= start.recovery_offset
            assert not start.is_closed
            is_last_segment = path == original.paths(".log")[-1]
            assert is_last_segment or (not start.is_synced and result.segments_dropped > 0)
