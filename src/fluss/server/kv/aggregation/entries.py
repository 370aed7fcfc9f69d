"""The records of a batch in the order in which they are merged, and which of them find a row and leave one behind.

Key by key, the entries are the stored row, if there is one, and the records of the key:

    stored row, put, put, delete, put, ...

A life is what happens between the first row of a key and its removal. A delete ends it, unless it is partial and the
row has values in other columns; those never change during a life, so the row with which it begins decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array
from fluss.row.arrow_arrays import BoolArray, mask_from_arrow
from fluss.server.kv.aggregation.segments import Segments
from fluss.server.kv.batch_rows import BatchRows
from fluss.server.kv.column_roles import ColumnRoles
from fluss.server.kv.transitions import NO_ROW, Transitions


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
    def of(cls, rows: BatchRows, roles: ColumnRoles) -> Entries:
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


def _keeps_life(rows: BatchRows, roles: ColumnRoles) -> BoolArray:
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
