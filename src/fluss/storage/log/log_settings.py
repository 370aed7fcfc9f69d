"""Sizes and times that hold for all logs of a server."""

from __future__ import annotations

from dataclasses import dataclass

from fluss.integers import INT32_MAX
from fluss.record.log_batch import BATCH_BYTES_MAX


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Sizes and times that hold for all logs of a server."""

    # A segment ends before it would become larger; a single larger append gets a segment of its own. The indexes have
    # 32 bits for a position.
    segment_bytes_max: int = 1024 * 1024 * 1024
    index_bytes_max: int = 10 * 1024 * 1024
    # Bytes between two entries of an index.
    index_interval_bytes: int = 4 * 1024
    # A writer that has sent nothing for so long is forgotten.
    writer_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    batch_bytes_max: int = BATCH_BYTES_MAX

    def __post_init__(self) -> None:
        assert 0 < self.segment_bytes_max <= INT32_MAX, f"segments of {self.segment_bytes_max} bytes cannot be indexed"
