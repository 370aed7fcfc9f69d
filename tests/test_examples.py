"""Every example runs to its end, those in the README too.

Each file in examples/ is started as a user would start it; it checks its own results and exits with an error otherwise.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import ROOT, needs_spark, promised_lines, readme_programs

# Those with Spark are run beside its other tests.
EXAMPLES = [
    path for path in sorted((ROOT / "examples").glob("*.py")) if "pyspark" not in path.read_text(encoding="utf-8")
]
README_PROGRAMS = [program for program in readme_programs() if not needs_spark(program)]


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize(
    "example",
    # The story reads and writes millions of rows.
    [pytest.param(path, marks=[pytest.mark.slow] if path.stem == "story" else [], id=path.stem) for path in EXAMPLES],
)
def test_example_runs(example: Path) -> None:
    command = [sys.executable, "-W", "error", str(example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert not done.stderr


@pytest.mark.parametrize("program", README_PROGRAMS)
def test_program_of_the_readme_prints_what_its_comments_say(program: str) -> None:
    promised = promised_lines(program)
    assert promised
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.splitlines() == promised
