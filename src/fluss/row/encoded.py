"""Many encoded rows (or keys) as one buffer and their boundaries: the currency of the columnar codecs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fluss.buffers import BytesLike, Int64Array, UInt8Array


@dataclass(frozen=True, slots=True, eq=False)
class EncodedRows:
    """Row ``i`` is ``data[starts[i]:ends[i]]``.

    Rows may lie anywhere in ``data``, with other bytes between them: the rows of a KV batch are described in place,
    without copying them out. All three arrays are views that nobody changes.
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
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        return cls.from_offsets(np.frombuffer(b"".join(rows), dtype=np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Int64Array:
        return self.ends - self.starts

    def some(self, numbers: Int64Array | slice) -> EncodedRows:
        """Describe the rows with some numbers, in their order, where they are."""
        return EncodedRows(self.data, self.starts[numbers], self.ends[numbers])

    def row(self, index: int) -> bytes:
        """Copy out one row."""
        return self.data[self.starts[index] : self.ends[index]].tobytes()

    def to_list(self) -> list[bytes]:
        """Copy out every row, for libraries that take nothing but single objects."""
        if not len(self):
            return []
        # Slices of bytes are made several times faster than slices of an array or of a view.
        first = int(self.starts.min())
        data = self.data[first : int(self.ends.max())].tobytes()
        bounds = zip((self.starts - first).tolist(), (self.ends - first).tolist(), strict=True)
        return [data[start:end] for start, end in bounds]
