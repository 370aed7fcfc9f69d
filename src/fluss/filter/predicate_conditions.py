"""Conditions made of ``col(...)``, bound to the columns of a table."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from typing import Final

from fluss.filter.condition_parser import Operator
from fluss.filter.conditions import BoundCondition, Joined, Like, Not, Null, compared, one_of
from fluss.filter.literals import LiteralPosition, position_of_seconds
from fluss.schema.predicate import (
    BoundLiteral,
    CompoundFunction,
    CompoundPredicate,
    LeafFunction,
    LeafPredicate,
    Literal,
    Predicate,
)
from fluss.schema.schema import Column, Schema

_OPERATORS: Final = {
    LeafFunction.EQUAL: Operator.EQUAL,
    LeafFunction.NOT_EQUAL: Operator.NOT_EQUAL,
    LeafFunction.LESS_THAN: Operator.LESS,
    LeafFunction.LESS_OR_EQUAL: Operator.LESS_OR_EQUAL,
    LeafFunction.GREATER_THAN: Operator.GREATER,
    LeafFunction.GREATER_OR_EQUAL: Operator.GREATER_OR_EQUAL,
}
# What stands before and behind the text in a pattern.
_WILD: Final = {
    LeafFunction.STARTS_WITH: ("", "%"),
    LeafFunction.CONTAINS: ("%", "%"),
    LeafFunction.ENDS_WITH: ("%", ""),
}


def bound_condition(predicate: Predicate, schema: Schema) -> BoundCondition:
    """Return a predicate as a condition on columns; the first column or literal that does not fit is a FlussError."""
    if isinstance(predicate, CompoundPredicate):
        parts = tuple(bound_condition(child, schema) for child in predicate.children)
        return Joined(parts, is_any=predicate.function is CompoundFunction.OR)
    assert isinstance(predicate, LeafPredicate), "there are no other predicates"
    return _bound_leaf(predicate, schema)


def _bound_leaf(leaf: LeafPredicate, schema: Schema) -> BoundCondition:
    bound = leaf.bind(schema)
    column = schema.columns[bound.column_index]
    match leaf.function:
        case LeafFunction.IS_NULL:
            return Null(column)
        case LeafFunction.IS_NOT_NULL:
            return Not(Null(column))
        case LeafFunction.IN | LeafFunction.NOT_IN:
            given = [pair for pair in zip(leaf.literals, bound.literals, strict=True) if pair[0] is not None]
            positions = [_position(*pair, column) for pair in given]
            members = one_of(column, positions, has_null=len(given) < len(leaf.literals))
            return members if leaf.function is LeafFunction.IN else Not(members)
    (literal,), (bound_literal,) = leaf.literals, bound.literals
    if leaf.function in _WILD:
        before, behind = _WILD[leaf.function]
        return Like(column, f"{before}{_escaped(str(bound_literal))}{behind}")
    return compared(column, _OPERATORS[leaf.function], _position(literal, bound_literal, column))


def _escaped(text: str) -> str:
    """Return the pattern that only this text looks like."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _position(literal: Literal, bound: BoundLiteral, column: Column) -> LiteralPosition:
    if isinstance(literal, dt.time):
        # As it was written: servers know times of the day in milliseconds only, columns may have more digits.
        seconds = (literal.hour * 60 + literal.minute) * 60 + literal.second
        return position_of_seconds(seconds + Fraction(literal.microsecond, 10**6), column.data_type)
    if isinstance(bound, tuple):
        millis, nanos = bound
        return position_of_seconds(Fraction(millis, 1000) + Fraction(nanos, 10**9), column.data_type)
    assert bound is not None, "nulls are left out"
    return LiteralPosition(bound)
