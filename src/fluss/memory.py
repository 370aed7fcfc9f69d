"""How much memory there is; what nothing uses any more goes back to the system, and garbage collections are short.

Allocators keep what was freed, to have it at hand: after a flood of connections or a dropped table a process would look
as large as at its worst moment, for good. ``give_back_memory`` asks them to let go of it. That takes milliseconds and
makes the next allocations a little slower, so it happens after a moment, and not often.

Arrow's allocator keeps memory per thread, and only that thread can let go of it. The event loop of a server has most of
it: what arrives from clients. So loops are told (``loop_gives_back``), and everything else happens in a thread of its
own.

A full garbage collection holds everything up while it looks at every object there is: half a second with a hundred
thousand open logs. So what stays is kept out of it (``LongLived``), in processes that are nothing but a server.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

import pyarrow as pa

# What was just freed is often followed by more.
_QUIET_S: Final = 1.0
# Between two times at least.
_INTERVAL_S: Final = 5.0
_THREAD_NAME: Final = "fluss-memory"


def _malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's function; other C libraries have none, and give back by themselves."""
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_int
    return cast("Callable[[int], int]", function)


_trim_malloc = _malloc_trim()


def _release_arrow() -> None:
    pa.default_memory_pool().release_unused()


# The number of this setting of mallopt.
_M_ARENA_MAX: Final = -8
_ARENAS_MAX: Final = 4


def limit_arenas(count_max: int = _ARENAS_MAX) -> bool:
    """Let the threads of this process share a few heaps; returns whether that could be said.

    By default glibc makes eight for each core, and each of them keeps what was freed there: a process with forty
    threads, most of which wait, grows for an hour without using any more. For processes that are nothing but a server.
    """
    try:
        function = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    function.argtypes, function.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(function(_M_ARENA_MAX, count_max))


# The loops whose threads are asked, too.
_loops: set[asyncio.AbstractEventLoop] = set()


def trim() -> None:
    """Give back at once what no thread uses, and have loops do the same. Blocking, for milliseconds."""
    for loop in tuple(_loops):
        # A loop that has been closed is taken out by its owner in a moment.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_release_arrow)
    _release_arrow()
    if _trim_malloc is not None:
        _trim_malloc(0)


def loop_gives_back(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Let the thread of a loop take part from now on. Returns a function that ends it, which may be called again."""
    _loops.add(loop)
    return lambda: _loops.discard(loop)


class Trimmer:
    """Calls ``trim`` after it was asked to: once for many requests, never more often than it should. For any thread."""

    def __init__(
        self, action: Callable[[], None] = trim, *, quiet_s: float = _QUIET_S, interval_s: float = _INTERVAL_S
    ) -> None:
        self._action = action
        self._quiet_s = quiet_s
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._is_asked = False
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Have memory given back soon. Returns at once."""
        with self._lock:
            self._is_asked = True
            if self._thread is not None and self._thread.is_alive():
                return
            # A thread that has nothing more to do ends, so that an idle process has none.
            self._thread = threading.Thread(target=self._run, name=_THREAD_NAME, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(self._quiet_s)
            with self._lock:
                self._is_asked = False
            self._action()
            time.sleep(self._interval_s)
            with self._lock:
                if not self._is_asked:
                    self._thread = None
                    return


_trimmer = Trimmer()


def give_back_memory() -> None:
    """Have unused memory of this process given back to the system soon. Returns at once; may be called often."""
    _trimmer.ask()


_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")


def resident_bytes() -> int | None:
    """Return the memory that this process occupies; None where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


# What has to have been added since the last time to be worth the while.
_GROWTH_BYTES: Final = 64 * 1024 * 1024
# Trimming that gives back less than this of the growth was in vain: the memory is in use. Then it is tried again after
# a while, and each time that it is in vain after twice as long: what is in use now, need not be so later.
_USEFUL_RATIO: Final = 0.25
_PATIENCE_CHECKS_MAX: Final = 64
# A process that used more of a processor's time than this since the last look is busy: its memory is in use as well.
_BUSY_RATIO: Final = 0.5
_BUSY_CHECKS_MAX: Final = 12


class MemoryWatch:
    """Looks at the size of this process now and then, and has memory given back when it has grown and is at rest.

    ``check`` is called at an interval. It costs microseconds.
    """

    def __init__(
        self,
        give_back: Callable[[], None] = give_back_memory,
        *,
        resident: Callable[[], int | None] = resident_bytes,
        clock: Callable[[], float] = time.monotonic,
        processor_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._give_back = give_back
        self._resident = resident
        self._clock = clock
        self._processor_clock = processor_clock
        self._lowest_bytes = resident() or 0
        self._looked_at_s, self._processor_s = clock(), processor_clock()
        # The size when memory was last given back; None if the outcome has been looked at.
        self._asked_at_bytes: int | None = None
        self._patience_checks = 0
        self._checks_to_wait = 0
        self._busy_checks = 0

    def check(self) -> None:
        resident_now = self._resident()
        if resident_now is None:
            return
        is_busy = self._is_busy()
        if self._asked_at_bytes is not None:
            self._judge(resident_now)
        self._lowest_bytes = min(self._lowest_bytes, resident_now)
        if self._checks_to_wait > 0:
            self._checks_to_wait -= 1
        elif resident_now - self._lowest_bytes >= _GROWTH_BYTES:
            if is_busy and self._busy_checks < _BUSY_CHECKS_MAX:
                self._busy_checks += 1
                return
            self._busy_checks = 0
            self._asked_at_bytes = resident_now
            self._give_back()

    def _is_busy(self) -> bool:
        now_s, processor_s = self._clock(), self._processor_clock()
        passed_s, used_s = now_s - self._looked_at_s, processor_s - self._processor_s
        self._looked_at_s, self._processor_s = now_s, processor_s
        return used_s > passed_s * _BUSY_RATIO

    def _judge(self, resident_now: int) -> None:
        assert self._asked_at_bytes is not None
        growth_bytes = self._asked_at_bytes - self._lowest_bytes
        is_useful = self._asked_at_bytes - resident_now >= growth_bytes * _USEFUL_RATIO
        self._patience_checks = 0 if is_useful else min(max(1, self._patience_checks * 2), _PATIENCE_CHECKS_MAX)
        self._checks_to_wait = self._patience_checks
        self._asked_at_bytes = None


# So many new ones are worth telling the collector. What belongs to them is looked at once more then: some milliseconds.
_LONG_LIVED_STEP: Final = 2048


class LongLived:
    """Things of many objects that are there to stay, such as open logs: the garbage collector leaves them out.

    They are freed like everything else when nothing refers to them any more. What refers to itself, and existed when
    some of them were set aside, is only found after ``counted`` has said that most of them are gone. Belongs to the
    event loop of a process that is nothing but a server; elsewhere it does nothing, because the objects of others would
    be set aside with them.
    """

    def __init__(self, *, is_alone: Callable[[], bool] | None = None) -> None:
        self._is_alone = is_alone or (lambda: _is_alone)
        self._new_count = 0
        self._aside_count = 0

    @property
    def aside_count(self) -> int:
        """How many have been set aside."""
        return self._aside_count

    def added(self) -> None:
        """Note that there is one more."""
        self._new_count += 1
        if self._new_count < _LONG_LIVED_STEP or not self._is_alone():
            return
        self._aside_count += self._new_count
        self._new_count = 0
        # What is garbage by now would stay for good.
        gc.collect()
        gc.freeze()

    def counted(self, count: int) -> None:
        """Note how many there are. If they are far fewer than were set aside, the collector looks at all again."""
        if count >= self._aside_count / 2:
            return
        self._aside_count = 0
        self._new_count = count
        gc.unfreeze()
        if count < _LONG_LIVED_STEP:
            # Little is left, so that this is short.
            gc.collect()
            gc.freeze()
            give_back_memory()


_is_alone = False
# So many new objects are there before the collector looks for cycles among them. A request for a thousand buckets makes
# more, nearly all of them without cycles, and looking at Python's usual 700 is a tenth of what it costs.
_NEW_OBJECTS_MAX: Final = 10_000


def serve_alone() -> None:
    """Note that this process is nothing but a server, and set aside what it is made of before it serves anybody."""
    global _is_alone
    _is_alone = True
    gc.set_threshold(_NEW_OBJECTS_MAX, *gc.get_threshold()[1:])
    set_aside()


def set_aside() -> None:
    """Have later collections not look at what is there now, such as modules; only where the server is alone."""
    if _is_alone:
        gc.freeze()


# The file that a container's memory limit is in; in the older form of control groups, the second one.
_MEMORY_LIMIT_FILES: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_UNKNOWN_MEMORY_BYTES: Final = 4 * 1024**3


def machine_memory_bytes() -> int:
    """Return the memory of this machine, or of the container if that has less; 4 GiB if neither is told."""
    try:
        sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):
        sizes = []  # Not every system tells.
    for file in map(Path, _MEMORY_LIMIT_FILES):
        try:
            sizes.append(int(file.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue  # No container, or one without a limit: "max".
    return min(sizes, default=_UNKNOWN_MEMORY_BYTES)
