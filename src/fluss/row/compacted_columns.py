"""Compacted rows of a whole batch at once: Arrow columns to encoded rows and back, a column at a time.

This is the columnar twin of ``fluss.row.compacted``, which describes the bytes and serves single rows. Both write the
same bytes and accept the same bytes; the work here is done by numpy and Arrow, without a step per row (except for
ARRAY, MAP and ROW columns, whose values go through the scalar twin one by one).

Encoding: the parts of all columns between two byte strings form a segment. The lengths of its parts in each row add
up to the boundaries of the segment, then each part is written at its place in all rows. Arrow joins segments and byte
strings row by row.

Decoding: one position per row moves over the columns from left to right, see ``fluss.row.cursor_columns``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from fluss.errors import FlussError
from fluss.row.arrow_sizes import slots_bytes
from fluss.row.byte_ranges import join_rows, large_binary_array, offsets_of, rows_of
from fluss.row.column_readers import read_column
from fluss.row.column_writers import BodyPart, BytesPart, NumberPart, Part, column_parts
from fluss.row.cursor_columns import ColumnCursor
from fluss.row.encoded import EncodedRows
from fluss.row.null_columns import ValidMask, mask_from_arrow, masks_to_null_planes
from fluss.schema.arrow import arrow_type
from fluss.schema.types import DataType


def encode_rows(columns: Sequence[pa.Array], types: Sequence[DataType]) -> EncodedRows:
    """Encode a batch: arrays of equal length, of exactly the Arrow types of ``types``.

    Null in a NOT NULL column and values that their type cannot hold are a FlussError. Rows that leave columns out on
    purpose (a partial update) are encoded with nullable types for them.
    """
    row_count = _check_columns(columns, types)
    masks = [mask_from_arrow(column) for column in columns]
    for index, (data_type, valid) in enumerate(zip(types, masks, strict=True)):
        if valid is not None and not data_type.nullable:
            row = int(valid.argmin())
            raise FlussError(f"The value of column {index} is null in row {row}, but its type is {data_type}")
    null_bits: list[Part] = [BytesPart(masks_to_null_planes(masks, row_count))]
    return _joined(null_bits + _all_parts(columns, types, masks), row_count)


def encode_keys(columns: Sequence[pa.Array], types: Sequence[DataType]) -> EncodedRows:
    """Encode the keys of a batch: rows without null bits. Null is a FlussError whatever the type says."""
    row_count = _check_columns(columns, types)
    for index, (column, data_type) in enumerate(zip(columns, types, strict=True)):
        valid = mask_from_arrow(column)
        if valid is not None:
            row = int(valid.argmin())
            raise FlussError(
                f"The value of key column {index} is null in row {row}; key columns of type {data_type} need a value"
            )
    return _joined(_all_parts(columns, types, [None] * len(columns)), row_count)


def decode_rows(rows: EncodedRows, types: Sequence[DataType], *, arrays_bytes_max: int | None = None) -> list[pa.Array]:
    """Decode rows to one array per column; ``types`` are the columns of the schema with which they were written.

    CorruptRecordError names the first row that does not follow the format. SizeLimitError: a column would exceed the
    two gigabytes of one Arrow array, or all columns ``arrays_bytes_max``, texts and bytes not counted; decode fewer
    rows at once.
    """
    cursor = ColumnCursor(rows, arrays_bytes_max=arrays_bytes_max)
    cursor.count_bytes(slots_bytes(types, len(rows)))
    masks = cursor.null_bits(types)
    return _decoded(cursor, types, masks)


def decode_keys(keys: EncodedRows, types: Sequence[DataType]) -> list[pa.Array]:
    """Decode keys to one array per column, with the errors of ``decode_rows``."""
    return _decoded(ColumnCursor(keys), types, [None] * len(types))


def _decoded(cursor: ColumnCursor, types: Sequence[DataType], masks: Sequence[ValidMask]) -> list[pa.Array]:
    columns = []
    for index, (data_type, valid) in enumerate(zip(types, masks, strict=True)):
        cursor.enter_column(index, data_type, valid)
        columns.append(read_column(cursor, data_type))
    cursor.finish()
    return columns


def _check_columns(columns: Sequence[pa.Array], types: Sequence[DataType]) -> int:
    """Check what the caller must hold, and return the number of rows."""
    row_count = len(columns[0]) if columns else 0
    for column, data_type in zip(columns, types, strict=True):
        assert len(column) == row_count, f"columns of different lengths: {row_count} and {len(column)}"
        if not data_type.is_nested and column.type != arrow_type(data_type):
            raise TypeError(f"{data_type} columns are Arrow arrays of type {arrow_type(data_type)}, got {column.type}")
    return row_count


def _all_parts(columns: Sequence[pa.Array], types: Sequence[DataType], masks: Sequence[ValidMask]) -> list[Part]:
    parts: list[Part] = []
    for index, (column, data_type, valid) in enumerate(zip(columns, types, masks, strict=True)):
        try:
            parts += column_parts(column, data_type, valid)
        except FlussError as error:
            raise FlussError(f"Column {index} cannot be encoded: {error.message}") from error
    return parts


def _joined(parts: Sequence[Part], row_count: int) -> EncodedRows:
    """Put the parts of each row together."""
    pieces: list[pa.Array] = []
    segment: list[NumberPart] = []
    for part in parts:
        if isinstance(part, BodyPart):
            pieces += [_segment(segment, row_count), part.bodies]
            segment = []
        else:
            segment.append(part)
    if segment or not pieces:
        pieces.append(_segment(segment, row_count))
    return rows_of(pieces[0]) if len(pieces) == 1 else join_rows(pieces)


def _segment(parts: Sequence[NumberPart], row_count: int) -> pa.Array:
    """Write numbers that lie next to each other in every row."""
    row_lengths = np.zeros(row_count, dtype=np.int64)
    for part in parts:
        row_lengths += part.lengths
    offsets = offsets_of(row_lengths)
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    positions = offsets[:-1].copy()
    for part in parts:
        part.write(data, positions)
        positions += part.lengths
    return large_binary_array(data, offsets)
