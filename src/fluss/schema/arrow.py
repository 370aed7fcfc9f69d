"""Fluss types as Arrow types, and back.

Log batches carry no schema, so each Fluss type has exactly one physical Arrow type (``arrow_type``). In the other
direction several Arrow types are taken for one Fluss type (``data_type_from_arrow``):

    Fluss              Arrow, physical              also taken from Arrow
    BOOLEAN            bool
    TINYINT..BIGINT    int8, int16, int32, int64    the unsigned type of the same width
    FLOAT, DOUBLE      float32, float64
    CHAR, STRING       string                       large_string, string_view (always as STRING)
    BYTES              binary                       large_binary, binary_view
    BINARY(n)          fixed_size_binary(n)
    DECIMAL(p,s)       decimal128(p,s)
    DATE               date32                       date64
    TIME(p)            p 0: s, 1-3: ms, 4-6: us, 7-9: ns, as time32 or time64
    TIMESTAMP(p)       timestamp with the same units, without a zone
    TIMESTAMP_LTZ(p)   timestamp with the same units, zone UTC; any other zone is taken, too
    ARRAY              list, child "item"           large_list, any child name
    MAP                map, "key" and "value"
    ROW                struct

A dictionary is taken for the type of its values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.types as pat

from fluss.errors import FlussError
from fluss.schema.types import (
    ArrayType,
    BigIntType,
    BinaryType,
    BooleanType,
    BytesType,
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
    check_nesting_depth,
)

LIST_CHILD_NAME: Final = "item"
MAP_KEY_NAME: Final = "key"
MAP_VALUE_NAME: Final = "value"
# The zone shown for TIMESTAMP_LTZ. Instants are stored without one.
TIMESTAMP_LTZ_ZONE: Final = "UTC"

_PLAIN_ARROW_TYPES: Final[dict[TypeRoot, pa.DataType]] = {
    TypeRoot.BOOLEAN: pa.bool_(),
    TypeRoot.TINYINT: pa.int8(),
    TypeRoot.SMALLINT: pa.int16(),
    TypeRoot.INTEGER: pa.int32(),
    TypeRoot.BIGINT: pa.int64(),
    TypeRoot.FLOAT: pa.float32(),
    TypeRoot.DOUBLE: pa.float64(),
    TypeRoot.CHAR: pa.string(),
    TypeRoot.STRING: pa.string(),
    TypeRoot.BYTES: pa.binary(),
    TypeRoot.DATE: pa.date32(),
}

_PRECISION_BY_UNIT: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}

# The first test that holds decides. Types with parameters or children follow in the functions below.
_PLAIN_TYPE_TESTS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[], DataType]], ...]] = (
    (pat.is_boolean, BooleanType),
    (pat.is_int8, TinyIntType),
    (pat.is_uint8, TinyIntType),
    (pat.is_int16, SmallIntType),
    (pat.is_uint16, SmallIntType),
    (pat.is_int32, IntType),
    (pat.is_uint32, IntType),
    (pat.is_int64, BigIntType),
    (pat.is_uint64, BigIntType),
    (pat.is_float32, FloatType),
    (pat.is_float64, DoubleType),
    (pat.is_string, StringType),
    (pat.is_large_string, StringType),
    (pat.is_string_view, StringType),
    (pat.is_binary, BytesType),
    (pat.is_large_binary, BytesType),
    (pat.is_binary_view, BytesType),
    (pat.is_date, DateType),
)


def time_unit(precision: int) -> str:
    """Return the Arrow unit that holds times with ``precision`` digits after the second."""
    if precision == 0:
        return "s"
    if precision <= 3:
        return "ms"
    return "us" if precision <= 6 else "ns"


def arrow_type(data_type: DataType) -> pa.DataType:
    """Return the one Arrow type in which values of a Fluss type are stored."""
    plain = _PLAIN_ARROW_TYPES.get(data_type.root)
    if plain is not None:
        return plain
    match data_type:
        case BinaryType():
            return pa.binary(data_type.length)
        case DecimalType():
            return pa.decimal128(data_type.precision, data_type.scale)
        case TimeType():
            unit = time_unit(data_type.precision)
            return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
        case TimestampType():
            return pa.timestamp(time_unit(data_type.precision))
        case TimestampLtzType():
            return pa.timestamp(time_unit(data_type.precision), tz=TIMESTAMP_LTZ_ZONE)
        case ArrayType():
            return pa.list_(arrow_field(LIST_CHILD_NAME, data_type.element_type))
        case MapType():
            key = arrow_field(MAP_KEY_NAME, data_type.key_type)
            return pa.map_(key, arrow_field(MAP_VALUE_NAME, data_type.value_type))
        case RowType():
            return pa.struct([arrow_field(f.name, f.data_type) for f in data_type.fields])
    raise AssertionError(f"no Arrow type for {data_type!r}")


def arrow_field(name: str, data_type: DataType) -> pa.Field:
    """Return the Arrow field of a column: its physical type and its nullability, no metadata."""
    return pa.field(name, arrow_type(data_type), nullable=data_type.nullable)


def data_type_from_arrow(pa_type: pa.DataType, nullable: bool = True) -> DataType:
    """Return the Fluss type for any Arrow type of the table above; other types are a ``FlussError``."""
    return _from_arrow(pa_type, 1).with_nullable(nullable)


def _from_arrow(pa_type: pa.DataType, depth: int) -> DataType:
    check_nesting_depth(depth)
    for is_type, plain in _PLAIN_TYPE_TESTS:
        if is_type(pa_type):
            return plain()
    if pat.is_dictionary(pa_type):
        return _from_arrow(pa_type.value_type, depth + 1)
    if pat.is_list(pa_type) or pat.is_large_list(pa_type):
        return ArrayType(_child_type(pa_type.value_field, depth))
    if pat.is_map(pa_type):
        return MapType(_child_type(pa_type.key_field, depth), _child_type(pa_type.item_field, depth))
    if pat.is_struct(pa_type):
        return RowType(tuple(DataField(child.name, _child_type(child, depth)) for child in pa_type))
    try:
        parameterised = _parameterised_from_arrow(pa_type)
    except FlussError as error:
        raise FlussError(f"Unsupported Arrow type {pa_type}: {error.message}") from None
    if parameterised is None:
        raise FlussError(f"Unsupported Arrow type {pa_type}: no Fluss data type holds its values")
    return parameterised


def _parameterised_from_arrow(pa_type: pa.DataType) -> DataType | None:
    if pat.is_fixed_size_binary(pa_type):
        return BinaryType(pa_type.byte_width)
    if pat.is_decimal128(pa_type):
        return DecimalType(pa_type.precision, pa_type.scale)
    if pat.is_time(pa_type):
        return TimeType(_PRECISION_BY_UNIT[pa_type.unit])
    if pat.is_timestamp(pa_type):
        precision = _PRECISION_BY_UNIT[pa_type.unit]
        return TimestampType(precision) if pa_type.tz is None else TimestampLtzType(precision)
    return None


def _child_type(child: pa.Field, depth: int) -> DataType:
    return _from_arrow(child.type, depth + 1).with_nullable(child.nullable)
