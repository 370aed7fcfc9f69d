"""The heads of many batches, side by side: facts of their headers in arrays, and their statistics, without records.

A filter is asked about thousands of batches at once. So nothing is made per batch but one tuple of numbers, which
becomes a row of an array.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from fluss.buffers import BytesLike, Int64Array, byte_view
from fluss.errors import CorruptRecordError
from fluss.record.log_batch import HEADER_LAYOUTS, LENGTH_END, MAGIC_NEWEST, MAGIC_V1

# What is read of a header, in the order of the columns below. The last one is missing before V1.
_FIELDS = ("base_offset", "length", "schema_id", "last_offset_delta", "record_count", "statistics_length")
_UNPACK = tuple(
    struct.Struct(
        "<"
        + "".join(
            code if name in _FIELDS else f"{struct.calcsize('<' + code)}x"
            for name, code in zip(layout.offsets, layout.packer.format[1:], strict=True)
        )
    ).unpack_from
    for layout in HEADER_LAYOUTS
)
_HEADER_BYTES = tuple(layout.size for layout in HEADER_LAYOUTS)


@dataclass(frozen=True, slots=True, eq=False)
class BatchHeads:
    """Consecutive batches, an element of each array per batch."""

    base_offsets: Int64Array
    offset_ends: Int64Array
    # Bytes of the whole batches, as they are stored.
    sizes: Int64Array
    schema_ids: Int64Array
    record_counts: Int64Array
    # The statistics of all batches, back to back, and where each block starts; the last entry is the end.
    statistics: bytes
    statistics_starts: Int64Array

    def __len__(self) -> int:
        return len(self.sizes)


class HeadCollector:
    """Takes heads out of stored bytes, one after the other."""

    __slots__ = ("_blocks", "_facts")

    def __init__(self) -> None:
        self._facts: list[tuple[int, ...]] = []
        self._blocks: list[memoryview] = []

    def __len__(self) -> int:
        return len(self._facts)

    def take(self, window: memoryview, start: int) -> tuple[int, int]:
        """Take the head at ``start``; return the size of its batch and of itself.

        If the window ends before the head does, nothing is taken, and the size of the batch is 0; that of the head is
        then as much as is known to be needed. A header that cannot be one raises CorruptRecordError.
        """
        remaining = len(window) - start
        if remaining <= LENGTH_END:
            return 0, LENGTH_END + 1
        magic = window[start + LENGTH_END]
        if magic > MAGIC_NEWEST:
            raise CorruptRecordError(f"the batch has the magic {magic}, this version reads 0 to {MAGIC_NEWEST}")
        head_bytes = _HEADER_BYTES[magic]
        if remaining < head_bytes:
            return 0, head_bytes
        facts = _UNPACK[magic](window, start)
        size = LENGTH_END + facts[1]
        if magic >= MAGIC_V1:
            statistics_start, head_bytes = start + head_bytes, head_bytes + max(facts[5], 0)
            if facts[5] < 0 or head_bytes > size:
                raise CorruptRecordError(f"the batch of {size} bytes has {facts[5]} bytes of statistics")
            if remaining < head_bytes:
                return 0, head_bytes
            if facts[5]:
                self._blocks.append(window[statistics_start : start + head_bytes])
        else:
            facts += (0,)
        if size < head_bytes:
            raise CorruptRecordError(f"the batch has {size} bytes, a header alone has {head_bytes}")
        self._facts.append(facts)
        return size, head_bytes

    def heads(self) -> BatchHeads:
        """Return what was taken."""
        columns = np.array(self._facts, np.int64).reshape(-1, len(_FIELDS)).T
        base_offsets, lengths, schema_ids, deltas, record_counts, block_lengths = columns
        starts = np.zeros(len(block_lengths) + 1, np.int64)
        np.cumsum(block_lengths, out=starts[1:])
        return BatchHeads(
            base_offsets,
            base_offsets + deltas + 1,
            lengths + LENGTH_END,
            schema_ids,
            record_counts,
            b"".join(self._blocks),
            starts,
        )


def heads_of(data: BytesLike, batches_max: int | None = None) -> BatchHeads:
    """Return the heads of whole batches that lie back to back; of the first ``batches_max`` if that is given."""
    window = byte_view(data)
    collector, position = HeadCollector(), 0
    while position < len(window) and len(collector) != batches_max:
        size, head_bytes = collector.take(window, position)
        if not size:
            raise CorruptRecordError(f"the batch at byte {position} is cut off: its head has {head_bytes} bytes")
        position += size
    return collector.heads()
