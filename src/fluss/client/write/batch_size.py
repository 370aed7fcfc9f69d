"""How large batches become: a target that follows the traffic, and how much of it compression leaves over."""

from __future__ import annotations

from typing import Final

# A batch counts as full a little below its target, so that the estimate may be a little too low.
FULL_RATIO: Final = 0.95

_GROWS_ABOVE: Final = 0.8
_GROWTH: Final = 1.1
_SHRINKS_BELOW: Final = 0.5
_SHRINKAGE: Final = 0.95

_RATIO_STEP_UP: Final = 0.05
_RATIO_STEP_DOWN: Final = 0.005
# However well a table compresses, a batch never holds more than this many times its target: rows wait uncompressed.
_EXPANSION_MAX: Final = 4.0


class BatchSize:
    """The size in bytes at which batches of one table, or of one partition of it, are sent.

    Batches that leave half empty make it smaller, full ones larger again, between the two limits.
    """

    def __init__(self, bytes_min: int, bytes_max: int, *, is_dynamic: bool) -> None:
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._is_dynamic = is_dynamic
        self.target_bytes = bytes_max

    def observe(self, fill_ratio: float) -> None:
        """A batch was closed that had reached so much of its target."""
        if not self._is_dynamic:
            return
        if fill_ratio > _GROWS_ABOVE:
            self.target_bytes = min(int(self.target_bytes * _GROWTH), self._bytes_max)
        elif fill_ratio < _SHRINKS_BELOW:
            self.target_bytes = max(int(self.target_bytes * _SHRINKAGE), self._bytes_min)


class CompressionRatio:
    """How many bytes are left of one byte in the batches of a table; careful to believe in good news."""

    def __init__(self) -> None:
        self.ratio = 1.0

    def observe(self, bytes_before: int, bytes_after: int) -> None:
        """A batch was compressed."""
        observed = bytes_after / max(bytes_before, 1)
        if observed > self.ratio:
            self.ratio = max(observed, self.ratio + _RATIO_STEP_UP)
        else:
            self.ratio = max(observed, self.ratio - _RATIO_STEP_DOWN)

    def uncompressed(self, byte_count: int) -> int:
        """Estimate how many bytes become so many."""
        return int(byte_count * min(1 / max(self.ratio, 1e-6), _EXPANSION_MAX))
