"""Compacted rows: the default form of values and keys in primary-key tables.

A row is ``ceil(n / 8)`` bytes of null bits, then the fields that are not null, in column order, without padding.
Column i is null when bit ``i & 7`` of byte ``i >> 3`` is set. n is the column count of the schema with which the row
was written; its id travels outside the row.

| type | bytes |
|---|---|
| BOOLEAN, TINYINT 1 · SMALLINT 2 · FLOAT 4 · DOUBLE 8 | little-endian |
| INT, DATE, TIME | varint32 |
| BIGINT, DECIMAL up to 18 digits | varint64 |
| TIMESTAMP, TIMESTAMP_LTZ up to 3 digits | varint64 milliseconds |
| the same with more digits | varint64 milliseconds, varint32 nanoseconds in the millisecond |
| CHAR, STRING, BINARY, BYTES | varint32 length, bytes; CHAR and BINARY are not padded |
| DECIMAL with more than 18 digits | varint32 length, big-endian unscaled bytes |
| ARRAY, MAP | varint32 length, see ``fluss.row.slots``; rows inside are compacted rows |
| ROW | varint32 length, compacted row |

    (10, "abc") of (INT, STRING):  00 | 0a | 03 61 62 63

A key is the same without null bits, so the key of the first columns is a prefix of the key of all columns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from fluss.buffers import BytesLike
from fluss.errors import CorruptRecordError, FlussError
from fluss.row import slots
from fluss.row.arrow_arrays import null_byte_count
from fluss.row.scalars import (
    RowCursor,
    check_decimal,
    check_nanos,
    check_unscaled,
    decode_text,
    decode_unscaled,
    encode_fixed,
    encode_text,
    encode_unscaled,
    fixed_struct,
)
from fluss.row.slots import NestedRowCodec
from fluss.row.values import NANOS_PER_MILLI, Timestamp
from fluss.row.varint import encode_varint32, encode_varint64
from fluss.schema.types import DataType, DecimalType, TypeRoot


def encode_row(types: Sequence[DataType], values: Sequence[Any]) -> bytes:
    """Encode one row of internal values.

    Null in a NOT NULL column is an error. A row that leaves columns out on purpose (a partial update) is encoded with
    nullable types for them.
    """
    null_bits = bytearray(null_byte_count(len(types)))
    fields = bytearray()
    for index, (data_type, value) in enumerate(zip(types, values, strict=True)):
        if value is not None:
            _WRITERS[data_type.root](fields, value, data_type)
        elif data_type.nullable:
            null_bits[index >> 3] |= 1 << (index & 7)
        else:
            raise FlussError(f"The value of column {index} is null, but its type is {data_type}")
    return bytes(null_bits + fields)


def decode_row(types: Sequence[DataType], data: BytesLike) -> tuple[Any, ...]:
    """Decode one row; ``types`` are the columns of the schema with which it was written.

    A null in a NOT NULL column and bytes behind the last field are damage, or the wrong schema.
    """
    cursor = RowCursor(data)
    null_bits = cursor.take(null_byte_count(len(types)))
    values: list[Any] = []
    for index, data_type in enumerate(types):
        if not null_bits[index >> 3] & 1 << (index & 7):
            values.append(_READERS[data_type.root](cursor, data_type))
        elif data_type.nullable:
            values.append(None)
        else:
            raise CorruptRecordError(f"The value of column {index} is null, but its type is {data_type}")
    cursor.finish()
    return tuple(values)


def encode_fields(types: Sequence[DataType], values: Sequence[Any]) -> bytes:
    """Encode a key: the fields of a row without null bits. No value may be null."""
    fields = bytearray()
    for index, (data_type, value) in enumerate(zip(types, values, strict=True)):
        if value is None:
            raise FlussError(f"The value of key column {index} is null; key columns of type {data_type} need a value")
        _WRITERS[data_type.root](fields, value, data_type)
    return bytes(fields)


def decode_fields(types: Sequence[DataType], data: BytesLike) -> tuple[Any, ...]:
    """Decode a key."""
    cursor = RowCursor(data)
    values = tuple(_READERS[data_type.root](cursor, data_type) for data_type in types)
    cursor.finish()
    return values


def encode_nested(data_type: DataType, value: Any) -> bytes:
    """Encode one ARRAY, MAP or ROW value as it lies in a compacted row, without the length in front."""
    return slots.encode_nested(data_type, value, _ROWS)


def decode_nested(data_type: DataType, data: BytesLike) -> Any:
    """Decode one ARRAY, MAP or ROW value of a compacted row, without the length in front."""
    return slots.decode_nested(data_type, data, _ROWS)


# Rows inside the arrays and maps of a compacted row are compacted, too.
_ROWS: Final = NestedRowCodec(encode_row, decode_row)


# A writer appends a value that is not null; the reader of the same type takes it off again.
_Writer = Callable[[bytearray, Any, Any], None]
_Reader = Callable[[RowCursor, Any], Any]


def _layout(data_type: DataType) -> struct.Struct:
    layout = fixed_struct(data_type)
    assert layout is not None
    return layout


def _write_number(out: bytearray, value: Any, data_type: DataType) -> None:
    out += encode_fixed(_layout(data_type), value, data_type)


def _read_number(cursor: RowCursor, data_type: DataType) -> Any:
    layout = _layout(data_type)
    return layout.unpack(cursor.take(layout.size))[0]


def _write_int(out: bytearray, value: int, data_type: DataType) -> None:
    out += encode_varint32(value)


def _read_int(cursor: RowCursor, data_type: DataType) -> int:
    return cursor.varint32()


def _write_bigint(out: bytearray, value: int, data_type: DataType) -> None:
    out += encode_varint64(value)


def _read_bigint(cursor: RowCursor, data_type: DataType) -> int:
    return cursor.varint64()


def _write_text(out: bytearray, value: str, data_type: DataType) -> None:
    _write_bytes(out, encode_text(value), data_type)


def _read_text(cursor: RowCursor, data_type: DataType) -> str:
    return decode_text(_read_sized(cursor))


def _write_bytes(out: bytearray, value: bytes, data_type: DataType) -> None:
    out += encode_varint32(len(value))
    out += value


def _read_bytes(cursor: RowCursor, data_type: DataType) -> bytes:
    return bytes(_read_sized(cursor))


def _read_sized(cursor: RowCursor) -> memoryview:
    return cursor.take(cursor.varint32())


def _write_decimal(out: bytearray, value: int, data_type: DecimalType) -> None:
    if data_type.is_compact:
        check_decimal(value, data_type)
        out += encode_varint64(value)
    else:
        _write_bytes(out, encode_unscaled(value, data_type), data_type)


def _read_decimal(cursor: RowCursor, data_type: DecimalType) -> int:
    if data_type.is_compact:
        return check_unscaled(cursor.varint64(), data_type)
    return decode_unscaled(_read_sized(cursor), data_type)


def _write_timestamp(out: bytearray, value: Timestamp, data_type: Any) -> None:
    out += encode_varint64(value.millis)
    if not data_type.is_compact:
        assert 0 <= value.nanos < NANOS_PER_MILLI, value
        out += encode_varint32(value.nanos)


def _read_timestamp(cursor: RowCursor, data_type: Any) -> Timestamp:
    millis = cursor.varint64()
    return Timestamp(millis, 0 if data_type.is_compact else check_nanos(cursor.varint32(), data_type))


def _write_nested(out: bytearray, value: Any, data_type: DataType) -> None:
    _write_bytes(out, encode_nested(data_type, value), data_type)


def _read_nested(cursor: RowCursor, data_type: DataType) -> Any:
    return decode_nested(data_type, _read_sized(cursor))


_CODECS: Final[dict[TypeRoot, tuple[_Writer, _Reader]]] = {
    TypeRoot.BOOLEAN: (_write_number, _read_number),
    TypeRoot.TINYINT: (_write_number, _read_number),
    TypeRoot.SMALLINT: (_write_number, _read_number),
    TypeRoot.FLOAT: (_write_number, _read_number),
    TypeRoot.DOUBLE: (_write_number, _read_number),
    TypeRoot.INTEGER: (_write_int, _read_int),
    TypeRoot.DATE: (_write_int, _read_int),
    TypeRoot.TIME: (_write_int, _read_int),
    TypeRoot.BIGINT: (_write_bigint, _read_bigint),
    TypeRoot.CHAR: (_write_text, _read_text),
    TypeRoot.STRING: (_write_text, _read_text),
    TypeRoot.BINARY: (_write_bytes, _read_bytes),
    TypeRoot.BYTES: (_write_bytes, _read_bytes),
    TypeRoot.DECIMAL: (_write_decimal, _read_decimal),
    TypeRoot.TIMESTAMP: (_write_timestamp, _read_timestamp),
    TypeRoot.TIMESTAMP_LTZ: (_write_timestamp, _read_timestamp),
    TypeRoot.ARRAY: (_write_nested, _read_nested),
    TypeRoot.MAP: (_write_nested, _read_nested),
    TypeRoot.ROW: (_write_nested, _read_nested),
}
_WRITERS: Final = {root: codec[0] for root, codec in _CODECS.items()}
_READERS: Final = {root: codec[1] for root, codec in _CODECS.items()}
