"""Bytes of single values, in the forms that several row formats share.

| type | form |
|---|---|
| BOOLEAN, TINYINT 1 · SMALLINT 2 · INT, DATE, TIME, FLOAT 4 · BIGINT, DOUBLE 8 bytes | little-endian |
| DECIMAL up to 18 digits ("compact") | int64 of the unscaled value |
| TIMESTAMP, TIMESTAMP_LTZ up to 3 digits ("compact") | int64 of the milliseconds; finer digits are dropped |
| DECIMAL with more digits | unscaled value, **big-endian** two's complement, as short as the sign allows |
| CHAR, STRING | UTF-8 |

How other timestamps and nested values lie in the bytes is up to each format.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from fluss.buffers import BytesLike
from fluss.errors import CorruptRecordError, FlussError
from fluss.row.values import NANOS_PER_MILLI, Timestamp
from fluss.schema.types import DataType, DecimalType, TimestampLtzType, TimestampType, TypeRoot

# 38 decimal digits need 127 bits.
UNSCALED_BYTES_MAX: Final = 16

INT32: Final = struct.Struct("<i")
INT64: Final = struct.Struct("<q")

_FIXED: Final[dict[TypeRoot, struct.Struct]] = {
    TypeRoot.BOOLEAN: struct.Struct("<?"),
    TypeRoot.TINYINT: struct.Struct("<b"),
    TypeRoot.SMALLINT: struct.Struct("<h"),
    TypeRoot.INTEGER: INT32,
    TypeRoot.DATE: INT32,
    TypeRoot.TIME: INT32,
    TypeRoot.BIGINT: INT64,
    TypeRoot.FLOAT: struct.Struct("<f"),
    TypeRoot.DOUBLE: struct.Struct("<d"),
}


def null_byte_count(column_count: int) -> int:
    """Return how many bytes of null bits a compacted or indexed row of so many columns starts with."""
    return (column_count + 7) // 8


def fixed_struct(data_type: DataType) -> struct.Struct | None:
    """Return the layout of a type whose values are one number of fixed size, None for all other types."""
    match data_type:
        case DecimalType() | TimestampType() | TimestampLtzType():
            return INT64 if data_type.is_compact else None
    return _FIXED.get(data_type.root)


def encode_fixed(layout: struct.Struct, value: Any, data_type: DataType) -> bytes:
    """Encode a value whose layout is ``fixed_struct(data_type)``."""
    number = value.millis if isinstance(value, Timestamp) else value
    if isinstance(data_type, DecimalType):
        check_decimal(number, data_type)
    try:
        return layout.pack(number)
    except (struct.error, OverflowError) as error:
        raise FlussError(f"The value {value!r} does not fit the type {data_type}: {error}") from error


def decode_fixed(layout: struct.Struct, data: BytesLike, position: int, data_type: DataType) -> Any:
    """Decode a value whose layout is ``fixed_struct(data_type)``. The caller has checked that the bytes are there."""
    (number,) = layout.unpack_from(data, position)
    match data_type:
        case TimestampType() | TimestampLtzType():
            return Timestamp(number)
        case DecimalType():
            return check_unscaled(number, data_type)
    return number


def encode_unscaled(value: int, data_type: DecimalType) -> bytes:
    """Encode the unscaled value of a decimal: 0 is ``00``, 128 is ``00 80``, -128 is ``80``."""
    check_decimal(value, data_type)
    # bit_length() ignores the sign; ~value has the bits of -value - 1, which are the ones a negative number needs.
    bits = (value if value >= 0 else ~value).bit_length()
    return value.to_bytes(bits // 8 + 1, "big", signed=True)


def check_decimal(value: int, data_type: DecimalType) -> None:
    """Refuse to store a decimal with more digits than its type has."""
    if abs(value) >= 10**data_type.precision:
        raise FlussError(f"The unscaled value {value} has more digits than the type {data_type}")


def decode_unscaled(data: BytesLike, data_type: DecimalType) -> int:
    """Decode the unscaled value of a decimal."""
    if not 1 <= len(data) <= UNSCALED_BYTES_MAX:
        raise CorruptRecordError(
            f"A value of type {data_type} has {len(data)} bytes; 1 to {UNSCALED_BYTES_MAX} are possible"
        )
    return check_unscaled(int.from_bytes(data, "big", signed=True), data_type)


def check_unscaled(value: int, data_type: DecimalType) -> int:
    """Return a decoded unscaled value if its type can hold it."""
    if abs(value) >= 10**data_type.precision:
        raise CorruptRecordError(f"The unscaled value {value} has more digits than the type {data_type}")
    return value


def check_nanos(nanos: int, data_type: DataType) -> int:
    """Return decoded nanoseconds of a timestamp if they are less than a millisecond."""
    if not 0 <= nanos < NANOS_PER_MILLI:
        raise CorruptRecordError(f"A value of type {data_type} has {nanos} nanoseconds in a millisecond")
    return nanos


def encode_text(text: str) -> bytes:
    """Encode text as UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise FlussError(f"Text with a lone surrogate cannot be stored: {error}") from error


def decode_text(data: BytesLike) -> str:
    """Decode UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise CorruptRecordError(f"A string of {len(data)} bytes is not UTF-8: {error}") from error
