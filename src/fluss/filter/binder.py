"""Conditions of a text, bound to the columns of a table: names become columns, values are put into their terms."""

from __future__ import annotations

import datetime as dt
from typing import NoReturn

from fluss.errors import FlussError
from fluss.filter.condition_parser import (
    NOWHERE,
    ColumnName,
    Comparison,
    Condition,
    Constant,
    InList,
    Junction,
    Negation,
    NullTest,
    PatternTest,
    Value,
    fail_at,
)
from fluss.filter.conditions import Always, BoundCondition, Joined, Like, Not, Null, compared, one_of
from fluss.filter.literals import LiteralPosition, MisfitError, position_of
from fluss.options import suggestion
from fluss.schema.predicate import TEXT_ROOTS
from fluss.schema.schema import Column, Schema, shown_names
from fluss.schema.table import matching_name


class Binder:
    """Finds the columns of a condition, and puts its values into their terms.

    Times without a zone are meant in ``zone`` where they are compared with instants. Unless ``is_case_sensitive``,
    columns are also found by names in other upper and lower case.
    """

    def __init__(self, text: str, schema: Schema, zone: dt.tzinfo, *, is_case_sensitive: bool = True) -> None:
        self._text = text
        self._schema = schema
        self._zone = zone
        self._is_case_sensitive = is_case_sensitive

    def bound(self, condition: Condition) -> BoundCondition:
        match condition:
            case Constant():
                return Always(condition.truth)
            case Negation():
                return Not(self.bound(condition.condition))
            case Junction():
                return Joined(tuple(map(self.bound, condition.conditions)), condition.is_any)
            case NullTest():
                return Null(self._column(condition.column))
            case PatternTest():
                return self._bound_pattern(condition)
            case InList():
                return self._bound_membership(condition)
            case Comparison():
                return self._bound_comparison(condition)

    def _column(self, column: ColumnName) -> Column:
        names = self._schema.column_names
        name = matching_name(column.name, names, is_case_sensitive=self._is_case_sensitive)
        if name is None:
            close = suggestion(column.name, names) or f"; columns are {shown_names(names)}"
            self._fail(column.position, f"there is no column '{column.name}'{close}")
        return self._schema.column(name)

    def _position(self, value: Value, column: Column) -> LiteralPosition:
        try:
            return position_of(value, column.data_type, self._zone)
        except MisfitError as reason:
            self._misfit(value, column, str(reason))

    def _misfit(self, value: Value, column: Column, reason: str) -> NoReturn:
        self._fail(value.position, f"column '{column.name}' is {column.data_type}, {reason}")

    def _fail(self, position: int, problem: str) -> NoReturn:
        if position == NOWHERE:
            raise FlussError(f"The filter {self._text} is wrong: {problem}")
        fail_at(self._text, position, problem)

    def _bound_pattern(self, test: PatternTest) -> BoundCondition:
        column = self._column(test.column)
        if column.data_type.root not in TEXT_ROOTS:
            self._misfit(test.pattern, column, "and only texts can look like a pattern")
        return Like(column, str(test.pattern.value))

    def _bound_membership(self, test: InList) -> BoundCondition:
        column = self._column(test.column)
        given = [value for value in test.values if value.kind != "null"]
        positions = [self._position(value, column) for value in given]
        return one_of(column, positions, has_null=len(given) < len(test.values))

    def _bound_comparison(self, comparison: Comparison) -> BoundCondition:
        column = self._column(comparison.column)
        if comparison.value.kind == "null":
            return Always(None)
        return compared(column, comparison.operator, self._position(comparison.value, column))
