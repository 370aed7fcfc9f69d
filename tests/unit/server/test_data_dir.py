"""A data directory is made on first use, belongs to one process at a time, and is never mistaken for another one.
Shown with real directories and a second process that holds the lock."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fluss.errors import FlussError
from fluss.server.data_dir import FORMAT_FILE, LOCK_FILE, DataDirectory

HOLD = """
import sys
from pathlib import Path
from fluss.server.data_dir import DataDirectory
directory = DataDirectory.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_new_directory_is_made_with_its_parents_and_can_be_used_again(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    for _ in range(2):
        with DataDirectory.acquire(path) as directory:
            assert directory.path == path
            (path / "content").write_text("ours")
    assert (path / FORMAT_FILE).read_text() == "1\n"


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with DataDirectory.acquire(Path("data")) as directory:
        assert directory.path == tmp_path / "data"


def test_a_second_server_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with DataDirectory.acquire(tmp_path), pytest.raises(FlussError, match="in this process"):
        DataDirectory.acquire(tmp_path)
    DataDirectory.acquire(tmp_path).release()


def test_a_directory_that_another_process_holds_is_refused_with_its_number_until_it_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(FlussError, match=f"in use by process {holder.pid}; stop it .kill {holder.pid}."):
            DataDirectory.acquire(tmp_path)
        # Not even a killed process leaves a lock behind.
        holder.kill()
    DataDirectory.acquire(tmp_path).release()


def test_the_lock_is_given_back_even_if_a_forked_process_still_has_the_file_open(tmp_path: Path) -> None:
    directory = DataDirectory.acquire(tmp_path)
    inherited = [os.dup(fd) for fd in directory._lock_fds]
    try:
        directory.release()
        DataDirectory.acquire(tmp_path).release()
    finally:
        for fd in inherited:
            os.close(fd)


def test_deleting_the_lock_file_lets_no_second_server_in(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        (tmp_path / LOCK_FILE).unlink()
        with pytest.raises(FlussError, match="in use by another process; stop that one or choose another directory"):
            DataDirectory.acquire(tmp_path)
        # The refused one has left no file behind that names itself.
        assert not (tmp_path / LOCK_FILE).exists()
        holder.kill()
    DataDirectory.acquire(tmp_path).release()


def test_a_server_of_an_earlier_release_that_locks_only_the_file_keeps_others_out(tmp_path: Path) -> None:
    DataDirectory.acquire(tmp_path).release()
    (tmp_path / LOCK_FILE).write_text("4711\n")
    earlier = os.open(tmp_path / LOCK_FILE, os.O_RDWR)
    try:
        fcntl.flock(earlier, fcntl.LOCK_EX)
        with pytest.raises(FlussError, match="in use by process 4711"):
            DataDirectory.acquire(tmp_path)
    finally:
        os.close(earlier)
    # And the attempt has not kept the directory.
    DataDirectory.acquire(tmp_path).release()


def test_releasing_twice_does_nothing(tmp_path: Path) -> None:
    directory = DataDirectory.acquire(tmp_path)
    directory.release()
    directory.release()


def test_a_directory_with_something_else_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(FlussError, match=r"holds something else \(thesis.tex\)"):
        DataDirectory.acquire(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_an_interrupted_first_start_leaves_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text("1")
    (tmp_path / f"{FORMAT_FILE}.tmp").write_text("")
    (tmp_path / "lost+found").mkdir()
    DataDirectory.acquire(tmp_path).release()


@pytest.mark.parametrize(
    ("content", "expected"), [("2\n", "layout version 2"), ("", "damaged"), ("1" * 30, "damaged"), ("x", "damaged")]
)
def test_another_version_is_refused_and_the_lock_given_back(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / FORMAT_FILE).write_text(content)
    for _ in range(2):
        with pytest.raises(FlussError, match=expected):
            DataDirectory.acquire(tmp_path)


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FlussError, match="cannot be used"):
        DataDirectory.acquire(tmp_path / "file" / "below")
