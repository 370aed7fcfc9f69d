"""Rows from changes: of every key, the last change counts.

All changes of a table give its current rows, for servers that cannot return them; those of some hours give what was
written in these hours. Changes are gathered as they come and folded now and then, when as many have come as there are
rows: so memory holds about twice the rows of the table, and no change is looked at more than a few times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from fluss.buffers import UInt8Array
from fluss.client.kernel.decode import ScanColumns, filtered_rows
from fluss.client.scan.records import RecordRun
from fluss.row import compacted_columns
from fluss.row.arrow_arrays import BoolArray, bool_array, buffer_numbers, number_array
from fluss.row.encoded import large_binary_array, offsets_of
from fluss.schema.offsets import ChangeType
from fluss.schema.table import TableBucket
from fluss.schema.types import DataType

# Changes that are gathered before they are folded for the first time.
_PENDING_ROWS_MIN: Final = 262_144


class ChangelogFold:
    """Folds the changes of the buckets of one table. Used by one thread at a time.

    ``columns`` are wanted, of the rows that their filter keeps. Changes have the columns ``with_keys``: those, what
    else the filter needs, and what else there is of ``key_names``, the primary key without the partition columns.
    Changes of one bucket come in the order of their offsets. With ``keeps_deletes`` keys that end with a deletion are
    kept, for a caller who has older rows: they are among the ``changes`` and not among the ``rows``.
    """

    def __init__(
        self,
        columns: ScanColumns,
        with_keys: ScanColumns,
        key_names: Sequence[str],
        *,
        keeps_deletes: bool = False,
        pending_rows_min: int = _PENDING_ROWS_MIN,
    ) -> None:
        self._columns = columns
        self._keeps_deletes = keeps_deletes
        self._pending_rows_min = pending_rows_min
        names = [column.name for column in with_keys.columns]
        self._key_positions = [names.index(name) for name in key_names]
        self._key_types = [with_keys.columns[position].data_type for position in self._key_positions]
        # A key is one row in each bucket: partitions have the same keys, and writers may disagree about buckets.
        self._buckets: dict[TableBucket, _BucketFold] = {}
        self._folded_rows = 0
        self._pending_rows = 0

    def add(self, run: RecordRun) -> None:
        """Add the next changes of a bucket."""
        changes = keyed_changes(run, self._key_positions, self._key_types, kept=is_later_row(run))
        fold = self._buckets.setdefault(run.bucket, _BucketFold(changes.schema, self._keeps_deletes))
        fold.pending.append(changes)
        self._pending_rows += changes.num_rows
        if self._pending_rows >= max(self._folded_rows, self._pending_rows_min):
            self._fold()

    def rows(self) -> Iterator[RecordRun]:
        """Return the rows that are left, bucket by bucket."""
        self._fold()
        unfiltered = self._columns.with_filter_columns()
        types = tuple(column.data_type for column in self._columns.columns)
        for bucket, fold in self._buckets.items():
            for batch in fold.rows().select(range(len(unfiltered.columns))).to_batches():
                rows = pa.RecordBatch.from_arrays(batch.columns, schema=unfiltered.arrow_schema)
                yield RecordRun.of_snapshot(bucket, filtered_rows(rows, self._columns), types)

    def changes(self, bucket: TableBucket) -> pa.Table | None:
        """Return the last change of every key of a bucket as ``keyed_changes`` does; None if it has no changes."""
        self._fold()
        fold = self._buckets.get(bucket)
        return None if fold is None else fold.folded

    def _fold(self) -> None:
        self._pending_rows = self._folded_rows = 0
        for fold in self._buckets.values():
            fold.fold()
            self._folded_rows += fold.folded.num_rows


class _BucketFold:
    """The rows of one bucket as far as they are folded, and the changes since."""

    def __init__(self, schema: pa.Schema, keeps_deletes: bool) -> None:
        self.folded: pa.Table = schema.empty_table()
        self.pending: list[pa.Table] = []
        self._keeps_deletes = keeps_deletes

    def fold(self) -> None:
        if not self.pending:
            return
        rows = pa.concat_tables([self.folded, *self.pending])
        self.pending = []
        kept = is_end_of_key(rows)
        if not self._keeps_deletes:
            kept &= change_types(rows) != ChangeType.Delete
        self.folded = _kept(rows, kept).combine_chunks()

    def rows(self) -> pa.Table:
        """Return what is left when deletions have been applied."""
        if not self._keeps_deletes:
            return self.folded
        return without_deletes(self.folded)


def is_later_row(run: RecordRun) -> BoolArray | None:
    """Say of each change whether it has a row as it is afterwards; None if all have one.

    What a row was before its update says nothing about what it is now.
    """
    if run.change_types is None:
        return None
    kept: BoolArray = run.change_types != ChangeType.UpdateBefore
    return None if kept.all() else kept


def keyed_changes(
    run: RecordRun,
    key_positions: Sequence[int],
    key_types: Sequence[DataType],
    *,
    kept: BoolArray | None = None,
) -> pa.Table:
    """Return changes with each key as one value: ``key`` and ``change_type`` behind columns named by their numbers.

    The columns have numbers because one may be wanted twice. Of the changes only those that are ``kept`` are returned.
    """
    batch, types = run.batch, run.change_types
    assert batch is not None
    if types is None:
        types = np.full(run.count, ChangeType.AppendOnly, np.uint8)
    if kept is not None:
        batch, types = batch.filter(bool_array(kept)), types[kept]
    columns = {str(position): column for position, column in enumerate(batch.columns)}
    key = encoded_keys(batch, key_positions, key_types)
    return pa.table({**columns, "key": key, "change_type": number_array(types)})


def encoded_keys(batch: pa.RecordBatch, key_positions: Sequence[int], key_types: Sequence[DataType]) -> pa.Array:
    """Return the key of every row as one value, which is the same for the same key, and only for it.

    A key of one column is this column as it is, which is quickest; others are bytes.
    """
    if len(key_positions) == 1:
        column = batch.column(key_positions[0])
        # Zero is not the same key as minus zero.
        if not pat.is_floating(column.type) and not pat.is_nested(column.type):
            return column
    keys = compacted_columns.encode_keys([batch.column(position) for position in key_positions], key_types)
    return large_binary_array(keys.data, offsets_of(keys.lengths))


def without_deletes(changes: pa.Table) -> pa.Table:
    """Return those of ``keyed_changes`` that leave a row behind."""
    return _kept(changes, change_types(changes) != ChangeType.Delete)


def _kept(changes: pa.Table, kept: BoolArray) -> pa.Table:
    return changes if kept.all() else changes.filter(bool_array(kept))


def change_types(changes: pa.Table) -> UInt8Array:
    """Return what each of ``keyed_changes`` says."""
    return buffer_numbers(changes["change_type"].combine_chunks(), np.uint8)


def is_end_of_key(changes: pa.Table, *, is_first: bool = False) -> BoolArray:
    """Say of each of ``keyed_changes`` whether it is the last one of its key, or the first one."""
    numbered = changes["key"].combine_chunks().dictionary_encode()
    numbers, rows = buffer_numbers(numbered.indices, np.int32), np.arange(changes.num_rows)
    ends = np.zeros(len(numbered.dictionary), np.int64)
    # numpy keeps the last of several values for one index.
    if is_first:
        ends[numbers[::-1]] = rows[::-1]
    else:
        ends[numbers] = rows
    is_end = np.zeros(len(rows), bool)
    is_end[ends] = True
    return is_end
