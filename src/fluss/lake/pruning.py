"""What of a filter a lake can use to leave out files and row groups: a condition that holds wherever the filter does.

Everything that the lake may see differently is left out: NaN, which is above all numbers in Fluss and has no bounds in
Iceberg; bytes; times with nanoseconds, which the lake has without them. Rows are filtered afterwards in any case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from decimal import Decimal
from typing import Any, Final

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotNull,
    Or,
    StartsWith,
)
from pyiceberg.expressions.literals import DateLiteral, TimeLiteral, TimestampLiteral

from fluss.lake.schema_mapping import is_exact
from fluss.schema.predicate import BoundCompound, BoundLeaf, BoundPredicate, CompoundFunction, LeafFunction
from fluss.schema.schema import Schema
from fluss.schema.types import DataType, DecimalType, TypeRoot

_COMPARISONS: Final[dict[LeafFunction, type[Any]]] = {
    LeafFunction.EQUAL: EqualTo,
    LeafFunction.LESS_THAN: LessThan,
    LeafFunction.LESS_OR_EQUAL: LessThanOrEqual,
    LeafFunction.GREATER_THAN: GreaterThan,
    LeafFunction.GREATER_OR_EQUAL: GreaterThanOrEqual,
    LeafFunction.STARTS_WITH: StartsWith,
}
_FLOATS: Final = frozenset({TypeRoot.FLOAT, TypeRoot.DOUBLE})
# Comparisons that NaN never fulfils.
_FLOAT_FUNCTIONS: Final = frozenset(
    {LeafFunction.EQUAL, LeafFunction.IN, LeafFunction.LESS_THAN, LeafFunction.LESS_OR_EQUAL}
)


def pruning_condition(predicate: BoundPredicate | None, schema: Schema, known: Collection[str]) -> BooleanExpression:
    """Return a condition on a lake table that holds for every row for which a predicate on a Fluss table does.

    ``known`` are the columns that the lake table has.
    """
    if predicate is None:
        return AlwaysTrue()
    if isinstance(predicate, BoundCompound):
        children = [pruning_condition(child, schema, known) for child in predicate.children]
        if len(children) == 1:
            return children[0]
        joined = And if predicate.function == CompoundFunction.AND else Or
        return joined(*children)
    name = schema.columns[predicate.column_index].name
    # A name with a dot is taken for a field of a row by readers of Parquet.
    return _leaf_condition(predicate, name) if name in known and "." not in name else AlwaysTrue()


def _leaf_condition(leaf: BoundLeaf, name: str) -> BooleanExpression:
    if leaf.function == LeafFunction.IS_NULL:
        return IsNull(name)
    if leaf.function == LeafFunction.IS_NOT_NULL:
        return NotNull(name)
    if leaf.data_type.root in _FLOATS and leaf.function not in _FLOAT_FUNCTIONS:
        return AlwaysTrue()
    values = [_lake_value(value, leaf.data_type) for value in leaf.literals]
    if not values or None in values:
        return AlwaysTrue()
    if leaf.function == LeafFunction.IN:
        return _in(name, values, leaf.data_type)
    comparison = _COMPARISONS.get(leaf.function)
    return AlwaysTrue() if comparison is None else comparison(name, values[0])


def _in(name: str, values: list[Any], data_type: DataType) -> BooleanExpression:
    if data_type.root not in _FLOATS or 0 not in values:
        return In(name, values)
    # Zero and minus zero are equal, but a list is searched by bits.
    others = [value for value in values if value]
    is_zero = EqualTo(name, 0.0)
    return Or(is_zero, In(name, others)) if others else is_zero


def _lake_value(value: Any, data_type: DataType) -> Any:
    """Return a literal as pyiceberg has it, None if the lake cannot tell what is equal to it."""
    convert = _CONVERSIONS.get(data_type.root)
    return None if convert is None or value is None else convert(value, data_type)


def _same(value: Any, _data_type: DataType) -> Any:
    return value


def _float(value: float, _data_type: DataType) -> float | None:
    return None if math.isnan(value) else value


def _decimal(unscaled: int, data_type: DataType) -> Decimal:
    assert isinstance(data_type, DecimalType)
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -data_type.scale))


def _timestamp(value: tuple[int, int], data_type: DataType) -> Any:
    millis, nanos = value
    if not is_exact(data_type) or nanos % 1000:
        return None
    return TimestampLiteral(millis * 1000 + nanos // 1000)


_CONVERSIONS: Final[dict[TypeRoot, Callable[[Any, DataType], Any]]] = {
    TypeRoot.BOOLEAN: _same,
    TypeRoot.TINYINT: _same,
    TypeRoot.SMALLINT: _same,
    TypeRoot.INTEGER: _same,
    TypeRoot.BIGINT: _same,
    TypeRoot.FLOAT: _float,
    TypeRoot.DOUBLE: _float,
    TypeRoot.CHAR: _same,
    TypeRoot.STRING: _same,
    TypeRoot.DECIMAL: _decimal,
    TypeRoot.DATE: lambda days, _: DateLiteral(days),
    TypeRoot.TIME: lambda ms, _: TimeLiteral(ms * 1000),
    TypeRoot.TIMESTAMP: _timestamp,
    TypeRoot.TIMESTAMP_LTZ: _timestamp,
}
