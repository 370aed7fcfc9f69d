"""A session that breaks is replaced: whatever one test does to it, the next one has a session that works."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.spark.sessions import SparkSessions


@pytest.mark.slow
def test_a_session_whose_jvm_died_or_that_was_stopped_is_replaced(
    spark_sessions: SparkSessions, tmp_path: Path
) -> None:
    first = spark_sessions.get()
    assert first.range(3).count() == 3
    assert spark_sessions.get() is first
    gateway = SparkContext._gateway
    assert gateway is not None
    os.kill(gateway.proc.pid, signal.SIGKILL)
    gateway.proc.wait()
    second = spark_sessions.get()
    assert second is not first
    assert second.range(3).count() == 3
    second.stop()
    assert spark_sessions.get().range(3).count() == 3
    spark_sessions.discard()
    assert spark_sessions.get().range(3).count() == 3
