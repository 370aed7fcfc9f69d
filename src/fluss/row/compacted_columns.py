"""Compacted rows of a whole batch at once: Arrow columns to encoded rows and back, a column at a time.

This is the columnar twin of ``fluss.row.compacted``, which describes the bytes and serves single rows. Both write the
same bytes and accept the same bytes; the work here is done by numpy and Arrow, without a step per row (except for
ARRAY, MAP and ROW columns, whose values go through the scalar twin one by one).

Encoding: the parts of all columns between two byte strings form a segment. The lengths of its parts in each row add
up to the boundaries of the segment, then each part is written at its place in all rows. Arrow joins segments and byte
strings row by row.

Decoding: one position per row moves over the columns from left to right, see ``fluss.row.column_reader``.

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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import Int64Array, UInt8Array
from fluss.errors import FlussError
from fluss.row.arrow_arrays import (
    ValidMask,
    buffer_numbers,
    mask_from_arrow,
    masks_to_null_planes,
    slots_bytes,
    unpacked_bits,
)
from fluss.row.column_reader import ASCII_MAX, FIXED_DTYPES, UNITS_PER_SECOND, ColumnCursor, read_column
from fluss.row.compacted import decode_nested, encode_nested
from fluss.row.encoded import EncodedRows, join_rows, large_binary_array, offsets_of, rows_of, unaligned
from fluss.row.scalars import has_digits, unscaled_lengths, write_unscaled
from fluss.row.values import DAY_MS, NANOS_PER_MILLI, internal_from_arrow
from fluss.row.varint import UnsignedArray, varint_lengths, write_varints
from fluss.schema.arrow import arrow_type
from fluss.schema.types import DataType, DecimalType, TypeRoot


def encode_rows(columns: Sequence[pa.Array], types: Sequence[DataType]) -> EncodedRows:
    """Encode a batch: arrays of equal length, of exactly the Arrow types of ``types``.

    Null in a NOT NULL column and values that their type cannot hold are a FlussError. Rows that leave columns out on
    purpose (a partial update) are encoded with nullable types for them.
    """
    row_count = _check_columns(columns, types)
    masks = [mask_from_arrow(column) for column in columns]
    for index, (data_type, valid) in enumerate(zip(types, masks, strict=True)):
        if valid is not None and not data_type.nullable:
            row = int(valid.argmin())
            raise FlussError(f"The value of column {index} is null in row {row}, but its type is {data_type}")
    null_bits: list[Part] = [BytesPart(masks_to_null_planes(masks, row_count))]
    return _joined(null_bits + _all_parts(columns, types, masks), row_count)


def encode_keys(columns: Sequence[pa.Array], types: Sequence[DataType]) -> EncodedRows:
    """Encode the keys of a batch: rows without null bits. Null is a FlussError whatever the type says."""
    row_count = _check_columns(columns, types)
    for index, (column, data_type) in enumerate(zip(columns, types, strict=True)):
        valid = mask_from_arrow(column)
        if valid is not None:
            row = int(valid.argmin())
            raise FlussError(
                f"The value of key column {index} is null in row {row}; key columns of type {data_type} need a value"
            )
    return _joined(_all_parts(columns, types, [None] * len(columns)), row_count)


def decode_rows(rows: EncodedRows, types: Sequence[DataType], *, arrays_bytes_max: int | None = None) -> list[pa.Array]:
    """Decode rows to one array per column; ``types`` are the columns of the schema with which they were written.

    CorruptRecordError names the first row that does not follow the format. SizeLimitError: a column would exceed the
    two gigabytes of one Arrow array, or all columns ``arrays_bytes_max``, strings not counted; decode fewer
    rows at once.
    """
    cursor = ColumnCursor(rows, decode_nested, arrays_bytes_max=arrays_bytes_max)
    cursor.count_bytes(slots_bytes(types, len(rows)))
    masks = cursor.null_bits(types)
    return _decoded(cursor, types, masks)


def decode_keys(keys: EncodedRows, types: Sequence[DataType]) -> list[pa.Array]:
    """Decode keys to one array per column, with the errors of ``decode_rows``."""
    return _decoded(ColumnCursor(keys, decode_nested), types, [None] * len(types))


def _decoded(cursor: ColumnCursor, types: Sequence[DataType], masks: Sequence[ValidMask]) -> list[pa.Array]:
    columns = []
    for index, (data_type, valid) in enumerate(zip(types, masks, strict=True)):
        cursor.enter_column(index, data_type, valid)
        columns.append(read_column(cursor, data_type))
    cursor.finish()
    return columns


def _check_columns(columns: Sequence[pa.Array], types: Sequence[DataType]) -> int:
    """Check what the caller must hold, and return the number of rows."""
    row_count = len(columns[0]) if columns else 0
    for column, data_type in zip(columns, types, strict=True):
        assert len(column) == row_count, f"columns of different lengths: {row_count} and {len(column)}"
        if not data_type.is_nested and column.type != arrow_type(data_type):
            raise TypeError(f"{data_type} columns are Arrow arrays of type {arrow_type(data_type)}, got {column.type}")
    return row_count


def _all_parts(columns: Sequence[pa.Array], types: Sequence[DataType], masks: Sequence[ValidMask]) -> list[Part]:
    parts: list[Part] = []
    for index, (column, data_type, valid) in enumerate(zip(columns, types, masks, strict=True)):
        try:
            parts += column_parts(column, data_type, valid)
        except FlussError as error:
            raise FlussError(f"Column {index} cannot be encoded: {error.message}") from error
    return parts


def _joined(parts: Sequence[Part], row_count: int) -> EncodedRows:
    """Put the parts of each row together."""
    pieces: list[pa.Array] = []
    segment: list[NumberPart] = []
    for part in parts:
        if isinstance(part, BodyPart):
            pieces += [_segment(segment, row_count), part.bodies]
            segment = []
        else:
            segment.append(part)
    if segment or not pieces:
        pieces.append(_segment(segment, row_count))
    return rows_of(pieces[0]) if len(pieces) == 1 else join_rows(pieces)


def _segment(parts: Sequence[NumberPart], row_count: int) -> pa.Array:
    """Write numbers that lie next to each other in every row."""
    row_lengths = np.zeros(row_count, dtype=np.int64)
    for part in parts:
        row_lengths += part.lengths
    offsets = offsets_of(row_lengths)
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    positions = offsets[:-1].copy()
    for part in parts:
        part.write(data, positions)
        positions += part.lengths
    return large_binary_array(data, offsets)


# Parts


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
    """Byte strings as an Arrow array of type large_binary, which Arrow copies as a whole."""

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
    """Refuse values that a type cannot hold; what lies under a null does not count."""
    if good.all():
        return
    bad = ~good if valid is None else ~good & valid
    if bad.any():
        row = int(bad.argmax())
        found = "" if numbers is None else f": {numbers[row]}"
        raise FlussError(f"The {data_type} of row {row} {trouble}{found}")
