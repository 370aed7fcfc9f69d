"""What writes to primary-key tables hold in memory, all buckets together."""

from __future__ import annotations

from fluss.errors import ErrorCode, FlussError

# Below this share of the limit writers are not asked to slow down.
_PRESSURE_FROM = 0.75


class WriteMemory:
    """Counts bytes up to a limit. Belongs to the event loop."""

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0, "no write would ever be taken"
        self._bytes_max = bytes_max
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        return self._bytes

    @property
    def pressure(self) -> float:
        """How urgently writers should slow down, from 0 to 1."""
        share = self._bytes / self._bytes_max
        return min(max(share - _PRESSURE_FROM, 0.0) / (1.0 - _PRESSURE_FROM), 1.0)

    def take(self, byte_count: int) -> None:
        """Count the bytes of a new write; refuse it (code 72) if there is no room. A large one fits if all is free."""
        if self._bytes and self._bytes + byte_count > self._bytes_max:
            raise FlussError(
                f"Writes to primary-key tables hold {self._bytes} bytes of memory and may hold {self._bytes_max}; "
                "write more slowly, or try again in a moment",
                ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION,
            )
        self._bytes += byte_count

    def change(self, byte_count: int) -> None:
        """Count more or fewer bytes of a write that was taken, whatever the limit."""
        self._bytes += byte_count
        assert self._bytes >= 0, "more was given back than taken"
