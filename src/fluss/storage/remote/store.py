"""Remote storage as the server uses it: objects with retries, a limit of bytes per second, and a check of each write.

What a manifest names is whole, whatever happens in between: objects get names that were never used, their size is
compared with what was sent, and only then does a manifest speak of them. What a failed write has left is an orphan,
which the owner of the manifest finds and removes.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from fluss.buffers import BytesLike
from fluss.errors import ErrorCode, FlussError
from fluss.retry import REMOTE_OBJECTS
from fluss.storage.remote.objects import Objects
from fluss.storage.vfs import FileReads

T = TypeVar("T")

# What one transfer holds in memory. Stores that take an object in parts make one of each.
CHUNK_BYTES: Final = 8 * 1024 * 1024


class RemoteStoppedError(Exception):
    """Nothing is sent or fetched any more, because the server stops, or because the table is gone."""


class RemoteTraffic:
    """What all stores of a server share: the rate of uploads, what was sent and what failed, and the end.

    May be used from any thread.
    """

    def __init__(self, bytes_per_second: int = 0, *, wait: Callable[[float], bool] | None = None) -> None:
        """A rate of 0 is no limit. ``wait`` pauses for so many seconds and returns whether all is to end; for tests."""
        self._bytes_per_second = bytes_per_second
        self._is_stopped = threading.Event()
        self._wait = wait or self._is_stopped.wait
        self._lock = threading.Lock()
        # Until when the line is taken by what was sent so far.
        self._busy_until_s = 0.0
        self.sent_bytes = 0
        self.sent_objects = 0
        self.removed_objects = 0
        self.failures = 0

    def stop(self) -> None:
        """Have every transfer end at its next step, with RemoteStoppedError."""
        self._is_stopped.set()

    def check(self) -> None:
        if self._is_stopped.is_set():
            raise RemoteStoppedError

    def pause(self, seconds: float) -> None:
        if self._wait(seconds) or self._is_stopped.is_set():
            raise RemoteStoppedError

    def charge(self, byte_count: int) -> None:
        """Wait until the line is free for so many bytes more."""
        self.check()
        if not self._bytes_per_second:
            return
        now_s = time.monotonic()
        with self._lock:
            begin_s = max(now_s, self._busy_until_s)
            self._busy_until_s = begin_s + byte_count / self._bytes_per_second
        if begin_s > now_s:
            self.pause(begin_s - now_s)

    def count(self, *, sent_bytes: int = 0, sent_objects: int = 0, removed_objects: int = 0, failures: int = 0) -> None:
        with self._lock:
            self.sent_bytes += sent_bytes
            self.sent_objects += sent_objects
            self.removed_objects += removed_objects
            self.failures += failures


class RemoteStore:
    """The objects below one directory of remote storage. All methods block, and may be called from any thread.

    What a store refuses, or cannot do after some retries, is a FlussError with the code of log storage;
    FileNotFoundError stays what it is.
    """

    def __init__(self, objects: Objects, traffic: RemoteTraffic, *, rng: random.Random | None = None) -> None:
        self._objects = objects
        self._traffic = traffic
        self._rng = rng or random.Random()

    def __repr__(self) -> str:
        return f"RemoteStore({self.location})"

    @property
    def location(self) -> str:
        """The directory, as clients are told."""
        return self._objects.location

    def put(self, path: str, data: BytesLike) -> None:
        """Write an object that fits into memory."""
        self.put_parts(path, lambda: iter((data,)), len(data))

    def put_file(self, path: str, files: FileReads, source: Path, byte_count: int) -> None:
        """Copy the first bytes of a file, of which a few are in memory at a time."""

        def parts() -> Iterator[BytesLike]:
            for position in range(0, byte_count, CHUNK_BYTES):
                wanted = min(CHUNK_BYTES, byte_count - position)
                part = files.read(source, position, wanted)
                if len(part) != wanted:
                    raise FlussError(
                        f"{source} has less than the {byte_count} bytes that it should have",
                        ErrorCode.LOG_STORAGE_EXCEPTION,
                    )
                yield part

        self.put_parts(path, parts, byte_count)

    def put_parts(self, path: str, parts: Callable[[], Iterator[BytesLike]], byte_count: int) -> None:
        """Write an object of so many bytes, part by part. ``parts`` is called again for each attempt."""

        def charged() -> Iterator[BytesLike]:
            for part in parts():
                self._traffic.charge(len(part))
                yield part

        def put() -> None:
            self._objects.put(path, charged())
            stored_bytes = self._objects.size(path)
            if stored_bytes != byte_count:
                raise OSError(f"the object has {stored_bytes} bytes, {byte_count} were sent")

        self._retried("write", path, put)
        self._traffic.count(sent_bytes=byte_count, sent_objects=1)

    def get(self, path: str) -> BytesLike:
        """Return the content of an object that fits into memory."""
        return self._retried("read", path, lambda: self._objects.read(path, 0, self._objects.size(path)))

    def size(self, path: str) -> int:
        return self._retried("look at", path, lambda: self._objects.size(path))

    def read(self, path: str, position: int, byte_count: int) -> BytesLike:
        """Return the bytes from a position on; fewer only at the end of the object."""
        return self._retried("read", path, lambda: self._objects.read(path, position, byte_count))

    def names(self, path: str) -> list[str]:
        """List what is directly in a directory; one that does not exist is empty."""
        return self._retried("list", path, lambda: self._objects.names(path))

    def remove(self, path: str) -> None:
        """Remove an object; a missing one is not an error."""
        self._retried("remove", path, lambda: self._objects.remove(path))
        self._traffic.count(removed_objects=1)

    def remove_all(self, path: str) -> None:
        """Remove a directory with everything in it; a missing one is not an error."""
        assert path, "the whole store is never removed"
        self._retried("remove", path, lambda: self._objects.remove_all(path))
        self._traffic.count(removed_objects=1)

    def _retried(self, verb: str, path: str, act: Callable[[], T]) -> T:
        pauses_s = REMOTE_OBJECTS.pauses_s(self._rng)
        attempts = 0
        while True:
            attempts += 1
            self._traffic.check()
            try:
                return act()
            except FileNotFoundError as error:
                if verb in ("read", "look at"):
                    raise
                failure: OSError = error
            except OSError as error:
                failure = error
            self._traffic.count(failures=1)
            pause_s = next(pauses_s, None)
            if pause_s is None or not self._objects.is_retriable(failure):
                break
            self._traffic.pause(pause_s)
        times = f" after {attempts} attempts" if attempts > 1 else ""
        raise FlussError(
            f"cannot {verb} {self.location}/{path}{times}: {failure}; check that remote storage can be reached and may "
            "be used with the configured keys",
            ErrorCode.LOG_STORAGE_EXCEPTION,
        ) from failure
