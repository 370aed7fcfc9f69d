"""Statistics of a log batch: per column the number of nulls, the smallest and the largest value.

Writers put them between header and records of a batch; servers use them to skip batches that cannot hold a wanted
row. Integers are little-endian.

| field          | type      | meaning                                                        |
|----------------|-----------|----------------------------------------------------------------|
| version        | int8      | 1; a block of another version is ignored                       |
| column_count   | int16     | N; a block without columns is ignored                          |
| column_indexes | N × int16 | positions in the schema of the batch, in any order             |
| null_counts    | N × int32 |                                                                |
| minimum_size   | int32     |                                                                |
| minimums       | bytes     | aligned row of N fields; a null field is an unknown bound      |
| maximum_size   | int32     |                                                                |
| maximums       | bytes     | the same                                                       |

Bounds are internal values: TIME in milliseconds of the day, strings compared by their UTF-8 bytes, decimals by value.

- CHAR columns get no bounds, as in other clients; their nulls are counted.
- A column of nulls has no bounds.
- A float column that holds NaN has no bounds, because readers do not agree on where NaN belongs in the order.
- A bound of zero is written as -0.0 below and 0.0 above: some readers tell the two apart.

Servers read the statistics of many batches as columns: what each batch knows about one column, in arrays. Batches of
one writer have blocks of the same layout, so what lies at the same place in all of them is read at once; texts, large
decimals and timestamps, whose place is in their slot, are read one by one. Only columns that are asked for are read.

    type                                        bounds in the arrays
    BOOLEAN, TINYINT..BIGINT, DATE, TIME        int64
    DECIMAL of up to 18 digits                  int64, the unscaled value
    FLOAT, DOUBLE                               float64
    DECIMAL with more digits                    int, the unscaled value
    TIMESTAMP, TIMESTAMP_LTZ                    int, nanoseconds since the epoch
    CHAR, STRING                                str

What servers conclude is in ``fluss.record.pruning``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import fluss.arrow_compute as pc
from fluss.buffers import Int64Array, UInt8Array, byte_array, byte_view
from fluss.errors import CorruptRecordError, FlussError
from fluss.record.batch_heads import BatchHeads
from fluss.row.scalars import fixed_struct
from fluss.row.slots import AlignedRowLayout, encode_aligned_row
from fluss.row.values import NANOS_PER_MILLI, Timestamp, internal_from_arrow
from fluss.schema.types import (
    BooleanType,
    CharType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TypeRoot,
)

STATISTICS_VERSION: Final = 1

STATISTICS_PREFIX: Final = struct.Struct(
    "<b"  # version
    "h"  # column_count
)
STATISTICS_ROW_SIZE: Final = struct.Struct("<i")
_SUPPORTED_ROOTS: Final = frozenset(TypeRoot) - {
    TypeRoot.BINARY,
    TypeRoot.BYTES,
    TypeRoot.ARRAY,
    TypeRoot.MAP,
    TypeRoot.ROW,
}


def supports_statistics(data_type: DataType) -> bool:
    """Tell whether columns of a type can have statistics."""
    return data_type.root in _SUPPORTED_ROOTS


def collect_statistics(batch: pa.RecordBatch, types: Sequence[DataType], column_indexes: Sequence[int]) -> bytes:
    """Return the statistics block of some columns; it is empty if there are no columns or no rows.

    ``types`` are the types of all columns of the batch; ``column_indexes`` chooses from them, in the order in which
    the block is written.
    """
    if not batch.num_rows or not column_indexes:
        return b""
    chosen = [types[index] for index in column_indexes]
    for index, data_type in zip(column_indexes, chosen, strict=True):
        if not supports_statistics(data_type):
            name = batch.schema.field(index).name
            raise FlussError(
                f"The column '{name}' of type {data_type} cannot have statistics: take it out of "
                f"'table.statistics.columns'"
            )
    arrays = [batch.column(index) for index in column_indexes]
    minimums, maximums = zip(*map(_bounds, arrays, chosen), strict=True)
    minimum_row, maximum_row = encode_aligned_row(chosen, minimums), encode_aligned_row(chosen, maximums)
    return b"".join(
        (
            STATISTICS_PREFIX.pack(STATISTICS_VERSION, len(chosen)),
            struct.pack(f"<{len(chosen)}h", *column_indexes),
            struct.pack(f"<{len(chosen)}i", *(array.null_count for array in arrays)),
            STATISTICS_ROW_SIZE.pack(len(minimum_row)),
            minimum_row,
            STATISTICS_ROW_SIZE.pack(len(maximum_row)),
            maximum_row,
        )
    )


def _bounds(array: pa.Array, data_type: DataType) -> tuple[Any, Any]:
    """Return the smallest and the largest value of a column, both None if they are to stay unknown."""
    if isinstance(data_type, CharType) or array.null_count == len(array):
        return None, None
    is_float = isinstance(data_type, FloatType | DoubleType)
    if is_float and pc.any(pc.is_nan(array)).as_py():
        return None, None
    bounds = pc.min_max(array)
    minimum, maximum = internal_from_arrow(pa.array([bounds["min"], bounds["max"]], array.type), data_type)
    if is_float:
        minimum, maximum = (minimum or -0.0), (maximum or 0.0)
    return minimum, maximum


BoolArray: TypeAlias = npt.NDArray[np.bool_]
# Returns the types of all columns of a schema; None if there is no schema with that id.
TypesOf: TypeAlias = Callable[[int], Sequence[DataType] | None]

_COLUMN_INDEX: Final = np.dtype("<i2")
_NULL_COUNT: Final = np.dtype("<i4")
_SIZE: Final = np.dtype("<i4")
# No number has more.
_BYTES: Final = np.arange(8)


class WantedColumn:
    """A column by its position, and the type that it must have for its bounds to be of use."""

    __slots__ = ("_nullable_type", "data_type", "dtype", "filler", "index")

    def __init__(self, index: int, data_type: DataType) -> None:
        self.index = index
        self.data_type = data_type.not_null()
        self._nullable_type = data_type.with_nullable(True)
        self.dtype = bound_dtype(data_type)
        # What stands where there are no bounds.
        self.filler: Any = "" if isinstance(data_type, CharType | StringType) else 0

    def is_of(self, data_type: DataType) -> bool:
        """Whether a column of this type is meant, nullable or not."""
        return data_type in (self._nullable_type, self.data_type)


@dataclass(frozen=True, slots=True, eq=False)
class ColumnStatistics:
    """What is known about one column, an element per batch."""

    # -1: nothing is known about the column in this batch.
    null_counts: Int64Array
    # Where there are no bounds, there is some other value instead.
    minimums: npt.NDArray[Any]
    maximums: npt.NDArray[Any]
    # Whether both bounds are known. NaN is none.
    has_bounds: BoolArray

    @classmethod
    def nothing(cls, batch_count: int, column: WantedColumn) -> ColumnStatistics:
        null_counts = np.empty(batch_count, np.int64)
        null_counts.fill(-1)
        minimums, maximums = np.empty((2, batch_count), column.dtype)
        minimums.fill(column.filler)
        maximums.fill(column.filler)
        return cls(null_counts, minimums, maximums, np.zeros(batch_count, np.bool_))


@dataclass(frozen=True, slots=True, eq=False)
class StatisticsColumns:
    """The statistics of many batches, as far as they were asked for."""

    columns: tuple[ColumnStatistics, ...]
    # Batches whose block is damaged, so that nothing in it can be believed. Bounds of columns that no filter asked for
    # are not looked at.
    is_damaged: BoolArray


def bound_dtype(data_type: DataType) -> np.dtype[Any]:
    """Return the type of the arrays that hold bounds of a column."""
    if isinstance(data_type, FloatType | DoubleType):
        return np.dtype(np.float64)
    is_number = fixed_struct(data_type) is not None and not isinstance(data_type, TimestampType | TimestampLtzType)
    return np.dtype(np.int64 if is_number else object)


def read_statistics(heads: BatchHeads, types_of: TypesOf, wanted: Sequence[WantedColumn]) -> StatisticsColumns:
    """Read the statistics of some columns of all batches."""
    columns = tuple(ColumnStatistics.nothing(len(heads), column) for column in wanted)
    is_damaged = np.zeros(len(heads), np.bool_)
    data = byte_array(heads.statistics)
    for (schema_id, prefix), batches in _by_layout(heads, is_damaged).items():
        rows = np.array(batches)
        types = types_of(schema_id)
        if types is None or not _is_sound(prefix, types):
            is_damaged[rows] = True
            continue
        blocks = _Blocks.of(data, heads, rows, prefix, is_damaged)
        for column, target in zip(wanted, columns, strict=True):
            place = blocks.places.get(column.index)
            if place is not None and column.is_of(types[column.index]):
                blocks.read(place, column, target, is_damaged)
    return StatisticsColumns(columns, is_damaged)


def _by_layout(heads: BatchHeads, is_damaged: BoolArray) -> dict[tuple[int, tuple[int, ...]], list[int]]:
    """Sort the batches by schema and by the columns that their blocks have; blocks that say nothing are left out."""
    groups: dict[tuple[int, bytes], list[int]] = {}
    view, starts = memoryview(heads.statistics), heads.statistics_starts.tolist()
    for batch, (schema_id, start, end) in enumerate(zip(heads.schema_ids.tolist(), starts, starts[1:], strict=False)):
        if end - start < STATISTICS_PREFIX.size:
            is_damaged[batch] = end > start
            continue
        version, count = STATISTICS_PREFIX.unpack_from(view, start)
        if version != STATISTICS_VERSION or count <= 0:
            continue
        prefix_end = start + STATISTICS_PREFIX.size + count * _COLUMN_INDEX.itemsize
        if prefix_end > end:
            is_damaged[batch] = True
            continue
        groups.setdefault((schema_id, bytes(view[start + STATISTICS_PREFIX.size : prefix_end])), []).append(batch)
    return {
        (schema_id, struct.unpack(f"<{len(prefix) // _COLUMN_INDEX.itemsize}h", prefix)): batches
        for (schema_id, prefix), batches in groups.items()
    }


def _is_sound(column_indexes: Sequence[int], types: Sequence[DataType]) -> bool:
    """Whether a block can have these columns: each once, and of a type that has statistics."""
    return len(set(column_indexes)) == len(column_indexes) and all(
        0 <= index < len(types) and supports_statistics(types[index]) for index in column_indexes
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """Blocks of the same columns, whose parts have been found and lie inside of them."""

    data: UInt8Array
    # The batches, and where in the data each has its null counts, its row of minimums and that of maximums.
    rows: Int64Array
    null_counts_at: Int64Array
    minimums_at: Int64Array
    maximums_at: Int64Array
    minimum_sizes: Int64Array
    maximum_sizes: Int64Array
    layout: AlignedRowLayout
    # Which field of the rows belongs to a column.
    places: dict[int, int]

    @classmethod
    def of(
        cls, data: UInt8Array, heads: BatchHeads, rows: Int64Array, column_indexes: Sequence[int], is_damaged: BoolArray
    ) -> _Blocks:
        """Find the parts of the blocks of some batches; those that do not fit together are damaged, and left out."""
        count = len(column_indexes)
        layout = AlignedRowLayout(count)
        starts, ends = heads.statistics_starts[rows], heads.statistics_starts[rows + 1]
        null_counts_at = starts + STATISTICS_PREFIX.size + count * _COLUMN_INDEX.itemsize
        sizes_at = null_counts_at + count * _NULL_COUNT.itemsize

        def sound(is_good: BoolArray, *arrays: Int64Array) -> tuple[Int64Array, ...]:
            """Return what the arrays have of good batches, whose numbers are the first array."""
            if is_good.all():
                return arrays
            is_damaged[arrays[0][~is_good]] = True
            return tuple(each[is_good] for each in arrays)

        rows, ends, null_counts_at, sizes_at = sound(
            sizes_at + STATISTICS_ROW_SIZE.size <= ends, rows, ends, null_counts_at, sizes_at
        )
        minimum_sizes = _gather(data, sizes_at, _SIZE)
        minimums_at = sizes_at + STATISTICS_ROW_SIZE.size
        maximum_sizes_at = minimums_at + minimum_sizes
        rows, ends, null_counts_at, minimum_sizes, minimums_at, maximum_sizes_at = sound(
            (minimum_sizes >= layout.slots_end) & (maximum_sizes_at + STATISTICS_ROW_SIZE.size <= ends),
            *(rows, ends, null_counts_at, minimum_sizes, minimums_at, maximum_sizes_at),
        )
        maximum_sizes = _gather(data, maximum_sizes_at, _SIZE)
        maximums_at = maximum_sizes_at + STATISTICS_ROW_SIZE.size
        is_good = (maximum_sizes >= layout.slots_end) & (maximums_at + maximum_sizes == ends)
        null_counts = data[null_counts_at[:, None] + np.arange(count * _NULL_COUNT.itemsize)].view(_NULL_COUNT)
        is_good &= (null_counts >= 0).all(axis=1)
        rows, null_counts_at, minimums_at, maximums_at, minimum_sizes, maximum_sizes = sound(
            is_good, rows, null_counts_at, minimums_at, maximums_at, minimum_sizes, maximum_sizes
        )
        places = {index: place for place, index in enumerate(column_indexes)}
        return cls(
            *(data, rows, null_counts_at, minimums_at, maximums_at, minimum_sizes, maximum_sizes, layout, places)
        )

    def read(self, place: int, column: WantedColumn, target: ColumnStatistics, is_damaged: BoolArray) -> None:
        """Put what is known about one column into the arrays of all batches."""
        counts_at = self.null_counts_at + place * _NULL_COUNT.itemsize
        target.null_counts[self.rows] = _gather(self.data, counts_at, _NULL_COUNT)
        target.has_bounds[self.rows] = True
        null_byte, null_mask = self.layout.null_bit(place)
        for rows_at, sizes, bounds in (
            (self.minimums_at, self.minimum_sizes, target.minimums),
            (self.maximums_at, self.maximum_sizes, target.maximums),
        ):
            rows = self.rows
            is_present = self.data[rows_at + null_byte] & null_mask == 0
            if not is_present.all():
                target.has_bounds[rows[~is_present]] = False
                rows, rows_at, sizes = rows[is_present], rows_at[is_present], sizes[is_present]
            values, is_good = self._values(place, column, rows_at, sizes)
            bounds[rows] = values
            if is_good is not None and not is_good.all():
                is_damaged[rows[~is_good]] = True
                target.has_bounds[rows[~is_good]] = False
            if values.dtype.kind == "f":
                target.has_bounds[rows[values != values]] = False

    def _values(
        self, place: int, column: WantedColumn, rows_at: Int64Array, sizes: Int64Array
    ) -> tuple[npt.NDArray[Any], BoolArray | None]:
        """Return one field of each row, and whether it could be read; None if all could."""
        data_type = column.data_type
        layout = fixed_struct(data_type)
        if layout is None:
            return self._located_values(place, column, rows_at, sizes)
        slots_at = rows_at + self.layout.slot(place)
        if isinstance(data_type, BooleanType):
            return (self.data[slots_at] != 0).astype(np.int64), None
        values = _gather(self.data, slots_at, np.dtype(layout.format))
        if isinstance(data_type, DecimalType):
            limit = 10**data_type.precision
            return values, (values > -limit) & (values < limit)
        if isinstance(data_type, TimestampType | TimestampLtzType):
            values = values.astype(object) * NANOS_PER_MILLI
        return values.astype(column.dtype, copy=False), None

    def _located_values(
        self, place: int, column: WantedColumn, rows_at: Int64Array, sizes: Int64Array
    ) -> tuple[npt.NDArray[Any], BoolArray]:
        values = np.empty(len(rows_at), column.dtype)
        values.fill(column.filler)
        is_good = np.zeros(len(rows_at), np.bool_)
        view = byte_view(self.data)
        for index, (start, size) in enumerate(zip(rows_at.tolist(), sizes.tolist(), strict=True)):
            try:
                value = self.layout.read_field(view[start : start + size], place, column.data_type)
            except CorruptRecordError:
                continue
            values[index] = as_nanoseconds(value) if isinstance(value, Timestamp) else value
            is_good[index] = True
        return values, is_good


def as_nanoseconds(value: tuple[int, int]) -> int:
    """Return a timestamp as one number; no number of digits is too many for it."""
    return value[0] * NANOS_PER_MILLI + value[1]


def _gather(data: UInt8Array, positions: Int64Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Read a number at each position."""
    numbers: npt.NDArray[Any] = data[positions[:, None] + _BYTES[: dtype.itemsize]].view(dtype)[:, 0]
    return numbers.astype(np.int64, copy=False) if dtype.kind == "i" else numbers
