"""Schemas and descriptors as JSON, the form in which they travel and are stored.

    table      {"version":1,"schema":S,"comment":s?,"partition_key":[s],"bucket_key":[s]?,"bucket_count":n?,
                "properties":{s:s},"custom_properties":{s:s}}
    S          {"version":1,"columns":[C],"primary_key":[s]?,"auto_increment_column":[s]?,"highest_field_id":n}
    C          {"name":s,"data_type":T,"comment":s?,"agg_function":{"type":s,"parameters":{s:s}?}?,"id":n}
    T          {"type":ROOT,"nullable":false?, then by type "length", "precision", "scale", "element_type":T,
                "key_type":T and "value_type":T, or "fields":[F]}
    F          {"name":s,"field_type":T,"description":s?,"field_id":n}
    database   {"version":1,"comment":s?,"custom_properties":{s:s}}

``?`` marks keys that are left out when there is nothing to say. Output has this order and no blanks. On input ids may
be missing everywhere, then columns and fields are numbered; ``version`` is not looked at and unknown keys are
skipped, so that other generations can be read. Everything else must be as above: input may come from anywhere, and
whatever is wrong with it ends in a ``FlussError``, with code 15 for types, schemas and tables and 16 for databases.
Readers take the largest size they accept (``bytes_max``) and the deepest nesting of types (``depth_max``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from fluss.buffers import BytesLike
from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT32_MAX
from fluss.json_object import JsonObject, parse_object, write_json
from fluss.schema.descriptor import DatabaseDescriptor, TableDescriptor
from fluss.schema.schema import AggFunction, Column, Schema, canonical_function_name, schema_from_columns
from fluss.schema.types import (
    FIELD_ID_UNASSIGNED,
    NESTING_DEPTH_MAX,
    ArrayType,
    BigIntType,
    BinaryType,
    BooleanType,
    BytesType,
    CharType,
    DataField,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    MapType,
    RowType,
    SmallIntType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TinyIntType,
    TypeRoot,
)

VERSION: Final = 1
# A table of ten thousand columns needs about one megabyte.
JSON_BYTES_MAX: Final = 4 * 1024 * 1024
# Complaints may repeat names out of the document; what is longer than this is of no help.
_MESSAGE_CHARS_MAX: Final = 2000

_PLAIN_TYPES: Final[dict[str, Callable[[], DataType]]] = {
    TypeRoot.BOOLEAN: BooleanType,
    TypeRoot.TINYINT: TinyIntType,
    TypeRoot.SMALLINT: SmallIntType,
    TypeRoot.INTEGER: IntType,
    TypeRoot.BIGINT: BigIntType,
    TypeRoot.FLOAT: FloatType,
    TypeRoot.DOUBLE: DoubleType,
    TypeRoot.STRING: StringType,
    TypeRoot.BYTES: BytesType,
    TypeRoot.DATE: DateType,
}
_LENGTH_TYPES: Final[dict[str, Callable[[int], DataType]]] = {
    TypeRoot.CHAR: CharType,
    TypeRoot.BINARY: BinaryType,
}
_PRECISION_TYPES: Final[dict[str, Callable[[int], DataType]]] = {
    TypeRoot.TIME: TimeType,
    TypeRoot.TIMESTAMP: TimestampType,
    TypeRoot.TIMESTAMP_LTZ: TimestampLtzType,
}


def data_type_to_json(data_type: DataType) -> bytes:
    return _dump(_type_values(data_type))


def schema_to_json(schema: Schema) -> bytes:
    return _dump(_schema_values(schema))


def table_to_json(descriptor: TableDescriptor) -> bytes:
    values: dict[str, Any] = {"version": VERSION, "schema": _schema_values(descriptor.schema)}
    if descriptor.comment is not None:
        values["comment"] = descriptor.comment
    values["partition_key"] = descriptor.partition_keys
    if descriptor.has_distribution():
        values["bucket_key"] = descriptor.bucket_keys
    if descriptor.bucket_count is not None:
        values["bucket_count"] = descriptor.bucket_count
    values["properties"] = descriptor.properties
    values["custom_properties"] = descriptor.custom_properties
    return _dump(values)


def database_to_json(descriptor: DatabaseDescriptor) -> bytes:
    values: dict[str, Any] = {"version": VERSION}
    if descriptor.comment is not None:
        values["comment"] = descriptor.comment
    values["custom_properties"] = descriptor.custom_properties
    return _dump(values)


def _dump(values: dict[str, Any]) -> bytes:
    try:
        return write_json(values)
    except UnicodeEncodeError as error:
        raise FlussError(f"Names, comments and properties must be valid Unicode text: {error}") from None


def _schema_values(schema: Schema) -> dict[str, Any]:
    values: dict[str, Any] = {"version": VERSION, "columns": [_column_values(column) for column in schema.columns]}
    if schema.primary_key is not None:
        values["primary_key"] = schema.primary_key
    if schema.get_auto_increment_columns():
        values["auto_increment_column"] = schema.get_auto_increment_columns()
    values["highest_field_id"] = schema.highest_field_id
    return values


def _column_values(column: Column) -> dict[str, Any]:
    values: dict[str, Any] = {"name": column.name, "data_type": _type_values(column.data_type)}
    if column.comment is not None:
        values["comment"] = column.comment
    if column.aggregation is not None:
        function: dict[str, Any] = {"type": column.aggregation.name}
        if column.aggregation.parameters:
            function["parameters"] = dict(column.aggregation.parameters)
        values["agg_function"] = function
    values["id"] = column.column_id
    return values


def _type_values(data_type: DataType) -> dict[str, Any]:
    values: dict[str, Any] = {"type": data_type.root.value}
    if not data_type.nullable:
        values["nullable"] = False
    match data_type:
        case CharType() | BinaryType():
            values["length"] = data_type.length
        case DecimalType():
            values["precision"] = data_type.precision
            values["scale"] = data_type.scale
        case TimeType() | TimestampType() | TimestampLtzType():
            values["precision"] = data_type.precision
        case ArrayType():
            values["element_type"] = _type_values(data_type.element_type)
        case MapType():
            values["key_type"] = _type_values(data_type.key_type)
            values["value_type"] = _type_values(data_type.value_type)
        case RowType():
            values["fields"] = [_field_values(row_field) for row_field in data_type.fields]
    return values


def _field_values(row_field: DataField) -> dict[str, Any]:
    values: dict[str, Any] = {"name": row_field.name, "field_type": _type_values(row_field.data_type)}
    if row_field.description is not None:
        values["description"] = row_field.description
    # A type on its own, not yet part of a schema, has no ids.
    if row_field.field_id != FIELD_ID_UNASSIGNED:
        values["field_id"] = row_field.field_id
    return values


def data_type_from_json(
    data: BytesLike | str, *, bytes_max: int = JSON_BYTES_MAX, depth_max: int = NESTING_DEPTH_MAX
) -> DataType:
    with _errors_as(ErrorCode.INVALID_TABLE_EXCEPTION, "data type"):
        return _read_type(parse_object(data, bytes_max=bytes_max), depth_max)


def schema_from_json(
    data: BytesLike | str, *, bytes_max: int = JSON_BYTES_MAX, depth_max: int = NESTING_DEPTH_MAX
) -> Schema:
    with _errors_as(ErrorCode.INVALID_TABLE_EXCEPTION, "schema"):
        return _read_schema(parse_object(data, bytes_max=bytes_max), depth_max)


def table_from_json(
    data: BytesLike | str, *, bytes_max: int = JSON_BYTES_MAX, depth_max: int = NESTING_DEPTH_MAX
) -> TableDescriptor:
    with _errors_as(ErrorCode.INVALID_TABLE_EXCEPTION, "table descriptor"):
        table = parse_object(data, bytes_max=bytes_max)
        if table.has("bucket_count") and not table.has("bucket_key"):
            raise table.error("bucket_key", "is missing, but bucket_count is given")
        return TableDescriptor(
            _read_schema(table.object("schema"), depth_max),
            comment=table.optional_string("comment"),
            partition_keys=table.strings("partition_key"),
            bucket_keys=table.strings("bucket_key") if table.has("bucket_key") else None,
            bucket_count=_read_int32(table, "bucket_count", 1) if table.has("bucket_count") else None,
            properties=table.string_map("properties"),
            custom_properties=table.string_map("custom_properties"),
        )


def database_from_json(data: BytesLike | str, *, bytes_max: int = JSON_BYTES_MAX) -> DatabaseDescriptor:
    with _errors_as(ErrorCode.INVALID_DATABASE_EXCEPTION, "database descriptor"):
        database = parse_object(data, bytes_max=bytes_max)
        return DatabaseDescriptor(database.optional_string("comment"), database.string_map("custom_properties"))


@contextmanager
def _errors_as(code: ErrorCode, what: str) -> Iterator[None]:
    """Give every complaint about a document the code that a server answers with."""
    try:
        yield
    except FlussError as error:
        raise FlussError(f"Invalid {what}: {error.message[:_MESSAGE_CHARS_MAX]}", code) from None


def _read_schema(schema: JsonObject, depth_max: int) -> Schema:
    primary_keys = schema.strings("primary_key") if schema.has("primary_key") else []
    if schema.has("primary_key") and not primary_keys:
        raise schema.error("primary_key", "must not be empty; leave it out for a table without a primary key")
    return schema_from_columns(
        [_read_column(column, depth_max) for column in schema.objects("columns")],
        primary_keys,
        schema.strings("auto_increment_column") if schema.has("auto_increment_column") else [],
        _read_int32(schema, "highest_field_id", FIELD_ID_UNASSIGNED) if schema.has("highest_field_id") else None,
    )


def _read_column(column: JsonObject, depth_max: int) -> Column:
    return Column(
        column.string("name"),
        _read_type(column.object("data_type"), depth_max),
        column.optional_string("comment"),
        _read_function(column.object("agg_function")) if column.has("agg_function") else None,
        _read_id(column, "id"),
    )


def _read_function(function: JsonObject) -> AggFunction | None:
    """Read an aggregate function. One that is not known here is dropped, as all servers do."""
    name = canonical_function_name(function.string("type"))
    parameters = function.string_map("parameters") if function.has("parameters") else {}
    return None if name is None else AggFunction.of(name, parameters)


def _read_type(node: JsonObject, depth_left: int) -> DataType:
    if depth_left == 0:
        raise FlussError("a type is nested too deeply; use a flatter one")
    root = node.string("type")
    nullable = node.boolean("nullable", True)
    return _read_nullable_type(node, root, depth_left).with_nullable(nullable)


def _read_nullable_type(node: JsonObject, root: str, depth_left: int) -> DataType:
    if root in _PLAIN_TYPES:
        return _PLAIN_TYPES[root]()
    if root in _LENGTH_TYPES:
        return _LENGTH_TYPES[root](node.integer("length"))
    if root in _PRECISION_TYPES:
        return _PRECISION_TYPES[root](node.integer("precision"))
    match root:
        case TypeRoot.DECIMAL:
            return DecimalType(node.integer("precision"), node.integer("scale"))
        case TypeRoot.ARRAY:
            return ArrayType(_read_type(node.object("element_type"), depth_left - 1))
        case TypeRoot.MAP:
            key_type = _read_type(node.object("key_type"), depth_left - 1)
            return MapType(key_type, _read_type(node.object("value_type"), depth_left - 1))
        case TypeRoot.ROW:
            return RowType(tuple(_read_field(field, depth_left) for field in node.objects("fields")))
    raise node.error("type", f"is not a known data type: {root[:60]!r}")


def _read_field(field: JsonObject, depth_left: int) -> DataField:
    return DataField(
        field.string("name"),
        _read_type(field.object("field_type"), depth_left - 1),
        field.optional_string("description"),
        _read_id(field, "field_id"),
    )


def _read_id(node: JsonObject, key: str) -> int:
    return _read_int32(node, key, FIELD_ID_UNASSIGNED) if node.has(key) else FIELD_ID_UNASSIGNED


def _read_int32(node: JsonObject, key: str, lowest: int) -> int:
    return node.integer(key, lowest=lowest, highest=INT32_MAX)
