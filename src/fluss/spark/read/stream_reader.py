"""The reader of streaming queries: offsets and plans on the driver, rows on the executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from fluss.errors import ErrorCode, FlussError
from fluss.spark.query_options import ReadOptions
from fluss.spark.read.planner import ReadView, Task
from fluss.spark.read.split_read import SplitRead
from fluss.spark.read.stream_batches import StreamBatches, read_of, split_of
from fluss.spark.read.stream_offsets import Json, StreamOffset
from fluss.spark.read.stream_table import StreamTable
from fluss.spark.session.noise import ShortTracebacks

# The first batch of a read, if there is one, and the others.
_BegunRead: TypeAlias = tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]

# What a task is told if its records were deleted between the plan and the task.
_LOST_CODES: Final = frozenset({ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION, ErrorCode.PARTITION_NOT_EXISTS})


class StreamTask(NamedTuple):
    """What one task reads, and of which table."""

    table_id: int
    view: ReadView
    splits: Task


class StreamPartition(InputPartition):
    """What Spark sends to a task."""

    def __init__(self, task: StreamTask) -> None:
        super().__init__(task)


class FlussStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a table as it grows.

    Spark keeps one of these in a process of its own for each query, and asks it for offsets; another one, which only
    reads, is sent to the tasks.
    """

    def __init__(self, options: ReadOptions, schema: StructType, names: Sequence[str] | None = None) -> None:
        """``schema`` has the columns as the table names them, ``names`` are the names that Spark wants."""
        self._options = options
        self._schema = schema
        self._names = tuple(names or schema.names)
        self._batches = StreamBatches(options, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema, "_names": self._names}

    # On the driver

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's names
        with ShortTracebacks():
            return self._batches.initial().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with ShortTracebacks():
            self._batches.fix_targets()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        with ShortTracebacks():
            begin = StreamOffset.from_json(start)
            rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
            end = self._batches.next(begin, rows_max=rows_max, bytes_max=bytes_max)
            # Spark compares texts, and takes the same one for nothing new.
            return start if end is begin else end.to_json()

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        with ShortTracebacks():
            latest = self._batches.latest()
            return None if latest is None else latest.to_json()

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        with ShortTracebacks():
            reached = StreamOffset.from_json(end)
            tasks = self._batches.tasks(StreamOffset.from_json(start), reached)
            view = self._batches.table.view
            return [StreamPartition(StreamTask(reached.table_id, view, splits)) for splits in tasks]

    # On the executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. Servers that are away are waited for, as long as nothing has been returned.

        After that an error ends the task, and Spark tries it again.
        """
        task: StreamTask = partition.value
        with ShortTracebacks():
            table = StreamTable(self._options)
            try:
                first, rest = table.retry.call(partial(self._begin, task))
            except FlussError as error:
                if error.error_code not in _LOST_CODES:
                    raise
                first, rest = table.retry.call(partial(self._begin, _still_there(table, task)))
            yield from first
            yield from rest

    def _begin(self, task: StreamTask, _is_again: bool) -> _BegunRead:
        """Read as far as the first batch, if there is one. What was begun before has returned nothing."""
        rest = SplitRead(self._options, self._schema, task.view, task.table_id, self._names).read(task.splits)
        return list(islice(rest, 1)), rest


def _still_there(table: StreamTable, task: StreamTask) -> StreamTask:
    """Return what is left of a task whose records were deleted after it was planned, unless a loss is an error."""
    names = {split.partition_id: split.partition_name for split in task.splits}
    left, losses = table.still_there(read_of(split, task.table_id) for split in task.splits)
    table.accept(losses)
    return task._replace(splits=tuple(split_of(read, names[read.bucket.partition_id]) for read in left))
