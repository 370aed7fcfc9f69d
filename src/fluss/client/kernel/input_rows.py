"""Input rows: the rows and keys that users pass in, as dicts, lists, tuples or ``GenericRow``, to internal values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, cast

from fluss.errors import FlussError
from fluss.row.python_values import from_internal, to_internal
from fluss.schema.schema import Column, shown_names
from fluss.schema.types import DataType, DataTypes


class InternalRow(ABC):
    """A row that is read by position, each value as the type the reader names.

    A value that is null, or not one of that type, is a FlussError; so is a position that the row does not have.
    """

    @property
    @abstractmethod
    def values(self) -> Sequence[Any]:
        """The values in the order of the columns."""

    def get_field_count(self) -> int:
        """Return the number of values."""
        return len(self.values)

    def is_null_at(self, pos: int) -> bool:
        """Whether the value at a position is null."""
        return self._at(pos) is None

    def get_boolean(self, pos: int) -> bool:
        """Read a BOOLEAN."""
        return cast("bool", self._get(pos, DataTypes.boolean()))

    def get_byte(self, pos: int) -> int:
        """Read a TINYINT."""
        return cast("int", self._get(pos, DataTypes.tinyint()))

    def get_short(self, pos: int) -> int:
        """Read a SMALLINT."""
        return cast("int", self._get(pos, DataTypes.smallint()))

    def get_int(self, pos: int) -> int:
        """Read an INT."""
        return cast("int", self._get(pos, DataTypes.int()))

    def get_long(self, pos: int) -> int:
        """Read a BIGINT."""
        return cast("int", self._get(pos, DataTypes.bigint()))

    def get_float(self, pos: int) -> float:
        """Read a FLOAT, rounded to 32 bits."""
        return cast("float", self._get(pos, DataTypes.float()))

    def get_double(self, pos: int) -> float:
        """Read a DOUBLE."""
        return cast("float", self._get(pos, DataTypes.double()))

    def get_string(self, pos: int) -> str:
        """Read a STRING."""
        return cast("str", self._get(pos, DataTypes.string()))

    def get_char(self, pos: int, length: int) -> str:
        """Read a CHAR of a declared length."""
        return cast("str", self._get(pos, DataTypes.char(length)))

    def get_bytes(self, pos: int) -> bytes:
        """Read BYTES."""
        return cast("bytes", self._get(pos, DataTypes.bytes()))

    def get_binary(self, pos: int, length: int) -> bytes:
        """Read a BINARY of exactly this length."""
        return cast("bytes", self._get(pos, DataTypes.binary(length)))

    def get_decimal(self, pos: int, precision: int, scale: int) -> Decimal:
        """Read a DECIMAL, rounded to its scale."""
        return cast("Decimal", self._get(pos, DataTypes.decimal(precision, scale)))

    def get_date(self, pos: int) -> date:
        """Read a DATE."""
        return cast("date", self._get(pos, DataTypes.date()))

    def get_time(self, pos: int) -> time:
        """Read a TIME."""
        # The finest there is, so that no value is refused for its digits.
        return cast("time", self._get(pos, DataTypes.time(9)))

    def get_timestamp_ntz(self, pos: int, precision: int) -> datetime:
        """Read a TIMESTAMP, cut to so many digits of a second."""
        return cast("datetime", self._get(pos, DataTypes.timestamp(precision)))

    def get_timestamp_ltz(self, pos: int, precision: int) -> datetime:
        """Read a TIMESTAMP_LTZ in UTC, cut to so many digits of a second."""
        return cast("datetime", self._get(pos, DataTypes.timestamp_ltz(precision)))

    def _get(self, pos: int, data_type: DataType) -> Any:
        return from_internal(to_internal(self._at(pos), data_type.not_null(), str(pos)), data_type)

    def _at(self, pos: int) -> Any:
        if not 0 <= pos < len(self.values):
            raise FlussError(f"The row has {len(self.values)} fields, there is none at position {pos}")
        return self.values[pos]


class GenericRow(InternalRow):
    """A row whose values are set by position; those that are not set are null. Writers take it like a list."""

    def __init__(self, field_count: int) -> None:
        if field_count < 0:
            raise OverflowError(f"a row cannot have {field_count} fields")
        self._values: list[Any] = [None] * field_count

    @classmethod
    def from_data(cls, data: Iterable[Any]) -> GenericRow:
        """Make a row of values in the order of the columns."""
        row = cls(0)
        row._values = list(data)
        return row

    @property
    def values(self) -> list[Any]:
        return self._values

    def set_field(self, pos: int, value: Any) -> None:
        """Set the value at a position."""
        # Checks the position like a reader does.
        self._at(pos)
        self._values[pos] = value

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return self._values == other._values if isinstance(other, GenericRow) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return f"GenericRow({self._values!r})"


def internal_values(row: Any, columns: Sequence[Column]) -> list[Any]:
    """Convert a row, or a key, that gives these columns. What does not fit is a FlussError that says why."""
    return [
        to_internal(value, column.data_type, column.name)
        for value, column in zip(_input_values(row, columns), columns, strict=True)
    ]


def _input_values(row: Any, columns: Sequence[Column]) -> Sequence[Any]:
    if isinstance(row, dict):
        return _values_by_name(row, columns)
    if not isinstance(row, list | tuple):
        # A GenericRow carries its values by position; the attribute of that name of other classes is no list.
        row_class, row = type(row).__name__, getattr(row, "values", None)
        if not isinstance(row, list | tuple):
            raise FlussError(f"Row must be a dict, list, or tuple; got {row_class}")
    if len(row) != len(columns):
        names = shown_names([column.name for column in columns])
        raise FlussError(f"Expected {len(columns)} elements, got {len(row)}; the columns are {names}")
    return row


def _values_by_name(row: dict[Any, Any], columns: Sequence[Column]) -> list[Any]:
    names = [column.name for column in columns]
    for name in row:
        if not isinstance(name, str):
            raise FlussError(f"Dict keys must be strings; got {type(name).__name__}")
        if name not in names:
            raise FlussError(f"Unknown field '{name}'. Expected: {shown_names(names)}")
    for column in columns:
        if column.name not in row and not column.data_type.nullable:
            raise FlussError(f"Missing value for non-nullable field '{column.name}'")
    return [row.get(name) for name in names]
