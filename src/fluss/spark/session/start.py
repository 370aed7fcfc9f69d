"""Start a Spark session in this process: its settings, its Java, its environment, and the noise it makes on the way.

The settings are plain functions of the machine; those that the user gives replace them.
"""

from __future__ import annotations

import atexit
import collections
import logging
import os
import re
import shutil
import site
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from fluss.errors import FlussError
from fluss.memory import machine_memory_bytes
from fluss.spark.session.java import find_java
from fluss.spark.session.noise import PANDAS_WARNING, ignored_pandas_warning, without_noise

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_STDERR: Final = 2
_ERROR_LINES_MAX: Final = 20
# In a local session Spark gives up after the first failure of a task unless the master says otherwise.
TASK_ATTEMPTS_MAX: Final = 4
UNIX_SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
_GIB: Final = 1024**3
_DRIVER_GIB_MIN, _DRIVER_GIB_MAX = 1, 4
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
# Errors only. The first line of a session, about its log level, is left out if the shell has the level of the root.
_LOG_SETTINGS: Final = """\
status = off
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
# The last failure of a task is the error of the query, whole; here each attempt would say the same once more.
logger.task.name = org.apache.spark.executor.Executor
logger.task.level = off
logger.write.name = org.apache.spark.sql.execution.datasources.v2.DataWritingSparkTask
logger.write.level = off
logger.abort.name = org.apache.spark.util.Utils
logger.abort.level = off
logger.append.name = org.apache.spark.sql.execution.datasources.v2.AppendDataExec
logger.append.level = off
logger.overwrite.name = org.apache.spark.sql.execution.datasources.v2.OverwriteByExpressionExec
logger.overwrite.level = off
# A query that is stopped in the middle of a micro-batch.
logger.broadcast.name = org.apache.spark.broadcast.TorrentBroadcast
logger.broadcast.level = off
"""


def start(app_name: str, *, cores: int | None, master: str | None, config: Mapping[str, object]) -> SparkSession:
    """Start a session; the arguments are those of ``fluss.spark.session``."""
    from pyspark import SparkConf, SparkContext
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    # Otherwise every error of a query is written to standard error, as JSON, besides being raised.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    if "SPARK_REMOTE" in os.environ or "spark.remote" in config:
        raise FlussError(
            "This program is set up for Spark Connect, where the server has the settings of the session: connect "
            "with SparkSession.builder.getOrCreate(), or unset SPARK_REMOTE for a session on this machine"
        )
    settings = format_settings(config)
    # With a gateway already there, spark-submit has started Java, and decided where the session runs.
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if cores is not None or not is_submitted:
        master = master or settings.get("spark.master") or local_master(cores)
    directory = Path(tempfile.mkdtemp(prefix="fluss-spark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    _prepare_environment(master)
    settings = new_session_settings(app_name, master, settings, directory=directory)
    with ignored_pandas_warning():
        conf = SparkConf()
        for key, value in settings.items():
            conf.set(key, value)
        # A session that was stopped leaves its Java running, and the next one starts in it.
        if not is_submitted and SparkContext._gateway is None:
            SparkContext(conf=conf, gateway=_quiet_gateway(conf))
        return SparkSession.builder.config(map={**settings}).getOrCreate()


def _prepare_environment(master: str | None) -> None:
    """Set what Java and the Python workers inherit, for good: the workers start whenever there is work."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ["JAVA_HOME"] = str(find_java().home)
    if master is not None and is_local(master):
        # Workers of another Python could not read what this one sends them.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _quieten_pandas()
    package_root = str(Path(__file__).resolve().parents[3])
    if package_root not in {*site.getsitepackages(), site.getusersitepackages()}:
        # Run from a checkout: workers do not see what this program did to its path.
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if package_root not in known:
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, *known]))


def _quieten_pandas() -> None:
    """Leave out what PySpark says about pandas 3 at every use of it, here and in workers; the guide says what works."""
    warnings.filterwarnings("ignore", PANDAS_WARNING, FutureWarning)
    setting = f"ignore:{PANDAS_WARNING}:FutureWarning"
    known = os.environ.get("PYTHONWARNINGS", "").split(",")
    if setting not in known:
        os.environ["PYTHONWARNINGS"] = ",".join(filter(None, [*known, setting]))


def _quiet_gateway(conf: SparkConf) -> Any:
    """Start Java without the lines that every start prints. Why it does not start is part of the error."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    read_end, write_end = os.pipe()
    last_lines: collections.deque[str] = collections.deque(maxlen=_ERROR_LINES_MAX)
    forwarder = threading.Thread(
        target=_forward, args=(os.fdopen(read_end, "rb"), last_lines), name="fluss-spark-stderr", daemon=True
    )
    forwarder.start()
    try:
        return launch_gateway(conf, popen_kwargs={"stderr": write_end})  # type: ignore[no-untyped-call] # PySpark's own
    except PySparkRuntimeError as error:
        os.close(write_end)
        write_end = -1
        forwarder.join(timeout=5)
        said = "\n".join(last_lines) or str(error)
        raise FlussError(f"Java, in {os.environ['JAVA_HOME']}, could not start Spark:\n{said}") from error
    finally:
        if write_end >= 0:
            os.close(write_end)


def _forward(stream: IO[bytes], last_lines: collections.deque[str]) -> None:
    """Copy what Java writes to this program's standard error, for as long as Java runs."""
    with stream:
        for line in without_noise(stream):
            last_lines.append(line.decode(errors="replace").rstrip())
            try:
                os.write(_STDERR, line)
            except OSError:
                return  # Standard error is closed.


# Settings


def is_local(master: str) -> bool:
    """Whether everything runs on this machine: ``local[4]``, or ``local-cluster[2,1,1024]`` with executors."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def local_master(cores: int | None) -> str:
    """Return the master for this machine: some of its cores or all, and tasks that are tried again."""
    if cores is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if isinstance(cores, bool) or not isinstance(cores, int):
        raise TypeError(f"cores must be int, got {type(cores).__name__}")
    if cores < 1:
        raise ValueError(f"cores must be at least 1, got {cores}")
    return f"local[{cores},{TASK_ATTEMPTS_MAX}]"


def format_settings(config: Mapping[str, object]) -> dict[str, str]:
    """Return settings as Spark wants them, as text: ``True`` is ``true``."""
    settings = {}
    for key, value in config.items():
        if not isinstance(key, str) or not isinstance(value, str | bool | int | float):
            raise TypeError(f"config takes text, numbers and truth values by name, got {key!r}: {type(value).__name__}")
        settings[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return settings


def new_session_settings(
    app_name: str, master: str | None, config: Mapping[str, str], *, directory: Path, memory_bytes: int | None = None
) -> dict[str, str]:
    """Return the settings of a session that is about to start; those of ``config`` replace what is chosen here.

    ``directory`` is for files of this session only. Without a ``master`` it is one that is decided elsewhere.
    """
    settings = {
        "spark.app.name": app_name,
        UNIX_SOCKETS: str(hasattr(socket, "AF_UNIX")).lower(),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A micro-batch that is repeated has to have the same tasks, or rows would be written twice.
        "spark.sql.adaptive.streaming.stateless.enabled": "false",
        # No limit by bytes: with one, Spark adds up the sizes of all columns after each row, which is two fifths of the
        # time of a write. So the limit is by rows, of which Spark's 10,000 make small batches.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master is not None:
        settings["spark.master"] = master
        if is_local(master):
            settings |= _local_settings(master, directory, memory_bytes or machine_memory_bytes())
        settings[_JAVA_OPTIONS] = _quiet_java_options(config.get(_JAVA_OPTIONS, ""), directory)
    return {**settings, **{key: value for key, value in config.items() if key != _JAVA_OPTIONS or master is None}}


def _local_settings(master: str, directory: Path, memory_bytes: int) -> dict[str, str]:
    return {
        # The name of the machine may lead to another network, or nowhere.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": f"{min(max(memory_bytes // 4 // _GIB, _DRIVER_GIB_MIN), _DRIVER_GIB_MAX)}g",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        # Spark's default of 200 is for clusters: each one costs a task and, in a stream with state, files.
        "spark.sql.shuffle.partitions": str(_cores_of(master)),
    }


def _cores_of(master: str) -> int:
    """Return the number of tasks that run at a time: ``local[4,3]``, ``local[*]``, ``local-cluster[2,1,1024]``."""
    numbers = [int(number) for number in re.findall(r"\d+", master)]
    if master.startswith("local-cluster["):
        if len(numbers) != 3:
            raise FlussError(f"{master!r} is no master: local-cluster[executors, cores of each, megabytes of each]")
        return numbers[0] * numbers[1]
    if master.startswith("local[*"):
        return os.cpu_count() or 1
    return numbers[0] if numbers else 1


def _quiet_java_options(given: str, directory: Path) -> str:
    """Add a file with log settings to the options of the driver's Java, unless they name one already.

    Why Java does not start goes to its standard error, too, and so into the error of this program.
    """
    if "log4j" in given:
        return given
    file = directory / "log4j2.properties"
    file.write_text(_LOG_SETTINGS, encoding="utf-8")
    return f"{given} -XX:+DisplayVMOutputToStderr -Dlog4j2.configurationFile={file.as_uri()}".strip()
