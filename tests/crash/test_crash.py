"""Acknowledged rows survive kill -9: twenty kills while two processes write and one reader reads along.

The harness says what it checks. ``make crash`` does the same a thousand times.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.crash import harness


@pytest.mark.timeout(240)
def test_twenty_kills_lose_nothing_double_nothing_and_reorder_nothing(tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    report = asyncio.run(harness.run(tmp_path, cycles=20, seed=seed))
    assert report.findings == [], f"seed {seed}"
    assert report.cycles == 20
    # The run was one worth having: plenty was written, and the reader lived through it.
    assert report.acknowledged_rows > 1000
    assert report.rows_seen_live > 500


def test_the_checks_find_what_they_look_for() -> None:
    found = {(0, 0): ("w", 0), (0, 1): ("w", 2), (0, 2): ("w", 1), (0, 3): ("w", 1), (0, 5): ("w", 9)}
    findings = harness.differences(found, {(0, 0): ("w", 7)}, {"w": [0, 1, 2, 3]})
    told = "\n".join(findings)
    for expected in ("2 times", "1 acknowledged rows of w are lost", "follows a later row", "gaps", "a reader saw"):
        assert expected in told
