"""Callers that want the same thing at the same time share one call, and one caller's end is not the others'.
Shown with calls that a test holds back and lets go."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from fluss.client.kernel.shared_calls import SharedCalls
from fluss.errors import FlussError, NetworkError
from fluss.testing.waiting import eventually_async


class _Work:
    """Counts how often it begins; every call waits until it is released and returns its number."""

    def __init__(self) -> None:
        self.began = 0
        self.failure: Exception | None = None
        self.released = asyncio.Event()

    async def __call__(self) -> int:
        self.began += 1
        number = self.began
        await self.released.wait()
        if self.failure is not None:
            raise self.failure
        return number


async def _started(*coroutines: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def test_callers_of_a_running_call_get_its_outcome() -> None:
    calls, work = SharedCalls(), _Work()
    tasks = await _started(*(calls.join("key", work) for _ in range(3)))
    work.released.set()
    assert await asyncio.gather(*tasks) == [1, 1, 1]
    assert await calls.join("key", work) == 2


async def test_calls_with_other_keys_run_at_the_same_time() -> None:
    calls, work = SharedCalls(), _Work()
    tasks = await _started(calls.join("a", work), calls.join("b", work))
    assert work.began == 2
    work.released.set()
    assert await asyncio.gather(*tasks) == [1, 2]


async def test_a_caller_that_needs_news_never_gets_the_outcome_of_an_older_call() -> None:
    calls, work = SharedCalls(), _Work()
    tasks = await _started(*(calls.join_next("key", work) for _ in range(4)))
    # The first began at once; the others came later and share the one that follows.
    assert work.began == 1
    work.released.set()
    assert await asyncio.gather(*tasks) == [1, 2, 2, 2]
    assert await calls.join_next("key", work) == 3


async def test_the_call_that_follows_runs_also_when_the_one_before_failed() -> None:
    calls, work, failing = SharedCalls(), _Work(), _Work()
    failing.failure = NetworkError("gone")
    tasks = await _started(calls.join_next("key", failing), calls.join_next("key", work))
    failing.released.set()
    work.released.set()
    first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(first, NetworkError)
    assert second == 1


async def test_a_call_that_came_after_the_next_one_began_waits_for_one_more() -> None:
    calls, first, later = SharedCalls(), _Work(), _Work()
    tasks = await _started(calls.join_next("key", first), calls.join_next("key", later))
    first.released.set()
    await eventually_async(lambda: later.began == 1)
    tasks += await _started(calls.join_next("key", later))
    assert later.began == 1
    later.released.set()
    assert await asyncio.gather(*tasks) == [1, 1, 2]


async def test_a_cancelled_caller_does_not_cancel_the_call() -> None:
    calls, work = SharedCalls(), _Work()
    first, second = await _started(calls.join("key", work), calls.join("key", work))
    first.cancel()
    work.released.set()
    assert await second == 1
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_every_caller_gets_an_error_of_its_own() -> None:
    calls, work = SharedCalls(), _Work()
    work.failure = NetworkError("gone")
    tasks = await _started(calls.join("key", work), calls.join("key", work))
    work.released.set()
    first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert first is not second
    assert (type(first), str(first)) == (type(second), str(second)) == (NetworkError, "FlussError(code=1): gone")


async def test_a_failure_that_nobody_waits_for_any_more_is_no_warning() -> None:
    calls, work = SharedCalls(), _Work()
    work.failure = NetworkError("gone")
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    (task,) = await _started(calls.join("key", work))
    task.cancel()
    work.released.set()
    await asyncio.sleep(0.01)
    assert complaints == []


async def test_closing_cancels_what_runs_and_refuses_what_comes() -> None:
    calls, work = SharedCalls(), _Work()
    tasks = await _started(calls.join_next("key", work), calls.join_next("key", work))
    await calls.close()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, FlussError)
        assert "closed" in outcome.message
    with pytest.raises(FlussError, match="closed"):
        await calls.join("key", work)
    assert work.began == 1
