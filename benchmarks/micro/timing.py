"""How to time a short function on a noisy machine."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_seconds(work: Callable[[], object], *, budget_seconds: float = 0.6, runs_min: int = 5) -> float:
    """Return the fastest of as many runs as fit the budget: noise only ever adds time."""
    best = float("inf")
    deadline = time.perf_counter() + budget_seconds
    runs = 0
    while runs < runs_min or time.perf_counter() < deadline:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
        runs += 1
    return best
