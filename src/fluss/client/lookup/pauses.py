"""Pauses before something that failed is asked again."""

from __future__ import annotations

from typing import Final

# Twice as long each time, up to the longest. With less time left than the shortest, nothing is asked again.
PAUSE_S_MIN: Final = 0.02
_PAUSE_S_MAX: Final = 1.0
# Beyond this many, the longest pause is reached by far.
_DOUBLINGS_MAX: Final = 10


def pause_after(attempts: int, time_left_s: float) -> float:
    """Return how long to wait after so many attempts, in seconds.

    It is half of the time that is left at most, so that there is some for the answer.
    """
    doublings = min(attempts - 1, _DOUBLINGS_MAX)
    return min(PAUSE_S_MIN * (1 << doublings), _PAUSE_S_MAX, time_left_s / 2)
