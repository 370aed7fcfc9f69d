"""Values in slots, with a variable part behind them: the common ground of binary arrays and aligned rows.

A slot holds one value, starting at its first byte:

| type | slot |
|---|---|
| BOOLEAN to DOUBLE, DATE, TIME, compact DECIMAL and timestamps | the number, little-endian |
| CHAR, STRING, BINARY, BYTES up to 7 bytes | the bytes, zeros, and ``0x80 + length`` as the eighth byte |
| the same, longer | int32 length, int32 offset |
| other DECIMAL | int32 length, int32 offset of a region of 16 bytes that starts with the unscaled bytes |
| other TIMESTAMP, TIMESTAMP_LTZ | int32 nanoseconds, int32 offset of the int64 milliseconds |
| ARRAY, MAP, ROW | int32 length, int32 offset |

Offsets count from the start of the array or row. Regions of the variable part are padded with zeros to 8 bytes.

A reader trusts offsets and lengths only as far as it can check them. Regions must lie in the variable part, and all
lengths together must not exceed it. The second rule holds for everything a writer produces, because its regions do
not overlap; without it, many slots could point at one large nested value, and a few kilobytes could decode to
gigabytes. With it, each level of nesting reads at most the bytes of the level around it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from fluss.errors import CorruptRecordError, FlussError
from fluss.integers import INT32_MAX
from fluss.row.scalars import (
    INT64,
    UNSCALED_BYTES_MAX,
    check_nanos,
    decode_fixed,
    decode_text,
    decode_unscaled,
    encode_fixed,
    encode_text,
    encode_unscaled,
    fixed_struct,
)
from fluss.row.values import NANOS_PER_MILLI, Timestamp
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

SLOT_BYTES: Final = 8
INLINE_BYTES_MAX: Final = 7
_INLINE_FLAG: Final = 0x80
_LOCATION: Final = struct.Struct(
    "<i"  # length in bytes, or nanoseconds of a timestamp
    "i"  # offset
)

EncodeNested = Callable[[DataType, Any], bytes]
DecodeNested = Callable[[DataType, memoryview], Any]


def padded_to_word(size: int) -> int:
    """Round up to a multiple of 8."""
    return (size + 7) & ~7


class SlotWriter:
    """Fills the slots of one array or row whose first ``fixed_bytes`` are null bits and slots."""

    def __init__(self, fixed_bytes: int, encode_nested: EncodeNested) -> None:
        self.data = bytearray(padded_to_word(fixed_bytes))
        self._encode_nested = encode_nested

    def put(self, position: int, data_type: DataType, value: Any) -> None:
        """Store a value that is not null in the slot at ``position``."""
        layout = fixed_struct(data_type)
        if layout is not None:
            self.data[position : position + layout.size] = encode_fixed(layout, value, data_type)
            return
        match data_type:
            case CharType() | StringType():
                self._put_bytes(position, encode_text(value))
            case BinaryType() | BytesType():
                self._put_bytes(position, value)
            case DecimalType():
                unscaled = encode_unscaled(value, data_type)
                self._put_location(position, len(unscaled), unscaled.ljust(UNSCALED_BYTES_MAX, b"\0"))
            case TimestampType() | TimestampLtzType():
                assert 0 <= value.nanos < NANOS_PER_MILLI, value
                self._put_location(position, value.nanos, encode_fixed(INT64, value, data_type))
            case _:
                nested = self._encode_nested(data_type, value)
                self._put_location(position, len(nested), nested)

    def _put_bytes(self, position: int, value: bytes) -> None:
        if len(value) > INLINE_BYTES_MAX:
            self._put_location(position, len(value), value)
            return
        self.data[position : position + len(value)] = value
        self.data[position + INLINE_BYTES_MAX] = _INLINE_FLAG | len(value)

    def _put_location(self, position: int, length_or_nanos: int, region: bytes) -> None:
        offset = len(self.data)
        if offset + len(region) > INT32_MAX - SLOT_BYTES:
            raise FlussError(f"A row or array of {offset + len(region)} bytes is too large; the limit is two gigabytes")
        _LOCATION.pack_into(self.data, position, length_or_nanos, offset)
        self.data += region
        self.data += bytes(padded_to_word(len(region)) - len(region))


class SlotReader:
    """Reads the slots of one array or row whose first ``fixed_bytes`` are null bits and slots.

    The caller has checked that ``data`` is at least that long. Each slot may be read once.
    """

    def __init__(self, data: memoryview, fixed_bytes: int, decode_nested: DecodeNested) -> None:
        self._data = data
        self._variable_start = fixed_bytes
        self._variable_bytes_left = len(data) - fixed_bytes
        self._decode_nested = decode_nested

    def get(self, position: int, data_type: DataType) -> Any:
        """Return the value in the slot at ``position``, which must not be the slot of a null."""
        layout = fixed_struct(data_type)
        if layout is not None:
            return decode_fixed(layout, self._data, position, data_type)
        match data_type:
            case CharType() | StringType():
                return decode_text(self._bytes(position))
            case BinaryType() | BytesType():
                return bytes(self._bytes(position))
            case DecimalType():
                return decode_unscaled(self._located(position), data_type)
            case TimestampType() | TimestampLtzType():
                nanos, offset = _LOCATION.unpack_from(self._data, position)
                (millis,) = INT64.unpack(self._region(offset, INT64.size))
                return Timestamp(millis, check_nanos(nanos, data_type))
        return self._decode_nested(data_type, self._located(position))

    def _bytes(self, position: int) -> memoryview:
        mark = self._data[position + INLINE_BYTES_MAX]
        if not mark & _INLINE_FLAG:
            return self._located(position)
        length = mark ^ _INLINE_FLAG
        if length > INLINE_BYTES_MAX:
            raise CorruptRecordError(f"The slot at byte {position} claims to hold {length} bytes; 7 fit")
        return self._data[position : position + length]

    def _located(self, position: int) -> memoryview:
        length, offset = _LOCATION.unpack_from(self._data, position)
        return self._region(offset, length)

    def _region(self, offset: int, length: int) -> memoryview:
        if length < 0 or offset < self._variable_start or offset + length > len(self._data):
            raise CorruptRecordError(
                f"A slot points to {length} bytes at byte {offset}, outside the variable part, "
                f"which is bytes {self._variable_start} to {len(self._data)}"
            )
        self._variable_bytes_left -= length
        if self._variable_bytes_left < 0:
            raise CorruptRecordError(
                f"The slots point to more bytes than the {len(self._data) - self._variable_start} "
                "of the variable part: some regions overlap"
            )
        return self._data[offset : offset + length]
