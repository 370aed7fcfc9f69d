"""Run benchmarks of an earlier commit and of this tree in turns, and compare row by row: `make bench-compare`.

A machine that is shared has good minutes and bad ones, so a figure means little beside one of an hour ago, or of a
minute ago. Here both trees run at the same time, but only one of them works: each row is measured by one tree and then
by the other, before the next row is. All of that is repeated, and what counts is the ratio of neighbours: the median of
all turns, and how far the middle half of them lies apart. Rows that tell the processor time of the server are judged by
it, since that depends less on who else uses the machine.

    same      within a twentieth, or better
    slower    the median is lower than that, by more than the turns lie apart
    unclear   it is lower, and the turns lie further apart: take more of them
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

ROOT: Final = Path(__file__).parents[1]
# The frame of benchmarks, which lets a run wait before each row. Earlier commits get it, too.
_FRAME: Final = Path("benchmarks", "suites.py")
_ROW: Final = re.compile(r"(?P<name>\S.*?) +(?P<value>[\d,]+\.\d{3}) (?P<unit>\S*) *(?P<remark>.*)")
_PROCESSOR_TIME: Final = re.compile(r"(?P<value>[\d,.]+) (?P<unit>s|ms|us) of processor time")
_LESS_IS_BETTER: Final = frozenset({"s", "ms", "us", "ns", "MB", "KB", "bytes", "%"})
_OTHERS: Final = re.compile(r"pyfluss|limit")
_RATIO_MIN: Final = 0.95
_ROW_TIMEOUT_S: Final = 1800


class Row(NamedTuple):
    """One figure of a suite. Its name and unit tell it from the others."""

    name: str
    unit: str
    value: float

    @classmethod
    def parse(cls, line: str) -> Row | None:
        """Return the row in a line; its processor time if it tells that."""
        found = _ROW.match(line)
        if found is None:
            return None
        name, processor = found["name"].strip(), _PROCESSOR_TIME.search(found["remark"])
        if processor is not None:
            return cls(f"{name}, processor time", processor["unit"], _number(processor["value"]))
        return cls(name, found["unit"], _number(found["value"]))


def _number(text: str) -> float:
    return float(text.replace(",", ""))


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
            shutil.copy(ROOT / _FRAME, tree / _FRAME)
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


class SuiteRun:
    """A suite that runs in a tree, and waits between its rows. To be used in a ``with`` block."""

    def __init__(self, tree: Path, package: str, suite: str) -> None:
        self._command = [str(tree / ".venv" / "bin" / "python"), "-m", package, suite, "--step"]
        self._tree = tree
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed when the block ends
        self._process = subprocess.Popen(
            self._command, cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def __enter__(self) -> SuiteRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def next_row(self) -> Row | None:
        """Have the next row measured; None if there is none. A run that fails ends the program."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(_ROW_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            # If it has ended, the code below says how.
            with suppress(BrokenPipeError):
                print(file=self._process.stdin, flush=True)
            for line in self._process.stdout:
                row = Row.parse(line)
                if row is not None:
                    return row
        finally:
            watchdog.cancel()
        if self._process.wait():
            self._errors.seek(0)
            problem = self._errors.read()[-4000:]
            raise SystemExit(f"{' '.join(self._command)} in {self._tree} ended with an error:\n{problem}")
        return None


@dataclass(slots=True)
class Figures:
    """The figures of a row of both trees, in the order of the turns."""

    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)

    def ratios(self, unit: str) -> list[float]:
        """Return for each turn how many times as good this tree was; above 1 is better, whatever the unit."""
        pairs = [pair for pair in zip(self.before, self.after, strict=False) if min(pair) > 0]
        return [before / after if unit in _LESS_IS_BETTER else after / before for before, after in pairs]


def measure_in_turns(suite: str, base: Path, tree: Path, turns: int) -> dict[tuple[str, str], Figures]:
    """Measure each row in both trees, one right after the other, so often. Each goes first every second time."""
    package, _, name = suite.rpartition(".")
    rows: dict[tuple[str, str], Figures] = defaultdict(Figures)
    for turn in range(turns):
        with ExitStack() as stack:
            runs = [
                stack.enter_context(SuiteRun(each, f"benchmarks.{package or 'e2e'}", name)) for each in (base, tree)
            ]
            going = [0, 1] if turn % 2 == 0 else [1, 0]
            while going:
                for index in tuple(going):
                    row = runs[index].next_row()
                    if row is None:
                        going.remove(index)
                        continue
                    figures = rows[row.name, row.unit]
                    (figures.after if index else figures.before).append(row.value)
                going.reverse()
    return rows


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the ratios of all turns mean."""

    word: Literal["same", "slower", "unclear"]
    median: float
    # How far the middle half of the ratios lies apart.
    spread: float


def judge(ratios: Sequence[float]) -> Verdict:
    """Tell whether something has become slower, as far as that can be told."""
    median = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else (0.0, median, 2.0)
    spread = high - low
    if median >= _RATIO_MIN:
        return Verdict("same", median, spread)
    return Verdict("unclear" if spread > 1 - median else "slower", median, spread)


def print_comparison(suite: str, rows: dict[tuple[str, str], Figures]) -> list[Verdict]:
    """Print the rows that both trees have and that are ours; return what was found about them."""
    verdicts = []
    for (name, unit), figures in rows.items():
        ratios = figures.ratios(unit)
        if _OTHERS.search(name) or not ratios:
            continue
        verdict = judge(ratios)
        verdicts.append(verdict)
        told = " ".join(f"{ratio:.2f}" for ratio in ratios)
        middle = f"{statistics.median(figures.before):,.1f} -> {statistics.median(figures.after):,.1f} {unit}"
        mark = "" if verdict.word == "same" else f"  <- {verdict.word}"
        print(
            f"{suite:<10} {name:<80} {verdict.median:5.2f} +-{verdict.spread / 2:.2f}  {middle}  [{told}]{mark}",
            flush=True,
        )
    return verdicts


def main(arguments: list[str]) -> int:
    """Measure in turns and print the comparison; return 0 if no row is slower than it may be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("suites", nargs="+", help="suites of benchmarks.e2e, or of benchmarks.micro as micro.NAME")
    parser.add_argument("--turns", type=int, default=7, help="how often each row is measured in both trees")
    options = parser.parse_args(arguments)
    with checked_out(options.base) as base:
        words = [
            verdict.word
            for suite in options.suites
            for verdict in print_comparison(suite, measure_in_turns(suite, base, ROOT, options.turns))
        ]
    print(
        f"of {len(words)} rows {words.count('slower')} are below {_RATIO_MIN} of {options.base}, "
        f"{words.count('unclear')} are unclear"
    )
    return 1 if "slower" in words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
