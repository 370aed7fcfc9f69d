"""Bytes without copies: the few views of memory that all layers share."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# What a decoder accepts. Slicing a memoryview costs no copy; slicing bytes does.
BytesLike: TypeAlias = bytes | bytearray | memoryview
UInt8Array: TypeAlias = npt.NDArray[np.uint8]
Int64Array: TypeAlias = npt.NDArray[np.int64]


def byte_view(data: BytesLike | UInt8Array | pa.Buffer) -> memoryview:
    """Return a flat view of single bytes over anything contiguous, without copying."""
    view = memoryview(cast("bytes", data))  # Before Python 3.12 there is no type for objects that export memory.
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def byte_array(data: BytesLike | UInt8Array | pa.Buffer) -> UInt8Array:
    """Return a numpy view of the bytes, without copying. It is read-only if the memory is."""
    array: npt.NDArray[Any] = np.frombuffer(data, dtype=np.uint8)
    return array


def new_memory(byte_count: int) -> pa.Buffer:
    """Return writable memory from Arrow's pool: aligned to 64 bytes, not cleared, and given back to the pool.

    For megabytes that come and go: the system would clear every page of fresh memory, which takes as long as filling
    it, while the pool hands out again what was used a moment ago.
    """
    return pa.allocate_buffer(byte_count)


def copied(data: BytesLike) -> pa.Buffer:
    """Return a copy in new memory. Other threads run while it is made."""
    memory = new_memory(len(data))
    np.copyto(byte_array(memory), byte_array(data))
    return memory
