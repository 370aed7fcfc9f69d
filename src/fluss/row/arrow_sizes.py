"""What values take in memory as Arrow arrays, told before they are decoded.

A null in a row is a bit. In Arrow it takes as much room as any other value of a fixed width, and a null struct takes
that of all its fields. So a small batch of many nulls can become a thousand times its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.types as pat

from fluss.schema.arrow import arrow_type
from fluss.schema.types import DataType

_VALIDITY_BITS = 1
_OFFSET_BITS = 32


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
