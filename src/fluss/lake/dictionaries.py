"""Columns of Parquet files whose values are numbers of entries of a dictionary: they are cheaper to read as these.

By itself pyarrow makes each row's string while it reads. With the numbers first, rows that are not wanted are left out
before there are strings, and the others are made all at once, in half the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as pat

from fluss.row.arrow_arrays import buffer_numbers

# A string that is not in a dictionary takes at least so many bytes, for its length. A writer whose dictionary became
# too large goes on without it, and to read the rest as numbers, entries would have to be looked up by their values.
_LENGTH_BYTES: Final = 4
# In smaller files there is not much to save.
_ROWS_MIN: Final = 65_536
# Strings of a batch begin at 32-bit offsets.
_STRING_BYTES_MAX: Final = (1 << 31) - 1
# What is known of so many files is kept, then all is forgotten.
_FILES_MAX: Final = 4096
_known: dict[str, frozenset[str]] = {}


def dictionary_columns(path: str, filesystem: Any) -> frozenset[str]:
    """Return the columns of a Parquet file of which nearly all values are in a dictionary. A file never changes."""
    found = _known.get(path)
    if found is None:
        if len(_known) >= _FILES_MAX:
            _known.clear()
        found = _known[path] = _columns_of(ds.ParquetFileFormat().make_fragment(path, filesystem).metadata)
    return found


def _columns_of(metadata: Any) -> frozenset[str]:
    if metadata.num_rows < _ROWS_MIN:
        return frozenset()
    group = metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    return frozenset(
        column.path_in_schema
        for column in columns
        if column.has_dictionary_page and column.total_uncompressed_size < column.num_values * _LENGTH_BYTES
    )


def with_dictionaries(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the schema of rows whose columns of these names are read as numbers of entries."""
    fields = [
        field.with_type(pa.dictionary(pa.int32(), field.type)) if field.name in names else field for field in schema
    ]
    return pa.schema(fields)


def is_string(arrow_type: pa.DataType) -> bool:
    """Whether values of a type are read as numbers of entries if they are in a dictionary."""
    return bool(pat.is_string(arrow_type) or pat.is_binary(arrow_type))


def without_dictionaries(rows: pa.RecordBatch, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return rows with the entries themselves; as several batches if their strings may be too long for one."""
    encoded = [column.dictionary for column in rows.columns if pat.is_dictionary(column.type)]
    size = min((_STRING_BYTES_MAX // max(_longest(entries), 1) for entries in encoded), default=rows.num_rows)
    parts = [rows] if rows.num_rows <= size else [rows.slice(at, size) for at in range(0, rows.num_rows, size)]
    return [_decoded(part, schema) for part in parts]


def _decoded(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [column.dictionary_decode() if pat.is_dictionary(column.type) else column for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _longest(entries: pa.Array) -> int:
    return int(np.diff(buffer_numbers(entries, np.int32, extra=1)).max()) if len(entries) else 0
