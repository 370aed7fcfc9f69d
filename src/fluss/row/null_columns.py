"""Which rows of a column have a value: a boolean per row in numpy, a bit per row in Arrow, a bit per column in rows.

Arrow sets a bit for a value, rows set a bit for a null. Column ``i`` is bit ``i & 7`` of byte ``i >> 3`` in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.buffers import UInt8Array
from fluss.row.scalars import null_byte_count

BoolArray: TypeAlias = npt.NDArray[np.bool_]
# True where a row has a value; None when all rows have one, which most columns are and which is much less work.
ValidMask: TypeAlias = BoolArray | None


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
