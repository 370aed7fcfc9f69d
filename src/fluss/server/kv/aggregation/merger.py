"""The merge engine ``aggregation``: each column of a row is merged by its own function.

All records of a key are looked at together, in order, behind the stored row if there is one. These are its entries:

    stored row, put, put, delete, put, ...

The state of the row after each of them is one row of a table of states, which is made column by column for all keys at
once. What a record does is then told by two rows of that table, the state before and the state after it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.errors import ErrorCode, FlussError
from fluss.row.arrow_arrays import mask_from_arrow, number_array, take_rows
from fluss.row.encoded import EncodedRows
from fluss.server.kv.aggregation.entries import Entries
from fluss.server.kv.aggregation.functions import states_function
from fluss.server.kv.aggregation.limits import check_states_size
from fluss.server.kv.batch_rows import BatchReader, BatchRows, spread
from fluss.server.kv.changes import Changes, KvInput, NextIds
from fluss.server.kv.column_roles import ColumnRoles, drawn_ids
from fluss.server.table_options import ChangelogImage, DeleteBehavior
from fluss.storage.kv.keyed_rows import KeyedRows


class AggregationMerger:
    """Merges rows and parts of rows. Stored rows are encoded anew in the newest schema.

    The first row of a key is taken as it is, also if a partial update brings it. Later ones merge the target columns;
    the others stay. A delete of a whole row removes it. A partial delete makes the targets null, and removes the row if
    nothing but the key would be left.
    """

    def __init__(self, reader: BatchReader, deletes: DeleteBehavior) -> None:
        self._reader = reader
        self._deletes = deletes
        self._schema = reader.codec.schema
        self._functions = [states_function(column) for column in self._schema.columns]

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        return True

    def merge(self, batch: KvInput, next_ids: NextIds | None) -> Changes:
        assert not batch.is_overwrite, "overwriting is what bypasses this engine"
        rows = self._reader.read(batch, self._deletes)
        roles = ColumnRoles.of(self._schema, batch.targets or range(len(self._schema.columns)))
        entries = Entries.of(rows, roles)
        # Deletes of parts of a row are entries, too, and came without a row that was counted.
        self._reader.check_size(len(entries.rows), 0)
        _check_repeated_bytes(batch, rows, entries)
        states = self._states(rows, roles, entries, next_ids)
        transitions = entries.transitions()
        log_entries = transitions.log_entries(ChangelogImage.FULL)
        keys, records = rows.final_state(transitions.has_effect)
        final_entries = transitions.after[records]
        is_there = final_entries >= 0
        final_rows = self._encoded(take_rows(states, final_entries[is_there]))
        return Changes(
            changed=KeyedRows(keys, spread(final_rows, is_there), self._reader.codec.schema_id),
            rows=take_rows(states, log_entries.rows),
            change_types=log_entries.change_types,
            row_count_delta=transitions.row_count_delta,
        )

    def _states(
        self, rows: BatchRows, roles: ColumnRoles, entries: Entries, next_ids: NextIds | None
    ) -> pa.RecordBatch:
        """Make the state of the row after each entry. Those of keys without a row mean nothing."""
        if not len(entries.rows):
            return rows.rows.slice(0, 0)
        columns: list[pa.Array] = [None] * len(self._functions)
        for indexes, numbers in (
            (roles.keys, entries.last_rows),
            (roles.others, entries.birth_rows),
            (roles.targets, entries.rows),
        ):
            taken = _row_numbers(numbers)
            for index in indexes:
                columns[index] = rows.rows.column(index).take(taken)
        for index in roles.targets:
            columns[index] = self._functions[index](columns[index], entries.segments)
            self._check_nulls(index, columns[index], entries)
        if roles.generated is not None:
            columns[roles.generated] = self._generated(roles.generated, rows, entries, next_ids)
        return pa.RecordBatch.from_arrays(columns, schema=rows.rows.schema)

    def _generated(self, index: int, rows: BatchRows, entries: Entries, next_ids: NextIds | None) -> pa.Array:
        """Make the states of the auto-increment column: what is stored, or an id drawn for a new row."""
        inserts = entries.inserts
        ids = drawn_ids(self._schema.columns[index], len(inserts), next_ids)
        numbers = entries.rows.copy()
        numbers[inserts] = rows.rows.num_rows + np.arange(len(inserts))
        values = pa.concat_arrays([rows.rows.column(index), ids])
        return values.take(_row_numbers(numbers[entries.births]))

    def _check_nulls(self, index: int, states: pa.Array, entries: Entries) -> None:
        """Refuse what only a decimal function does: make null of two values of a NOT NULL column."""
        column = self._schema.columns[index]
        valid = mask_from_arrow(states)
        if valid is not None and not column.data_type.nullable and bool((entries.is_alive & ~valid).any()):
            raise FlussError(
                f"A value of column '{column.name}' has too many digits for its type {column.data_type}, and it cannot "
                "be null; nothing of the batch was written",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )

    def _encoded(self, rows: pa.RecordBatch) -> EncodedRows:
        try:
            return self._reader.codec.encode(rows)
        except FlussError as error:
            raise FlussError(
                f"A merged row does not fit the table: {error.message}", ErrorCode.INVALID_TABLE_EXCEPTION
            ) from error


def _check_repeated_bytes(batch: KvInput, rows: BatchRows, entries: Entries) -> None:
    """Refuse (code 13) many records for the key of a large row, which the changelog would repeat with each of them."""
    if rows.fold.is_unique:
        return
    # One more at the end is what NO_ROW leads to.
    row_bytes = np.concatenate((batch.old.value_lengths, rows.encoded.lengths[~rows.is_delete], [0]))
    # No value of a state comes from a larger row, except for those that functions make and look after.
    check_states_size(int(entries.keys.folded(np.maximum, row_bytes[entries.rows]).sum()))


def _row_numbers(numbers: Int64Array) -> pa.Array:
    """Return the numbers for a take, which makes null of NO_ROW."""
    is_absent = numbers < 0
    return number_array(numbers, is_absent) if is_absent.any() else number_array(numbers)
