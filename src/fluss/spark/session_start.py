"""Start a Spark session in this process: its Java, its environment, its files, and what it says on the way."""

from __future__ import annotations

import atexit
import collections
import logging
import os
import shutil
import site
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from fluss.errors import FlussError
from fluss.spark.java import find_java
from fluss.spark.java_noise import without_noise
from fluss.spark.pandas_warning import ignored_pandas_warning
from fluss.spark.session_settings import is_local, local_master, new_session_settings, text_settings

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_STDERR: Final = 2
_ERROR_LINES_MAX: Final = 20


def start(app_name: str, *, cores: int | None, master: str | None, config: Mapping[str, object]) -> SparkSession:
    """Start a session; ``fluss.spark.session`` has the words about the arguments."""
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
    settings = text_settings(config)
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
    package_root = str(Path(__file__).resolve().parents[2])
    if package_root not in {*site.getsitepackages(), site.getusersitepackages()}:
        # Run from a checkout: workers do not see what this program did to its path.
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if package_root not in known:
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, *known]))


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
                return  # Nobody listens any more.
