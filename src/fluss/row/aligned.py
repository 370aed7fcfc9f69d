"""Aligned rows: minimum and maximum values in batch statistics, and keys in the layout of Paimon.

| part | bytes | content |
|---|---|---|
| null bits | 8 · floor((n + 71) / 64) | the first byte is a header, always 0; field i is bit i + 8; 1 is null |
| slots | 8 per field | see ``fluss.row.slots``; narrow numbers come first in their slot; the slot of a null is zero |
| variable part | any | regions padded to 8 |

    (7, "hi") of (INT, STRING):  00 00 00 00 00 00 00 00 | 07 00 00 00 00 00 00 00 | 68 69 00 00 00 00 00 82

Nested types do not occur in aligned rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn

from fluss.buffers import BytesLike, byte_view
from fluss.errors import CorruptRecordError, FlussError
from fluss.row.slots import SLOT_BYTES, SlotReader, SlotWriter
from fluss.schema.types import DataType

_HEADER_BITS: Final = 8


def encode_aligned_row(types: Sequence[DataType], values: Sequence[Any]) -> bytes:
    """Encode one row of internal values. Every field may be null, whatever its type says."""
    slots_start = _null_bytes(len(types))
    writer = SlotWriter(slots_start + SLOT_BYTES * len(types), _refuse_nested)
    for index, (data_type, value) in enumerate(zip(types, values, strict=True)):
        if value is None:
            bit = index + _HEADER_BITS
            writer.data[bit >> 3] |= 1 << (bit & 7)
        else:
            writer.put(slots_start + SLOT_BYTES * index, data_type, value)
    return bytes(writer.data)


def decode_aligned_row(types: Sequence[DataType], data: BytesLike) -> tuple[Any, ...]:
    """Decode one row. Bytes behind the last region are ignored: they are padding."""
    view = byte_view(data)
    slots_start = _null_bytes(len(types))
    slots_end = slots_start + SLOT_BYTES * len(types)
    if slots_end > len(view):
        raise CorruptRecordError(
            f"An aligned row of {len(types)} fields has at least {slots_end} bytes; this one has {len(view)}"
        )
    reader = SlotReader(view, slots_end, _refuse_nested)
    values: list[Any] = []
    for index, data_type in enumerate(types):
        bit = index + _HEADER_BITS
        is_null = view[bit >> 3] & 1 << (bit & 7)
        values.append(None if is_null else reader.get(slots_start + SLOT_BYTES * index, data_type))
    return tuple(values)


def _null_bytes(field_count: int) -> int:
    return 8 * ((field_count + 63 + _HEADER_BITS) // 64)


def _refuse_nested(data_type: DataType, value: Any) -> NoReturn:
    raise FlussError(f"An aligned row has no fields of type {data_type}; take a column that is not nested")
