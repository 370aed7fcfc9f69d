"""Pruning: which of many batches can hold a row that a filter accepts, told by their statistics alone.

A filter may skip a batch only if none of its rows can match. Whenever something is unknown (no statistics, no bounds,
another type, a literal that does not fit) the batch is kept; the reader looks at its rows anyway.

| function             | keep the batch when                                              |
|----------------------|------------------------------------------------------------------|
| =                    | minimum <= literal <= maximum                                    |
| <>                   | not minimum = maximum = literal                                  |
| <, <=, >, >=         | minimum < literal, minimum <= literal, maximum > literal, ...    |
| is null, is not null | it has nulls, it has values that are not null                    |
| starts with          | minimum, cut to the length of the prefix, <= prefix <= maximum   |
| contains, ends with  | always                                                           |
| in, not in           | = holds for some literal, <> holds for every literal             |
| and, or              | all children, any child                                          |

- A null matches nothing but "is null": in a column of nulls all other functions fail.
- A null literal matches nothing; in "not in" it is passed over.
- NaN has no agreed place in the order, so as a literal or a bound it keeps the batch.
- Some readers say that -0.0 < 0.0: with a zero, "<" keeps what "<=" keeps, and "<>" keeps every batch.

How it is fast: all literals that a filter compares a column with are sorted once, and each gets its rank. The bounds of
all batches are looked up among them (``searchsorted``): how many literals are below a bound, how many are not above it.
From then on every comparison, of whatever type, is one of small integers, for all batches at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fluss.buffers import Int64Array
from fluss.integers import INT64_MAX
from fluss.record.batch_heads import BatchHeads
from fluss.record.statistics import (
    BoolArray,
    ColumnStatistics,
    TypesOf,
    WantedColumn,
    as_nanoseconds,
    bound_dtype,
    read_statistics,
)
from fluss.schema.predicate import (
    BoundLeaf,
    BoundLiteral,
    BoundPredicate,
    CompoundFunction,
    LeafFunction,
)
from fluss.schema.types import CharType, DataType, StringType, TimestampLtzType, TimestampType

# The ranks of one literal, or of the sorted literals of a set.
_Test: TypeAlias = Callable[["_RankedBounds", Any], BoolArray]


class BatchFilter:
    """A predicate that can be asked about many batches at once. It does not change; any thread may use it."""

    def __init__(self, predicate: BoundPredicate) -> None:
        tree = _TreeBuilder()
        self._root = tree.node(predicate)
        self._columns = tree.sorted_columns()

    def may_match(self, heads: BatchHeads, types_of: TypesOf) -> BoolArray:
        """Tell for each batch whether it can hold a row that the predicate accepts. True whenever that is not known."""
        found = read_statistics(heads, types_of, [column.wanted for column in self._columns])
        bounds = {
            column: _RankedBounds(statistics, heads.record_counts, column.literals)
            for column, statistics in zip(self._columns, found.columns, strict=True)
        }
        answer: BoolArray = self._root.evaluate(bounds) | found.is_damaged
        return answer


class _Column:
    """A column that a filter asks about, and everything that the filter compares it with."""

    __slots__ = ("literals", "ranks", "wanted")

    def __init__(self, index: int, data_type: DataType) -> None:
        self.wanted = WantedColumn(index, data_type)
        # By literal: how many others are below it. Known when all of them are.
        self.ranks: dict[Any, int] = {}
        self.literals: npt.NDArray[Any] = np.empty(0, bound_dtype(data_type))

    def add(self, *literals: Any) -> None:
        self.ranks.update(dict.fromkeys(literals, -1))

    def sort(self) -> None:
        ordered = sorted(self.ranks)
        self.ranks = {literal: rank for rank, literal in enumerate(ordered)}
        self.literals = np.empty(len(ordered), self.literals.dtype)
        self.literals[:] = ordered


class _RankedBounds:
    """The bounds of one column in all batches, as ranks among the literals of the filter."""

    def __init__(self, column: ColumnStatistics, record_counts: Int64Array, literals: npt.NDArray[Any]) -> None:
        self._column = column
        self._literals = literals
        # Where the number of nulls is not known, or cannot be right, all of this is so.
        self.may_have_values: BoolArray = column.null_counts != record_counts
        # No comparison can fail where there is nothing to compare with.
        self.is_open: BoolArray = self.may_have_values & ~column.has_bounds
        self.is_open |= column.null_counts > record_counts

    @property
    def may_be_null(self) -> BoolArray:
        answer: BoolArray = self._column.null_counts != 0
        return answer

    # How many literals are below a bound, and how many are not above it.

    @cached_property
    def below_minimum(self) -> Int64Array:
        return np.searchsorted(self._literals, self._column.minimums, side="left")

    @cached_property
    def up_to_minimum(self) -> Int64Array:
        return np.searchsorted(self._literals, self._column.minimums, side="right")

    @cached_property
    def below_maximum(self) -> Int64Array:
        return np.searchsorted(self._literals, self._column.maximums, side="left")

    @cached_property
    def up_to_maximum(self) -> Int64Array:
        return np.searchsorted(self._literals, self._column.maximums, side="right")

    @cached_property
    def only_value(self) -> Int64Array:
        """The rank of the literal that both bounds are equal to, -1 if there is none."""
        is_literal = (
            (self.below_minimum == self.below_maximum)
            & (self.up_to_minimum == self.up_to_maximum)
            & (self.up_to_minimum > self.below_minimum)
        )
        ranks: Int64Array = np.where(is_literal, self.below_minimum, -1)
        return ranks


# Tests of single functions


def _may_equal(bounds: _RankedBounds, rank: int) -> BoolArray:
    return (bounds.below_minimum <= rank) & (bounds.up_to_maximum > rank)


def _may_differ(bounds: _RankedBounds, rank: int) -> BoolArray:
    answer: BoolArray = bounds.only_value != rank
    return answer


def _may_be_less(bounds: _RankedBounds, rank: int) -> BoolArray:
    return bounds.up_to_minimum <= rank


def _may_be_less_or_equal(bounds: _RankedBounds, rank: int) -> BoolArray:
    return bounds.below_minimum <= rank


def _may_be_greater(bounds: _RankedBounds, rank: int) -> BoolArray:
    return bounds.below_maximum > rank


def _may_be_greater_or_equal(bounds: _RankedBounds, rank: int) -> BoolArray:
    return bounds.up_to_maximum > rank


def _may_be_in(bounds: _RankedBounds, ranks: Int64Array) -> BoolArray:
    return np.searchsorted(ranks, bounds.below_minimum) < np.searchsorted(ranks, bounds.up_to_maximum)


def _may_be_outside(bounds: _RankedBounds, ranks: Int64Array) -> BoolArray:
    return ~np.isin(bounds.only_value, ranks)


_TESTS: Final[dict[LeafFunction, _Test]] = {
    LeafFunction.EQUAL: _may_equal,
    LeafFunction.NOT_EQUAL: _may_differ,
    LeafFunction.LESS_THAN: _may_be_less,
    LeafFunction.LESS_OR_EQUAL: _may_be_less_or_equal,
    LeafFunction.GREATER_THAN: _may_be_greater,
    LeafFunction.GREATER_OR_EQUAL: _may_be_greater_or_equal,
}
# How a float zero is compared, where that is another way; None: it excludes nothing.
_ZERO_TESTS: Final[dict[LeafFunction, _Test | None]] = {
    LeafFunction.LESS_THAN: _may_be_less_or_equal,
    LeafFunction.GREATER_THAN: _may_be_greater_or_equal,
    LeafFunction.NOT_EQUAL: None,
}


# The tree

_Bounds: TypeAlias = dict[_Column, _RankedBounds]


@dataclass(frozen=True, slots=True, eq=False)
class _IsNull:
    column: _Column

    def evaluate(self, bounds: _Bounds) -> BoolArray:
        return bounds[self.column].may_be_null


@dataclass(frozen=True, slots=True, eq=False)
class _HasValues:
    """All that is known to be asked for is a value that is not null."""

    column: _Column

    def evaluate(self, bounds: _Bounds) -> BoolArray:
        return bounds[self.column].may_have_values


@dataclass(frozen=True, slots=True, eq=False)
class _Nothing:
    """No value matches."""

    column: _Column

    def evaluate(self, bounds: _Bounds) -> BoolArray:
        return bounds[self.column].is_open


@dataclass(slots=True, eq=False)
class _Comparison:
    column: _Column
    test: _Test
    # The literal, or those of a set; later their ranks, which are known when all literals of the column are.
    literals: Any
    ranks: Any = None

    def rank(self) -> None:
        ranks = self.column.ranks
        if isinstance(self.literals, list):
            self.ranks = np.array(sorted({ranks[literal] for literal in self.literals}), np.int64)
        else:
            self.ranks = ranks[self.literals]

    def evaluate(self, bounds: _Bounds) -> BoolArray:
        known = bounds[self.column]
        answer = self.test(known, self.ranks)
        answer &= known.may_have_values
        answer |= known.is_open
        return answer


@dataclass(frozen=True, slots=True, eq=False)
class _Compound:
    is_and: bool
    children: tuple[_Node, ...]

    def evaluate(self, bounds: _Bounds) -> BoolArray:
        # A copy, because the answer of a child may be an array that others use as well.
        answer = self.children[0].evaluate(bounds).copy()
        for child in self.children[1:]:
            if self.is_and:
                answer &= child.evaluate(bounds)
            else:
                answer |= child.evaluate(bounds)
        return answer


_Node: TypeAlias = _IsNull | _HasValues | _Nothing | _Comparison | _Compound


class _TreeBuilder:
    """Turns a predicate into nodes, and collects the literals of each column on the way."""

    def __init__(self) -> None:
        self._columns: dict[tuple[int, DataType], _Column] = {}
        self._comparisons: list[_Comparison] = []

    def sorted_columns(self) -> tuple[_Column, ...]:
        """Sort the literals, tell the comparisons their ranks, and return the columns."""
        columns = tuple(self._columns.values())
        for column in columns:
            column.sort()
        for comparison in self._comparisons:
            comparison.rank()
        return columns

    def node(self, predicate: BoundPredicate) -> _Node:
        if isinstance(predicate, BoundLeaf):
            key = predicate.column_index, predicate.data_type.not_null()
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = _Column(*key)
            return self._leaf(predicate, column)
        assert predicate.children, "a filter that combines nothing is refused before"
        children = tuple(map(self.node, predicate.children))
        return _Compound(predicate.function is CompoundFunction.AND, children)

    def _leaf(self, leaf: BoundLeaf, column: _Column) -> _Node:
        match leaf.function:
            case LeafFunction.IS_NULL:
                return _IsNull(column)
            case LeafFunction.IN | LeafFunction.NOT_IN:
                return self._set(leaf, column)
            case LeafFunction.IS_NOT_NULL | LeafFunction.CONTAINS | LeafFunction.ENDS_WITH:
                return _HasValues(column)
        (literal,) = leaf.literals
        if literal is None:
            return _Nothing(column)
        value = _comparable(literal, leaf.data_type)
        if value is None:
            return _HasValues(column)
        if leaf.function is LeafFunction.STARTS_WITH:
            return self._prefix(value, column) if isinstance(value, str) else _HasValues(column)
        test = _ZERO_TESTS.get(leaf.function, _TESTS[leaf.function]) if _is_zero(value) else _TESTS[leaf.function]
        return _HasValues(column) if test is None else self._comparison(column, test, value)

    def _set(self, leaf: BoundLeaf, column: _Column) -> _Node:
        values = [_comparable(literal, leaf.data_type) for literal in leaf.literals if literal is not None]
        if leaf.function is LeafFunction.IN:
            if None in values:
                return _HasValues(column)
            return self._comparison(column, _may_be_in, values) if values else _Nothing(column)
        # A literal that may be anything, or a zero, excludes no batch.
        values = [value for value in values if value is not None and not _is_zero(value)]
        return self._comparison(column, _may_be_outside, values) if values else _HasValues(column)

    def _prefix(self, prefix: str, column: _Column) -> _Node:
        """Texts with a prefix lie between the prefix itself and the first text behind all that begin with it."""
        reaches_prefix = self._comparison(column, _may_be_greater_or_equal, prefix)
        # Python orders texts by code point, which is the order of their UTF-8 bytes. The last one has no successor.
        stem = prefix.rstrip(chr(sys.maxunicode))
        if not stem:
            return reaches_prefix
        end = stem[:-1] + chr(ord(stem[-1]) + 1)
        return _Compound(True, (reaches_prefix, self._comparison(column, _may_be_less, end)))

    def _comparison(self, column: _Column, test: _Test, literals: Any) -> _Comparison:
        column.add(*(literals if isinstance(literals, list) else (literals,)))
        comparison = _Comparison(column, test, literals)
        self._comparisons.append(comparison)
        return comparison


def _is_zero(value: Any) -> bool:
    return isinstance(value, float) and value == 0


def _comparable(literal: BoundLiteral, data_type: DataType) -> Any:
    """Return a literal as bounds are, None if it cannot be compared with them: NaN, or a value of another type."""
    match data_type:
        case CharType() | StringType():
            return literal if isinstance(literal, str) else None
        case TimestampType() | TimestampLtzType():
            return as_nanoseconds(literal) if isinstance(literal, tuple) else None
    kind = bound_dtype(data_type).kind
    if kind == "f":
        return literal if isinstance(literal, float) and literal == literal else None
    if not isinstance(literal, int):
        return None
    # Beyond 64 bits are only decimals with many digits.
    return int(literal) if kind == "O" or -INT64_MAX - 1 <= literal <= INT64_MAX else None
