"""Python objects of users to internal values, and back.

| type | taken from Python | given back |
|---|---|---|
| BOOLEAN | bool | bool |
| TINYINT, SMALLINT, INT, BIGINT | int and other types with ``__index__``, in range | int |
| FLOAT, DOUBLE | float, int, Decimal and other types with ``__float__``; FLOAT rounds to 32 bits | float |
| CHAR, STRING | str without lone surrogates | str |
| BYTES, BINARY(n) | bytes, bytearray, memoryview; BINARY exactly n of them | bytes |
| DECIMAL(p, s) | Decimal, rounded half up to s digits | Decimal with s digits |
| DATE | date, numpy day | date |
| TIME | time of whole milliseconds; of whole seconds for TIME(0) | time |
| TIMESTAMP | datetime without a zone, numpy datetime64; finer digits are cut off | datetime |
| TIMESTAMP_LTZ | datetime, taken as UTC without a zone, numpy datetime64 | datetime in UTC |
| ARRAY | sequences other than text and bytes, numpy arrays | list |
| MAP | mapping, or sequence of pairs | list of (key, value) tuples |
| ROW | mapping by field name, list or tuple by position | dict |

numpy scalars and pandas Timestamps are taken where their Python counterparts are. None, NaT and pandas' NA are null
for every type.

Single values come first, then columns. The plain way of a column is ``from_internal`` over ``internal_from_arrow``,
value by value. Columns whose values pyarrow or numpy already turn into the right objects take a short cut; both give
the same.
"""

from __future__ import annotations

import math
import operator
import reprlib
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.errors import CorruptRecordError, FlussError
from fluss.row.arrow_arrays import mask_from_arrow
from fluss.row.values import DAY_MS, NANOS_PER_MILLI, Timestamp, internal_from_arrow
from fluss.schema.arrow import time_unit
from fluss.schema.types import (
    DECIMAL_PRECISION_MAX,
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    MapType,
    RowType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TypeRoot,
)

_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL: Final = _EPOCH.toordinal()
_INT_BITS: Final = {TypeRoot.TINYINT: 8, TypeRoot.SMALLINT: 16, TypeRoot.INTEGER: 32, TypeRoot.BIGINT: 64}
_NANOS_PER_UNIT: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_FLOAT32: Final = struct.Struct("<f")
# One digit more than any column has, because rounding may carry into it.
_DECIMALS: Final = Context(prec=DECIMAL_PRECISION_MAX + 1, rounding=ROUND_HALF_UP)
_TEXT_LIKE: Final = (str, bytes, bytearray, memoryview)
# They all have a __float__, which fails, warns or drops a part of the value.
_NOT_A_NUMBER: Final = (str, bytes, np.ndarray, np.datetime64, np.timedelta64, np.complexfloating)
# Years 1 to 9999, the ones that Python can show.
_MILLIS_LOWEST: Final = (datetime.min - _EPOCH) // timedelta(milliseconds=1)
_MILLIS_HIGHEST: Final = (datetime.max - _EPOCH) // timedelta(milliseconds=1)
_MICROS_LOWEST: Final = (datetime.min - _EPOCH) // timedelta(microseconds=1)
_MICROS_HIGHEST: Final = (datetime.max - _EPOCH) // timedelta(microseconds=1)
# What pyarrow gives for these is what users get.
_SAME_IN_ARROW: Final = frozenset(
    {
        TypeRoot.BOOLEAN,
        TypeRoot.TINYINT,
        TypeRoot.SMALLINT,
        TypeRoot.INTEGER,
        TypeRoot.BIGINT,
        TypeRoot.FLOAT,
        TypeRoot.DOUBLE,
        TypeRoot.CHAR,
        TypeRoot.STRING,
        TypeRoot.BINARY,
        TypeRoot.BYTES,
    }
)
_NANOS_PER_MICRO: Final = 1000
_MICROS_PER_UNIT: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}


class _ValueRejectedError(Exception):
    """Why a value was not taken; the callers add where it stands."""


def to_internal(value: Any, data_type: DataType, field: str) -> Any:
    """Convert an object of the user to the internal value of a column named ``field``.

    A value that the type does not take is a FlussError that names the column.
    """
    try:
        return _convert(value, data_type)
    except _ValueRejectedError as rejection:
        raise FlussError(f"Field '{field}': {rejection}") from None


def from_internal(value: Any, data_type: DataType) -> Any:
    """Convert an internal value to the Python object that users get.

    Digits below the microsecond are dropped. Dates outside the years 1 to 9999 are a FlussError: Python has none.
    """
    if value is None:
        return None
    give = _GIVERS.get(data_type.root)
    return value if give is None else give(value, data_type)


def _convert(value: Any, data_type: DataType) -> Any:
    if value is None or _is_missing(value):
        if not data_type.nullable:
            raise _ValueRejectedError(f"null is not allowed, the type is {data_type}")
        return None
    return _TAKERS[data_type.root](value, data_type)


def _is_missing(value: Any) -> bool:
    """Recognise numpy's and pandas' ways to say null. NaN is a number, not a null."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    # An object of pandas can only exist when the program has imported it. Another thread may be doing so right now.
    pandas = sys.modules.get("pandas")
    return pandas is not None and (value is getattr(pandas, "NaT", None) or value is getattr(pandas, "NA", None))


def _wrong_type(expected: str, value: Any) -> _ValueRejectedError:
    return _ValueRejectedError(f"expected {expected}, got {type(value).__name__} {reprlib.repr(value)}")


# Numbers


def _take_boolean(value: Any, data_type: DataType) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise _wrong_type("bool", value)
    return bool(value)


def _take_int(value: Any, data_type: DataType) -> int:
    if isinstance(value, bool | np.bool_):
        raise _ValueRejectedError("expected int, got bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise _wrong_type("int", value) from None
    bits = _INT_BITS[data_type.root]
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise _ValueRejectedError(f"{number} is out of range for {data_type.text}: it has {bits} bits")
    return number


def _take_double(value: Any, data_type: DataType) -> float:
    has_number = hasattr(value, "__float__") or hasattr(value, "__index__")
    if not has_number or isinstance(value, _NOT_A_NUMBER):
        raise _wrong_type("a number", value)
    try:
        return float(value)
    except OverflowError:
        raise _ValueRejectedError(f"the number is out of range for {data_type.text}") from None
    except (TypeError, ValueError) as error:
        raise _ValueRejectedError(f"expected a number: {error}") from None


def _take_float(value: Any, data_type: DataType) -> float:
    number = _take_double(value, data_type)
    try:
        rounded: float = _FLOAT32.unpack(_FLOAT32.pack(number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return rounded


def _take_decimal(value: Any, data_type: DecimalType) -> int:
    if not isinstance(value, Decimal):
        raise _ValueRejectedError(f"Expected decimal.Decimal, got {type(value).__name__} {reprlib.repr(value)}")
    if not value.is_finite():
        raise _ValueRejectedError(f"{value} has no place in a {data_type.text}")
    precision, scale = data_type.precision, data_type.scale
    overflow = _ValueRejectedError(
        f"decimal precision overflow: {value} needs more than the {precision - scale} digits before the point "
        f"of {data_type.text}"
    )
    # Also keeps numbers such as 1E+999999 from being written out.
    if value and value.adjusted() >= precision - scale:
        raise overflow
    try:
        rounded = value.quantize(Decimal((0, (1,), -scale)), context=_DECIMALS)
    except InvalidOperation:
        raise overflow from None
    unscaled = int(rounded.scaleb(scale, _DECIMALS))
    if abs(unscaled) >= 10**precision:
        raise overflow
    return unscaled


def _give_decimal(value: int, data_type: DecimalType) -> Decimal:
    return Decimal(value).scaleb(-data_type.scale, _DECIMALS)


# Text and bytes


def _take_text(value: Any, data_type: DataType) -> str:
    if not isinstance(value, str):
        raise _wrong_type("str", value)
    # Subclasses may print as something else than the text they are.
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _ValueRejectedError(f"the text cannot be stored as UTF-8: {error}") from None
    return text


def _take_bytes(value: Any, data_type: DataType) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _wrong_type("bytes", value)
    return bytes(value)


def _take_binary(value: Any, data_type: BinaryType) -> bytes:
    data = _take_bytes(value, data_type)
    if len(data) != data_type.length:
        raise _ValueRejectedError(f"expected exactly {data_type.length} bytes for {data_type.text}, got {len(data)}")
    return data


# Dates and times


def _take_date(value: Any, data_type: DataType) -> int:
    if isinstance(value, np.datetime64) and np.datetime_data(value)[0] == "D":
        return _checked_days(int(value.astype(np.int64)))
    if isinstance(value, datetime | np.datetime64):
        raise _ValueRejectedError(f"expected date, got {type(value).__name__}; use its date(), or a TIMESTAMP column")
    if not isinstance(value, date):
        raise _wrong_type("date", value)
    return value.toordinal() - _EPOCH_ORDINAL


def _checked_days(days: int) -> int:
    if not date.min.toordinal() <= days + _EPOCH_ORDINAL <= date.max.toordinal():
        raise _ValueRejectedError(f"{days} days since 1970-01-01 is outside the years 1 to 9999")
    return days


def _give_date(value: int, data_type: DataType) -> date:
    try:
        return date.fromordinal(value + _EPOCH_ORDINAL)
    except (ValueError, OverflowError):
        raise _not_in_python(f"{value} days", data_type) from None


def _take_time(value: Any, data_type: TimeType) -> int:
    if not isinstance(value, time):
        raise _wrong_type("time", value)
    millis, rest = divmod(value.microsecond, 1000)
    if rest:
        raise _ValueRejectedError(f"{value} has sub-millisecond digits; TIME keeps milliseconds")
    if millis and data_type.precision == 0:
        raise _ValueRejectedError(
            f"{value} has sub-second digits; {data_type.text} keeps seconds, TIME(3) milliseconds"
        )
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + millis


def _give_time(value: int, data_type: DataType) -> time:
    if not 0 <= value < DAY_MS:
        raise FlussError(f"A value of type {data_type} is outside the day: {value} ms")
    seconds, millis = divmod(value, 1000)
    minutes, second = divmod(seconds, 60)
    return time(minutes // 60, minutes % 60, second, millis * 1000)


def _take_timestamp(value: Any, data_type: TimestampType | TimestampLtzType) -> Timestamp:
    if isinstance(value, np.datetime64):
        nanos = _nanos_of_numpy(value)
    elif isinstance(value, datetime):
        nanos = _nanos_of_datetime(value, data_type)
    else:
        raise _wrong_type("datetime", value)
    nanos_per_unit = _NANOS_PER_UNIT[time_unit(data_type.precision)]
    units = nanos // nanos_per_unit
    millis, rest = divmod(units * nanos_per_unit, NANOS_PER_MILLI)
    if not _MILLIS_LOWEST <= millis <= _MILLIS_HIGHEST:
        raise _ValueRejectedError(f"{value} is outside the years 1 to 9999")
    if not -(2**63) <= units < 2**63:
        raise _ValueRejectedError(
            f"{value} is outside the years 1677 to 2262 of {data_type.text}; a precision of 6 holds all years"
        )
    return Timestamp(millis, rest)


def _nanos_of_datetime(value: datetime, data_type: DataType) -> int:
    if value.tzinfo is None:
        since_epoch = _as_plain_datetime(value) - _EPOCH
    elif isinstance(data_type, TimestampLtzType):
        since_epoch = _as_plain_datetime(value) - _EPOCH_UTC
    else:
        raise _ValueRejectedError(f"{value} has a time zone; use a TIMESTAMP_LTZ column, or remove it")
    # A pandas Timestamp is a datetime with three digits more.
    return since_epoch // timedelta(microseconds=1) * 1000 + getattr(value, "nanosecond", 0)


def _as_plain_datetime(value: datetime) -> datetime:
    to_pydatetime = getattr(value, "to_pydatetime", None)
    plain: datetime = value if to_pydatetime is None else to_pydatetime(warn=False)
    return plain


def _nanos_of_numpy(value: np.datetime64) -> int:
    unit, count = np.datetime_data(value)
    if unit in ("Y", "M"):
        value, unit, count = value.astype("datetime64[D]"), "D", 1
    nanos = _NUMPY_UNIT_NANOS.get(unit)
    if nanos is None:
        raise _ValueRejectedError(f"expected a numpy datetime64 with a unit from years to nanoseconds, got {unit}")
    return int(value.astype(np.int64)) * count * nanos


_NUMPY_UNIT_NANOS: Final = {
    "W": 7 * DAY_MS * NANOS_PER_MILLI,
    "D": DAY_MS * NANOS_PER_MILLI,
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    **_NANOS_PER_UNIT,
}


def _give_timestamp(value: Timestamp, data_type: DataType) -> datetime:
    epoch = _EPOCH_UTC if isinstance(data_type, TimestampLtzType) else _EPOCH
    try:
        return epoch + timedelta(milliseconds=value.millis, microseconds=value.nanos // 1000)
    except OverflowError:
        raise _not_in_python(f"{value.millis} ms", data_type) from None


def _not_in_python(what: str, data_type: DataType) -> FlussError:
    return FlussError(
        f"A value of type {data_type} is {what} from 1970-01-01, outside the years 1 to 9999 of Python; "
        "read the column as Arrow"
    )


# Nested values


def _take_array(value: Any, data_type: ArrayType) -> list[Any]:
    return [
        _convert_at(f"element {index}", element, data_type.element_type)
        for index, element in enumerate(_sequence(value, "Expected sequence for Array column"))
    ]


def _take_map(value: Any, data_type: MapType) -> list[tuple[Any, Any]]:
    entries = []
    pairs = value.items() if isinstance(value, Mapping) else _sequence(value, "Expected dict or pairs for Map column")
    for index, pair in enumerate(pairs):
        if len(_sequence(pair, f"entry {index}: expected a key and a value")) != 2:
            raise _ValueRejectedError(f"entry {index}: expected a key and a value, got {len(pair)} items")
        key, item = pair
        entries.append(
            (
                _convert_at(f"key of entry {index}", key, data_type.key_type),
                _convert_at(f"value of entry {index}", item, data_type.value_type),
            )
        )
    return entries


def _sequence(value: Any, complaint: str) -> Any:
    is_sequence = isinstance(value, Sequence) and not isinstance(value, _TEXT_LIKE)
    if not is_sequence and not (isinstance(value, np.ndarray) and value.ndim > 0):
        raise _ValueRejectedError(f"{complaint}, got {type(value).__name__}")
    return value


def _take_row(value: Any, data_type: RowType) -> tuple[Any, ...]:
    fields = data_type.fields
    if isinstance(value, Mapping):
        unknown = [name for name in value if name not in {field.name for field in fields}]
        if unknown:
            raise _ValueRejectedError(
                f"Unknown row field {unknown[0]!r}; the fields are {', '.join(f.name for f in fields)}"
            )
        for field in fields:
            if field.name not in value and not field.data_type.nullable:
                raise _ValueRejectedError(f"Missing value for non-nullable row field '{field.name}'")
        values = [value.get(field.name) for field in fields]
    elif isinstance(value, list | tuple):
        if len(value) != len(fields):
            raise _ValueRejectedError(f"Expected {len(fields)} row fields, got {len(value)}")
        values = list(value)
    else:
        raise _wrong_type("dict, list or tuple for a Row column", value)
    return tuple(
        _convert_at(f"Row field '{field.name}'", item, field.data_type)
        for field, item in zip(fields, values, strict=True)
    )


def _convert_at(place: str, value: Any, data_type: DataType) -> Any:
    try:
        return _convert(value, data_type)
    except _ValueRejectedError as rejection:
        raise _ValueRejectedError(f"{place}: {rejection}") from None


def _give_array(value: Sequence[Any], data_type: ArrayType) -> list[Any]:
    return [from_internal(element, data_type.element_type) for element in value]


def _give_map(value: Sequence[tuple[Any, Any]], data_type: MapType) -> list[tuple[Any, Any]]:
    return [(from_internal(key, data_type.key_type), from_internal(item, data_type.value_type)) for key, item in value]


def _give_row(value: Sequence[Any], data_type: RowType) -> dict[str, Any]:
    return {
        field.name: from_internal(item, field.data_type) for field, item in zip(data_type.fields, value, strict=True)
    }


_TAKERS: Final[dict[TypeRoot, Callable[[Any, Any], Any]]] = {
    TypeRoot.BOOLEAN: _take_boolean,
    TypeRoot.TINYINT: _take_int,
    TypeRoot.SMALLINT: _take_int,
    TypeRoot.INTEGER: _take_int,
    TypeRoot.BIGINT: _take_int,
    TypeRoot.FLOAT: _take_float,
    TypeRoot.DOUBLE: _take_double,
    TypeRoot.CHAR: _take_text,
    TypeRoot.STRING: _take_text,
    TypeRoot.BINARY: _take_binary,
    TypeRoot.BYTES: _take_bytes,
    TypeRoot.DECIMAL: _take_decimal,
    TypeRoot.DATE: _take_date,
    TypeRoot.TIME: _take_time,
    TypeRoot.TIMESTAMP: _take_timestamp,
    TypeRoot.TIMESTAMP_LTZ: _take_timestamp,
    TypeRoot.ARRAY: _take_array,
    TypeRoot.MAP: _take_map,
    TypeRoot.ROW: _take_row,
}

# Types that are not listed have the same value inside and outside.
_GIVERS: Final[dict[TypeRoot, Callable[[Any, Any], Any]]] = {
    TypeRoot.DECIMAL: _give_decimal,
    TypeRoot.DATE: _give_date,
    TypeRoot.TIME: _give_time,
    TypeRoot.TIMESTAMP: _give_timestamp,
    TypeRoot.TIMESTAMP_LTZ: _give_timestamp,
    TypeRoot.ARRAY: _give_array,
    TypeRoot.MAP: _give_map,
    TypeRoot.ROW: _give_row,
}


# Columns


def python_column(array: pa.Array, data_type: DataType) -> list[Any]:
    """Convert a column; the array has the Arrow type of ``data_type`` and may be a slice.

    CorruptRecordError: the array is well-formed, its content is not. FlussError: Python has no such date.
    """
    if data_type.root in _SAME_IN_ARROW:
        try:
            values: list[Any] = array.to_pylist()
        except UnicodeDecodeError as error:
            raise CorruptRecordError(f"A string column holds bytes that are not UTF-8: {error}") from error
        return values
    if isinstance(data_type, TimestampType | TimestampLtzType):
        micros = _micros(array)
        if micros is not None:
            return _datetimes(array, micros, has_zone=isinstance(data_type, TimestampLtzType))
    return [from_internal(value, data_type) for value in internal_from_arrow(array, data_type)]


def python_rows(names: Sequence[str], columns: Iterable[list[Any]]) -> list[dict[str, Any]]:
    """Put converted columns together to rows. A name that occurs twice is one key, at its first place."""
    return _row_maker(tuple(names))(*columns)


@lru_cache(maxsize=256)
def _row_maker(names: tuple[str, ...]) -> Callable[..., list[dict[str, Any]]]:
    """Return a function from columns to rows.

    It is compiled for these names, because a dict display with constant keys is several times as fast as anything
    that learns them at run time, and this is most of the work of reading records.
    """
    if not names:
        return lambda: []
    variables = [f"value_{index}" for index in range(len(names))]
    display = ", ".join(f"{name!r}: {variable}" for name, variable in zip(names, variables, strict=True))
    arguments = ", ".join(f"column_{index}" for index in range(len(names)))
    code = f"lambda {arguments}: [{{{display}}} for {', '.join(variables)}, in zip({arguments}, strict=True)]"
    # Nothing a name contains becomes code: repr quotes it.
    maker: Callable[..., list[dict[str, Any]]] = eval(code)
    return maker


def _micros(array: pa.Array) -> Int64Array | None:
    """Return timestamps as whole microseconds, nulls as 0; None if there is one that no datetime can be."""
    # Read from its buffers: pyarrow's own way to numpy imports pandas if that is installed, in the middle of a read.
    data = array.buffers()[1]
    numbers: Int64Array = np.frombuffer(data or b"", np.int64)[array.offset : array.offset + len(array)]
    valid = mask_from_arrow(array)
    if valid is not None:
        numbers = np.where(valid, numbers, 0)
    if array.type.unit == "ns":
        return numbers // _NANOS_PER_MICRO
    per_unit = _MICROS_PER_UNIT[array.type.unit]
    lowest, highest = _MICROS_LOWEST // per_unit, _MICROS_HIGHEST // per_unit
    if len(numbers) and not (lowest <= numbers.min() and numbers.max() <= highest):
        return None
    return numbers * per_unit


def _datetimes(array: pa.Array, micros: Int64Array, *, has_zone: bool) -> list[Any]:
    values: list[Any] = micros.view("datetime64[us]").tolist()
    if has_zone:
        values = [value.replace(tzinfo=UTC) for value in values]
    valid = mask_from_arrow(array)
    if valid is not None:
        for index in np.flatnonzero(~valid).tolist():
            values[index] = None
    return values
