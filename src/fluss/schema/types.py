"""The data types of Fluss columns, the types inside them, and the ids of their fields.

A type is an immutable value: a class per kind, its parameters as fields, and ``nullable``. Two types are equal
when they hold the same values; the field ids inside a ROW identify columns across schema changes and do not take
part in equality. ``str(type)`` is the text form (``map<string NOT NULL,int>``); ``fluss.schema.type_parser`` reads it.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Self

from fluss.errors import FlussError
from fluss.integers import INT32_MAX

DECIMAL_PRECISION_MAX = 38
FRACTION_PRECISION_MAX = 9
# A decimal up to this precision fits an int64 and is stored as one ("compact").
DECIMAL_COMPACT_PRECISION_MAX = 18
# A timestamp up to this precision is whole milliseconds and is stored without nanoseconds ("compact").
TIMESTAMP_COMPACT_PRECISION_MAX = 3
# A bare INT has depth 1, an ARRAY<INT> depth 2. Every reader of types stops here, so that no text, JSON or Arrow type
# that was received can exhaust the stack of the recursive functions that handle types.
NESTING_DEPTH_MAX = 64


class TypeRoot(StrEnum):
    """The kind of a type, spelled as in schema JSON."""

    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INTEGER = "INTEGER"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    CHAR = "CHAR"
    STRING = "STRING"
    BINARY = "BINARY"
    BYTES = "BYTES"
    DECIMAL = "DECIMAL"
    DATE = "DATE"
    TIME = "TIME_WITHOUT_TIME_ZONE"
    TIMESTAMP = "TIMESTAMP_WITHOUT_TIME_ZONE"
    TIMESTAMP_LTZ = "TIMESTAMP_WITH_LOCAL_TIME_ZONE"
    ARRAY = "ARRAY"
    MAP = "MAP"
    ROW = "ROW"


@dataclass(frozen=True, slots=True)
class DataType:
    """Base of all types. Values of a nullable type may be null."""

    root: ClassVar[TypeRoot]
    nullable: bool = field(default=True, kw_only=True)

    def not_null(self) -> Self:
        """Return the type for columns that are never null."""
        return self.with_nullable(False)

    def with_nullable(self, nullable: bool) -> Self:
        """Return the type with this nullability."""
        return self if self.nullable == nullable else replace(self, nullable=nullable)

    @property
    def text(self) -> str:
        """The text form without the nullability suffix."""
        raise AssertionError(f"{type(self).__name__} has no text form")

    @property
    def is_nested(self) -> bool:
        """Whether values contain other values: ARRAY, MAP and ROW."""
        return False

    def to_string(self) -> str:
        """Return the text form, such as ``array<int> NOT NULL``: the same as ``str``."""
        return str(self)

    def __str__(self) -> str:
        return self.text if self.nullable else f"{self.text} NOT NULL"


@dataclass(frozen=True, slots=True)
class _PlainType(DataType):
    """A type without parameters; its text form is a constant."""

    name: ClassVar[str]

    @property
    def text(self) -> str:
        return self.name


class BooleanType(_PlainType):
    __slots__ = ()
    root, name = TypeRoot.BOOLEAN, "boolean"


class TinyIntType(_PlainType):
    __slots__ = ()
    root, name = TypeRoot.TINYINT, "tinyint"


class SmallIntType(_PlainType):
    __slots__ = ()
    root, name = TypeRoot.SMALLINT, "smallint"


class IntType(_PlainType):
    __slots__ = ()
    root, name = TypeRoot.INTEGER, "int"


class BigIntType(_PlainType):
    __slots__ = ()
    root, name = TypeRoot.BIGINT, "bigint"


class FloatType(_PlainType):
    __slots__ = ()
    root, name = TypeRoot.FLOAT, "float"


class DoubleType(_PlainType):
    __slots__ = ()
    root, name = TypeRoot.DOUBLE, "double"


class StringType(_PlainType):
    __slots__ = ()
    root, name = TypeRoot.STRING, "string"


class BytesType(_PlainType):
    __slots__ = ()
    root, name = TypeRoot.BYTES, "bytes"


class DateType(_PlainType):
    """Days since 1970-01-01."""

    __slots__ = ()
    root, name = TypeRoot.DATE, "date"


@dataclass(frozen=True, slots=True)
class _LengthType(DataType):
    """A type with a length of one or more."""

    name: ClassVar[str]
    length: int = 1

    def __post_init__(self) -> None:
        _check_range(f"{self.name} length", self.length, 1, INT32_MAX)

    @property
    def text(self) -> str:
        return f"{self.name}({self.length})"


class CharType(_LengthType):
    """Text of ``length`` characters. The length is a declaration: values are neither padded nor cut."""

    __slots__ = ()
    root, name = TypeRoot.CHAR, "char"


class BinaryType(_LengthType):
    """Exactly ``length`` bytes."""

    __slots__ = ()
    root, name = TypeRoot.BINARY, "binary"


@dataclass(frozen=True, slots=True)
class DecimalType(DataType):
    """A number of ``precision`` decimal digits, ``scale`` of them after the point."""

    root: ClassVar[TypeRoot] = TypeRoot.DECIMAL
    precision: int = 10
    scale: int = 0

    def __post_init__(self) -> None:
        _check_range("decimal precision", self.precision, 1, DECIMAL_PRECISION_MAX)
        _check_range("decimal scale", self.scale, 0, self.precision)

    @property
    def is_compact(self) -> bool:
        return self.precision <= DECIMAL_COMPACT_PRECISION_MAX

    @property
    def text(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class _FractionType(DataType):
    """A point in time with ``precision`` digits after the second."""

    name: ClassVar[str]
    precision_default: ClassVar[int] = 6
    precision: int = 6

    def __post_init__(self) -> None:
        _check_range(f"{self.name} precision", self.precision, 0, FRACTION_PRECISION_MAX)

    @property
    def text(self) -> str:
        return self.name if self.precision == self.precision_default else f"{self.name}({self.precision})"


@dataclass(frozen=True, slots=True)
class TimeType(_FractionType):
    """Time of day. Fluss keeps milliseconds whatever the precision says."""

    root: ClassVar[TypeRoot] = TypeRoot.TIME
    name: ClassVar[str] = "time"
    precision_default: ClassVar[int] = 0
    precision: int = 0


@dataclass(frozen=True, slots=True)
class _AnyTimestampType(_FractionType):
    @property
    def is_compact(self) -> bool:
        return self.precision <= TIMESTAMP_COMPACT_PRECISION_MAX


class TimestampType(_AnyTimestampType):
    """Date and time without a zone."""

    __slots__ = ()
    root, name = TypeRoot.TIMESTAMP, "timestamp"


class TimestampLtzType(_AnyTimestampType):
    """An instant; shown in UTC."""

    __slots__ = ()
    root, name = TypeRoot.TIMESTAMP_LTZ, "timestamp_ltz"


@dataclass(frozen=True, slots=True)
class ArrayType(DataType):
    root: ClassVar[TypeRoot] = TypeRoot.ARRAY
    element_type: DataType

    @property
    def text(self) -> str:
        return f"array<{self.element_type}>"

    @property
    def is_nested(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class MapType(DataType):
    """Key-value pairs. Keys are never null, so the key type is always NOT NULL."""

    root: ClassVar[TypeRoot] = TypeRoot.MAP
    key_type: DataType
    value_type: DataType

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_type", self.key_type.not_null())

    @property
    def text(self) -> str:
        return f"map<{self.key_type},{self.value_type}>"

    @property
    def is_nested(self) -> bool:
        return True


FIELD_ID_UNASSIGNED = -1
_QUOTED_CHARACTERS = frozenset(",:<>()`")


@dataclass(frozen=True, slots=True)
class DataField:
    """One field of a ROW. ``field_id`` is -1 until a schema numbers it."""

    name: str
    data_type: DataType
    description: str | None = None
    field_id: int = field(default=FIELD_ID_UNASSIGNED, compare=False)

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise FlussError("Field names must contain at least one non-blank character")

    def __str__(self) -> str:
        # A name that would not read back as one is quoted; a backquote inside is doubled.
        plain = self.name == self.name.strip() and not _QUOTED_CHARACTERS.intersection(self.name)
        shown = self.name if plain else f"`{self.name.replace('`', '``')}`"
        return f"{shown}: {self.data_type}"


@dataclass(frozen=True, slots=True)
class RowType(DataType):
    root: ClassVar[TypeRoot] = TypeRoot.ROW
    fields: tuple[DataField, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))
        names = set[str]()
        for row_field in self.fields:
            if row_field.name in names:
                raise FlussError(f"The row type has two fields named {row_field.name!r}")
            names.add(row_field.name)

    @property
    def text(self) -> str:
        return f"row<{', '.join(map(str, self.fields))}>"

    @property
    def is_nested(self) -> bool:
        return True

    @property
    def field_types(self) -> tuple[DataType, ...]:
        return tuple(f.data_type for f in self.fields)


def _check_range(what: str, value: int, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FlussError(f"The {what} must be an int, got {type(value).__name__}")
    if not lowest <= value <= highest:
        raise FlussError(f"The {what} must be between {lowest} and {highest}, got {value}")


def check_nesting_depth(depth: int) -> None:
    """Refuse to go ``depth`` levels deep into a type when that is more than any type may have."""
    if depth > NESTING_DEPTH_MAX:
        raise FlussError(f"The type is nested more than {NESTING_DEPTH_MAX} levels deep; use a flatter type")


def child_types(data_type: DataType) -> tuple[DataType, ...]:
    """Return the types directly inside: none, an element, a key and a value, or the fields of a ROW."""
    if isinstance(data_type, ArrayType):
        return (data_type.element_type,)
    if isinstance(data_type, MapType):
        return (data_type.key_type, data_type.value_type)
    if isinstance(data_type, RowType):
        return data_type.field_types
    return ()


def nesting_depth(data_type: DataType) -> int:
    """Count the levels of a type, failing as soon as there are too many."""
    return _depth(data_type, 1)


def _depth(data_type: DataType, depth: int) -> int:
    check_nesting_depth(depth)
    return max((_depth(child, depth + 1) for child in child_types(data_type)), default=depth)


def field_ids(data_type: DataType) -> Iterator[int]:
    """Yield the ids of all ROW fields inside a type, in the order in which they are numbered."""
    if isinstance(data_type, RowType):
        for row_field in data_type.fields:
            yield row_field.field_id
            yield from field_ids(row_field.data_type)
    else:
        for child in child_types(data_type):
            yield from field_ids(child)


def number_fields(data_type: DataType, first_id: int) -> tuple[DataType, int]:
    """Give every ROW field inside a type an id, depth first; return the type and the next free id.

    A field takes the next id before the fields inside its own type do.
    """
    next_id = first_id
    if isinstance(data_type, ArrayType):
        element_type, next_id = number_fields(data_type.element_type, next_id)
        return replace(data_type, element_type=element_type), next_id
    if isinstance(data_type, MapType):
        key_type, next_id = number_fields(data_type.key_type, next_id)
        value_type, next_id = number_fields(data_type.value_type, next_id)
        return replace(data_type, key_type=key_type, value_type=value_type), next_id
    if isinstance(data_type, RowType):
        fields = []
        for row_field in data_type.fields:
            field_id = next_id
            field_type, next_id = number_fields(row_field.data_type, field_id + 1)
            fields.append(replace(row_field, data_type=field_type, field_id=field_id))
        return replace(data_type, fields=tuple(fields)), next_id
    return data_type, next_id


class DataTypes:
    """Factory of all types: ``DataTypes.decimal(10, 2).not_null()``."""

    @staticmethod
    def boolean() -> BooleanType:
        """True or false."""
        return BooleanType()

    @staticmethod
    def tinyint() -> TinyIntType:
        """Integers of 8 bits."""
        return TinyIntType()

    @staticmethod
    def smallint() -> SmallIntType:
        """Integers of 16 bits."""
        return SmallIntType()

    @staticmethod
    def int() -> IntType:
        """Integers of 32 bits."""
        return IntType()

    @staticmethod
    def bigint() -> BigIntType:
        """Integers of 64 bits."""
        return BigIntType()

    @staticmethod
    def float() -> FloatType:
        """Floating point numbers of 32 bits."""
        return FloatType()

    @staticmethod
    def double() -> DoubleType:
        """Floating point numbers of 64 bits."""
        return DoubleType()

    @staticmethod
    def char(length: builtins.int = 1) -> CharType:
        """Text of a declared length."""
        return CharType(length)

    @staticmethod
    def string() -> StringType:
        """Text of any length."""
        return StringType()

    @staticmethod
    def binary(length: builtins.int = 1) -> BinaryType:
        """Bytes of exactly this length."""
        return BinaryType(length)

    @staticmethod
    def bytes() -> BytesType:
        """Bytes of any length."""
        return BytesType()

    @staticmethod
    def decimal(precision: builtins.int = 10, scale: builtins.int = 0) -> DecimalType:
        """Exact numbers of so many digits in all, so many of them after the point."""
        return DecimalType(precision, scale)

    @staticmethod
    def date() -> DateType:
        """Days."""
        return DateType()

    @staticmethod
    def time(precision: builtins.int = 0) -> TimeType:
        """Times of day, with so many digits of a second."""
        return TimeType(precision)

    @staticmethod
    def timestamp(precision: builtins.int = 6) -> TimestampType:
        """Dates with a time of day and without a zone, with so many digits of a second."""
        return TimestampType(precision)

    @staticmethod
    def timestamp_ltz(precision: builtins.int = 6) -> TimestampLtzType:
        """Instants, with so many digits of a second."""
        return TimestampLtzType(precision)

    @staticmethod
    def array(element_type: DataType) -> ArrayType:
        """Lists of values of one type."""
        return ArrayType(element_type)

    @staticmethod
    def map(key_type: DataType, value_type: DataType) -> MapType:
        """Lists of pairs of a key and a value. Keys are never null."""
        return MapType(key_type, value_type)

    @staticmethod
    def row(fields: Iterable[DataField]) -> RowType:
        """Values with named fields."""
        return RowType(tuple(fields))
