"""Arrow arrays made of buffers: from numpy and back, which values are null, and what they take in memory.

``pyarrow.array`` and ``to_numpy`` would do much of this, but import pandas first if that is installed, to see whether
they were given one of its objects: a quarter of a second in the middle of a program's first write. Only the way over
buffers does not.

Nulls: Arrow sets a bit for a value, rows set a bit for a null. In a row, column ``i`` is bit ``i & 7`` of byte
``i >> 3``.

Sizes: a null in a row is a bit. In Arrow it takes as much room as any other value of a fixed width, and a null struct
takes that of all its fields. So a small batch of many nulls can become a thousand times its size, which is why the
size is known before anything is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from fluss.buffers import UInt8Array
from fluss.schema.arrow import arrow_type
from fluss.schema.schema import Schema
from fluss.schema.types import ArrayType, DataType, MapType, RowType, TypeRoot

BoolArray: TypeAlias = npt.NDArray[np.bool_]
# True where a row has a value; None when all rows have one, which is the common case and much less work.
ValidMask: TypeAlias = BoolArray | None

_TYPES: Final = {
    np.dtype(np.uint8): pa.uint8(),
    np.dtype(np.int32): pa.int32(),
    np.dtype(np.int64): pa.int64(),
}
_VALIDITY_BITS: Final = 1
_OFFSET_BITS: Final = 32
# What a value without a fixed size is estimated at.
_STRING_BYTES: Final = 20
_ELEMENT_COUNT: Final = 4
_VARIABLE_ROOTS: Final = frozenset({TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BINARY, TypeRoot.BYTES})


# Values


def number_array(numbers: npt.NDArray[Any], is_null: BoolArray | None = None) -> pa.Array:
    """View 8-bit unsigned, 32-bit or 64-bit numbers as an Arrow array; where ``is_null`` is set they do not count."""
    validity = None if is_null is None else mask_to_arrow(~is_null)
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(numbers))]
    return pa.Array.from_buffers(_TYPES[numbers.dtype], len(numbers), buffers)


def buffer_numbers(array: pa.Array, dtype: npt.DTypeLike, *, extra: int = 0) -> npt.NDArray[Any]:
    """View the numbers of an array without copying; what stands in the place of a null means nothing.

    The offsets of a string or list array are viewed with one ``extra``.
    """
    count = len(array) + extra
    if not count:
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, array.offset + count)[array.offset :]


def bool_array(values: BoolArray) -> pa.Array:
    """Copy booleans into an Arrow array, which has eight of them in a byte."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, mask_to_arrow(values)])


def true_indexes(booleans: pa.Array) -> npt.NDArray[np.int64]:
    """Return the indexes of the values that are true, which those that are null are not."""
    count = len(booleans)
    if not count:
        return np.empty(0, np.int64)
    validity, bitmap = booleans.buffers()
    is_true = unpacked_bits(bitmap, booleans.offset, count)
    if validity is not None:
        is_true = is_true & unpacked_bits(validity, booleans.offset, count)
    return np.flatnonzero(is_true)


def string_array(strings: Sequence[str]) -> pa.Array:
    """Copy a few strings into an Arrow array."""
    encoded = [string.encode() for string in strings]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def take_rows(rows: pa.RecordBatch, indexes: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return rows by their indexes; rows that follow each other are a slice, without a copy."""
    count = len(indexes)
    if count and int(indexes[-1]) - int(indexes[0]) == count - 1 and bool((np.diff(indexes) == 1).all()):
        return rows if count == rows.num_rows else rows.slice(int(indexes[0]), count)
    return rows.take(number_array(indexes))


def without_rows(rows: pa.RecordBatch, gone: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return rows without those at some positions; without a copy if these are none."""
    if not len(gone):
        return rows
    kept = np.ones(rows.num_rows, bool)
    kept[gone] = False
    mask = bool_array(kept)
    # Column by column, rows that follow each other are copied together. Of a batch all rows are taken one by one.
    return pa.RecordBatch.from_arrays([column.filter(mask) for column in rows.columns], schema=rows.schema)


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch that has a schema and nothing else."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


# Nulls


def mask_from_arrow(column: pa.Array) -> ValidMask:
    """Return the mask of an array, which may be a slice."""
    if column.null_count == 0:
        return None
    return unpacked_bits(column.buffers()[0], column.offset, len(column))


def mask_to_arrow(valid: ValidMask) -> pa.Buffer | None:
    """Return the validity buffer for a new array."""
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def unpacked_bits(bitmap: pa.Buffer, bit_offset: int, count: int) -> BoolArray:
    """Return ``count`` bits of an Arrow bitmap as booleans."""
    packed = np.frombuffer(bitmap, dtype=np.uint8)[bit_offset >> 3 : (bit_offset + count + 7) >> 3]
    bits = np.unpackbits(packed, bitorder="little")[bit_offset & 7 :]
    return bits[:count].view(np.bool_)


def null_byte_count(column_count: int) -> int:
    """Return how many bytes of null bits a compacted or indexed row of so many columns starts with."""
    return (column_count + 7) // 8


def masks_to_null_planes(masks: Sequence[ValidMask], row_count: int) -> list[UInt8Array]:
    """Return each byte of the null bits, for all rows."""
    planes = [np.zeros(row_count, dtype=np.uint8) for _ in range(null_byte_count(len(masks)))]
    for index, valid in enumerate(masks):
        if valid is not None:
            planes[index >> 3] |= (~valid).view(np.uint8) << (index & 7)
    return planes


def masks_from_null_planes(planes: Sequence[UInt8Array], column_count: int) -> list[ValidMask]:
    """Return the masks of all columns. Bits behind those of the last column mean nothing."""
    masks: list[ValidMask] = []
    for plane in planes:
        used = int(np.bitwise_or.reduce(plane))
        masks.extend(plane & bit == 0 if used & bit else None for bit in (1 << shift for shift in range(8)))
    return masks[:column_count]


# Sizes


def slots_bytes(types: Sequence[DataType], row_count: int) -> int:
    """Return what columns of so many rows take at least; strings and lists add what they hold."""
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


def estimated_row_bytes(schema: Schema, columns: Sequence[str]) -> float:
    """Estimate from their types what a row with these columns takes. It is never 0."""
    return max(1.0, sum(_value_bytes(schema.column(name).data_type) for name in columns))


def narrowest_column(schema: Schema) -> str:
    """Return the column to read when it does not matter which."""
    return min(schema.column_names, key=lambda name: estimated_row_bytes(schema, [name]))


def _value_bytes(data_type: DataType) -> float:
    fixed = slot_bits(data_type) / 8
    if data_type.root in _VARIABLE_ROOTS:
        return fixed + _STRING_BYTES
    match data_type:
        case ArrayType():
            return fixed + _ELEMENT_COUNT * _value_bytes(data_type.element_type)
        case MapType():
            return fixed + _ELEMENT_COUNT * (_value_bytes(data_type.key_type) + _value_bytes(data_type.value_type))
        case RowType():
            return sum(_value_bytes(field.data_type) for field in data_type.fields)
    return fixed


def joined_batches(batches: Iterable[pa.RecordBatch], rows_min: int) -> Iterator[pa.RecordBatch]:
    """Put batches together until they have so many rows."""
    pending: list[pa.RecordBatch] = []
    row_count = 0
    for batch in batches:
        pending.append(batch)
        row_count += batch.num_rows
        if row_count >= rows_min:
            yield pending[0] if len(pending) == 1 else pa.concat_batches(pending)
            pending, row_count = [], 0
    if pending:
        yield pa.concat_batches(pending)
