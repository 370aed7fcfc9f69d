"""Lists, maps and structs taken apart, and put together again around other children."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

# Offsets are int32, so no array may have more bytes of text, or more elements, than this.
_OFFSET_MAX: Final = 2**31 - 1
# Given a plain number instead, pyarrow would import pandas.
_ZERO: Final = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(bytes(4))])[0]


def list_parts(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the lists of a list or map array, and what is in them one after the other: elements, or entries.

    Only what belongs to a list is returned, nothing of what stands before and after a slice, or behind a null.
    """
    if pat.is_map(array.type):
        # Maps are lists of entries, but only lists can be flattened and measured.
        list_type = pa.list_(array.values.type)
        buffers = array.buffers()[:2]
        array = pa.Array.from_buffers(list_type, len(array), buffers, array.null_count, array.offset, [array.values])
    return array, array.flatten()


def list_array(target: pa.DataType, lists: pa.Array, children: pa.Array) -> pa.Array:
    """Build a list or map array of a type from lists and what is to be in them."""
    lengths = pc.coalesce(pc.list_value_length(lists), _ZERO)
    assert not lengths.offset, "it was made just now"
    offsets = np.zeros(len(lists) + 1, dtype=np.int64)
    # ``to_numpy`` would import pandas.
    dtype = np.int32 if lengths.type == pa.int32() else np.int64
    np.cumsum(np.frombuffer(lengths.buffers()[1], dtype, len(lists)), out=offsets[1:])
    if offsets[-1] > _OFFSET_MAX:
        raise pa.ArrowInvalid(f"{offsets[-1]} elements are more than one batch can hold; split the batch")
    buffers = [_validity(lists), pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(target, len(lists), buffers, lists.null_count, children=[children])


def struct_array(target: pa.DataType, array: pa.Array, children: list[pa.Array]) -> pa.Array:
    """Build a struct array of a type that is null where another one is."""
    return pa.Array.from_buffers(target, len(array), [_validity(array)], array.null_count, children=children)


def _validity(array: pa.Array) -> pa.Buffer | None:
    """Return the validity bits of an array, moved to the start of a buffer."""
    if not array.null_count:
        return None
    validity = array.buffers()[0]
    if not array.offset:
        return validity
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), count=array.offset + len(array), bitorder="little")
    return pa.py_buffer(np.packbits(bits[array.offset :], bitorder="little"))
