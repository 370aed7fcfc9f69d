"""What a task of a round does: reads its splits from Fluss and writes them as data files of the lake.

A task knows neither the catalog nor the other tasks. Everything it is given and returns can be pickled. What it has
written belongs to the lake only when the driver commits it. An attempt that fails deletes its files; what one leaves
behind that died is found as orphans later.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

from fluss import FlussTable
from fluss.client.bulk import LogRange, RecordRun, read_ranges
from fluss.errors import ErrorCode, FlussError
from fluss.lake.arrow_conversion import lake_batch
from fluss.lake.data_files import DataFileWriter, FileLayout
from fluss.schema.table import TableBucket, TablePath
from fluss.tiering.key_work import KeyWork
from fluss.tiering.round_plan import TieringSplit
from fluss.tiering.split_result import Deadline, SplitResult, TaskResult

# Rows that all writers of a task may hold before the largest of them has to write.
_WAITING_BYTES_MAX: Final = 192 << 20


@dataclass(frozen=True)
class RoundWork:
    """What tasks of a round are told. It is made on the driver, and sent."""

    path: TablePath
    table_id: int
    layout: FileLayout
    # Columns of the Fluss table, as they were when the round was planned.
    columns: tuple[str, ...]
    deadline: Deadline
    # For tables with a primary key.
    key_work: KeyWork | None = None

    def run(self, table: FlussTable, splits: tuple[TieringSplit, ...]) -> TaskResult:
        """Bring splits to files. Raises code 7 if the table is another one by now."""
        if table.get_table_info().table_id != self.table_id:
            raise FlussError(
                f"{self.path} was dropped and created again while it was tiered", ErrorCode.TABLE_NOT_EXIST
            )
        if self.key_work is None:
            return TaskResult(tuple(_LogTask(self, table).run(splits)))
        return TaskResult(tuple(self._key_result(self.key_work, table, split) for split in splits))

    def _key_result(self, work: KeyWork, table: FlussTable, split: TieringSplit) -> SplitResult:
        # The rows of a bucket that is tiered for the first time are read to their end, or not at all.
        if self.deadline.is_over:
            return SplitResult(split, None)
        try:
            return work.run(table, split, self.deadline)
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            return SplitResult(split, None)


class _LogTask:
    """Splits of logs, each of another bucket, read side by side."""

    def __init__(self, work: RoundWork, table: FlussTable) -> None:
        self._work = work
        self._table = table
        self._waiting_bytes = 0

    def run(self, splits: tuple[TieringSplit, ...]) -> list[SplitResult]:
        try:
            return self._tiered(splits)
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
        # One by one, so that all but the dropped partition are tiered.
        return [result for split in splits for result in self._tiered_if_there(split)]

    def _tiered_if_there(self, split: TieringSplit) -> list[SplitResult]:
        try:
            return self._tiered((split,))
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            return [SplitResult(split, None)]

    def _tiered(self, splits: tuple[TieringSplit, ...]) -> list[SplitResult]:
        with ExitStack() as stack:
            writers = {split.bucket: _SplitWriter(self._work, split) for split in splits}
            assert len(writers) == len(splits), "a task has one split of a bucket"
            for writer in writers.values():
                stack.enter_context(writer.files)
            ranges = [LogRange(split.bucket, split.start, split.stop) for split in splits]
            self._waiting_bytes = 0
            with closing(read_ranges(self._table, ranges, columns=self._work.columns)) as runs:
                for run in runs:
                    self._write(writers, run)
                    if self._work.deadline.is_over:
                        break
                else:
                    # The last batches may have had no records.
                    for writer in writers.values():
                        writer.position = writer.split.stop
            return [writer.result() for writer in writers.values()]

    def _write(self, writers: Mapping[TableBucket, _SplitWriter], run: RecordRun) -> None:
        writer = writers[run.bucket]
        before = writer.files.waiting_bytes
        writer.write(run)
        self._waiting_bytes += writer.files.waiting_bytes - before
        if self._waiting_bytes >= _WAITING_BYTES_MAX:
            largest = max(writers.values(), key=lambda each: each.files.waiting_bytes)
            self._waiting_bytes -= largest.files.waiting_bytes
            largest.files.flush()


class _SplitWriter:
    def __init__(self, work: RoundWork, split: TieringSplit) -> None:
        self.split = split
        # Where the next record is.
        self.position = split.start
        layout = work.layout
        self.files = DataFileWriter(layout, layout.partition(split.partition_values, split.bucket.bucket_id))
        self._schema = layout.arrow_schema
        self._last_timestamp_ms: int | None = None

    def write(self, run: RecordRun) -> None:
        assert run.batch is not None
        self.files.write(
            lake_batch(
                run.batch,
                self._schema,
                bucket_id=run.bucket.bucket_id,
                offsets=run.base_offset if run.offsets is None else run.offsets,
                timestamps_ms=run.timestamp_ms,
            )
        )
        self.position = run.base_offset + run.count
        self._last_timestamp_ms = run.timestamp_ms

    def result(self) -> SplitResult:
        files = self.files.close()
        return SplitResult(
            self.split,
            self.position,
            self.files.row_count,
            tuple(files),
            last_timestamp_ms=self._last_timestamp_ms,
        )
