"""The memory for unsent data, shared by everything that writes on one connection."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

from fluss.errors import FlussError

# How often a waiting thread has memory made free.
_WAIT_STEP_S: Final = 0.1


class _Waiter:
    """A thread that waits for memory; ``turn`` is locked until it has got some, or the pool is closed."""

    __slots__ = ("bytes_wanted", "free_bytes_min", "granted_bytes", "turn")

    def __init__(self, bytes_wanted: int, free_bytes_min: int) -> None:
        self.bytes_wanted = bytes_wanted
        self.free_bytes_min = free_bytes_min
        self.granted_bytes: int | None = None
        self.turn = threading.Lock()
        self.turn.acquire()


class MemoryPool:
    """Counts bytes up to a limit; threads that need more wait, first come, first served. Any thread may use it.

    It hands out no buffers: owners allocate, and the pool bounds how much they do.
    """

    def __init__(
        self,
        bytes_max: int,
        wait_timeout_s: float,
        on_wait: Callable[[], None],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``on_wait`` is called by threads that wait, without any lock: it must make memory become free."""
        self._bytes_max = bytes_max
        self._wait_timeout_s = wait_timeout_s
        self._on_wait = on_wait
        self._clock = clock
        self._lock = threading.Lock()
        self._free_bytes = bytes_max
        self._waiters: deque[_Waiter] = deque()
        self._is_closed = False

    @property
    def bytes_max(self) -> int:
        return self._bytes_max

    @property
    def used_bytes(self) -> int:
        return self._bytes_max - self._free_bytes

    @property
    def waiting_count(self) -> int:
        """How many threads wait for memory."""
        return len(self._waiters)

    def check_possible(self, bytes_needed: int) -> None:
        """Raise FlussError if there can never be that much."""
        if bytes_needed > self._bytes_max:
            raise FlussError(
                f"{bytes_needed} bytes in one piece exceeds total buffer memory limit of {self._bytes_max} bytes; "
                "raise 'writer.buffer.memory-size' or write smaller rows"
            )

    def try_reserve(self, bytes_needed: int, bytes_wanted: int) -> int:
        """Reserve what is wanted, or less, but at least what is needed; 0 if that would take waiting."""
        with self._lock:
            self._check_open()
            if self._waiters or self._free_bytes < bytes_needed:
                return 0
            return self._take(bytes_wanted)

    def reserve(self, bytes_needed: int, bytes_wanted: int = 0, *, free_bytes_min: int = 0) -> int:
        """Reserve what is wanted, or less, but at least what is needed; return how much it is.

        Waits until that much, and at least ``free_bytes_min``, is free, so that a caller that is going to need more
        does not begin with too little. Raises FlussError when there can never be that much, when it did not become free
        in time ("buffer exhausted"), and when the writer was closed. The caller must hold no lock that others need
        in order to give memory back.
        """
        self.check_possible(bytes_needed)
        bytes_wanted = max(bytes_wanted, bytes_needed)
        free_bytes_min = max(min(free_bytes_min, self._bytes_max), bytes_needed)
        with self._lock:
            self._check_open()
            if not self._waiters and self._free_bytes >= free_bytes_min:
                return self._take(bytes_wanted)
            waiter = _Waiter(bytes_wanted, free_bytes_min)
            self._waiters.append(waiter)
        return self._wait(waiter)

    def release(self, byte_count: int) -> None:
        """Give memory back."""
        if not byte_count:
            return
        with self._lock:
            self._free_bytes += byte_count
            assert self._free_bytes <= self._bytes_max, "more memory was given back than reserved"
            self._grant()

    def close(self) -> None:
        """Refuse from now on, and end all waits."""
        with self._lock:
            self._is_closed = True
            while self._waiters:
                self._waiters.popleft().turn.release()

    def _wait(self, waiter: _Waiter) -> int:
        deadline_s = self._clock() + self._wait_timeout_s
        try:
            while waiter.granted_bytes is None and not self._is_closed and (left_s := deadline_s - self._clock()) > 0:
                # Again and again, because others may have filled batches in the meantime.
                self._on_wait()
                waiter.turn.acquire(timeout=min(left_s, _WAIT_STEP_S))
        except BaseException:
            # For instance Ctrl-C.
            with self._lock:
                self._give_up(waiter)
            raise
        with self._lock:
            if waiter.granted_bytes is not None:
                return waiter.granted_bytes
            self._check_open()
            self._give_up(waiter)
        raise FlussError(
            f"buffer exhausted: no {waiter.free_bytes_min} bytes became free within {self._wait_timeout_s:g} s; the "
            "server may be slow or away. Raise 'writer.buffer.wait-timeout-ms' or 'writer.buffer.memory-size'"
        )

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter.granted_bytes is not None:
            self._free_bytes += waiter.granted_bytes
        elif waiter in self._waiters:
            self._waiters.remove(waiter)
        # Those behind may need less.
        self._grant()

    def _grant(self) -> None:
        while self._waiters and self._waiters[0].free_bytes_min <= self._free_bytes:
            waiter = self._waiters.popleft()
            waiter.granted_bytes = self._take(waiter.bytes_wanted)
            waiter.turn.release()

    def _take(self, bytes_wanted: int) -> int:
        taken_bytes = min(bytes_wanted, self._free_bytes)
        self._free_bytes -= taken_bytes
        return taken_bytes

    def _check_open(self) -> None:
        if self._is_closed:
            raise FlussError("writer closed: rows can no longer be written on this connection")
