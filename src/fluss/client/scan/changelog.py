"""Changelogs as Arrow: the columns that say what each row means, in front of the columns of the table.

| column            | type               | meaning                                                              |
|-------------------|--------------------|----------------------------------------------------------------------|
| _change_type      | string             | insert, update_before, update_after or delete                        |
| _log_offset       | int64              | the position in the log of the bucket; -1 for a row of a snapshot    |
| _commit_timestamp | timestamp(ms, UTC) | when the server appended the change; null for a row of a snapshot    |

Names and values are those of the virtual ``$changelog`` tables of Flink SQL. All rows of a log table are inserts.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from fluss.buffers import UInt8Array
from fluss.errors import FlussError
from fluss.row.arrow_arrays import number_array, string_array
from fluss.schema.change_type import ChangeType

_FIELDS: Final = (
    pa.field("_change_type", pa.string(), nullable=False),
    pa.field("_log_offset", pa.int64(), nullable=False),
    pa.field("_commit_timestamp", pa.timestamp("ms", "UTC")),
)
_NAMES: Final = {
    ChangeType.AppendOnly: "insert",
    ChangeType.Insert: "insert",
    ChangeType.UpdateBefore: "update_before",
    ChangeType.UpdateAfter: "update_after",
    ChangeType.Delete: "delete",
}
# The offset and the timestamp of rows that were not read from the log.
NOT_IN_LOG: Final = -1


def changelog_schema(rows: pa.Schema) -> pa.Schema:
    """Return the schema of changes of such rows. Columns that have a name of the leading ones are a FlussError."""
    for field in _FIELDS:
        if field.name in rows.names:
            raise FlussError(
                f"A changelog has a column '{field.name}' of its own, and so has the table; choose other columns of it"
            )
    return pa.schema([*_FIELDS, *rows])


def change_type_names(change_types: UInt8Array | None, row_count: int) -> pa.Array:
    """Return the names of change types; without any, all rows are inserts."""
    if change_types is None:
        change_types = np.zeros(row_count, np.uint8)
    return string_array([*_NAMES.values()]).take(number_array(change_types))


def changelog_batch(
    rows: pa.RecordBatch, base_offset: int, timestamp_ms: int, change_types: UInt8Array | None
) -> pa.RecordBatch:
    """Put the leading columns before consecutive rows of a log, or before rows of a snapshot (``NOT_IN_LOG``)."""
    count = rows.num_rows
    if base_offset == NOT_IN_LOG:
        offsets = np.full(count, NOT_IN_LOG, np.int64)
        timestamps = pa.nulls(count, _FIELDS[2].type)
    else:
        offsets = np.arange(base_offset, base_offset + count, dtype=np.int64)
        timestamps = number_array(np.full(count, timestamp_ms, np.int64)).view(_FIELDS[2].type)
    leading = [change_type_names(change_types, count), number_array(offsets), timestamps]
    return pa.RecordBatch.from_arrays([*leading, *rows.columns], schema=pa.schema([*_FIELDS, *rows.schema]))
