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

How servers read them is in ``fluss.record.statistics_columns``, what they conclude in ``fluss.record.pruning``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

import fluss.arrow_compute as pc
from fluss.errors import FlussError
from fluss.row.slots import encode_aligned_row
from fluss.row.values import internal_from_arrow
from fluss.schema.types import CharType, DataType, DoubleType, FloatType, TypeRoot

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
