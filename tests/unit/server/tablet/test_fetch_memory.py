"""The memory of fetches is shared in turns, exceeded only by one batch for owners that hold none, and never lost.

The budget alone, with tasks that take and give back. Reads whose size is known only afterwards begin few at a time, and
not when earlier ones have used up the memory; they are said to have found what the test wants.
"""

from __future__ import annotations

import asyncio

from fluss.server.tablet.fetch_memory import FetchMemory, ReadTurns

ME, YOU = "127.0.0.1:1", "127.0.0.1:2"


async def test_a_fetch_gets_what_is_left(tmp_path):
    memory = FetchMemory(100, turn_timeout_s=120)
    assert await memory.take(60, ME) == 60
    assert memory.try_take(60, ME) == 40
    assert memory.try_take(1, ME) is None
    memory.give_back(100, ME)
    assert (memory.used_bytes, memory.try_take(500, ME)) == (0, 100)


async def test_fetches_that_wait_are_served_in_order(tmp_path):
    memory = FetchMemory(10, turn_timeout_s=120)
    served = []

    async def fetch(number: int) -> None:
        granted = await memory.take(10, ME)
        assert granted == 10
        served.append(number)
        await asyncio.sleep(0)
        memory.give_back(granted, ME)

    await asyncio.gather(*(fetch(number) for number in range(50)))
    assert (served, memory.used_bytes, memory.waiting_count) == (list(range(50)), 0, 0)


async def test_no_fetch_overtakes_those_that_wait(tmp_path):
    memory = FetchMemory(10, turn_timeout_s=120)
    await memory.take(10, ME)
    waiting = asyncio.create_task(memory.take(10, ME))
    await asyncio.sleep(0)
    memory.give_back(10, ME)
    assert memory.try_take(1, ME) is None
    assert await waiting == 10


async def test_a_wait_that_takes_too_long_ends_with_a_loan_for_those_who_hold_nothing(tmp_path):
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


async def test_loans_are_few_and_end_at_twice_the_budget(tmp_path):
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


async def test_a_waiter_that_is_cancelled_passes_its_turn_on(tmp_path):
    memory = FetchMemory(10, turn_timeout_s=120)
    await memory.take(10, ME)
    first, second = asyncio.create_task(memory.take(4, ME)), asyncio.create_task(memory.take(4, ME))
    await asyncio.sleep(0)
    memory.give_back(10, ME)
    first.cancel()
    assert await second == 4
    assert memory.used_bytes == 4
    await asyncio.gather(first, return_exceptions=True)


async def test_one_large_gift_serves_all_who_fit_into_it(tmp_path):
    memory = FetchMemory(100, turn_timeout_s=120)
    await memory.take(100, ME)
    waiting = [asyncio.create_task(memory.take(20, ME)) for _ in range(5)]
    await asyncio.sleep(0)
    memory.give_back(100, ME)
    assert await asyncio.gather(*waiting) == [20] * 5


async def test_more_than_the_budget_holds_back_the_next_one_only(tmp_path):
    memory = FetchMemory(10, turn_timeout_s=120)
    memory.count(25, ME)
    waiting = asyncio.create_task(memory.take(10, ME))
    await asyncio.sleep(0)
    memory.give_back(14, ME)
    await asyncio.sleep(0)
    assert not waiting.done()
    memory.give_back(11, ME)
    assert await waiting == 10


# Turns


def _turns(count: int, *, turn_timeout_s: float = 120.0) -> tuple[ReadTurns, FetchMemory]:
    memory = FetchMemory(100, turn_timeout_s=turn_timeout_s)
    return ReadTurns(memory, count), memory


async def test_there_are_so_many_reads_at_the_same_time():
    turns, memory = _turns(2)
    assert [await turns.begin(10, owner) for owner in "ab"] == [10, 10]
    third = asyncio.ensure_future(turns.begin(10, "c"))
    assert not (await asyncio.wait((third,), timeout=0.01))[0]
    turns.end(10, 5, "a")
    assert await third == 10
    turns.end(10, 0, "b")
    turns.end(10, 7, "c")
    assert memory.used_bytes == 12


async def test_a_read_granted_memory_that_others_have_used_up_waits_again():
    turns, memory = _turns(1)
    assert await turns.begin(10, "a") == 10
    others = [asyncio.ensure_future(turns.begin(10, owner)) for owner in ("b", "c")]
    await asyncio.sleep(0)
    turns.end(10, 500, "a")
    assert not (await asyncio.wait(others, timeout=0.01))[0], "there is no memory, and a while to wait for it"
    memory.give_back(500, "a")
    done, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
    assert [other.result() for other in done] == [10]
    turns.end(10, 0, "b")
    assert await others[1] == 10
    turns.end(10, 0, "c")
    assert memory.used_bytes == 0


async def test_without_memory_an_owner_that_holds_none_gets_a_loan_and_others_nothing():
    turns, memory = _turns(2, turn_timeout_s=0.01)
    memory.count(150, "a")
    assert await turns.begin(10, "b") == 0
    assert await turns.begin(10, "a") is None
    turns.end(0, 30, "b")
    assert memory.used_bytes == 180
    assert await turns.begin(10, "c") == 0, "both turns can be had again"
    assert await turns.begin(10, "d") == 0


async def test_a_read_that_gives_up_waiting_for_a_turn_keeps_nothing():
    turns, memory = _turns(1)
    assert await turns.begin(10, "a") == 10
    second = asyncio.ensure_future(turns.begin(10, "b"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait((second,))
    assert memory.used_bytes == 10
    turns.end(10, 0, "a")
    assert await turns.begin(10, "c") == 10
