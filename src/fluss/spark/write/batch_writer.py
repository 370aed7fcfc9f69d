"""Batch writes: ``df.write.format("fluss")`` and ``INSERT``.

Every task writes what it has; there is no moment at which all rows appear together. When a task fails, what it has
written stays, and Spark tries the task again: rows of a log table may be there twice then, unless
``sink.delivery-guarantee`` is exactly-once; rows with a key are not, unless they are aggregated. With a
``sink.transaction`` the whole write can be repeated, after a crash of the driver, too.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fluss.errors import FlussError
from fluss.spark.query_options import WriteOptions
from fluss.spark.session.noise import ShortTracebacks
from fluss.spark.session.task_log import show_task_log
from fluss.spark.source_options import Transaction
from fluss.spark.write.exactly_once import SinkState, write_at_least_once, write_exactly_once
from fluss.spark.write.overwrite import Overwrite, WrittenKeys
from fluss.spark.write.row_hashes import Hashes
from fluss.spark.write.sink import SinkPlan
from fluss.spark.write.sink_rows import WriteSummary
from fluss.spark.write.task_failure import TaskFailure, raise_first

logger = logging.getLogger(__name__)


@dataclass
class BatchTaskCommit(WriterCommitMessage):
    """What a task tells the driver."""

    summary: WriteSummary
    # Of an overwrite: what the driver needs to find the rows that are to be deleted.
    keys: Hashes | None = None
    failure: TaskFailure | None = None


class FlussBatchWriter(DataSourceArrowWriter):
    """One batch write. Made on the driver, where it also commits; a copy of it writes in every task."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._plan = SinkPlan.of(options, schema)
        self._overwrite = Overwrite.of(self._plan) if overwrite else None
        self._state: SinkState | None = None
        if options.delivery_guarantee == "exactly-once":
            self._state = SinkState.open(options.checkpoint_location)
        # The name of this write among the queries that keep records below the same checkpoint.
        self._job = options.transaction or Transaction(f"batch-{uuid.uuid4()}", 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchTaskCommit:
        show_task_log(self._plan.options.log_level)
        with ShortTracebacks():
            try:
                return self._write(iterator)
            except FlussError as error:
                failure = TaskFailure.of(error)
                if failure is None:
                    raise
                return BatchTaskCommit(WriteSummary(), failure=failure)

    def _write(self, iterator: Iterator[pa.RecordBatch]) -> BatchTaskCommit:
        begun_s = time.perf_counter()
        table = self._plan.open_table()
        rows = self._plan.rows(table, iterator)
        notes = None
        if self._overwrite is not None:
            notes = WrittenKeys(self._overwrite, table.get_table_info())
            rows = notes.noted(rows)
        if self._state is None:
            summary = write_at_least_once(table, self._plan, rows)
        else:
            records = self._state.task(*self._job, _task().partitionId())
            summary = write_exactly_once(table, self._plan, rows, records)
        logger.info("wrote %s", summary.described(self._plan.options.table, time.perf_counter() - begun_s))
        return BatchTaskCommit(summary, None if notes is None else notes.hashes())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with ShortTracebacks():
            written = [message for message in messages if isinstance(message, BatchTaskCommit)]
            raise_first(message.failure for message in written)
            total = WriteSummary.total(message.summary for message in written)
            if self._overwrite is not None:
                keys = [message.keys for message in written if message.keys is not None]
                self._overwrite.delete_others(self._plan.open_table(), keys)
            logger.info("%d rows were written to %s", total.rows, self._plan.options.table)
            self._forget_records()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        total = WriteSummary.total(m.summary for m in messages if isinstance(m, BatchTaskCommit))
        logger.warning(
            "a write to %s was aborted; what its tasks have written stays, at least %d rows",
            self._plan.options.table,
            total.rows,
        )
        self._forget_records()

    def _forget_records(self) -> None:
        """Delete what no task needs again: the records of this write, or of the transactions before it."""
        if self._state is None:
            return
        if self._plan.options.transaction is None:
            self._state.forget(self._job.name)
        else:
            self._state.forget_before(*self._job)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "tasks run in tasks"
    return task
