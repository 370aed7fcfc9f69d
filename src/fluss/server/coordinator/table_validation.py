"""Which tables can exist: the rules over a descriptor that already has its structure and its defaults.

``validate_table`` goes through them in a fixed order, so that a descriptor with several faults is always refused for
the same one. Code 15 is about the table, 39 about its properties, 49 about the number of buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.row.key import IcebergKeyEncoder
from fluss.row.partition_names import TimePattern
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import shown_names
from fluss.schema.table import check_column_name
from fluss.schema.table_options import (
    AUTO_PARTITION_ENABLED,
    AUTO_PARTITION_KEY,
    AUTO_PARTITION_NUM_PRECREATE,
    AUTO_PARTITION_TIME_FORMAT,
    AUTO_PARTITION_TIME_UNIT,
    CHANGELOG_IMAGE,
    DELETE_BEHAVIOR,
    KV_FORMAT,
    LAKE_ENABLED,
    LAKE_FORMAT,
    LAKE_HISTORICAL_PARTITION_ENABLED,
    LOG_ARROW_COMPRESSION_ZSTD_LEVEL,
    LOG_FORMAT,
    LOG_LOCAL_TTL,
    LOG_TIERED_LOCAL_SEGMENTS,
    LOG_TTL,
    MERGE_ENGINE,
    MERGE_ENGINE_VERSION_COLUMN,
    REPLICATION_FACTOR,
    STATISTICS_COLUMNS,
    ChangelogImage,
    DeleteBehavior,
    KvFormat,
    LakeFormat,
    LogFormat,
    MergeEngine,
    TimeUnit,
    check_properties,
)
from fluss.schema.types import TypeRoot
from fluss.server.coordinator.dynamic_configs import LakeConfig

_NESTED: Final = frozenset({TypeRoot.ARRAY, TypeRoot.MAP, TypeRoot.ROW})
_NOT_FOR_PARTITIONS: Final = _NESTED | {TypeRoot.DECIMAL}
_NOT_FOR_STATISTICS: Final = _NESTED | {TypeRoot.BINARY, TypeRoot.BYTES}
_VERSION_TYPES: Final = frozenset({TypeRoot.INTEGER, TypeRoot.BIGINT, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ})
_DATE_PATTERN: Final = "yyyy-MM-dd"
_ZSTD_LEVELS: Final = range(1, 23)
_ALL_COLUMNS: Final = "*"


@dataclass(frozen=True, slots=True)
class TableLimits:
    """What the rules need to know besides the descriptor."""

    bucket_count_max: int
    lake: LakeConfig


def validate_table(descriptor: TableDescriptor, limits: TableLimits) -> None:
    """Refuse a descriptor that breaks a rule, with the code and the text of the first one it breaks."""
    check_properties(descriptor.properties)
    for rule in _RULES:
        rule(descriptor, limits)


def _invalid_table(text: str) -> FlussError:
    return FlussError(text, ErrorCode.INVALID_TABLE_EXCEPTION)


def _invalid_config(text: str) -> FlussError:
    return FlussError(text, ErrorCode.INVALID_CONFIG_EXCEPTION)


# Buckets and keys


def _bucket_count(descriptor: TableDescriptor, limits: TableLimits) -> None:
    count = descriptor.bucket_count
    if count is None:
        raise _invalid_table("The number of buckets is missing")
    check_bucket_count(count, limits.bucket_count_max)


def check_bucket_count(bucket_count: int, bucket_count_max: int) -> None:
    """Refuse more buckets than the server allows for one table or partition (code 49)."""
    if bucket_count > bucket_count_max:
        raise FlussError(
            f"Bucket count {bucket_count} exceeds the maximum of {bucket_count_max} for one table or partition; "
            "choose fewer buckets or raise 'max.bucket.num' of the server",
            ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
        )


def _bucket_key_types(descriptor: TableDescriptor, limits: TableLimits) -> None:
    _refuse_types("Bucket key", descriptor, descriptor.bucket_keys, _NESTED)


def _primary_key_types(descriptor: TableDescriptor, limits: TableLimits) -> None:
    _refuse_types("Primary key", descriptor, descriptor.schema.get_primary_keys(), _NESTED)


def check_lake_bucket_key(descriptor: TableDescriptor) -> None:
    """Refuse bucket keys that no row could be written with: the format of the lake says how they are encoded.

    This is for new tables. One that is there is of no use with such a key, but can be altered.
    """
    if LAKE_FORMAT.of(descriptor.properties) is not LakeFormat.ICEBERG or not descriptor.bucket_keys:
        return
    try:
        IcebergKeyEncoder(tuple(descriptor.schema.column(name).data_type for name in descriptor.bucket_keys))
    except FlussError as error:
        raise _invalid_table(
            f"With '{LAKE_FORMAT.key}' = {LakeFormat.ICEBERG} rows are put into buckets as Iceberg does, and not by "
            f"({', '.join(descriptor.bucket_keys)}): {error.message}. Choose another bucket key"
        ) from None


def _refuse_types(what: str, descriptor: TableDescriptor, columns: Iterable[str], refused: frozenset[TypeRoot]) -> None:
    for name in columns:
        data_type = descriptor.schema.column(name).data_type
        if data_type.root in refused:
            raise _invalid_table(f"{what} column '{name}' must not be of type {data_type}")


def _replication_factor(descriptor: TableDescriptor, limits: TableLimits) -> None:
    factor = REPLICATION_FACTOR.of(descriptor.properties)
    if factor is not None and factor <= 0:
        raise _invalid_config(f"'{REPLICATION_FACTOR.key}' must be positive, got {factor}")


def check_replicas(descriptor: TableDescriptor, server_count: int) -> None:
    """Refuse more replicas than there are servers to hold them (code 17)."""
    factor = REPLICATION_FACTOR.of(descriptor.properties) or 1
    if factor > server_count:
        reason = (
            f"this server keeps one replica of each bucket; set '{REPLICATION_FACTOR.key}' to 1"
            if server_count
            else "the tablet server is marked as permanently offline; remove its server tag first"
        )
        raise FlussError(
            f"Replication factor {factor} is larger than the number of available tablet servers, {server_count}: "
            f"{reason}",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )


# Formats


def _formats(descriptor: TableDescriptor, limits: TableLimits) -> None:
    if not descriptor.has_primary_key() or KV_FORMAT.of(descriptor.properties) is not KvFormat.COMPACTED:
        return
    log_format = LOG_FORMAT.of(descriptor.properties)
    if log_format not in (LogFormat.ARROW, LogFormat.COMPACTED):
        raise _invalid_config(
            f"A primary-key table with KV format COMPACTED needs log format ARROW or COMPACTED, not {log_format}"
        )


def _compression_level(descriptor: TableDescriptor, limits: TableLimits) -> None:
    level = LOG_ARROW_COMPRESSION_ZSTD_LEVEL.of(descriptor.properties)
    if level not in _ZSTD_LEVELS:
        raise _invalid_config(
            f"'{LOG_ARROW_COMPRESSION_ZSTD_LEVEL.key}' must be between {_ZSTD_LEVELS.start} and "
            f"{_ZSTD_LEVELS.stop - 1}, got {level}"
        )


# Merge engines


def check_aggregations(descriptor: TableDescriptor) -> None:
    """Refuse aggregate functions on a table that does not aggregate, or that do not fit their columns (code 39)."""
    if MERGE_ENGINE.of(descriptor.properties) is MergeEngine.AGGREGATION:
        descriptor.schema.check_aggregations()
        return
    for column in descriptor.schema.columns:
        if column.aggregation is not None:
            raise _invalid_config(
                f"Column '{column.name}' has the aggregate function '{column.aggregation.name}', but only tables with "
                f"'{MERGE_ENGINE.key}' = '{MergeEngine.AGGREGATION}' may have one"
            )


def _no_stray_aggregations(descriptor: TableDescriptor, limits: TableLimits) -> None:
    if MERGE_ENGINE.of(descriptor.properties) is not MergeEngine.AGGREGATION:
        check_aggregations(descriptor)


def _merge_engine(descriptor: TableDescriptor, limits: TableLimits) -> None:
    engine = MERGE_ENGINE.of(descriptor.properties)
    if engine is None:
        return
    if not descriptor.has_primary_key():
        raise _invalid_config(f"'{MERGE_ENGINE.key}' is only for tables with a primary key")
    if engine is MergeEngine.VERSIONED:
        _version_column(descriptor)
    if engine is MergeEngine.AGGREGATION:
        if CHANGELOG_IMAGE.of(descriptor.properties) is ChangelogImage.WAL:
            raise _invalid_config(
                f"'{CHANGELOG_IMAGE.key}' must not be WAL for the merge engine '{MergeEngine.AGGREGATION}'"
            )
        check_aggregations(descriptor)


def _version_column(descriptor: TableDescriptor) -> None:
    name = MERGE_ENGINE_VERSION_COLUMN.of(descriptor.properties)
    if name is None:
        raise _invalid_config(
            f"'{MERGE_ENGINE_VERSION_COLUMN.key}' must be set for the merge engine '{MergeEngine.VERSIONED}'"
        )
    if name not in descriptor.schema.column_names:
        raise _invalid_config(f"The version column '{name}' does not exist")
    data_type = descriptor.schema.column(name).data_type
    if data_type.root not in _VERSION_TYPES:
        raise _invalid_config(
            f"The version column '{name}' must be of type INT, BIGINT, TIMESTAMP or TIMESTAMP_LTZ, not {data_type}"
        )


def _delete_behavior(descriptor: TableDescriptor, limits: TableLimits) -> None:
    if DELETE_BEHAVIOR.key not in descriptor.properties:
        return
    if not descriptor.has_primary_key():
        raise _invalid_config(f"'{DELETE_BEHAVIOR.key}' is only for tables with a primary key")
    engine = MERGE_ENGINE.of(descriptor.properties)
    if (
        engine in (MergeEngine.FIRST_ROW, MergeEngine.VERSIONED)
        and DELETE_BEHAVIOR.of(descriptor.properties) is DeleteBehavior.ALLOW
    ):
        raise _invalid_config(f"'{DELETE_BEHAVIOR.key}' must not be 'allow' for the merge engine '{engine}'")


# Retention


def _retention(descriptor: TableDescriptor, limits: TableLimits) -> None:
    segments = LOG_TIERED_LOCAL_SEGMENTS.of(descriptor.properties)
    if segments <= 0:
        raise _invalid_config(f"'{LOG_TIERED_LOCAL_SEGMENTS.key}' must be positive, got {segments}")
    ttl_ms = LOG_TTL.of(descriptor.properties)
    local_ttl_ms = LOG_LOCAL_TTL.of(descriptor.properties)
    if local_ttl_ms is not None and 0 < ttl_ms < local_ttl_ms:
        raise _invalid_config(
            f"'{LOG_LOCAL_TTL.key}' ({local_ttl_ms} ms) must not be longer than '{LOG_TTL.key}' ({ttl_ms} ms)"
        )


# Partitions


def _historical_partition(descriptor: TableDescriptor, limits: TableLimits) -> None:
    if not LAKE_HISTORICAL_PARTITION_ENABLED.of(descriptor.properties):
        return
    properties = descriptor.properties
    needs = {
        f"'{AUTO_PARTITION_ENABLED.key}' = true": AUTO_PARTITION_ENABLED.of(properties),
        f"'{LAKE_ENABLED.key}' = true": LAKE_ENABLED.of(properties),
        f"'{LAKE_FORMAT.key}' = {LakeFormat.PAIMON}": LAKE_FORMAT.of(properties) is LakeFormat.PAIMON,
        "a primary key": descriptor.has_primary_key(),
        "exactly one partition key": len(descriptor.partition_keys) == 1,
    }
    missing = [need for need, is_met in needs.items() if not is_met]
    if missing:
        raise _invalid_config(f"'{LAKE_HISTORICAL_PARTITION_ENABLED.key}' needs {', '.join(missing)}")


def _auto_partition_has_partitions(descriptor: TableDescriptor, limits: TableLimits) -> None:
    if AUTO_PARTITION_ENABLED.of(descriptor.properties) and not descriptor.is_partitioned():
        raise _invalid_config(f"'{AUTO_PARTITION_ENABLED.key}' is only for partitioned tables")


def _partition_key_types(descriptor: TableDescriptor, limits: TableLimits) -> None:
    _refuse_types("Partition key", descriptor, descriptor.partition_keys, _NOT_FOR_PARTITIONS)


def _time_format(descriptor: TableDescriptor, limits: TableLimits) -> None:
    text = AUTO_PARTITION_TIME_FORMAT.of(descriptor.properties)
    if text is not None:
        TimePattern.of(AUTO_PARTITION_TIME_UNIT.of(descriptor.properties), text)


def _auto_partition_key(descriptor: TableDescriptor, limits: TableLimits) -> None:
    properties = descriptor.properties
    if not AUTO_PARTITION_ENABLED.of(properties) or len(descriptor.partition_keys) < 2:
        return
    keys = shown_names(descriptor.partition_keys)
    key = AUTO_PARTITION_KEY.of(properties)
    if key is None:
        raise _invalid_table(
            f"'{AUTO_PARTITION_KEY.key}' must be set, because the table is partitioned by several columns: {keys}"
        )
    if key not in descriptor.partition_keys:
        raise _invalid_table(f"'{AUTO_PARTITION_KEY.key}' is '{key}', which is not one of the partition keys {keys}")
    if AUTO_PARTITION_NUM_PRECREATE.of(properties) != 0:
        raise _invalid_table(
            f"'{AUTO_PARTITION_NUM_PRECREATE.key}' must be 0, because the table is partitioned by several columns: "
            f"{keys}"
        )


def auto_partition_key(descriptor: TableDescriptor) -> str | None:
    """Return which partition key holds the time; None if there are several and the table does not say which."""
    keys = descriptor.partition_keys
    return keys[0] if len(keys) == 1 else AUTO_PARTITION_KEY.of(descriptor.properties)


def _date_partition_key(descriptor: TableDescriptor, limits: TableLimits) -> None:
    properties = descriptor.properties
    if not AUTO_PARTITION_ENABLED.of(properties):
        return
    key = auto_partition_key(descriptor)
    if key is None or descriptor.schema.column(key).data_type.root is not TypeRoot.DATE:
        return
    unit, pattern = AUTO_PARTITION_TIME_UNIT.of(properties), AUTO_PARTITION_TIME_FORMAT.of(properties)
    if unit is not TimeUnit.DAY or pattern != _DATE_PATTERN:
        raise _invalid_table(
            f"The partition key '{key}' is a DATE, so '{AUTO_PARTITION_TIME_UNIT.key}' must be DAY and "
            f"'{AUTO_PARTITION_TIME_FORMAT.key}' must be {_DATE_PATTERN}"
        )


# Columns


def _reserved_columns(descriptor: TableDescriptor, limits: TableLimits) -> None:
    for name in descriptor.schema.column_names:
        check_column_name(name)


def _statistics_columns(descriptor: TableDescriptor, limits: TableLimits) -> None:
    text = STATISTICS_COLUMNS.of(descriptor.properties)
    if text is None:
        return
    if descriptor.has_primary_key():
        raise _invalid_config(f"'{STATISTICS_COLUMNS.key}' is only for tables without a primary key")
    if text.strip() == _ALL_COLUMNS:
        return
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise _invalid_config(f"'{STATISTICS_COLUMNS.key}' must be * or column names separated by commas")
    for name in names:
        if name not in descriptor.schema.column_names:
            raise _invalid_config(f"'{STATISTICS_COLUMNS.key}' names the column '{name}', which does not exist")
        data_type = descriptor.schema.column(name).data_type
        if data_type.root in _NOT_FOR_STATISTICS:
            raise _invalid_config(f"'{STATISTICS_COLUMNS.key}': column '{name}' of type {data_type} has no statistics")


# Lake


def _lake_format(descriptor: TableDescriptor, limits: TableLimits) -> None:
    if not LAKE_ENABLED.of(descriptor.properties):
        return
    table_format, cluster_format = LAKE_FORMAT.of(descriptor.properties), limits.lake.lake_format
    if table_format is not cluster_format:
        raise _invalid_config(f"'{LAKE_FORMAT.key}' is {table_format}, but the lake of the cluster is {cluster_format}")


_RULES: Final[tuple[Callable[[TableDescriptor, TableLimits], None], ...]] = (
    _bucket_count,
    _bucket_key_types,
    _primary_key_types,
    _replication_factor,
    _formats,
    _compression_level,
    _no_stray_aggregations,
    _merge_engine,
    _delete_behavior,
    _retention,
    _historical_partition,
    _auto_partition_has_partitions,
    _partition_key_types,
    _time_format,
    _auto_partition_key,
    _date_partition_key,
    _reserved_columns,
    _statistics_columns,
    _lake_format,
)
