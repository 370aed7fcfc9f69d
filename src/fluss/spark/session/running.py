"""Sessions that are running already: whether Fluss tables can be used in them, and what to say if not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fluss.errors import FlussError
from fluss.spark.session.start import TASK_ATTEMPTS_MAX, UNIX_SOCKETS, format_settings, is_local, local_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IMPORT_TIMEOUT_S: Final = 60
# Workers that cannot import these cannot do anything with a Fluss table.
_IMPORT_CHECK: Final = "import pyspark_fluss, sys; print(*sys.version_info[:2])"


def running_session() -> SparkSession | None:
    """Return the session of this process, if one is running."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return None if SparkContext._active_spark_context is None else SparkSession.builder.getOrCreate()


def adapted(
    session: SparkSession, *, cores: int | None, master: str | None, config: Mapping[str, object]
) -> SparkSession:
    """Apply what can be changed while a session runs, check that the session is usable, and return it."""
    check_usable(session)
    settings = format_settings(config)
    if cores is not None:
        settings["spark.master"] = local_master(cores)
    if master is not None:
        settings["spark.master"] = master
    fixed = []
    for key, value in settings.items():
        if session.conf.get(key, None) == value:
            continue
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
        else:
            fixed.append(key)
    problems = _slow_settings(session)
    if fixed:
        problems.append(f"{', '.join(fixed)} cannot be changed while it runs")
    if problems:
        warnings.warn(
            f"A Spark session is running already, and is used as it is: {'; '.join(problems)}. "
            "Stop it with spark.stop() before session() for one with all settings.",
            stacklevel=3,
        )
    return session


def check_usable(session: SparkSession) -> None:
    """Refuse a session in which Fluss tables cannot be read: it has another Python, or a Python without Fluss.

    Nothing can be found out about the machines of a cluster, nor about a session of Spark Connect.
    """
    if not hasattr(session, "_jsparkSession"):
        return
    context = session.sparkContext
    jvm = context._jvm
    assert jvm is not None, "a session that runs has its Java"
    # The Python process that plans a query is started by Java, with the environment that Java had at its start.
    python = jvm.System.getenv("PYSPARK_PYTHON") or "python3"
    if not is_local(context.master or "") or _is_same_interpreter(python, sys.executable):
        return
    problem = _problem_of(python)
    if problem is not None:
        raise FlussError(
            f"The running Spark session starts Python workers with {python!r}, {problem}. Stop it with spark.stop(), "
            f"set PYSPARK_PYTHON={sys.executable} in the environment and start the program again; "
            "fluss.spark.session() does so when it starts the session itself"
        )


def _problem_of(python: str) -> str | None:
    """Return what is wrong with another interpreter than this one."""
    path = shutil.which(python)
    if path is None:
        return "which does not exist"
    try:
        answer = subprocess.run(
            [path, "-c", _IMPORT_CHECK], capture_output=True, text=True, errors="replace", timeout=_IMPORT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return "which cannot be run"
    if answer.returncode != 0:
        reason = answer.stderr.strip().rpartition("\n")[2]
        return f"in which this package cannot be imported ({reason})"
    version = answer.stdout.split()[-2:]
    if version != [str(number) for number in sys.version_info[:2]]:
        return f"which is Python {'.'.join(version)}, while this is {sys.version_info[0]}.{sys.version_info[1]}"
    return None


def _slow_settings(session: SparkSession) -> list[str]:
    problems = []
    context = session.sparkContext
    is_fast = (context.getConf().get(UNIX_SOCKETS) or os.environ.get("PYSPARK_UDS_MODE") or "false").lower() == "true"
    if not is_fast and os.name == "posix":
        problems.append(f"without {UNIX_SOCKETS}=true every task waits for its Python worker (about 40 ms)")
    if re.fullmatch(r"local(\[[^,]*\])?", context.master or ""):
        problems.append(
            f"with the master {context.master} a query fails when one task does, "
            f"local[n,{TASK_ATTEMPTS_MAX}] would try it again"
        )
    return problems


def _is_same_interpreter(first: str, second: str) -> bool:
    """Whether two commands are the same Python of the same environment, which may be there under several names."""
    path = shutil.which(first)
    if path is None:
        return False
    one, other = Path(path).absolute(), Path(second).absolute()
    # The Pythons of all environments are links to the same file; an environment is a directory.
    return one.parent == other.parent and one.resolve() == other.resolve()
