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
from tests.crash.keyed_rows import KeyedRows
from tests.crash.log_rows import LogRows

CYCLES_PER_ROUND = 25
SCENARIOS: dict[str, type[harness.Scenario]] = {"log": LogRows, "keyed": KeyedRows}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=harness.__doc__)
    parser.add_argument("--cycles", type=int, default=1000, help="how often the server is killed (default: 1000)")
    parser.add_argument("--seed", type=int, default=None, help="repeat the schedule of an earlier run")
    parser.add_argument("--scenario", choices=SCENARIOS, help="log tables or primary-key tables (default: in turns)")
    options = parser.parse_args()
    scenarios = [options.scenario] if options.scenario else list(SCENARIOS)
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"{options.cycles} kills in rounds of {CYCLES_PER_ROUND}, seed {seed}", flush=True)
    started = time.monotonic()
    done = rows = rounds = 0
    while done < options.cycles:
        cycles = min(CYCLES_PER_ROUND, options.cycles - done)
        scenario = scenarios[rounds % len(scenarios)]
        rounds += 1
        with tempfile.TemporaryDirectory(prefix="flussbett-crash-") as directory:
            report = asyncio.run(harness.run(Path(directory), SCENARIOS[scenario](), cycles=cycles, seed=seed + done))
        done += cycles
        rows += report.acknowledged_rows
        print(
            f"{done:>6} kills, {rows:>10,} rows acknowledged, slowest start {report.start_seconds_max:.2f} s, "
            f"{scenario}, damaged {report.damage_count} times, {time.monotonic() - started:.0f} s",
            flush=True,
        )
        if report.findings:
            print(*report.findings[:20], sep="\n")
            print(
                "repeat this round with: python -m tests.crash "
                f"--scenario {scenario} --cycles {cycles} --seed {seed + done - cycles}"
            )
            return 1
    print(f"nothing lost, nothing doubled, nothing reordered: {rows:,} acknowledged rows through {done} kills")
    return 0


if __name__ == "__main__":
    sys.exit(main())
