"""ARRAY and MAP values as bytes. Rows inside them are written by the row format they are part of.

Binary array of n elements; e is the size of a slot (1, 2 or 4 for narrow numbers, else 8):

| part | bytes | content |
|---|---|---|
| count | 4 | int32 n |
| null bits | 4 · ceil(n / 32) | element i is bit ``i & 7`` of byte ``4 + (i >> 3)``; 1 is null |
| slots | n · e | see ``fluss.row.slots`` |
| padding | to a multiple of 8 | zeros |
| variable part | any | regions padded to 8 |

The slot of a null may hold anything: some writers leave old bytes there. So nulls are never looked at, and two equal
arrays need not have equal bytes.

Binary map: int32 size of the key array, key array, value array. Both arrays have the same count; keys are not null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from fluss.buffers import BytesLike, byte_view
from fluss.errors import CorruptRecordError, FlussError, SizeLimitError
from fluss.row.arrow_sizes import slot_bits
from fluss.row.scalars import INT32, fixed_struct
from fluss.row.slots import SLOT_BYTES, SlotReader, SlotWriter, padded_to_word
from fluss.schema.types import ArrayType, DataType, MapType, RowType

_COUNT_BYTES: Final = INT32.size
# Nulls among the elements are small here and can be large in memory.
_ARRAY_BITS_MAX: Final = 8 * 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RowCodec:
    """How rows inside arrays and maps, and ROW values themselves, are written and read."""

    encode_row: Callable[[Sequence[DataType], Sequence[Any]], bytes]
    decode_row: Callable[[Sequence[DataType], BytesLike], tuple[Any, ...]]


def encode_nested(data_type: DataType, value: Any, rows: RowCodec) -> bytes:
    """Encode one ARRAY, MAP or ROW value."""
    match data_type:
        case ArrayType():
            return encode_array(data_type.element_type, value, rows)
        case MapType():
            return encode_map(data_type, value, rows)
        case RowType():
            return rows.encode_row(data_type.field_types, value)
    raise AssertionError(f"{data_type} is not a nested type")


def decode_nested(data_type: DataType, data: BytesLike, rows: RowCodec) -> Any:
    """Decode one ARRAY, MAP or ROW value."""
    match data_type:
        case ArrayType():
            return decode_array(data_type.element_type, data, rows)
        case MapType():
            return decode_map(data_type, data, rows)
        case RowType():
            return rows.decode_row(data_type.field_types, data)
    raise AssertionError(f"{data_type} is not a nested type")


def encode_array(element_type: DataType, values: Sequence[Any], rows: RowCodec) -> bytes:
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


def decode_array(element_type: DataType, data: BytesLike, rows: RowCodec) -> list[Any]:
    """Decode a binary array. Bytes behind its last region are ignored: they are padding."""
    view = byte_view(data)
    count = _int32_at_start(view, "an array")
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


def encode_map(data_type: MapType, entries: Sequence[tuple[Any, Any]], rows: RowCodec) -> bytes:
    """Encode a binary map."""
    keys = encode_array(data_type.key_type, [key for key, _ in entries], rows)
    values = encode_array(data_type.value_type, [value for _, value in entries], rows)
    return INT32.pack(len(keys)) + keys + values


def decode_map(data_type: MapType, data: BytesLike, rows: RowCodec) -> list[tuple[Any, Any]]:
    """Decode a binary map."""
    view = byte_view(data)
    keys_size = _int32_at_start(view, "a map")
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


def _int32_at_start(view: memoryview, what: str) -> int:
    if len(view) < _COUNT_BYTES:
        raise CorruptRecordError(f"The data of {what} has {len(view)} bytes; its first field alone has {_COUNT_BYTES}")
    number: int = INT32.unpack_from(view)[0]
    return number
