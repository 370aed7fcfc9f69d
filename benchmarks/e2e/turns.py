"""Two sides that do the same in turns: on a machine with other work only the ratio of neighbours means something."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

SideT = TypeVar("SideT")


def in_turns(sides: list[SideT], work: Callable[[SideT], int], turns: int) -> tuple[float, float]:
    """Return the median rate of the second side, and the median of how much faster the first was in the same turn."""
    rates: list[float] = []
    ratios: list[float] = []
    for turn in range(turns):
        found = {number: _rate(sides[number], work) for number in ((0, 1) if turn % 2 else (1, 0))}
        rates.append(found[1])
        ratios.append(found[0] / found[1])
    return statistics.median(rates), statistics.median(ratios)


def _rate(side: SideT, work: Callable[[SideT], int]) -> float:
    began_s = time.perf_counter()
    count = work(side)
    return count / (time.perf_counter() - began_s)
