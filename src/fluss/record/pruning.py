"""Which batches a filter can skip, judged by their statistics alone.

A batch may be skipped only if none of its rows can match. Whenever something is unknown (no statistics, no bounds,
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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from fluss.record.statistics import BatchStatistics, ColumnStatistics
from fluss.schema.predicate import BoundCompound, BoundLeaf, BoundPredicate, CompoundFunction, LeafFunction

# Takes the minimum, the maximum and a literal.
_Test: TypeAlias = Callable[[Any, Any, Any], bool]


def may_match(predicate: BoundPredicate, statistics: BatchStatistics | None, record_count: int) -> bool:
    """Tell whether a batch can hold a row that the predicate accepts. True whenever that is not known."""
    if statistics is None:
        return True
    if isinstance(predicate, BoundLeaf):
        return _leaf_may_match(predicate, statistics.columns.get(predicate.column_index), record_count)
    return _compound_may_match(predicate, statistics, record_count)


def _compound_may_match(compound: BoundCompound, statistics: BatchStatistics, record_count: int) -> bool:
    if not compound.children:
        return True
    answers = (may_match(child, statistics, record_count) for child in compound.children)
    return all(answers) if compound.function is CompoundFunction.AND else any(answers)


def _leaf_may_match(leaf: BoundLeaf, column: ColumnStatistics | None, record_count: int) -> bool:
    # The bounds of a column that has changed its type since cannot be compared with the literals.
    if column is None or column.data_type.not_null() != leaf.data_type.not_null():
        return True
    if column.null_count > record_count:
        return True
    if leaf.function is LeafFunction.IS_NULL:
        return column.null_count > 0
    if column.null_count == record_count:
        return False
    test = _TESTS.get(leaf.function)
    if test is None or not (_has_order(column.minimum) and _has_order(column.maximum)):
        return True
    if leaf.function is LeafFunction.NOT_IN:
        return all(literal is None or _passes(test, column, literal) for literal in leaf.literals)
    if leaf.function is LeafFunction.IN or leaf.literals:
        return any(literal is not None and _passes(test, column, literal) for literal in leaf.literals)
    return True


def _passes(test: _Test, column: ColumnStatistics, literal: Any) -> bool:
    try:
        return not _has_order(literal) or test(column.minimum, column.maximum, literal)
    except TypeError:
        # A filter whose literal is not of the column's type is a fault elsewhere; rows must not get lost by it.
        return True


def _has_order(value: Any) -> bool:
    """Tell whether a value is known and is not NaN."""
    return value is not None and value == value


def _is_zero(value: Any) -> bool:
    return isinstance(value, float) and value == 0


def _may_equal(minimum: Any, maximum: Any, literal: Any) -> bool:
    return bool(minimum <= literal <= maximum)


def _may_differ(minimum: Any, maximum: Any, literal: Any) -> bool:
    return not (minimum == maximum == literal) or _is_zero(literal)


def _may_be_less(minimum: Any, maximum: Any, literal: Any) -> bool:
    return bool(minimum <= literal if _is_zero(literal) else minimum < literal)


def _may_be_less_or_equal(minimum: Any, maximum: Any, literal: Any) -> bool:
    return bool(minimum <= literal)


def _may_be_greater(minimum: Any, maximum: Any, literal: Any) -> bool:
    return bool(maximum >= literal if _is_zero(literal) else maximum > literal)


def _may_be_greater_or_equal(minimum: Any, maximum: Any, literal: Any) -> bool:
    return bool(maximum >= literal)


def _may_start_with(minimum: Any, maximum: Any, literal: Any) -> bool:
    # Python orders texts by code point, which is the order of their UTF-8 bytes.
    return bool(minimum[: len(literal)] <= literal <= maximum)


# Functions that are not here keep every batch that has a value which is not null.
_TESTS: Final[dict[LeafFunction, _Test]] = {
    LeafFunction.EQUAL: _may_equal,
    LeafFunction.NOT_EQUAL: _may_differ,
    LeafFunction.LESS_THAN: _may_be_less,
    LeafFunction.LESS_OR_EQUAL: _may_be_less_or_equal,
    LeafFunction.GREATER_THAN: _may_be_greater,
    LeafFunction.GREATER_OR_EQUAL: _may_be_greater_or_equal,
    LeafFunction.STARTS_WITH: _may_start_with,
    LeafFunction.IN: _may_equal,
    LeafFunction.NOT_IN: _may_differ,
}
