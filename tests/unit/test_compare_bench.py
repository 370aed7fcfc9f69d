"""Two trees are measured row by row in turns, and what is noise is not called slower.
Shown with suites that write down when they work, and with made-up ratios."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import pytest

from tools.compare_bench import ROOT, Figures, Row, judge, measure_in_turns

SUITE = """
from pathlib import Path

def measure():
    for name in ("first", "second"):
        with open(Path(__file__).parents[3] / "order", "a") as file:
            print(f"{FACTOR} {name}", file=file)
        yield name, 100 * FACTOR, "MB/s", ""
    yield "third", 1, "ms", f"server: {1000 * FACTOR:,} ms of processor time"
    if FACTOR == 2:
        yield "new", 1, "s", ""
"""
MAIN = "from benchmarks.suites import run_suites\nrun_suites('benchmarks.e2e', ('tiny', 'broken'), None)\n"


def tree(directory: Path, factor: int) -> Path:
    package = directory / "benchmarks" / "e2e"
    package.mkdir(parents=True)
    (directory / "benchmarks" / "__init__.py").touch()
    shutil.copy(ROOT / "benchmarks" / "suites.py", directory / "benchmarks" / "suites.py")
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(MAIN)
    (package / "tiny.py").write_text(f"FACTOR = {factor}\n{SUITE}")
    (package / "broken.py").write_text("def measure():\n    raise RuntimeError('out of order')\n    yield\n")
    (directory / ".venv" / "bin").mkdir(parents=True)
    (directory / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (directory / ".venv" / "bin" / "python").chmod(0o755)
    return directory


def test_each_row_is_measured_in_both_trees_before_the_next_one_is(tmp_path: Path) -> None:
    before, after = tree(tmp_path / "before", 1), tree(tmp_path / "after", 2)
    rows = measure_in_turns("tiny", before, after, turns=2)
    order = (tmp_path / "order").read_text().split("\n")
    turn = ["1 first", "2 first", "2 second", "1 second"]
    assert order[:4] == turn
    assert order[4:8] == ["2 first", "1 first", "1 second", "2 second"]
    assert rows["first", "MB/s"] == Figures([100, 100], [200, 200])
    assert rows["first", "MB/s"].ratios("MB/s") == [2, 2]
    assert rows["third, processor time", "ms"].ratios("ms") == [0.5, 0.5]
    assert rows["new", "s"].ratios("s") == [], "what only one of them has is not compared"


def test_a_suite_that_fails_says_why(tmp_path: Path) -> None:
    both = tree(tmp_path / "both", 1)
    with pytest.raises(SystemExit, match="RuntimeError: out of order"):
        measure_in_turns("broken", both, both, turns=1)


def test_lines_of_benchmarks_are_read() -> None:
    line = f"{'append, ours':<76} {1234.5:>12,.3f} {'MB/s':<9} target 100"
    assert Row.parse(line) == Row("append, ours", "MB/s", 1234.5)
    line = f"{'one condition':<76} {12.5:>12,.3f} {'ms':<9} server: 1,200 ms of processor time"
    assert Row.parse(line) == Row("one condition, processor time", "ms", 1200)
    name = "limit for scan: loopback transfer of the same 244 MB (NONE, durability=fsync)"
    assert Row.parse(f"{name:<76} {6397.747:>12,.3f} MB/s ") == Row(name, "MB/s", 6397.747), "names may be longer"
    assert Row.parse("Python 3.11.7 on x86_64, 2 cores") is None


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ([1.0, 0.99, 1.02, 0.97, 1.01], "same"),
        ([0.80, 0.81, 0.79, 0.80, 1.20], "slower"),
        ([0.94, 0.94, 0.94, 0.94, 0.94], "slower"),
        ([0.60, 1.30, 0.85, 1.10, 0.70], "unclear"),
        ([0.80], "unclear"),
        ([1.30], "same"),
    ],
)
def test_a_row_is_slower_only_if_its_turns_agree(ratios: list[float], word: str) -> None:
    assert judge(ratios).word == word


def test_noise_alone_is_hardly_ever_called_slower() -> None:
    rng = random.Random(3)
    words = [judge([rng.gauss(1.0, 0.15) for _ in range(7)]).word for _ in range(1000)]
    assert words.count("slower") < 50
    slowed = [judge([rng.gauss(0.7, 0.1) for _ in range(9)]).word for _ in range(1000)]
    assert slowed.count("slower") > 900
