"""Syncs of many files with two calls: the kernel works on all of them at once, and no thread waits for each.

A thread that syncs a file lets go of the interpreter before it and waits for its turn with the interpreter after it.
With thousands of small files that takes longer than the syncs. Linux takes many syncs with one call, and reports all of
them with another one (io_submit and io_getevents). Each is the same as fdatasync or fsync of its file, and has a result
of its own.

Where that is not to be had, ``sync_descriptors`` says so: other systems, other processors, containers that forbid it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

# So many are on their way at the same time. The kernel may need a thread for each of them.
SYNCS_AT_ONCE: Final = 256
_FSYNC, _FDATASYNC = 2, 3
# A request and a report, as in linux/aio_abi.h, on processors that are little-endian.
_REQUEST: Final = np.dtype(
    [
        ("data", "<u8"),
        ("key", "<u4"),
        ("flags", "<i4"),
        ("operation", "<u2"),
        ("priority", "<i2"),
        ("descriptor", "<u4"),
        ("nothing", "<u8", 5),
    ]
)
_REPORT: Final = np.dtype([("data", "<u8"), ("request", "<u8"), ("result", "<i8"), ("nothing", "<i8")])


class _Numbers(NamedTuple):
    """The numbers of the system calls."""

    setup: int
    submit: int
    getevents: int


_NUMBERS: Final = {"x86_64": _Numbers(206, 209, 208), "aarch64": _Numbers(0, 2, 4)}


class _Queue:
    """A queue of the kernel for requests of this process."""

    def __init__(self, numbers: _Numbers) -> None:
        """Raises OSError if there is none."""
        self.process_id = os.getpid()
        self._numbers = numbers
        library = ctypes.CDLL(None, use_errno=True)
        self._syscall = library.syscall
        self._syscall.restype = ctypes.c_long
        self._context = ctypes.c_ulong(0)
        self._call(numbers.setup, ctypes.c_long(SYNCS_AT_ONCE), ctypes.byref(self._context))

    def _call(self, number: int, *args: Any) -> int:
        result: int = self._syscall(ctypes.c_long(number), *args)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def sync(self, descriptors: Sequence[int], operations: Sequence[int]) -> list[int | None]:
        """Carry out at most ``SYNCS_AT_ONCE`` syncs; return the error number of each, None for what was not taken."""
        count = len(descriptors)
        requests = np.zeros(count, _REQUEST)
        requests["data"] = np.arange(count)
        requests["operation"] = operations
        requests["descriptor"] = descriptors
        addresses = requests.ctypes.data + _REQUEST.itemsize * np.arange(count, dtype=np.uint64)
        reports = np.zeros(count, _REPORT)
        taken, reported = 0, 0
        try:
            # It stops at the first that it does not take, and says why only if that is the first of all.
            while taken < count:
                address = ctypes.c_void_p(addresses.ctypes.data + addresses.itemsize * taken)
                taken += self._call(self._numbers.submit, self._context, ctypes.c_long(count - taken), address)
        except OSError:
            pass
        finally:
            # What was taken is waited for in any case: nobody else would take its report.
            while reported < taken:
                reported += self._reported(reports, reported, taken)
        errors: list[int | None] = [None] * count
        for number, result in zip(reports["data"][:taken].tolist(), reports["result"][:taken].tolist(), strict=True):
            errors[number] = -result
        return errors

    def _reported(self, reports: np.ndarray[Any, Any], first: int, end: int) -> int:
        address = ctypes.c_void_p(reports.ctypes.data + _REPORT.itemsize * first)
        count = ctypes.c_long(end - first)
        try:
            return self._call(self._numbers.getevents, self._context, count, count, address, None)
        except OSError as error:
            if error.errno != errno.EINTR:
                raise
            return 0


_lock: Final = threading.Lock()
_queue: _Queue | None = None
_is_missing = not sys.platform.startswith("linux") or sys.byteorder != "little" or sys.maxsize < 2**32


def sync_descriptors(files: Sequence[int], directories: Sequence[int] = ()) -> list[int | None] | None:
    """Do fdatasync of all files and fsync of all directories; return the error number of each, 0 for none.

    None stands for one that is to be synced in another way; instead of all of them if there is no other way for any.
    May be called from any thread, by one at a time: others wait.
    """
    with _lock:
        queue = _opened()
        if queue is None:
            return None
        descriptors = [*files, *directories]
        operations = [_FDATASYNC] * len(files) + [_FSYNC] * len(directories)
        errors: list[int | None] = []
        for first in range(0, len(descriptors), SYNCS_AT_ONCE):
            some = slice(first, first + SYNCS_AT_ONCE)
            errors += queue.sync(descriptors[some], operations[some])
        # Older kernels know the calls and take no syncs.
        return None if errors and all(error is None for error in errors) else errors


def _opened() -> _Queue | None:
    """Return the queue of this process. That of a parent does not outlive a fork."""
    global _queue, _is_missing
    if _is_missing:
        return None
    if _queue is None or _queue.process_id != os.getpid():
        numbers = _NUMBERS.get(platform.machine())
        try:
            _queue = None if numbers is None else _Queue(numbers)
        except (OSError, AttributeError):
            _queue = None
        _is_missing = _queue is None
    return _queue
