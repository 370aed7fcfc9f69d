"""Descriptors that the server makes of descriptors: those of new tables, completed, and those of altered tables.

A new table gets the server's defaults where its user left something open. An alteration changes properties or columns,
never both. Columns can only be added, at the end and nullable: rows that were written before have no value for them.
What comes out obeys the same rules as a new table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.schema.cluster_info import ConfigChange, set_and_deleted
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Column, Schema
from fluss.schema.table_options import (
    AUTO_PARTITION_ENABLED,
    AUTO_PARTITION_NUM_PRECREATE,
    DELETE_BEHAVIOR,
    KV_FORMAT_VERSION,
    KV_STANDBY_REPLICA_ENABLED,
    LAKE_ENABLED,
    LAKE_FORMAT,
    LAKE_PREFIX,
    MERGE_ENGINE,
    REPLICATION_FACTOR,
    TABLE_OPTIONS,
    TABLE_PREFIX,
    Alterable,
    unknown_option_text,
)
from fluss.server.coordinator.dynamic_configs import LakeConfig
from fluss.server.coordinator.settings import CoordinatorSettings
from fluss.server.coordinator.table_validation import TableLimits, check_aggregations, validate_table
from fluss.server.model import Table, TableSchemas

KV_FORMAT_VERSION_NEWEST: Final = 2
# Batches carry the id of their schema in 16 bits.
_SCHEMA_ID_MAX: Final = 2**15 - 1


def changed(
    descriptor: TableDescriptor,
    *,
    schema: Schema | None = None,
    bucket_count: int | None = None,
    properties: Mapping[str, str] | None = None,
    custom_properties: Mapping[str, str] | None = None,
) -> TableDescriptor:
    """Return a descriptor with other parts; what is None stays as it is."""
    return TableDescriptor(
        descriptor.schema if schema is None else schema,
        partition_keys=descriptor.partition_keys,
        bucket_count=descriptor.bucket_count if bucket_count is None else bucket_count,
        bucket_keys=descriptor.bucket_keys,
        comment=descriptor.comment,
        properties=descriptor.properties if properties is None else properties,
        custom_properties=descriptor.custom_properties if custom_properties is None else custom_properties,
    )


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


def with_changed_properties(
    table: Table, changes: Iterable[ConfigChange], limits: TableLimits, *, now_ms: int
) -> Table:
    """Return the table with other properties, or the very same table if nothing is different.

    Keys with the prefix ``table.`` are properties of the table, all others custom ones.
    """
    values, deleted = set_and_deleted(changes)
    descriptor = table.descriptor
    for key in sorted(values.keys() | deleted):
        _check_alterable(table, key)
    properties = _merged(descriptor.properties, values, deleted, of_table=True)
    custom_properties = _merged(descriptor.custom_properties, values, deleted, of_table=False)
    if properties == descriptor.properties and custom_properties == descriptor.custom_properties:
        return table
    lake_keys = {key for key in values.keys() | deleted if key.startswith(LAKE_PREFIX)}
    if lake_keys:
        _check_lake_change(table, lake_keys, properties, limits.lake)
    descriptor = changed(descriptor, properties=properties, custom_properties=custom_properties)
    validate_table(descriptor, limits)
    return replace(table, descriptor=descriptor, modified_ms=now_ms)


def _merged(
    before: Mapping[str, str], values: Mapping[str, str], deleted: set[str], *, of_table: bool
) -> dict[str, str]:
    merged = {key: value for key, value in before.items() if key not in deleted}
    merged.update((key, value) for key, value in values.items() if key.startswith(TABLE_PREFIX) == of_table)
    return merged


def _check_alterable(table: Table, key: str) -> None:
    if not key.startswith(TABLE_PREFIX):
        return
    option = TABLE_OPTIONS.get(key)
    if option is None:
        raise _invalid_change(unknown_option_text(key))
    if option.alterable is Alterable.NEVER:
        raise _invalid_change(f"'{key}' cannot be changed after the table was created; create a new table instead")
    if option.alterable is Alterable.PRIMARY_KEY_TABLES and not table.has_primary_key:
        raise _invalid_change(f"'{key}' is only for tables with a primary key")


def _check_lake_change(table: Table, lake_keys: set[str], properties: dict[str, str], lake: LakeConfig) -> None:
    """Refuse lake properties on a table that cannot be tiered; record the format where that is still possible."""
    if LAKE_FORMAT.key not in properties:
        # The format decides how keys are encoded and rows are distributed. Where there are no keys, it may come later.
        has_keys = table.has_primary_key or table.descriptor.bucket_keys
        if has_keys or lake_keys != {LAKE_ENABLED.key}:
            raise _invalid_change(
                f"{table.path} was created without '{LAKE_FORMAT.key}', so {', '.join(sorted(lake_keys))} cannot be "
                "changed; create a new table on a cluster with 'datalake.format'"
            )
        if lake.lake_format is not None:
            properties[LAKE_FORMAT.key] = lake.lake_format
    if LAKE_ENABLED.of(properties) and not lake.is_enabled:
        raise _invalid_change(
            f"'{LAKE_ENABLED.key}' cannot be true, because the cluster has no lake; set 'datalake.format' for the "
            "cluster first"
        )


def with_added_columns(table: Table, columns: Iterable[Column], lake: LakeConfig) -> Table:
    """Return the table with new columns at the end and a new schema id. The time of modification stays."""
    if LAKE_ENABLED.of(table.descriptor.properties) and not lake.is_enabled:
        raise _invalid_change(
            f"{table.path} is tiered to a lake, but the cluster has none now; columns cannot be added"
        )
    if table.schema_id >= _SCHEMA_ID_MAX:
        raise _invalid_change(f"{table.path} has had {table.schema_id} schemas, there is no id for another one")
    schema = _extended(table, [_check_addable(table, column) for column in columns])
    descriptor = changed(table.descriptor, schema=schema)
    check_aggregations(descriptor)
    schema_id = table.schema_id + 1
    return replace(
        table,
        schema_id=schema_id,
        descriptor=descriptor,
        schemas=TableSchemas(table.schemas, str(table.path)).having(schema_id, descriptor.schema),
    )


def _extended(table: Table, columns: list[Column]) -> Schema:
    try:
        return table.descriptor.schema.with_added_columns(columns)
    except FlussError as error:
        # For instance when the ids of fields are used up.
        raise _invalid_change(error.message) from None


def _check_addable(table: Table, column: Column) -> Column:
    if column.name not in table.descriptor.schema.column_names and not column.data_type.nullable:
        raise FlussError(
            f"Column '{column.name}' must be nullable: rows that exist already have no value for it",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
    return column


def _invalid_change(text: str) -> FlussError:
    return FlussError(text, ErrorCode.INVALID_ALTER_TABLE_EXCEPTION)
