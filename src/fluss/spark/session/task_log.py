"""The log of tasks: a line for each of them, where a user of Spark finds it.

Tasks run in Python workers, and nothing sets up logging there: what is below WARNING would be lost. The
option ``log.level`` says what is wanted. The lines go to the standard error of the worker, which Spark keeps with that
of the executor, or to where Spark collects what workers log (``spark.sql.pyspark.worker.logging.enabled``).
"""

from __future__ import annotations

import logging
import sys
from typing import Final, Literal, TypeAlias

from pyspark import TaskContext

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def show_task_log(level: LogLevel) -> None:
    """Show the lines of this package from a level on, if this is a process of a task; elsewhere the program decides."""
    if TaskContext.get() is None:
        return
    package = logging.getLogger("fluss")
    # A worker runs tasks of several queries, one after the other.
    package.setLevel(level.upper())
    if not package.hasHandlers() and package.level < logging.WARNING:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter(_FORMAT))
        package.addHandler(handler)
