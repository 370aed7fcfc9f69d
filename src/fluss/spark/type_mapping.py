"""Fluss types as Spark types, and back; the schemas of a table and of its views as Spark shows them.

    Fluss                                  Spark
    BOOLEAN, TINYINT .. BIGINT             the same (byte, short, int, long)
    FLOAT, DOUBLE, DATE, DECIMAL(p,s)      the same
    CHAR(n), STRING                        StringType. Spark's varchar(n) is a STRING with a limit (text_limits), its
                                           char(n) a CHAR(n)
    BINARY(n), BYTES                       BinaryType, which is BYTES on the way back
    TIME(p)                                TimeType(p), at most TimeType(6)
    TIMESTAMP(p)                           TimestampNTZType, which has 6 digits
    TIMESTAMP_LTZ(p)                       TimestampType, which has 6 digits
    ARRAY, MAP, ROW                        ArrayType, MapType, StructType

Nullability is kept at every level, except that inside a ROW that may be null everything may be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from pyspark.sql import types as spark

from fluss.errors import FlussError
from fluss.schema.schema import Column, Schema, schema_from_columns, shown_names
from fluss.schema.table import matching_name
from fluss.schema.types import (
    ArrayType,
    BigIntType,
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
from fluss.spark.naming import TableView

CHANGE_TYPE: Final = "_change_type"
LOG_OFFSET: Final = "_log_offset"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"
# The columns of the view $binlog beside the ones above.
BEFORE: Final = "before"
AFTER: Final = "after"
# Spark has no more digits of a second.
SPARK_DIGITS_MAX: Final = 6
_COMMENT: Final = "comment"
_DEFAULT_COLLATION: Final = "UTF8_BINARY"

_PLAIN_TYPES: Final[dict[TypeRoot, spark.DataType]] = {
    TypeRoot.BOOLEAN: spark.BooleanType(),
    TypeRoot.TINYINT: spark.ByteType(),
    TypeRoot.SMALLINT: spark.ShortType(),
    TypeRoot.INTEGER: spark.IntegerType(),
    TypeRoot.BIGINT: spark.LongType(),
    TypeRoot.FLOAT: spark.FloatType(),
    TypeRoot.DOUBLE: spark.DoubleType(),
    TypeRoot.CHAR: spark.StringType(),
    TypeRoot.STRING: spark.StringType(),
    TypeRoot.BINARY: spark.BinaryType(),
    TypeRoot.BYTES: spark.BinaryType(),
    TypeRoot.DATE: spark.DateType(),
    TypeRoot.TIMESTAMP: spark.TimestampNTZType(),
    TypeRoot.TIMESTAMP_LTZ: spark.TimestampType(),
}
_PLAIN_FLUSS_TYPES: Final[dict[type[spark.DataType], DataType]] = {
    spark.BooleanType: BooleanType(),
    spark.ByteType: TinyIntType(),
    spark.ShortType: SmallIntType(),
    spark.IntegerType: IntType(),
    spark.LongType: BigIntType(),
    spark.FloatType: FloatType(),
    spark.DoubleType: DoubleType(),
    spark.VarcharType: StringType(),
    spark.BinaryType: BytesType(),
    spark.DateType: DateType(),
    spark.TimestampNTZType: TimestampType(SPARK_DIGITS_MAX),
    spark.TimestampType: TimestampLtzType(SPARK_DIGITS_MAX),
}


# Fluss to Spark


def spark_type(data_type: DataType) -> spark.DataType:
    """Return the Spark type that holds the values of a Fluss type."""
    plain = _PLAIN_TYPES.get(data_type.root)
    if plain is not None:
        return plain
    match data_type:
        case DecimalType():
            return spark.DecimalType(data_type.precision, data_type.scale)
        case TimeType():
            return spark.TimeType(min(data_type.precision, SPARK_DIGITS_MAX))
        case ArrayType():
            return spark.ArrayType(spark_type(data_type.element_type), data_type.element_type.nullable)
        case MapType():
            value_type = data_type.value_type
            return spark.MapType(spark_type(data_type.key_type), spark_type(value_type), value_type.nullable)
        case RowType():
            struct = spark.StructType([_field(f.name, f.data_type, f.description) for f in data_type.fields])
            return nullable_inside(struct) if data_type.nullable else struct
    raise AssertionError(f"no Spark type for {data_type!r}")


def nullable_inside(struct: spark.StructType) -> spark.StructType:
    """Return the type of a row that may be missing: everything in it may be, too.

    Spark's own conversions to Arrow fail on a missing row with columns that must not be null.
    """
    return spark.StructType(
        [
            spark.StructField(
                field.name,
                nullable_inside(field.dataType) if isinstance(field.dataType, spark.StructType) else field.dataType,
                metadata=field.metadata,
            )
            for field in struct
        ]
    )


def spark_schema(schema: Schema, columns: Sequence[str] | None = None) -> spark.StructType:
    """Return the schema of a table, or of some of its columns in this order; an unknown one is a FlussError."""
    chosen = schema.columns if columns is None else [schema.column(name) for name in columns]
    return spark.StructType([_field(column.name, column.data_type, column.comment) for column in chosen])


def changelog_columns() -> list[spark.StructField]:
    """Return the columns that say of a change what it is, where it stands in the log of its bucket, and when it was.

    A stream that begins with the rows of a table shows them as inserts, which have no place in a log and no time.
    """
    return [
        spark.StructField(CHANGE_TYPE, spark.StringType(), nullable=False),
        spark.StructField(LOG_OFFSET, spark.LongType(), nullable=False),
        spark.StructField(COMMIT_TIMESTAMP, spark.TimestampType(), nullable=True),
    ]


def view_schema(
    schema: Schema, view: TableView, columns: Sequence[str] | None = None, *, is_case_sensitive: bool = True
) -> spark.StructType:
    """Return the schema of a view of a table, or of some of its columns in this order.

    The rows of a table are the view without a name; those in the lake have the same columns.
    """
    rows = spark_schema(schema)
    match view:
        case "changelog":
            fields = [*changelog_columns(), *rows.fields]
        case "binlog":
            row = nullable_inside(rows)
            fields = [*changelog_columns(), *(spark.StructField(name, row) for name in (BEFORE, AFTER))]
        case _:
            fields = rows.fields
    if columns is None:
        return spark.StructType(fields)
    by_name = {field.name: field for field in fields}
    return spark.StructType([by_name[_found(name, by_name, is_case_sensitive)] for name in columns])


def _found(name: str, names: Collection[str], is_case_sensitive: bool) -> str:
    found = matching_name(name, names, is_case_sensitive=is_case_sensitive)
    if found is None:
        raise FlussError(f"Column '{name}' not found; columns are {shown_names(names)}")
    return found


def _field(name: str, data_type: DataType, comment: str | None) -> spark.StructField:
    metadata = None if comment is None else {_COMMENT: comment}
    return spark.StructField(name, spark_type(data_type), data_type.nullable, metadata)


def check_projection(
    wanted: spark.StructType, available: spark.StructType, table: object, *, is_case_sensitive: bool = True
) -> spark.StructType:
    """Make sure that a schema given by a user chooses columns of a table, with the types that they have.

    Returns the schema with the names that the columns have in the table.
    """
    by_name = {field.name: field for field in available}
    fields = []
    for field in wanted:
        name = matching_name(field.name, by_name, is_case_sensitive=is_case_sensitive)
        if name is None:
            raise FlussError(f"{table} has no column '{field.name}'; columns are {shown_names(by_name)}")
        column = by_name[name]
        fields.append(spark.StructField(name, field.dataType, field.nullable, field.metadata))
        if not _holds(field.dataType, column.dataType):
            raise FlussError(
                f"Column '{field.name}' of {table} is {column.dataType.simpleString()}, not "
                f"{field.dataType.simpleString()}; read it as it is, and cast it afterwards"
            )
        if column.nullable and not field.nullable:
            raise FlussError(f"Column '{field.name}' of {table} may be null; the schema must not say NOT NULL")
    return spark.StructType(fields)


def _holds(wanted: spark.DataType, actual: spark.DataType) -> bool:
    """Whether a type has all values of another: it is the same one, and nullable inside wherever the other one is."""
    match wanted, actual:
        case spark.ArrayType(), spark.ArrayType():
            return wanted.containsNull >= actual.containsNull and _holds(wanted.elementType, actual.elementType)
        case spark.MapType(), spark.MapType():
            return (
                wanted.valueContainsNull >= actual.valueContainsNull
                and _holds(wanted.keyType, actual.keyType)
                and _holds(wanted.valueType, actual.valueType)
            )
        case spark.StructType(), spark.StructType():
            return wanted.names == actual.names and all(
                mine.nullable >= theirs.nullable and _holds(mine.dataType, theirs.dataType)
                for mine, theirs in zip(wanted, actual, strict=True)
            )
    return wanted == actual


# Spark to Fluss


def fluss_schema(struct: spark.StructType, primary_keys: Sequence[str] = ()) -> Schema:
    """Return the schema of a new table with the columns of a Spark schema. Key columns become NOT NULL.

    A type that no Fluss type holds is a FlussError that names its column.
    """
    columns = [
        Column(field.name, fluss_type(field.dataType, field.name).with_nullable(field.nullable), _comment(field))
        for field in struct
    ]
    return schema_from_columns(columns, list(primary_keys))


def fluss_type(data_type: spark.DataType, column: str) -> DataType:
    """Return the Fluss type for a Spark type; ``column`` is the one that error messages name."""
    plain = _PLAIN_FLUSS_TYPES.get(type(data_type))
    if plain is not None:
        return plain
    match data_type:
        case spark.CharType():
            return CharType(data_type.length)
        case spark.StringType():
            return _text_type(data_type, column)
        case spark.DecimalType():
            return DecimalType(data_type.precision, data_type.scale)
        case spark.TimeType():
            return TimeType(data_type.precision)
        case spark.ArrayType():
            element = fluss_type(data_type.elementType, f"{column}[]")
            return ArrayType(element.with_nullable(data_type.containsNull))
        case spark.MapType():
            value = fluss_type(data_type.valueType, f"{column}.value")
            return MapType(
                fluss_type(data_type.keyType, f"{column}.key"), value.with_nullable(data_type.valueContainsNull)
            )
        case spark.StructType():
            return RowType(tuple(_row_fields(data_type, column)))
    raise FlussError(
        f"Column '{column}' is {data_type.simpleString()}, and no Fluss type holds such values; cast it or leave it out"
    )


def _text_type(data_type: spark.StringType, column: str) -> StringType:
    # StringType is also the parent of char and varchar, which were handled before.
    collation = getattr(data_type, "collation", _DEFAULT_COLLATION)
    if collation != _DEFAULT_COLLATION:
        raise FlussError(f"Column '{column}' has the collation {collation}, but Fluss has {_DEFAULT_COLLATION} only")
    return StringType()


def _row_fields(struct: spark.StructType, column: str) -> Iterable[DataField]:
    for field in struct:
        data_type = fluss_type(field.dataType, f"{column}.{field.name}")
        yield DataField(field.name, data_type.with_nullable(field.nullable), _comment(field))


def _comment(field: spark.StructField) -> str | None:
    comment = field.metadata.get(_COMMENT)
    return comment if isinstance(comment, str) else None
