"""Many syncs with one call have the same results as one after the other, and fail one by one."""

import errno
import os
from pathlib import Path

import pytest

from fluss.storage import kernel_syncs
from fluss.storage.kernel_syncs import SYNCS_AT_ONCE, sync_descriptors
from fluss.storage.vfs import OsFiles

needs_the_kernel = pytest.mark.skipif(sync_descriptors([]) is None, reason="the kernel takes no syncs here")


@needs_the_kernel
def test_all_are_synced_and_what_fails_fails_alone(tmp_path: Path) -> None:
    numbers = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(2 * SYNCS_AT_ONCE + 3)]
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    pipe = os.pipe()
    try:
        for number in numbers:
            os.pwrite(number, b"something", 0)
        assert sync_descriptors(numbers, [directory]) == [0] * (len(numbers) + 1)
        closed = os.dup(pipe[0])
        os.close(closed)
        # Neither of them can be synced: it is left to the caller to find out why.
        assert sync_descriptors([*numbers[:2], closed, numbers[2]]) == [0, 0, None, None]
        assert sync_descriptors([pipe[0], numbers[0]]) is None, "nothing was taken: all are to be synced in another way"
    finally:
        for number in (*numbers, directory, *pipe):
            os.close(number)


def test_there_may_be_no_such_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_syncs, "_is_missing", True)
    files = OsFiles()
    files.write(tmp_path / "a", [b"a"], 0)
    assert sync_descriptors([]) is None
    assert files.sync_many([tmp_path / "a"], [tmp_path]) is None


@needs_the_kernel
def test_files_and_directories_are_synced_with_what_goes_wrong(tmp_path: Path) -> None:
    files = OsFiles(descriptors_max=4)
    paths = [tmp_path / f"file-{number}" for number in range(20)]
    for path in paths:
        files.write(path, [b"rows"], 0)
    missing, no_directory = tmp_path / "missing", tmp_path / "file-0"
    errors = files.sync_many([*paths, missing], [tmp_path, no_directory / "below"])
    assert errors is not None
    assert {path: error.errno for path, error in errors.items()} == {
        missing: errno.ENOENT,
        no_directory / "below": errno.ENOTDIR,
    }
    assert files.descriptor_count == 4


@needs_the_kernel
def test_what_the_kernel_reports_is_an_error_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = OsFiles()
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        files.write(path, [b"rows"], 0)
    monkeypatch.setattr("fluss.storage.vfs.sync_descriptors", lambda *_: [0, errno.EIO, None, errno.EIO])
    errors = files.sync_many(paths, [tmp_path])
    assert errors is not None
    assert {path: (error.errno, error.filename) for path, error in errors.items()} == {
        paths[1]: (errno.EIO, str(paths[1])),
        tmp_path: (errno.EIO, str(tmp_path)),
    }


@needs_the_kernel
def test_a_forked_process_has_calls_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    number = os.open(path, os.O_RDWR | os.O_CREAT)
    assert sync_descriptors([number]) == [0]
    child = os.fork()
    if not child:
        os._exit(0 if sync_descriptors([number]) == [0] else 1)
    assert os.waitpid(child, 0)[1] == 0
    os.close(number)
