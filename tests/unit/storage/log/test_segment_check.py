"""A sealed segment and its index are checked from one end to the other: a changed bit is found and its place named.
Shown with every bit of every file of a small log."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from fluss.errors import CorruptRecordError
from fluss.record.log_batch import LENGTH_END, iter_batches
from fluss.storage.log.file_names import LogFileKind, log_file_name
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.log.segment_check import IndexDamagedError, check_segment
from fluss.testing.faultfs import FaultFiles
from tests.damage import bit_flips, truncations
from tests.unit.storage.log.support import DIRECTORY, Clock, SteppedCommitter, make_batch, open_log

APPENDS = OFFSET_END = 6
PATHS = {kind: DIRECTORY / log_file_name(0, kind) for kind in LogFileKind}
SEGMENT, INDEX, TIME_INDEX = (
    PATHS[kind] for kind in (LogFileKind.SEGMENT, LogFileKind.OFFSET_INDEX, LogFileKind.TIME_INDEX)
)
# Set by the server, outside the checksum: of a changed time only the order can be checked.
TIME_FIELD = range(LENGTH_END + 1, LENGTH_END + 9)


def make_log(batches_per_append: int) -> FaultFiles:
    """A log of two segments, with an entry in the index for every append but the first."""
    files, clock = FaultFiles(), Clock()
    committer = SteppedCommitter(files)
    append = make_batch(b"x" * 20) * batches_per_append
    settings = LogSettings(segment_bytes_max=len(append) * APPENDS, index_interval_bytes=40)
    log, _ = open_log(files, committer, settings=settings, clock=clock)
    for _ in range(APPENDS):
        log.append(bytearray(append))
        clock.now_ms += 100
    log.append(make_batch(b"z" * 800))
    committer.step()
    asyncio.run(log.close())
    assert log.segment_count == 2
    return files


@pytest.fixture(scope="module")
def log_files() -> FaultFiles:
    return make_log(1)


def content(files: FaultFiles, path: Path) -> bytes:
    return bytes(files.read(path, 0, files.size(path)))


def check(files: FaultFiles, *, offset_next: int = OFFSET_END) -> None:
    check_segment(files, SEGMENT, base_offset=0, offset_next=offset_next, size=files.size(SEGMENT))


def changed(files: FaultFiles, path: Path, data: bytes) -> FaultFiles:
    twin = files.copy(0)
    twin.change(path, data)
    return twin


def test_a_segment_as_it_was_written_is_good(log_files: FaultFiles) -> None:
    assert len(content(log_files, INDEX)) == 8 * (APPENDS - 1)
    check(log_files)
    check(make_log(3), offset_next=3 * OFFSET_END)


def test_every_changed_bit_of_a_segment_is_found(log_files: FaultFiles) -> None:
    data = content(log_files, SEGMENT)
    starts = [batch.header.size * number for number, batch in enumerate(iter_batches(data))]
    times = {start + field for start in starts for field in TIME_FIELD}
    for number, damaged in enumerate(bit_flips(data)):
        if number // 8 not in times:
            with pytest.raises(CorruptRecordError, match=rf"{SEGMENT}, byte [0-9]+, offset [0-9]+: "):
                check(changed(log_files, SEGMENT, damaged))


def test_a_segment_that_ends_too_early_is_damaged(log_files: FaultFiles) -> None:
    for damaged in truncations(content(log_files, SEGMENT)):
        with pytest.raises(CorruptRecordError, match=re.escape(str(SEGMENT))):
            check(changed(log_files, SEGMENT, damaged))
    with pytest.raises(CorruptRecordError, match="the next segment begins at offset 20"):
        check(log_files, offset_next=20)


@pytest.mark.parametrize("path", [INDEX, TIME_INDEX], ids=["offsets", "times"])
def test_every_changed_bit_of_an_index_is_found(log_files: FaultFiles, path: Path) -> None:
    for damaged in bit_flips(content(log_files, path)):
        with pytest.raises(IndexDamagedError, match=re.escape(str(DIRECTORY))):
            check(changed(log_files, path, damaged))


def test_an_index_that_is_missing_is_no_damage(log_files: FaultFiles) -> None:
    twin = log_files.copy(0)
    twin.remove(INDEX)
    check(twin)
