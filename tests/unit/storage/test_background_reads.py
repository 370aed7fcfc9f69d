"""Files are read in the background at a bounded rate, and what was not in the page cache is not left there.
Shown with real files, a clock of the test, and what the kernel says about its cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fluss.storage.background_reads import BackgroundReads, ReadsStoppedError, _is_cached

MIB = 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of which nothing is in the page cache, if the file system has one that can be emptied."""
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(os.urandom(2 * MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def is_cached(path: Path, position: int = 0, byte_count: int = MIB) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return _is_cached(descriptor, position, byte_count)
    finally:
        os.close(descriptor)


def test_as_many_seconds_pass_as_the_bytes_take(path: Path) -> None:
    pauses_s: list[float] = []

    def wait(seconds: float) -> bool:
        pauses_s.append(seconds)
        return False

    reads = BackgroundReads(MIB, wait=wait)
    content = path.read_bytes()
    assert reads.read(path, 0, MIB) + reads.read(path, MIB, 4 * MIB) == content
    # Charged is what was asked for. Small amounts are put together.
    for _ in range(10):
        reads.charge(MIB // 1000)
    assert sum(pauses_s) == pytest.approx(5.01, abs=0.006)
    assert len(pauses_s) <= 4
    assert reads.read_bytes == len(content)


def test_what_was_not_cached_is_not_left_in_the_cache_and_what_was_stays(path: Path) -> None:
    if is_cached(path):
        pytest.skip("the cache of this file system cannot be emptied")
    reads = BackgroundReads(1 << 40)
    reads.read(path, 0, MIB)
    assert not is_cached(path)
    content = path.read_bytes()
    assert is_cached(path)
    assert reads.read(path, 0, MIB) == content[:MIB]
    assert is_cached(path)


def test_a_stop_ends_a_pause_and_every_later_read(path: Path) -> None:
    reads = BackgroundReads(1)
    reads.stop()
    with pytest.raises(ReadsStoppedError):
        reads.read(path, 0, MIB)
    with pytest.raises(ReadsStoppedError):
        reads.charge(0)
