"""The limit of what all stores together hold in memory of what was written: not yet on the disk, or only just.

RocksDB can share a limit among databases, but then a write that finds it exceeded flushes the store that it writes to.
Idle stores would keep what they have, and the busy ones would be flushed again and again with next to nothing in them.
Here the store with the most gives its memory back, whichever is written to: from three quarters of the limit on while
writes go on; beyond the limit they wait for it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from fluss.errors import FlussError

# From so much of the limit on memory is given back.
_RELIEF_SHARE: Final = 0.75
# Every store has a write buffer, and most of them are idle. Less than this is not worth a flush.
SMALL_BYTES: Final = 1024 * 1024
_RELIEF_PASSES: Final = 2


class BufferOwner(Protocol):
    """A store, as far as its write buffers are concerned. Once it is closed its methods raise FlussError."""

    def buffered_bytes(self) -> int: ...

    def release(self) -> None: ...


class WriteBuffers:
    """Keeps the write buffers of many stores below a limit. May be used from any thread."""

    def __init__(self, bytes_max: int, used_by_others: Callable[[], int]) -> None:
        """``used_by_others`` tells at little cost what there is besides that which is noted here."""
        self._bytes_max = bytes_max
        self._used_by_others = used_by_others
        self._noted_bytes = 0
        # How many bytes an owner has to have to be asked for them.
        self._owners: weakref.WeakKeyDictionary[BufferOwner, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._relief_changed = threading.Condition()
        self._is_relieving = False

    def add(self, owner: BufferOwner, bytes_min: int = SMALL_BYTES) -> None:
        """Have an owner that may be asked for memory from so many bytes on. One that is known already is changed."""
        with self._lock:
            self._owners[owner] = bytes_min

    def remove(self, owner: BufferOwner) -> None:
        with self._lock:
            self._owners.pop(owner, None)

    def note(self, byte_count: int) -> None:
        """A store holds so much more, or less."""
        with self._lock:
            self._noted_bytes += byte_count

    @property
    def used_bytes(self) -> int:
        """What the write buffers of all stores take, idle ones included."""
        return self._noted_bytes + self._used_by_others()

    def has_room(self) -> bool:
        """Whether a write may happen without ``make_room``."""
        return self.used_bytes <= self._bytes_max * _RELIEF_SHARE

    def make_room(self) -> None:
        """Prepare for a write: have the fullest stores give memory back, and wait for it if there is no room at all."""
        if self.has_room():
            return
        with self._relief_changed:
            if not self._is_relieving:
                threading.Thread(target=self._relieve, name="fluss-kv-relief").start()
                self._is_relieving = True
            self._relief_changed.wait_for(lambda: not self._is_relieving or self.used_bytes <= self._bytes_max)

    def _relieve(self) -> None:
        try:
            # The second time those that got what others have given back: small stores give it to a shared database.
            failed: set[BufferOwner] = set()
            for _ in range(_RELIEF_PASSES):
                self._release_largest(failed)
        finally:
            with self._relief_changed:
                self._is_relieving = False
                self._relief_changed.notify_all()

    def _release_largest(self, failed: set[BufferOwner]) -> None:
        """Have owners give memory back until there is room, the fullest first; note those that cannot."""
        sizes = self._sizes()
        for owner in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if self.has_room():
                return
            if owner in failed:
                continue
            try:
                owner.release()
            except FlussError:
                # It may be closed by now, or it cannot write to the disk: its next writer is told.
                failed.add(owner)
            with self._relief_changed:
                self._relief_changed.notify_all()

    def _sizes(self) -> dict[BufferOwner, int]:
        """Look at those stores that have enough to count."""
        with self._lock:
            owners = list(self._owners.items())
        sizes = {}
        for owner, bytes_min in owners:
            with suppress(FlussError):
                byte_count = owner.buffered_bytes()
                if byte_count >= bytes_min:
                    sizes[owner] = byte_count
        return sizes
