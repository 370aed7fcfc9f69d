"""The memory of fetches is shared in turns, never exceeded by more than one batch each, and never lost.

The budget alone, with tasks that take and give back.
"""

from __future__ import annotations

import asyncio

from fluss.net.loop import run
from fluss.server.tablet.fetch_memory import FetchMemory


def test_whoever_comes_gets_what_is_left(tmp_path):
    async def main():
        memory = FetchMemory(100, turn_timeout_s=5)
        assert await memory.take(60) == 60
        assert memory.try_take(60) == 40
        assert memory.try_take(1) is None
        memory.give_back(100)
        assert (memory.used_bytes, memory.try_take(500)) == (0, 100)

    run(main())


def test_those_who_wait_are_served_in_order(tmp_path):
    async def main():
        memory = FetchMemory(10, turn_timeout_s=5)
        served = []

        async def fetch(number: int) -> None:
            granted = await memory.take(10)
            assert granted == 10
            served.append(number)
            await asyncio.sleep(0)
            memory.give_back(granted)

        await asyncio.gather(*(fetch(number) for number in range(50)))
        assert (served, memory.used_bytes, memory.waiting_count) == (list(range(50)), 0, 0)

    run(main())


def test_nobody_overtakes_those_who_wait(tmp_path):
    async def main():
        memory = FetchMemory(10, turn_timeout_s=5)
        await memory.take(10)
        waiting = asyncio.create_task(memory.take(10))
        await asyncio.sleep(0)
        memory.give_back(10)
        assert memory.try_take(1) is None
        assert await waiting == 10

    run(main())


def test_a_wait_that_takes_too_long_ends_with_nothing(tmp_path):
    async def main():
        memory = FetchMemory(10, turn_timeout_s=0.01)
        await memory.take(10)
        assert await memory.take(10) == 0
        assert (memory.used_bytes, memory.waiting_count) == (10, 0)

    run(main())


def test_a_waiter_that_is_cancelled_passes_its_turn_on(tmp_path):
    async def main():
        memory = FetchMemory(10, turn_timeout_s=5)
        await memory.take(10)
        first, second = asyncio.create_task(memory.take(4)), asyncio.create_task(memory.take(4))
        await asyncio.sleep(0)
        memory.give_back(10)
        first.cancel()
        assert await second == 4
        assert memory.used_bytes == 4
        await asyncio.gather(first, return_exceptions=True)

    run(main())


def test_one_large_gift_serves_all_who_fit_into_it(tmp_path):
    async def main():
        memory = FetchMemory(100, turn_timeout_s=5)
        await memory.take(100)
        waiting = [asyncio.create_task(memory.take(20)) for _ in range(5)]
        await asyncio.sleep(0)
        memory.give_back(100)
        assert await asyncio.gather(*waiting) == [20] * 5

    run(main())


def test_more_than_the_budget_holds_back_the_next_one_only(tmp_path):
    async def main():
        memory = FetchMemory(10, turn_timeout_s=5)
        memory.count(25)
        waiting = asyncio.create_task(memory.take(10))
        await asyncio.sleep(0)
        memory.give_back(14)
        await asyncio.sleep(0)
        assert not waiting.done()
        memory.give_back(11)
        assert await waiting == 10

    run(main())
