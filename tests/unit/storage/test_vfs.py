"""Files keep few descriptors and never hand out a wrong one; writes are whole, replacements all or nothing.
Real files in a temporary directory, many threads, and a system call that writes less than it was asked to."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fluss.storage.vfs import OsFiles
from tests.open_files import open_below


@pytest.fixture
def _busy_threads() -> Iterator[None]:
    """Let threads take turns far more often than usual, so that they meet at every line."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def files() -> OsFiles:
    return OsFiles()


def test_what_was_written_is_read_from_any_position(files: OsFiles, tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.write(path, [b"hello", bytearray(b" "), memoryview(b"world")], 0)
    files.write(path, [b"W"], 6)
    assert files.read(path, 0, 100) == b"hello World"
    assert files.read(path, 6, 2) == b"Wo"
    assert files.read(path, 11, 5) == b""
    assert files.size(path) == 11
    files.truncate(path, 5)
    assert files.read(path, 0, 100) == b"hello"
    files.sync(path)
    files.forget(tmp_path)


def test_a_write_behind_the_beginning_makes_a_file_that_is_missing(files: OsFiles, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "file"
    files.write(path, [b"abc"], 2)
    assert files.read(path, 0, 10) == b"\0\0abc"
    assert path.stat().st_mode & 0o777 == 0o600
    files.remove(path)
    files.write(path, [b"d"], 1)
    assert files.read(path, 0, 10) == b"\0d"


def test_more_parts_than_one_call_takes_arrive_in_order(files: OsFiles, tmp_path: Path) -> None:
    parts = [str(index).encode() for index in range(5000)]
    files.write(tmp_path / "a", parts, 3)
    assert files.read(tmp_path / "a", 0, 100_000) == b"\0\0\0" + b"".join(parts)
    files.forget(tmp_path)


def test_a_write_that_is_cut_short_goes_on(files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.pwritev, []

    def stingy(descriptor: int, parts: list[bytes], position: int) -> int:
        data = b"".join(parts)[:7]
        calls.append(len(data))
        return real(descriptor, [data], position)

    monkeypatch.setattr(os, "pwritev", stingy)
    files.write(tmp_path / "a", [b"0123", b"", b"456789ab", b"c", b"defghijklmnopq"], 0)
    assert files.read(tmp_path / "a", 0, 100) == b"0123456789abcdefghijklmnopq"
    assert calls == [7, 7, 7, 6]
    files.forget(tmp_path)


def test_a_read_that_is_cut_short_goes_on(files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(tmp_path / "a", [b"0123456789"], 0)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda number, count, position: real(number, min(count, 3), position))
    assert files.read(tmp_path / "a", 1, 8) == b"12345678"
    assert files.read(tmp_path / "a", 5, 100) == b"56789"
    files.forget(tmp_path)


def test_no_more_descriptors_are_kept_than_allowed(tmp_path: Path) -> None:
    files = OsFiles(descriptors_max=8)
    for index in range(50):
        files.write(tmp_path / str(index), [b"x"], 0)
    assert len(open_below(tmp_path)) == files.descriptor_count == 8
    files.read(tmp_path / "42", 0, 1)
    files.write(tmp_path / "new", [b"x"], 0)
    assert str(tmp_path / "42") in open_below(tmp_path), "the one that was used last stays"
    files.forget(tmp_path / "42")
    assert str(tmp_path / "42") not in open_below(tmp_path)
    files.forget(tmp_path)
    assert open_below(tmp_path) == []


def test_forgetting_a_directory_spares_one_whose_name_only_begins_like_it(files: OsFiles, tmp_path: Path) -> None:
    for name in ("log-1", "log-10"):
        files.make_directory(tmp_path / name)
        files.write(tmp_path / name / "a", [b"x"], 0)
    files.forget(tmp_path / "log-1")
    assert open_below(tmp_path) == [str(tmp_path / "log-10" / "a")]
    files.forget(tmp_path)


def test_everything_below_a_directory_is_forgotten_and_nothing_beside_it(tmp_path: Path) -> None:
    files = OsFiles(descriptors_max=5)
    paths = [tmp_path / name for name in ("a/b/1", "a/b/2", "a/c/d/3", "a/4", "e/b/5")]
    for path in paths:
        files.make_directory(path.parent)
        files.write(path, [b"x"], 0)
    # The first one is pushed out, and nothing below its directory is left after the second.
    files.write(tmp_path / "e" / "6", [b"x"], 0)
    files.forget(paths[1])
    assert sorted(open_below(tmp_path)) == sorted(map(str, [*paths[2:], tmp_path / "e" / "6"]))
    files.forget(tmp_path / "a" / "b")
    assert files.descriptor_count == 4
    files.forget(tmp_path / "a")
    assert sorted(open_below(tmp_path)) == sorted(map(str, [paths[4], tmp_path / "e" / "6"]))
    files.write(paths[0], [b"y"], 0)
    files.rename(tmp_path / "a", tmp_path / "f")
    assert sorted(open_below(tmp_path)) == sorted(map(str, [paths[4], tmp_path / "e" / "6"]))
    files.forget(tmp_path.parent)
    assert (files.descriptor_count, open_below(tmp_path)) == (0, [])


@pytest.mark.usefixtures("_busy_threads")
def test_readers_get_the_right_bytes_while_others_push_their_descriptors_out(tmp_path: Path) -> None:
    files = OsFiles(descriptors_max=3)
    paths = [tmp_path / str(index) for index in range(20)]
    for path in paths:
        files.write(path, [path.name.encode() * 100], 0)
    is_over = threading.Event()
    counts = [0] * 4

    def read(seed: int) -> None:
        while not is_over.is_set():
            path = paths[(seed + counts[seed] * 7) % len(paths)]
            assert files.read(path, 0, 10_000) == path.name.encode() * 100
            counts[seed] += 1

    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(read, seed) for seed in range(4)]
        is_over.wait(0.3)
        # On a busy machine one of them may not have had its turn so far.
        while min(counts) <= 10 and not any(job.done() for job in jobs):
            is_over.wait(0.01)
        is_over.set()
        for job in jobs:
            job.result()
    assert files.descriptor_count <= 3
    files.forget(tmp_path)
    assert open_below(tmp_path) == []


@pytest.mark.usefixtures("_busy_threads")
def test_a_replaced_file_is_read_new_or_old_but_never_mixed(files: OsFiles, tmp_path: Path) -> None:
    path = tmp_path / "a"
    files.replace(path, b"0" * 5000)
    is_over = threading.Event()
    seen = set()

    def read() -> None:
        while not is_over.is_set():
            content = files.read(path, 0, 10_000)
            assert len(set(content)) == 1
            assert len(content) == 5000
            seen.add(content[:1])

    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(read) for _ in range(2)]
        for index in itertools.count():
            # Until the readers, which may not get their turn on a busy machine, have seen some of it.
            if (index >= 200 and len(seen) > 1) or any(job.done() for job in jobs):
                break
            new = str(index % 10).encode()
            files.replace(path, new * 5000, durably=False)
            assert files.read(path, 0, 1) == new, "a read after the replacement sees the new content"
        is_over.set()
        for job in jobs:
            job.result()
    assert len(seen) > 1
    assert os.listdir(tmp_path) == ["a"], "no temporary file is left"
    files.forget(tmp_path)


def test_a_replacement_that_fails_leaves_the_old_content_and_nothing_else(
    files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.replace(tmp_path / "a", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.replace(tmp_path / "a", b"new")
    assert files.read(tmp_path / "a", 0, 10) == b"old"
    assert os.listdir(tmp_path) == ["a"]
    files.forget(tmp_path)


@pytest.mark.parametrize("durably", [True, False])
def test_directories_are_made_with_their_parents_and_may_be_there_already(
    files: OsFiles, tmp_path: Path, durably: bool
) -> None:
    for _ in range(2):
        files.make_directory(tmp_path / "a" / "b" / "c", durably=durably)
    assert (tmp_path / "a" / "b" / "c").is_dir()
    files.sync_directory(tmp_path / "a")


def test_what_is_not_there_is_listed_removed_and_forgotten_without_complaint(files: OsFiles, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert files.names(missing) == []
    assert not files.exists(missing)
    files.remove(missing)
    files.remove_tree(missing)
    files.forget(missing)
    for act in (files.size, files.sync, lambda path: files.read(path, 0, 1), lambda path: files.truncate(path, 0)):
        with pytest.raises(FileNotFoundError, match="missing"):
            act(missing)
    assert not missing.exists(), "reading must not create a file"


def test_a_removed_file_is_gone_even_if_it_was_open(files: OsFiles, tmp_path: Path) -> None:
    files.write(tmp_path / "a", [b"old"], 0)
    files.remove(tmp_path / "a")
    assert open_below(tmp_path) == []
    files.write(tmp_path / "a", [b"n"], 0)
    assert files.read(tmp_path / "a", 0, 10) == b"n"
    files.rename(tmp_path / "a", tmp_path / "b")
    assert files.names(tmp_path) == ["b"]
    assert files.read(tmp_path / "b", 0, 10) == b"n"
    with pytest.raises(FileNotFoundError):
        files.read(tmp_path / "a", 0, 1)
    files.remove_tree(tmp_path)
    assert not tmp_path.exists()


def test_files_that_nobody_has_any_more_hold_nothing_open(tmp_path: Path) -> None:
    files = OsFiles()
    for name in ("a", "b"):
        files.write(tmp_path / name, [b"x"], 0)
    assert len(open_below(tmp_path)) == 2
    del files
    assert not open_below(tmp_path)


def test_descriptors_that_are_kept_make_room_when_there_are_no_others(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_DESCRIPTORS, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.split() == ["8", "made", "no", "no", "no", "no", "False", "True", "new", "old"], done.stderr


_WITHOUT_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from fluss.storage.vfs import OsFiles, is_out_of_descriptors
files, directory = OsFiles(), Path(sys.argv[1])
def attempt(work):
    try: work()
    except OSError as error: print("no" if is_out_of_descriptors(error) else error)
    else: print("worked")
files.replace(directory / "replaced", b"old")
for number in range(8): files.write(directory / str(number), [b"x"], 0)
print(files.descriptor_count)
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), limits[1]))
files.make_directory(directory / "made" / "below")
files.write(directory / "new", [b"new"], 0)
print("made")
resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
attempt(lambda: files.make_directory(directory / "not"))
attempt(lambda: files.replace(directory / "replaced", b"new"))
attempt(lambda: files.sync_directory(directory))
attempt(lambda: files.write(directory / "another", [b"x"], 0))
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
print((directory / "not").exists() or (directory / "another").exists(), (directory / "made" / "below").exists())
print((directory / "new").read_text(), (directory / "replaced").read_text())
"""
