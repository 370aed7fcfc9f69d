"""Command line of the fuzzer: ``python -m tests.fuzz --count 10000000``.

One process per core; the exit status is 1 when anything was found. A finding prints the line that replays it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.fuzz.engine import judge
from tests.fuzz.targets import all_targets
from tests.fuzz.worker import run_share


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="how many damaged inputs (default 20,000)")
    parser.add_argument("--seed", type=int, default=20_260_101, help="the same seed gives the same inputs")
    parser.add_argument("--only", metavar="TARGET", help="fuzz targets whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--list", action="store_true", help="list the targets and stop")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "HEX"), help="run one input with its traceback")
    options = parser.parse_args()
    if options.replay:
        return _replay(*options.replay)
    names = [t.name for t in all_targets() if options.only is None or options.only in t.name]
    if options.list or not names:
        print("\n".join(names) or f"no target contains {options.only!r}")
        return 0 if names else 2
    return _fuzz(names, options.count, options.seed, max(1, options.jobs))


def _fuzz(names: list[str], count: int, seed: int, jobs: int) -> int:
    started = time.perf_counter()
    share = [count // jobs + (1 if i < count % jobs else 0) for i in range(jobs)]
    work = [(names, share[i], seed, sum(share[:i]), i == 0 and sys.stderr.isatty(), jobs) for i in range(jobs)]
    # An executor, unlike a Pool, notices when a decoder takes the whole process down.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        reports = list(pool.map(run_share, *zip(*work, strict=True)))
    findings = [f for r in reports for f in r.findings]
    cases = sum(r.cases for r in reports)
    seconds = time.perf_counter() - started
    print(
        f"fuzz: {cases:,} inputs over {len(names)} decoders in {seconds:.1f} s "
        f"({cases / seconds:,.0f}/s, seed {seed}): "
        f"{sum(r.refused for r in reports):,} refused, {sum(r.accepted for r in reports):,} accepted, "
        f"slowest {max(r.seconds_slowest for r in reports) * 1000:.1f} ms, "
        f"memory +{max(r.memory_growth_bytes for r in reports) / 2**20:.1f} MiB, {len(findings)} findings"
    )
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def _replay(name: str, data_hex: str) -> int:
    (target,) = [t for t in all_targets() if t.name == name]
    data = bytes.fromhex(data_hex)
    problem, accepted, seconds = judge(target, data)
    print(f"{name}: {problem or ('accepted' if accepted else 'refused')} in {seconds * 1000:.2f} ms")
    target.decode(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
