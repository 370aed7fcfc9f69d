"""Bulk jobs: work on executors that moves no rows through the JVM. A task per item, small results back.

Spark sees a DataFrame of numbers, one per task. A task finds its item by the number, does all its reading and writing
with Python libraries, and returns its result as bytes. When a task ends, Spark also tells the driver at once, by an
accumulator, which is how progress and early failures are known before the end of the job.
"""

from __future__ import annotations

import pickle
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.accumulators import Accumulator, AccumulatorParam

from fluss.errors import FlussError
from fluss.row.arrow_arrays import number_array
from fluss.spark.bulk.reports import Counted, Listener, ProgressWatch, quiet
from fluss.spark.bulk.task_results import BulkTaskResult, UnfitInputError
from fluss.spark.session.noise import ignored_pandas_warning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


# What tasks return. Spark does not check it, and reads memory that is not there if it is something else.
_RESULT_SCHEMA: Final = pa.schema([pa.field("task", pa.int64(), nullable=False), pa.field("result", pa.binary())])
_RESULT_DDL: Final = "task bigint not null, result binary"
# The last line of a traceback, with the class of the error and its message; and the messages of this library.
_PYTHON_ERROR: Final = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception|Interrupt): (?P<text>.+)$", re.MULTILINE)
_FLUSS_ERROR: Final = re.compile(r"FlussError(?:\(code=(?P<code>-?\d+)\))?: (?P<text>.+)")


class FlussOnSpark(Protocol):
    """What every job is given; ``fluss.spark.FlussSpark`` is one."""

    @property
    def spark(self) -> SparkSession:
        """The session that runs jobs."""
        ...

    @property
    def options(self) -> Mapping[str, str]:
        """How the cluster is reached: ``bootstrap.servers`` and other options of the client."""
        ...


def context_of(spark: SparkSession) -> SparkContext:
    """Return the context of a session, which only those have that run in this process."""
    try:
        return spark.sparkContext
    except AttributeError:
        raise FlussError(
            "Bulk jobs need a session of this process, such as fluss.spark.session() returns; this one is a client of "
            "Spark Connect"
        ) from None


def refuse_speculation(spark: SparkSession) -> None:
    """Refuse to write with a session that would run attempts of a task side by side."""
    if (context_of(spark).getConf().get("spark.speculation") or "false").lower() == "true":
        raise FlussError(
            "The session has spark.speculation=true, so that two attempts of a task may write at the same time and "
            "stop each other; build the session without it"
        )


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT", bound=BulkTaskResult)


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a task returns that would fail again if it were repeated."""

    message: str
    error_code: int
    rows: int = 0


@dataclass(frozen=True, slots=True)
class BulkJob(Generic[ItemT, ResultT]):
    """What is to be done with each item of a list, on executors. ``work`` and the items are pickled.

    An attempt that fails is repeated as often as Spark's settings say, possibly while the one before is still about to
    end: work that must not be done twice has to see to that. An ``UnfitInputError`` ends the job at once.
    """

    what: str
    work: Callable[[ItemT], ResultT]
    items: Sequence[ItemT]
    weights: Sequence[int]
    """How much work each item is, in whatever unit."""
    rows_known: int | None = None
    rows_before: int = 0
    """Rows that an earlier run has done, for the progress."""

    def run(
        self,
        spark: SparkSession,
        *,
        listener: Listener = quiet,
        rows_done: Callable[[], int] | None = None,
        on_result: Callable[[int, ResultT], None] | None = None,
    ) -> list[ResultT]:
        """Do the work, and return the results in the order of the items.

        ``on_result`` is told the number of an item and its result, in a thread of its own and soon after the task has
        ended; not of all of them if the job fails. ``rows_done`` counts all rows, those of earlier runs and of results
        included, for jobs with long tasks; without it rows are known when tasks end. Ctrl-C ends the job.
        """
        if not self.items:
            return []
        running = _RunningJob(self, spark, rows_done, on_result)
        watch = ProgressWatch(
            self.what, running.count, listener, rows_known=self.rows_known, rows_before=self.rows_before
        )
        with watch:
            return running.results()


class _ByTask(AccumulatorParam[dict[int, bytes]]):
    """Results by task; a second attempt that reports the same changes nothing."""

    def zero(self, value: dict[int, bytes]) -> dict[int, bytes]:
        return {}

    def addInPlace(self, value1: dict[int, bytes], value2: dict[int, bytes]) -> dict[int, bytes]:  # noqa: N802 - Spark's
        value1.update(value2)
        return value1


class _RunningJob(Generic[ItemT, ResultT]):
    """One run of a job, on the driver."""

    def __init__(
        self,
        job: BulkJob[ItemT, ResultT],
        spark: SparkSession,
        rows_done: Callable[[], int] | None,
        on_result: Callable[[int, ResultT], None] | None,
    ) -> None:
        self._job = job
        self._spark = spark
        self._rows_done = rows_done
        self._on_result = on_result
        self._context = context_of(spark)
        self._reported: Accumulator[dict[int, bytes]] = self._context.accumulator({}, _ByTask())
        self._seen: dict[int, int] = {}
        self._failure: _Failure | None = None
        self._tag = f"fluss-bulk-{secrets.token_hex(8)}"
        self._weight = max(sum(job.weights), 1)

    def results(self) -> list[ResultT]:
        job, context = self._job, self._context
        tasks = len(job.items)
        function = _task_function(job.work, [pickle.dumps(item) for item in job.items], self._reported)
        with ignored_pandas_warning():
            results = self._spark.range(0, tasks, 1, tasks).mapInArrow(function, _RESULT_DDL)
        context.addJobTag(self._tag)
        try:
            table = results.toArrow()
        except Exception as error:
            if self._failure is not None:
                raise _error_of(self._failure, job.what) from None
            raise _job_error(error, job.what) from error
        finally:
            context.removeJobTag(self._tag)
        by_task = dict(zip(table["task"].to_pylist(), table["result"].to_pylist(), strict=True))
        return [self._result(by_task[number]) for number in range(tasks)]

    def _result(self, pickled: bytes) -> ResultT:
        result: ResultT | _Failure = pickle.loads(pickled)
        if isinstance(result, _Failure):
            raise _error_of(result, self._job.what)
        return result

    def count(self) -> Counted:
        """Look at the tasks that have ended since the last time. Called by one thread at a time."""
        for number, pickled in list(self._reported.value.items()):
            if number not in self._seen:
                self._look_at(number, pickle.loads(pickled))
        if len(self._seen) == len(self._job.items):
            return Counted(self._rows_seen(), 1.0)
        rows = self._rows_seen() if self._rows_done is None else self._rows_done()
        known = self._job.rows_known
        if known:
            return Counted(rows, min(rows / known, 1.0))
        return Counted(rows, sum(self._job.weights[number] for number in self._seen) / self._weight)

    def _rows_seen(self) -> int:
        rows = sum(self._seen.values())
        return rows if self._rows_done is not None else rows + self._job.rows_before

    def _look_at(self, number: int, result: ResultT | _Failure) -> None:
        self._seen[number] = result.rows
        if not isinstance(result, _Failure):
            if self._on_result is not None:
                self._on_result(number, result)
        elif self._failure is None:
            # The results of the other tasks are of no use any more.
            self._failure = result
            self._context.cancelJobsWithTag(self._tag)


def _task_function(
    work: Callable[[Any], BulkTaskResult], items: Sequence[bytes], reported: Accumulator[dict[int, bytes]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what runs on the executors."""

    def run_tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(_outcome(work, pickle.loads(items[number])))
                reported.add({number: result})
                yield _result_batch(number, result)

    return run_tasks


def _outcome(work: Callable[[Any], BulkTaskResult], item: Any) -> BulkTaskResult:
    try:
        return work(item)
    except UnfitInputError as error:
        return _Failure(error.message, error.error_code)


def _result_batch(number: int, result: bytes) -> pa.RecordBatch:
    offsets = pa.py_buffer(np.array([0, len(result)], np.int32))
    values = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(result)])
    return pa.RecordBatch.from_arrays([number_array(np.array([number], np.int64)), values], schema=_RESULT_SCHEMA)


def _error_of(failure: _Failure, what: str) -> FlussError:
    return UnfitInputError(f"{what} failed: {failure.message}", failure.error_code)


def _job_error(error: Exception, what: str) -> FlussError:
    """Find the sentence in what Spark says about a failed job: the last error of a Python worker, if there was one."""
    text = str(error).strip()
    errors = list(_PYTHON_ERROR.finditer(text))
    if not errors:
        return FlussError(f"{what} failed: {text.splitlines()[0] if text else type(error).__name__}")
    ours = _FLUSS_ERROR.fullmatch(errors[-1]["text"])
    if ours is None:
        return FlussError(f"{what} failed: {errors[-1][0]}")
    return FlussError(f"{what} failed: {ours['text']}", None if ours["code"] is None else int(ours["code"]))
