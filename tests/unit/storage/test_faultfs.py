"""The disk for tests does what it says: every fault that it announces happens for some seed, and no other does.
The same calls are made on the real file system where both must agree."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fluss.storage.vfs import Files, OsFiles
from fluss.testing.faultfs import FaultFiles

ROOT = Path("/d")
FILE = ROOT / "a"


def make_files(seed: int = 0, **options: int) -> FaultFiles:
    files = FaultFiles(seed, **options)
    files.make_directory(ROOT)
    return files


def survivors(prepare: object, seeds: int = 300) -> set[bytes | None]:
    """Return what becomes of a file when power is lost after some preparation."""
    found: set[bytes | None] = set()
    for seed in range(seeds):
        files = make_files(seed, sector_bytes=4)
        prepare(files)  # type: ignore[operator]  # Any function of the files.
        files.crash()
        found.add(files.read(FILE, 0, 100) if files.exists(FILE) else None)
    return found


def write_durably(files: FaultFiles, data: bytes) -> None:
    files.write(FILE, [data], 0)
    files.sync(FILE)
    files.sync_directory(ROOT)


def test_it_agrees_with_the_real_file_system(tmp_path: Path) -> None:
    def use(files: Files, root: Path) -> list[object]:
        files.make_directory(root / "x" / "y")
        path = root / "x" / "y" / "a"
        files.write(path, [b"hello", b"", b" world"], 0)
        files.write(path, [b"W"], 6)
        seen: list[object] = [files.read(path, 3, 5), files.size(path), files.exists(path), files.read(path, 50, 5)]
        files.truncate(path, 20)
        files.truncate(path, 13)
        files.replace(root / "x" / "b", b"1")
        files.replace(root / "x" / "b", b"22", durably=False)
        seen += [files.read(path, 0, 99), files.read(root / "x" / "b", 0, 9), sorted(files.names(root / "x"))]
        files.rename(root / "x" / "y", root / "x" / "z")
        files.rename(root / "x" / "b", root / "x" / "c")
        files.remove(root / "x" / "missing")
        seen += [sorted(files.names(root / "x")), files.names(root / "x" / "z"), files.names(root / "nowhere")]
        files.remove_tree(root / "x" / "z")
        files.remove(root / "x" / "c")
        files.sync_directory(root / "x")
        seen += [files.names(root / "x"), files.exists(root / "x")]
        for act in (files.size, files.sync, lambda path: files.read(path, 0, 1)):
            with pytest.raises(FileNotFoundError):
                act(root / "nothing")
        with pytest.raises(FileNotFoundError):
            files.write(root / "nowhere" / "a", [b"x"], 0)
        files.forget(root)
        return seen

    assert use(FaultFiles(), Path("/")) == use(OsFiles(), tmp_path)


def test_what_was_synced_survives_and_what_was_not_may_not() -> None:
    assert survivors(lambda files: write_durably(files, b"12345678")) == {b"12345678"}

    def overwrite(files: FaultFiles) -> None:
        write_durably(files, b"12345678")
        files.write(FILE, [b"abcdefgh"], 0)

    found = survivors(overwrite)
    assert found == {b"12345678", b"abcdefgh", b"1234efgh", b"abcd5678"}


def test_an_append_may_be_lost_torn_or_leave_holes() -> None:
    def extend(files: FaultFiles) -> None:
        write_durably(files, b"1234")
        files.write(FILE, [b"5678abcd"], 4)

    found = survivors(extend)
    assert {
        b"1234",
        b"12345678abcd",
        b"1234\0\0\0\0abcd",
        b"12345678\0\0\0\0",
        b"1234\0\0\0\0\0\0\0\0",
        b"12345",
    } <= found
    assert all(data is not None and data.startswith(b"1234") for data in found)


def test_names_are_lost_and_come_back_until_the_directory_is_synced() -> None:
    def create(files: FaultFiles) -> None:
        files.write(FILE, [b"x"], 0)
        files.sync(FILE)

    assert survivors(create) == {None, b"x"}

    def remove(files: FaultFiles) -> None:
        write_durably(files, b"x")
        files.remove(FILE)

    assert survivors(remove) == {None, b"x"}

    def remove_durably(files: FaultFiles) -> None:
        remove(files)
        files.sync_directory(ROOT)

    assert survivors(remove_durably) == {None}


def test_a_replacement_is_all_or_nothing_only_if_it_is_durable() -> None:
    def replace(files: FaultFiles) -> None:
        files.replace(FILE, b"old!")
        files.replace(FILE, b"new!")

    assert survivors(replace) == {b"new!"}

    def replace_loosely(files: FaultFiles) -> None:
        files.replace(FILE, b"old!")
        files.replace(FILE, b"new!", durably=False)

    assert {b"old!", b"new!", b"", b"\0\0\0\0"} <= survivors(replace_loosely)


def test_a_directory_that_was_not_synced_may_be_gone() -> None:
    kept = set()
    for seed in range(50):
        files = make_files(seed)
        files.make_directory(ROOT / "x" / "y", durably=False)
        files.replace(ROOT / "x" / "y" / "a", b"1")
        files.sync_directory(ROOT)
        files.crash()
        kept.add((files.exists(ROOT / "x"), files.exists(ROOT / "x" / "y" / "a")))
    assert kept == {(True, True), (True, False)}


def test_a_killed_process_loses_nothing() -> None:
    files = make_files()
    files.write(FILE, [b"x"], 0)
    files.replace(ROOT / "b", b"y", durably=False)
    files.crash(is_power_lost=False)
    assert files.read(FILE, 0, 9) == b"x"
    assert files.read(ROOT / "b", 0, 9) == b"y"


def test_a_failed_sync_is_not_made_up_for_by_another() -> None:
    found = set()
    for seed in range(50):
        files = make_files(seed)
        write_durably(files, b"1234")
        files.write(FILE, [b"5678"], 4)
        files.fail_next("sync")
        with pytest.raises(OSError, match="Input/output error"):
            files.sync(FILE)
        files.sync(FILE)
        assert files.read(FILE, 0, 9) == b"12345678"
        files.crash()
        found.add(files.read(FILE, 0, 9))
    assert b"1234" in found


def test_space_runs_out_in_the_middle_of_a_write() -> None:
    files = make_files(space_bytes_max=10)
    files.write(FILE, [b"123456"], 0)
    with pytest.raises(OSError, match="No space left") as caught:
        files.write(FILE, [b"789abcdef"], 6)
    assert caught.value.errno == errno.ENOSPC
    assert files.read(FILE, 0, 99) == b"123456789a"
    files.write(FILE, [b"ABC"], 0)
    with pytest.raises(OSError, match="No space left"):
        files.replace(ROOT / "b", b"x")
    with pytest.raises(OSError, match="No space left"):
        files.make_directory(ROOT / "c")
    files.truncate(FILE, 3)
    files.replace(ROOT / "b", b"x")
    assert files.read(ROOT / "b", 0, 9) == b"x"


def test_a_machine_that_stops_does_nothing_more() -> None:
    files = make_files()
    files.write(FILE, [b"12"], 0)
    files.stop_after(2)
    files.write(FILE, [b"3456"], 2)
    with pytest.raises(OSError, match="Input/output"):
        files.write(FILE, [b"789"], 6)
    assert files.is_stopped
    for act in (files.size, files.sync, files.exists, files.remove, files.names):
        with pytest.raises(OSError, match="Input/output"):
            act(FILE)
    files.crash(is_power_lost=False)
    assert files.read(FILE, 0, 6) == b"123456"
    assert files.read(FILE, 6, 9) in (b"", b"7", b"78", b"789")


def test_a_copy_goes_its_own_way() -> None:
    files = make_files()
    write_durably(files, b"1")
    files.write(FILE, [b"2"], 1)
    twin = files.copy(0)
    twin.change(FILE, b"other")
    assert files.read(FILE, 0, 9) == b"12"
    assert twin.read(FILE, 0, 9) == b"other"
