"""A disk in memory that does to a log what real disks do, from a seed.

``FaultFiles`` has the methods of ``fluss.storage.vfs.Files``. What processes see, and what a machine that loses power
has afterwards, are kept apart. These faults exist, and no others:

- ``write``, ``truncate``: not durable before ``sync``. When power is lost, each sector of the file is as it was at the
  last sync (zeros if the file was shorter then) or as it is now. What was added at the end may also be torn in the
  middle of a sector. The length is the old one, the new one, or one in between.
- A new name, or that a name is gone: not durable before ``sync_directory``. Each name is lost or kept by itself.
- ``replace(durably=False)``: content and name as above. Afterwards the file is the new one, the old one, missing, empty
  or partly zeros, and its temporary file may be there. ``replace`` alone: durable and all or nothing.
- ``make_directory(durably=False)``: the directory may be lost with all that is in it, unless the one above was synced.
  ``make_directory`` alone: durable.
- ``rename``, ``remove_tree``: durable.
- ``space_bytes_max``: ``write`` writes what fits and raises ENOSPC; ``replace`` and ``make_directory`` do nothing and
  raise it.
- ``fail_next``: the next matching operation raises. A failed ``write`` has written a part of its bytes. A failed
  ``sync`` has made nothing durable, and a later one that succeeds does not make up for it: the operating system has
  forgotten what it could not write, and the next process does not find it.
- ``has_descriptors``: while there are none, what has to open a file or a directory to change it raises EMFILE. Nothing
  is done then, nor by an operation that ``fail_next`` lets raise EMFILE.
- ``stop_after``: after so many operations all of them raise, reading too: the machine has stopped. A ``write`` at that
  moment has written a part of its bytes.

Otherwise a process that is killed (``crash(is_power_lost=False)``) loses nothing that it had handed to the operating
system.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fluss.buffers import BytesLike
from fluss.storage.vfs import TEMPORARY_SUFFIX, is_out_of_descriptors

SECTOR_BYTES: Final = 512
# What changes something and cannot do so without a descriptor.
_OPENING_OPERATIONS: Final = frozenset({"write", "sync", "truncate", "replace", "sync_directory"})


class _Content:
    """The bytes of a file: as processes see them, and as they are on the disk for certain."""

    __slots__ = ("data", "durable", "is_sync_lost")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        # The operating system reports a failed sync once, and forgets what it could not write.
        self.is_sync_lost = False


class FaultFiles:
    """Files in memory with seeded faults. All methods may be called from any thread."""

    def __init__(self, seed: int = 0, *, sector_bytes: int = SECTOR_BYTES, space_bytes_max: int | None = None) -> None:
        # Bytes of all files together; None: no limit. May be changed at any time.
        self.space_bytes_max = space_bytes_max
        # May be changed at any time.
        self.has_descriptors = True
        # Operations that change something or make it durable, so far.
        self.operation_count = 0
        self._random = random.Random(seed)
        self._sector_bytes = sector_bytes
        self._names: dict[Path, _Content] = {}
        self._names_durable: dict[Path, _Content] = {}
        self._directories: set[Path] = {Path("/")}
        self._directories_durable: set[Path] = {Path("/")}
        self._failures: list[tuple[str, str, int]] = []
        self._stop_at: int | None = None
        self._lock = threading.RLock()

    # What happens to the disk

    def fail_next(self, operation: str, name: str = "", *, number: int = errno.EIO) -> None:
        """Have the next such operation on a path that contains ``name`` raise. Calls add up."""
        assert hasattr(self, operation), f"there is no operation {operation}"
        with self._lock:
            self._failures.append((operation, name, number))

    def stop_after(self, operation_count: int) -> None:
        """Let so many more operations happen; then the machine stands still until ``crash``."""
        with self._lock:
            self._stop_at = self.operation_count + operation_count

    @property
    def is_stopped(self) -> bool:
        return self._stop_at is not None and self.operation_count >= self._stop_at

    def crash(self, *, is_power_lost: bool = True) -> None:
        """End what uses the files now. What is there afterwards is what a new process finds."""
        with self._lock:
            self._stop_at = None
            self._failures.clear()
            if is_power_lost:
                self._lose_directories()
                self._lose_names()
                self._names_durable = dict(self._names)
            for content in self._names.values():
                if is_power_lost or content.is_sync_lost:
                    self._lose_content(content)

    def change(self, path: Path, data: bytes) -> None:
        """Put other bytes into a file, durably, as damage that no operation reports."""
        with self._lock:
            content = self._content(path)
            content.data, content.durable = bytearray(data), bytes(data)

    def files(self) -> dict[Path, bytes]:
        """Return the content of all files, as processes see it."""
        with self._lock:
            return {path: bytes(content.data) for path, content in self._names.items()}

    def directories(self) -> set[Path]:
        """Return all directories, as processes see them."""
        with self._lock:
            return set(self._directories)

    def copy(self, seed: int) -> FaultFiles:
        """Return a disk with the same files, for trying several things from one state."""
        with self._lock:
            twin = FaultFiles(seed, sector_bytes=self._sector_bytes, space_bytes_max=self.space_bytes_max)
            contents: dict[int, _Content] = {}
            for content in (*self._names.values(), *self._names_durable.values()):
                copied = contents.setdefault(id(content), _Content())
                copied.data, copied.durable = bytearray(content.data), content.durable
                copied.is_sync_lost = content.is_sync_lost
            twin._names = {path: contents[id(content)] for path, content in self._names.items()}
            twin._names_durable = {path: contents[id(content)] for path, content in self._names_durable.items()}
            twin._directories = set(self._directories)
            twin._directories_durable = set(self._directories_durable)
            return twin

    # Files

    def size(self, path: Path) -> int:
        with self._lock:
            self._check_running(path)
            return len(self._content(path).data)

    def exists(self, path: Path) -> bool:
        with self._lock:
            self._check_running(path)
            return path in self._names or path in self._directories

    def names(self, directory: Path) -> list[str]:
        with self._lock:
            self._check_running(directory)
            return [path.name for path in (*self._names, *self._directories) if path.parent == directory != path]

    def read(self, path: Path, position: int, byte_count: int) -> bytes:
        with self._lock:
            self._check_running(path)
            return bytes(self._content(path).data[position : position + byte_count])

    def write(self, path: Path, parts: Sequence[BytesLike], position: int) -> None:
        with self._lock:
            data = b"".join(parts)
            try:
                self._begin("write", path)
            except OSError as error:
                if path.parent in self._directories and not is_out_of_descriptors(error):
                    self._put(path, data[: self._random.randint(0, len(data))], position)
                raise
            if path.parent not in self._directories:
                raise _error(errno.ENOENT, path)
            fitting = self._fitting(path, position + len(data))
            self._put(path, data[: max(fitting - position, 0)], position)
            if fitting < position + len(data):
                raise _error(errno.ENOSPC, path)

    def sync(self, path: Path) -> None:
        with self._lock:
            try:
                self._begin("sync", path)
            except OSError as error:
                if path in self._names and not self.is_stopped and not is_out_of_descriptors(error):
                    self._names[path].is_sync_lost = True
                raise
            content = self._content(path)
            if not content.is_sync_lost:
                content.durable = bytes(content.data)

    def sync_many(self, files: Sequence[Path], directories: Sequence[Path]) -> None:
        """Nothing: syncs are counted, and fail, one by one."""

    def truncate(self, path: Path, byte_count: int) -> None:
        with self._lock:
            self._begin("truncate", path)
            data = self._content(path).data
            del data[byte_count:]
            data.extend(bytes(byte_count - len(data)))

    def replace(self, path: Path, data: bytes, *, durably: bool = True) -> None:
        with self._lock:
            self._begin("replace", path)
            if path.parent not in self._directories:
                raise _error(errno.ENOENT, path)
            if self._fitting(path, len(data)) < len(data):
                raise _error(errno.ENOSPC, path)
            content = _Content()
            content.data = bytearray(data)
            self._names[path] = content
            if durably:
                content.durable = data
                self._sync_names(path.parent)

    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        with self._lock:
            self._begin("make_directory", path)
            missing = [directory for directory in (path, *path.parents) if directory not in self._directories]
            if missing and self.space_bytes_max is not None and self._used_bytes() >= self.space_bytes_max:
                raise _error(errno.ENOSPC, path)
            self._directories.update(missing)
            if durably:
                for directory in missing:
                    self._sync_names(directory.parent)

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self._begin("sync_directory", path)
            if path not in self._directories:
                raise _error(errno.ENOENT, path)
            self._sync_names(path)

    def rename(self, path: Path, new_path: Path) -> None:
        with self._lock:
            self._begin("rename", path)
            if path not in self._names and path not in self._directories:
                raise _error(errno.ENOENT, path)
            for names in (self._names, self._names_durable):
                for old in [old for old in names if old == path or path in old.parents]:
                    names[new_path / old.relative_to(path)] = names.pop(old)
            for directories in (self._directories, self._directories_durable):
                for old in [old for old in directories if old == path or path in old.parents]:
                    directories.remove(old)
                    directories.add(new_path / old.relative_to(path))

    def remove(self, path: Path) -> None:
        with self._lock:
            self._begin("remove", path)
            self._names.pop(path, None)

    def remove_tree(self, path: Path) -> None:
        with self._lock:
            self._begin("remove_tree", path)
            for names in (self._names, self._names_durable):
                for old in [old for old in names if path in old.parents]:
                    del names[old]
            for directories in (self._directories, self._directories_durable):
                directories -= {old for old in directories if old == path or path in old.parents}

    def forget(self, path: Path) -> None:
        """Nothing is held open."""

    # The machinery

    def _check_running(self, path: Path) -> None:
        if self.is_stopped:
            raise _error(errno.EIO, path)

    def _begin(self, operation: str, path: Path) -> None:
        """Count an operation, and raise if it is to fail."""
        self._check_running(path)
        self.operation_count += 1
        self._check_running(path)
        if not self.has_descriptors and operation in _OPENING_OPERATIONS:
            raise _error(errno.EMFILE, path)
        for failure in self._failures:
            if failure[0] == operation and failure[1] in str(path):
                self._failures.remove(failure)
                raise _error(failure[2], path)

    def _content(self, path: Path) -> _Content:
        content = self._names.get(path)
        if content is None:
            raise _error(errno.ENOENT, path)
        return content

    def _put(self, path: Path, data: bytes, position: int) -> None:
        content = self._names.setdefault(path, _Content())
        content.data.extend(bytes(max(position - len(content.data), 0)))
        content.data[position : position + len(data)] = data

    def _used_bytes(self) -> int:
        return sum(len(content.data) for content in self._names.values())

    def _fitting(self, path: Path, byte_count: int) -> int:
        """Return how long a file may become, if it is to have so many bytes."""
        if self.space_bytes_max is None:
            return byte_count
        present = len(self._names[path].data) if path in self._names else 0
        free = max(self.space_bytes_max - self._used_bytes(), 0)
        return min(byte_count, present + free)

    def _sync_names(self, directory: Path) -> None:
        for path in [path for path in self._names_durable if path.parent == directory]:
            del self._names_durable[path]
        self._names_durable.update((path, content) for path, content in self._names.items() if path.parent == directory)
        self._directories_durable.update(path for path in self._directories if path.parent == directory)

    def _lose_directories(self) -> None:
        lost = {path for path in self._directories - self._directories_durable if self._random.random() < 0.5}
        for names in (self._names, self._names_durable):
            for path in [path for path in names if not lost.isdisjoint(path.parents)]:
                del names[path]
        self._directories = {path for path in self._directories if lost.isdisjoint((path, *path.parents))}
        self._directories_durable = set(self._directories)

    def _lose_names(self) -> None:
        for path in sorted({*self._names, *self._names_durable}):
            now, before = self._names.get(path), self._names_durable.get(path)
            if now is before or self._random.random() < 0.5:
                continue
            if before is None:
                del self._names[path]
            else:
                self._names[path] = before
            if now is not None and self._random.random() < 0.2:
                self._names[path.with_name(path.name + TEMPORARY_SUFFIX)] = now

    def _lose_content(self, content: _Content) -> None:
        before, now = content.durable, bytes(content.data)
        if before != now:
            length_max = max(len(before), len(now))
            old, new = before.ljust(length_max, b"\0"), now.ljust(length_max, b"\0")
            shape = self._random.choice(("nothing", "everything", "sectors", "torn"))
            if shape == "nothing":
                data = bytearray(old)
            elif shape == "everything":
                data = bytearray(new)
            elif shape == "torn":
                end = self._random.randint(min(len(before), len(now)), length_max)
                data = bytearray(new[:end] + old[end:])
            else:
                data = bytearray()
                for start in range(0, length_max, self._sector_bytes):
                    survivor = self._random.choice((old, new))
                    data += survivor[start : start + self._sector_bytes]
            lengths = (len(before), len(now), self._random.randint(min(len(before), len(now)), length_max))
            content.data = data[: self._random.choice(lengths)]
        content.durable = bytes(content.data)
        content.is_sync_lost = False


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
