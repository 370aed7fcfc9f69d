"""Conditions on the columns of a table: what they are for given columns, and what servers may know of them.

A condition is true, false or unknown (null) for a row, as in SQL. NaN is above all other numbers, as it is for Spark.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.filter.condition_parser import Operator
from fluss.filter.literals import ColumnValue, LiteralPosition, compared_type, python_value, value_array
from fluss.row.arrow_arrays import bool_array
from fluss.schema.predicate import ColumnRef, Predicate, col
from fluss.schema.schema import Column
from fluss.schema.types import TypeRoot

Truth: TypeAlias = bool | None
# What a condition can be for rows of which only something is known.
Outcomes: TypeAlias = frozenset[Truth]

ANY_OUTCOME: Final[Outcomes] = frozenset({True, False, None})
_FLOAT_ROOTS: Final = frozenset({TypeRoot.FLOAT, TypeRoot.DOUBLE})
_UNKNOWN: Final = pa.nulls(1, pa.bool_())[0]
_TRUTHS: Final[dict[Truth, pa.Scalar]] = {
    True: bool_array(np.array([True]))[0],
    False: bool_array(np.array([False]))[0],
    None: _UNKNOWN,
}
_COMPARISONS: Final[dict[Operator, Callable[[pa.Array, pa.Scalar], pa.Array]]] = {
    Operator.EQUAL: pc.equal,
    Operator.NOT_EQUAL: pc.not_equal,
    Operator.LESS: pc.less,
    Operator.LESS_OR_EQUAL: pc.less_equal,
    Operator.GREATER: pc.greater,
    Operator.GREATER_OR_EQUAL: pc.greater_equal,
}
_PREDICATES: Final[dict[Operator, Callable[[ColumnRef, object], Predicate]]] = {
    Operator.EQUAL: ColumnRef.equal,
    Operator.NOT_EQUAL: ColumnRef.not_equal,
    Operator.LESS: ColumnRef.less_than,
    Operator.LESS_OR_EQUAL: ColumnRef.less_or_equal,
    Operator.GREATER: ColumnRef.greater_than,
    Operator.GREATER_OR_EQUAL: ColumnRef.greater_or_equal,
}
# A batch whose statistics pass over NaN could be skipped by these, although NaN satisfies them.
_TRUE_OF_NAN: Final = frozenset({Operator.NOT_EQUAL, Operator.GREATER, Operator.GREATER_OR_EQUAL})


@dataclass(frozen=True, slots=True)
class Columns:
    """Where conditions find their columns: arrays by name, all of the same length."""

    arrays: Mapping[str, pa.Array]
    row_count: int

    def of(self, column: Column) -> pa.Array:
        """Return a column as it is stored."""
        return self.arrays[column.name]

    def compared(self, column: Column) -> pa.Array:
        """Return a column in the type in which it is compared."""
        stored = self.of(column)
        is_other_type = column.data_type.root in (TypeRoot.FLOAT, TypeRoot.BINARY)
        return stored.cast(compared_type(column.data_type)) if is_other_type else stored

    def constant(self, truth: Truth) -> pa.Array:
        """Return the same truth for every row."""
        if truth is None:
            return pa.nulls(self.row_count, pa.bool_())
        return bool_array(np.full(self.row_count, truth))


class BoundCondition(ABC):
    """A condition on the columns of one table."""

    @abstractmethod
    def columns(self) -> frozenset[str]:
        """Return the names of the columns that it looks at."""

    @abstractmethod
    def truth(self, columns: Columns) -> pa.Array:
        """Return for each row whether it holds; null where that is unknown."""

    @abstractmethod
    def outcomes(self, known: Mapping[str, pa.Array]) -> Outcomes:
        """Return what it can be for rows with these values, arrays of one, in some columns."""

    @abstractmethod
    def predicate(self, is_negated: bool) -> Predicate | None:
        """Return a condition for servers that holds at least where this one does, or its negation if that is asked for.

        None if they cannot be told anything.
        """


@dataclass(frozen=True, slots=True)
class Always(BoundCondition):
    """The same for all rows."""

    value: Truth

    def columns(self) -> frozenset[str]:
        return frozenset()

    def truth(self, columns: Columns) -> pa.Array:
        return columns.constant(self.value)

    def outcomes(self, known: Mapping[str, pa.Array]) -> Outcomes:
        return frozenset({self.value})

    def predicate(self, is_negated: bool) -> Predicate | None:
        return None


@dataclass(frozen=True, slots=True)
class _ColumnCondition(BoundCondition):
    """A condition on one column."""

    column: Column

    def columns(self) -> frozenset[str]:
        return frozenset({self.column.name})

    def outcomes(self, known: Mapping[str, pa.Array]) -> Outcomes:
        if self.column.name not in known:
            return ANY_OUTCOME
        return frozenset(self.truth(Columns(known, row_count=1)).to_pylist())

    def predicate(self, is_negated: bool) -> Predicate | None:
        return None


@dataclass(frozen=True, slots=True)
class Settled(_ColumnCondition):
    """The same for all rows in which a column is not null: how it compares with something that no value equals."""

    value: bool

    def truth(self, columns: Columns) -> pa.Array:
        return pc.if_else(pc.is_null(columns.of(self.column)), _UNKNOWN, _TRUTHS[self.value])


@dataclass(frozen=True, slots=True)
class Compared(_ColumnCondition):
    """A column compared with a value of its type."""

    operator: Operator
    value: ColumnValue
    # What each batch is compared with.
    _scalar: pa.Scalar = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_scalar", value_array([self.value], self.column.data_type)[0])

    def truth(self, columns: Columns) -> pa.Array:
        column = columns.compared(self.column)
        if _is_nan(self.value):
            # Nothing is above NaN, and nothing else equals it.
            is_nan = pc.is_nan(column)
            return is_nan if self.operator in (Operator.EQUAL, Operator.GREATER_OR_EQUAL) else pc.invert(is_nan)
        if self._is_float and self.operator in (Operator.GREATER, Operator.GREATER_OR_EQUAL):
            # For pyarrow NaN is neither above nor below a number: it is above all that is not below it.
            return pc.invert(_COMPARISONS[self.operator.opposite](column, self._scalar))
        return _COMPARISONS[self.operator](column, self._scalar)

    def predicate(self, is_negated: bool) -> Predicate | None:
        operator = self.operator.opposite if is_negated else self.operator
        value = python_value(self.value, self.column.data_type)
        if value is None or _is_nan(self.value) or (self._is_float and operator in _TRUE_OF_NAN):
            return None
        return _PREDICATES[operator](col(self.column.name), value)

    @property
    def _is_float(self) -> bool:
        return self.column.data_type.root in _FLOAT_ROOTS


@dataclass(frozen=True, slots=True)
class OneOf(_ColumnCondition):
    """A column that has one of some values; ``has_null`` if NULL is one of them."""

    values: tuple[ColumnValue, ...]
    has_null: bool

    def truth(self, columns: Columns) -> pa.Array:
        column = columns.compared(self.column)
        members = value_array(_with_both_zeros(self.values), self.column.data_type)
        is_in = pc.is_in(column, value_set=members)
        if any(map(_is_nan, self.values)):
            is_in = pc.or_(is_in, pc.fill_null(pc.is_nan(column), _TRUTHS[False]))
        if self.has_null:
            # Whether another value equals NULL is unknown.
            is_in = pc.if_else(is_in, is_in, _UNKNOWN)
        return pc.if_else(pc.is_null(column), _UNKNOWN, is_in)

    def predicate(self, is_negated: bool) -> Predicate | None:
        values = [python_value(value, self.column.data_type) for value in self.values]
        if not values or any(value is None or _is_nan(value) for value in values):
            return None
        if not is_negated:
            return col(self.column.name).is_in(values)
        is_float = self.column.data_type.root in _FLOAT_ROOTS
        return None if self.has_null or is_float else col(self.column.name).not_in(values)


@dataclass(frozen=True, slots=True)
class Null(_ColumnCondition):
    """A column that has no value."""

    def truth(self, columns: Columns) -> pa.Array:
        return pc.is_null(columns.of(self.column))

    def predicate(self, is_negated: bool) -> Predicate | None:
        column = col(self.column.name)
        if self.column.data_type.is_nested:
            return None
        return column.is_not_null() if is_negated else column.is_null()


@dataclass(frozen=True, slots=True)
class Like(_ColumnCondition):
    """A text column that looks like a pattern: ``%`` is any text, ``_`` any character, ``\\%`` a percent sign."""

    pattern: str

    def truth(self, columns: Columns) -> pa.Array:
        column = columns.of(self.column)
        plain = _plain_pattern(self.pattern)
        if plain is None:
            return pc.match_substring_regex(column, pattern=_regular_expression(self.pattern))
        match plain:
            case ("", text, ""):
                return pc.equal(column, value_array([text], self.column.data_type)[0])
            case ("", text, "%"):
                return pc.starts_with(column, pattern=text)
            case ("%", text, ""):
                return pc.ends_with(column, pattern=text)
        return pc.match_substring(column, pattern=plain[1])

    def predicate(self, is_negated: bool) -> Predicate | None:
        plain = _plain_pattern(self.pattern)
        column = col(self.column.name)
        match plain:
            case ("", text, ""):
                return column.not_equal(text) if is_negated else column.equal(text)
            case ("", text, "%") if not is_negated:
                return column.starts_with(text)
            case ("%", text, "") if not is_negated:
                return column.ends_with(text)
            case ("%", text, "%") if not is_negated:
                return column.contains(text)
        return None


@dataclass(frozen=True, slots=True)
class Not(BoundCondition):
    condition: BoundCondition

    def columns(self) -> frozenset[str]:
        return self.condition.columns()

    def truth(self, columns: Columns) -> pa.Array:
        return pc.invert(self.condition.truth(columns))

    def outcomes(self, known: Mapping[str, pa.Array]) -> Outcomes:
        return frozenset(None if truth is None else not truth for truth in self.condition.outcomes(known))

    def predicate(self, is_negated: bool) -> Predicate | None:
        return self.condition.predicate(not is_negated)


@dataclass(frozen=True, slots=True)
class Joined(BoundCondition):
    """Several conditions, of which all hold, or with ``is_any`` at least one."""

    conditions: tuple[BoundCondition, ...]
    is_any: bool

    def columns(self) -> frozenset[str]:
        return frozenset[str]().union(*(condition.columns() for condition in self.conditions))

    def truth(self, columns: Columns) -> pa.Array:
        return reduce(
            pc.or_kleene if self.is_any else pc.and_kleene,
            (condition.truth(columns) for condition in self.conditions),
        )

    def outcomes(self, known: Mapping[str, pa.Array]) -> Outcomes:
        join = _any_of if self.is_any else _all_of
        return reduce(
            lambda so_far, more: frozenset(map(join, product(so_far, more))),
            (condition.outcomes(known) for condition in self.conditions),
        )

    def predicate(self, is_negated: bool) -> Predicate | None:
        predicates = [condition.predicate(is_negated) for condition in self.conditions]
        told = [predicate for predicate in predicates if predicate is not None]
        if self.is_any is not is_negated:
            # A server can rule out the whole only if it can rule out every part.
            return reduce(Predicate.or_, told) if len(told) == len(predicates) else None
        return reduce(Predicate.and_, told) if told else None


def compared(column: Column, operator: Operator, position: LiteralPosition) -> BoundCondition:
    """Compare with a literal that may lie between two values of the column, or beyond all of them."""
    if operator in (Operator.EQUAL, Operator.NOT_EQUAL):
        if position.is_value:
            return Compared(column, operator, position.value)
        return Settled(column, operator is Operator.NOT_EQUAL)
    is_less = operator in (Operator.LESS, Operator.LESS_OR_EQUAL)
    if position.is_above_all or position.is_below_all:
        return Settled(column, is_less is position.is_above_all)
    if _is_nan(position.value) and operator in (Operator.LESS_OR_EQUAL, Operator.GREATER):
        return Settled(column, is_less)
    if not position.is_exact:
        # The value is the one below the literal: what is not above it is less than the literal, all else is greater.
        operator = Operator.LESS_OR_EQUAL if is_less else Operator.GREATER
    return Compared(column, operator, position.value)


def one_of(column: Column, positions: Iterable[LiteralPosition], *, has_null: bool) -> BoundCondition:
    """Look for literals among the values of a column, of which some may be none that it can have."""
    return OneOf(column, tuple(position.value for position in positions if position.is_value), has_null)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _any_of(truths: Iterable[Truth]) -> Truth:
    known = set(truths)
    return True if True in known else (None if None in known else False)


def _all_of(truths: Iterable[Truth]) -> Truth:
    known = set(truths)
    return False if False in known else (None if None in known else True)


def _with_both_zeros(values: Sequence[ColumnValue]) -> Sequence[ColumnValue]:
    """Add the other zero to floats that have one: they are equal, but pyarrow looks values up by their bits."""
    has_zero = any(isinstance(value, float) and value == 0 for value in values)
    return (*values, 0.0, -0.0) if has_zero else values


def _plain_pattern(pattern: str) -> tuple[str, str, str] | None:
    """Take a pattern apart into a text and what is around it, either ``%`` or nothing; None for all other patterns."""
    pieces = _pieces(pattern)
    before = "%" if pieces[:1] == [None] else ""
    after = "%" if pieces[1:] and pieces[-1] is None else ""
    texts = pieces[len(before) : len(pieces) - len(after)]
    if any(piece is None or piece == _ANY_CHARACTER for piece in texts):
        return None
    return before, "".join(piece for piece in texts if piece is not None), after


_ANY_CHARACTER: Final = "_any"


def _pieces(pattern: str) -> list[str | None]:
    """Return the characters of a pattern one by one: None for any text, ``_ANY_CHARACTER`` for any character."""
    pieces: list[str | None] = []
    for escaped, character in re.findall(r"\\(.)|(.)", pattern, re.DOTALL):
        if escaped:
            pieces.append(escaped)
        elif character == "%":
            pieces.append(None)
        else:
            pieces.append(_ANY_CHARACTER if character == "_" else character)
    return pieces


def _regular_expression(pattern: str) -> str:
    wild = {None: ".*", _ANY_CHARACTER: "."}
    return r"(?s)\A" + "".join(wild.get(piece) or re.escape(str(piece)) for piece in _pieces(pattern)) + r"\z"


def choices(condition: BoundCondition) -> dict[str, pa.Array]:
    """Return columns that have one of a few values wherever a condition holds, with these values as they are stored."""
    match condition:
        case Compared(operator=Operator.EQUAL):
            return _choice(condition.column, [condition.value])
        case OneOf():
            return _choice(condition.column, condition.values)
        case Joined(is_any=False):
            # Where a column is chosen several times, any of the choices is right.
            return dict(item for part in condition.conditions for item in choices(part).items())
    return {}


def _choice(column: Column, values: Sequence[ColumnValue]) -> dict[str, pa.Array]:
    # Values of other types may be equal without having the same bytes, or cannot be stored as they were written.
    if column.data_type.root in (TypeRoot.FLOAT, TypeRoot.DOUBLE, TypeRoot.BINARY):
        return {}
    return {column.name: value_array(values, column.data_type)}
