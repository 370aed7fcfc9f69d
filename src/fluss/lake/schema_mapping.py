"""A Fluss table as an Iceberg table: columns, partitions, order, properties.

| Fluss | Iceberg |
|---|---|
| TINYINT, SMALLINT, INT | int |
| BIGINT, FLOAT, DOUBLE, BOOLEAN, DATE, DECIMAL | the type of the same name; BIGINT is long |
| CHAR, STRING | string |
| BINARY, BYTES | binary |
| TIME, TIMESTAMP, TIMESTAMP_LTZ | time, timestamp, timestamptz: microseconds |
| ARRAY, MAP, ROW | list, map, struct |

Behind the columns of the table come three of the system: ``__bucket``, ``__offset`` and ``__timestamp``. Partitions are
those of the Fluss table, and within them its buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Final

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema as LakeSchema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from pyiceberg.types import TimestampType as LakeTimestampType
from pyiceberg.types import TimeType as LakeTimeType

from fluss.errors import ErrorCode, FlussError
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Column, Schema
from fluss.schema.types import ArrayType as FlussArrayType
from fluss.schema.types import DataType, RowType, TimestampLtzType, TimestampType, TimeType, TypeRoot
from fluss.schema.types import DecimalType as FlussDecimalType
from fluss.schema.types import MapType as FlussMapType

BUCKET_COLUMN: Final = "__bucket"
OFFSET_COLUMN: Final = "__offset"
TIMESTAMP_COLUMN: Final = "__timestamp"
SYSTEM_COLUMNS: Final[Mapping[str, IcebergType]] = {
    BUCKET_COLUMN: IntegerType(),
    OFFSET_COLUMN: LongType(),
    TIMESTAMP_COLUMN: TimestamptzType(),
}
# A property of a Fluss table with this prefix is one of the lake table, without it. All others are kept under the other
# prefix, so that a reader of the lake table can tell what it mirrors.
LAKE_PROPERTY_PREFIX: Final = "iceberg."
FLUSS_PROPERTY_PREFIX: Final = "fluss."
# Readers must merge: rows of these tables are deleted by delete files, and no engine may do it in another way.
MERGE_ON_READ: Final[Mapping[str, str]] = {
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}

# Digits after the second that times have in the lake.
_LAKE_TIME_PRECISION: Final = 6

_PLAIN_TYPES: Final[Mapping[TypeRoot, type[IcebergType]]] = {
    TypeRoot.BOOLEAN: BooleanType,
    TypeRoot.TINYINT: IntegerType,
    TypeRoot.SMALLINT: IntegerType,
    TypeRoot.INTEGER: IntegerType,
    TypeRoot.BIGINT: LongType,
    TypeRoot.FLOAT: FloatType,
    TypeRoot.DOUBLE: DoubleType,
    TypeRoot.CHAR: StringType,
    TypeRoot.STRING: StringType,
    TypeRoot.BINARY: BinaryType,
    TypeRoot.BYTES: BinaryType,
    TypeRoot.DATE: DateType,
    TypeRoot.TIME: LakeTimeType,
    TypeRoot.TIMESTAMP: LakeTimestampType,
    TypeRoot.TIMESTAMP_LTZ: TimestamptzType,
}


def lake_type(data_type: DataType, ids: Iterator[int] | None = None) -> IcebergType:
    """Return the Iceberg type of a Fluss type. What is inside it takes the next ids; catalogs give their own anyway."""
    ids = count(1) if ids is None else ids
    plain = _PLAIN_TYPES.get(data_type.root)
    if plain is not None:
        return plain()
    match data_type:
        case FlussDecimalType():
            return DecimalType(data_type.precision, data_type.scale)
        case FlussArrayType():
            element_id = next(ids)
            element = data_type.element_type
            return ListType(element_id, lake_type(element, ids), element_required=not element.nullable)
        case FlussMapType():
            key_id, value_id = next(ids), next(ids)
            value = data_type.value_type
            key_type = lake_type(data_type.key_type, ids)
            return MapType(key_id, key_type, value_id, lake_type(value, ids), value_required=not value.nullable)
        case RowType():
            field_ids = [next(ids) for _ in data_type.fields]
            return StructType(
                *(
                    NestedField(
                        field_id,
                        field.name,
                        lake_type(field.data_type, ids),
                        required=not field.data_type.nullable,
                        doc=field.description,
                    )
                    for field_id, field in zip(field_ids, data_type.fields, strict=True)
                )
            )
    raise AssertionError(f"no Iceberg type for {data_type!r}")


def is_exact(data_type: DataType) -> bool:
    """Whether the lake has the values of a type as they are. It has times in microseconds, cut to them if need be."""
    match data_type:
        case TimeType() | TimestampType() | TimestampLtzType():
            return data_type.precision <= _LAKE_TIME_PRECISION
        case FlussArrayType():
            return is_exact(data_type.element_type)
        case FlussMapType():
            return is_exact(data_type.key_type) and is_exact(data_type.value_type)
        case RowType():
            return all(is_exact(field.data_type) for field in data_type.fields)
    return True


def lake_schema(schema: Schema) -> LakeSchema:
    """Return the columns of the lake table: those of the Fluss table, and those of the system, which are never null."""
    top_count = len(schema.columns) + len(SYSTEM_COLUMNS)
    nested_ids = count(top_count + 1)
    fields = [_column_field(index, column, nested_ids) for index, column in enumerate(schema.columns, start=1)]
    first_system_id = len(fields) + 1
    fields += [
        NestedField(first_system_id + index, name, column_type, required=True)
        for index, (name, column_type) in enumerate(SYSTEM_COLUMNS.items())
    ]
    key_ids = [1 + index for index in schema.primary_key_indexes]
    try:
        return LakeSchema(*fields, identifier_field_ids=key_ids)
    except ValueError as error:
        # Such as a column 'a.b' beside a row 'a' with a field 'b': in Iceberg both have the same name.
        raise _not_mirrored(f"{str(error).splitlines()[0]}; rename a column") from None


def _column_field(field_id: int, column: Column, nested_ids: Iterator[int]) -> NestedField:
    column_type = lake_type(column.data_type, nested_ids)
    return NestedField(
        field_id, column.name, column_type, required=not column.data_type.nullable, doc=column.comment or None
    )


def partition_spec(descriptor: TableDescriptor, schema: LakeSchema) -> PartitionSpec:
    """Return the partitions of the lake table: those of the Fluss table, and last the bucket."""
    fields = [(key, key, IdentityTransform()) for key in descriptor.partition_keys]
    if descriptor.bucket_keys:
        key = descriptor.bucket_keys[0]
        fields.append((key, f"{key}_bucket", BucketTransform(descriptor.bucket_count or 1)))
    else:
        fields.append((BUCKET_COLUMN, BUCKET_COLUMN, IdentityTransform()))
    return PartitionSpec(
        *(
            PartitionField(schema.find_field(source).field_id, PARTITION_FIELD_ID_START + index, transform, name)
            for index, (source, name, transform) in enumerate(fields)
        )
    )


def sort_order(schema: LakeSchema) -> SortOrder:
    """Return the order of rows in files: that of the log."""
    offset_id = schema.find_field(OFFSET_COLUMN).field_id
    return SortOrder(SortField(offset_id, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST))


def lake_properties(descriptor: TableDescriptor) -> dict[str, str]:
    """Return the properties of the lake table. Raises code 39 for those that users may not set."""
    properties = changed_lake_properties({**descriptor.properties, **descriptor.custom_properties})
    if descriptor.has_primary_key():
        properties.update(MERGE_ON_READ)
    return properties


def changed_lake_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties of a Fluss table under the names that they have in the lake."""
    named = {lake_property_name(key): value for key, value in properties.items()}
    for key in MERGE_ON_READ:
        if key in named:
            raise FlussError(
                f"'{LAKE_PROPERTY_PREFIX}{key}' cannot be set: rows of lake tables are always merged when read",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
    return named


def lake_property_name(key: str) -> str:
    """Return the name that a property of a Fluss table has in the lake."""
    if key.startswith(LAKE_PROPERTY_PREFIX):
        return key.removeprefix(LAKE_PROPERTY_PREFIX)
    return FLUSS_PROPERTY_PREFIX + key


def check_mirrored(descriptor: TableDescriptor) -> None:
    """Refuse a Fluss table that no Iceberg table can mirror (code 15)."""
    for name in SYSTEM_COLUMNS:
        if name in descriptor.schema.column_names:
            raise _not_mirrored(f"a column is named {name!r}, which the lake needs for itself; rename the column")
    if len(descriptor.bucket_keys) > 1:
        raise _not_mirrored(
            f"it has {len(descriptor.bucket_keys)} bucket keys, and Iceberg tables are bucketed by one; choose one of "
            f"{', '.join(descriptor.bucket_keys)}"
        )
    for key in descriptor.bucket_keys:
        data_type = descriptor.schema.column(key).data_type
        if not BucketTransform(1).can_transform(lake_type(data_type)):
            raise _not_mirrored(
                f"its bucket key '{key}' is {data_type.text}, by which Iceberg tables cannot be bucketed"
            )
    for key in descriptor.schema.get_primary_keys():
        data_type = descriptor.schema.column(key).data_type
        if data_type.root in (TypeRoot.FLOAT, TypeRoot.DOUBLE):
            raise _not_mirrored(f"its key column '{key}' is {data_type.text}, which keys of Iceberg tables cannot be")
        if not is_exact(data_type):
            raise _not_mirrored(
                f"its key column '{key}' is {data_type.text}, and the lake has times in microseconds: keys that differ "
                "only behind that would be one. Choose a precision of 6 at most"
            )
    for key in descriptor.partition_keys:
        data_type = descriptor.schema.column(key).data_type
        if data_type.root is not TypeRoot.STRING:
            raise _not_mirrored(f"its partition key '{key}' is {data_type.text}; partition by columns of type STRING")


def _not_mirrored(why: str) -> FlussError:
    return FlussError(f"The table cannot have a copy in an Iceberg lake: {why}", ErrorCode.INVALID_TABLE_EXCEPTION)
