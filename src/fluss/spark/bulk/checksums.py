"""Checksums of rows in any order: two sets of rows have the same one if they are the same rows, each as often.

Every row has a hash of 64 bits over its values, and the checksum is the sum of the hashes. Equal rows have equal hashes
in every process and on every machine. Columns are hashed one by one: numbers as they are, texts and bytes where they
are, everything nested by its encoding as a row. It is a check against loss and damage, not against
forgery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from fluss.row.compacted_columns import encode_rows
from fluss.row.encoded import EncodedRows
from fluss.schema.types import DataType
from fluss.spark.write.row_hashes import UInt64Array, row_hashes

_MODULUS: Final = 2**64
_SEED: Final = 0x6A09_E667_F3BC_C909
_NULL_HASH: Final = np.uint64(0x9B05_688C_2B3E_6C1F)
_COLUMN_FACTOR: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_FACTOR_1: Final = np.uint64(0xBF58_476D_1CE4_E5B9)
_FACTOR_2: Final = np.uint64(0x94D0_49BB_1331_11EB)
# Rows that are hashed at once; more would leave the processor's cache.
_ROWS_MAX: Final = 8192


@dataclass(frozen=True, slots=True)
class Checksum:
    """How many rows, and the sum of their hashes."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: Checksum) -> Checksum:
        return Checksum(self.rows + other.rows, (self.total + other.total) % _MODULUS)

    def __str__(self) -> str:
        return f"{self.rows} rows with the checksum {self.total:016x}"


def checksum(batch: pa.RecordBatch, types: Sequence[DataType]) -> Checksum:
    """Return the checksum of some rows, whose columns have the Arrow types of these types."""
    total = 0
    for first in range(0, batch.num_rows, _ROWS_MAX):
        part = batch.slice(first, _ROWS_MAX)
        hashes: UInt64Array = np.zeros(part.num_rows, np.uint64)
        for column, data_type in zip(part.columns, types, strict=True):
            # The place of a column counts, too.
            hashes *= _COLUMN_FACTOR
            hashes += _column_hashes(column, data_type)
            _mix(hashes)
        total += int(hashes.sum(dtype=np.uint64))
    return Checksum(batch.num_rows, total % _MODULUS)


def _column_hashes(column: pa.Array, data_type: DataType) -> UInt64Array:
    hashes = _value_hashes(column, data_type)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL_HASH
    return hashes


def _value_hashes(column: pa.Array, data_type: DataType) -> UInt64Array:
    """Hash values; where a value is null, the hash is anything."""
    arrow_type = column.type
    if pat.is_nested(arrow_type):
        return row_hashes(encode_rows([column], [data_type.with_nullable(True)]), _SEED)
    if pat.is_string(arrow_type) or pat.is_binary(arrow_type):
        offsets = _numbers(column.buffers()[1], np.int32, column.offset, len(column) + 1).astype(np.int64)
        return row_hashes(EncodedRows.from_offsets(_content(column.buffers()[2], offsets), offsets - offsets[0]), _SEED)
    if pat.is_boolean(arrow_type):
        column = column.cast(pa.uint8())
    if pat.is_fixed_size_binary(arrow_type):
        offsets = np.arange(column.offset, column.offset + len(column) + 1, dtype=np.int64) * arrow_type.byte_width
        return row_hashes(EncodedRows.from_offsets(_content(column.buffers()[1], offsets), offsets - offsets[0]), _SEED)
    if pat.is_decimal(arrow_type):
        halves = _numbers(column.buffers()[1], np.uint64, column.offset * 2, len(column) * 2)
        return _mix(_mix(halves[::2].copy()) ^ halves[1::2])
    number_type = np.dtype(f"u{column.type.bit_width // 8}")
    return _mix(_numbers(column.buffers()[1], number_type, column.offset, len(column)).astype(np.uint64))


def _numbers(buffer: pa.Buffer, dtype: npt.DTypeLike, first: int, count: int) -> npt.NDArray[Any]:
    """View a part of a buffer as numbers."""
    return np.frombuffer(buffer, dtype, count, first * np.dtype(dtype).itemsize)


def _content(buffer: pa.Buffer | None, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """View the bytes between the first and the last offset; there need not be a buffer for nothing."""
    if buffer is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(buffer, np.uint8)[int(offsets[0]) : int(offsets[-1])]


def _mix(numbers: UInt64Array) -> UInt64Array:
    """Spread every bit over all bits of its number, in place."""
    numbers ^= numbers >> np.uint64(32)
    numbers *= _FACTOR_1
    numbers ^= numbers >> np.uint64(29)
    numbers *= _FACTOR_2
    numbers ^= numbers >> np.uint64(32)
    return numbers
