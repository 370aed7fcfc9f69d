"""Tasks of tiering on executors: Spark shares them out, and no row passes through the JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fluss import FlussTable
from fluss.spark.bulk.jobs import BulkJob, FlussOnSpark, context_of
from fluss.spark.bulk.reports import Listener, quiet
from fluss.spark.connections import await_table
from fluss.spark.query_options import client_settings
from fluss.tiering.round_plan import TieringSplit
from fluss.tiering.split_work import RoundWork, TaskResult

_POOL: Final = "spark.scheduler.pool"


@dataclass(frozen=True)
class _OnExecutor:
    """What a task does; it is pickled. The executor keeps its connection for the next task."""

    settings: Mapping[str, str]
    work: RoundWork

    def __call__(self, splits: tuple[TieringSplit, ...]) -> TaskResult:
        return self.work.run(await_table(self.settings, self.work.path), splits)


class SparkTasks:
    """Runs the tasks of rounds as jobs of a session. Called from several threads it runs several jobs at a time.

    Each table has a pool of its own, among which a session with ``spark.scheduler.mode`` = ``FAIR`` divides its cores
    evenly, so that a table with many tasks does not keep the others waiting.
    """

    def __init__(self, fs: FlussOnSpark, listener: Listener = quiet) -> None:
        self._spark = fs.spark
        self._context = context_of(fs.spark)
        self._settings = client_settings(fs.options)
        self._listener = listener

    @property
    def cores(self) -> int:
        """How many tasks run at the same time."""
        return self._context.defaultParallelism

    def __call__(
        self, table: FlussTable, work: RoundWork, tasks: Sequence[tuple[TieringSplit, ...]]
    ) -> list[TaskResult]:
        weights = [sum(split.weight for split in task) for task in tasks]
        job = BulkJob(f"tier {table.table_path}", _OnExecutor(self._settings, work), tasks, weights)
        self._context.setLocalProperty(_POOL, f"tiering.{table.table_path}")
        try:
            return job.run(self._spark, listener=self._listener)
        finally:
            self._context.setLocalProperty(_POOL, "default")
