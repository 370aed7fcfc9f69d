"""Expressions of pyiceberg as conditions, without importing it: the caller, who has an expression, has imported it.

The rules are those of all filters: what is compared with NULL is unknown, also by ``NotEqualTo`` and ``NotIn``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from fluss.errors import FlussError
from fluss.filter.condition_parser import (
    DEPTH_MAX,
    NOWHERE,
    ColumnName,
    Comparison,
    Condition,
    Constant,
    InList,
    Junction,
    Negation,
    NullTest,
    Operator,
    PatternTest,
    Value,
)

_PACKAGE: Final = "pyiceberg"
_EPOCH: Final = dt.datetime(1970, 1, 1)
_OPERATORS: Final = {
    "EqualTo": Operator.EQUAL,
    "NotEqualTo": Operator.NOT_EQUAL,
    "LessThan": Operator.LESS,
    "LessThanOrEqual": Operator.LESS_OR_EQUAL,
    "GreaterThan": Operator.GREATER,
    "GreaterThanOrEqual": Operator.GREATER_OR_EQUAL,
}
_NAN: Final = Value("number", Decimal("NaN"), NOWHERE)


def is_iceberg_expression(expression: object) -> bool:
    """Whether an object is an expression of pyiceberg."""
    module = type(expression).__module__
    return module.split(".")[0] == _PACKAGE and "expressions" in module


def condition_of(expression: Any, depth: int = 1) -> Condition:
    """Return the condition of an expression; one that has no counterpart is a FlussError."""
    if depth > DEPTH_MAX:
        raise FlussError(f"A filter can be nested at most {DEPTH_MAX} levels deep; write it flatter")
    match type(expression).__name__:
        case "AlwaysTrue":
            return Constant(True)
        case "AlwaysFalse":
            return Constant(False)
        case "And" | "Or" as name:
            parts = (condition_of(expression.left, depth + 1), condition_of(expression.right, depth + 1))
            return Junction(parts, is_any=name == "Or")
        case "Not":
            return Negation(condition_of(expression.child, depth + 1))
    return _column_condition(expression)


def _column_condition(expression: Any) -> Condition:
    name = getattr(getattr(expression, "term", None), "name", None)
    if not isinstance(name, str):
        raise FlussError(f"The filter {expression} has no counterpart here; it may compare columns with values")
    column = ColumnName(name, NOWHERE)
    match type(expression).__name__:
        case "IsNull":
            return NullTest(column)
        case "NotNull":
            return Negation(NullTest(column))
        case "IsNaN":
            return Comparison(column, Operator.EQUAL, _NAN)
        case "NotNaN":
            return Comparison(column, Operator.NOT_EQUAL, _NAN)
        case "In":
            return InList(column, tuple(map(_value, expression.literals)))
        case "NotIn":
            return Negation(InList(column, tuple(map(_value, expression.literals))))
        case "StartsWith":
            return _prefix_test(column, expression)
        case "NotStartsWith":
            return Negation(_prefix_test(column, expression))
        case operator if operator in _OPERATORS:
            return Comparison(column, _OPERATORS[operator], _value(expression.literal))
    raise FlussError(f"The filter {expression} has no counterpart here")


def _prefix_test(column: ColumnName, expression: Any) -> Condition:
    prefix = str(expression.literal.value).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return PatternTest(column, Value("text", f"{prefix}%", NOWHERE))


def _value(literal: Any) -> Value:
    """Return the value of a literal; dates and times are numbers in them."""
    value = literal.value
    in_words = _TIMES.get(type(literal).__name__)
    if in_words is not None:
        return in_words(value)
    match value:
        case bool():
            return Value("boolean", value, NOWHERE)
        case int() | float() | Decimal():
            # The digits that a person sees, not all that a float has.
            return Value("number", Decimal(str(value)), NOWHERE)
        case bytes():
            return Value("bytes", value, NOWHERE)
        case str():
            return Value("text", value, NOWHERE)
    raise FlussError(f"A filter cannot compare with {literal!r}")


def _date(days: int) -> Value:
    return Value("date", (_EPOCH + dt.timedelta(days=days)).date().isoformat(), NOWHERE)


def _time(micros: int) -> Value:
    return Value("time", (_EPOCH + dt.timedelta(microseconds=micros)).time().isoformat(), NOWHERE)


def _timestamp(micros: int) -> Value:
    return Value("timestamp", (_EPOCH + dt.timedelta(microseconds=micros)).isoformat(" "), NOWHERE)


_TIMES: Final[dict[str, Callable[[int], Value]]] = {
    "DateLiteral": _date,
    "TimeLiteral": _time,
    "TimestampLiteral": _timestamp,
}
