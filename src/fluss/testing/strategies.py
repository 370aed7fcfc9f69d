"""Hypothesis strategies for types, values and Arrow batches of any schema.

Values are internal values (see ``fluss.row.values``) that survive a trip through Arrow unchanged: a TIME(0) has whole
seconds, a TIMESTAMP(6) whole microseconds. NaN is left out because it is not equal to itself; the codecs' own tests
cover it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy
except ImportError as error:  # pragma: no cover
    raise ImportError("fluss.testing.strategies needs hypothesis: pip install hypothesis") from error

from fluss.row.values import DAY_MS, Timestamp, arrow_from_internal
from fluss.schema.types import (
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
)

# Years 0001 to 9999: what Python and Arrow's text forms can show.
_MILLIS_LOWEST, _MILLIS_HIGHEST = -62_135_596_800_000, 253_402_300_799_999
# What fits 64-bit nanoseconds: 1677-09-22 to 2262-04-11.
_MILLIS_LOWEST_NS, _MILLIS_HIGHEST_NS = -9_223_372_036_854, 9_223_372_036_853
_ITEMS_MAX = 4
# A plain name, and names that text forms have to quote.
_FIELD_NAMES = ("f", "größe ", "a.b", "a, b: `c` <d>", " ", "NOT NULL")

# Building a strategy costs more than drawing from it, and the same types come again and again.
_reused = lru_cache(maxsize=4096)

_INT_BITS: dict[type[DataType], int] = {TinyIntType: 8, SmallIntType: 16, IntType: 32, BigIntType: 64}


@_reused
def scalar_types(*, nullable: bool | None = None) -> SearchStrategy[DataType]:
    """Draw a type that is not nested; ``nullable`` fixes its nullability."""
    precisions = st.integers(0, 9)
    plain = st.sampled_from(
        [
            BooleanType(),
            TinyIntType(),
            SmallIntType(),
            IntType(),
            BigIntType(),
            FloatType(),
            DoubleType(),
            StringType(),
            BytesType(),
            DateType(),
        ]
    )
    types = st.one_of(
        plain,
        st.builds(CharType, st.integers(1, 20)),
        st.builds(BinaryType, st.integers(1, 20)),
        st.integers(1, 38).flatmap(lambda p: st.builds(DecimalType, st.just(p), st.integers(0, p))),
        st.builds(TimeType, precisions),
        st.builds(TimestampType, precisions),
        st.builds(TimestampLtzType, precisions),
    )
    return _with_nullability(types, nullable)


@_reused
def data_types(*, max_leaves: int = 5, nullable: bool | None = None) -> SearchStrategy[DataType]:
    """Draw any type, nested ones included."""

    def extend(inner: SearchStrategy[DataType]) -> SearchStrategy[DataType]:
        # Map keys are scalars, as every Fluss client writes them.
        return _with_nullability(
            st.one_of(
                st.builds(ArrayType, inner),
                st.builds(MapType, scalar_types(nullable=False), inner),
                st.builds(_row_of, st.lists(inner, min_size=1, max_size=3), st.sampled_from(_FIELD_NAMES)),
            ),
            None,
        )

    return _with_nullability(st.recursive(scalar_types(), extend, max_leaves=max_leaves), nullable)


@_reused
def row_types(
    *, columns_min: int = 1, columns_max: int = 12, nested: bool = True, nullable: bool | None = None
) -> SearchStrategy[list[DataType]]:
    """Draw the column types of a table."""
    column = data_types(nullable=nullable) if nested else scalar_types(nullable=nullable)
    return st.lists(column, min_size=columns_min, max_size=columns_max)


@_reused
def internal_values(data_type: DataType) -> SearchStrategy[Any]:
    """Draw an internal value of the type; None too where it is nullable."""
    values = _present_values(data_type)
    return st.one_of(st.none(), values) if data_type.nullable else values


def internal_rows(types: Sequence[DataType]) -> SearchStrategy[tuple[Any, ...]]:
    """Draw one row of internal values."""
    return st.tuples(*(internal_values(t) for t in types))


@st.composite
def arrow_batches(
    draw: st.DrawFn, types: Sequence[DataType] | None = None, *, rows_max: int = 20, nested: bool = True
) -> tuple[list[DataType], pa.RecordBatch]:
    """Draw column types (unless given) and a RecordBatch of them with columns ``c0``, ``c1``, ..."""
    drawn = list(types) if types is not None else draw(row_types(nested=nested, columns_max=6))
    row_count = draw(st.integers(0, rows_max))
    columns = [
        arrow_from_internal(draw(st.lists(internal_values(t), min_size=row_count, max_size=row_count)), t)
        for t in drawn
    ]
    fields = [
        pa.field(f"c{i}", column.type, nullable=t.nullable)
        for i, (column, t) in enumerate(zip(columns, drawn, strict=True))
    ]
    if not columns:
        return drawn, pa.RecordBatch.from_struct_array(pa.array([{}] * row_count, type=pa.struct([])))
    return drawn, pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _present_values(data_type: DataType) -> SearchStrategy[Any]:
    match data_type:
        case BooleanType():
            return st.booleans()
        case TinyIntType() | SmallIntType() | IntType() | BigIntType():
            bits = _INT_BITS[type(data_type)]
            return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        case FloatType():
            return st.floats(width=32, allow_nan=False)
        case DoubleType():
            return st.floats(allow_nan=False)
        case StringType():
            return st.text(max_size=20)
        case CharType(length=length):
            return st.text(max_size=length).filter(lambda s: "\0" not in s and len(s.encode()) <= length)
        case BinaryType(length=length):
            return st.binary(min_size=length, max_size=length)
        case BytesType():
            return st.binary(max_size=20)
        case DecimalType(precision=precision):
            return st.integers(-(10**precision) + 1, 10**precision - 1)
        case DateType():
            return st.integers(_MILLIS_LOWEST // DAY_MS, _MILLIS_HIGHEST // DAY_MS)
        case TimeType(precision=precision):
            step = 1000 if precision == 0 else 1
            return st.integers(0, DAY_MS // step - 1).map(lambda v: v * step)
        case TimestampType(precision=precision) | TimestampLtzType(precision=precision):
            return _timestamps(precision)
        case ArrayType(element_type=element):
            return st.lists(internal_values(element), max_size=_ITEMS_MAX)
        case MapType(key_type=key, value_type=value):
            return st.lists(st.tuples(internal_values(key), internal_values(value)), max_size=_ITEMS_MAX)
        case RowType():
            return internal_rows(data_type.field_types)
    raise AssertionError(f"no strategy for {data_type}")


def _timestamps(precision: int) -> SearchStrategy[Timestamp]:
    if precision == 0:
        return st.integers(_MILLIS_LOWEST // 1000, _MILLIS_HIGHEST // 1000).map(lambda s: Timestamp(s * 1000, 0))
    if precision <= 3:
        return st.integers(_MILLIS_LOWEST, _MILLIS_HIGHEST).map(lambda ms: Timestamp(ms, 0))
    if precision <= 6:
        micros = st.integers(0, 999).map(lambda us: us * 1000)
        return st.builds(Timestamp, st.integers(_MILLIS_LOWEST, _MILLIS_HIGHEST), micros)
    return st.builds(Timestamp, st.integers(_MILLIS_LOWEST_NS, _MILLIS_HIGHEST_NS), st.integers(0, 999_999))


def _row_of(types: Sequence[DataType], name: str) -> RowType:
    return RowType(tuple(DataField(f"{name}{i}", t) for i, t in enumerate(types)))


def _with_nullability(types: SearchStrategy[DataType], nullable: bool | None) -> SearchStrategy[DataType]:
    if nullable is not None:
        return types.map(lambda t: t.with_nullable(nullable))
    return st.builds(DataType.with_nullable, types, st.booleans())
