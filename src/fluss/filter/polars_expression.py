"""Expressions of polars as conditions, without importing it: the caller, who has an expression, has imported it.

An expression is read in the form in which polars serialises it, which may be another one in later versions. What is not
known here has no counterpart, which is an error in a filter of a user; a lazy frame leaves it to polars.

The rules for NULL and NaN are the same in polars: what is compared with NULL is unknown, NaN equals itself and is above
all other numbers.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

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

_EPOCH: Final = dt.datetime(1970, 1, 1)
# Longer lists are left to polars, which has them in a better form already.
_MEMBERS_MAX: Final = 10_000
_OPERATORS: Final = {
    "Eq": Operator.EQUAL,
    "NotEq": Operator.NOT_EQUAL,
    "Lt": Operator.LESS,
    "LtEq": Operator.LESS_OR_EQUAL,
    "Gt": Operator.GREATER,
    "GtEq": Operator.GREATER_OR_EQUAL,
}
_BETWEEN: Final = {
    "Both": (Operator.GREATER_OR_EQUAL, Operator.LESS_OR_EQUAL),
    "Left": (Operator.GREATER_OR_EQUAL, Operator.LESS),
    "Right": (Operator.GREATER, Operator.LESS_OR_EQUAL),
    "None": (Operator.GREATER, Operator.LESS),
}
_UNITS_PER_US: Final = {"Milliseconds": Decimal("0.001"), "Microseconds": Decimal(1), "Nanoseconds": Decimal(1000)}
_INTEGERS: Final = frozenset({"Int", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"})


def is_polars_expression(expression: object) -> bool:
    """Whether an object is an expression of polars."""
    return type(expression).__module__.startswith("polars.") and type(expression).__name__ == "Expr"


def condition_of(expression: Any) -> Condition:
    """Return the condition of an expression; one that has no counterpart is a FlussError."""
    return _condition(_tree(expression), 1)


def parts_of(expression: Any) -> Iterator[Condition]:
    """Yield those parts of an expression that are joined by AND and have counterparts: they hold wherever it does."""
    waiting = [_tree(expression)]
    while waiting:
        tree = waiting.pop()
        match tree:
            case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd", "right": right}}:
                waiting += (right, left)
                continue
        try:
            yield _condition(tree, 1)
        except FlussError:
            continue


def _tree(expression: Any) -> Any:
    try:
        return json.loads(expression.meta.serialize(format="json"))
    except Exception as error:
        # Which errors polars has for expressions that it cannot serialise is not documented.
        raise FlussError(f"The filter {expression} cannot be read: {error}") from error


def _condition(tree: Any, depth: int) -> Condition:
    if depth > DEPTH_MAX:
        raise FlussError(f"A filter can be nested at most {DEPTH_MAX} levels deep; write it flatter")
    match tree:
        case {"Column": str(name)}:
            return Comparison(ColumnName(name, NOWHERE), Operator.EQUAL, Value("boolean", True, NOWHERE))
        case {"Literal": {"Scalar": {"Boolean": bool(truth)}}}:
            return Constant(truth)
        case {"BinaryExpr": {"left": left, "op": "And" | "LogicalAnd" | "Or" | "LogicalOr" as name, "right": right}}:
            parts = (_condition(left, depth + 1), _condition(right, depth + 1))
            return Junction(parts, is_any=name.endswith("Or"))
        case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(operator), "right": right}}:
            return Comparison(ColumnName(name, NOWHERE), _operator(operator, tree), _value(right))
        case {"BinaryExpr": {"left": left, "op": str(operator), "right": {"Column": str(name)}}}:
            return Comparison(ColumnName(name, NOWHERE), _operator(operator, tree).mirrored, _value(left))
        case {"Function": {"input": [{"Column": str(name)}, *values], "function": function}}:
            return _function(ColumnName(name, NOWHERE), function, values, tree)
        case {"Function": {"input": [inner], "function": {"Boolean": "Not"}}}:
            return Negation(_condition(inner, depth + 1))
    _refuse(tree)


def _function(column: ColumnName, function: Any, values: list[Any], tree: Any) -> Condition:
    match function, values:
        case {"Boolean": "Not"}, []:
            return Comparison(column, Operator.EQUAL, Value("boolean", False, NOWHERE))
        case {"Boolean": "IsNull"}, []:
            return NullTest(column)
        case {"Boolean": "IsNotNull"}, []:
            return Negation(NullTest(column))
        case {"Boolean": {"IsIn": {"nulls_equal": False}}}, [{"Literal": {"Scalar": {"List": list(encoded)}}}]:
            return InList(column, _members(encoded, tree))
        case {"Boolean": {"IsBetween": {"closed": str(closed)}}}, [low, high] if closed in _BETWEEN:
            above, below = _BETWEEN[closed]
            return Junction((Comparison(column, above, _value(low)), Comparison(column, below, _value(high))), False)
        case {"StringExpr": "StartsWith"}, [text]:
            return PatternTest(column, _pattern(text, "{}%"))
        case {"StringExpr": "EndsWith"}, [text]:
            return PatternTest(column, _pattern(text, "%{}"))
        case {"StringExpr": {"Contains": {"literal": True}}}, [text]:
            return PatternTest(column, _pattern(text, "%{}%"))
    _refuse(tree)


def _operator(name: str, tree: Any) -> Operator:
    return _OPERATORS[name] if name in _OPERATORS else _refuse(tree)


def _pattern(tree: Any, form: str) -> Value:
    match tree:
        case {"Literal": {"Scalar": {"String": str(text)}}}:
            escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            return Value("text", form.format(escaped), NOWHERE)
    _refuse(tree)


def _value(tree: Any) -> Value:
    ((kind, value),) = _scalar(tree).items()
    match kind, value:
        case "Boolean", bool():
            return Value("boolean", value, NOWHERE)
        case _, int() if kind in _INTEGERS:
            return Value("number", Decimal(value), NOWHERE)
        case (("Float64" | "Float"), (float() | int())):
            # The digits that a person has written: a decimal is compared with them, and a float is the nearest to them.
            return Value("number", Decimal(repr(float(value))), NOWHERE)
        case "Float32", (float() | int()):
            # The digits are those of the short number, and another long one is nearest to them.
            return Value("number", Decimal(float(np.float32(value))), NOWHERE)
        case "Decimal", [int(unscaled), _, int(scale)]:
            return Value("number", Decimal(unscaled).scaleb(-scale), NOWHERE)
        case (("String" | "Str"), str()):
            return Value("text", value, NOWHERE)
        case "Binary", list():
            return Value("bytes", bytes(value), NOWHERE)
        case "Date", int():
            return Value("date", _moment(value * 86_400_000_000, tree).date().isoformat(), NOWHERE)
        case "Time", int():
            return Value("time", _moment(_exact_us(value, "Nanoseconds", tree), tree).time().isoformat(), NOWHERE)
        case "Datetime", [int(count), str(unit), _]:
            moment = _moment(_exact_us(count, unit, tree), tree)
            return Value("timestamp", moment.isoformat(" "), NOWHERE)
    _refuse(tree)


def _scalar(tree: Any) -> Mapping[str, Any]:
    match tree:
        case {"Literal": {"Scalar": dict(scalar)}} | {"Literal": {"Dyn": dict(scalar)}} if len(scalar) == 1:
            return scalar
    _refuse(tree)


def _exact_us(count: int, unit: str, tree: Any) -> int:
    us = Decimal(count) / _UNITS_PER_US[unit] if unit in _UNITS_PER_US else None
    if us is None or us != us.to_integral_value():
        _refuse(tree)
    return int(us)


def _moment(us: int, tree: Any) -> dt.datetime:
    try:
        return _EPOCH + dt.timedelta(microseconds=us)
    except OverflowError:
        _refuse(tree)


def _members(encoded: list[int], tree: Any) -> tuple[Value, ...]:
    """Return the values of a list, which polars encodes as a stream of Arrow."""
    try:
        members = pa.ipc.open_stream(bytes(encoded)).read_all().column(0)
    except (pa.ArrowException, ValueError, IndexError):
        _refuse(tree)
    if members.null_count or len(members) > _MEMBERS_MAX:
        # What a list with nulls means under NOT is not the same everywhere.
        _refuse(tree)
    return tuple(_member(value, tree) for value in members.to_pylist())


def _member(value: Any, tree: Any) -> Value:
    match value:
        case bool():
            return Value("boolean", value, NOWHERE)
        case int() | Decimal():
            return Value("number", Decimal(value), NOWHERE)
        case str():
            return Value("text", value, NOWHERE)
        case bytes():
            return Value("bytes", value, NOWHERE)
        case dt.datetime():
            utc = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
            return Value("timestamp", utc.isoformat(" "), NOWHERE)
        case dt.date():
            return Value("date", value.isoformat(), NOWHERE)
    _refuse(tree)


def _refuse(tree: Any) -> NoReturn:
    raise FlussError(
        "The filter has a part without a counterpart here; compare columns with values, or use scan_polars(), which "
        f"leaves such parts to polars: {json.dumps(tree)[:200]}"
    )
