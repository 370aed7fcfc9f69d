"""What Spark says about a failed job becomes one sentence, and what tasks return has the schema that Spark was told.

Texts as Spark writes them; no session.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pyarrow as pa
import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.spark.bulk.jobs import _job_error, _task_function
from fluss.spark.bulk.task_results import UnfitInputError

TRACE = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "work.py", line 1, in run
    raise ValueError("first")
ValueError: first

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "work.py", line 2, in run
{}
and the rest of it
"""


@pytest.mark.parametrize(
    ("last_line", "message", "code"),
    [
        ("fluss.FlussError: FlussError: no such thing", "load failed: no such thing", -2),
        ("fluss.errors.NetworkError: FlussError(code=1): the server is away", "load failed: the server is away", 1),
        ("OSError: [Errno 2] no file", "load failed: OSError: [Errno 2] no file", -2),
    ],
)
def test_the_last_error_of_a_worker_is_the_reason(last_line: str, message: str, code: int) -> None:
    error = _job_error(Exception(TRACE.format(last_line)), "load")
    assert (error.message, error.error_code) == (message, code)


def test_what_is_no_error_of_a_worker_is_shortened() -> None:
    assert (
        _job_error(Exception("Job 7 cancelled\nat java.lang.Thread"), "load").message == "load failed: Job 7 cancelled"
    )
    assert _job_error(KeyError(), "load").message == "load failed: KeyError"


@dataclass
class Result:
    rows: int


class Reported(dict[int, bytes]):
    add = dict.update


def work(item: int) -> Result:
    if item < 0:
        raise UnfitInputError("too small", ErrorCode.CLIENT_ERROR)
    if item > 9:
        raise FlussError("the server is away")
    return Result(item)


def test_tasks_return_their_results_with_the_schema_that_spark_was_told() -> None:
    reported = Reported()
    run = _task_function(work, [pickle.dumps(item) for item in (5, 7)], reported)  # type: ignore[arg-type]  # like one
    batches = list(run(iter([pa.record_batch({"id": pa.array([0, 1], pa.int64())})])))
    schema = pa.schema([pa.field("task", pa.int64(), nullable=False), pa.field("result", pa.binary())])
    assert all(batch.schema.equals(schema, check_metadata=True) for batch in batches)
    assert [batch.to_pylist()[0]["task"] for batch in batches] == [0, 1]
    assert {number: pickle.loads(result) for number, result in reported.items()} == {0: Result(5), 1: Result(7)}


def test_only_errors_that_may_pass_are_left_to_spark() -> None:
    run = _task_function(work, [pickle.dumps(item) for item in (-1, 10)], Reported())  # type: ignore[arg-type]  # like one
    (unfit,) = list(run(iter([pa.record_batch({"id": pa.array([0], pa.int64())})])))
    assert pickle.loads(unfit.to_pylist()[0]["result"]).message == "too small"
    with pytest.raises(FlussError, match="the server is away"):
        list(run(iter([pa.record_batch({"id": pa.array([1], pa.int64())})])))
