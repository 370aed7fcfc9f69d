"""Row filters: ``col("price") > 10``, combined with ``&`` and ``|``, and bound to the columns of a table.

A ``Predicate`` is what the user wrote. ``bind`` checks it against a schema and turns the literals into values of the
column's type; the result is a tree of ``BoundLeaf`` and ``BoundCompound`` that can be sent to servers, which skip
batches by it (``fluss.filter`` decides about single rows):

    column type                 literal in a bound tree
    BOOLEAN                     bool
    TINYINT..BIGINT             int
    FLOAT, DOUBLE               float
    CHAR, STRING / bytes types  str / bytes
    DECIMAL                     int, the unscaled value
    DATE / TIME                 int, days since the epoch / milliseconds of the day, cut off
    TIMESTAMP, TIMESTAMP_LTZ    (epoch milliseconds, nanoseconds inside the millisecond)
    any, in IN and NOT IN       None

A literal is checked twice: ``literal`` takes what the user wrote, when the column is not known yet; ``bind_literal``
turns it into a value of the column's type, and only exactly. A filter that rounds would drop the wrong rows.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import numpy as np

from fluss.errors import FlussError
from fluss.options import suggestion
from fluss.schema.schema import Schema, shown_names
from fluss.schema.types import DataType, DecimalType, TypeRoot

# Deeper trees would exhaust the stack of the functions that walk them; real filters have a handful of levels. A level
# is two nested messages in a request, of which protobuf runtimes read 100.
PREDICATE_DEPTH_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class FilterLimits:
    """What a server takes of the filters of one request, all of them together."""

    # Comparisons, and the ANDs and ORs that join them.
    conditions_max: int = 2048
    # Values that columns are compared with.
    literals_max: int = 16_384
    # As they are encoded in the request.
    bytes_max: int = 1024 * 1024


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
TEXT_FUNCTIONS: Final = frozenset({LeafFunction.STARTS_WITH, LeafFunction.CONTAINS, LeafFunction.ENDS_WITH})
SET_FUNCTIONS: Final = frozenset({LeafFunction.IN, LeafFunction.NOT_IN})
TEXT_ROOTS: Final = frozenset({TypeRoot.CHAR, TypeRoot.STRING})


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
class LeafPredicate(Predicate):
    """One question about one column, as the user wrote it."""

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
        if self.function in TEXT_FUNCTIONS and column.data_type.root not in TEXT_ROOTS:
            raise FlussError(
                f"The filter {self!r} requires a character string column, but '{self.column}' is {column.data_type}"
            )
        literals = tuple(self._bound(value, column.data_type) for value in self.literals)
        return BoundLeaf(self.function, column.column_id, index, column.data_type, literals)

    def _bound(self, value: Literal, data_type: DataType) -> BoundLiteral:
        if value is not None:
            return bind_literal(value, data_type, self.column)
        if self.function in SET_FUNCTIONS:
            return None
        raise FlussError(f"The filter {self!r} cannot take a null literal; use is_null() or is_not_null()")

    def __repr__(self) -> str:
        operator = _OPERATORS.get(self.function)
        if operator is not None:
            return f"col({self.column!r}) {operator} {self.literals[0]!r}"
        values = ", ".join(map(repr, self.literals))
        arguments = f"[{values}]" if self.function in SET_FUNCTIONS else values
        return f"col({self.column!r}).{_METHODS[self.function]}({arguments})"


@dataclass(frozen=True, slots=True, repr=False)
class CompoundPredicate(Predicate):
    """Several conditions as one, as the user wrote them."""

    function: CompoundFunction
    children: tuple[Predicate, ...]
    depth: int

    def bind(self, schema: Schema) -> BoundCompound:
        return BoundCompound(self.function, tuple(child.bind(schema) for child in self.children))

    def __str__(self) -> str:
        symbol = " & " if self.function is CompoundFunction.AND else " | "
        return symbol.join(f"({child})" for child in self.children)

    def __repr__(self) -> str:
        return f"Compound({self})"


# A condition as users give it. Expressions of other libraries have no types here that could be named.
Filter: TypeAlias = Predicate | str | Any


def _combined(function: CompoundFunction, left: Predicate, right: Predicate) -> Predicate:
    """Join two predicates; ``a & b & c`` becomes one AND of three."""
    if not isinstance(right, Predicate):
        raise TypeError(f"a Predicate can be combined with a Predicate only, got {type(right).__name__}")
    children: list[Predicate] = []
    for side in (left, right):
        if isinstance(side, CompoundPredicate) and side.function is function:
            children.extend(side.children)
        else:
            children.append(side)
    depth = 1 + max(child.depth if isinstance(child, CompoundPredicate) else 1 for child in children)
    if depth > PREDICATE_DEPTH_MAX:
        raise FlussError(f"A filter can be nested at most {PREDICATE_DEPTH_MAX} levels deep; write it flatter")
    return CompoundPredicate(function, tuple(children), depth)


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
        return LeafPredicate(self._name, function, tuple(literal(value) for value in values))

    def _set_leaf(self, function: LeafFunction, values: object) -> Predicate:
        # Arrays, and columns of data frames.
        plain = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(plain, list | tuple):
            raise TypeError(f"the values must be a list or tuple, got {type(values).__name__}")
        return self._leaf(function, *plain)

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

    def contains(self, infix: str) -> Predicate:
        """The text has this in it."""
        return self._text_leaf(LeafFunction.CONTAINS, infix)

    def is_in(self, values: Sequence[object]) -> Predicate:
        """The value is one of these."""
        return self._set_leaf(LeafFunction.IN, values)

    def isin(self, values: Sequence[object]) -> Predicate:
        """Another name of ``is_in``, which pandas, pyarrow and Spark have."""
        return self.is_in(values)

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

    def __and__(self, other: object) -> NoReturn:
        # Python takes & and | before comparisons.
        raise TypeError('a column cannot be combined; put each comparison in parentheses: (col("a") > 1) & (...)')

    __rand__ = __or__ = __ror__ = __and__

    def __bool__(self) -> NoReturn:
        raise TypeError("a column has no truth value; compare it, and combine comparisons with & and |")

    if not TYPE_CHECKING:
        # Type checkers know the methods there are.
        def __getattr__(self, name: str) -> NoReturn:
            known = [each for each in dir(type(self)) if not each.startswith("_")]
            raise AttributeError(f"a column has no method {name!r}{suggestion(name, known)}", name=name, obj=self)

    def __repr__(self) -> str:
        return f"col({self._name!r})"


def col(name: str) -> ColumnRef:
    """Name a column to compare."""
    return ColumnRef(name)


# Literals

_SUPPORTED: Final = "bool, int, float, str, bytes, Decimal, date, time, datetime and None"
_EPOCH: Final = dt.datetime(1970, 1, 1)
_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_ORDINAL: Final = _EPOCH.toordinal()
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_FLOAT32: Final = struct.Struct("<f")
_INTEGER_BITS: Final = {TypeRoot.TINYINT: 8, TypeRoot.SMALLINT: 16, TypeRoot.INTEGER: 32, TypeRoot.BIGINT: 64}


@dataclass(frozen=True, slots=True, repr=False)
class Moment:
    """A datetime with nanoseconds: UTC when it had a zone, as it stood when it had none."""

    millis: int
    nanos: int
    has_zone: bool
    text: str

    def __repr__(self) -> str:
        return self.text


Literal: TypeAlias = bool | int | float | str | bytes | Decimal | dt.date | dt.time | Moment | None
# What a literal becomes; the table is in the docstring of this module.
BoundLiteral: TypeAlias = bool | int | float | str | bytes | tuple[int, int] | None


def literal(value: object) -> Literal:
    """Take a value a user compares a column with; other classes are a TypeError, too large ints an OverflowError."""
    if isinstance(value, np.generic):
        value = _plain_scalar(value)
    if value is None or isinstance(value, bool | float):
        return value
    # Subclasses of str, bytes and int (enums, numpy texts) are reduced to the plain value.
    if isinstance(value, int):
        return _int64(int(value))
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise FlussError(f"A filter literal must be finite, got {value!r}")
        return value
    if isinstance(value, dt.datetime):
        return _moment(value)
    if isinstance(value, dt.date):
        return value
    if isinstance(value, dt.time):
        return value.replace(tzinfo=None)
    raise TypeError(f"Unsupported filter literal of type {type(value).__name__}; supported are {_SUPPORTED}")


def _plain_scalar(value: np.generic) -> object:
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.floating):
        return float(value)
    return value


def _int64(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise OverflowError(f"a filter literal must fit 64 bits, got {value}")
    return value


def _moment(value: dt.datetime) -> Moment:
    # A pandas Timestamp is a datetime with nanoseconds; its missing value is one that differs from itself.
    if value != value:
        raise TypeError(f"Unsupported filter literal {value!r}; supported are {_SUPPORTED}")
    nanosecond: int = getattr(value, "nanosecond", 0)
    plain = dt.datetime.combine(value.date(), value.time(), value.tzinfo).replace(fold=value.fold)
    has_zone = plain.utcoffset() is not None
    since_epoch = plain - _EPOCH_UTC if has_zone else plain.replace(tzinfo=None) - _EPOCH
    millis, micros = divmod(since_epoch // _MICROSECOND, 1000)
    return Moment(millis, micros * 1000 + nanosecond, has_zone, repr(value))


def bind_literal(value: Literal, data_type: DataType, column_name: str) -> BoundLiteral:
    """Return the value in the column's own terms, or say why no value of the column can equal it."""
    assert value is not None, "whether null is allowed depends on the function"
    try:
        return _BINDERS[data_type.root](value, data_type)
    except _MisfitError as reason:
        raise FlussError(
            f"The filter literal {value!r} does not fit column '{column_name}' of type {data_type}: {reason}"
        ) from None


class _MisfitError(Exception):
    """Why a literal cannot be compared with a column."""


def _other_class(value: Literal, taken: str) -> _MisfitError:
    name = "datetime" if isinstance(value, Moment) else type(value).__name__
    return _MisfitError(f"{name} does not match, it takes {taken}")


def _bind_boolean(value: Literal, data_type: DataType) -> bool:
    if not isinstance(value, bool):
        raise _other_class(value, "True or False")
    return value


def _bind_integer(value: Literal, data_type: DataType) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _other_class(value, "int, without conversion")
    bits = _INTEGER_BITS[data_type.root]
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise _MisfitError(f"it holds {bits}-bit integers")
    return value


def _bind_double(value: Literal, data_type: DataType) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _other_class(value, "float, or int where that is exact")
    # 64-bit ints are far inside the range of a double, so this conversion can only round.
    if float(value) != value and not (isinstance(value, float) and math.isnan(value)):
        raise _MisfitError("it cannot be represented exactly as a 64-bit float")
    return float(value)


def _bind_float(value: Literal, data_type: DataType) -> float:
    double = _bind_double(value, data_type)
    if math.isnan(double) or math.isinf(double):
        return double
    try:
        single: float = _FLOAT32.unpack(_FLOAT32.pack(double))[0]
    except OverflowError:
        raise _MisfitError("it cannot be represented exactly, being beyond the range of 32-bit floats") from None
    if single != double:
        raise _MisfitError("it cannot be represented exactly as a 32-bit float; use numpy.float32 to round it first")
    return single


def _bind_text(value: Literal, data_type: DataType) -> str:
    if not isinstance(value, str):
        raise _other_class(value, "str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _MisfitError("it is not valid Unicode text") from None
    return value


def _bind_bytes(value: Literal, data_type: DataType) -> bytes:
    if not isinstance(value, bytes):
        raise _other_class(value, "bytes")
    return value


def _bind_decimal(value: Literal, data_type: DataType) -> int:
    assert isinstance(data_type, DecimalType)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _other_class(value, "Decimal or int")
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int), "literals are finite"
    if not any(digits):
        return 0
    # Digits are counted before they are converted: a literal may have any number of them, and any exponent.
    significant = len(digits)
    while digits[significant - 1] == 0 and exponent < -data_type.scale:
        significant -= 1
        exponent += 1
    if exponent < -data_type.scale:
        raise _MisfitError(f"it has more than {data_type.scale} digits after the point")
    zeros = exponent + data_type.scale
    if significant + zeros > data_type.precision:
        raise _MisfitError(f"it has more than {data_type.precision - data_type.scale} digits before the point")
    unscaled = int("".join(map(str, digits[:significant])) + "0" * zeros)
    return -unscaled if sign else unscaled


def _bind_date(value: Literal, data_type: DataType) -> int:
    if not isinstance(value, dt.date):
        raise _other_class(value, "datetime.date")
    return value.toordinal() - _EPOCH_ORDINAL


def _bind_time(value: Literal, data_type: DataType) -> int:
    if not isinstance(value, dt.time):
        raise _other_class(value, "datetime.time")
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000


def _bind_timestamp(value: Literal, data_type: DataType) -> tuple[int, int]:
    if not isinstance(value, Moment) or value.has_zone:
        raise _other_class(value, "a datetime without a time zone")
    return value.millis, value.nanos


def _bind_timestamp_ltz(value: Literal, data_type: DataType) -> tuple[int, int]:
    if not isinstance(value, Moment) or not value.has_zone:
        raise _other_class(value, "a datetime with a time zone")
    return value.millis, value.nanos


_BINDERS: Final[dict[TypeRoot, Callable[[Any, DataType], BoundLiteral]]] = {
    TypeRoot.BOOLEAN: _bind_boolean,
    TypeRoot.TINYINT: _bind_integer,
    TypeRoot.SMALLINT: _bind_integer,
    TypeRoot.INTEGER: _bind_integer,
    TypeRoot.BIGINT: _bind_integer,
    TypeRoot.FLOAT: _bind_float,
    TypeRoot.DOUBLE: _bind_double,
    TypeRoot.CHAR: _bind_text,
    TypeRoot.STRING: _bind_text,
    TypeRoot.BINARY: _bind_bytes,
    TypeRoot.BYTES: _bind_bytes,
    TypeRoot.DECIMAL: _bind_decimal,
    TypeRoot.DATE: _bind_date,
    TypeRoot.TIME: _bind_time,
    TypeRoot.TIMESTAMP: _bind_timestamp,
    TypeRoot.TIMESTAMP_LTZ: _bind_timestamp_ltz,
}
