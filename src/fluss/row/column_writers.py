"""The bytes of one column in every row of a batch: how long they are, and how they get to their places.

A column becomes one or two parts, which lie next to each other in each row:

| type | parts |
|---|---|
| BOOLEAN, TINYINT, SMALLINT, FLOAT, DOUBLE | ``FixedPart`` |
| INT, DATE, TIME, BIGINT, DECIMAL up to 18 digits, TIMESTAMP up to 3 digits | ``VarintPart`` |
| TIMESTAMP with more digits | ``VarintPart`` of milliseconds, ``VarintPart`` of nanoseconds |
| DECIMAL with more than 18 digits | ``UnscaledPart`` |
| CHAR, STRING, BINARY, BYTES, ARRAY, MAP, ROW | ``VarintPart`` of lengths, ``BodyPart`` |
| the null bits in front of all columns | ``BytesPart`` |

A null has length 0 in every part. A column without any value has no parts at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import Int64Array, UInt8Array
from fluss.errors import FlussError
from fluss.row.byte_ranges import large_binary_array, offsets_of, unaligned
from fluss.row.compacted import encode_nested
from fluss.row.decimal_columns import has_digits, unscaled_lengths, write_unscaled
from fluss.row.null_columns import ValidMask, unpacked_bits
from fluss.row.plain_arrays import buffer_numbers
from fluss.row.values import DAY_MS, NANOS_PER_MILLI, internal_from_arrow
from fluss.row.varint_columns import UnsignedArray, varint_lengths, write_varints
from fluss.schema.types import DataType, DecimalType, TypeRoot

# Text up to this byte needs no closer look: it is UTF-8 wherever it is cut.
ASCII_MAX = 0x7F
# Arrow units in a second.
UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
FIXED_DTYPES = {TypeRoot.TINYINT: "<i1", TypeRoot.SMALLINT: "<i2", TypeRoot.FLOAT: "<f4", TypeRoot.DOUBLE: "<f8"}


@dataclass(frozen=True, slots=True)
class FixedPart:
    """Numbers of one size."""

    values: npt.NDArray[Any]
    valid: ValidMask

    @property
    def lengths(self) -> UInt8Array | int:
        size = self.values.itemsize
        return size if self.valid is None else self.valid.view(np.uint8) * np.uint8(size)

    def write(self, out: UInt8Array, positions: Int64Array) -> None:
        target = unaligned(out, self.values.dtype)
        if self.valid is None:
            target[positions] = self.values
        else:
            rows = np.flatnonzero(self.valid)
            target[positions[rows]] = self.values[rows]


@dataclass(frozen=True, slots=True)
class VarintPart:
    """Numbers of variable length."""

    values: UnsignedArray
    lengths: UInt8Array

    @classmethod
    def of(cls, values: UnsignedArray, valid: ValidMask) -> VarintPart:
        lengths = varint_lengths(values)
        return cls(values, lengths if valid is None else lengths * valid)

    def write(self, out: UInt8Array, positions: Int64Array) -> None:
        write_varints(out, positions, self.values, self.lengths)


@dataclass(frozen=True, slots=True)
class UnscaledPart:
    """Big-endian numbers of 1 to 16 bytes, each behind its length in one byte."""

    little_endian: UInt8Array
    number_lengths: UInt8Array

    @property
    def lengths(self) -> UInt8Array:
        return self.number_lengths + (self.number_lengths > 0)

    def write(self, out: UInt8Array, positions: Int64Array) -> None:
        rows = np.flatnonzero(self.number_lengths)
        out[positions[rows]] = self.number_lengths[rows]
        write_unscaled(out, positions + 1, self.little_endian, self.number_lengths)


@dataclass(frozen=True, slots=True)
class BytesPart:
    """The same number of bytes in every row, given as one array per byte."""

    planes: list[UInt8Array]

    @property
    def lengths(self) -> int:
        return len(self.planes)

    def write(self, out: UInt8Array, positions: Int64Array) -> None:
        for index, plane in enumerate(self.planes):
            out[positions + index] = plane


@dataclass(frozen=True, slots=True)
class BodyPart:
    """Byte strings as an Arrow array of type large_binary. Arrow copies them, nobody else touches them."""

    bodies: pa.Array


NumberPart: TypeAlias = FixedPart | VarintPart | UnscaledPart | BytesPart
Part: TypeAlias = NumberPart | BodyPart


def column_parts(column: pa.Array, data_type: DataType, valid: ValidMask) -> list[Part]:
    """Split a column into the parts that each row holds. A value that its type cannot hold is a FlussError."""
    if column.null_count == len(column):
        return []
    root = data_type.root
    if root in FIXED_DTYPES:
        return [FixedPart(buffer_numbers(column, FIXED_DTYPES[root]), valid)]
    match root:
        case TypeRoot.BOOLEAN:
            bits = unpacked_bits(column.buffers()[1], column.offset, len(column))
            return [FixedPart(bits.view(np.uint8), valid)]
        case TypeRoot.INTEGER | TypeRoot.DATE:
            return [VarintPart.of(buffer_numbers(column, "<u4"), valid)]
        case TypeRoot.BIGINT:
            return [VarintPart.of(buffer_numbers(column, "<u8"), valid)]
        case TypeRoot.TIME:
            return [VarintPart.of(_day_millis(column, data_type, valid), valid)]
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            return _timestamp_parts(column, data_type, valid)
        case TypeRoot.DECIMAL:
            assert isinstance(data_type, DecimalType)
            return _decimal_parts(column, data_type, valid)
        case TypeRoot.CHAR | TypeRoot.STRING | TypeRoot.BYTES:
            offsets = buffer_numbers(column, "<i4", extra=1)
            if root != TypeRoot.BYTES:
                _check_utf8(column, offsets)
            return _sized_parts(column.cast(pa.large_binary()), np.diff(offsets), valid)
        case TypeRoot.BINARY:
            lengths = np.full(len(column), column.type.byte_width, dtype=np.int32)
            return _sized_parts(column.cast(pa.large_binary()), lengths, valid)
    return _nested_parts(column, data_type, valid)


def _sized_parts(bodies: pa.Array, lengths: npt.NDArray[np.int32], valid: ValidMask) -> list[Part]:
    return [VarintPart.of(lengths.view(np.uint32), valid), BodyPart(bodies)]


def _check_utf8(column: pa.Array, offsets: npt.NDArray[np.int32]) -> None:
    content = np.frombuffer(column.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    if int(content.max(initial=0)) > ASCII_MAX:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise FlussError(f"The text is not UTF-8: {error}") from error


def _nested_parts(column: pa.Array, data_type: DataType, valid: ValidMask) -> list[Part]:
    """Encode ARRAY, MAP and ROW values one by one: their bytes follow the shape of each single value."""
    bodies = [
        b"" if value is None else encode_nested(data_type, value) for value in internal_from_arrow(column, data_type)
    ]
    lengths = np.fromiter(map(len, bodies), dtype=np.int32, count=len(bodies))
    return _sized_parts(large_binary_array(b"".join(bodies), offsets_of(lengths)), lengths, valid)


def _timestamp_parts(column: pa.Array, data_type: DataType, valid: ValidMask) -> list[Part]:
    numbers = buffer_numbers(column, "<i8")
    unit = column.type.unit
    if unit == "s":
        millis = numbers * 1000
        _check_rows(millis // 1000 == numbers, valid, data_type, "is beyond the 64-bit range of milliseconds", numbers)
        return [VarintPart.of(millis.view(np.uint64), valid)]
    if unit == "ms":
        return [VarintPart.of(numbers.view(np.uint64), valid)]
    units_per_milli = UNITS_PER_SECOND[unit] // 1000
    millis = numbers // units_per_milli
    nanos = (numbers - millis * units_per_milli) * (NANOS_PER_MILLI // units_per_milli)
    return [VarintPart.of(millis.view(np.uint64), valid), VarintPart.of(nanos.astype(np.uint32), valid)]


def _day_millis(column: pa.Array, data_type: DataType, valid: ValidMask) -> npt.NDArray[np.uint32]:
    units_per_second = UNITS_PER_SECOND[column.type.unit]
    numbers = buffer_numbers(column, "<i4" if column.type.bit_width == 32 else "<i8")
    inside = (numbers >= 0) & (numbers < DAY_MS // 1000 * units_per_second)
    _check_rows(inside, valid, data_type, "is outside the day", numbers)
    if units_per_second <= 1000:
        millis = numbers * (1000 // units_per_second)
    else:
        millis = numbers // (units_per_second // 1000)
    return millis.astype(np.uint32)


def _decimal_parts(column: pa.Array, data_type: DecimalType, valid: ValidMask) -> list[Part]:
    words = np.frombuffer(column.buffers()[1], dtype="<i8", count=2 * (column.offset + len(column)))
    words = words[2 * column.offset :]
    low, high = words.view("<u8")[0::2], words[1::2]
    _check_rows(has_digits(low, high, data_type.precision), valid, data_type, "has too many digits", None)
    if data_type.is_compact:
        return [VarintPart.of(np.ascontiguousarray(low), valid)]
    lengths = unscaled_lengths(low, high)
    return [UnscaledPart(words.view(np.uint8), lengths if valid is None else lengths * valid)]


def _check_rows(
    good: npt.NDArray[np.bool_], valid: ValidMask, data_type: DataType, trouble: str, numbers: npt.NDArray[Any] | None
) -> None:
    """Refuse values of a user; what lies under a null does not count."""
    if good.all():
        return
    bad = ~good if valid is None else ~good & valid
    if bad.any():
        row = int(bad.argmax())
        found = "" if numbers is None else f": {numbers[row]}"
        raise FlussError(f"The {data_type} of row {row} {trouble}{found}")
