"""The verdict of a soak tells what rises from what goes up and down.
Shown with made-up samples of a server: flat, noisy, growing, growing in steps."""

from __future__ import annotations

import random

import pytest

from tools.soak import BOUNDS, Bound, judge

MEMORY = BOUNDS[0]
SECONDS = 600
BASE = 150e6


def verdict(values: list[float], bound: Bound = MEMORY) -> tuple[bool, float]:
    found = judge(bound, list(range(len(values))), values)
    return found.is_flat, found.growth


def test_work_that_goes_up_and_down_is_flat() -> None:
    rng = random.Random(1)
    values = [BASE + rng.random() ** 3 * 80e6 for _ in range(SECONDS)]
    is_flat, growth = verdict(values)
    assert is_flat
    assert abs(growth) < 1e6


@pytest.mark.parametrize("gained", [12e6, 50e6])
def test_a_slow_leak_below_the_noise_is_found(gained: float) -> None:
    rng = random.Random(2)
    values = [BASE + gained * second / SECONDS + rng.random() * 80e6 for second in range(SECONDS)]
    is_flat, growth = verdict(values)
    assert not is_flat
    assert growth == pytest.approx(gained, rel=0.3)


def test_growth_in_steps_is_found_and_shrinking_is_fine() -> None:
    steps = [BASE + (second // 100) * 4e6 for second in range(SECONDS)]
    assert not verdict(steps)[0]
    assert verdict(steps[::-1])[0]


def test_what_is_allowed_is_a_share_or_a_size_whichever_is_more() -> None:
    assert MEMORY.allowed(20e6) == 8e6
    assert MEMORY.allowed(1e9) == pytest.approx(50e6)


def test_samples_of_a_single_moment_are_judged() -> None:
    assert verdict([BASE]) == (True, 0.0)
