"""The reader of streaming queries: offsets and plans on the driver, rows on the executors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from fluss.errors import ErrorCode, FlussError
from fluss.spark.query_options import ReadOptions
from fluss.spark.read.offset_json import Json, format_offset, parse_offset
from fluss.spark.read.planner import ReadView, Task
from fluss.spark.read.split_read import SplitRead
from fluss.spark.read.stream_batches import StreamBatches, read_of, split_of
from fluss.spark.read.stream_offsets import StreamOffset
from fluss.spark.read.stream_table import StreamTable
from fluss.spark.session.noise import ShortTracebacks
from fluss.spark.session.task_log import show_task_log

if TYPE_CHECKING:
    from fluss.lake.fluss_rows import LakeRows

# The first batch of a read, if there is one, and the others.
_BegunRead: TypeAlias = tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]

# What a task is told if its records were deleted between the plan and the task.
_LOST_CODES: Final = frozenset({ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION, ErrorCode.PARTITION_NOT_EXISTS})

_PARSED_MAX: Final = 4


class StreamTask(NamedTuple):
    """What one task reads, and of which table."""

    table_id: int
    view: ReadView
    splits: Task
    lake: LakeRows | None = None


class StreamPartition(InputPartition):
    """What Spark sends to a task."""

    def __init__(self, task: StreamTask) -> None:
        super().__init__(task)


class FlussStreamReader(DataSourceStreamReader):
    """Reads a table as it grows: what all versions of Spark have in common.

    Spark keeps one of these in a process of its own for each query, and asks it for offsets; another one, which only
    reads, is sent to the tasks. Since 4.2 Spark says where a micro-batch begins, and how much it may be
    (``limited_stream_reader``).
    """

    def __init__(self, options: ReadOptions, schema: StructType, names: Sequence[str] | None = None) -> None:
        """``schema`` has the columns as the table names them, ``names`` are the names that Spark wants."""
        self._options = options
        self._schema = schema
        self._names = tuple(names or schema.names)
        self._batches = StreamBatches(options, schema)
        # Those of the last micro-batches: Spark shows each of them several times.
        self._parsed: deque[tuple[Json, StreamOffset]] = deque(maxlen=_PARSED_MAX)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_schema": self._schema, "_names": self._names}

    # On the driver

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's names
        with ShortTracebacks():
            return self.formatted(self._batches.initial())

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        with ShortTracebacks():
            reached = self.parsed(end)
            tasks = self._batches.tasks(self.parsed(start), reached)
            view = self._batches.table.view
            lake = self._batches.lake_rows(reached)
            return [StreamPartition(StreamTask(reached.table_id, view, splits, lake)) for splits in tasks]

    def formatted(self, offset: StreamOffset) -> Json:
        """Return an offset as Spark keeps it, and remember it."""
        found = format_offset(offset)
        self._parsed.append((found, offset))
        return found

    def parsed(self, found: Json) -> StreamOffset:
        """Read an offset that Spark has kept."""
        for known, offset in self._parsed:
            if known == found:
                return offset
        offset = parse_offset(found)
        self._parsed.append((found, offset))
        return offset

    # On the executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. Servers that are away are waited for, as long as nothing has been returned.

        After that an error ends the task, and Spark tries it again.
        """
        task: StreamTask = partition.value
        show_task_log(self._options.log_level)
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
        read = SplitRead(self._options, self._schema, task.view, task.table_id, self._names, task.lake)
        rest = read.read(task.splits)
        return list(islice(rest, 1)), rest


class LatestStreamReader(FlussStreamReader):
    """A reader for Spark before 4.2, which asks for the end of a micro-batch without saying where it begins.

    It begins where the one before has ended, or at the offset that Spark shows when a query is started again. There are
    no limits: a micro-batch has all there is.
    """

    def __init__(self, options: ReadOptions, schema: StructType, names: Sequence[str] | None = None) -> None:
        super().__init__(options, schema, names)
        self._reached: StreamOffset | None = None

    def latestOffset(self) -> Json:  # type: ignore[override]  # noqa: N802 - as it was before Spark 4.2
        with ShortTracebacks():
            start = self._batches.initial() if self._reached is None else self._reached
            self._reached = self._batches.next(start)
            return self.formatted(self._reached)

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        # For a query that is started again Spark asks what is between its last offset and itself.
        self._reached = self.parsed(end)
        return super().partitions(start, end)


def _still_there(table: StreamTable, task: StreamTask) -> StreamTask:
    """Return what is left of a task whose records were deleted after it was planned, unless a loss is an error."""
    names = {split.partition_id: split.partition_name for split in task.splits}
    left, losses = table.still_there(read_of(split, task.table_id) for split in task.splits)
    table.accept(losses)
    return task._replace(splits=tuple(split_of(read, names[read.bucket.partition_id]) for read in left))
