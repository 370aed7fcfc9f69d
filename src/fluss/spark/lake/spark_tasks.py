"""Tasks of tiering on executors: Spark shares them out, and no row passes through the JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fluss import FlussTable
from fluss.schema.table import TablePath
from fluss.spark.bulk.jobs import BulkJob, FlussOnSpark, context_of
from fluss.spark.bulk.reports import Listener, quiet
from fluss.spark.connections import await_table
from fluss.spark.query_options import client_settings
from fluss.tiering.task_runners import TaskWork, WorkResult

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT", bound=WorkResult)

_POOL: Final = "spark.scheduler.pool"
_DEFAULT_POOL: Final = "default"


@dataclass(frozen=True)
class _OnExecutor:
    """What a task does; it is pickled. The executor keeps its connection for the next task."""

    settings: Mapping[str, str]
    path: TablePath
    work: TaskWork[Any, Any]

    def __call__(self, item: Any) -> Any:
        return self.work.run(await_table(self.settings, self.path), item)


class SparkTasks:
    """Runs tasks as jobs of a session. Called from several threads it runs several jobs at a time.

    Each table has a pool of its own, among which a session with ``spark.scheduler.mode`` = ``FAIR`` divides its cores
    evenly, so that a table with many tasks does not keep the others waiting.
    """

    def __init__(self, fs: FlussOnSpark, listener: Listener = quiet) -> None:
        self._spark = fs.spark
        self._context = context_of(fs.spark)
        self._settings = client_settings(fs.options)
        self._listener = listener

    @property
    def parallelism(self) -> int:
        """How many tasks run at the same time."""
        return self._context.defaultParallelism

    def __call__(
        self,
        what: str,
        table: FlussTable,
        work: TaskWork[ItemT, ResultT],
        items: Sequence[ItemT],
        weights: Sequence[int],
    ) -> list[ResultT]:
        path = table.table_path
        job: BulkJob[ItemT, ResultT] = BulkJob(
            f"{what} {path}", _OnExecutor(self._settings, path, work), items, weights
        )
        self._context.setLocalProperty(_POOL, f"tiering.{path}")
        self._context.addJobTag(_tag(path))
        try:
            return job.run(self._spark, listener=self._listener)
        finally:
            self._context.removeJobTag(_tag(path))
            self._context.setLocalProperty(_POOL, _DEFAULT_POOL)

    def cancel(self, path: TablePath) -> None:
        """End the tasks of a table."""
        self._context.cancelJobsWithTag(_tag(path))


def _tag(path: TablePath) -> str:
    # Tags have no commas.
    return f"fluss-tiering-{path}".replace(",", "_")
