"""Places for objects outside of the data directory: a directory, or a file system of pyarrow or fsspec.

An object is written once, under a name that is new, and becomes visible as a whole. Nothing here is tried twice: that
is the business of ``RemoteStore``. All methods block, and raise OSError.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Protocol

from fluss.buffers import BytesLike
from fluss.storage.vfs import TEMPORARY_SUFFIX, Files

# What a store says of requests that it will refuse the next time, too.
_REFUSALS: Final = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY_ID",
    "INVALID_CLIENT_TOKEN_ID",
    "INVALID_SIGNATURE",
    "MISSING_AUTHENTICATION_TOKEN",
    "NO_SUCH_BUCKET",
    "SIGNATURE_DOES_NOT_MATCH",
    "UNRECOGNIZED_CLIENT",
    "HTTP status 401",
    "HTTP status 403",
)
_REFUSED_NUMBERS: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT})


class Objects(Protocol):
    """Where objects are kept. Paths are relative, with forward slashes. May be used from any thread."""

    @property
    def location(self) -> str:
        """The directory, as clients are told: an absolute path, or a URI."""
        ...

    def put(self, path: str, parts: Iterable[BytesLike]) -> None:
        """Write an object. After an error there may be one that is not whole."""
        ...

    def size(self, path: str) -> int:
        """Return the size of an object; a missing one is a FileNotFoundError."""
        ...

    def read(self, path: str, position: int, byte_count: int) -> BytesLike:
        """Return the bytes from a position on; fewer only at the end of the object."""
        ...

    def names(self, path: str) -> list[str]:
        """List what is directly in a directory, in no particular order; one that does not exist is empty."""
        ...

    def remove(self, path: str) -> None:
        """Remove an object; a missing one is not an error."""
        ...

    def remove_all(self, path: str) -> None:
        """Remove a directory with everything in it; a missing one is not an error."""
        ...

    def is_retriable(self, error: OSError) -> bool:
        """Tell whether a request that failed so may succeed the next time."""
        ...


class DirectoryObjects:
    """A directory of the machine, perhaps of a network. An object is on the disk when ``put`` returns."""

    def __init__(self, root: Path, files: Files) -> None:
        self._root = root
        self._files = files

    @property
    def location(self) -> str:
        return str(self._root)

    def put(self, path: str, parts: Iterable[BytesLike]) -> None:
        target = self._root / path
        temporary = target.with_name(target.name + TEMPORARY_SUFFIX)
        self._files.make_directory(target.parent)
        # What a crash has left under that name may be longer.
        self._files.remove(temporary)
        self._files.write(temporary, (b"",), 0)
        position = 0
        for part in parts:
            self._files.write(temporary, (part,), position)
            position += len(part)
        self._files.sync(temporary)
        self._files.rename(temporary, target)
        self._files.sync_directory(target.parent)
        # Written once and read by others: no descriptor is worth keeping.
        self._files.forget(target)

    def size(self, path: str) -> int:
        return self._files.size(self._root / path)

    def read(self, path: str, position: int, byte_count: int) -> BytesLike:
        return self._files.read(self._root / path, position, byte_count)

    def names(self, path: str) -> list[str]:
        return self._files.names(self._root / path)

    def remove(self, path: str) -> None:
        target = self._root / path
        self._files.remove(target)
        self._sync_names(target.parent)

    def remove_all(self, path: str) -> None:
        directory = self._root / path
        self._files.remove_tree(directory)
        self._sync_names(directory.parent)
        self._remove_empty(directory.parent)

    def _sync_names(self, directory: Path) -> None:
        # What is gone must not come back when power is lost: no process would look for it any more.
        if self._files.exists(directory):
            self._files.sync_directory(directory)

    def is_retriable(self, error: OSError) -> bool:
        return False

    def _remove_empty(self, directory: Path) -> None:
        """Remove the directories of tables and partitions of which nothing is left."""
        while directory != self._root and self._root in directory.parents:
            if self._files.names(directory):
                return
            try:
                os.rmdir(directory)
            except OSError:
                # Something was put there meanwhile.
                return
            directory = directory.parent


class ArrowObjects:
    """A file system of pyarrow, or one of fsspec behind pyarrow's interface."""

    def __init__(self, file_system: Any, root: str, location: str, *, is_written_in_place: bool = False) -> None:
        """``root`` is what the file system calls the directory, ``location`` what clients are told.

        Where an object ``is_written_in_place``, others see it while it is written: it gets its name when it is whole.
        """
        self._file_system = file_system
        self._root = root.rstrip("/")
        self._location = location.rstrip("/")
        self._is_written_in_place = is_written_in_place

    @property
    def location(self) -> str:
        return self._location

    def put(self, path: str, parts: Iterable[BytesLike]) -> None:
        target = self._path(path)
        written = target
        if self._is_written_in_place:
            self._file_system.create_dir(target.rpartition("/")[0], recursive=True)
            written = target + TEMPORARY_SUFFIX
        stream = self._file_system.open_output_stream(written, compression=None)
        try:
            for part in parts:
                stream.write(part)
            stream.close()
        except BaseException:
            # pyarrow completes an object when its stream is let go of. That has to happen now: the error would keep it
            # until after the next attempt, whose object would be replaced by one that is cut off.
            del stream
            raise
        if self._is_written_in_place:
            self._file_system.move(written, target)

    def size(self, path: str) -> int:
        info = self._file_system.get_file_info(self._path(path))
        if not info.is_file:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", self._path(path))
        return int(info.size)

    def read(self, path: str, position: int, byte_count: int) -> BytesLike:
        with self._file_system.open_input_file(self._path(path)) as file:
            byte_count = min(byte_count, file.size() - position)
            return memoryview(b"") if byte_count <= 0 else memoryview(file.read_at(byte_count, position))

    def names(self, path: str) -> list[str]:
        from pyarrow import fs

        selector = fs.FileSelector(self._path(path), allow_not_found=True)
        return [info.base_name for info in self._file_system.get_file_info(selector) if info.base_name]

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._file_system.delete_file(self._path(path))

    def remove_all(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._file_system.delete_dir(self._path(path))

    def is_retriable(self, error: OSError) -> bool:
        if error.errno in _REFUSED_NUMBERS or isinstance(error, FileNotFoundError | PermissionError):
            return False
        text = str(error)
        return not any(refusal in text for refusal in _REFUSALS)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root
