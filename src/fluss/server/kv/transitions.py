"""What each record of a batch does to its key, as row numbers, and the changelog that follows from it.

A merge numbers the rows it knows: those that are stored, those that were received, those it has made of both. Every
record leads from one of them, or from no row, to another one, or to no row:

| before | after  | FULL image        | WAL image  |
|--------|--------|-------------------|------------|
| none   | row    | +I after          | +I after   |
| row    | row    | -U before, +U after | +U after |
| row    | none   | -D before         | -D before  |
| none   | none   | nothing           | nothing    |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fluss.buffers import Int64Array, UInt8Array
from fluss.row.arrow_arrays import BoolArray
from fluss.schema.change_type import ChangeType
from fluss.server.table_options import ChangelogImage

# The number of a row that is not there.
NO_ROW = -1
# As bytes: numpy takes long to find out what a member of an enum is.
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = map(
    np.uint8, (ChangeType.Insert, ChangeType.UpdateBefore, ChangeType.UpdateAfter, ChangeType.Delete)
)


class LogEntries(NamedTuple):
    """The changelog of a batch in the order of its offsets: which row each entry shows, and what it says."""

    rows: Int64Array
    change_types: UInt8Array


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """The number of the row before and after each record, in the order of the records; ``NO_ROW`` is none."""

    before: Int64Array
    after: Int64Array

    def log_entries(self, image: ChangelogImage, *, inserts_are_updates: bool = False) -> LogEntries:
        """Return the changelog. ``inserts_are_updates`` is for writes that do not look at what is stored: all +U."""
        has_before, has_after = self.before >= 0, self.after >= 0
        rows = np.empty((len(self.before), 2), np.int64)
        rows[:, 0], rows[:, 1] = self.before, self.after
        change_types = np.empty(rows.shape, np.uint8)
        change_types[:, 0] = np.where(has_after, UPDATE_BEFORE, DELETE)
        if inserts_are_updates:
            change_types[:, 1] = UPDATE_AFTER
        else:
            change_types[:, 1] = np.where(has_before, UPDATE_AFTER, INSERT)
        is_shown = rows >= 0
        if image is ChangelogImage.WAL:
            is_shown[:, 0] &= ~has_after
        return LogEntries(rows[is_shown], change_types[is_shown])

    @property
    def row_count_delta(self) -> int:
        """How many more keys have a row afterwards."""
        return int(np.count_nonzero(self.after >= 0)) - int(np.count_nonzero(self.before >= 0))

    @property
    def has_effect(self) -> BoolArray:
        """Which records change anything."""
        return (self.before >= 0) | (self.after >= 0)
