"""numpy arrays, lists of texts and nothing at all as Arrow data.

``pyarrow.array`` would do the same, but imports pandas first if that is installed, to see whether it was given one of
its objects: a quarter of a second in the middle of somebody's first write. Only its way from buffers does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_TYPES = {
    np.dtype(np.uint8): pa.uint8(),
    np.dtype(np.int32): pa.int32(),
    np.dtype(np.int64): pa.int64(),
}


def number_array(numbers: npt.NDArray[Any], is_null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """View 8-bit unsigned, 32-bit or 64-bit numbers as an Arrow array; where ``is_null`` is set they do not count."""
    validity = None if is_null is None else _bits(~is_null)
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(numbers))]
    return pa.Array.from_buffers(_TYPES[numbers.dtype], len(numbers), buffers)


def buffer_numbers(array: pa.Array, dtype: npt.DTypeLike, *, extra: int = 0) -> npt.NDArray[Any]:
    """View the numbers of an array, or its offsets, which are one ``extra``, without copying; nulls read as anything.

    ``to_numpy`` does nearly the same, and imports pandas, too.
    """
    count = len(array) + extra
    if not count:
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, array.offset + count)[array.offset :]


def bool_array(values: npt.NDArray[np.bool_]) -> pa.Array:
    """Copy booleans into an Arrow array, which has eight of them in a byte."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def text_array(texts: Sequence[str]) -> pa.Array:
    """Copy a few texts into an Arrow array."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))


def take_rows(rows: pa.RecordBatch, numbers: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return rows by their numbers; rows that follow each other are a slice, without a copy."""
    count = len(numbers)
    if count and int(numbers[-1]) - int(numbers[0]) == count - 1 and bool((np.diff(numbers) == 1).all()):
        return rows if count == rows.num_rows else rows.slice(int(numbers[0]), count)
    return rows.take(number_array(numbers))


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch that has a schema and nothing else."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _bits(values: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
