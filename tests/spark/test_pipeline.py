"""The program behind `make run` ends with every figure right: a smaller one than users see, but all of its steps.
Shown by running it as a process of its own, with a Spark session of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PIPELINE = Path(__file__).parents[2] / "examples" / "pipeline.py"


@pytest.mark.slow
def test_the_pipeline_runs_to_its_report_and_everything_is_right() -> None:
    command = [sys.executable, str(PIPELINE), "--orders", "30000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    assert done.stdout.count("  right: ") == 3
    assert "WRONG" not in done.stdout
    assert re.search(r"^  orders +30,000$", done.stdout, re.MULTILINE)
