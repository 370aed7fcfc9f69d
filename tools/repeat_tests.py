"""Run `make test` again and again from clean clones, with and without other work on the machine: `make test-repeat`.

Every run is a clone of the last commit in a temporary directory, where `make test` installs and runs everything as it
does for a newcomer. Beside every second run busy loops keep the cores from it: what a test asserts must follow from
the code, not from the clock. The official clients are taken from this tree if it has them.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_BUSY_LOOP: Final = "while True: pass"
_COUNTS: Final = re.compile(r"(?P<count>\d+) (?P<outcome>passed|failed|error)")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """What came of one run."""

    code: int
    seconds: float
    counts: dict[str, int]
    failures: list[str]

    def describe(self) -> str:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items()) or "no tests ran"
        names = "".join(f"\n    {name}" for name in self.failures)
        return f"{'ok' if self.code == 0 else 'FAILED'}: {counts}, {self.seconds:.0f} s{names}"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep so many cores busy."""
    loops = [subprocess.Popen([sys.executable, "-c", _BUSY_LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_once(log: Path) -> Run:
    """Clone the last commit and run its tests; the output goes to a file."""
    with tempfile.TemporaryDirectory(prefix="flussbett-test-") as directory:
        clone = Path(directory) / "clone"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        if (ROOT / ".interop").exists():
            (clone / ".interop").symlink_to((ROOT / ".interop").resolve())
        began_s = time.monotonic()
        with log.open("w") as output:
            code = subprocess.call(["make", "test"], cwd=clone, stdout=output, stderr=subprocess.STDOUT)
        seconds = time.monotonic() - began_s
    text = log.read_text(errors="replace")
    last_lines = "\n".join(text.splitlines()[-3:])
    counts = {match["outcome"]: int(match["count"]) for match in _COUNTS.finditer(last_lines)}
    return Run(code, seconds, counts, _FAILED.findall(text))


def main(arguments: list[str]) -> int:
    """Run the tests as often as asked; return 0 if every run passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10, help="how many runs")
    parser.add_argument("--busy", type=int, default=2, help="how many busy loops beside every second run")
    parser.add_argument("--logs", type=Path, help="where the output of every run is kept")
    options = parser.parse_args(arguments)
    logs = options.logs or Path(tempfile.mkdtemp(prefix="flussbett-test-logs-"))
    logs.mkdir(parents=True, exist_ok=True)
    print(f"{options.count} runs, output in {logs}", flush=True)
    failed_count = 0
    for number in range(1, options.count + 1):
        busy_count = options.busy if number % 2 == 0 else 0
        with busy_loops(busy_count):
            run = run_once(logs / f"{number}.txt")
        failed_count += run.code != 0
        print(f"run {number}, {busy_count} busy loops: {run.describe()}", flush=True)
    print(f"{options.count - failed_count} of {options.count} runs passed", flush=True)
    return 1 if failed_count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
