"""The request that is arriving on a connection, and whether it takes too long."""

from __future__ import annotations

from typing import Final

# A request may take this much longer to arrive for every byte of it: lines are slow, and requests are large.
_BYTES_PER_S_MIN: Final = 64 * 1024


class Arrival:
    """Since when a request has been arriving, and how much of it has come.

    While nothing is read from the connection, its time stands still. Times are seconds, given by the caller.
    """

    __slots__ = ("_began_at", "_paused_at", "_timeout_s", "byte_count")

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # None if there is none.
        self._began_at: float | None = None
        self.byte_count = 0
        # None while the connection is read.
        self._paused_at: float | None = None

    @property
    def is_under_way(self) -> bool:
        return self._began_at is not None

    def received(self, byte_count: int, now: float, *, is_new: bool) -> None:
        """Count bytes of a request that is not whole yet."""
        if is_new or self._began_at is None:
            self._began_at, self.byte_count = now, 0
        else:
            self.byte_count += byte_count

    def ended(self) -> None:
        """Everything that has arrived is whole."""
        self._began_at = None

    def paused(self, now: float) -> None:
        """Nothing is read from now on."""
        self._paused_at = now

    def resumed(self, now: float) -> None:
        if self._began_at is not None and self._paused_at is not None:
            self._began_at += now - self._paused_at
        self._paused_at = None

    def is_late(self, now: float) -> bool:
        if self._began_at is None or self._paused_at is not None:
            return False
        return now - self._began_at > self._timeout_s + self.byte_count / _BYTES_PER_S_MIN
