"""How many bytes rows take as Arrow columns: guessed from their types, or measured on a few of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from fluss.client.scan.range_read import LogRange, read_ranges
from fluss.client.table import FlussTable
from fluss.errors import FlussError
from fluss.row.arrow_sizes import slot_bits
from fluss.schema.schema import Schema
from fluss.schema.types import ArrayType, DataType, MapType, RowType, TypeRoot

# What a value without a fixed size is taken for.
_TEXT_BYTES: Final = 20
_ELEMENTS: Final = 4
_VARIABLE_ROOTS: Final = frozenset({TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BINARY, TypeRoot.BYTES})
# Rows that are measured at most.
_SAMPLE_ROWS: Final = 1000


def guessed_row_bytes(schema: Schema, columns: Sequence[str]) -> float:
    """Return what a row with these columns may take, going by their types. It is never 0."""
    return max(1.0, sum(_value_bytes(schema.column(name).data_type) for name in columns))


def narrowest_column(schema: Schema) -> str:
    """Return the column to read when it does not matter which."""
    return min(schema.column_names, key=lambda name: guessed_row_bytes(schema, [name]))


def measured_row_bytes(table: FlussTable, log: LogRange, columns: Sequence[str]) -> float | None:
    """Return what the last rows of a part of a log take on average; None if they cannot be read now."""
    last = log._replace(start=max(log.start, log.stop - _SAMPLE_ROWS))
    try:
        batches: list[pa.RecordBatch] = [run.batch for run in read_ranges(table, [last], columns=columns)]
    except FlussError:
        return None
    row_count = sum(batch.num_rows for batch in batches)
    return sum(batch.nbytes for batch in batches) / row_count if row_count else None


def _value_bytes(data_type: DataType) -> float:
    fixed = slot_bits(data_type) / 8
    if data_type.root in _VARIABLE_ROOTS:
        return fixed + _TEXT_BYTES
    match data_type:
        case ArrayType():
            return fixed + _ELEMENTS * _value_bytes(data_type.element_type)
        case MapType():
            return fixed + _ELEMENTS * (_value_bytes(data_type.key_type) + _value_bytes(data_type.value_type))
        case RowType():
            return sum(_value_bytes(field.data_type) for field in data_type.fields)
    return fixed
