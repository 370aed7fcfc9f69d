"""Literals of row filters: which Python values may be compared with a column, and what they become.

A literal is checked twice. ``literal`` takes what the user wrote, when the column is not known yet. ``bind_literal``
turns it into a value of the column's type, and only exactly: a filter that rounds would drop the wrong rows.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np

from fluss.errors import FlussError
from fluss.schema.types import DataType, DecimalType, TypeRoot

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
# What a literal becomes; the table is in the docstring of the predicate module.
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
        return value.replace(microsecond=value.microsecond // 1000 * 1000, tzinfo=None)
    raise TypeError(f"a filter literal cannot be a {type(value).__name__}; supported are {_SUPPORTED}")


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
        raise TypeError(f"a filter literal cannot be {value!r}; supported are {_SUPPORTED}")
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


def _bind_boolean(value: Literal, data_type: DataType) -> bool:
    if not isinstance(value, bool):
        raise _MisfitError("it takes True or False")
    return value


def _bind_integer(value: Literal, data_type: DataType) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _MisfitError("it takes int, without conversion")
    bits = _INTEGER_BITS[data_type.root]
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise _MisfitError(f"it holds {bits}-bit integers")
    return value


def _bind_double(value: Literal, data_type: DataType) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _MisfitError("it takes float, or int where that is exact")
    # 64-bit ints are far inside the range of a double, so this conversion can only round.
    if float(value) != value and not (isinstance(value, float) and math.isnan(value)):
        raise _MisfitError("no 64-bit float is exactly that number")
    return float(value)


def _bind_float(value: Literal, data_type: DataType) -> float:
    double = _bind_double(value, data_type)
    if math.isnan(double) or math.isinf(double):
        return double
    try:
        single: float = _FLOAT32.unpack(_FLOAT32.pack(double))[0]
    except OverflowError:
        raise _MisfitError("it is beyond the range of 32-bit floats") from None
    if single != double:
        raise _MisfitError("no 32-bit float is exactly that number; use numpy.float32 to round it first")
    return single


def _bind_text(value: Literal, data_type: DataType) -> str:
    if not isinstance(value, str):
        raise _MisfitError("it takes str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _MisfitError("it is not valid Unicode text") from None
    return value


def _bind_bytes(value: Literal, data_type: DataType) -> bytes:
    if not isinstance(value, bytes):
        raise _MisfitError("it takes bytes")
    return value


def _bind_decimal(value: Literal, data_type: DataType) -> int:
    assert isinstance(data_type, DecimalType)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _MisfitError("it takes Decimal or int")
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
        raise _MisfitError("it takes datetime.date")
    return value.toordinal() - _EPOCH_ORDINAL


def _bind_time(value: Literal, data_type: DataType) -> int:
    if not isinstance(value, dt.time):
        raise _MisfitError("it takes datetime.time")
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000


def _bind_timestamp(value: Literal, data_type: DataType) -> tuple[int, int]:
    if not isinstance(value, Moment) or value.has_zone:
        raise _MisfitError("it takes a datetime without a time zone")
    return value.millis, value.nanos


def _bind_timestamp_ltz(value: Literal, data_type: DataType) -> tuple[int, int]:
    if not isinstance(value, Moment) or not value.has_zone:
        raise _MisfitError("it takes a datetime with a time zone")
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
