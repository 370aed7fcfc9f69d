"""The columns of a new table, in whatever form the user has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa
from pyspark.errors import ParseException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from fluss.errors import FlussError
from fluss.schema.schema import Column, Schema
from fluss.spark.types import fluss_schema

# A Spark schema, its text form, the columns of a DataFrame, or a schema of Arrow or of this library.
ColumnsLike: TypeAlias = spark.StructType | str | DataFrame | pa.Schema | Schema


def schema_of(columns: ColumnsLike) -> Schema:
    """Return the columns as those of a Fluss table, without keys; a type that Fluss does not have is a FlussError.

    Of a DataFrame every column may be null, as with CREATE TABLE AS: what a query returned says little about what a
    table will hold.
    """
    match columns:
        case Schema():
            return columns
        case pa.Schema():
            return Schema(columns)
        case str():
            return fluss_schema(struct_of_text(columns))
        case spark.StructType():
            return fluss_schema(columns)
        case DataFrame():
            return fluss_schema(nullable_struct(columns.schema))
    raise TypeError(
        "columns are a Spark schema, its text such as 'id BIGINT, name STRING', a DataFrame or a pyarrow.Schema, "
        f"got {type(columns).__name__}"
    )


def added_columns(columns: ColumnsLike | Sequence[Column | pa.Field]) -> list[Column | pa.Field]:
    """Return columns that are to be added to a table."""
    if isinstance(columns, Sequence) and not isinstance(columns, str):
        return list(columns)
    return list(schema_of(columns).columns)


def struct_of_text(text: str) -> spark.StructType:
    """Read a schema in the form of CREATE TABLE with Spark's own parser."""
    try:
        struct = spark.DataType.fromDDL(text)
    except ParseException as error:
        raise FlussError(
            f"{text!r} is no list of columns such as 'id BIGINT, name STRING': {reason_of(error)}"
        ) from None
    if not isinstance(struct, spark.StructType):
        raise FlussError(f"{text!r} is one type, not a list of columns such as 'id BIGINT, name STRING'")
    return struct


def reason_of(error: ParseException) -> str:
    """Return the sentence of an error of Spark's parser, without the statement, of which it saw only a part."""
    first_line = str(error).strip().partition("\n")[0]
    return re.sub(r"^\[[A-Z_.]+\]\s*|\s*SQLSTATE:.*$|\s*\(line \d+, pos \d+\).*$", "", first_line)


def nullable_struct(struct: spark.StructType) -> spark.StructType:
    """Return a schema in which everything may be null."""
    return spark.StructType(
        [spark.StructField(field.name, _nullable(field.dataType), True, field.metadata) for field in struct]
    )


def _nullable(data_type: spark.DataType) -> spark.DataType:
    match data_type:
        case spark.StructType():
            return nullable_struct(data_type)
        case spark.ArrayType():
            return spark.ArrayType(_nullable(data_type.elementType), True)
        case spark.MapType():
            return spark.MapType(_nullable(data_type.keyType), _nullable(data_type.valueType), True)
    return data_type
