"""No input of a stranger crashes, hangs or bloats a decoder.

5,000 damaged inputs in processes of their own, because the worst outcome takes its process down; more by `make fuzz`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.engine import Target, run
from tests.fuzz.targets import all_targets

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(1800)
def test_two_thousand_damaged_inputs_leave_no_finding() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--count", "2000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "2,000 inputs" in done.stdout
    assert " 0 findings" in done.stdout


def test_every_target_has_a_name_and_seeds_of_its_own() -> None:
    targets = all_targets()
    assert len({target.name for target in targets}) == len(targets)
    assert all(target.seeds and all(target.seeds) for target in targets)


def test_the_fuzzer_finds_what_it_looks_for() -> None:
    """A decoder with an IndexError in its depths is found, and the finding replays it."""

    def careless(data: bytes) -> int:
        return data[data[0]]

    report = run([Target("careless", [bytes([3, 1, 2, 4])], careless)], count=200, seed=1)
    assert report.findings
    assert "IndexError" in report.findings[0].problem
    with pytest.raises(IndexError):
        careless(report.findings[0].data)
