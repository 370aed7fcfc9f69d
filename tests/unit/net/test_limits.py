"""Shared memory is counted exactly, and one of those who wait can always go on."""

from __future__ import annotations

from fluss.net.limits import ByteBudget


def _waiting(budget: ByteBudget, name: str, woken: list[str]):
    def resume() -> None:
        woken.append(name)

    budget.wait(resume)
    return resume


def test_a_connection_that_waits_is_told_once_when_there_is_room():
    budget, woken = ByteBudget(10), []
    budget.take(12)
    for name in ("a", "b"):
        _waiting(budget, name, woken)
    budget.give_back(2)
    assert (budget.is_exhausted, woken) == (True, [])
    budget.give_back(1)
    budget.give_back(9)
    assert (budget.is_exhausted, woken, budget.used_bytes) == (False, ["a", "b"], 0)


def test_counting_anew_wakes_none_unless_it_became_less():
    budget, woken = ByteBudget(10), []
    budget.take(9)
    _waiting(budget, "a", woken)
    budget.replace(4, 4)
    budget.replace(4, 5)
    assert (budget.used_bytes, budget.is_exhausted, woken) == (10, True, [])
    budget.replace(5, 1)
    assert (budget.used_bytes, woken) == (6, ["a"])


def test_one_is_the_first_until_it_leaves():
    budget, woken = ByteBudget(10), []
    budget.take(10)
    first, second = _waiting(budget, "first", woken), _waiting(budget, "second", woken)
    assert budget.may_be_first(first)
    assert budget.may_be_first(first)
    assert not budget.may_be_first(second)
    budget.leave(second)
    assert not budget.may_be_first(second)
    budget.wait(second)
    budget.leave(first)
    assert woken == ["second"], "another one may be the first now"
    assert budget.may_be_first(second)
