"""One Spark session for many tests, and a new one after it broke: a test that fails takes no others with it."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.context import SQLContext

# A session of a test ends before code that is compiled with all care, or collected by several threads, would pay off:
# without both the tests with Spark take little more than half the processor time.
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_STOP_TIMEOUT_S: Final = 60.0
# What Spark needs of its home; the archive of the Python package is left out.
_HOME_PARTS: Final = ("bin", "jars", "sbin")


def make_home(directory: Path) -> Path:
    """Make a SPARK_HOME whose Python processes import the installed package.

    From the archive that is first on their path otherwise, each of them would compile it anew; on a busy machine some
    would miss the ten seconds that Spark gives a process to call back.
    """
    installed = Path(pyspark.__file__).parent
    for name in _HOME_PARTS:
        (directory / name).symlink_to(installed / name)
    return directory


class SparkSessions:
    """Starts the session when it is first needed, and again when the one there is does not answer."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self._session: SparkSession | None = None

    def get(self) -> SparkSession:
        """Return a session that answers."""
        if self._session is not None and not _is_alive(self._session):
            self.discard()
        if self._session is None:
            self._session = self._start()
        return self._session

    def _start(self) -> SparkSession:
        """Two cores, tasks that are tried up to four times, a zone that is not UTC."""
        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = (
            SparkSession.builder.master("local[2,4]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(self._warehouse))
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.sql.session.timeZone", "America/New_York")
            .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        )
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        return session

    def stop_queries(self) -> None:
        """End the streams that a test has left running."""
        if self._session is not None:
            with suppress(Py4JError, ConnectionError):
                for query in self._session.streams.active:
                    query.stop()

    def stop(self) -> None:
        """End the session in order, as a program does."""
        if self._session is not None:
            self._session.stop()
            self._session = None

    def discard(self) -> None:
        """End the session and its JVM, whatever state they are in, so that the next one is new from the ground up."""
        session, self._session = self._session, None
        if session is None:
            return
        if _is_alive(session):
            # A JVM that is stuck keeps this waiting; it is killed below.
            stopping = threading.Thread(target=_stop_quietly, args=[session], daemon=True)
            stopping.start()
            stopping.join(_STOP_TIMEOUT_S)
        gateway = SparkContext._gateway
        if gateway is not None:
            with suppress(Py4JError, OSError):
                gateway.shutdown()
            gateway.proc.kill()
            gateway.proc.wait()
            if gateway.proc.stdin is not None:
                gateway.proc.stdin.close()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        SQLContext._instantiatedContext = None


def _is_alive(session: SparkSession) -> bool:
    try:
        return not session.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError, AttributeError):
        return False


def _stop_quietly(session: SparkSession) -> None:
    with suppress(Exception):
        session.stop()
