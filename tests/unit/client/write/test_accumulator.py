"""The memory pool bounds what is reserved, serves those who wait in their order, and lets go of those who give up.
Shown with real threads; where time matters, the clock belongs to the test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from fluss.client.write.accumulator import MemoryPool
from fluss.errors import FlussError
from fluss.testing.waiting import eventually


def pool_of(bytes_max: int, wait_timeout_s: float = 120.0, on_wait: Callable[[], None] = lambda: None) -> MemoryPool:
    return MemoryPool(bytes_max, wait_timeout_s, on_wait)


def waiting(pool: MemoryPool, threads: ThreadPoolExecutor, *args: Any, **kwargs: Any) -> Future[int]:
    """Start to reserve on another thread, and return when it waits."""
    count = pool.waiting_count
    future = threads.submit(pool.reserve, *args, **kwargs)
    eventually(lambda: pool.waiting_count == count + 1)
    return future


def test_what_is_reserved_never_exceeds_the_limit() -> None:
    pool = pool_of(1000)
    assert [pool.reserve(400), pool.reserve(500)] == [400, 500]
    assert pool.used_bytes == 900
    with ThreadPoolExecutor() as threads:
        third = waiting(pool, threads, 200)
        pool.release(100)
        assert third.result(120) == 200
    assert pool.used_bytes == 1000
    pool.release(1000)
    assert pool.used_bytes == 0


def test_more_than_there_is_at_all_is_refused_at_once() -> None:
    with pytest.raises(FlussError, match="exceeds total buffer memory limit"):
        pool_of(1000).reserve(1001)


def test_those_who_wait_are_served_in_their_order_even_if_a_later_one_would_fit() -> None:
    pool = pool_of(1000)
    pool.reserve(1000)
    with ThreadPoolExecutor() as threads:
        large = waiting(pool, threads, 800)
        small = waiting(pool, threads, 10)
        pool.release(500)
        assert not large.done()
        assert not small.done()
        pool.release(500)
        assert [large.result(120), small.result(120)] == [800, 10]


def test_what_is_wanted_is_given_as_far_as_it_is_there() -> None:
    pool = pool_of(1000)
    assert pool.reserve(10, 300) == 300
    assert pool.try_reserve(10, 600) == 600
    assert pool.try_reserve(10, 600) == 100
    assert pool.try_reserve(10, 600) == 0
    assert pool.used_bytes == 1000


def test_who_begins_something_large_waits_until_it_is_worth_while() -> None:
    pool = pool_of(1000)
    assert pool.reserve(10, 20, free_bytes_min=500) == 20
    held = pool.reserve(600)
    with ThreadPoolExecutor() as threads:
        patient = waiting(pool, threads, 10, 20, free_bytes_min=500)
        assert pool.try_reserve(1, 1) == 0, "nobody overtakes"
        pool.release(100)
        assert not patient.done()
        pool.release(100)
        assert patient.result(120) == 20
    assert pool.used_bytes == held - 200 + 40


def test_nobody_waits_for_more_than_there_is() -> None:
    pool = pool_of(100)
    held = pool.reserve(60)
    with ThreadPoolExecutor() as threads:
        patient = waiting(pool, threads, 50, free_bytes_min=10_000)
        pool.release(held)
        assert patient.result(120) == 50


def test_waiting_ends_with_an_error_when_nothing_becomes_free_in_time() -> None:
    pool = pool_of(100, wait_timeout_s=0.02)
    pool.reserve(100)
    with pytest.raises(FlussError, match=r"buffer exhausted: no 50 bytes became free within 0\.02 s") as caught:
        pool.reserve(50)
    assert caught.value.error_code == -2
    assert pool.waiting_count == 0
    pool.release(100)
    assert pool.reserve(100) == 100


def test_who_gives_up_makes_way_for_those_behind() -> None:
    now_s = [0.0]
    pool = MemoryPool(100, 10.0, lambda: None, clock=lambda: now_s[0])
    pool.reserve(60)
    with ThreadPoolExecutor() as threads:
        large = waiting(pool, threads, 80)
        now_s[0] = 5.0
        small = waiting(pool, threads, 40)
        now_s[0] = 11.0
        with pytest.raises(FlussError, match="buffer exhausted"):
            large.result(120)
        assert small.result(120) == 40


def test_a_waiting_thread_asks_for_memory_to_become_free_without_holding_the_lock() -> None:
    pool: MemoryPool
    calls = []

    def give_back() -> None:
        calls.append(threading.current_thread())
        pool.release(100)

    pool = pool_of(100, on_wait=give_back)
    pool.reserve(100)
    assert pool.reserve(30) == 30
    assert calls == [threading.current_thread()]


def test_an_interrupted_wait_leaves_nothing_behind() -> None:
    pool: MemoryPool

    def interrupt() -> None:
        # The memory is granted, and then somebody presses Ctrl-C.
        pool.release(100)
        raise KeyboardInterrupt

    pool = pool_of(100, on_wait=interrupt)
    pool.reserve(100)
    with pytest.raises(KeyboardInterrupt):
        pool.reserve(30)
    assert pool.used_bytes == 0
    assert pool.waiting_count == 0


def test_closing_refuses_those_who_wait_and_those_who_come_later() -> None:
    pool = pool_of(100)
    pool.reserve(100)
    with ThreadPoolExecutor() as threads:
        late = waiting(pool, threads, 10)
        pool.close()
        with pytest.raises(FlussError, match="writer closed"):
            late.result(120)
    with pytest.raises(FlussError, match="writer closed"):
        pool.reserve(1)
    pool.release(100)
    assert pool.used_bytes == 0


def test_many_threads_share_a_small_pool_without_losing_a_byte() -> None:
    pool = pool_of(1000)

    def use(seed: int) -> None:
        for step in range(200):
            pool.release(pool.reserve(1 + (seed * 31 + step * 17) % 400))

    with ThreadPoolExecutor(8) as threads:
        for future in [threads.submit(use, seed) for seed in range(8)]:
            future.result(120)
    assert pool.used_bytes == 0
