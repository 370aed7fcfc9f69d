"""Options about what is kept: tables, their logs, rows by key, the disk, and copies in remote storage."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from fluss.integers import INT32_MAX
from fluss.options import BOOLEAN, DURATION_MS, INT32, MEMORY_BYTES, RATIO, TEXT, ValueType, choice_of
from fluss.server.options.server_option import OptionFamily, ServerOption


class StorageOptions(OptionFamily):
    """Tables, logs, filters, rows by key and the disk."""

    __slots__ = ()

    # Tables.
    default_bucket_count = ServerOption(
        "default.bucket.number", INT32, "1", "The buckets of a table that does not say.", lowest=1
    )
    default_replication_factor = ServerOption(
        "default.replication.factor", INT32, "1", "The replicas of a bucket. This server keeps one.", lowest=1
    )
    bucket_count_max = ServerOption(
        "max.bucket.num", INT32, "4096", "The most buckets of a table, or of each of its partitions.", lowest=1
    )
    total_bucket_count_max = ServerOption(
        "server.max-buckets",
        INT32,
        "0",
        "The most buckets of all tables and partitions together. Whatever would make more is refused; what is there "
        "already stays. 0 means one for every 16 kb of the memory of the machine or container, but at least 16384.",
        lowest=0,
    )
    partition_count_max = ServerOption("max.partition.num", INT32, "1000", "The most partitions of a table.", lowest=1)
    auto_partition_check_interval_ms = ServerOption(
        "auto-partition.check.interval",
        DURATION_MS,
        "10 min",
        "How often partitions by time are created and dropped.",
        lowest=1,
    )
    log_tables_allowed = ServerOption(
        "allow.create.log.tables", BOOLEAN, "true", "Whether tables without a primary key may be created."
    )
    kv_tables_allowed = ServerOption(
        "allow.create.kv.tables", BOOLEAN, "true", "Whether tables with a primary key may be created."
    )

    producer_offsets_ttl_ms = ServerOption(
        "coordinator.producer-offsets.ttl",
        DURATION_MS,
        "24 h",
        "How long offsets that a producer has registered are kept, unless it says otherwise.",
        lowest=1,
    )
    producer_offsets_ttl_ms_max = ServerOption(
        "coordinator.producer-offsets.max-ttl",
        DURATION_MS,
        "7 d",
        "The longest time that a producer can ask for; longer ones count as this, or as the time above if that is "
        "longer.",
        lowest=1,
    )
    producers_per_user_max = ServerOption(
        "coordinator.producer-offsets.max-per-user",
        INT32,
        "1000",
        "The most producers of one user whose offsets are kept; further ones are refused with code 63.",
        lowest=1,
    )
    producer_offsets_count_max = ServerOption(
        "coordinator.producer-offsets.max-offsets",
        INT32,
        "262144",
        "The most offsets of buckets that are kept for all producers together, where a producer counts as one more; "
        "further ones are refused with code 63.",
        lowest=1,
    )
    producer_offsets_cleanup_interval_ms = ServerOption(
        "coordinator.producer-offsets.cleanup-interval",
        DURATION_MS,
        "1 h",
        "How often outlived offsets of producers are looked for.",
        lowest=1,
    )

    # Logs.
    log_segment_bytes_max = ServerOption(
        "log.segment.file-size",
        MEMORY_BYTES,
        "1 gb",
        "The size at which a new segment file is begun. A larger batch gets a file of its own.",
        lowest=1,
        highest=INT32_MAX,
    )
    log_index_bytes_max = ServerOption(
        "log.index.file-size",
        MEMORY_BYTES,
        "10 mb",
        "The size of an index at which a new segment file is begun.",
        lowest=64,
        highest=INT32_MAX,
    )
    log_index_interval_bytes = ServerOption(
        "log.index.interval-size",
        MEMORY_BYTES,
        "4 kb",
        "How many bytes of a segment one index entry stands for.",
        lowest=0,
        highest=INT32_MAX,
    )
    open_logs_max = ServerOption(
        "server.max-open-logs",
        INT32,
        "16384",
        "The most logs that are held open, at some kilobytes of memory each. Beyond it logs that were not used for a "
        "while are closed, and opened again when they are needed.",
        lowest=0,
    )
    log_checkpoint_interval_ms = ServerOption(
        "log.flush.offset.checkpoint-interval",
        DURATION_MS,
        "1 min",
        "How often it is noted from where on logs are read again after a crash.",
        lowest=1,
    )
    log_retention_check_interval_ms = ServerOption(
        "log.retention.check-interval",
        DURATION_MS,
        "5 min",
        "How often segments are looked for that have outlived table.log.ttl.",
        lowest=1,
    )
    log_retention_rolls_active_segment = ServerOption(
        "log.retention.roll-active-segment.enabled",
        BOOLEAN,
        "false",
        "Whether a segment that is still written to can expire, too: it is closed when all of it has expired.",
    )
    writer_expiration_ms = ServerOption(
        "server.writer-id.expiration-time",
        DURATION_MS,
        "7 d",
        "How long a writer may be silent before its numbering is forgotten.",
        lowest=1,
    )
    writer_expiration_check_interval_ms = ServerOption(
        "server.writer-id.expiration-check-interval",
        DURATION_MS,
        "10 min",
        "How often silent writers are looked for.",
        lowest=1,
    )
    # Filters of fetches.
    filter_conditions_max = ServerOption(
        "log.filter.max-conditions",
        INT32,
        "2048",
        "The most conditions in the filters of one fetch: comparisons, and the ANDs and ORs that join them. A fetch "
        "with more is refused.",
        lowest=1,
    )
    filter_literals_max = ServerOption(
        "log.filter.max-literals",
        INT32,
        "16384",
        "The most values that the filters of one fetch compare columns with, those of lists included.",
        lowest=1,
    )
    filter_bytes_max = ServerOption(
        "log.filter.max-size",
        MEMORY_BYTES,
        "1 mb",
        "The largest filters of one fetch, as they are sent, all of them together.",
        lowest=64,
        highest=INT32_MAX,
    )
    filter_batches_max = ServerOption(
        "log.filter.max-batches",
        INT32,
        "16384",
        "The most batches whose statistics one fetch looks at to skip those without a wanted row; then it is answered, "
        "and the client goes on from there.",
        lowest=1,
    )
    # Rows by key.
    kv_flush_interval_ms = ServerOption(
        "kv.snapshot.interval",
        DURATION_MS,
        "10 min",
        "How often rows by key that are only in memory are written to the disk, so that a restart after a crash need "
        "not take them from the changelog; 0 s leaves it to the amount that was written, and to a stop in order. With "
        "remote storage, also how often snapshots of rows by key are made there; 0 s: none are.",
        lowest=0,
    )
    kv_snapshots_retained = ServerOption(
        "kv.snapshot.num-retained",
        INT32,
        "2",
        "How many snapshots of the rows of a bucket are kept in remote storage, besides those that are leased.",
        lowest=1,
    )
    kv_snapshot_transfer_threads = ServerOption(
        "kv.snapshot.transfer-thread-num",
        INT32,
        "4",
        "How many files of snapshots are sent to remote storage, or fetched from it, at the same time.",
        lowest=1,
        highest=256,
    )
    kv_snapshot_lease_check_interval_ms = ServerOption(
        "kv.snapshot.lease.expiration-check-interval",
        DURATION_MS,
        "10 min",
        "How often it is looked for leases of snapshots whose time is over.",
        lowest=1000,
    )
    kv_write_memory_bytes_max = ServerOption(
        "kv.writes.memory-size",
        MEMORY_BYTES,
        "256 mb",
        "What writes to primary-key tables may hold in memory on their way; beyond it clients are told to write more "
        "slowly.",
        lowest=1024 * 1024,
    )
    kv_block_cache_bytes = ServerOption(
        "kv.rocksdb.block.cache-size",
        MEMORY_BYTES,
        "64 mb",
        "The memory for rows by key that were read from the disk, all buckets together.",
        lowest=1024 * 1024,
    )
    kv_write_buffer_bytes = ServerOption(
        "kv.rocksdb.writebuffer.size",
        MEMORY_BYTES,
        "64 mb",
        "The memory of one bucket for rows by key until they go to the disk; as much may be on its way there.",
        lowest=64 * 1024,
    )
    kv_write_buffers_bytes_max = ServerOption(
        "kv.rocksdb.writebuffer.total-size",
        MEMORY_BYTES,
        "256 mb",
        "The same for all buckets together; from three quarters of it on the fullest give memory back.",
        lowest=64 * 1024,
    )
    kv_shared_store_bytes_max = ServerOption(
        "kv.shared-store.max-size",
        MEMORY_BYTES,
        "64 mb",
        "Buckets with fewer bytes of rows by key share a few databases; one that has more gets a database of its own. "
        "0 b gives one to every bucket.",
        lowest=0,
    )
    kv_open_stores_max = ServerOption(
        "kv.open-stores.max-number",
        INT32,
        "256",
        "The most buckets with a database of their own that are open at the same time; the ones that were used least "
        "recently are closed. Each takes half a megabyte and up to 64 file descriptors; all of them together take no "
        "more than a quarter of those that the process may have, so where descriptors are few, so are open buckets.",
        lowest=1,
    )
    kv_recovery_bytes = ServerOption(
        "kv.recover.log-record-batch.max-size",
        MEMORY_BYTES,
        "16 mb",
        "What is read of a changelog at a time when rows by key are brought up to date.",
        lowest=1,
        highest=INT32_MAX,
    )
    kv_scanner_ttl_ms = ServerOption(
        "kv.scanner.ttl",
        DURATION_MS,
        "10 min",
        "How long a scan of rows by key may pause before it is ended.",
        lowest=1,
    )
    kv_scanner_expiration_interval_ms = ServerOption(
        "kv.scanner.expiration-interval", DURATION_MS, "30 s", "How often such scans are looked for.", lowest=1
    )
    kv_scanners_per_bucket_max = ServerOption(
        "kv.scanner.max-per-bucket", INT32, "8", "The most scans of rows by key of one bucket.", lowest=1
    )
    kv_scanners_max = ServerOption(
        "kv.scanner.max-per-server", INT32, "200", "The most scans of rows by key of the whole server.", lowest=1
    )
    kv_scanner_batch_bytes_max = ServerOption(
        "kv.scanner.max-batch-size",
        MEMORY_BYTES,
        "10 mb",
        "The most that one answer to a scan of rows by key holds. A single larger row is returned all the same.",
        lowest=1,
        highest=INT32_MAX,
    )

    # The disk.
    disk_write_limit_ratio = ServerOption(
        "server.data-disk.write-limit-ratio",
        RATIO,
        "0.85",
        "Writes are refused while the disk is fuller than this; 1.0 never refuses.",
    )
    disk_write_recover_ratio = ServerOption(
        "server.data-disk.write-recover-ratio", RATIO, "0.80", "Writes go on when the disk is emptier than this."
    )
    disk_check_interval_ms = ServerOption(
        "server.data-disk.check-interval", DURATION_MS, "30 s", "How often the disk is looked at.", lowest=1
    )
    scrub_interval_ms = ServerOption(
        "server.scrub.interval",
        DURATION_MS,
        "7 d",
        "How often all sealed segments and SST files are read again to find damage; 0 s never does.",
        lowest=0,
    )
    scrub_bytes_per_second = ServerOption(
        "server.scrub.max-bytes-per-second",
        MEMORY_BYTES,
        "8 mb",
        "How fast they are read; 0 b turns scrubbing off.",
        lowest=0,
    )


class DirStrategy(StrEnum):
    """How tables and partitions are spread over several directories."""

    ROUND_ROBIN = "ROUND_ROBIN"
    WEIGHTED_ROUND_ROBIN = "WEIGHTED_ROUND_ROBIN"


def _read_list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _read_weights(text: str) -> tuple[int, ...]:
    weights = tuple(map(int, _read_list(text)))
    if any(weight < 0 for weight in weights) or (weights and not any(weights)):
        raise ValueError
    return weights


_LOCATIONS: Final[ValueType[tuple[str, ...]]] = ValueType("locations separated by commas", _read_list)
_WEIGHTS: Final[ValueType[tuple[int, ...]]] = ValueType(
    "integers separated by commas, none below 0 and not all 0", _read_weights
)


class RemoteOptions(OptionFamily):
    """Remote storage and the remote log."""

    __slots__ = ()

    remote_data_dir = ServerOption(
        "remote.data.dir",
        TEXT,
        "",
        "Where logs are copied to: an absolute path, or a URI of s3, s3a, gs, abfs, abfss, hdfs or oss. Without it "
        "and without remote.data.dirs everything stays on the disk. Clients read from it themselves.",
    )
    remote_data_dirs = ServerOption(
        "remote.data.dirs",
        _LOCATIONS,
        "",
        "Several such places, over which tables and partitions are spread; then remote.data.dir is not used.",
    )
    remote_data_dirs_strategy = ServerOption(
        "remote.data.dirs.strategy",
        choice_of(DirStrategy),
        "ROUND_ROBIN",
        "How they are spread: each place in turn (ROUND_ROBIN), or as often as its weight says (WEIGHTED_ROUND_ROBIN).",
    )
    remote_data_dirs_weights = ServerOption(
        "remote.data.dirs.weights", _WEIGHTS, "", "The weight of each place, in the order of remote.data.dirs."
    )
    remote_log_task_interval_ms = ServerOption(
        "remote.log.task-interval-duration",
        DURATION_MS,
        "1 min",
        "How often it is looked for segments to copy, and for copies that have expired. 0 ms: nothing is copied and "
        "nothing expires; what was copied can still be read.",
        lowest=0,
    )
    remote_log_segments_per_task = ServerOption(
        "remote.log.task-max-upload-segments",
        INT32,
        "5",
        "The most segments of one bucket that are copied each time.",
        lowest=1,
    )
    remote_log_index_cache_bytes = ServerOption(
        "remote.log.index-file-cache-size",
        MEMORY_BYTES,
        "1 gb",
        "How many bytes of indexes of remote segments are kept in the data directory.",
        lowest=0,
    )
    remote_upload_bytes_per_second = ServerOption(
        "remote.log.upload.max-bytes-per-second",
        MEMORY_BYTES,
        "0 b",
        "How fast segments are copied, all together; 0 b is no limit.",
        lowest=0,
    )

    backup_interval_ms = ServerOption(
        "backup.interval",
        DURATION_MS,
        "10 s",
        "How often what is not yet in remote storage is shipped there, with the metadata, so that another server can "
        "be restored from it: what is lost with the disk is at most so old. 0 ms: never, and two servers that share a "
        "remote directory are not told from each other. Without remote storage it has no effect.",
        lowest=0,
    )
    backup_points_kept = ServerOption(
        "backup.points-kept",
        INT32,
        "3",
        "How many of the newest backups are kept. What is removed from remote storage otherwise goes when none of them "
        "needs it any more.",
        lowest=2,
    )
    backup_restore_from = ServerOption(
        "backup.restore-from",
        TEXT,
        "",
        "The remote.data.dir of a server that is gone: the data directory, which must be new, is made from its backup, "
        "and remote.data.dir is the same unless it is set. It has no effect on a directory that was restored from "
        "there before.",
    )

    # File systems.
    s3_endpoint = ServerOption(
        "s3.endpoint", TEXT, "", "The address of a store that is like S3, such as http://minio:9000."
    )
    s3_region = ServerOption("s3.region", TEXT, "", "The region of the bucket.")
    s3_access_key = ServerOption(
        "s3.access-key",
        TEXT,
        "",
        "The id of the access key. Without it the credentials of the environment, a profile or the machine are used.",
        secret=True,
    )
    s3_secret_key = ServerOption("s3.secret-key", TEXT, "", "The secret of the access key.", secret=True)
    s3_path_style_access = ServerOption(
        "s3.path.style.access",
        TEXT,
        "",
        "Whether the bucket is part of the path (true) or of the host (false). With s3.endpoint it is true unless set.",
    )
    s3_role_arn = ServerOption(
        "s3.assumed.role.arn",
        TEXT,
        "",
        "The role whose short-lived credentials clients get; without it they get a session of the access key.",
    )
    s3_sts_endpoint = ServerOption(
        "s3.assumed.role.sts.endpoint",
        TEXT,
        "",
        "Where these credentials are asked for. With s3.endpoint it is that unless set.",
    )
    azure_account_key = ServerOption("fs.azure.account.key", TEXT, "", "The key of the storage account.", secret=True)
    azure_client_id = ServerOption(
        "fs.azure.account.oauth2.client.id", TEXT, "", "The client whose secret is used instead of a key."
    )
    azure_client_secret = ServerOption(
        "fs.azure.account.oauth2.client.secret", TEXT, "", "The secret of the client.", secret=True
    )
    oss_endpoint = ServerOption("fs.oss.endpoint", TEXT, "", "The address of the OSS region.")
    oss_access_key_id = ServerOption("fs.oss.accessKeyId", TEXT, "", "The id of the access key of OSS.", secret=True)
    oss_access_key_secret = ServerOption(
        "fs.oss.accessKeySecret", TEXT, "", "The secret of the access key of OSS.", secret=True
    )

    @property
    def remote_locations(self) -> tuple[str, ...]:
        """All places, each as often as tables and partitions shall go there; empty if there is no remote storage."""
        if not self.remote_data_dirs:
            location = self.remote_data_dir or self.backup_restore_from
            return (location,) if location else ()
        if self.remote_data_dirs_strategy is DirStrategy.ROUND_ROBIN:
            return self.remote_data_dirs
        pairs = zip(self.remote_data_dirs, self.remote_data_dirs_weights, strict=True)
        return tuple(place for place, weight in pairs for _ in range(weight))

    @property
    def file_system_properties(self) -> Mapping[str, str]:
        """What is configured about file systems, as texts by key. Some of them are secrets."""
        prefixes = ("s3.", "fs.")
        values: dict[str, Any] = self._values
        return {key: value for key, value in values.items() if key.startswith(prefixes) and isinstance(value, str)}
