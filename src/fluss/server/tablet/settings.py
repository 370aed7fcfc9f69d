"""What a tablet server can be told."""

from __future__ import annotations

from dataclasses import dataclass, field

from fluss.server.kv.settings import KvSettings
from fluss.storage.log.tablet import LogSettings


@dataclass(frozen=True, slots=True)
class TabletSettings:
    """Limits, and how often things are looked after."""

    log: LogSettings = field(default_factory=LogSettings)
    kv: KvSettings = field(default_factory=KvSettings)
    # Whether an acknowledged record is on the disk, or may still be in the memory of the operating system.
    is_fsync_required: bool = True
    checkpoint_interval_ms: int = 60_000
    retention_check_interval_ms: int = 300_000
    retention_rolls_active_segment: bool = False
    writer_expiration_check_interval_ms: int = 600_000
    disk_write_limit_ratio: float = 0.85
    disk_write_recover_ratio: float = 0.80
    disk_check_interval_ms: int = 30_000
    # What all answers with records or rows may hold in memory; then requests take turns, and return less at a time.
    fetch_memory_bytes_max: int = 256 * 1024 * 1024
    # What one answer may hold, whatever the client asks for. A single larger batch is returned all the same.
    fetch_response_bytes_max: int = 64 * 1024 * 1024
    # What one limit scan may return; then it is refused.
    limit_scan_bytes_max: int = 128 * 1024 * 1024
    # Buckets for which all fetches together wait, counted once per fetch; then a fetch is answered without waiting.
    parked_buckets_max: int = 1_000_000
    # Threads that read what is not in memory.
    reader_threads: int = 4
    # How long an answer is held back that says nothing but "try again": some clients do so at once, without end.
    retry_answer_delay_ms: int = 50
