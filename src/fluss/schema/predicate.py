"""Row filters: ``col("price") > 10``, combined with ``&`` and ``|``, and bound to the columns of a table.

A ``Predicate`` is what the user wrote. ``bind`` checks it against a schema and turns the literals into values of the
column's type; the result is a tree of ``BoundLeaf`` and ``BoundCompound`` that can be sent or evaluated:

    column type                 literal in a bound tree
    BOOLEAN                     bool
    TINYINT..BIGINT             int
    FLOAT, DOUBLE               float
    CHAR, STRING / bytes types  str / bytes
    DECIMAL                     int, the unscaled value
    DATE / TIME                 int, days since the epoch / milliseconds of the day
    TIMESTAMP, TIMESTAMP_LTZ    (epoch milliseconds, nanoseconds inside the millisecond)
    any, in IN and NOT IN       None
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NoReturn, TypeAlias

from fluss.errors import FlussError
from fluss.schema.literal import BoundLiteral, Literal, bind_literal, literal
from fluss.schema.schema import Schema, shown_names
from fluss.schema.types import DataType, TypeRoot

# Deeper trees would exhaust the stack of whoever walks them; real filters have a handful of levels. A level is two
# nested messages in a request, of which protobuf runtimes read 100.
PREDICATE_DEPTH_MAX: Final = 32


class LeafFunction(IntEnum):
    """What a leaf asks of a column; the number is the code in requests."""

    EQUAL = 0
    NOT_EQUAL = 1
    LESS_THAN = 2
    LESS_OR_EQUAL = 3
    GREATER_THAN = 4
    GREATER_OR_EQUAL = 5
    IS_NULL = 6
    IS_NOT_NULL = 7
    STARTS_WITH = 8
    CONTAINS = 9
    ENDS_WITH = 10
    IN = 11
    NOT_IN = 12


class CompoundFunction(IntEnum):
    """How the children of a compound are combined; the number is the code in requests."""

    AND = 0
    OR = 1


_OPERATORS: Final = {
    LeafFunction.EQUAL: "==",
    LeafFunction.NOT_EQUAL: "!=",
    LeafFunction.LESS_THAN: "<",
    LeafFunction.LESS_OR_EQUAL: "<=",
    LeafFunction.GREATER_THAN: ">",
    LeafFunction.GREATER_OR_EQUAL: ">=",
}
_METHODS: Final = {
    LeafFunction.IS_NULL: "is_null",
    LeafFunction.IS_NOT_NULL: "is_not_null",
    LeafFunction.STARTS_WITH: "starts_with",
    LeafFunction.CONTAINS: "contains",
    LeafFunction.ENDS_WITH: "ends_with",
    LeafFunction.IN: "is_in",
    LeafFunction.NOT_IN: "not_in",
}
_TEXT_FUNCTIONS: Final = frozenset({LeafFunction.STARTS_WITH, LeafFunction.CONTAINS, LeafFunction.ENDS_WITH})
_SET_FUNCTIONS: Final = frozenset({LeafFunction.IN, LeafFunction.NOT_IN})
_TEXT_ROOTS: Final = frozenset({TypeRoot.CHAR, TypeRoot.STRING})


@dataclass(frozen=True, slots=True)
class BoundLeaf:
    """One question about one column. ``field_id`` is the id of the column, ``column_index`` its position."""

    function: LeafFunction
    field_id: int
    column_index: int
    data_type: DataType
    literals: tuple[BoundLiteral, ...]


@dataclass(frozen=True, slots=True)
class BoundCompound:
    """Several conditions as one."""

    function: CompoundFunction
    children: tuple[BoundPredicate, ...]


BoundPredicate: TypeAlias = BoundLeaf | BoundCompound


class Predicate:
    """A condition on the columns of a row. Made by ``col(...)`` and combined with ``&`` and ``|``."""

    __slots__ = ()

    def __init__(self) -> None:
        raise TypeError('Predicate objects cannot be constructed; write a condition such as col("price") > 10')

    def bind(self, schema: Schema) -> BoundPredicate:
        """Check the columns and literals against a schema; the first that does not fit is a ``FlussError``."""
        raise AssertionError(f"{type(self).__name__} cannot be bound")

    def and_(self, other: Predicate) -> Predicate:
        """Both conditions: ``a & b``."""
        return _combined(CompoundFunction.AND, self, other)

    def or_(self, other: Predicate) -> Predicate:
        """At least one of two conditions: ``a | b``."""
        return _combined(CompoundFunction.OR, self, other)

    def __and__(self, other: Predicate) -> Predicate:
        return self.and_(other) if isinstance(other, Predicate) else NotImplemented

    def __or__(self, other: Predicate) -> Predicate:
        return self.or_(other) if isinstance(other, Predicate) else NotImplemented

    def __bool__(self) -> NoReturn:
        raise TypeError("a Predicate has no truth value; combine conditions with & and |, each in parentheses")


@dataclass(frozen=True, slots=True, repr=False)
class _Leaf(Predicate):
    column: str
    function: LeafFunction
    literals: tuple[Literal, ...] = ()

    def bind(self, schema: Schema) -> BoundLeaf:
        names = schema.column_names
        if self.column not in names:
            raise FlussError(f"The filter column '{self.column}' not found; columns are {shown_names(names)}")
        index = schema.index_of(self.column)
        column = schema.columns[index]
        if column.data_type.is_nested:
            raise FlussError(f"A filter on column '{self.column}' of type {column.data_type} is not supported")
        if self.function in _TEXT_FUNCTIONS and column.data_type.root not in _TEXT_ROOTS:
            raise FlussError(
                f"The filter {self!r} requires a character string column, but '{self.column}' is {column.data_type}"
            )
        literals = tuple(self._bound(value, column.data_type) for value in self.literals)
        return BoundLeaf(self.function, column.column_id, index, column.data_type, literals)

    def _bound(self, value: Literal, data_type: DataType) -> BoundLiteral:
        if value is not None:
            return bind_literal(value, data_type, self.column)
        if self.function in _SET_FUNCTIONS:
            return None
        raise FlussError(f"The filter {self!r} cannot take a null literal; use is_null() or is_not_null()")

    def __repr__(self) -> str:
        operator = _OPERATORS.get(self.function)
        if operator is not None:
            return f"col({self.column!r}) {operator} {self.literals[0]!r}"
        values = ", ".join(map(repr, self.literals))
        arguments = f"[{values}]" if self.function in _SET_FUNCTIONS else values
        return f"col({self.column!r}).{_METHODS[self.function]}({arguments})"


@dataclass(frozen=True, slots=True, repr=False)
class _Compound(Predicate):
    function: CompoundFunction
    children: tuple[Predicate, ...]
    depth: int

    def bind(self, schema: Schema) -> BoundCompound:
        return BoundCompound(self.function, tuple(child.bind(schema) for child in self.children))

    def __repr__(self) -> str:
        symbol = " & " if self.function is CompoundFunction.AND else " | "
        return symbol.join(f"({child!r})" for child in self.children)


def _combined(function: CompoundFunction, left: Predicate, right: Predicate) -> Predicate:
    """Join two predicates; ``a & b & c`` becomes one AND of three."""
    if not isinstance(right, Predicate):
        raise TypeError(f"a Predicate can be combined with a Predicate only, got {type(right).__name__}")
    children: list[Predicate] = []
    for side in (left, right):
        if isinstance(side, _Compound) and side.function is function:
            children.extend(side.children)
        else:
            children.append(side)
    depth = 1 + max(child.depth if isinstance(child, _Compound) else 1 for child in children)
    if depth > PREDICATE_DEPTH_MAX:
        raise FlussError(f"A filter can be nested at most {PREDICATE_DEPTH_MAX} levels deep; write it flatter")
    return _Compound(function, tuple(children), depth)


class ColumnRef:
    """A column by name, to be compared: ``col("price") > 10``. Comparing makes a ``Predicate``."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a column name must be str, got {type(name).__name__}")
        self._name = name

    @property
    def name(self) -> str:
        """The name of the column."""
        return self._name

    def _leaf(self, function: LeafFunction, *values: object) -> Predicate:
        return _Leaf(self._name, function, tuple(literal(value) for value in values))

    def _set_leaf(self, function: LeafFunction, values: object) -> Predicate:
        if not isinstance(values, list | tuple):
            raise TypeError(f"the values must be a list or tuple, got {type(values).__name__}")
        return self._leaf(function, *values)

    def _text_leaf(self, function: LeafFunction, text: object) -> Predicate:
        if not isinstance(text, str):
            raise TypeError(f"the text to look for must be str, got {type(text).__name__}")
        return self._leaf(function, text)

    def equal(self, value: object) -> Predicate:
        """The value is this one."""
        return self._leaf(LeafFunction.EQUAL, value)

    def not_equal(self, value: object) -> Predicate:
        """The value is another one, and not null."""
        return self._leaf(LeafFunction.NOT_EQUAL, value)

    def less_than(self, value: object) -> Predicate:
        """The value is below this one."""
        return self._leaf(LeafFunction.LESS_THAN, value)

    def less_or_equal(self, value: object) -> Predicate:
        """The value is not above this one."""
        return self._leaf(LeafFunction.LESS_OR_EQUAL, value)

    def greater_than(self, value: object) -> Predicate:
        """The value is above this one."""
        return self._leaf(LeafFunction.GREATER_THAN, value)

    def greater_or_equal(self, value: object) -> Predicate:
        """The value is not below this one."""
        return self._leaf(LeafFunction.GREATER_OR_EQUAL, value)

    def is_null(self) -> Predicate:
        """There is no value."""
        return self._leaf(LeafFunction.IS_NULL)

    def is_not_null(self) -> Predicate:
        """There is a value."""
        return self._leaf(LeafFunction.IS_NOT_NULL)

    def starts_with(self, prefix: str) -> Predicate:
        """The text begins like this."""
        return self._text_leaf(LeafFunction.STARTS_WITH, prefix)

    def ends_with(self, suffix: str) -> Predicate:
        """The text ends like this."""
        return self._text_leaf(LeafFunction.ENDS_WITH, suffix)

    def contains(self, part: str) -> Predicate:
        """The text has this in it."""
        return self._text_leaf(LeafFunction.CONTAINS, part)

    def is_in(self, values: Sequence[object]) -> Predicate:
        """The value is one of these."""
        return self._set_leaf(LeafFunction.IN, values)

    def not_in(self, values: Sequence[object]) -> Predicate:
        """The value is none of these."""
        return self._set_leaf(LeafFunction.NOT_IN, values)

    # Comparisons make predicates, so a column has no equality of its own and, by Python's rules, no hash.
    def __eq__(self, value: object) -> Predicate:  # type: ignore[override]  # a condition, not an answer
        return self.equal(value)

    def __ne__(self, value: object) -> Predicate:  # type: ignore[override]  # a condition, not an answer
        return self.not_equal(value)

    def __lt__(self, value: object) -> Predicate:
        return self.less_than(value)

    def __le__(self, value: object) -> Predicate:
        return self.less_or_equal(value)

    def __gt__(self, value: object) -> Predicate:
        return self.greater_than(value)

    def __ge__(self, value: object) -> Predicate:
        return self.greater_or_equal(value)

    def __bool__(self) -> NoReturn:
        raise TypeError("a column has no truth value; compare it, and combine comparisons with & and |")

    def __repr__(self) -> str:
        return f"col({self._name!r})"


def col(name: str) -> ColumnRef:
    """Name a column to compare."""
    return ColumnRef(name)
