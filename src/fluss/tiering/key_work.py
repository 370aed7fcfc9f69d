"""What a task does with a bucket of a table with a primary key: newer rows, and deletes of the older ones.

| split | what is read | what is written |
|---|---|---|
| changes | the changelog; the last change of each key counts | rows that are there now; deletes of older rows |
| rows | the rows at an offset | all of them, without offsets of their own |
| anew | the same | the same, and deletes of all older rows of the bucket |

Older rows are found by reading the key columns of the bucket's data files, and deleted by their positions, which every
engine understands. A key is looked for whatever its change says it is: changelogs need not tell inserts from updates.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as IcebergTable

from fluss import FlussTable
from fluss.client.bulk import LastChanges, LogRange, read_ranges, rows_at
from fluss.lake.arrow_conversion import (
    OFFSET_OF_SNAPSHOT_ROWS,
    TIMESTAMP_MS_OF_SNAPSHOT_ROWS,
    lake_array,
    lake_batch,
)
from fluss.lake.data_files import DataFileWriter, FileLayout, write_position_deletes
from fluss.lake.key_positions import key_positions, row_positions
from fluss.lake.key_set import KeySet
from fluss.schema.offsets import ChangeType
from fluss.tiering.round_plan import TieringSplit
from fluss.tiering.split_result import Deadline, SplitResult

# Rows that are turned into the lake's form at a time.
_SLICE_ROWS: Final = 131_072


@dataclass(frozen=True)
class KeyWork:
    """What tasks need to know to bring buckets with keys to the lake."""

    layout: FileLayout
    # The state of the lake table that the round was planned on.
    lake_table: IcebergTable
    columns: tuple[str, ...]
    key_columns: tuple[str, ...]

    def run(self, table: FlussTable, split: TieringSplit, deadline: Deadline) -> SplitResult:
        """Bring one split to files."""
        partition = self.layout.partition(split.partition_values, split.bucket.bucket_id)
        with DataFileWriter(self.layout, partition) as files:
            if split.kind in ("rows", "anew"):
                keys, end, stamp = self._write_rows(table, split, files), split.stop, None
            else:
                keys, end, stamp = self._write_changes(table, split, files, deadline)
            deletes, deleted_rows = self._deletes(split, keys)
            return SplitResult(
                split, end, files.row_count, tuple(files.close()), tuple(deletes), deleted_rows, last_timestamp_ms=stamp
            )

    def _write_rows(self, table: FlussTable, split: TieringSplit, files: DataFileWriter) -> pa.Table | None:
        keys: list[pa.Table] = []
        with closing(rows_at(table, split.bucket, split.stop, columns=self.columns)) as batches:
            for batch in batches:
                count = batch.num_rows
                files.write(
                    lake_batch(
                        batch,
                        self.layout.arrow_schema,
                        bucket_id=split.bucket.bucket_id,
                        offsets=np.full(count, OFFSET_OF_SNAPSHOT_ROWS, np.int64),
                        timestamps_ms=TIMESTAMP_MS_OF_SNAPSHOT_ROWS,
                    )
                )
                # A bucket that was never tiered has rows in the lake if its partition was dropped and created again.
                if split.lake_files and split.kind == "rows":
                    keys.append(self._keys(batch))
        return pa.concat_tables(keys) if keys else None

    def _write_changes(
        self, table: FlussTable, split: TieringSplit, files: DataFileWriter, deadline: Deadline
    ) -> tuple[pa.Table | None, int, int | None]:
        """Write what is there now of all keys that have changed; return them, the end and the time of the last one."""
        changes = LastChanges(table.get_table_info(), self.columns)
        end, stamp, is_before_update = split.stop, None, False
        ranges = [LogRange(split.bucket, split.start, split.stop)]
        with closing(read_ranges(table, ranges, columns=self.columns)) as runs:
            for run in runs:
                changes.add(run)
                stamp = run.timestamp_ms
                position = run.base_offset + run.count
                is_before_update = run.change_types is not None and run.change_types[-1] == ChangeType.UpdateBefore
                if deadline.is_over and position < split.stop:
                    end = position
                    break
        if is_before_update:
            # Both records of an update are tiered, or neither.
            end -= 1
        rows, offsets, timestamps_ms, is_deleted = changes.result()
        kept = np.flatnonzero(~is_deleted)
        for first in range(0, len(kept), _SLICE_ROWS):
            numbers = kept[first : first + _SLICE_ROWS]
            files.write(
                lake_batch(
                    rows.take(pa.array(numbers)),
                    self.layout.arrow_schema,
                    bucket_id=split.bucket.bucket_id,
                    offsets=offsets[numbers],
                    timestamps_ms=timestamps_ms[numbers],
                )
            )
        return self._keys(rows), end, stamp

    def _keys(self, rows: pa.RecordBatch) -> pa.Table:
        """Return the keys of rows in the types of the lake."""
        types = {field.name: field.type for field in self.layout.arrow_schema}
        return pa.table({name: lake_array(rows.column(name), types[name]) for name in self.key_columns})

    def _deletes(self, split: TieringSplit, keys: pa.Table | None) -> tuple[list[DataFile], int]:
        if split.kind == "anew":
            # What was deleted meanwhile is not told any more: all rows go, and those that are still there come again.
            positions = row_positions(self.lake_table, split.lake_files)
        elif keys is None or not keys.num_rows or not split.lake_files:
            return [], 0
        else:
            positions = key_positions(self.lake_table, split.lake_files, KeySet(keys))
        partition = self.layout.partition(split.partition_values, split.bucket.bucket_id)
        return write_position_deletes(self.layout, partition, positions), positions.num_rows
