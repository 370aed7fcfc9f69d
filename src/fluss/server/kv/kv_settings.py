"""What one may choose about the key-value side of a tablet server."""

from __future__ import annotations

from dataclasses import dataclass, field

from fluss.storage.kv.store_settings import KvStoreSettings

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class KvSettings:
    """Limits, and how often stores are looked after."""

    store: KvStoreSettings = field(default_factory=KvStoreSettings)

    # Threads that merge and write, for all buckets together. They share one interpreter lock: a second one works while
    # the first is in RocksDB or in Arrow, a third would find nothing to do.
    threads: int = 2
    # Threads that open, rebuild, flush, copy and close stores.
    upkeep_threads: int = 4
    # What batches that wait, and values that are in the changelog but not in the store yet, may hold in memory, all
    # buckets together. Beyond it writes are refused with code 72.
    write_memory_bytes_max: int = 256 * _MIB

    # Changelog bytes after which a store is flushed: what a restart has to replay of one bucket at most, about.
    flush_bytes: int = 64 * _MIB
    # How often stores with anything unflushed are flushed; 0 leaves it to the bytes and to a clean stop.
    flush_interval_ms: int = 600_000
    # Stores that are open at the same time; beyond it those that were used least recently are closed if they are idle.
    # An open store takes half a megabyte and six descriptors, so there are fewer where descriptors are few.
    open_stores_max: int = 256
    # How long a store that is to be opened waits until another one is closed, if there are so many.
    open_slot_wait_ms: int = 1_000

    # What is read of a changelog at a time when a store is brought up to date.
    recovery_bytes: int = 16 * _MIB
    # How long a request waits for a store that is being opened or rebuilt before it is told to try again.
    open_wait_ms: int = 5_000
    # How long a store that could not be opened is left alone before a request tries again.
    open_retry_ms: int = 10_000

    # What one answer to a lookup or a prefix lookup may hold; then it is refused.
    lookup_bytes_max: int = 64 * _MIB

    # Scan sessions: how long one may be silent, how often that is looked at, how many there may be, and what one
    # answer may hold.
    scanner_ttl_ms: int = 600_000
    scanner_expiration_interval_ms: int = 30_000
    scanners_per_bucket_max: int = 8
    scanners_max: int = 200
    scanner_batch_bytes_max: int = 10 * _MIB
