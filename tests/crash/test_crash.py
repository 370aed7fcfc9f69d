"""Acknowledged rows survive kill -9: six kills while two processes write and one reader reads along.

The scenarios say what they check. ``make crash`` does the same a thousand times.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.crash import harness, keyed_rows, log_rows
from tests.crash.keyed_rows import KeyedRows, Record
from tests.crash.keyed_writer import Change
from tests.crash.log_rows import LogRows
from tests.crash.log_writer import payload

KILLS = 6


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", [LogRows, KeyedRows])
def test_kills_lose_nothing_double_nothing_and_reorder_nothing(
    tmp_path: Path, scenario: type[harness.Scenario]
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    report = asyncio.run(harness.run(tmp_path, scenario(), cycles=KILLS, seed=seed))
    assert report.findings == [], f"seed {seed}"
    assert report.cycles == KILLS
    # The run was one worth having: plenty was written, and the reader lived through it.
    assert report.acknowledged_rows > 1000
    assert report.rows_seen_live > 500


def test_the_checks_of_log_rows_find_what_they_look_for() -> None:
    found = {(0, 0): ("w", 0), (0, 1): ("w", 2), (0, 2): ("w", 1), (0, 3): ("w", 1), (0, 5): ("w", 9)}
    findings = log_rows.differences(found, {(0, 0): ("w", 7)}, {"w": [0, 1, 2, 3]})
    told = "\n".join(findings)
    for expected in ("2 times", "1 acknowledged rows of w are lost", "follows a later row", "gaps", "a reader saw"):
        assert expected in told


def _row(slot: int, number: int) -> dict[str, object]:
    return {"writer": "w", "slot": slot, "n": number, "payload": payload(number)}


def test_the_checks_of_keyed_rows_are_content_with_what_is_right() -> None:
    changelog = [
        Record(0, 0, "+I", _row(1, 0)),
        Record(0, 1, "-U", _row(1, 0)),
        Record(0, 2, "+U", _row(1, 1)),
        Record(1, 0, "+I", _row(2, 2)),
        Record(1, 1, "-D", _row(2, 2)),
    ]
    changes = {"w": [Change(0, 1, False), Change(1, 1, False), Change(2, 2, False), Change(3, 2, True)]}
    rows = {("w", 1): _row(1, 1)}
    assert keyed_rows.differences(rows, rows, changelog, changes) == []


def test_the_checks_of_keyed_rows_find_what_they_look_for() -> None:
    changelog = [
        Record(0, 0, "+I", _row(1, 1)),
        Record(0, 1, "+I", _row(1, 0)),
        Record(0, 3, "-U", _row(1, 1)),
        Record(0, 5, "+U", _row(1, 1)),
        Record(0, 5, "-D", _row(2, 2)),
    ]
    rows = {("w", 1): _row(1, 0), ("w", 7): {**_row(7, 7), "payload": "?"}}
    changes = {"w": [Change(1, 1, False), Change(7, 7, False), Change(9, 9, True)]}
    told = "\n".join(keyed_rows.differences(rows, {}, changelog, changes))
    for expected in (
        "('w', 1) should be 1, lookup says 0",
        "('w', 7) should be 7, reading the table says None",
        "('w', 7) is damaged by lookup",
        "follows 5",
        "has no -U before it",
        "+I at offset 1 of bucket 0, but",
        "-D at offset 5",
        "1 changes of w are in the changelog twice",
        "1 acknowledged upserts of w are not in the changelog, as 7",
        "follows a later change",
    ):
        assert expected in told
