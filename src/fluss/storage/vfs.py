"""The one door to the disk: every open, write, sync, rename and unlink of storage goes through ``Files``.

``OsFiles`` is the real one. A fault-injecting twin with the same methods lives in ``fluss.testing.faultfs``.

Files are named by path, not held open: an idle log costs no descriptor. ``OsFiles`` keeps the descriptors that were
used last, up to a limit, and as long as there are others. New files and directories can be read and written by those
who may use the directory that they are made in only. Errors of the operating system come out as OSError,
with the name of the file. One that says that there is no descriptor left comes before anything is done, and the same
may be tried again.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

from fluss.buffers import BytesLike, byte_view, new_memory
from fluss.storage.kernel_syncs import sync_descriptors

# Files that are kept open unless the owner of the process has more to give.
DESCRIPTORS_MAX: Final = 512
# What a file is called until its new content is complete.
TEMPORARY_SUFFIX: Final = ".tmp"
# What can be said of files and directories at all; the umask of the process may take some of it away.
_DIRECTORY_MODE: Final = 0o777
_FILE_MODE: Final = 0o666
# What the operating system takes in one call (IOV_MAX).
_PARTS_PER_WRITE: Final = 1024
# A larger read goes into memory that is used again and again: fresh pages cost more than the copy.
_LARGE_READ_BYTES: Final = 64 * 1024
_NO_SPACE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DESCRIPTOR_ERRORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_PASSING_ERRORS: Final = _NO_DESCRIPTOR_ERRORS | {errno.ENOMEM, errno.EINTR, errno.EAGAIN}
# How often directories are made again that were removed meanwhile because they were empty.
_MAKE_ATTEMPTS: Final = 10


def is_out_of_descriptors(error: OSError) -> bool:
    """Tell whether this process, or the machine, has as many files open as it may. Then nothing was done."""
    return error.errno in _NO_DESCRIPTOR_ERRORS


def is_out_of_space(error: OSError) -> bool:
    """Tell whether the disk is full, or what this user may have of it."""
    return error.errno in _NO_SPACE_ERRORS


def is_passing(error: OSError) -> bool:
    """Tell whether what kept a file from being opened passes. The file is as good as it was."""
    return error.errno in _PASSING_ERRORS


class FileReads(Protocol):
    """What is needed to look through a file."""

    def size(self, path: Path) -> int: ...

    def read(self, path: Path, position: int, byte_count: int) -> BytesLike:
        """Return the bytes from a position on; fewer only at the end of the file."""
        ...


class Files(FileReads, Protocol):
    """What storage needs of a file system. All methods may be called from any thread."""

    def exists(self, path: Path) -> bool: ...

    def names(self, directory: Path) -> list[str]:
        """List a directory in no particular order; one that does not exist is empty."""
        ...

    def write(self, path: Path, parts: Sequence[BytesLike], position: int) -> None:
        """Write all parts one after the other, creating the file if it is missing.

        The content is durable after ``sync``, the name of a new file after ``sync_directory``. An error may leave a
        part of it written.
        """
        ...

    def sync(self, path: Path) -> None:
        """Make the content and size of a file durable. After an error it is unknown what is on the disk."""
        ...

    def truncate(self, path: Path, byte_count: int) -> None: ...

    def replace(self, path: Path, data: bytes, *, durably: bool = True) -> None:
        """Give a file a new content, all or nothing. Without ``durably`` a lost machine may lose new and old."""
        ...

    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        """Create a directory and its parents; existing ones are left alone.

        Without ``durably`` it is left to the caller to ``sync_directory`` those above.
        """
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable, and that others are gone from it."""
        ...

    def sync_many(self, files: Sequence[Path], directories: Sequence[Path]) -> dict[Path, OSError] | None:
        """Do ``sync`` of many files and ``sync_directory`` of many directories; return what went wrong with which.

        None if nothing was done because it is no faster than one by one.
        """
        ...

    def rename(self, path: Path, new_path: Path) -> None: ...

    def remove(self, path: Path) -> None:
        """Remove a file; a missing one is not an error."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with everything in it; a missing one is not an error."""
        ...

    def forget(self, path: Path) -> None:
        """Close what is held open of a file, or of everything below a directory."""
        ...


class _Descriptor:
    """An open file. It is closed once it was dropped and no thread uses it any more."""

    __slots__ = ("is_dropped", "number", "user_count")

    def __init__(self, number: int) -> None:
        self.number = number
        self.user_count = 0
        self.is_dropped = False


class _Lent:
    """A descriptor that is lent: ``with lent as number``."""

    __slots__ = ("_descriptor", "_files")

    def __init__(self, files: OsFiles, descriptor: _Descriptor) -> None:
        self._files = files
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor.number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files._give_back(self._descriptor)


class OsFiles:
    """The file system of the machine, with the descriptors used last kept open."""

    def __init__(self, *, descriptors_max: int = DESCRIPTORS_MAX) -> None:
        self._descriptors_max = descriptors_max
        # By path as text: hashing a Path costs more than reading a few kilobytes.
        self._descriptors: OrderedDict[str, _Descriptor] = OrderedDict()
        # Directory -> what of it is open: files, and directories that have any. So what lies below one of thousands of
        # directories is found without a look at all the others.
        self._entries: dict[str, set[str]] = {}
        # How often files were replaced, renamed or removed. A file that was opened meanwhile may be the old one.
        self._forget_count = 0
        self._lock = threading.Lock()

    def __del__(self) -> None:
        # None of them is lent: what is lent keeps this alive.
        for descriptor in self._descriptors.values():
            os.close(descriptor.number)

    @property
    def descriptor_count(self) -> int:
        """How many files are held open. Those in use at this moment may exceed the limit."""
        return len(self._descriptors)

    def size(self, path: Path) -> int:
        return os.stat(path).st_size

    def exists(self, path: Path) -> bool:
        return os.path.exists(path)

    def names(self, directory: Path) -> list[str]:
        try:
            return os.listdir(directory)
        except FileNotFoundError:
            return []

    def read(self, path: Path, position: int, byte_count: int) -> BytesLike:
        with self._open(path, os.O_RDWR) as descriptor:
            if byte_count < _LARGE_READ_BYTES:
                data = os.pread(descriptor, byte_count, position)
                if len(data) == byte_count or not os.pread(descriptor, 1, position + len(data)):
                    return data
            memory = byte_view(new_memory(byte_count))
            read_bytes = 0
            # A read may be cut short by a signal or a limit of the operating system. Nothing comes only at the end.
            while read_bytes < byte_count and (
                count := os.preadv(descriptor, [memory[read_bytes:]], position + read_bytes)
            ):
                read_bytes += count
            return memory[:read_bytes].toreadonly()

    def write(self, path: Path, parts: Sequence[BytesLike], position: int) -> None:
        with self._open_to_write(path, position) as descriptor:
            for first in range(0, len(parts), _PARTS_PER_WRITE):
                position = _write_all(descriptor, list(parts[first : first + _PARTS_PER_WRITE]), position)

    def sync(self, path: Path) -> None:
        with self._open(path, os.O_RDWR) as descriptor:
            os.fdatasync(descriptor)

    def truncate(self, path: Path, byte_count: int) -> None:
        with self._open(path, os.O_RDWR) as descriptor:
            os.ftruncate(descriptor, byte_count)

    def replace(self, path: Path, data: bytes, *, durably: bool = True) -> None:
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        with self._names_in(path.parent, durably=durably):
            try:
                # A link that another program has put there is not followed.
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
                with open(self._opened(temporary, flags, _mode_in(temporary.parent) & _FILE_MODE), "wb") as file:
                    file.write(data)
                    file.flush()
                    if durably:
                        os.fsync(file.fileno())
                os.replace(temporary, path)
            except OSError:
                # A full disk must not keep half of a file that no start will read.
                with suppress(OSError):
                    os.unlink(temporary)
                raise
            self.forget(path)

    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        for attempt in range(_MAKE_ATTEMPTS):
            try:
                self._make_missing(path, durably=durably)
                return
            except FileNotFoundError:
                # Another thread has removed a parent because it was empty, between two steps of this one.
                if attempt == _MAKE_ATTEMPTS - 1:
                    raise

    def _make_missing(self, path: Path, *, durably: bool) -> None:
        missing = [path]
        while not missing[-1].parent.exists():
            missing.append(missing[-1].parent)
        for directory in reversed(missing):
            with suppress(FileExistsError), self._names_in(directory.parent, durably=durably):
                directory.mkdir(_mode_in(directory.parent))

    def sync_directory(self, path: Path) -> None:
        with self._names_in(path, durably=True):
            pass

    def sync_many(self, files: Sequence[Path], directories: Sequence[Path]) -> dict[Path, OSError] | None:
        errors: dict[Path, OSError] = {}
        lent: list[tuple[Path, _Lent]] = []
        opened: list[tuple[Path, int]] = []
        try:
            for path in files:
                try:
                    lent.append((path, self._open(path, os.O_RDWR)))
                except OSError as error:
                    errors[path] = error
            for path in directories:
                try:
                    opened.append((path, self._opened(path, os.O_RDONLY | os.O_DIRECTORY)))
                except OSError as error:
                    errors[path] = error
            numbers = [held.__enter__() for _, held in lent]
            results = _results_of_syncs(numbers, [number for _, number in opened])
            if results is None:
                return None
            syncs = [(path, number, os.fdatasync) for (path, _), number in zip(lent, numbers, strict=True)]
            syncs += [(path, number, os.fsync) for path, number in opened]
            for (path, number, sync), result in zip(syncs, results, strict=True):
                if result:
                    errors[path] = OSError(result, os.strerror(result), str(path))
                elif result is None:
                    try:
                        sync(number)
                    except OSError as error:
                        errors[path] = error
            return errors
        finally:
            for _, held in lent:
                held.__exit__(None, None, None)
            for _, number in opened:
                os.close(number)

    def rename(self, path: Path, new_path: Path) -> None:
        os.rename(path, new_path)
        self.forget(path)

    def remove(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)
        self.forget(path)

    def remove_tree(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(path)
        self.forget(path)

    def forget(self, path: Path) -> None:
        with self._lock:
            self._forget_count += 1
            found = [os.fspath(path)]
            while found:
                text = found.pop()
                found += self._entries.get(text, ())
                self._discard(text)

    def _open_to_write(self, path: Path, position: int) -> _Lent:
        if position:
            # It is there, unless it was removed: what a new file would be allowed need not be found out.
            with suppress(FileNotFoundError):
                return self._open(path, os.O_RDWR)
        return self._open(path, os.O_RDWR | os.O_CREAT)

    def _open(self, path: Path, flags: int) -> _Lent:
        """Lend a descriptor. It stays open while it is lent, even if others push it out meanwhile."""
        text = os.fspath(path)
        with self._lock:
            descriptor = self._descriptors.get(text)
            forget_count = self._forget_count
            if descriptor is not None:
                self._descriptors.move_to_end(text)
                descriptor.user_count += 1
        if descriptor is None:
            # Opening may wait for the disk; threads that have their descriptors go on meanwhile.
            mode = _mode_in(os.path.dirname(text)) & _FILE_MODE if flags & os.O_CREAT else 0
            opened = _Descriptor(self._opened(text, flags, mode))
            descriptor = self._keep(text, opened, forget_count)
        return _Lent(self, descriptor)

    def _give_back(self, descriptor: _Descriptor) -> None:
        with self._lock:
            descriptor.user_count -= 1
            self._close_if_unused(descriptor)

    @contextmanager
    def _names_in(self, directory: Path, *, durably: bool) -> Iterator[None]:
        """Make names durable that change in a directory. It is opened before: afterwards there may be no descriptor."""
        if not durably:
            yield
            return
        descriptor = self._opened(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _opened(self, path: str | Path, flags: int, mode: int = 0) -> int:
        """Open a file or a directory. When no descriptor is left, those that are kept for later are given up."""
        while True:
            try:
                return os.open(path, flags | os.O_CLOEXEC, mode)
            except OSError as error:
                if not is_out_of_descriptors(error) or not self._drop_unused():
                    raise

    def _drop_unused(self) -> bool:
        """Close the descriptor that has not been used for longest; return whether there was one."""
        with self._lock:
            unused = next((text for text, kept in self._descriptors.items() if not kept.user_count), None)
            if unused is not None:
                self._discard(unused)
            return unused is not None

    def _keep(self, text: str, opened: _Descriptor, forget_count: int) -> _Descriptor:
        """Lend a descriptor that was just opened, or the one of a thread that was faster, and remember it."""
        with self._lock:
            if forget_count != self._forget_count:
                opened.is_dropped = True
                opened.user_count += 1
                return opened
            descriptor = self._descriptors.setdefault(text, opened)
            descriptor.user_count += 1
            if descriptor is not opened:
                self._drop(opened)
                return descriptor
            self._enter(text)
            if len(self._descriptors) > self._descriptors_max:
                self._discard(next(iter(self._descriptors)))
            return descriptor

    def _enter(self, text: str) -> None:
        """Have the directories above a file lead to it."""
        while (directory := os.path.dirname(text)) != text:
            entries = self._entries.setdefault(directory, set())
            is_known = bool(entries)
            entries.add(text)
            if is_known:
                return
            text = directory

    def _discard(self, text: str) -> None:
        """Drop the descriptor of a file, if there is one, and the directories that lead to no other."""
        descriptor = self._descriptors.pop(text, None)
        if descriptor is None:
            return
        self._drop(descriptor)
        while (directory := os.path.dirname(text)) != text:
            entries = self._entries[directory]
            entries.discard(text)
            if entries:
                return
            del self._entries[directory]
            text = directory

    def _drop(self, descriptor: _Descriptor) -> None:
        descriptor.is_dropped = True
        self._close_if_unused(descriptor)

    def _close_if_unused(self, descriptor: _Descriptor) -> None:
        if descriptor.is_dropped and descriptor.user_count == 0:
            os.close(descriptor.number)


def _results_of_syncs(files: Sequence[int], directories: Sequence[int]) -> list[int | None] | None:
    try:
        return sync_descriptors(files, directories)
    except OSError as error:
        # Nobody knows what has become of them.
        return [error.errno or errno.EIO] * (len(files) + len(directories))


def _mode_in(directory: str | Path) -> int:
    """Return who may use a directory, as permissions of something new in it."""
    try:
        return os.stat(directory).st_mode & _DIRECTORY_MODE
    except FileNotFoundError:
        return _DIRECTORY_MODE


def _write_all(descriptor: int, parts: list[BytesLike], position: int) -> int:
    """Write parts until all of them are written, and return the position behind them."""
    while parts:
        written = os.pwritev(descriptor, parts, position)
        position += written
        done = 0
        while done < len(parts) and written >= len(parts[done]):
            written -= len(parts[done])
            done += 1
        del parts[:done]
        if written:
            parts[0] = memoryview(parts[0])[written:]
    return position
