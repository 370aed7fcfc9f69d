"""The union of serialized bitmaps, value by value: they have no columnar form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa

from fluss.errors import CorruptRecordError, ErrorCode, FlussError
from fluss.schema.schema import Column, Schema
from fluss.server.kv.aggregation.bitmap_tree import read_bitmap64, write_bitmap64
from fluss.server.kv.aggregation.bitmaps import Bitmap, read_bitmap32, union, write_bitmap32
from fluss.server.kv.aggregation.limits import check_states_size
from fluss.server.kv.aggregation.segments import Segments
from fluss.storage.damage import KvDamagedError


@dataclass(frozen=True, slots=True)
class BitmapFormat:
    """How a column holds bitmaps."""

    read: Callable[[bytes], Bitmap]
    write: Callable[[Bitmap], bytes]


_FORMATS: Final = {
    "rbm32": BitmapFormat(read_bitmap32, write_bitmap32),
    "rbm64": BitmapFormat(read_bitmap64, write_bitmap64),
}


def bitmap_format_of(column: Column) -> BitmapFormat | None:
    """Return how the values of a column are serialized if its function takes bitmaps."""
    return _FORMATS.get(column.aggregation.name) if column.aggregation is not None else None


def check_bitmaps(schema: Schema, rows: pa.RecordBatch) -> None:
    """Refuse (code 15) received values that are no bitmaps, before they are stored and in the way of later ones."""
    for column, values in zip(schema.columns, rows.columns, strict=True):
        bitmap_format = bitmap_format_of(column)
        if bitmap_format is not None:
            _check_values(bitmap_format, column.name, values.drop_null().to_pylist())


def _check_values(bitmap_format: BitmapFormat, column_name: str, values: Iterable[bytes]) -> None:
    try:
        for value in values:
            bitmap_format.read(value)
    except CorruptRecordError as error:
        raise FlussError(
            f"A value of column '{column_name}' is no serialized bitmap: {error.message}",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        ) from error


def united_bitmaps(bitmap_format: BitmapFormat, column: pa.Array, segments: Segments) -> pa.Array:
    """Unite the values that are not null. Received ones have been checked; a damaged stored one is KvDamagedError."""
    states: list[bytes | None] = column.to_pylist()
    byte_count = 0
    for start, end in pairwise([*segments.starts.tolist(), len(states)]):
        if end - start > 1:
            try:
                byte_count = _unite(bitmap_format, states, range(start + 1, end), byte_count)
            except CorruptRecordError as error:
                raise KvDamagedError(f"A stored bitmap cannot be read: {error.message}") from error
    return pa.array(states, pa.binary())


def _unite(bitmap_format: BitmapFormat, states: list[bytes | None], entries: range, byte_count: int) -> int:
    """Turn each value into the union with the one before it; add the sizes of the results to ``byte_count``."""
    # The state before an entry as a bitmap, once that is needed.
    held: Bitmap | None = None
    for entry in entries:
        state, value = states[entry - 1], states[entry]
        if value is None:
            states[entry] = value = state
        elif state is not None:
            held = union(bitmap_format.read(state) if held is None else held, bitmap_format.read(value))
            states[entry] = value = bitmap_format.write(held)
        byte_count += 0 if value is None else len(value)
        check_states_size(byte_count)
    return byte_count
