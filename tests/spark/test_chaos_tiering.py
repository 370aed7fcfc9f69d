"""Services that bring tables to the lake are killed, and nothing is lost or twice.
Shown with a few kills of each kind; ``make chaos-tiering`` lets 100 of them happen."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyiceberg", reason="lake tables need pyiceberg")

from tests.spark import chaos_tiering

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_every_record_is_in_the_lake_once_however_services_are_killed(tmp_path: Path) -> None:
    report = chaos_tiering.run(tmp_path, kill_count=14, seed=3)
    assert report.findings == []
    assert report.kills.keys() == chaos_tiering.KINDS.keys()
    assert report.log_rows > 0
