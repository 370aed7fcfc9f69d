"""Values in slots, with a variable part behind them: ARRAY and MAP values, and aligned rows.

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

A binary array, which is the form of ARRAY values, of n elements; e is the size of a slot (1, 2 or 4 for narrow
numbers, else 8):

| part | bytes | content |
|---|---|---|
| count | 4 | int32 n |
| null bits | 4 · ceil(n / 32) | element i is bit ``i & 7`` of byte ``4 + (i >> 3)``; 1 is null |
| slots | n · e | |
| padding | to a multiple of 8 | zeros |
| variable part | any | |

The slot of a null may hold anything: some writers leave old bytes there. So nulls are never looked at, and two equal
arrays need not have equal bytes.

A binary map, which is the form of MAP values: int32 size of the key array, key array, value array. Both arrays have the
same count; keys are not null. ROW values, and rows inside arrays and maps, are written by the row format around them.

An aligned row of n fields, which holds the bounds in batch statistics, and keys in the layout of Paimon:

| part | bytes | content |
|---|---|---|
| null bits | 8 · floor((n + 71) / 64) | the first byte is a header, always 0; field i is bit i + 8; 1 is null |
| slots | 8 per field | narrow numbers come first in their slot; the slot of a null is zero |
| variable part | any | |

    (7, "hi") of (INT, STRING):  00 00 00 00 00 00 00 00 | 07 00 00 00 00 00 00 00 | 68 69 00 00 00 00 00 82

Nested types do not occur in aligned rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

from fluss.buffers import BytesLike, byte_view
from fluss.errors import CorruptRecordError, FlussError, SizeLimitError
from fluss.integers import INT32_MAX
from fluss.row.arrow_arrays import slot_bits
from fluss.row.scalars import (
    INT32,
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
    ArrayType,
    BinaryType,
    BytesType,
    CharType,
    DataType,
    DecimalType,
    MapType,
    RowType,
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
_COUNT_BYTES: Final = INT32.size
# What an array may take in memory, in bits. A null element is one bit here and can be many bytes there.
_ARRAY_BITS_MAX: Final = 8 * 256 * 1024 * 1024
_HEADER_BITS: Final = 8

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


# Arrays and maps


@dataclass(frozen=True, slots=True)
class NestedRowCodec:
    """How rows inside arrays and maps, and ROW values themselves, are written and read."""

    encode_row: Callable[[Sequence[DataType], Sequence[Any]], bytes]
    decode_row: Callable[[Sequence[DataType], BytesLike], tuple[Any, ...]]


def encode_nested(data_type: DataType, value: Any, rows: NestedRowCodec) -> bytes:
    """Encode one ARRAY, MAP or ROW value."""
    match data_type:
        case ArrayType():
            return encode_array(data_type.element_type, value, rows)
        case MapType():
            return encode_map(data_type, value, rows)
        case RowType():
            return rows.encode_row(data_type.field_types, value)
    raise AssertionError(f"{data_type} is not a nested type")


def decode_nested(data_type: DataType, data: BytesLike, rows: NestedRowCodec) -> Any:
    """Decode one ARRAY, MAP or ROW value."""
    match data_type:
        case ArrayType():
            return decode_array(data_type.element_type, data, rows)
        case MapType():
            return decode_map(data_type, data, rows)
        case RowType():
            return rows.decode_row(data_type.field_types, data)
    raise AssertionError(f"{data_type} is not a nested type")


def encode_array(element_type: DataType, values: Sequence[Any], rows: NestedRowCodec) -> bytes:
    """Encode a binary array."""
    slots_start, slot_size = _slots_start(len(values)), _slot_size(element_type)
    writer = SlotWriter(slots_start + len(values) * slot_size, partial(encode_nested, rows=rows))
    INT32.pack_into(writer.data, 0, len(values))
    for index, value in enumerate(values):
        if value is not None:
            writer.put(slots_start + index * slot_size, element_type, value)
        elif element_type.nullable:
            writer.data[_COUNT_BYTES + (index >> 3)] |= 1 << (index & 7)
        else:
            raise FlussError(f"Element {index} of an array is null, but its type is {element_type}")
    return bytes(writer.data)


def decode_array(element_type: DataType, data: BytesLike, rows: NestedRowCodec) -> list[Any]:
    """Decode a binary array. Bytes behind its last region are ignored: they are padding."""
    view = byte_view(data)
    count = _leading_int32(view, "an array")
    slots_start, slot_size = _slots_start(count), _slot_size(element_type)
    slots_end = slots_start + count * slot_size
    if count < 0 or slots_end > len(view):
        raise CorruptRecordError(
            f"An array of {len(view)} bytes claims {count} elements of type {element_type}, {slot_size} bytes each"
        )
    if count * slot_bits(element_type) > _ARRAY_BITS_MAX:
        raise SizeLimitError(
            f"An array of {count} elements of type {element_type} takes more than {_ARRAY_BITS_MAX // 8} bytes of "
            "memory, which is more than a batch of rows may take"
        )
    # The padding in front of the variable part may be cut off when there is no variable part.
    reader = SlotReader(view, min(padded_to_word(slots_end), len(view)), partial(decode_nested, rows=rows))
    values: list[Any] = []
    for index in range(count):
        if not view[_COUNT_BYTES + (index >> 3)] & 1 << (index & 7):
            values.append(reader.get(slots_start + index * slot_size, element_type))
        elif element_type.nullable:
            values.append(None)
        else:
            raise CorruptRecordError(f"Element {index} of an array is null, but its type is {element_type}")
    return values


def encode_map(data_type: MapType, entries: Sequence[tuple[Any, Any]], rows: NestedRowCodec) -> bytes:
    """Encode a binary map."""
    keys = encode_array(data_type.key_type, [key for key, _ in entries], rows)
    values = encode_array(data_type.value_type, [value for _, value in entries], rows)
    return INT32.pack(len(keys)) + keys + values


def decode_map(data_type: MapType, data: BytesLike, rows: NestedRowCodec) -> list[tuple[Any, Any]]:
    """Decode a binary map."""
    view = byte_view(data)
    keys_size = _leading_int32(view, "a map")
    keys_end = _COUNT_BYTES + keys_size
    if keys_size < 0 or keys_end > len(view):
        raise CorruptRecordError(f"A map of {len(view)} bytes claims a key array of {keys_size} bytes")
    keys = decode_array(data_type.key_type, view[_COUNT_BYTES:keys_end], rows)
    values = decode_array(data_type.value_type, view[keys_end:], rows)
    if len(keys) != len(values):
        raise CorruptRecordError(f"A map has {len(keys)} keys and {len(values)} values")
    return list(zip(keys, values, strict=True))


def _slots_start(count: int) -> int:
    return _COUNT_BYTES + 4 * ((count + 31) // 32)


def _slot_size(element_type: DataType) -> int:
    layout = fixed_struct(element_type)
    return SLOT_BYTES if layout is None else layout.size


def _leading_int32(view: memoryview, what: str) -> int:
    if len(view) < _COUNT_BYTES:
        raise CorruptRecordError(f"The data of {what} has {len(view)} bytes; its first field alone has {_COUNT_BYTES}")
    number: int = INT32.unpack_from(view)[0]
    return number


# Aligned rows


class AlignedRowLayout:
    """Where the parts of an aligned row of so many fields lie."""

    __slots__ = ("field_count", "slots_end", "slots_start")

    def __init__(self, field_count: int) -> None:
        self.field_count = field_count
        self.slots_start = 8 * ((field_count + 63 + _HEADER_BITS) // 64)
        self.slots_end = self.slots_start + SLOT_BYTES * field_count

    def null_bit(self, index: int) -> tuple[int, int]:
        """Return the byte that says whether a field is null, and the bit in it."""
        bit = index + _HEADER_BITS
        return bit >> 3, 1 << (bit & 7)

    def slot(self, index: int) -> int:
        """Return where the slot of a field starts."""
        return self.slots_start + SLOT_BYTES * index

    def read_field(self, row: memoryview, index: int, data_type: DataType) -> Any:
        """Decode one field, which must not be null, of a row that is at least as long as its slots."""
        return SlotReader(row, self.slots_end, _refuse_nested).get(self.slot(index), data_type)


def encode_aligned_row(types: Sequence[DataType], values: Sequence[Any]) -> bytes:
    """Encode one row of internal values. Every field may be null, whatever its type says."""
    layout = AlignedRowLayout(len(types))
    writer = SlotWriter(layout.slots_end, _refuse_nested)
    for index, (data_type, value) in enumerate(zip(types, values, strict=True)):
        if value is None:
            position, mask = layout.null_bit(index)
            writer.data[position] |= mask
        else:
            writer.put(layout.slot(index), data_type, value)
    return bytes(writer.data)


def decode_aligned_row(types: Sequence[DataType], data: BytesLike) -> tuple[Any, ...]:
    """Decode one row. Bytes behind the last region are ignored: they are padding."""
    view = byte_view(data)
    layout = AlignedRowLayout(len(types))
    if layout.slots_end > len(view):
        raise CorruptRecordError(
            f"An aligned row of {len(types)} fields has at least {layout.slots_end} bytes; this one has {len(view)}"
        )
    reader = SlotReader(view, layout.slots_end, _refuse_nested)
    values: list[Any] = []
    for index, data_type in enumerate(types):
        position, mask = layout.null_bit(index)
        values.append(None if view[position] & mask else reader.get(layout.slot(index), data_type))
    return tuple(values)


def _refuse_nested(data_type: DataType, value: Any) -> NoReturn:
    raise FlussError(f"An aligned row has no fields of type {data_type}; take a column that is not nested")
