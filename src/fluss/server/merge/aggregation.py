"""The merge engine ``aggregation``: each column of a row is merged by its own function.

All records of a key are looked at together, in order, behind the stored row if there is one. These are its entries:

    stored row, put, put, delete, put, ...

The state of the row after each of them is one row of a table of states, which is made column by column for all keys at
once. What a record does is then told by two rows of that table, the state before and the state after it.

A life is what happens between the first row of a key and its removal. A delete ends it, unless it is partial and the
row has values in other columns; those never change during a life, so the row with which it begins decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.errors import ErrorCode, FlussError
from fluss.record.mutations import Mutations
from fluss.row.arrow_arrays import BoolArray, mask_from_arrow, number_array, take_rows
from fluss.row.encoded import EncodedRows
from fluss.schema.table_options import ChangelogImage, DeleteBehavior
from fluss.server.merge.aggregate_functions import check_states_size, states_function
from fluss.server.merge.changes import NO_ROW, Changes, MergeInput, NextIds, Transitions
from fluss.server.merge.column_roles import ColumnRoles, drawn_ids
from fluss.server.merge.decoded_batch import DecodedKvBatch, KvBatchDecoder, spread
from fluss.server.merge.segments import Segments


class AggregationMerger:
    """Merges whole rows and partial updates. Stored rows are encoded anew in the newest schema.

    The first row of a key is taken as it is, also if a partial update brings it. Later ones merge the target columns;
    the others stay. A delete of a whole row removes it. A partial delete makes the targets null, and removes the row if
    nothing but the key would be left.
    """

    def __init__(self, decoder: KvBatchDecoder, deletes: DeleteBehavior) -> None:
        self._decoder = decoder
        self._deletes = deletes
        self._schema = decoder.codec.schema
        self._functions = [states_function(column) for column in self._schema.columns]

    def needs_old_values(self, targets: Sequence[int], is_overwrite: bool, has_deletes: bool) -> bool:
        return True

    def merge(self, batch: MergeInput, next_ids: NextIds | None) -> Changes:
        assert not batch.is_overwrite, "overwriting is what bypasses this engine"
        rows = self._decoder.decode(batch, self._deletes)
        roles = ColumnRoles.of(self._schema, batch.targets or range(len(self._schema.columns)))
        entries = Entries.of(rows, roles)
        # Partial deletes are entries, too, and came without a row that was counted.
        self._decoder.check_size(len(entries.rows), 0)
        _check_repeated_bytes(batch, rows, entries)
        states = self._states(rows, roles, entries, next_ids)
        transitions = entries.transitions()
        log_entries = transitions.log_entries(ChangelogImage.FULL)
        keys, records = rows.final_state(transitions.has_effect)
        final_entries = transitions.after[records]
        is_there = final_entries >= 0
        final_rows = self._encoded(take_rows(states, final_entries[is_there]))
        return Changes(
            changed=Mutations(keys, spread(final_rows, is_there), self._decoder.codec.schema_id),
            rows=take_rows(states, log_entries.rows),
            change_types=log_entries.change_types,
            row_count_delta=transitions.row_count_delta,
            changed_slots=rows.fold.slots[records],
            row_slots=rows.fold.slots[log_entries.records],
        )

    def _states(
        self, rows: DecodedKvBatch, roles: ColumnRoles, entries: Entries, next_ids: NextIds | None
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

    def _generated(self, index: int, rows: DecodedKvBatch, entries: Entries, next_ids: NextIds | None) -> pa.Array:
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
            return self._decoder.codec.encode(rows)
        except FlussError as error:
            raise FlussError(
                f"A merged row does not fit the table: {error.message}", ErrorCode.INVALID_TABLE_EXCEPTION
            ) from error


def _check_repeated_bytes(batch: MergeInput, rows: DecodedKvBatch, entries: Entries) -> None:
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


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """What is merged, in order. Entries are numbered from 0."""

    # Entry -> number of its stored or received row, NO_ROW for deletes.
    rows: Int64Array
    # Record -> its entry.
    by_record: Int64Array
    # Whether the key has a row after the entry, and before it.
    is_alive: BoolArray
    was_alive: BoolArray
    # Entry -> the entry with which its life began; means nothing if there is no row.
    births: Int64Array
    # The entries of one key each.
    keys: Segments
    # What is folded together in the target columns.
    segments: Segments

    @classmethod
    def of(cls, rows: DecodedKvBatch, roles: ColumnRoles) -> Entries:
        """Put the records of each key behind its stored row."""
        order, starts = rows.fold.runs()
        stored = rows.stored[rows.fold.slots[order[starts[:-1]]]]
        is_stored = stored >= 0
        # A stored row moves the records of its key, and all that follow, back by one.
        shifts = np.cumsum(is_stored)
        by_record = np.empty(len(order), np.int64)
        by_record[order] = np.arange(len(order)) + np.repeat(shifts, np.diff(starts))
        first_entries = starts[:-1] + shifts - is_stored
        entry_rows = np.empty(len(order) + np.count_nonzero(is_stored), np.int64)
        entry_rows[by_record] = rows.received
        entry_rows[first_entries[is_stored]] = stored[is_stored]
        is_first = np.zeros(len(entry_rows), np.bool_)
        is_first[first_entries] = True
        if rows.is_delete.any():
            return cls._with_deletes(entry_rows, by_record, is_first, _keeps_life(rows, roles))
        keys = Segments(is_first)
        return cls(entry_rows, by_record, np.ones_like(is_first), ~is_first, keys.first_entries, keys, segments=keys)

    @classmethod
    def _with_deletes(
        cls, entry_rows: Int64Array, by_record: Int64Array, is_first: BoolArray, keeps_life: BoolArray
    ) -> Entries:
        is_put = entry_rows >= 0
        follows_put = _before(is_put, is_first)
        # Here a life begins, if the delete before it ended one.
        may_begin = is_put & ~follows_put
        # No delete ends a life after it began with a row that deletes do not remove.
        keys = Segments(is_first)
        lasts = keys.any_so_far(may_begin & keeps_life[entry_rows])
        begins = may_begin & ~_before(lasts, is_first)
        is_alive = is_put | lasts
        return cls(
            rows=entry_rows,
            by_record=by_record,
            is_alive=is_alive,
            was_alive=_before(is_alive, is_first),
            births=np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0)),
            keys=keys,
            # A delete makes the targets null, which is a segment of its own. What follows begins anew.
            segments=Segments(~(is_put & follows_put)),
        )

    @property
    def last_rows(self) -> Int64Array:
        """Entry -> number of the last row that was there or was put, which deletes do not change."""
        return self.rows[np.maximum.accumulate(np.where(self.rows >= 0, np.arange(len(self.rows)), 0))]

    @property
    def birth_rows(self) -> Int64Array:
        """Entry -> number of the row with which its life began."""
        return self.rows[self.births]

    @property
    def inserts(self) -> Int64Array:
        """The entries of the records that found no row and left one, in the order of the records."""
        entries = self.by_record
        return entries[self.is_alive[entries] & ~self.was_alive[entries]]

    def transitions(self) -> Transitions:
        """Return what each record does, with the numbers of entries for the states of rows after them."""
        entries = self.by_record
        return Transitions(
            np.where(self.was_alive[entries], entries - 1, NO_ROW), np.where(self.is_alive[entries], entries, NO_ROW)
        )


def _before(flags: BoolArray, is_first: BoolArray) -> BoolArray:
    """Return the flags of the entries before; False for the first of each key."""
    before = np.zeros_like(flags)
    before[1:] = flags[:-1]
    return before & ~is_first


def _keeps_life(rows: DecodedKvBatch, roles: ColumnRoles) -> BoolArray:
    """Return for each row whether it has a value that no delete of the batch makes null. NO_ROW has none."""
    keeps_life = np.zeros(rows.rows.num_rows + 1, np.bool_)
    if roles.generated is not None:
        # New rows get a value there.
        keeps_life[rows.stored_count : -1] = True
        keeps_life[: rows.stored_count] = _has_value(rows.rows.column(roles.generated).slice(0, rows.stored_count))
    for index in roles.others:
        keeps_life[:-1] |= _has_value(rows.rows.column(index))
    return keeps_life


def _has_value(column: pa.Array) -> BoolArray:
    valid = mask_from_arrow(column)
    return np.ones(len(column), np.bool_) if valid is None else valid
