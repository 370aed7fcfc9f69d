"""Many encoded rows (or keys) as one buffer and their boundaries: what the columnar codecs take and return.

Below it, what works on many small pieces of one buffer at once: read numbers at any byte, gather ranges, join rows,
without a loop. Pieces that are copied go through Arrow arrays of type large_binary: Arrow moves them with plain memory
copies, several times faster than numpy does with an index per byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import fluss.arrow_compute as pc
from fluss.buffers import BytesLike, Int64Array, UInt8Array, byte_array, byte_view

# What ends the joined parts of a row. Made of buffers: see ``fluss.row.arrow_arrays``.
_NOTHING: Final = pa.Array.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")])[0]
# Ranges that overlap are gathered with one index per byte. Blocks keep those indexes in the processor's cache.
_BLOCK_BYTES: Final = 1 << 18
# Up to so many ranges, copying one by one is faster than setting up one operation for all.
_FEW_RANGES_MAX: Final = 64
# Up to so many, the smallest of some numbers is found faster in a list than in an array.
_FEW_ROWS_MAX: Final = 64
# Copying so many times the bytes of some rows in one piece takes less time than picking the rows.
_JOINED_BYTES_PER_BYTE: Final = 8


@dataclass(slots=True, eq=False)
class EncodedRows:
    """Row ``i`` is ``data[starts[i]:ends[i]]``.

    Rows may lie anywhere in ``data``, with other bytes between them: the rows of a KV batch are described in place,
    without copying them out. All three arrays are views that must not be changed.
    """

    data: UInt8Array
    starts: Int64Array
    ends: Int64Array

    @classmethod
    def from_offsets(cls, data: UInt8Array, offsets: Int64Array) -> EncodedRows:
        """Describe rows that follow each other: row ``i`` ends where row ``i + 1`` starts."""
        return cls(data, offsets[:-1], offsets[1:])

    @classmethod
    def from_list(cls, rows: Sequence[BytesLike]) -> EncodedRows:
        """Join separate rows. This copies them: it is for rows that a library hands over one by one."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        return cls.from_offsets(np.frombuffer(b"".join(rows), dtype=np.uint8), offsets_of(lengths))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Int64Array:
        return self.ends - self.starts

    def some(self, indexes: Int64Array | slice) -> EncodedRows:
        """Describe the rows at some indexes, in their order, where they are."""
        return EncodedRows(self.data, self.starts[indexes], self.ends[indexes])

    def row(self, index: int) -> bytes:
        """Copy out one row."""
        return self.data[self.starts[index] : self.ends[index]].tobytes()

    def to_list(self) -> list[bytes]:
        """Copy out every row, for libraries that take nothing but single objects."""
        if not len(self):
            return []
        # Slices of bytes are made several times faster than slices of an array or of a view.
        if len(self) <= _FEW_ROWS_MAX:
            starts, ends = self.starts.tolist(), self.ends.tolist()
            first = min(starts)
            data = self.data[first : max(ends)].tobytes()
            return [data[start - first : end - first] for start, end in zip(starts, ends, strict=True)]
        first = int(self.starts.min())
        data = self.data[first : int(self.ends.max())].tobytes()
        bounds = zip((self.starts - first).tolist(), (self.ends - first).tolist(), strict=True)
        return [data[start:end] for start, end in bounds]


def unaligned(data: UInt8Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """View the value that starts at every single byte: element ``i`` covers ``data[i : i + itemsize]``.

    Elements overlap. Indexing the view with an array of positions reads, or writes, one value at each position.
    """
    itemsize = np.dtype(dtype).itemsize
    return np.ndarray((max(len(data) - itemsize + 1, 0),), dtype, buffer=data, strides=(1,))


def offsets_of(lengths: npt.NDArray[Any]) -> Int64Array:
    """Return the n + 1 boundaries of pieces that follow each other, from zero on."""
    offsets = np.empty(len(lengths) + 1, dtype=np.int64)
    offsets[0] = 0
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def large_binary_array(data: bytes | UInt8Array, offsets: Int64Array) -> pa.Array:
    """Describe byte strings that follow each other as an Arrow array, without copying."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def rows_of(column: pa.Array) -> EncodedRows:
    """View the values of a large_binary array, which is no slice and starts at the first byte of its data, as rows."""
    _, offset_buffer, data = column.buffers()
    offsets: Int64Array = np.frombuffer(offset_buffer, dtype=np.int64)[: len(column) + 1]
    return EncodedRows.from_offsets(byte_array(data)[: offsets[-1]] if data else np.empty(0, np.uint8), offsets)


def join_rows(columns: Sequence[pa.Array]) -> EncodedRows:
    """Row ``i`` of the result is value ``i`` of every large_binary array, one after the other; a null adds nothing."""
    return rows_of(pc.binary_join_element_wise(*columns, _NOTHING, null_handling="replace", null_replacement=""))


def gather_ranges(
    data: UInt8Array,
    starts: Int64Array,
    lengths: npt.NDArray[Any],
    *,
    few_ranges_max: int = _FEW_RANGES_MAX,
    block_bytes: int = _BLOCK_BYTES,
) -> UInt8Array:
    """Copy the ranges ``data[starts[i] : starts[i] + lengths[i]]`` one after the other into a new array.

    The caller has checked that every range lies inside ``data``.
    """
    ends = starts + lengths
    if len(starts) <= few_ranges_max:
        view = byte_view(data)
        pieces = [view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return np.frombuffer(bytearray().join(pieces), np.uint8)
    if (starts[1:] >= ends[:-1]).all():
        return _gather_apart(data, starts, ends, None)
    order = np.argsort(starts, kind="stable")
    starts_in_order, ends_in_order = starts[order], ends[order]
    if (starts_in_order[1:] >= ends_in_order[:-1]).all():
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        return _gather_apart(data, starts_in_order, ends_in_order, ranks)
    return _gather_overlapping(data, starts, lengths, block_bytes)


def packed_rows(rows: EncodedRows) -> EncodedRows:
    """Copy rows, so that they lie back to back and nothing else is kept in memory."""
    lengths = rows.lengths
    return EncodedRows.from_offsets(gather_ranges(rows.data, rows.starts, lengths), offsets_of(lengths))


def trimmed_rows(rows: EncodedRows, *, bytes_per_byte_max: int = 2) -> EncodedRows:
    """Leave out what is before and behind rows; copy them if there is much more than they are between them."""
    first, end = int(rows.starts.min()), int(rows.ends.max())
    if bytes_per_byte_max * int(rows.lengths.sum()) >= end - first:
        return EncodedRows(rows.data[first:end], rows.starts - first, rows.ends - first)
    # Most of what lies between the first and the last row does not belong to them.
    return packed_rows(rows)


def joined_rows(sources: Sequence[EncodedRows]) -> EncodedRows:
    """Copy rows of several arrays into one, in their order. What lies between them may come along."""
    pieces = [trimmed_rows(rows, bytes_per_byte_max=_JOINED_BYTES_PER_BYTE) for rows in sources if len(rows)]
    if not pieces:
        return EncodedRows(np.empty(0, np.uint8), *np.zeros((2, 0), np.int64))
    firsts = offsets_of(np.fromiter((len(rows.data) for rows in pieces), np.int64, len(pieces))).tolist()
    return EncodedRows(
        np.concatenate([rows.data for rows in pieces]),
        np.concatenate([rows.starts + first for rows, first in zip(pieces, firsts, strict=False)]),
        np.concatenate([rows.ends + first for rows, first in zip(pieces, firsts, strict=False)]),
    )


def side_by_side(sources: Sequence[EncodedRows]) -> EncodedRows:
    """Describe rows of several pieces, one after the other: where they are if that is one array, and copied if not."""
    if not sources or any(rows.data is not sources[0].data for rows in sources):
        return joined_rows(sources)
    return EncodedRows(
        sources[0].data,
        np.concatenate([rows.starts for rows in sources]),
        np.concatenate([rows.ends for rows in sources]),
    )


def pieces_of(rows: EncodedRows, counts: Sequence[int]) -> list[EncodedRows]:
    """Describe so many rows, then so many more, and so on, where they are."""
    data, starts, ends = rows.data, rows.starts, rows.ends
    bounds = pairwise(accumulate(counts, initial=0))
    return [EncodedRows(data, starts[first:end], ends[first:end]) for first, end in bounds]


def _gather_apart(data: UInt8Array, starts: Int64Array, ends: Int64Array, ranks: Int64Array | None) -> UInt8Array:
    """Let Arrow copy range by range: the ranges and the gaps between them are the values of one binary array.

    The ranges are given in the order of the data; ``ranks`` are their indexes in the order in which they are copied.
    This is as fast as copying memory gets for long ranges, and faster than an index per byte from four bytes on.
    """
    boundaries = np.empty(2 * len(starts) + 1, dtype=np.int64)
    boundaries[0:-1:2] = starts
    boundaries[1::2] = ends
    boundaries[-1] = ends[-1]
    ranges_and_gaps = large_binary_array(data, boundaries)
    ranges = np.arange(0, 2 * len(starts), 2) if ranks is None else 2 * ranks
    gathered = ranges_and_gaps.take(pa.Array.from_buffers(pa.int64(), len(starts), [None, pa.py_buffer(ranges)]))
    content = gathered.buffers()[2]
    total_bytes = int((ends - starts).sum())
    return byte_array(content)[:total_bytes] if total_bytes else np.empty(0, dtype=np.uint8)


def _gather_overlapping(
    data: UInt8Array, starts: Int64Array, lengths: npt.NDArray[Any], block_bytes: int
) -> UInt8Array:
    """Gather ranges of which some overlap, in any order."""
    offsets = offsets_of(lengths)
    gathered = np.empty(int(offsets[-1]), dtype=np.uint8)
    row = 0
    while row < len(starts):
        # As many ranges as fit a block, but at least one.
        row_next = max(int(np.searchsorted(offsets, offsets[row] + block_bytes, side="right")) - 1, row + 1)
        block = gathered[offsets[row] : offsets[row_next]]
        if row_next == row + 1:
            block[:] = data[starts[row] : starts[row] + len(block)]
        else:
            shifts = starts[row:row_next] - offsets[row:row_next]
            positions = np.repeat(shifts, lengths[row:row_next])
            positions += np.arange(offsets[row], offsets[row_next])
            data.take(positions, out=block, mode="clip")
        row = row_next
    return gathered
