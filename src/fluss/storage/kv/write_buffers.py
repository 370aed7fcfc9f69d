"""The limit of what all stores together have written and not yet brought to the disk.

RocksDB can share a limit among databases, but then a write that finds it exceeded flushes the store that it writes to.
Idle stores would keep what they have, and the busy ones would be flushed again and again with next to nothing in them.
Here the store with the most is flushed, whoever writes.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from fluss.errors import ErrorCode, FlussError

# Every store has a write buffer, and most of them are idle. Less than this is not worth a flush.
SMALL_BYTES: Final = 1024 * 1024
_PAUSE_MS: Final = 5


@dataclass(frozen=True, slots=True)
class BufferSizes:
    """The write buffers of one store."""

    filling_bytes: int
    flushing_bytes: int


class BufferOwner(Protocol):
    """A store, as far as its write buffers are concerned. Once it is closed its methods raise FlussError."""

    def buffer_sizes(self) -> BufferSizes: ...

    def start_flush(self) -> None: ...


class WriteBuffers:
    """Keeps the write buffers of many stores below a limit. May be used from any thread."""

    def __init__(
        self,
        bytes_max: int,
        stall_ms_max: int,
        used_bytes: Callable[[], int],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``used_bytes`` tells at little cost how much there may be: the buffers of all stores, idle ones included."""
        self._bytes_max = bytes_max
        self._stall_ms_max = stall_ms_max
        self._used_bytes = used_bytes
        self._sleep = sleep
        self._owners: weakref.WeakSet[BufferOwner] = weakref.WeakSet()
        self._lock = threading.Lock()

    def add(self, owner: BufferOwner) -> None:
        with self._lock:
            self._owners.add(owner)

    def remove(self, owner: BufferOwner) -> None:
        with self._lock:
            self._owners.discard(owner)

    @property
    def has_room(self) -> bool:
        """Whether a small write may happen without ``make_room``: there is nothing to flush, nothing to wait for."""
        return self._used_bytes() <= self._bytes_max // 2

    def make_room(self) -> None:
        """Prepare for a write: begin to flush the fullest store, or wait while all that can be done is under way."""
        waited_ms = 0
        while not self.has_room:
            sizes = self._sizes()
            filling_bytes = sum(size.filling_bytes for size in sizes.values())
            flushing_bytes = sum(size.flushing_bytes for size in sizes.values())
            if filling_bytes > self._bytes_max // 2:
                fullest = max(sizes, key=lambda owner: sizes[owner].filling_bytes)
                # It may be closed by now, or it cannot write to the disk: whoever uses it will be told.
                with suppress(FlussError):
                    fullest.start_flush()
            if not flushing_bytes or filling_bytes + flushing_bytes <= self._bytes_max:
                return
            if waited_ms >= self._stall_ms_max:
                raise FlussError(
                    f"The disk has been behind for {waited_ms} ms: {filling_bytes + flushing_bytes} bytes of key-value "
                    "stores are waiting to be written",
                    ErrorCode.KV_STORAGE_EXCEPTION,
                )
            self._sleep(_PAUSE_MS / 1000)
            waited_ms += _PAUSE_MS

    def _sizes(self) -> dict[BufferOwner, BufferSizes]:
        """Look at those stores that have enough to count."""
        with self._lock:
            owners = list(self._owners)
        sizes = {}
        for owner in owners:
            with suppress(FlussError):
                size = owner.buffer_sizes()
                if size.filling_bytes + size.flushing_bytes >= SMALL_BYTES:
                    sizes[owner] = size
        return sizes
