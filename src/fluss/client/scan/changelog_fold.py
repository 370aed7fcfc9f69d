"""The current rows of a table from all its changes: of every key, the last change counts.

For servers that cannot return current rows. Changes are taken in as they come and folded now and then, when as many
have come as there are rows: so memory holds about twice the rows of the table, and no change is looked at more than a
few times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.scan.decode import ScanColumns
from fluss.client.scan.records import RecordRun
from fluss.row import compacted_columns
from fluss.row.byte_ranges import large_binary_array, offsets_of
from fluss.row.plain_arrays import bool_array
from fluss.schema.change_type import ChangeType
from fluss.schema.table import TableBucket

# Changes that are gathered before they are folded for the first time.
_PENDING_ROWS_MIN: Final = 262_144


class ChangelogFold:
    """Folds the changes of the buckets of one table. Used by one thread at a time.

    ``columns`` are wanted. Changes have the columns ``with_keys``: those, and what else there is of ``key_names``, the
    primary key without the partition columns. Changes of one bucket come in the order of their offsets.
    """

    def __init__(self, columns: ScanColumns, with_keys: ScanColumns, key_names: Sequence[str]) -> None:
        self._columns = columns
        names = [column.name for column in with_keys.columns]
        self._key_positions = [names.index(name) for name in key_names]
        self._key_types = [with_keys.columns[position].data_type for position in self._key_positions]
        # A key is one row in each bucket: partitions have the same keys, and writers may disagree about buckets.
        self._buckets: dict[TableBucket, _BucketFold] = {}
        self._folded_rows = 0
        self._pending_rows = 0

    def add(self, run: RecordRun) -> None:
        """Take in the next changes of a bucket."""
        changes = self._changes(run)
        self._buckets.setdefault(run.bucket, _BucketFold(changes.schema)).pending.append(changes)
        self._pending_rows += changes.num_rows
        if self._pending_rows >= max(self._folded_rows, _PENDING_ROWS_MIN):
            self._fold()

    def rows(self) -> Iterator[RecordRun]:
        """Return the rows that are left, bucket by bucket."""
        self._fold()
        schema = self._columns.arrow_schema
        types = tuple(column.data_type for column in self._columns.columns)
        for bucket, fold in self._buckets.items():
            for batch in fold.folded.select(range(len(types))).to_batches():
                yield RecordRun.of_snapshot(bucket, pa.RecordBatch.from_arrays(batch.columns, schema=schema), types)

    def _changes(self, run: RecordRun) -> pa.Table:
        batch, change_types = run.batch, run.change_types
        assert batch is not None
        if change_types is None:
            change_types = np.full(run.count, ChangeType.AppendOnly, np.uint8)
        keys = compacted_columns.encode_keys(
            [batch.column(position) for position in self._key_positions], self._key_types
        )
        changes = pa.table(
            {
                # By number, because a column may be wanted twice.
                **{str(position): column for position, column in enumerate(batch.columns)},
                "key": large_binary_array(keys.data, offsets_of(keys.lengths)),
                "is_delete": bool_array(change_types == ChangeType.Delete),
            }
        )
        # What a row was before says nothing about what it is.
        kept = change_types != ChangeType.UpdateBefore
        return changes if kept.all() else changes.filter(bool_array(kept))

    def _fold(self) -> None:
        self._pending_rows = self._folded_rows = 0
        for fold in self._buckets.values():
            fold.fold()
            self._folded_rows += fold.folded.num_rows


class _BucketFold:
    """The rows of one bucket as far as they are folded, and the changes since."""

    def __init__(self, schema: pa.Schema) -> None:
        self.folded: pa.Table = schema.empty_table()
        self.pending: list[pa.Table] = []

    def fold(self) -> None:
        if not self.pending:
            return
        rows = pa.concat_tables([self.folded, *self.pending])
        self.pending = []
        numbered = rows["key"].combine_chunks().dictionary_encode()
        last = np.zeros(len(numbered.dictionary), np.int64)
        np.maximum.at(last, numbered.indices.to_numpy(), np.arange(rows.num_rows))
        is_last = np.zeros(rows.num_rows, bool)
        is_last[last] = True
        self.folded = rows.filter(pc.and_not(bool_array(is_last), rows["is_delete"])).combine_chunks()
