"""What one may choose about key-value stores."""

from __future__ import annotations

from dataclasses import dataclass

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, slots=True)
class KvStoreSettings:
    """Sizes and times that hold for all stores of a server together, and for each of them."""

    # All stores together: blocks of the tables as they were before compression, with their indexes and filters.
    block_cache_bytes: int = 64 * _MIB
    # All stores together: what was written and is not on the disk yet, or only just. From three quarters of it on the
    # store with the most gives its memory back; beyond it writes wait. Stores with less than one MiB are left alone.
    write_buffers_bytes_max: int = 256 * _MIB
    # One store: when so much was written it is brought to the disk. It bounds what a restart has to apply again, and as
    # much as that may be on its way, or be kept.
    write_buffer_bytes: int = 32 * _MIB
    # All stores together: filters that tell new keys from those that are there.
    key_filters_bytes_max: int = 64 * _MIB
    # One store: tables that are kept open. Others are opened when they are read.
    open_files_max: int = 64
    # The whole process: flushes and compactions at the same time.
    background_jobs_max: int = 2
    # How long a write waits for flushes and compactions that are behind before it fails.
    stall_ms_max: int = 60_000

    def __post_init__(self) -> None:
        assert self.write_buffer_bytes >= 64 * _KIB, f"write buffers of {self.write_buffer_bytes} bytes are too small"
        assert self.background_jobs_max >= 2, "a flush must not have to wait for a compaction"
