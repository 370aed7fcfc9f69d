"""What the options of a server say to its services: the coordinator and the tablet server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fluss.memory import machine_memory_bytes
from fluss.schema.predicate import FilterLimits
from fluss.server.authorizer import super_user_names
from fluss.server.coordinator.settings import CoordinatorSettings
from fluss.server.kv.kv_runtime import KvSettings
from fluss.server.options.process_options import Durability
from fluss.server.options.server_options import ServerOptions
from fluss.server.tablet.manager import TabletSettings
from fluss.server.tablet.remote.kv_snapshots import KvSnapshotSettings
from fluss.server.tablet.remote.remote_logs import RemoteSettings
from fluss.server.tablet.scan_sessions import ScanSettings
from fluss.server.tablet.scrubber import ScrubSettings
from fluss.storage.kv.store_settings import KvStoreSettings
from fluss.storage.log.log_settings import LogSettings
from fluss.storage.remote.file_systems import FileSystemOptions, check_location

# A bucket that is not used costs next to nothing. One that is used takes some kilobytes: its log, the places of its
# readers, its keys. And all of them are used as soon as one reader subscribes to all of them.
_MEMORY_BYTES_PER_BUCKET: Final = 16 * 1024
_BUCKETS_MIN: Final = 16_384


def super_user_test(options: ServerOptions) -> Callable[[str], bool]:
    """Return the test whether a name is that of a super user."""
    return super_user_names(options.super_users, ignore_case=options.principal_ignore_case)


def coordinator_settings(options: ServerOptions) -> CoordinatorSettings:
    """Return what the coordinator is told."""
    return CoordinatorSettings(
        default_bucket_count=options.default_bucket_count,
        default_replication_factor=options.default_replication_factor,
        bucket_count_max=options.bucket_count_max,
        total_bucket_count_max=options.total_bucket_count_max or _bucket_count_for(machine_memory_bytes()),
        partition_count_max=options.partition_count_max,
        log_tables_allowed=options.log_tables_allowed,
        kv_tables_allowed=options.kv_tables_allowed,
        auto_partition_check_interval_ms=options.auto_partition_check_interval_ms,
        producer_offsets_ttl_ms=options.producer_offsets_ttl_ms,
        producer_offsets_ttl_ms_max=options.producer_offsets_ttl_ms_max,
        producers_per_user_max=options.producers_per_user_max,
        producer_offsets_count_max=options.producer_offsets_count_max,
        producer_offsets_cleanup_interval_ms=options.producer_offsets_cleanup_interval_ms,
        remote_locations=tuple(map(check_location, options.remote_locations)),
        is_super_user=super_user_test(options),
    )


def _bucket_count_for(memory_bytes: int) -> int:
    """Return how many buckets a server may have if no option says it."""
    return max(_BUCKETS_MIN, memory_bytes // _MEMORY_BYTES_PER_BUCKET)


def tablet_settings(options: ServerOptions) -> TabletSettings:
    """Return what the tablet server is told."""
    return TabletSettings(
        log=LogSettings(
            segment_bytes_max=options.log_segment_bytes_max,
            index_bytes_max=options.log_index_bytes_max,
            index_interval_bytes=options.log_index_interval_bytes,
            writer_expiration_ms=options.writer_expiration_ms,
        ),
        kv=_kv_settings(options),
        scans=_scan_settings(options),
        is_fsync_required=options.durability is Durability.FSYNC,
        open_logs_max=options.open_logs_max,
        checkpoint_interval_ms=options.log_checkpoint_interval_ms,
        retention_check_interval_ms=options.log_retention_check_interval_ms,
        retention_rolls_active_segment=options.log_retention_rolls_active_segment,
        writer_expiration_check_interval_ms=options.writer_expiration_check_interval_ms,
        disk_write_limit_ratio=options.disk_write_limit_ratio,
        disk_write_recover_ratio=options.disk_write_recover_ratio,
        disk_check_interval_ms=options.disk_check_interval_ms,
        scrub=ScrubSettings(bytes_per_second=options.scrub_bytes_per_second, interval_ms=options.scrub_interval_ms),
        filters=FilterLimits(
            conditions_max=options.filter_conditions_max,
            literals_max=options.filter_literals_max,
            bytes_max=options.filter_bytes_max,
        ),
        filter_batches_max=options.filter_batches_max,
        remote=RemoteSettings(
            locations=options.remote_locations,
            file_systems=FileSystemOptions(options.file_system_properties),
            task_interval_ms=options.remote_log_task_interval_ms,
            segments_per_task=options.remote_log_segments_per_task,
            index_cache_bytes=options.remote_log_index_cache_bytes,
            upload_bytes_per_second=options.remote_upload_bytes_per_second,
            backup_interval_ms=options.backup_interval_ms,
            backup_points_kept=options.backup_points_kept,
        ),
        snapshots=KvSnapshotSettings(
            interval_ms=options.kv_flush_interval_ms,
            retained_count=options.kv_snapshots_retained,
            transfer_threads=options.kv_snapshot_transfer_threads,
            lease_check_interval_ms=options.kv_snapshot_lease_check_interval_ms,
        ),
    )


def _kv_settings(options: ServerOptions) -> KvSettings:
    return KvSettings(
        store=KvStoreSettings(
            block_cache_bytes=options.kv_block_cache_bytes,
            write_buffers_bytes_max=options.kv_write_buffers_bytes_max,
            write_buffer_bytes=options.kv_write_buffer_bytes,
            shared_store_bytes_max=options.kv_shared_store_bytes_max,
            # What clients fetch from remote storage they must be able to read.
            is_portable=bool(options.remote_locations),
        ),
        write_memory_bytes_max=options.kv_write_memory_bytes_max,
        flush_interval_ms=options.kv_flush_interval_ms,
        open_stores_max=options.kv_open_stores_max,
        recovery_bytes=options.kv_recovery_bytes,
    )


def _scan_settings(options: ServerOptions) -> ScanSettings:
    return ScanSettings(
        ttl_ms=options.kv_scanner_ttl_ms,
        expiration_interval_ms=options.kv_scanner_expiration_interval_ms,
        sessions_per_bucket_max=options.kv_scanners_per_bucket_max,
        sessions_max=options.kv_scanners_max,
        answer_bytes_max=options.kv_scanner_batch_bytes_max,
    )
