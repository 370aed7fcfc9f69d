"""Reading large amounts of files beside the real work: at a bounded rate, and without driving others out of the cache.

What was not in the page cache before it was read is not left there, so that a pass over all files does not cost readers
the pages that they use. Each file is opened for itself: the descriptors that ``OsFiles`` keeps are those of readers.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

# A pause shorter than this costs more than it is worth; it is added to the next one.
_PAUSE_S_MIN: Final = 0.005


class ReadsStoppedError(Exception):
    """Reading has ended, because the server stops."""


class BackgroundReads:
    """Reads files in one thread. ``stop`` may be called from any; reads then end with ReadsStoppedError."""

    def __init__(self, bytes_per_second: int, *, wait: Callable[[float], bool] | None = None) -> None:
        """``wait`` pauses for so many seconds and returns whether reading is to end; for tests."""
        assert bytes_per_second > 0, "a rate of nothing would never end"
        self._bytes_per_second = bytes_per_second
        self._is_stopped = threading.Event()
        self._wait = wait or self._is_stopped.wait
        self._owed_s = 0.0
        self.read_bytes = 0

    def stop(self) -> None:
        self._is_stopped.set()

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped.is_set()

    def pause(self, seconds: float) -> None:
        """Do nothing for a while."""
        if self._wait(seconds) or self.is_stopped:
            raise ReadsStoppedError

    def charge(self, byte_count: int) -> None:
        """Wait as long as so many bytes take at this rate."""
        self._owed_s += byte_count / self._bytes_per_second
        if self._owed_s >= _PAUSE_S_MIN:
            owed_s, self._owed_s = self._owed_s, 0.0
            self.pause(owed_s)
        elif self.is_stopped:
            raise ReadsStoppedError

    def size(self, path: Path) -> int:
        return os.stat(path).st_size

    def read(self, path: Path, position: int, byte_count: int) -> bytes:
        """Return the bytes from a position on; fewer only at the end of the file."""
        self.charge(byte_count)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            was_cached = _is_cached(descriptor, position, byte_count)
            data = _read_all(descriptor, position, byte_count)
            if not was_cached:
                os.posix_fadvise(descriptor, position, byte_count, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        self.read_bytes += len(data)
        return data


def _read_all(descriptor: int, position: int, byte_count: int) -> bytes:
    data = os.pread(descriptor, byte_count, position)
    while 0 < len(data) < byte_count and (more := os.pread(descriptor, byte_count - len(data), position + len(data))):
        data += more
    return data


def _is_cached(descriptor: int, position: int, byte_count: int) -> bool:
    """Tell whether most of a range of a file is in the page cache; where that cannot be known, say yes."""
    mincore = _mincore()
    size = os.fstat(descriptor).st_size
    first = position - position % mmap.ALLOCATIONGRANULARITY
    length = min(position + byte_count, size) - first
    if mincore is None or length <= 0:
        return True
    with mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY, offset=first) as mapped:
        pages = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
        anchor = ctypes.c_char.from_buffer(mapped)
        try:
            failed = mincore(ctypes.addressof(anchor), length, pages.ctypes.data)
        finally:
            # The mapping cannot be closed while something points into it.
            del anchor
    return bool(failed) or int((pages & 1).sum()) * 2 >= len(pages)


@cache
def _mincore() -> Any:
    """Return the call that says which pages are in memory; None where the system has none."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "mincore", None)
    if function is not None:
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        function.restype = ctypes.c_int
    return function
