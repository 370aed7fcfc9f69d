"""Indexed rows: the format of tables that set ``indexed`` as their log or KV format.

| part | bytes | content |
|---|---|---|
| null bits | ceil(n / 8) | column i is bit ``i & 7`` of byte ``i >> 3``; 1 is null |
| lengths | 4 per column of variable length | int32; see below |
| fields | any | the fields that are not null, in column order, without padding |

STRING, BYTES, ARRAY, MAP, ROW and DECIMAL with more than 18 digits have variable length. The lengths of those that are
not null come first, in column order; lengths that are left over stay zero.

| type | bytes |
|---|---|
| BOOLEAN, TINYINT 1 · SMALLINT 2 · INT, DATE, TIME, FLOAT 4 · BIGINT, DOUBLE 8 | little-endian |
| DECIMAL up to 18 digits | int64 unscaled value |
| TIMESTAMP, TIMESTAMP_LTZ | int64 milliseconds; with more than 3 digits also int32 nanoseconds |
| CHAR(n) | n bytes of UTF-8, padded with zeros, which a reader takes off again |
| BINARY(n) | n bytes, padded with zeros |
| STRING, BYTES | the bytes |
| DECIMAL with more than 18 digits | big-endian unscaled bytes |
| ARRAY, MAP | see ``fluss.row.slots``; rows inside are indexed rows |
| ROW | indexed row |

    (10, "abc") of (INT, STRING):  00 | 03 00 00 00 | 0a 00 00 00 | 61 62 63

Single rows come first, then all rows of a batch as Arrow columns. These are read with the column reader of compacted
rows; what differs is where numbers and byte strings lie: numbers have the width of their type, and the lengths of byte
strings stand together in front of all fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from fluss.buffers import BytesLike, Int64Array
from fluss.errors import CorruptRecordError, FlussError
from fluss.row import slots
from fluss.row.arrow_arrays import ValidMask, null_byte_count, slots_bytes
from fluss.row.column_reader import ColumnCursor, read_column
from fluss.row.encoded import EncodedRows, unaligned
from fluss.row.scalars import (
    INT32,
    INT64,
    RowCursor,
    check_nanos,
    decode_fixed,
    decode_text,
    decode_unscaled,
    encode_fixed,
    encode_text,
    encode_unscaled,
    fixed_struct,
)
from fluss.row.slots import NestedRowCodec
from fluss.row.values import NANOS_PER_MILLI, Timestamp, internal_from_arrow
from fluss.row.varint import UInt64Array
from fluss.schema.types import (
    BinaryType,
    BytesType,
    CharType,
    DataType,
    DecimalType,
    StringType,
    TimestampLtzType,
    TimestampType,
)

_LENGTH_BYTES: Final = INT32.size
# Bytes of CHAR columns whose padding is searched at a time. The position of each of them takes eight bytes.
_PADDING_SEARCH_BYTES: Final = 1 << 20


def encode_row(types: Sequence[DataType], values: Sequence[Any]) -> bytes:
    """Encode one row of internal values.

    Null in a NOT NULL column is an error. A row that leaves columns out on purpose (a partial update) is encoded with
    nullable types for them.
    """
    null_bits = bytearray(null_byte_count(len(types)))
    lengths = bytearray()
    fields = bytearray()
    for index, (data_type, value) in enumerate(zip(types, values, strict=True)):
        if value is not None:
            field = _encode_field(data_type, value)
            fields += field
            if has_variable_length(data_type):
                lengths += INT32.pack(len(field))
        elif data_type.nullable:
            null_bits[index >> 3] |= 1 << (index & 7)
        else:
            raise FlussError(f"The value of column {index} is null, but its type is {data_type}")
    return bytes(null_bits + lengths.ljust(_lengths_bytes(types), b"\0") + fields)


def decode_row(types: Sequence[DataType], data: BytesLike) -> tuple[Any, ...]:
    """Decode one row; ``types`` are the columns of the schema with which it was written.

    A null in a NOT NULL column and bytes behind the last field are damage, or the wrong schema.
    """
    cursor = RowCursor(data)
    null_bits = cursor.take(null_byte_count(len(types)))
    lengths = RowCursor(cursor.take(_lengths_bytes(types)))
    values: list[Any] = []
    for index, data_type in enumerate(types):
        if not null_bits[index >> 3] & 1 << (index & 7):
            values.append(_decode_field(data_type, cursor, lengths))
        elif data_type.nullable:
            values.append(None)
        else:
            raise CorruptRecordError(f"The value of column {index} is null, but its type is {data_type}")
    cursor.finish()
    return tuple(values)


def decode_nested(data_type: DataType, data: BytesLike) -> Any:
    """Decode the bytes of an ARRAY, MAP or ROW inside a row."""
    return slots.decode_nested(data_type, data, _ROWS)


_ROWS: Final = NestedRowCodec(encode_row, decode_row)


def _lengths_bytes(types: Sequence[DataType]) -> int:
    return _LENGTH_BYTES * sum(map(has_variable_length, types))


def has_variable_length(data_type: DataType) -> bool:
    """Whether values of a type lie behind a length in front of the fields."""
    match data_type:
        case StringType() | BytesType():
            return True
        case DecimalType():
            return not data_type.is_compact
    return data_type.is_nested


def _encode_field(data_type: DataType, value: Any) -> bytes:
    layout = fixed_struct(data_type)
    if layout is not None:
        return encode_fixed(layout, value, data_type)
    match data_type:
        case StringType():
            return encode_text(value)
        case BytesType():
            return bytes(value)
        case CharType():
            return _padded(encode_text(value), data_type)
        case BinaryType():
            return _padded(value, data_type)
        case DecimalType():
            return encode_unscaled(value, data_type)
        case TimestampType() | TimestampLtzType():
            assert 0 <= value.nanos < NANOS_PER_MILLI, value
            return encode_fixed(INT64, value, data_type) + INT32.pack(value.nanos)
    return slots.encode_nested(data_type, value, _ROWS)


def _padded(value: bytes, data_type: CharType | BinaryType) -> bytes:
    if len(value) > data_type.length:
        raise FlussError(
            f"A value of {len(value)} bytes does not fit the type {data_type}: in the indexed format a {data_type} has "
            f"{data_type.length} bytes; declare the column with a larger length"
        )
    return value.ljust(data_type.length, b"\0")


def _decode_field(data_type: DataType, cursor: RowCursor, lengths: RowCursor) -> Any:
    layout = fixed_struct(data_type)
    if layout is not None:
        return decode_fixed(layout, cursor.data, cursor.skip(layout.size), data_type)
    match data_type:
        case CharType():
            return decode_text(bytes(cursor.take(data_type.length)).rstrip(b"\0"))
        case BinaryType():
            return bytes(cursor.take(data_type.length))
        case TimestampType() | TimestampLtzType():
            (millis,) = INT64.unpack(cursor.take(INT64.size))
            (nanos,) = INT32.unpack(cursor.take(INT32.size))
            return Timestamp(millis, check_nanos(nanos, data_type))
    (length,) = INT32.unpack(lengths.take(_LENGTH_BYTES))
    field = cursor.take(length)
    match data_type:
        case StringType():
            return decode_text(field)
        case BytesType():
            return bytes(field)
        case DecimalType():
            return decode_unscaled(field, data_type)
    return decode_nested(data_type, field)


# Batches


def encode_rows(columns: Sequence[pa.Array], types: Sequence[DataType]) -> EncodedRows:
    """Encode a batch with the arguments and errors of ``compacted_columns.encode_rows``, row by row."""
    values = (internal_from_arrow(column, data_type) for column, data_type in zip(columns, types, strict=True))
    return EncodedRows.from_list([encode_row(types, row) for row in zip(*values, strict=True)])


def decode_rows(rows: EncodedRows, types: Sequence[DataType], *, arrays_bytes_max: int | None = None) -> list[pa.Array]:
    """Decode rows to one array per column, with the limit and the errors of ``compacted_columns.decode_rows``."""
    cursor = _IndexedCursor(rows, decode_nested, arrays_bytes_max=arrays_bytes_max)
    cursor.count_bytes(slots_bytes(types, len(rows)))
    masks = cursor.null_bits(types)
    cursor.skip_lengths(sum(map(has_variable_length, types)))
    columns = []
    for index, (data_type, valid) in enumerate(zip(types, masks, strict=True)):
        cursor.enter_column(index, data_type, valid)
        columns.append(read_column(cursor, data_type))
        cursor.leave_column()
    cursor.finish()
    return columns


class _IndexedCursor(ColumnCursor):
    """Finds the fields of indexed rows where ``read_column`` asks for those of compacted rows."""

    def skip_lengths(self, variable_count: int) -> None:
        """Move to the fields. Each row has the lengths of its values in front, one after the other."""
        self._lengths_at = self._positions
        self._before_columns = "The lengths"
        self._advance(variable_count * INT32.size)

    def enter_column(self, index: int, data_type: DataType, valid: ValidMask) -> None:
        super().enter_column(index, data_type, valid)
        self._data_type = data_type

    def leave_column(self) -> None:
        """Go on to the next length, in the rows that have a value here."""
        if has_variable_length(self._data_type):
            step = INT32.size if self.valid is None else INT32.size * self.valid
            self._lengths_at = self._lengths_at + step

    def varints(self, bits: int) -> UInt64Array:
        return self.fixed(f"<u{bits // 8}").astype(np.uint64)

    def ranges(self) -> tuple[Int64Array, Int64Array]:
        starts = self._positions
        if isinstance(self._data_type, CharType | BinaryType):
            self._advance(self._data_type.length)
            if isinstance(self._data_type, CharType):
                return starts, self._without_padding(starts, self._data_type.length)
            return starts, self._without_nulls(np.full(len(self), self._data_type.length))
        # Where this column is null, the length of another one or the bytes of a field are read, and set to zero.
        lengths_at = np.minimum(self._lengths_at, len(self.data) - INT32.size)
        lengths = self._without_nulls(unaligned(self.data, "<i4")[lengths_at].astype(np.int64))
        if len(lengths) and int(lengths.min()) < 0:
            self.refuse("has a negative length", lengths < 0)
        self._advance(lengths)
        return starts, lengths

    def _without_padding(self, starts: Int64Array, length: int) -> Int64Array:
        """Return how many bytes of each CHAR are left without the zeros at its end."""
        lengths = np.zeros(len(self), np.int64)
        all_rows = np.arange(len(self)) if self.valid is None else np.flatnonzero(self.valid)
        at_once = max(1, _PADDING_SEARCH_BYTES // length)
        for first in range(0, len(all_rows), at_once):
            rows = all_rows[first : first + at_once]
            is_text = self.data[starts[rows, np.newaxis] + np.arange(length)] != 0
            lengths[rows] = np.where(is_text.any(axis=1), length - is_text[:, ::-1].argmax(axis=1), 0)
        return lengths
