"""``make crash``: a thousand kills, with progress."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.crash import harness

CYCLES_PER_ROUND = 25


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=harness.__doc__)
    parser.add_argument("--cycles", type=int, default=1000, help="how often the server is killed (default: 1000)")
    parser.add_argument("--seed", type=int, default=None, help="repeat the schedule of an earlier run")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"{options.cycles} kills in rounds of {CYCLES_PER_ROUND}, seed {seed}", flush=True)
    started = time.monotonic()
    done = rows = 0
    while done < options.cycles:
        cycles = min(CYCLES_PER_ROUND, options.cycles - done)
        with tempfile.TemporaryDirectory(prefix="flussbett-crash-") as directory:
            report = asyncio.run(harness.run(Path(directory), cycles=cycles, seed=seed + done))
        done += cycles
        rows += report.acknowledged_rows
        print(
            f"{done:>6} kills, {rows:>10,} rows acknowledged, slowest start {report.start_seconds_max:.2f} s, "
            f"{time.monotonic() - started:.0f} s",
            flush=True,
        )
        if report.findings:
            print(*report.findings[:20], sep="\n")
            print(f"repeat this round with: python -m tests.crash --cycles {cycles} --seed {seed + done - cycles}")
            return 1
    print(f"nothing lost, nothing doubled, nothing reordered: {rows:,} acknowledged rows through {done} kills")
    return 0


if __name__ == "__main__":
    sys.exit(main())
