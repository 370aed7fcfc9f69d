"""Bytes of single values, in the forms that several row formats share.

| type | form |
|---|---|
| BOOLEAN, TINYINT 1 · SMALLINT 2 · INT, DATE, TIME, FLOAT 4 · BIGINT, DOUBLE 8 bytes | little-endian |
| DECIMAL up to 18 digits ("compact") | int64 of the unscaled value |
| TIMESTAMP, TIMESTAMP_LTZ up to 3 digits ("compact") | int64 of the milliseconds; finer digits are dropped |
| DECIMAL with more digits | unscaled value, **big-endian** two's complement, as short as the sign allows |
| CHAR, STRING | UTF-8 |

How other timestamps and nested values lie in the bytes is up to each format. A ``RowCursor`` reads one row front to
back.

The unscaled decimals of a whole column are two arrays: ``low``, the lower 64 bits (unsigned), and ``high``, the upper
64 bits (signed). In memory the low word comes first, so Arrow's buffer is n pairs of words. A row holds the same number
big-endian: 0 is ``00``, 128 is ``00 80``, -1 is ``ff``.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fluss.buffers import BytesLike, Int64Array, UInt8Array, byte_view
from fluss.errors import CorruptRecordError, FlussError
from fluss.row.values import NANOS_PER_MILLI, Timestamp
from fluss.row.varint import UInt64Array, count_groups, decode_varint32, decode_varint64, read_words
from fluss.schema.types import DataType, DecimalType, TimestampLtzType, TimestampType, TypeRoot

# 38 decimal digits need 127 bits.
UNSCALED_BYTES_MAX: Final = 16
_WORD_BITS: Final = 64

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


class RowCursor:
    """Reads a row front to back. A read that needs bytes behind the end is a CorruptRecordError."""

    __slots__ = ("_position", "data")

    def __init__(self, data: BytesLike) -> None:
        self.data = byte_view(data)
        self._position = 0

    def skip(self, size: int) -> int:
        """Move over ``size`` bytes; return the position at which they start."""
        start = self._position
        if not 0 <= size <= len(self.data) - start:
            raise CorruptRecordError(
                f"A field needs {size} bytes at byte {start}, but only {len(self.data) - start} are left of the row"
            )
        self._position = start + size
        return start

    def take(self, size: int) -> memoryview:
        """Move over ``size`` bytes and return them, without copying."""
        start = self.skip(size)
        return self.data[start : start + size]

    def varint32(self) -> int:
        value, self._position = decode_varint32(self.data, self._position)
        return value

    def varint64(self) -> int:
        value, self._position = decode_varint64(self.data, self._position)
        return value

    def finish(self) -> None:
        """Check that nothing is left: bytes behind the last field mean that the row has another schema."""
        if self._position != len(self.data):
            raise CorruptRecordError(
                f"The row has {len(self.data) - self._position} bytes behind its last field; "
                "it was written with another schema or is damaged"
            )


# Unscaled decimals of a column


def has_digits(low: UInt64Array, high: Int64Array, precision: int) -> npt.NDArray[np.bool_]:
    """Tell for each number whether ``precision`` decimal digits are enough for it."""
    limit_high, limit_low = divmod(10**precision, 1 << _WORD_BITS)
    floor_high, floor_low = divmod(-(10**precision), 1 << _WORD_BITS)
    below = (high < limit_high) | ((high == limit_high) & (low < limit_low))
    above = (high > floor_high) | ((high == floor_high) & (low > floor_low))
    enough: npt.NDArray[np.bool_] = below & above
    return enough


def unscaled_lengths(low: UInt64Array, high: Int64Array) -> UInt8Array:
    """Return how many bytes the big-endian form of each number takes, 1 to 16."""
    # Without its sign bits a negative number needs as many bits as its complement. One bit more holds the sign.
    sign = high >> (_WORD_BITS - 1)
    low_lengths = count_groups(low ^ sign.view(np.uint64), first_bits=7, group_bits=8)
    high_bits = (high ^ sign).view(np.uint64)
    if not high_bits.any():
        return low_lengths
    high_lengths = count_groups(high_bits, first_bits=7, group_bits=8) + np.uint8(8)
    return np.where(high_bits == 0, low_lengths, high_lengths)


def write_unscaled(out: UInt8Array, positions: Int64Array, little_endian: UInt8Array, lengths: UInt8Array) -> None:
    """Write each number big-endian at its position. ``little_endian`` holds 16 bytes per number.

    The lengths come from ``unscaled_lengths``; a length of 0 writes nothing.
    """
    # Byte ``index`` of the big-endian form is the one ``index`` before the last of the little-endian form.
    sources = np.arange(len(lengths)) * UNSCALED_BYTES_MAX + lengths - 1
    longest = int(lengths.max(initial=0))
    all_have = int(lengths.min(initial=longest))
    for index in range(longest):
        if index >= all_have:
            rows = np.flatnonzero(lengths > index)
            positions, sources, lengths = positions[rows], sources[rows], lengths[rows]
            all_have = int(lengths.min())
        out[positions + index] = little_endian[sources - index]


def read_unscaled(data: UInt8Array, positions: Int64Array, lengths: Int64Array) -> tuple[UInt64Array, Int64Array]:
    """Read the big-endian numbers of 1 to 16 bytes at each position; return ``low`` and ``high``.

    ``data`` has at least eight bytes, and the caller has checked that the numbers lie inside it.
    """
    first = read_words(data, positions).byteswap().view(np.int64)
    second = read_words(data, np.minimum(positions + 8, len(data))).byteswap()
    # The two words are the number with other bytes behind it: shift those out, and the sign in.
    excess_bits = _WORD_BITS * 2 - lengths * 8
    fits_word = lengths <= 8
    low = (second >> excess_bits.view(np.uint64)) | (
        first.view(np.uint64) << (_WORD_BITS - excess_bits).view(np.uint64)
    )
    low = np.where(fits_word, (first >> (excess_bits - _WORD_BITS)).view(np.uint64), low)
    high = first >> np.where(fits_word, _WORD_BITS - 1, excess_bits)
    return low, high
