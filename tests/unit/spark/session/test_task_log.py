"""What tasks log is seen with ``log.level``, and a program that is no task keeps its own logging."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from fluss.spark.session.task_log import show_task_log


@pytest.fixture
def package() -> Iterator[logging.Logger]:
    """The logger of the package as it is in a worker: without a level, and without a handler."""
    package = logging.getLogger("fluss")
    before = package.level, package.handlers[:]
    package.setLevel(logging.NOTSET)
    package.handlers[:] = []
    yield package
    package.setLevel(before[0])
    package.handlers[:] = before[1]


def test_lines_of_a_task_are_shown_from_the_level_on(
    package: logging.Logger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    # Out of the sight of what pytest collects.
    monkeypatch.setattr(package, "propagate", False)
    for _ in range(2):
        show_task_log("info")
    logging.getLogger("fluss.spark.read").info("read 3 rows")
    show_task_log("warning")
    logging.getLogger("fluss.spark.read").info("not wanted")
    logging.getLogger("fluss.spark.read").warning("too bad")
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("INFO fluss.spark.read: read 3 rows")
    assert second.endswith("WARNING fluss.spark.read: too bad")


def test_where_spark_collects_what_workers_log_lines_go_there_alone(
    package: logging.Logger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    show_task_log("info")
    logging.getLogger("fluss.spark.read").info("read 3 rows")
    assert caplog.messages == ["read 3 rows"]
    assert not package.handlers


def test_outside_of_tasks_nothing_is_changed(package: logging.Logger) -> None:
    show_task_log("debug")
    assert (package.level, package.handlers) == (logging.NOTSET, [])
