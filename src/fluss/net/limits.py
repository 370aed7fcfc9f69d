"""What keeps one client from using up the memory of its listener: budgets of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

# What a connection does when there is room again. It also identifies the connection.
Resume: TypeAlias = Callable[[], None]


class ByteBudget:
    """Counts bytes over all connections. Belongs to one event loop.

    Nothing is refused: bytes that have arrived are counted, and a connection that holds some of an exhausted budget
    reads no more. Connections that hold nothing may still read, so a few greedy clients do not stop all others. If all
    connections waited with half of a request, none could ever finish: so one of them is the first, and may go on.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used_bytes = 0
        self._waiting: dict[Resume, None] = {}
        self._first: Resume | None = None

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def is_exhausted(self) -> bool:
        return self._used_bytes >= self._bytes_max

    def take(self, byte_count: int) -> None:
        self._used_bytes += byte_count

    def give_back(self, byte_count: int) -> None:
        self.replace(byte_count, 0)

    def replace(self, before_bytes: int, after_bytes: int) -> None:
        """Replace what was counted for one connection by what it holds now."""
        self._used_bytes += after_bytes - before_bytes
        if after_bytes < before_bytes and not self.is_exhausted:
            self._wake()

    def wait(self, resume: Resume) -> None:
        """Have ``resume`` called once: when there is room again, or when the first connection has left."""
        self._waiting[resume] = None

    def may_be_first(self, resume: Resume) -> bool:
        """Say whether this connection is the first; if none is, it is from now on, until it leaves."""
        if self._first is None:
            self._first = resume
        return self._first == resume

    def leave(self, resume: Resume) -> None:
        """Wait no longer, and let another connection be the first. May be called when neither is the case."""
        self._waiting.pop(resume, None)
        if self._first == resume:
            self._first = None
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for resume in waiting:
            resume()
