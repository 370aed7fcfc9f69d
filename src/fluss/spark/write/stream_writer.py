"""Streaming writes: ``df.writeStream.format("fluss")``.

A micro-batch that fails, or whose driver dies, is repeated by Spark with the same number and the same rows. Its tasks
find their records below the checkpoint, and go on where their predecessors ended: see ``exactly_once``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fluss.errors import FlussError
from fluss.spark.query_options import WriteOptions
from fluss.spark.session.noise import ShortTracebacks
from fluss.spark.session.task_log import show_task_log
from fluss.spark.write.exactly_once import SinkState, write_at_least_once, write_exactly_once
from fluss.spark.write.overwrite import check_complete_output
from fluss.spark.write.sink import SinkPlan
from fluss.spark.write.sink_rows import WriteSummary
from fluss.spark.write.sink_table import SinkTable, check_sink_table
from fluss.spark.write.task_failure import TaskFailure, raise_first

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"

logger = logging.getLogger(__name__)


@dataclass
class StreamTaskCommit(WriterCommitMessage):
    """What a task tells the driver, which does not know its query otherwise."""

    query: str
    summary: WriteSummary
    failure: TaskFailure | None = None


class FlussStreamWriter(DataSourceStreamArrowWriter):
    """Writes one micro-batch. Spark makes one for the tasks and another one for the commit."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        # Spark asks for another one at each commit.
        self._plan = SinkPlan.of(options, schema)
        if overwrite:
            check_complete_output(self._plan)
        self._state: SinkState | None = None
        if options.delivery_guarantee == "exactly-once":
            self._state = SinkState.open(options.checkpoint_location)
        check_sink_table(options, SinkTable(str(options.table.path), self._plan.table_id))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamTaskCommit:
        show_task_log(self._plan.options.log_level)
        with ShortTracebacks():
            begun_s = time.perf_counter()
            query, batch, partition = _identity()
            try:
                summary = self._write(iterator, query, batch, partition)
            except FlussError as error:
                failure = TaskFailure.of(error)
                if failure is None:
                    raise
                return StreamTaskCommit(query, WriteSummary(), failure)
            described = summary.described(self._plan.options.table, time.perf_counter() - begun_s)
            logger.info("wrote %s, micro-batch %d", described, batch)
            return StreamTaskCommit(query, summary)

    def _write(self, iterator: Iterator[pa.RecordBatch], query: str, batch: int, partition: int) -> WriteSummary:
        table = self._plan.open_table()
        rows = self._plan.rows(table, iterator)
        if self._state is None:
            return write_at_least_once(table, self._plan, rows)
        return write_exactly_once(table, self._plan, rows, self._state.task(query, batch, partition))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        with ShortTracebacks():
            written = [message for message in messages if isinstance(message, StreamTaskCommit)]
            raise_first(message.failure for message in written)
            total = WriteSummary.total(message.summary for message in written)
            logger.info(
                "micro-batch %d wrote %d rows to %s, %d of them before it was tried again",
                batchId,
                total.rows,
                self._plan.options.table,
                total.rows_found,
            )
            if self._state is not None:
                for query in {message.query for message in written}:
                    # The records of this one stay: if the driver dies now, Spark repeats it.
                    self._state.forget_before(query, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        # What was written stays, and so do the records: the micro-batch will be repeated.
        logger.warning("micro-batch %d of a stream into %s was aborted", batchId, self._plan.options.table)


def _identity() -> tuple[str, int, int]:
    """Return what is the same in all attempts of a task: its query, its micro-batch, and its number in there."""
    task = TaskContext.get()
    assert task is not None, "tasks run in tasks"
    query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
    if query is None or batch is None:
        raise FlussError("Spark does not say which query and which micro-batch this task belongs to")
    return query, int(batch), task.partitionId()
