"""What one may choose about key-value stores."""

from __future__ import annotations

from dataclasses import dataclass

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True, slots=True)
class KvStoreSettings:
    """Sizes and times that hold for all stores of a server together, and for each of them."""

    # All stores together: blocks of SST files as they were before compression, with their indexes and filters.
    block_cache_bytes: int = 64 * _MIB
    # All stores together: what was written and is not on the disk yet, or only just. From three quarters of it on the
    # store with the most gives its memory back; beyond it writes wait. Stores with less than one MiB are left alone.
    write_buffers_bytes_max: int = 256 * _MIB
    # One store: when so much was written it is brought to the disk. It bounds what a restart has to apply again, and as
    # much as that may be on its way, or be kept.
    write_buffer_bytes: int = 32 * _MIB
    # One store: with more than this it has a database of its own, with less it shares one with others. 0: none shares.
    shared_store_bytes_max: int = 64 * _MIB
    # All stores together: filters that tell new keys from those that are there.
    key_filters_bytes_max: int = 64 * _MIB
    # One database: files that are kept open, 20 at least. Other SST files are opened when they are read.
    open_files_max: int = 64
    # The same for a database that many stores share.
    shared_open_files_max: int = 256
    # The whole process: flushes and compactions at the same time.
    background_jobs_max: int = 2
    # How long a write waits for flushes and compactions that are behind before it fails.
    stall_ms_max: int = 60_000

    # So few rows are written to RocksDB directly, in microseconds, if the memtable is empty.
    direct_rows_max: int = 128
    # A memtable of so many rows is flushed as an SST file, which RocksDB ingests; a smaller one goes through RocksDB's
    # own write buffer.
    sst_rows_min: int = 8192
    # While a memtable is flushed, every write flushes so many of its rows, and so many for each row of its own: the
    # flush is over long before the next memtable is full.
    flush_rows_min: int = 1000
    flush_rows_per_row: int = 2
    # With so many new keys a store is being loaded, and a filter of its keys is worth its memory.
    filter_keys_min: int = 8192
    # While such a filter is built, every write adds so many keys of the store for each row of its own, a step at a
    # time. RocksDB hands them over with the GIL held: a step takes less than a millisecond.
    filter_keys_per_row: int = 16
    filter_step_keys: int = 1000
    # Whether SST files are written as RocksDB 6 reads them, too, so that they can be handed out as they are.
    is_portable: bool = False
    # Rows of one answer to a scan, whatever they weigh: a row takes more memory than it has bytes.
    scan_rows_max: int = 1_048_576

    def __post_init__(self) -> None:
        assert self.write_buffer_bytes >= 64 * _KIB, f"write buffers of {self.write_buffer_bytes} bytes are too small"
        assert self.background_jobs_max >= 2, "a flush must not have to wait for a compaction"
