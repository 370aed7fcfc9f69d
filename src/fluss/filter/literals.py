"""Values of a filter in the terms of the columns they are compared with.

Values of most types are whole numbers of something: of the last digit of a decimal, of days, of the unit of a time. A
literal between two of them, or beyond the range of the column, equals no value, but still lies above some and below
others; so comparisons with it become comparisons with the value below. None of them rounds.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import floor
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from fluss.filter.condition_parser import Value
from fluss.row.arrow_arrays import bool_array
from fluss.schema.arrow import arrow_type
from fluss.schema.types import DataType, DecimalType, TypeRoot

# A value of a column in plain Python: whole numbers as described above, float, str, bytes or bool.
ColumnValue: TypeAlias = int | float | str | bytes | bool

_DATE: Final = r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
_CLOCK: Final = r"(?P<clock>[0-9]{2}:[0-9]{2}(:[0-9]{2})?)(\.(?P<fraction>[0-9]{1,9}))?"
_ZONE: Final = r"\s?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2})?"
_TIME_TEXT: Final = re.compile(_CLOCK)
_TIMESTAMP_TEXT: Final = re.compile(rf"{_DATE}([ T]{_CLOCK}{_ZONE})?")

_EPOCH: Final = dt.datetime(1970, 1, 1)
_EPOCH_UTC: Final = _EPOCH.replace(tzinfo=dt.UTC)
_SECOND: Final = dt.timedelta(seconds=1)
_DAY_S: Final = 86_400
_UNITS_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_INTEGER_ROOTS: Final = (TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INTEGER, TypeRoot.BIGINT)
_TIME_KINDS: Final = {"text", "time"}
_DATE_KINDS: Final = {"text", "date"}
_TIMESTAMP_KINDS: Final = {"text", "date", "timestamp"}


class MisfitError(Exception):
    """Why a literal cannot be compared with a column."""


@dataclass(frozen=True, slots=True)
class LiteralPosition:
    """Where a literal stands among the values of a column: at a value, or else right above it.

    ``is_below_all`` and ``is_above_all`` say that the value is beyond the range of the column.
    """

    value: ColumnValue
    is_exact: bool = True
    is_below_all: bool = False
    is_above_all: bool = False

    @property
    def is_value(self) -> bool:
        """Whether a row of the column can have the literal as its value."""
        return self.is_exact and not (self.is_below_all or self.is_above_all)


def position_of(value: Value, data_type: DataType, zone: dt.tzinfo) -> LiteralPosition:
    """Return where a literal, which is not null, stands among the values of a column.

    Times without a zone are meant in ``zone`` where the column holds instants.
    """
    match data_type.root:
        case TypeRoot.BOOLEAN:
            return LiteralPosition(_of_kind(value, "boolean", "it takes TRUE or FALSE"))
        case TypeRoot.CHAR | TypeRoot.STRING:
            return LiteralPosition(_of_kind(value, "text", "it takes a text in single quotes"))
        case TypeRoot.BINARY | TypeRoot.BYTES:
            return LiteralPosition(_of_kind(value, "bytes", "it takes bytes, such as X'0aff'"))
        case TypeRoot.FLOAT | TypeRoot.DOUBLE:
            # Spark compares with the nearest 64-bit number, too.
            return LiteralPosition(float(_of_kind(value, "number", "it takes a number")))
        case TypeRoot.ARRAY | TypeRoot.MAP | TypeRoot.ROW:
            raise MisfitError("such columns can only be compared with NULL, by IS NULL")
    return _whole_position(_whole_numbers(value, data_type, zone), data_type)


def position_of_seconds(seconds: Fraction, data_type: DataType) -> LiteralPosition:
    """Return where a time stands among the values of a column: seconds of the day, or since 1970."""
    return _whole_position(seconds * _UNITS_PER_SECOND[arrow_type(data_type).unit], data_type)


def _whole_position(exact: Fraction, data_type: DataType) -> LiteralPosition:
    whole = floor(exact)
    lowest, highest = _range(data_type)
    return LiteralPosition(whole, exact == whole, whole < lowest, whole > highest)


def _of_kind(value: Value, kind: str, expected: str) -> Any:
    if value.kind != kind:
        raise MisfitError(expected)
    return value.value


def _whole_numbers(value: Value, data_type: DataType, zone: dt.tzinfo) -> Fraction:
    root = data_type.root
    if root in _INTEGER_ROOTS:
        return _finite(value)
    if isinstance(data_type, DecimalType):
        return _finite(value) * Fraction(10**data_type.scale)
    if root is TypeRoot.DATE:
        return Fraction(_days(value))
    units = _UNITS_PER_SECOND[arrow_type(data_type).unit]
    if root is TypeRoot.TIME:
        return _seconds_of_day(value) * units
    return _seconds_since_epoch(value, zone if root is TypeRoot.TIMESTAMP_LTZ else None) * units


def _finite(value: Value) -> Fraction:
    number = _of_kind(value, "number", "it takes a number")
    if not number.is_finite():
        raise MisfitError("it takes a finite number")
    return Fraction(number)


def _range(data_type: DataType) -> tuple[int, int]:
    """Return the lowest and the highest whole number of a column."""
    if isinstance(data_type, DecimalType):
        return 1 - 10**data_type.precision, 10**data_type.precision - 1
    physical = arrow_type(data_type)
    if data_type.root is TypeRoot.TIME:
        return 0, _DAY_S * _UNITS_PER_SECOND[physical.unit] - 1
    return -(1 << (physical.bit_width - 1)), (1 << (physical.bit_width - 1)) - 1


# Dates and times


def _days(value: Value) -> int:
    if value.kind not in _DATE_KINDS:
        raise MisfitError("it takes a date, such as DATE '2026-01-01'")
    try:
        return _date(str(value.value).strip()).toordinal() - _EPOCH.toordinal()
    except ValueError:
        raise MisfitError("it takes dates such as '2026-01-01'") from None


def _date(text: str) -> dt.date:
    if re.fullmatch(_DATE, text) is None:
        raise ValueError
    return dt.date.fromisoformat(text)


def _seconds_of_day(value: Value) -> Fraction:
    parts = _TIME_TEXT.fullmatch(str(value.value).strip()) if value.kind in _TIME_KINDS else None
    try:
        if parts is None:
            raise ValueError
        clock = dt.time.fromisoformat(parts["clock"])
    except ValueError:
        raise MisfitError("it takes a time of day, such as TIME '12:30:00'") from None
    return (clock.hour * 60 + clock.minute) * 60 + clock.second + _fraction(parts["fraction"])


def _seconds_since_epoch(value: Value, zone: dt.tzinfo | None) -> Fraction:
    """Return the seconds since 1970: in UTC if there is a zone, else as the clock shows them."""
    parts = _TIMESTAMP_TEXT.fullmatch(str(value.value).strip()) if value.kind in _TIMESTAMP_KINDS else None
    try:
        if parts is None:
            raise ValueError
        moment = dt.datetime.fromisoformat(f"{parts['date']} {parts['clock'] or '00:00'}{parts['zone'] or ''}")
    except ValueError:
        raise MisfitError("it takes a date and time, such as TIMESTAMP '2026-01-01 12:30:00'") from None
    if zone is None:
        if moment.tzinfo is not None:
            raise MisfitError("it takes times without a zone")
        return (moment - _EPOCH) // _SECOND + _fraction(parts["fraction"])
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return (moment - _EPOCH_UTC) // _SECOND + _fraction(parts["fraction"])


def _fraction(digits: str | None) -> Fraction:
    return Fraction(int(digits), 10 ** len(digits)) if digits else Fraction(0)


# Values as Arrow and Python have them


def compared_type(data_type: DataType) -> pa.DataType:
    """Return the Arrow type in which the values of a column are compared."""
    match data_type.root:
        case TypeRoot.FLOAT:
            # A literal such as 0.1 is no 32-bit number.
            return pa.float64()
        case TypeRoot.BINARY:
            # Literals may have any length.
            return pa.binary()
    return arrow_type(data_type)


def value_array(values: Sequence[ColumnValue], data_type: DataType) -> pa.Array:
    """Return values of a column as an array of its compared type. ``pyarrow.array`` would import pandas."""
    physical = compared_type(data_type)
    match data_type.root:
        case TypeRoot.BOOLEAN:
            return bool_array(np.array(values, np.bool_))
        case TypeRoot.FLOAT | TypeRoot.DOUBLE:
            buffers = [None, pa.py_buffer(np.array(values, np.float64))]
        case TypeRoot.CHAR | TypeRoot.STRING | TypeRoot.BINARY | TypeRoot.BYTES:
            encoded = [value.encode() if isinstance(value, str) else bytes(_expect(value, bytes)) for value in values]
            offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
            buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
        case _:
            width = physical.bit_width // 8
            numbers = (int(_expect(value, int)).to_bytes(width, "little", signed=True) for value in values)
            buffers = [None, pa.py_buffer(b"".join(numbers))]
    return pa.Array.from_buffers(physical, len(values), buffers)


def _expect(value: ColumnValue, kind: type[Any]) -> Any:
    assert isinstance(value, kind), f"{value!r} is no value of its column"
    return value


def python_value(value: ColumnValue, data_type: DataType) -> object | None:
    """Return a value as predicates for servers take it; None if they cannot."""
    make = _PYTHON_VALUES.get(data_type.root)
    if make is None:
        return value
    try:
        return make(value, data_type)
    except (OverflowError, ValueError):
        # Python knows the years 1 to 9999 only.
        return None


def _python_float(value: Any, _data_type: DataType) -> float | None:
    with np.errstate(over="ignore"):
        return float(value) if float(np.float32(value)) == value else None


def _python_decimal(value: Any, data_type: DataType) -> Decimal:
    assert isinstance(data_type, DecimalType)
    sign, digits = int(value < 0), tuple(map(int, str(abs(value))))
    return Decimal((sign, digits, -data_type.scale))


def _python_date(value: Any, _data_type: DataType) -> dt.date:
    return dt.date.fromordinal(_EPOCH.toordinal() + value)


def _python_timestamp(value: Any, data_type: DataType) -> dt.datetime | None:
    nanos = value * (10**9 // _UNITS_PER_SECOND[arrow_type(data_type).unit])
    if nanos % 1000:
        return None
    epoch = _EPOCH_UTC if data_type.root is TypeRoot.TIMESTAMP_LTZ else _EPOCH
    return epoch + dt.timedelta(microseconds=nanos // 1000)


def _no_value(_value: Any, _data_type: DataType) -> None:
    """Servers know times of day in milliseconds only."""
    return None


_PYTHON_VALUES: Final[dict[TypeRoot, Callable[[Any, DataType], object | None]]] = {
    TypeRoot.FLOAT: _python_float,
    TypeRoot.DECIMAL: _python_decimal,
    TypeRoot.DATE: _python_date,
    TypeRoot.TIME: _no_value,
    TypeRoot.TIMESTAMP: _python_timestamp,
    TypeRoot.TIMESTAMP_LTZ: _python_timestamp,
}
