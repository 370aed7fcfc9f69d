"""``make chaos``: servers that are killed, starved and cut off while clients write, read and look up.

Every round has its own seed, servers' disk, network and faults. At its end everything that clients did and saw is
checked. A round that finds something leaves its history, the server's log and data, and the findings in a directory.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fluss.testing.forked_servers import ServerForks
from tests.chaos.machine import Disk, Fault
from tests.chaos.rounds import Plan, Report, run_round

FAULTS_PER_ROUND = 30
# Of so many rounds one has a loop device, and every second one a proxy.
_DISKS = (Disk.PLAIN, Disk.LOSING, Disk.PLAIN, Disk.LOSING, Disk.LOOP)


class Totals:
    """What all rounds together have done."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.counts: Counter[Fault] = Counter()
        self.kills = self.rounds = self.written = self.read = self.lookups = 0
        self.failed: list[Report] = []
        self.skipped: set[str] = set()

    def add(self, report: Report) -> None:
        if report.skipped is not None:
            if report.skipped not in self.skipped:
                self.skipped.add(report.skipped)
                print(f"rounds on a file system of their own are left out, {report.skipped}", flush=True)
            return
        self.rounds += 1
        self.counts += report.counts
        self.kills += report.kill_count
        self.written += report.written_rows
        self.read += report.read_rows
        self.lookups += report.lookup_count
        if report.findings:
            self.failed.append(report)
        network = ", bad network" if report.plan.has_proxy else ""
        network += ", remote storage" if report.plan.has_remote else ""
        verdict = "FAILED" if report.findings else "ok"
        print(
            f"round {self.rounds:>4}, seed {report.plan.seed}, {report.plan.disk} disk{network}, "
            f"{report.seconds:.0f} s: {verdict}; {self.kills:,} kills so far, {self.kills / self.minutes:.0f}/min, "
            f"{self.counts.total():,} faults, {self.written:,} rows written",
            flush=True,
        )
        for finding in report.findings:
            print(finding, flush=True)

    @property
    def minutes(self) -> float:
        return max((time.monotonic() - self.began_s) / 60, 1e-9)


def plans(seed: int, options: argparse.Namespace) -> Iterator[Plan]:
    """Return the rounds that follow from a seed."""
    for number in itertools.count():
        disk = Disk(options.disk) if options.disk else _DISKS[number % len(_DISKS)]
        yield Plan(
            seed=seed + number,
            fault_count=options.faults_per_round,
            disk=disk,
            has_proxy=options.proxy if options.proxy is not None else number % 2 == 1,
            has_remote=options.remote if options.remote is not None else number % 3 == 2,
            faults=tuple(map(Fault, options.faults.split(","))) if options.faults else (),
            quiet_s=options.quiet_ms / 1000,
            pause_s=options.pause_ms / 1000,
        )


async def run(options: argparse.Namespace, seed: int) -> Totals:
    """Run rounds, some at a time, until enough was killed, the time is over, or something was found."""
    totals = Totals()
    artefacts = Path(options.artefacts)
    # Servers and file systems must not be left behind.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)

    def is_over() -> bool:
        return bool(
            totals.failed
            or (options.kills and totals.kills >= options.kills)
            or (options.minutes and totals.minutes >= options.minutes)
            or (options.rounds and totals.rounds >= options.rounds)
        )

    with (
        ServerForks() as forks,
        tempfile.TemporaryDirectory(prefix="flussbett-chaos-", dir=options.directory) as temporary,
    ):
        waiting = plans(seed, options)

        async def worker() -> None:
            while not is_over():
                plan = next(waiting)
                totals.add(await run_round(plan, Path(temporary) / f"seed-{plan.seed}", forks, artefacts))

        await asyncio.gather(*(worker() for _ in range(options.servers)))
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=0, help="how long")
    parser.add_argument("--kills", type=int, default=0, help="until so many servers were killed")
    parser.add_argument("--rounds", type=int, default=0, help="until so many rounds are done")
    parser.add_argument("--seed", type=int, default=None, help="repeat the rounds of an earlier run")
    parser.add_argument("--servers", type=int, default=2, help="how many at a time (default 2)")
    parser.add_argument("--faults", default="", help=f"only these, separated by commas: {', '.join(Fault)}")
    parser.add_argument("--faults-per-round", type=int, default=FAULTS_PER_ROUND, help=f"(default {FAULTS_PER_ROUND})")
    parser.add_argument("--disk", choices=list(Disk), help="the same for all rounds (default: in turns)")
    parser.add_argument("--proxy", action=argparse.BooleanOptionalAction, help="a bad network (default: every other)")
    parser.add_argument(
        "--remote", action=argparse.BooleanOptionalAction, help="copies in remote storage (default: every third)"
    )
    parser.add_argument("--quiet-ms", type=float, default=150, help="time before a fault, on average (default 150)")
    parser.add_argument("--pause-ms", type=float, default=4, help="time between operations of a client (default 4)")
    parser.add_argument("--directory", help="where servers have their data; in memory, such as /dev/shm, is fastest")
    parser.add_argument("--artefacts", default="chaos-failures", help="where failed rounds are kept")
    options = parser.parse_args()
    if not (options.minutes or options.kills or options.rounds):
        options.minutes = 5.0
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}, {options.servers} servers at a time, pid {os.getpid()}", flush=True)
    try:
        totals = asyncio.run(run(options, seed))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("ended before its time")
        return 1
    print(
        f"{totals.rounds} rounds in {totals.minutes:.1f} minutes: {totals.kills:,} kills "
        f"({totals.kills / totals.minutes:.0f} a minute), {totals.written:,} rows written, {totals.read:,} read, "
        f"{totals.lookups:,} looked up"
    )
    print("faults: " + ", ".join(f"{fault} {count}" for fault, count in sorted(totals.counts.items())))
    if totals.failed:
        for report in totals.failed:
            plan = report.plan
            print(
                f"FAILED: see {report.artefacts}; repeat the round with: python -m tests.chaos --rounds 1 --servers 1 "
                f"--seed {plan.seed} --disk {plan.disk} --{'' if plan.has_proxy else 'no-'}proxy "
                f"--faults-per-round {plan.fault_count}" + (f" --faults {','.join(plan.faults)}" if plan.faults else "")
            )
        return 1
    print("nothing lost, nothing doubled, nothing reordered, nothing stale")
    return 0


if __name__ == "__main__":
    sys.exit(main())
