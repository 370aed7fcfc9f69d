"""Streams write exactly once while their server is killed, loses power, pauses, and its network is cut and stalls.
Shown with a few faults; ``make chaos-spark`` lets 50 of them happen."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark import chaos_streams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_streams_write_exactly_once_through_faults(spark: SparkSession, tmp_path: Path) -> None:
    report = chaos_streams.run(spark, tmp_path, fault_count=6, seed=5, quiet_s=0.5)
    assert report.findings == []
    assert sum(report.fault_counts.values()) == 6
    assert report.row_count > 0
