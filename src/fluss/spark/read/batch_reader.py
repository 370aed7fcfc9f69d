"""The reader of batch queries: plans on the driver, reads on the executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fluss.spark.connections import await_answer, open_table
from fluss.spark.pushdown.hints import ROW_COUNT, SNAPSHOT
from fluss.spark.query_options import ReadOptions
from fluss.spark.read.planner import TablePlan, Task, plan_batch, read_view
from fluss.spark.read.snapshot import Snapshot
from fluss.spark.read.split_read import SplitRead, both_filters, table_columns, table_filter, view_filter, view_hint
from fluss.spark.session.noise import ShortTracebacks
from fluss.spark.session.task_log import show_task_log


class FlussPartition(InputPartition):
    """What one task reads."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


class PlannerAnswer(InputPartition):
    """What the planner of Spark learns from a reader before its partitions. No task gets it."""

    def __init__(self, facts: dict[str, str | int | None]) -> None:
        super().__init__(facts)


class FlussBatchReader(DataSourceReader):
    """Reads what a table has at the moment at which the reader is made, however often it is read."""

    def __init__(
        self,
        options: ReadOptions,
        schema: StructType,
        snapshot: str | None = None,
        *,
        names: Sequence[str] | None = None,
        given: str | None = None,
    ) -> None:
        """``schema`` has the columns as the table names them, ``names`` are the names that Spark wants.

        With a ``snapshot`` the moment is that of an earlier reader, which had "" and has answered; with ``given`` it
        is that of the DataFrame.
        """
        plan = await_answer(options.connection, lambda: _plan(options, schema, snapshot or given))
        self._read = SplitRead(options, schema, plan.view, plan.table_id, tuple(names or schema.names), plan.lake)
        self._partitions: list[InputPartition] = [FlussPartition(task) for task in plan.tasks]
        if snapshot is not None:
            self._partitions.insert(0, PlannerAnswer({SNAPSHOT: plan.snapshot.to_text(), ROW_COUNT: plan.row_count}))

    def __getstate__(self) -> dict[str, Any]:
        # This is sent to every task; its splits come in its partition.
        return {"_read": self._read}

    def partitions(self) -> list[InputPartition]:
        return self._partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # For a plan without tasks Spark runs one task with nothing in its partition, before 4.2 without a partition.
        if isinstance(partition, FlussPartition):
            show_task_log(self._read.options.log_level)
            with ShortTracebacks():
                yield from self._read.read(partition.value)


def _plan(options: ReadOptions, schema: StructType, snapshot: str | None) -> TablePlan:
    table = open_table(options.connection, options.table.path)
    info = table.get_table_info()
    view = read_view(info, options)
    row_filter, hint = view_filter(options, info, view), view_hint(options, info, view)
    return plan_batch(
        table,
        options,
        table_columns(schema, view, both_filters(row_filter, hint), info),
        table_filter(row_filter, info),
        hint=table_filter(hint, info),
        snapshot=Snapshot.from_text(snapshot, info) if snapshot else None,
    )
