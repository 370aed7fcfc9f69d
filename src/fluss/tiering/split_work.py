"""What a task of a round does: reads its splits from Fluss and writes them as data files of the lake.

A task knows neither the catalog nor the other tasks. Everything it is given and returns can be pickled. What it has
written belongs to the lake only when the driver commits it. An attempt that fails deletes its files; what one leaves
behind that died is found as orphans later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.manifest import DataFile

from fluss import FlussTable
from fluss.client.bulk import LogRange, RecordRun, read_ranges
from fluss.errors import ErrorCode, FlussError
from fluss.lake.arrow_conversion import lake_batch
from fluss.lake.data_files import DataFileWriter, FileLayout
from fluss.schema.table import TableBucket, TablePath
from fluss.tiering.round_plan import TieringSplit

# Rows that all writers of a task may hold before the largest of them has to write.
_WAITING_BYTES_MAX: Final = 192 << 20


@dataclass(frozen=True, slots=True)
class SplitResult:
    """What has become of a split. ``end`` is the offset up to which the lake has it now, None if nothing is known."""

    split: TieringSplit
    end: int | None
    rows: int = 0
    data_files: tuple[DataFile, ...] = ()
    delete_files: tuple[DataFile, ...] = ()
    deleted_rows: int = 0
    last_timestamp_ms: int | None = None

    @property
    def is_complete(self) -> bool:
        return self.end == self.split.stop

    @property
    def files(self) -> tuple[DataFile, ...]:
        return (*self.data_files, *self.delete_files)

    @property
    def byte_count(self) -> int:
        """The size of the files."""
        return sum(file.file_size_in_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task returns."""

    splits: tuple[SplitResult, ...]

    @property
    def rows(self) -> int:
        return sum(split.rows for split in self.splits)


@dataclass(frozen=True)
class RoundWork:
    """What tasks of a round are told. It is made on the driver, and sent."""

    path: TablePath
    table_id: int
    layout: FileLayout
    # Columns of the Fluss table, as they were when the round was planned.
    columns: tuple[str, ...]
    key_columns: tuple[str, ...] = ()
    # When tasks stop reading and return what they have, in seconds since 1970.
    deadline_s: float | None = None
    clock: Callable[[], float] = field(default=time.time)

    def run(self, table: FlussTable, splits: tuple[TieringSplit, ...]) -> TaskResult:
        """Bring splits to files. Raises code 7 if the table is another one by now."""
        if table.get_table_info().table_id != self.table_id:
            raise FlussError(
                f"{self.path} was dropped and created again while it was tiered", ErrorCode.TABLE_NOT_EXIST
            )
        logs = tuple(split for split in splits if split.kind == "log")
        results = list(_LogTask(self, table).run(logs)) if logs else []
        return TaskResult(tuple(results))

    @property
    def is_late(self) -> bool:
        """Whether the time of the round is over."""
        return self.deadline_s is not None and self.clock() >= self.deadline_s


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
                    if self._work.is_late:
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
