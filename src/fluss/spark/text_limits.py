"""How long texts may be: CHAR(n), which Fluss has, and VARCHAR(n), which it does not.

A VARCHAR(n) of Spark is a STRING in Fluss. Its length is kept with the table, as the property ``varchar.<column>``, and
writers of this package hold to it as Spark does: spaces at the end of a text that is too long are cut off, and what is
too long without them is refused. Writers of other clients do not know of it. Texts are not padded, neither those of
VARCHAR nor those of CHAR.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from fluss.errors import FlussError
from fluss.row.arrow_arrays import number_array
from fluss.schema.schema import Schema
from fluss.schema.table import TableInfo
from fluss.schema.types import CharType, TypeRoot

PROPERTY_PREFIX: Final = "varchar."


def limit_properties(struct: spark.StructType) -> dict[str, str]:
    """Return the properties of a new table that say how long the texts of its columns may be.

    A VARCHAR inside of another type is a FlussError: its length could not be kept.
    """
    properties = {}
    for field in struct:
        if isinstance(field.dataType, spark.VarcharType):
            properties[PROPERTY_PREFIX + field.name] = str(field.dataType.length)
        elif _has_varchar(field.dataType):
            raise FlussError(
                f"Column '{field.name}' is {field.dataType.simpleString()}: the length of a VARCHAR is kept for whole "
                "columns only; use STRING inside of other types"
            )
    return properties


def _has_varchar(data_type: spark.DataType) -> bool:
    match data_type:
        case spark.VarcharType():
            return True
        case spark.ArrayType():
            return _has_varchar(data_type.elementType)
        case spark.MapType():
            return _has_varchar(data_type.keyType) or _has_varchar(data_type.valueType)
        case spark.StructType():
            return any(_has_varchar(field.dataType) for field in data_type)
    return False


def text_limits(info: TableInfo) -> dict[str, int]:
    """Return how many characters the texts of columns may have, where there is a limit."""
    return {**char_limits(info.schema), **varchar_limits(info.schema, info.custom_properties)}


def char_limits(schema: Schema) -> dict[str, int]:
    """Return the lengths of the columns that are CHAR."""
    return {column.name: column.data_type.length for column in schema.columns if isinstance(column.data_type, CharType)}


def varchar_limits(schema: Schema, properties: Mapping[str, str]) -> dict[str, int]:
    """Return the lengths of the columns that were created as VARCHAR."""
    limits = {}
    for column in schema.columns:
        length = properties.get(PROPERTY_PREFIX + column.name, "")
        if column.data_type.root is TypeRoot.STRING and length.isdecimal():
            limits[column.name] = int(length)
    return limits


def declared_schema(info: TableInfo, struct: spark.StructType) -> spark.StructType:
    """Return the columns of a table as they were declared in SQL, with VARCHAR where they are."""
    limits = varchar_limits(info.schema, info.custom_properties)
    return spark.StructType(
        [
            spark.StructField(
                field.name,
                spark.VarcharType(limits[field.name]) if field.name in limits else field.dataType,
                field.nullable,
                field.metadata,
            )
            for field in struct
        ]
    )


def within_limit(texts: pa.Array, length: int, column: str) -> pa.Array:
    """Return texts that are no longer than so many characters; one that cannot be is a FlussError."""
    lengths = pc.utf8_length(texts)
    if _longest(lengths) <= length:
        return texts
    longest = _longest(pc.utf8_length(pc.utf8_rtrim(texts, characters=" ")))
    if longest > length:
        raise FlussError(
            f"Column '{column}' takes texts of at most {length} characters, and there is one of {longest}; shorten it, "
            "or make the column a STRING"
        )
    limit = number_array(np.array([length], np.int32))[0]
    return pc.if_else(pc.greater(lengths, limit), pc.utf8_slice_codeunits(texts, 0, length), texts)


def _longest(lengths: pa.Array) -> int:
    return pc.max(lengths).as_py() or 0
