"""Streams write exactly once while drivers, workers and their server are killed, and its network is cut and stalls.
Shown with a few faults of each kind; ``make chaos-spark`` lets 50 of them happen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.spark import chaos_streams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_streams_write_exactly_once_through_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    report = chaos_streams.run(tmp_path, fault_count=8, seed=4, quiet_s=0.5)
    assert report.findings == []
    assert report.fault_counts.total() == 8
    assert {chaos_streams.KILL_DRIVER, chaos_streams.KILL_WORKER} <= report.fault_counts.keys()
    assert report.row_count > 0
