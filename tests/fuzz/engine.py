"""The loop: damaged input into a decoder, and a verdict on what came out.

The only good outcomes are a result and a ``FlussError``. Everything else is a finding: another exception, more than
``SECONDS_MAX`` for one input, or memory that grows.
"""

from __future__ import annotations

import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fluss.errors import FlussError
from tests.fuzz.mutate import damaged

SECONDS_MAX = 1.0
MEMORY_GROWTH_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class Target:
    """A decoder, and valid inputs to damage. ``decode`` must accept every seed."""

    name: str
    seeds: Sequence[bytes]
    decode: Callable[[bytes], object]


@dataclass(frozen=True)
class Finding:
    target: str
    case: int
    problem: str
    data: bytes

    def __str__(self) -> str:
        return (
            f"{self.target} case {self.case}: {self.problem}\n  replay with: --replay {self.target} {self.data.hex()}"
        )


@dataclass
class Report:
    cases: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    seconds_slowest: float = 0.0
    memory_growth_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    cases_by_target: Counter[str] = field(default_factory=Counter)


def judge(target: Target, data: bytes) -> tuple[str | None, bool, float]:
    """Run one input; return (problem or None, whether it was accepted, seconds of processor time)."""
    problem, accepted = None, False
    # Not the time of the clock: other programs may keep the cores busy.
    start = time.process_time()
    try:
        target.decode(data)
        accepted = True
    except FlussError:
        pass
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    seconds = time.process_time() - start
    if problem is None and seconds > SECONDS_MAX:
        problem = f"took {seconds:.2f} s"
    return problem, accepted, seconds


def run(
    targets: Sequence[Target],
    count: int,
    seed: int,
    *,
    first_case: int = 0,
    findings_max: int = 20,
    on_progress: Callable[[Report], None] | None = None,
) -> Report:
    """Run ``count`` cases, spread evenly over the targets. Case ``n`` depends only on the seed and on ``n``."""
    for target in targets:
        for valid in target.seeds:
            target.decode(valid)
    report = Report()
    started = time.perf_counter()
    warm_up = max(len(targets) * 20, count // 50)
    memory_base = 0
    for case in range(first_case, first_case + count):
        target = targets[case % len(targets)]
        data = damaged(random.Random(seed * 1_000_000_007 + case), target.seeds)
        problem, accepted, seconds = judge(target, data)
        report.cases += 1
        report.accepted += accepted
        report.refused += not accepted and problem is None
        report.seconds_slowest = max(report.seconds_slowest, seconds)
        report.cases_by_target[target.name] += 1
        if problem is not None:
            report.findings.append(Finding(target.name, case, problem, data))
            if len(report.findings) >= findings_max:
                break
        if report.cases == warm_up:
            memory_base = _memory_peak_bytes()
        if on_progress is not None and report.cases % 1000 == 0:
            report.seconds = time.perf_counter() - started
            on_progress(report)
    report.seconds = time.perf_counter() - started
    if memory_base:
        report.memory_growth_bytes = _memory_peak_bytes() - memory_base
        if report.memory_growth_bytes > MEMORY_GROWTH_BYTES_MAX:
            grown = report.memory_growth_bytes >> 20
            report.findings.append(Finding("memory", report.cases, f"the peak grew by {grown} MiB", b""))
    return report


def _memory_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
