"""Indexed rows of a whole batch at once, as Arrow columns: the columnar twin of ``fluss.row.indexed``.

It reads with the column readers of compacted rows. What differs is where numbers and byte strings lie: numbers have
the width of their type, and the lengths of byte strings stand together in front of all fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fluss.buffers import BytesLike, Int64Array
from fluss.row import indexed
from fluss.row.arrow_sizes import slots_bytes
from fluss.row.byte_ranges import unaligned
from fluss.row.column_readers import read_column
from fluss.row.cursor_columns import ColumnCursor
from fluss.row.encoded import EncodedRows
from fluss.row.null_columns import ValidMask
from fluss.row.scalars import INT32
from fluss.row.values import internal_from_arrow
from fluss.row.varint_columns import UInt64Array
from fluss.schema.types import BinaryType, CharType, DataType

_PLACES_AT_ONCE = 1 << 20


def encode_rows(columns: Sequence[pa.Array], types: Sequence[DataType]) -> EncodedRows:
    """Encode a batch with the arguments and errors of ``compacted_columns.encode_rows``, row by row."""
    values = (internal_from_arrow(column, data_type) for column, data_type in zip(columns, types, strict=True))
    return EncodedRows.from_list([indexed.encode_row(types, row) for row in zip(*values, strict=True)])


def decode_rows(rows: EncodedRows, types: Sequence[DataType], *, arrays_bytes_max: int | None = None) -> list[pa.Array]:
    """Decode rows to one array per column, with the limit and the errors of ``compacted_columns.decode_rows``."""
    cursor = _IndexedCursor(rows, arrays_bytes_max=arrays_bytes_max)
    cursor.count_bytes(slots_bytes(types, len(rows)))
    masks = cursor.null_bits(types)
    cursor.skip_lengths(sum(map(indexed.has_variable_length, types)))
    columns = []
    for index, (data_type, valid) in enumerate(zip(types, masks, strict=True)):
        cursor.enter_column(index, data_type, valid)
        columns.append(read_column(cursor, data_type))
        cursor.leave_column()
    cursor.finish()
    return columns


class _IndexedCursor(ColumnCursor):
    """Finds the fields of indexed rows where the readers of compacted rows ask for them."""

    def skip_lengths(self, variable_count: int) -> None:
        """Move to the fields. Each row has the lengths of its values in front, one after the other."""
        self._lengths_at = self._positions
        self._before_columns = "The lengths"
        self._advance(variable_count * INT32.size)

    def enter_column(self, index: int, data_type: DataType, valid: ValidMask) -> None:
        super().enter_column(index, data_type, valid)
        self._data_type = data_type

    def leave_column(self) -> None:
        """Go on to the next length, in the rows that have a value here."""
        if indexed.has_variable_length(self._data_type):
            step = INT32.size if self.valid is None else INT32.size * self.valid
            self._lengths_at = self._lengths_at + step

    def varints(self, bits: int) -> UInt64Array:
        return self.fixed(f"<u{bits // 8}").astype(np.uint64)

    def ranges(self) -> tuple[Int64Array, Int64Array]:
        starts = self._positions
        if isinstance(self._data_type, CharType | BinaryType):
            self._advance(self._data_type.length)
            if isinstance(self._data_type, CharType):
                return starts, self._without_padding(starts, self._data_type.length)
            return starts, self._without_nulls(np.full(len(self), self._data_type.length))
        # What a null finds here is the length of another value, or not a length at all.
        lengths_at = np.minimum(self._lengths_at, len(self.data) - INT32.size)
        lengths = self._without_nulls(unaligned(self.data, "<i4")[lengths_at].astype(np.int64))
        if len(lengths) and int(lengths.min()) < 0:
            self.refuse("has a negative length", lengths < 0)
        self._advance(lengths)
        return starts, lengths

    def decode_nested(self, data_type: DataType, data: BytesLike) -> Any:
        return indexed.decode_nested(data_type, data)

    def _without_padding(self, starts: Int64Array, length: int) -> Int64Array:
        """Return how many bytes of each CHAR are left without the zeros at its end."""
        lengths = np.zeros(len(self), np.int64)
        all_rows = np.arange(len(self)) if self.valid is None else np.flatnonzero(self.valid)
        # The place of every byte takes eight: not of all rows at once.
        at_once = max(1, _PLACES_AT_ONCE // length)
        for first in range(0, len(all_rows), at_once):
            rows = all_rows[first : first + at_once]
            is_text = self.data[starts[rows, np.newaxis] + np.arange(length)] != 0
            lengths[rows] = np.where(is_text.any(axis=1), length - is_text[:, ::-1].argmax(axis=1), 0)
        return lengths
