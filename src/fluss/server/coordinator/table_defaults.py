"""What the server writes into the descriptor of a new table where the user left it open."""

from __future__ import annotations

from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.table_options import (
    AUTO_PARTITION_ENABLED,
    AUTO_PARTITION_NUM_PRECREATE,
    DELETE_BEHAVIOR,
    KV_FORMAT_VERSION,
    KV_STANDBY_REPLICA_ENABLED,
    LAKE_ENABLED,
    LAKE_FORMAT,
    MERGE_ENGINE,
    REPLICATION_FACTOR,
)
from fluss.server.coordinator.descriptors import changed
from fluss.server.coordinator.lake_config import LakeConfig
from fluss.server.coordinator.settings import CoordinatorSettings

KV_FORMAT_VERSION_NEWEST: Final = 2


def with_defaults(descriptor: TableDescriptor, settings: CoordinatorSettings, lake: LakeConfig) -> TableDescriptor:
    """Return the descriptor to store. What was given stays as it was written; only absent properties are added.

    Raises code 15 if the table wants a lake that the cluster does not have, and 39 for a version of keys that does not
    exist or a value that cannot be read.
    """
    properties = descriptor.properties
    _check_lake(properties, lake)
    properties.setdefault(REPLICATION_FACTOR.key, str(settings.default_replication_factor))
    if len(descriptor.partition_keys) > 1 and AUTO_PARTITION_ENABLED.of(properties):
        # Which values the other keys will have is not known, so nothing can be created ahead.
        properties.setdefault(AUTO_PARTITION_NUM_PRECREATE.key, "0")
    if lake.lake_format is not None:
        properties.setdefault(LAKE_FORMAT.key, lake.lake_format)
    if descriptor.has_primary_key():
        _add_primary_key_defaults(properties)
    return changed(
        descriptor, bucket_count=descriptor.bucket_count or settings.default_bucket_count, properties=properties
    )


def _check_lake(properties: dict[str, str], lake: LakeConfig) -> None:
    if LAKE_ENABLED.of(properties) and not lake.is_enabled:
        raise FlussError(
            f"'{LAKE_ENABLED.key}' is true, but the cluster has no lake; set 'datalake.format' for the cluster first",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )


def _add_primary_key_defaults(properties: dict[str, str]) -> None:
    if MERGE_ENGINE.of(properties) is not None:
        properties.setdefault(DELETE_BEHAVIOR.key, "IGNORE")
    properties.setdefault(KV_FORMAT_VERSION.key, str(KV_FORMAT_VERSION_NEWEST))
    version = KV_FORMAT_VERSION.of(properties)
    if not 1 <= version <= KV_FORMAT_VERSION_NEWEST:
        raise FlussError(
            f"'{KV_FORMAT_VERSION.key}' must be between 1 and {KV_FORMAT_VERSION_NEWEST}, got {version}",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    properties.setdefault(KV_STANDBY_REPLICA_ENABLED.key, "true")
