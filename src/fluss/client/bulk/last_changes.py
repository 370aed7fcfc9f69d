"""The last change of every key in a part of a changelog: what becomes of the rows that were there before it.

Unlike the rows that a table has, this also tells which keys were deleted: their older rows are somewhere else, in a
lake or in a snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.client.scan.changelog_fold import change_types, is_end_of_key, is_later_row, keyed_changes
from fluss.client.scan.records import RecordRun
from fluss.row.arrow_arrays import BoolArray, bool_array, buffer_numbers, number_array
from fluss.schema.offsets import ChangeType
from fluss.schema.table import TableInfo

# Changes that are gathered before they are folded for the first time.
_PENDING_ROWS_MIN: Final = 262_144
_OFFSET: Final = "offset"
_TIMESTAMP: Final = "timestamp"


class KeyChanges(NamedTuple):
    """One change for each key, in the order of their offsets."""

    rows: pa.RecordBatch
    """All columns that were read. Of a deleted key it is the row that was deleted."""
    offsets: Int64Array
    timestamps_ms: Int64Array
    is_deleted: BoolArray


class LastChanges:
    """Folds the changes of one bucket, which come in the order of their offsets. Used by one thread at a time.

    ``columns`` are those of the runs; the primary key, without the partition columns, must be among them. Memory holds
    about twice as many rows as there are keys.
    """

    def __init__(self, info: TableInfo, columns: Sequence[str], *, pending_rows_min: int = _PENDING_ROWS_MIN) -> None:
        names = list(columns)
        keys = info.physical_primary_keys
        self._key_positions = [names.index(name) for name in keys]
        self._key_types = [info.schema.column(name).data_type for name in keys]
        self._schema = pa.schema([info.schema.to_arrow().field(name) for name in names])
        self._pending_rows_min = pending_rows_min
        self._folded: pa.Table | None = None
        self._pending: list[pa.Table] = []
        self._pending_rows = 0

    def add(self, run: RecordRun) -> None:
        """Add the next changes."""
        kept = is_later_row(run)
        changes = keyed_changes(run, self._key_positions, self._key_types, kept=kept)
        offsets = np.arange(run.base_offset, run.base_offset + run.count) if run.offsets is None else run.offsets
        offsets = offsets if kept is None else offsets[kept]
        timestamps = np.full(changes.num_rows, run.timestamp_ms, np.int64)
        changes = changes.append_column(_OFFSET, number_array(offsets.astype(np.int64)))
        changes = changes.append_column(_TIMESTAMP, number_array(timestamps))
        self._pending.append(changes)
        self._pending_rows += changes.num_rows
        if self._pending_rows >= max(self._pending_rows_min, 0 if self._folded is None else self._folded.num_rows):
            self._fold()

    def result(self) -> KeyChanges:
        """Return the last change of each key."""
        self._fold()
        folded = self._folded
        if folded is None:
            nothing = np.zeros(0, np.int64)
            return KeyChanges(_empty(self._schema), nothing, nothing, np.zeros(0, bool))
        columns = [folded.column(number).combine_chunks() for number in range(len(self._schema))]
        return KeyChanges(
            pa.RecordBatch.from_arrays(columns, schema=self._schema),
            buffer_numbers(folded[_OFFSET].combine_chunks(), np.int64),
            buffer_numbers(folded[_TIMESTAMP].combine_chunks(), np.int64),
            change_types(folded) == ChangeType.Delete,
        )

    def _fold(self) -> None:
        if not self._pending:
            return
        changes = pa.concat_tables(self._pending if self._folded is None else [self._folded, *self._pending])
        self._pending, self._pending_rows = [], 0
        self._folded = changes.filter(bool_array(is_end_of_key(changes))).combine_chunks()


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
