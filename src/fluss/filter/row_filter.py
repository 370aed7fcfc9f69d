"""Row filters: conditions of users, in whatever form they are given, bound to the columns of a table.

    col("price") > 10                    objects, made by ``fluss.schema.predicate``
    "price > 10 AND name LIKE 'a%'"      texts, in the language of ``condition_parser``
    pc.field("price") > 10               expressions of pyarrow, evaluated by pyarrow; servers learn nothing of them
    GreaterThan("price", 10)             expressions of pyiceberg
    pl.col("price") > 10                 expressions of polars

A row is kept when its condition is true, and not when it is false or unknown.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fluss.errors import FlussError
from fluss.filter.arrow_expression import ArrowExpression
from fluss.filter.binder import Binder
from fluss.filter.condition_parser import Junction, parse_condition
from fluss.filter.conditions import BoundCondition, Columns, Joined, choices
from fluss.filter.iceberg_expression import condition_of, is_iceberg_expression
from fluss.filter.polars_expression import condition_of as condition_of_polars
from fluss.filter.polars_expression import is_polars_expression, parts_of
from fluss.filter.predicate_conditions import bound_condition
from fluss.row.partition_names import parse_partition_value
from fluss.row.values import arrow_from_internal
from fluss.schema.predicate import BoundPredicate, Filter, Predicate
from fluss.schema.schema import Schema
from fluss.schema.types import DataType


class RowFilter:
    """A condition on the rows of a table, in the form in which Fluss stores them. It never changes."""

    def __init__(self, condition: BoundCondition, schema: Schema) -> None:
        self._condition = condition
        self._schema = schema
        self.columns: frozenset[str] = condition.columns()

    @classmethod
    def of(cls, conditions: Sequence[Filter], schema: Schema) -> RowFilter:
        """Make a filter of conditions that must all hold, in any of the forms that users may give.

        What does not fit the columns is a FlussError, what is no condition at all a TypeError. Times in texts that do
        not name a zone are in UTC where they are compared with instants.
        """
        bound = tuple(_bound(condition, schema) for condition in conditions)
        return cls(bound[0] if len(bound) == 1 else Joined(bound, is_any=False), schema)

    @classmethod
    def parse(
        cls, text: str, schema: Schema, *, time_zone: dt.tzinfo = dt.UTC, is_case_sensitive: bool = True
    ) -> RowFilter:
        """Read a condition on columns of a schema; a FlussError says where it is wrong, and why.

        Times are meant in ``time_zone`` where they are compared with instants and do not say another one. Unless
        ``is_case_sensitive``, columns are also found by names in other upper and lower case.
        """
        binder = Binder(text, schema, time_zone, is_case_sensitive=is_case_sensitive)
        return cls(binder.bound(parse_condition(text)), schema)

    @classmethod
    def hint(cls, text: str, schema: Schema, is_usable: Callable[[DataType], bool]) -> RowFilter | None:
        """Read a condition that may be left out, or parts of it that are joined by AND; None if nothing is left.

        Left out is what cannot be read, and what is about a column of another type than those that are usable.
        """
        try:
            condition = parse_condition(text)
        except FlussError:
            return None
        parts = condition.conditions if isinstance(condition, Junction) and not condition.is_any else (condition,)
        binder = Binder(text, schema, dt.UTC)
        kept = []
        for part in parts:
            try:
                bound = binder.bound(part)
            except FlussError:
                continue
            if all(is_usable(schema.column(name).data_type) for name in bound.columns()):
                kept.append(bound)
        return cls(Joined(tuple(kept), is_any=False), schema) if kept else None

    @classmethod
    def hint_of_polars(cls, expression: Any, schema: Schema) -> RowFilter | None:
        """Return a filter that keeps all rows for which an expression of polars holds, and maybe more.

        Parts of the expression are left out that have no counterpart, or do not fit the columns; None if none is left.
        """
        binder = Binder(str(expression), schema, dt.UTC)
        kept = []
        for part in parts_of(expression):
            try:
                kept.append(binder.bound(part))
            except FlussError:
                continue
        return cls(Joined(tuple(kept), is_any=False), schema) if kept else None

    @classmethod
    def both(cls, first: RowFilter | None, second: RowFilter | None) -> RowFilter | None:
        """Return a filter that keeps what two filters keep, either of which may be missing."""
        if first is None or second is None:
            return first or second
        return cls(Joined((first._condition, second._condition), is_any=False), first._schema)

    def filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for which the condition holds. The batch has the columns of the filter, and maybe more."""
        return batch.filter(self.truth({name: batch.column(name) for name in self.columns}, batch.num_rows))

    def truth(self, columns: Mapping[str, pa.Array], row_count: int) -> pa.Array:
        """Return for each row whether the condition holds, null where that is unknown, given the filter's columns."""
        return self._condition.truth(Columns(columns, row_count))

    def predicate(self) -> Predicate | None:
        """Return a condition that holds wherever this one does, for servers to skip batches; None if there is none."""
        try:
            return self._condition.predicate(is_negated=False)
        except FlussError:
            # It is nested too deeply for a request. Rows are looked at anyway.
            return None

    def bound_predicate(self) -> BoundPredicate | None:
        """Return what ``predicate`` does, as it is sent."""
        predicate = self.predicate()
        return None if predicate is None else predicate.bind(self._schema)

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


def check_filter(condition: object) -> None:
    """Refuse what is no condition; whether it fits the columns of a table is another question."""
    if isinstance(condition, Predicate | str | pc.Expression | RowFilter):
        return
    if is_iceberg_expression(condition) or is_polars_expression(condition):
        return
    raise TypeError(
        "predicate must be a Predicate such as col('price') > 10, a text such as \"price > 10\", or an expression of "
        f"pyarrow, polars or pyiceberg, got {type(condition).__name__}"
    )


def _bound(condition: Filter, schema: Schema) -> BoundCondition:
    check_filter(condition)
    if isinstance(condition, RowFilter):
        return condition._condition
    if isinstance(condition, Predicate):
        return bound_condition(condition, schema)
    if isinstance(condition, str):
        return Binder(condition, schema, dt.UTC).bound(parse_condition(condition))
    if isinstance(condition, pc.Expression):
        return ArrowExpression.of(condition, schema)
    parsed = condition_of_polars(condition) if is_polars_expression(condition) else condition_of(condition)
    return Binder(str(condition), schema, dt.UTC).bound(parsed)
