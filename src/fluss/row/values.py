"""Internal values: one plain Python form for every data type, and its exchange with Arrow, a column at a time.

All scalar row codecs read and write these values. Nothing in them depends on a format or on the user's own objects.

| type | internal value |
|---|---|
| BOOLEAN | bool |
| TINYINT, SMALLINT, INT, BIGINT | int |
| FLOAT, DOUBLE | float |
| CHAR, STRING | str |
| BINARY, BYTES | bytes |
| DECIMAL | int, the unscaled value: 12.30 in a DECIMAL(5, 2) is 1230 |
| DATE | int, days since 1970-01-01 |
| TIME | int, milliseconds of the day, for every precision |
| TIMESTAMP, TIMESTAMP_LTZ | ``Timestamp(millis, nanos)`` |
| ARRAY | list |
| MAP | list of (key, value) tuples, in order, duplicates kept |
| ROW | tuple in field order |
| null of any type | None |

Arrow units follow the declared precision, internal values do not: digits that the Arrow unit cannot show are cut
off (towards the past) on the way to Arrow, as every other client does it.

At the end: values as Java's ``toString`` formats them, where that is part of a key or of a partition name. Numbers have
at least one digit on each side of the point, as few digits as identify the number, and an exponent outside 0.001 to 10
million (``1.0E10``, ``5.73``, ``1.0E-5``). This is what Java 19 and later print; older versions print more digits than
needed for a few numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import Int64Array, UInt8Array
from fluss.errors import CorruptRecordError, SizeLimitError
from fluss.row.arrow_arrays import number_array
from fluss.schema.arrow import arrow_type
from fluss.schema.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    RowType,
    TimestampLtzType,
    TimestampType,
    TimeType,
)

DAY_MS = 86_400_000
NANOS_PER_MILLI = 1_000_000
# Arrow's offsets of lists and strings are signed 32-bit.
_ARROW_OFFSET_MAX = 2**31 - 1
_DECIMAL_BYTES = 16
# Units per millisecond. Seconds are coarser than a millisecond and have their own branch.
_UNITS_PER_MILLI = {"ms": 1, "us": 1_000, "ns": 1_000_000}


class Timestamp(NamedTuple):
    """A point in time: whole milliseconds since 1970-01-01 (towards the past), and 0..999999 nanoseconds more."""

    millis: int
    nanos: int = 0


def internal_from_arrow(array: pa.Array, data_type: DataType) -> list[Any]:
    """Convert a column to internal values. The array may be sliced and of any depth; it must be structurally valid.

    CorruptRecordError says that the array is well-formed but its content is not: text that is no UTF-8, a time
    outside the day, a decimal with more digits than declared.
    """
    match data_type:
        case DateType():
            return _pylist(array.view(pa.int32()))
        case TimeType():
            return _times_from_arrow(array, data_type)
        case TimestampType() | TimestampLtzType():
            return _timestamps_from_arrow(array, data_type)
        case DecimalType():
            return _decimals_from_arrow(array, data_type)
        case ArrayType():
            return _arrays_from_arrow(array, data_type)
        case MapType():
            return _maps_from_arrow(array, data_type)
        case RowType():
            return _rows_from_arrow(array, data_type)
    return _pylist(array)


def arrow_from_internal(values: Sequence[Any], data_type: DataType) -> pa.Array:
    """Convert internal values to a column of ``arrow_type(data_type)``.

    CorruptRecordError names the first value that the Arrow type cannot hold, and nulls where the type (or a type
    inside it) is NOT NULL. SizeLimitError: the column would exceed the two gigabytes of Arrow's 32-bit offsets.
    """
    if not data_type.nullable and None in values:
        raise CorruptRecordError(f"Null value at index {_index_of_null(values)} of a column of type {data_type}")
    match data_type:
        case DateType():
            return _plain_to_arrow(values, pa.int32(), data_type).view(pa.date32())
        case TimeType():
            return _times_to_arrow(values, data_type)
        case TimestampType() | TimestampLtzType():
            return _timestamps_to_arrow(values, data_type)
        case DecimalType():
            return _decimals_to_arrow(values, data_type)
        case ArrayType():
            return _arrays_to_arrow(values, data_type)
        case MapType():
            return _maps_to_arrow(values, data_type)
        case RowType():
            return _rows_to_arrow(values, data_type)
        case BinaryType():
            _check_binary_lengths(values, data_type)
    return _plain_to_arrow(values, arrow_type(data_type), data_type)


# Arrow to internal


def _pylist(array: pa.Array) -> list[Any]:
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError as error:
        raise CorruptRecordError(f"A string column holds bytes that are not UTF-8: {error}") from error
    return values


def _times_from_arrow(array: pa.Array, data_type: TimeType) -> list[Any]:
    integers = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    numbers = _numbers(integers).astype(np.int64)
    unit = array.type.unit
    day = DAY_MS // 1000 if unit == "s" else DAY_MS * _UNITS_PER_MILLI[unit]
    outside = (numbers < 0) | (numbers >= day)
    if outside.any():
        index = int(outside.argmax())
        raise CorruptRecordError(f"{data_type} at index {index} is outside the day: {numbers[index]} {unit}")
    millis = numbers * 1000 if unit == "s" else numbers // _UNITS_PER_MILLI[unit]
    return _with_nulls(millis.tolist(), array)


def _timestamps_from_arrow(array: pa.Array, data_type: DataType) -> list[Any]:
    numbers = _numbers(array.view(pa.int64()))
    unit = array.type.unit
    if unit == "s":
        millis, nanos = numbers * 1000, np.zeros_like(numbers)
        wrapped = millis // 1000 != numbers
        if wrapped.any():
            index = int(wrapped.argmax())
            raise CorruptRecordError(
                f"{data_type} at index {index} is beyond the 64-bit range of milliseconds: {numbers[index]} s"
            )
    else:
        units = _UNITS_PER_MILLI[unit]
        millis, rest = np.divmod(numbers, units)
        nanos = rest * (NANOS_PER_MILLI // units)
    return _with_nulls(list(map(Timestamp._make, zip(millis.tolist(), nanos.tolist(), strict=True))), array)


def _decimals_from_arrow(array: pa.Array, data_type: DecimalType) -> list[Any]:
    """Read the 128-bit little-endian integers straight from the buffer."""
    words = np.frombuffer(array.buffers()[1] or b"", dtype="<i8", count=2 * (array.offset + len(array)))
    low, high = words[2 * array.offset :: 2], words[2 * array.offset + 1 :: 2]
    if array.null_count:
        valid = _valid_mask(array)
        low, high = np.where(valid, low, 0), np.where(valid, high, 0)
    if (high == low >> 63).all():
        unscaled: list[int] = low.tolist()
    else:
        unscaled = [
            (h << 64) | (part & 0xFFFF_FFFF_FFFF_FFFF) for part, h in zip(low.tolist(), high.tolist(), strict=True)
        ]
    _check_decimal_digits(unscaled, data_type)
    return _with_nulls(unscaled, array)


def _arrays_from_arrow(array: pa.Array, data_type: ArrayType) -> list[Any]:
    offsets, items = _list_items(array)
    elements = internal_from_arrow(items, data_type.element_type)
    lists = [elements[start:end] for start, end in pairwise(offsets)]
    return _with_nulls(lists, array)


def _maps_from_arrow(array: pa.Array, data_type: MapType) -> list[Any]:
    offsets, items = _list_items(array)
    keys, values = items.flatten()
    entries = list(
        zip(
            internal_from_arrow(keys, data_type.key_type),
            internal_from_arrow(values, data_type.value_type),
            strict=True,
        )
    )
    maps = [entries[start:end] for start, end in pairwise(offsets)]
    return _with_nulls(maps, array)


def _rows_from_arrow(array: pa.Array, data_type: RowType) -> list[Any]:
    # flatten() makes the fields of a null row null, so that what lies under it is not converted.
    columns = [
        internal_from_arrow(child, field.data_type)
        for child, field in zip(array.flatten(), data_type.fields, strict=True)
    ]
    rows = list(zip(*columns, strict=True)) if columns else [()] * len(array)
    return _with_nulls(rows, array)


def _list_items(array: pa.Array) -> tuple[list[int], pa.Array]:
    """Return the boundaries of each list, and the items between the first and the last boundary."""
    offsets: npt.NDArray[Any] = array.offsets.to_numpy()
    if array.null_count and np.diff(offsets)[~_valid_mask(array)].any():
        # A null may cover items that mean nothing. Taking every row in order leaves them behind.
        array = array.take(number_array(np.arange(len(array))))
        offsets = array.offsets.to_numpy()
    first = int(offsets[0])
    return (offsets - first).tolist(), array.values.slice(first, int(offsets[-1]) - first)


def _numbers(integers: pa.Array) -> Int64Array:
    """View an integer array as numpy; nulls read as zero."""
    numbers: Int64Array = (integers.fill_null(0) if integers.null_count else integers).to_numpy()
    return numbers


def _valid_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def _with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    if array.null_count:
        for index in np.flatnonzero(~_valid_mask(array)).tolist():
            values[index] = None
    return values


# Internal to Arrow


def _plain_to_arrow(values: Sequence[Any], target: pa.DataType, data_type: DataType) -> pa.Array:
    try:
        array = pa.array(values, target)
    except (ValueError, OverflowError) as error:
        raise CorruptRecordError(f"A value does not fit a column of type {data_type}: {error}") from error
    if isinstance(array, pa.ChunkedArray):
        raise SizeLimitError(f"{len(values)} values of type {data_type} exceed the two gigabytes of one Arrow array")
    return array


def _check_binary_lengths(values: Sequence[Any], data_type: BinaryType) -> None:
    for index, value in enumerate(values):
        if value is not None and len(value) != data_type.length:
            raise CorruptRecordError(f"{data_type} at index {index} has {len(value)} bytes; it must be padded or cut")


def _times_to_arrow(values: Sequence[Any], data_type: TimeType) -> pa.Array:
    millis = _int64_array(values, data_type)
    outside = (millis < 0) | (millis >= DAY_MS)
    if outside.any():
        index = int(outside.argmax())
        raise CorruptRecordError(f"{data_type} at index {index} is outside the day: {millis[index]} ms")
    target = arrow_type(data_type)
    numbers = millis // 1000 if target.unit == "s" else millis * _UNITS_PER_MILLI[target.unit]
    width = np.int32 if target.bit_width == 32 else np.int64
    return _from_buffers(target, values, [numbers.astype(width)])


def _timestamps_to_arrow(values: Sequence[Any], data_type: DataType) -> pa.Array:
    zero = Timestamp(0)
    millis = _int64_array([(value or zero)[0] for value in values], data_type)
    nanos = _int64_array([(value or zero)[1] for value in values], data_type)
    beyond = (nanos < 0) | (nanos >= NANOS_PER_MILLI)
    if beyond.any():
        index = int(beyond.argmax())
        raise CorruptRecordError(f"{data_type} at index {index} has {nanos[index]} nanoseconds in a millisecond")
    target = arrow_type(data_type)
    if target.unit == "s":
        return _from_buffers(target, values, [millis // 1000])
    units = _UNITS_PER_MILLI[target.unit]
    # int64 arithmetic wraps around silently; a wrapped result does not divide back into the milliseconds.
    numbers = millis * units + nanos // (NANOS_PER_MILLI // units)
    wrapped = numbers // units != millis
    if wrapped.any():
        index = int(wrapped.argmax())
        raise CorruptRecordError(
            f"{data_type} at index {index} is beyond the 64-bit range of Arrow's {target.unit}: {millis[index]} ms"
        )
    return _from_buffers(target, values, [numbers])


def _decimals_to_arrow(values: Sequence[Any], data_type: DecimalType) -> pa.Array:
    unscaled = [value or 0 for value in values]
    _check_decimal_digits(unscaled, data_type)
    if data_type.is_compact:
        low = np.array(unscaled, dtype=np.int64)
        data = np.stack((low, low >> 63), axis=1)
    else:
        data = np.frombuffer(b"".join(v.to_bytes(_DECIMAL_BYTES, "little", signed=True) for v in unscaled), np.int64)
    return _from_buffers(arrow_type(data_type), values, [data])


def _check_decimal_digits(unscaled: Sequence[int], data_type: DecimalType) -> None:
    if not unscaled:
        return
    limit = 10**data_type.precision
    for value in (min(unscaled), max(unscaled)):
        if not -limit < value < limit:
            raise CorruptRecordError(f"{data_type} has too many digits in the unscaled value {value}")


def _arrays_to_arrow(values: Sequence[Any], data_type: ArrayType) -> pa.Array:
    offsets = _offsets(values, data_type)
    items = arrow_from_internal(list(chain.from_iterable(v for v in values if v)), data_type.element_type)
    return _from_buffers(arrow_type(data_type), values, [offsets], [items])


def _maps_to_arrow(values: Sequence[Any], data_type: MapType) -> pa.Array:
    offsets = _offsets(values, data_type)
    entries = list(chain.from_iterable(v for v in values if v))
    target = arrow_type(data_type)
    keys = arrow_from_internal([key for key, _ in entries], data_type.key_type)
    items = arrow_from_internal([value for _, value in entries], data_type.value_type)
    pairs = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
    return _from_buffers(target, values, [offsets], [pairs])


def _rows_to_arrow(values: Sequence[Any], data_type: RowType) -> pa.Array:
    children = []
    for index, field in enumerate(data_type.fields):
        if not field.data_type.nullable:
            _check_field_present(values, index, field.data_type)
        # Under a null row every field is null, whatever its own type says.
        column = [None if row is None else row[index] for row in values]
        children.append(arrow_from_internal(column, field.data_type.with_nullable(True)))
    return _from_buffers(arrow_type(data_type), values, [], children)


def _check_field_present(rows: Sequence[Any], field_index: int, data_type: DataType) -> None:
    for index, row in enumerate(rows):
        if row is not None and row[field_index] is None:
            raise CorruptRecordError(
                f"Null in field {field_index} of the row at index {index}: its type is {data_type}"
            )


def _offsets(values: Sequence[Any], data_type: DataType) -> npt.NDArray[np.int32]:
    lengths = np.fromiter((len(value) if value else 0 for value in values), dtype=np.int64, count=len(values))
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    if offsets[-1] > _ARROW_OFFSET_MAX:
        raise SizeLimitError(f"{offsets[-1]} elements in a column of type {data_type}; Arrow holds {_ARROW_OFFSET_MAX}")
    return offsets.astype(np.int32)


def _int64_array(values: Sequence[Any], data_type: DataType) -> Int64Array:
    """Convert integers; nulls read as zero."""
    try:
        return np.fromiter((value or 0 for value in values), dtype=np.int64, count=len(values))
    except OverflowError as error:
        raise CorruptRecordError(f"A value of type {data_type} does not fit 64 bits: {error}") from error


def _from_buffers(
    target: pa.DataType,
    values: Sequence[Any],
    data: Sequence[npt.NDArray[Any]],
    children: Sequence[pa.Array] = (),
) -> pa.Array:
    """Put an array together. ``values`` only says how many there are and which are null."""
    validity = pa.py_buffer(_validity_bitmap(values)) if None in values else None
    buffers = [validity, *(pa.py_buffer(part) for part in data)]
    return pa.Array.from_buffers(target, len(values), buffers, children=list(children))


def _validity_bitmap(values: Sequence[Any]) -> UInt8Array:
    valid = np.fromiter((value is not None for value in values), dtype=np.bool_, count=len(values))
    return np.packbits(valid, bitorder="little")


def _index_of_null(values: Sequence[Any]) -> int:
    return next(index for index, value in enumerate(values) if value is None)


# Powers of ten within which numbers are written without an exponent.
_PLAIN_EXPONENT_MIN, _PLAIN_EXPONENT_MAX = -3, 6


def format_float(value: float, *, bits: int) -> str:
    """Format a FLOAT (32 bits) or a DOUBLE (64 bits)."""
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if math.isinf(value):
        return f"{sign}Infinity"
    if value == 0:
        return f"{sign}0.0"
    digits, exponent = _shortest_digits(abs(value), bits)
    if not _PLAIN_EXPONENT_MIN <= exponent <= _PLAIN_EXPONENT_MAX:
        return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return f"{sign}{whole}.{fraction or '0'}"


def _shortest_digits(value: float, bits: int) -> tuple[str, int]:
    """Return the significant digits of a positive number, and the power of ten of the first one."""
    number = np.float32(value) if bits == 32 else np.float64(value)
    digits, exponent = _digits_of(np.format_float_scientific(number, trim="-"))
    if len(digits) > 1:
        return digits, exponent
    # Java writes two digits at least, so it takes the nearer 4.9E-324 where 5E-324 would do.
    two_digits = f"{float(number):.1e}"
    return _digits_of(two_digits) if type(number)(two_digits) == number else (digits, exponent)


def _digits_of(scientific: str) -> tuple[str, int]:
    mantissa, exponent = scientific.split("e")
    digits = mantissa.replace(".", "").rstrip("0")
    return digits, int(exponent)


def format_date_time(value: Timestamp) -> str:
    """Format a TIMESTAMP: ``2024-01-15T08:30``, with seconds and digits of the second in threes as far as needed."""
    date, (hour, minute, second), nanos = _split(value)
    text = f"{date}T{hour:02d}:{minute:02d}"
    return text if second == nanos == 0 else f"{text}:{second:02d}{_fraction_in_threes(nanos)}"


def format_instant(value: Timestamp) -> str:
    """Format a TIMESTAMP_LTZ: ``2024-01-15T08:30:00Z``, with digits of the second in threes as far as needed."""
    date, (hour, minute, second), nanos = _split(value)
    return f"{date}T{hour:02d}:{minute:02d}:{second:02d}{_fraction_in_threes(nanos)}Z"


def civil_date(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a number of days since 1970-01-01. Year 0 is the one before year 1."""
    day = np.datetime64(days, "D")
    month = day.astype("datetime64[M]")
    months = int(month.astype(np.int64))
    return 1970 + months // 12, months % 12 + 1, int((day - month.astype("datetime64[D]")).astype(np.int64)) + 1


def time_of_day(millis: int) -> tuple[int, int, int]:
    """Return hour, minute and second."""
    minutes, second = divmod(millis // 1000, 60)
    return minutes // 60, minutes % 60, second


def _split(value: Timestamp) -> tuple[str, tuple[int, int, int], int]:
    """Return the date as text, the time, and the nanoseconds of the second."""
    days, millis = divmod(value.millis, DAY_MS)
    year, month, day = civil_date(days)
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    nanos = millis % 1000 * NANOS_PER_MILLI + value.nanos
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}", time_of_day(millis), nanos


def _fraction_in_threes(nanos: int) -> str:
    if nanos == 0:
        return ""
    digits = f"{nanos:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f".{digits}"
