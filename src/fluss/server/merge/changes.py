"""What goes into a merge and what comes out of it: one KV batch, and the changes it makes.

A merge numbers the rows it knows: those that are stored, those that were received, those it has made of both. Every
record leads from one of them, or from no row, to another one, or to no row (a transition), and the changelog follows:

| before | after  | FULL image          | WAL image  |
|--------|--------|---------------------|------------|
| none   | row    | +I after            | +I after   |
| row    | row    | -U before, +U after | +U after   |
| row    | none   | -D before           | -D before  |
| none   | none   | nothing             | nothing    |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from fluss.buffers import Int64Array, UInt8Array
from fluss.record.mutations import FoundRows, Mutations
from fluss.row.arrow_arrays import BoolArray
from fluss.row.encoded import EncodedRows, offsets_of
from fluss.schema.offsets import ChangeType
from fluss.schema.table_options import ChangelogImage
from fluss.server.merge.key_fold import KeyFold

# The number of a row that is not there.
NO_ROW = -1
# As bytes: numpy takes long to find out what a member of an enum is.
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = map(
    np.uint8, (ChangeType.Insert, ChangeType.UpdateBefore, ChangeType.UpdateAfter, ChangeType.Delete)
)
# Hands out so many ids for new rows of a table with an auto-increment column, in order.
NextIds: TypeAlias = Callable[[int], Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class MergeInput:
    """One KV batch, taken apart, and the rows its keys have now.

    Its checksum and its schema id have been verified, its targets have passed ``check_targets``.
    """

    keys: EncodedRows
    # The row of a delete is empty.
    rows: EncodedRows
    is_delete: BoolArray
    # Of all rows.
    schema_id: int
    fold: KeyFold
    # What is stored under the unique keys, by their slots. Nothing if the merger said that it does not need it.
    old: FoundRows
    # The columns a partial update writes, empty for whole rows.
    targets: tuple[int, ...] = ()
    # Whether the writer asked to bypass the merge engine of the table.
    is_overwrite: bool = False


@dataclass(slots=True, eq=False)
class Changes:
    """What a batch does to its bucket: to the stored rows, and in the changelog."""

    # The row of each changed key after the batch; an empty one removes the key.
    changed: Mutations
    # The changelog in the newest schema, in the order of its offsets, and what each row is.
    rows: pa.RecordBatch
    change_types: UInt8Array
    # Keys that were added minus keys that were removed; None if the table does not count.
    row_count_delta: int | None
    # The slots of the changed keys, and of the keys that the rows of the changelog are about: both in the order of the
    # records that they come from.
    changed_slots: Int64Array
    row_slots: Int64Array


class LogEntries(NamedTuple):
    """The changelog of a batch in the order of its offsets: which row each entry shows, and what it says."""

    rows: Int64Array
    change_types: UInt8Array
    # The record that each entry comes from, ascending.
    records: Int64Array


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
        return LogEntries(rows[is_shown], change_types[is_shown], np.flatnonzero(is_shown) >> 1)

    @property
    def row_count_delta(self) -> int:
        """How many more keys have a row afterwards."""
        return int(np.count_nonzero(self.after >= 0)) - int(np.count_nonzero(self.before >= 0))

    @property
    def has_effect(self) -> BoolArray:
        """Which records change anything."""
        return (self.before >= 0) | (self.after >= 0)


def row_count_delta(change_types: UInt8Array) -> int:
    """Return how many more keys there are after changes of a FULL changelog."""
    return int(np.count_nonzero(change_types == INSERT)) - int(np.count_nonzero(change_types == DELETE))


def row_count_deltas(change_types: UInt8Array, ends: Int64Array) -> Int64Array:
    """Return how many more keys there are after each piece of a FULL changelog; ``ends`` are the pieces' ends."""
    counts = offsets_of((change_types == INSERT).astype(np.int64) - (change_types == DELETE))
    return np.diff(counts[ends], prepend=0)
