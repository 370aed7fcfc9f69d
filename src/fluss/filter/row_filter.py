"""Row filters: the condition of ``scan.filter``, bound to the columns of a table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import NoReturn

import pyarrow as pa

from fluss.errors import FlussError
from fluss.filter.condition_parser import (
    ColumnName,
    Comparison,
    Condition,
    Constant,
    Junction,
    Membership,
    Negation,
    NullTest,
    Operator,
    PatternTest,
    Value,
    fail_at,
    parse_condition,
)
from fluss.filter.conditions import (
    Always,
    BoundCondition,
    Columns,
    Compared,
    Joined,
    Like,
    Not,
    Null,
    OneOf,
    Settled,
    choices,
)
from fluss.filter.literals import LiteralPosition, MisfitError, position_of
from fluss.options import suggestion
from fluss.row.partition_names import parse_partition_value
from fluss.row.values import arrow_from_internal
from fluss.schema.naming_rules import matching_name
from fluss.schema.predicate import Predicate
from fluss.schema.schema import Column, Schema, shown_names
from fluss.schema.types import TypeRoot

_TEXT_ROOTS = (TypeRoot.CHAR, TypeRoot.STRING)


class RowFilter:
    """A condition on the rows of a table, in the form in which Fluss stores them. It never changes."""

    def __init__(self, condition: BoundCondition, schema: Schema) -> None:
        self._condition = condition
        self._schema = schema
        self.columns: frozenset[str] = condition.columns()

    @classmethod
    def parse(
        cls, text: str, schema: Schema, *, time_zone: dt.tzinfo = dt.UTC, is_case_sensitive: bool = True
    ) -> RowFilter:
        """Read a condition on columns of a schema; a FlussError says where it is wrong, and why.

        Times are meant in ``time_zone`` where they are compared with instants and do not say another one. Unless
        ``is_case_sensitive``, columns are also found by names in other upper and lower case.
        """
        binder = _Binder(text, schema, time_zone, is_case_sensitive=is_case_sensitive)
        return cls(binder.bound(parse_condition(text)), schema)

    def filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for which the condition holds. The batch has the columns of the filter, and maybe more."""
        arrays = {name: batch.column(name) for name in self.columns}
        return batch.filter(self._condition.truth(Columns(arrays, batch.num_rows)))

    def predicate(self) -> Predicate | None:
        """Return a condition that holds wherever this one does, for servers to skip batches; None if there is none."""
        try:
            return self._condition.predicate(is_negated=False)
        except FlussError:
            # It is nested too deeply for a request. Rows are looked at anyway.
            return None

    def choices(self) -> dict[str, pa.Array]:
        """Return columns that have one of a few values in every row that is kept, with these values."""
        return choices(self._condition)

    def may_match(self, partition_values: Mapping[str, str]) -> bool:
        """Whether a row of a partition can be kept, by the values in its name; True if that is not known."""
        known: dict[str, pa.Array] = {}
        for name in self.columns & partition_values.keys():
            data_type = self._schema.column(name).data_type
            try:
                known[name] = arrow_from_internal([parse_partition_value(partition_values[name], data_type)], data_type)
            except FlussError:
                # A name that this library would not have given says nothing.
                continue
        return True in self._condition.outcomes(known)


class _Binder:
    """Finds the columns of a condition, and puts its values into their terms."""

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
            case Membership():
                return self._bound_membership(condition)
            case Comparison():
                return self._bound_comparison(condition)

    def _column(self, column: ColumnName) -> Column:
        names = self._schema.column_names
        name = matching_name(column.name, names, is_case_sensitive=self._is_case_sensitive)
        if name is None:
            close = suggestion(column.name, names) or f"; columns are {shown_names(names)}"
            fail_at(self._text, column.position, f"there is no column '{column.name}'{close}")
        return self._schema.column(name)

    def _position(self, value: Value, column: Column) -> LiteralPosition:
        try:
            return position_of(value, column.data_type, self._zone)
        except MisfitError as reason:
            self._misfit(value, column, str(reason))

    def _misfit(self, value: Value, column: Column, reason: str) -> NoReturn:
        fail_at(self._text, value.position, f"column '{column.name}' is {column.data_type}, {reason}")

    def _bound_pattern(self, test: PatternTest) -> BoundCondition:
        column = self._column(test.column)
        if column.data_type.root not in _TEXT_ROOTS:
            self._misfit(test.pattern, column, "and only texts can look like a pattern")
        return Like(column, str(test.pattern.value))

    def _bound_membership(self, test: Membership) -> BoundCondition:
        column = self._column(test.column)
        given = [value for value in test.values if value.kind != "null"]
        positions = [self._position(value, column) for value in given]
        values = tuple(position.value for position in positions if position.is_value)
        return OneOf(column, values, has_null=len(given) < len(test.values))

    def _bound_comparison(self, comparison: Comparison) -> BoundCondition:
        column = self._column(comparison.column)
        if comparison.value.kind == "null":
            return Always(None)
        position = self._position(comparison.value, column)
        return _compared(column, comparison.operator, position)


def _compared(column: Column, operator: Operator, position: LiteralPosition) -> BoundCondition:
    """Compare with a literal that may lie between two values of the column, or beyond all of them."""
    if operator in (Operator.EQUAL, Operator.NOT_EQUAL):
        if position.is_value:
            return Compared(column, operator, position.value)
        return Settled(column, operator is Operator.NOT_EQUAL)
    is_less = operator in (Operator.LESS, Operator.LESS_OR_EQUAL)
    if position.is_above_all or position.is_below_all:
        return Settled(column, is_less is position.is_above_all)
    if not position.is_exact:
        # The value is the one below the literal: what is not above it is less than the literal, all else is greater.
        operator = Operator.LESS_OR_EQUAL if is_less else Operator.GREATER
    return Compared(column, operator, position.value)
