"""Run benchmarks of an earlier commit and of this tree in turns, and compare row by row: `make bench-compare`.

A machine that is shared has good minutes and bad ones, so a figure means little beside one of an hour ago. Here both
trees are measured again and again, one after the other, and the best and the medians of each are compared. Rows whose
both ratios are lower than they may be are marked; a row that stays marked with more turns is one to look at.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_ROW: Final = re.compile(r"(?P<name>\S.{0,75}?) +(?P<value>[\d,]+\.\d{3}) (?P<unit>\S*)")
_LESS_IS_BETTER: Final = frozenset({"s", "ms", "us", "ns", "MB", "KB", "bytes", "%"})
_OTHERS: Final = re.compile(r"pyfluss|limit")
_RATIO_MIN: Final = 0.95
_TURN_TIMEOUT_S: Final = 1800

# The figures of a row by tree, in the order of the turns.
Figures = dict[str, list[float]]


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Have the files of a commit in a directory, with the libraries and the official clients of this tree."""
    with tempfile.TemporaryDirectory(prefix="flussbett-bench-") as directory:
        tree = Path(directory) / "base"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], cwd=ROOT, check=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tree / ".venv")], check=True)
            paths = f"{tree / 'src'}\n{sysconfig.get_path('purelib')}\n"
            for site in (tree / ".venv" / "lib").glob("python*/site-packages"):
                (site / "base.pth").write_text(paths)
            if (ROOT / ".interop").exists():
                (tree / ".interop").symlink_to((ROOT / ".interop").resolve())
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def measure(tree: Path, package: str, suite: str) -> Iterator[tuple[tuple[str, str], float]]:
    """Run one suite in a tree; return name, unit and figure of every row."""
    command = [str(tree / ".venv" / "bin" / "python"), "-m", package, suite]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=_TURN_TIMEOUT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} in {tree} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    for line in done.stdout.splitlines():
        if match := _ROW.match(line):
            yield (match["name"].strip(), match["unit"]), float(match["value"].replace(",", ""))


def compare(unit: str, before: list[float], after: list[float], middle: Callable[[list[float]], float]) -> float:
    """Return how many times as good the figures are; above 1 is better, whatever the unit."""
    ratio = middle(after) / middle(before)
    return 1 / ratio if unit in _LESS_IS_BETTER else ratio


def measure_in_turns(suite: str, base: Path, turns: int) -> dict[tuple[str, str], Figures]:
    """Measure both trees so often; each goes first every second time."""
    package, _, name = suite.rpartition(".")
    rows: dict[tuple[str, str], Figures] = defaultdict(lambda: {"before": [], "after": []})
    trees = [("before", base), ("after", ROOT)]
    for _turn in range(turns):
        for when, tree in trees:
            for row, figure in measure(tree, f"benchmarks.{package or 'e2e'}", name):
                rows[row][when].append(figure)
        trees.reverse()
    return rows


def print_comparison(suite: str, rows: dict[tuple[str, str], Figures]) -> int:
    """Print the rows that both trees have and that are ours; return how many are slower than they may be."""
    slower_count = 0
    for (name, unit), figures in rows.items():
        before, after = figures["before"], figures["after"]
        if _OTHERS.search(name) or not before or not after:
            continue
        best = compare(unit, before, after, min if unit in _LESS_IS_BETTER else max)
        median = compare(unit, before, after, statistics.median)
        # Noise makes one of the two low now and then; what has really become slower is so in both.
        is_slower = max(best, median) < _RATIO_MIN
        slower_count += is_slower
        told = " | ".join(" ".join(f"{figure:,.1f}" for figure in turns) for turns in (before, after))
        mark = "  <- slower" if is_slower else ""
        print(f"{suite:<10} {name:<70} {unit:<8} {best:5.2f} {median:5.2f}  {told}{mark}", flush=True)
    return slower_count


def main(arguments: list[str]) -> int:
    """Measure in turns and print the comparison; return 0 if no row is slower than it may be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("suites", nargs="+", help="suites of benchmarks.e2e, or of benchmarks.micro as micro.NAME")
    parser.add_argument("--turns", type=int, default=3, help="how often each tree is measured")
    options = parser.parse_args(arguments)
    with checked_out(options.base) as base:
        slower_counts = [
            print_comparison(suite, measure_in_turns(suite, base, options.turns)) for suite in options.suites
        ]
    print(f"{sum(slower_counts)} rows below {_RATIO_MIN} of {options.base}")
    return 1 if any(slower_counts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
