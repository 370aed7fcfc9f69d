"""Options about remote storage: where it is, how it is reached, and how logs are copied to it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from fluss.options import DURATION_MS, INT32, MEMORY_BYTES, TEXT, ValueType, choice_of
from fluss.server.options.server_option import OptionFamily, ServerOption


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
