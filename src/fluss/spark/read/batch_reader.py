"""The reader of batch queries: plans on the driver, reads on the executors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from fluss.spark.connections import await_answer, open_table
from fluss.spark.query_options import ReadOptions
from fluss.spark.read.planner import TablePlan, Task, plan_batch, read_view
from fluss.spark.read.split_read import SplitRead, table_columns, table_filter, view_filter
from fluss.spark.session.noise import ShortTracebacks


class FlussPartition(InputPartition):
    """What one task reads."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


class FlussBatchReader(DataSourceReader):
    """Reads what a table has at the moment at which the reader is made, however often it is read."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        plan = await_answer(options.connection, lambda: _plan(options, schema))
        self._read = SplitRead(options, schema, plan.view, plan.table_id)
        self._tasks = plan.tasks

    def __getstate__(self) -> dict[str, Any]:
        # This is sent to every task; its splits come in its partition.
        return {"_read": self._read}

    def partitions(self) -> list[InputPartition]:
        return [FlussPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # For a plan without tasks Spark runs one task with nothing in its partition, before 4.2 without a partition.
        if getattr(partition, "value", None) is not None:
            with ShortTracebacks():
                yield from self._read.read(partition.value)


def _plan(options: ReadOptions, schema: StructType) -> TablePlan:
    table = open_table(options.connection, options.table.path)
    info = table.get_table_info()
    view = read_view(info, options)
    row_filter = view_filter(options, info, view)
    columns = table_columns(schema, view, row_filter, info)
    return plan_batch(table, options, columns, table_filter(row_filter, info))
