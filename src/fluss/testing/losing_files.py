"""The disk of this machine for a server that is about to lose its power, or its space.

``LosingFiles`` has the methods of ``fluss.storage.vfs.Files`` and passes them on to real files. Beside them it keeps
``fluss.testing.faultfs.FaultFiles``, which knows what is durable: ``lose_power`` puts on the real disk what that would
have left, torn and out of order as its rules say, and everything that uses the files stands still.

Only what goes through these methods can be lost. RocksDB and SQLite write by themselves: after a loss they are as they
were, which may be ahead of the logs.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from fluss.buffers import BytesLike
from fluss.storage.vfs import OsFiles
from fluss.testing.faultfs import FaultFiles


class LosingFiles:
    """Real files, whose unsynced part can be lost. All methods may be called from any thread; one acts at a time."""

    def __init__(self, root: Path, seed: int, *, is_full: Callable[[], bool] = lambda: False) -> None:
        """Nothing but what is below ``root`` is ever lost, and no other path may be given.

        While ``is_full`` says so, what needs space fails with ENOSPC, writes in the middle.
        """
        self._root = root
        self._real = OsFiles()
        self._shadow = FaultFiles(seed)
        self._shadow.make_directory(root)
        self._is_full = is_full
        self._turn = threading.RLock()

    def lose_power(self) -> None:
        """Leave on the disk what a machine without power would have. Never lets anybody use the files again."""
        self._turn.acquire()
        before, directories = self._shadow.files(), self._shadow.directories()
        self._shadow.crash()
        after = self._shadow.files()
        lost = directories - self._shadow.directories()
        assert all(self._root in directory.parents for directory in lost), f"{lost} are not all below {self._root}"
        for directory in lost:
            shutil.rmtree(directory, ignore_errors=True)
        for path in before.keys() - after.keys():
            with suppress(FileNotFoundError):
                path.unlink()
        for path, data in after.items():
            if before.get(path) != data:
                path.write_bytes(data)

    # What reads

    def size(self, path: Path) -> int:
        with self._turn:
            return self._real.size(path)

    def exists(self, path: Path) -> bool:
        with self._turn:
            return self._real.exists(path)

    def names(self, directory: Path) -> list[str]:
        with self._turn:
            return self._real.names(directory)

    def read(self, path: Path, position: int, byte_count: int) -> BytesLike:
        with self._turn:
            return self._real.read(path, position, byte_count)

    def forget(self, path: Path) -> None:
        with self._turn:
            self._real.forget(path)

    # What changes

    def write(self, path: Path, parts: Sequence[BytesLike], position: int) -> None:
        with self._turn:
            data = b"".join(parts)
            if is_full := self._is_full():
                data = data[: len(data) // 2]
            self._know(path)
            self._real.write(path, [data], position)
            self._shadow.write(path, [data], position)
            if is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def sync(self, path: Path) -> None:
        with self._turn:
            self._know(path)
            self._real.sync(path)
            self._shadow.sync(path)

    def sync_many(self, files: Sequence[Path], directories: Sequence[Path]) -> None:
        """Nothing: syncs are counted, and fail, one by one."""

    def truncate(self, path: Path, byte_count: int) -> None:
        with self._turn:
            self._know(path)
            self._real.truncate(path, byte_count)
            self._shadow.truncate(path, byte_count)

    def replace(self, path: Path, data: bytes, *, durably: bool = True) -> None:
        with self._turn:
            self._require_space(path)
            self._know(path)
            self._real.replace(path, data, durably=durably)
            self._shadow.replace(path, data, durably=durably)

    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        with self._turn:
            self._require_space(path)
            self._know_directory(path)
            self._real.make_directory(path, durably=durably)
            self._shadow.make_directory(path, durably=durably)

    def sync_directory(self, path: Path) -> None:
        with self._turn:
            self._know_directory(path)
            self._real.sync_directory(path)
            self._shadow.sync_directory(path)

    def rename(self, path: Path, new_path: Path) -> None:
        with self._turn:
            self._know_tree(path)
            self._know_directory(new_path.parent)
            self._real.rename(path, new_path)
            self._shadow.rename(path, new_path)

    def remove(self, path: Path) -> None:
        with self._turn:
            self._know(path)
            self._real.remove(path)
            self._shadow.remove(path)

    def remove_tree(self, path: Path) -> None:
        with self._turn:
            self._real.remove_tree(path)
            self._shadow.remove_tree(path)

    def _require_space(self, path: Path) -> None:
        if self._is_full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    # What was on the disk before counts as durable. It is looked at when it is first changed.

    def _know(self, path: Path) -> None:
        self._know_directory(path.parent)
        if not self._shadow.exists(path) and path.is_file():
            self._shadow.replace(path, path.read_bytes())

    def _know_directory(self, path: Path) -> None:
        """Know a directory, or the part of its path that there is."""
        if path == self._root or self._shadow.exists(path):
            return
        assert self._root in path.parents, f"{path} is not below {self._root}"
        self._know_directory(path.parent)
        if path.is_dir():
            self._shadow.make_directory(path)

    def _know_tree(self, path: Path) -> None:
        if path.is_dir():
            self._know_directory(path)
            for below in path.iterdir():
                self._know_tree(below)
        else:
            self._know(path)
