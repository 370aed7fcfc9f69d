"""The memory of fetches is shared in turns, exceeded only by one batch for those who hold none, and never lost.

The budget alone, with tasks that take and give back.
"""

from __future__ import annotations

import asyncio

from fluss.net.transport import run
from fluss.server.tablet.fetch_memory import FetchMemory

ME, YOU = "127.0.0.1:1", "127.0.0.1:2"


def test_whoever_comes_gets_what_is_left(tmp_path):
    async def main():
        memory = FetchMemory(100, turn_timeout_s=5)
        assert await memory.take(60, ME) == 60
        assert memory.try_take(60, ME) == 40
        assert memory.try_take(1, ME) is None
        memory.give_back(100, ME)
        assert (memory.used_bytes, memory.try_take(500, ME)) == (0, 100)

    run(main())


def test_those_who_wait_are_served_in_order(tmp_path):
    async def main():
        memory = FetchMemory(10, turn_timeout_s=5)
        served = []

        async def fetch(number: int) -> None:
            granted = await memory.take(10, ME)
            assert granted == 10
            served.append(number)
            await asyncio.sleep(0)
            memory.give_back(granted, ME)

        await asyncio.gather(*(fetch(number) for number in range(50)))
        assert (served, memory.used_bytes, memory.waiting_count) == (list(range(50)), 0, 0)

    run(main())


def test_nobody_overtakes_those_who_wait(tmp_path):
    async def main():
        memory = FetchMemory(10, turn_timeout_s=5)
        await memory.take(10, ME)
        waiting = asyncio.create_task(memory.take(10, ME))
        await asyncio.sleep(0)
        memory.give_back(10, ME)
        assert memory.try_take(1, ME) is None
        assert await waiting == 10

    run(main())


def test_a_wait_that_takes_too_long_ends_with_a_loan_for_those_who_hold_nothing(tmp_path):
    async def main():
        memory = FetchMemory(10, turn_timeout_s=0.01)
        await memory.take(10, ME)
        assert await memory.take(10, ME) is None
        assert await memory.take(10, YOU) == 0
        assert await memory.take(10, YOU) is None, "one batch at a time"
        memory.settle(0, 7, YOU)
        assert await memory.take(10, YOU) is None
        memory.give_back(7, YOU)
        assert await memory.take(10, YOU) == 0
        assert (memory.used_bytes, memory.waiting_count) == (10, 0)

    run(main())


def test_loans_are_few_and_end_at_twice_the_budget(tmp_path):
    async def main():
        memory = FetchMemory(10, turn_timeout_s=0.01)
        await memory.take(10, ME)
        granted = await asyncio.gather(*(memory.take(10, f"client {number}") for number in range(100)))
        assert (granted.count(0), granted.count(None)) == (16, 84)
        for number in range(16):
            memory.settle(0, 1, f"client {number}")
        assert await memory.take(10, YOU) is None
        memory.give_back(1, "client 0")
        memory.give_back(10, ME)
        assert memory.used_bytes == 15, "those who borrowed keep what they have read"

    run(main())


def test_a_waiter_that_is_cancelled_passes_its_turn_on(tmp_path):
    async def main():
        memory = FetchMemory(10, turn_timeout_s=5)
        await memory.take(10, ME)
        first, second = asyncio.create_task(memory.take(4, ME)), asyncio.create_task(memory.take(4, ME))
        await asyncio.sleep(0)
        memory.give_back(10, ME)
        first.cancel()
        assert await second == 4
        assert memory.used_bytes == 4
        await asyncio.gather(first, return_exceptions=True)

    run(main())


def test_one_large_gift_serves_all_who_fit_into_it(tmp_path):
    async def main():
        memory = FetchMemory(100, turn_timeout_s=5)
        await memory.take(100, ME)
        waiting = [asyncio.create_task(memory.take(20, ME)) for _ in range(5)]
        await asyncio.sleep(0)
        memory.give_back(100, ME)
        assert await asyncio.gather(*waiting) == [20] * 5

    run(main())


def test_more_than_the_budget_holds_back_the_next_one_only(tmp_path):
    async def main():
        memory = FetchMemory(10, turn_timeout_s=5)
        memory.count(25, ME)
        waiting = asyncio.create_task(memory.take(10, ME))
        await asyncio.sleep(0)
        memory.give_back(14, ME)
        await asyncio.sleep(0)
        assert not waiting.done()
        memory.give_back(11, ME)
        assert await waiting == 10

    run(main())
