"""What values take in memory as Arrow arrays, told before they are decoded.

A null in a row is a bit. In Arrow it takes as much room as any other value of a fixed width, and a null struct takes
that of all its fields. So a small batch of many nulls can become a thousand times its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.types as pat

from fluss.schema.arrow import arrow_type
from fluss.schema.schema import Schema
from fluss.schema.types import ArrayType, DataType, MapType, RowType, TypeRoot

_VALIDITY_BITS = 1
_OFFSET_BITS = 32
# What a value without a fixed size is taken for.
_TEXT_BYTES: Final = 20
_ELEMENTS: Final = 4
_VARIABLE_ROOTS: Final = frozenset({TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BINARY, TypeRoot.BYTES})


def slots_bytes(types: Sequence[DataType], row_count: int) -> int:
    """Return what columns of so many rows take whatever is in them; texts and lists add what they hold."""
    return row_count * _row_bits(tuple(types)) // 8


@lru_cache(maxsize=1024)
def _row_bits(types: tuple[DataType, ...]) -> int:
    return sum(map(slot_bits, types))


@lru_cache(maxsize=4096)
def slot_bits(data_type: DataType) -> int:
    """Return what a column of this type takes for each value, null or not."""
    return _arrow_slot_bits(arrow_type(data_type))


def _arrow_slot_bits(of_type: pa.DataType) -> int:
    if pat.is_struct(of_type):
        return _VALIDITY_BITS + sum(_arrow_slot_bits(field.type) for field in of_type)
    if pat.is_nested(of_type) or pat.is_string(of_type) or pat.is_binary(of_type):
        return _VALIDITY_BITS + _OFFSET_BITS
    return _VALIDITY_BITS + int(of_type.bit_width)


def guessed_row_bytes(schema: Schema, columns: Sequence[str]) -> float:
    """Return what a row with these columns may take, going by their types. It is never 0."""
    return max(1.0, sum(_value_bytes(schema.column(name).data_type) for name in columns))


def narrowest_column(schema: Schema) -> str:
    """Return the column to read when it does not matter which."""
    return min(schema.column_names, key=lambda name: guessed_row_bytes(schema, [name]))


def _value_bytes(data_type: DataType) -> float:
    fixed = slot_bits(data_type) / 8
    if data_type.root in _VARIABLE_ROOTS:
        return fixed + _TEXT_BYTES
    match data_type:
        case ArrayType():
            return fixed + _ELEMENTS * _value_bytes(data_type.element_type)
        case MapType():
            return fixed + _ELEMENTS * (_value_bytes(data_type.key_type) + _value_bytes(data_type.value_type))
        case RowType():
            return sum(_value_bytes(field.data_type) for field in data_type.fields)
    return fixed
