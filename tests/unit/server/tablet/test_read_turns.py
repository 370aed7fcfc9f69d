"""Reads whose size nobody knows beforehand begin few at a time, and not when earlier ones have used up the memory.

The memory is the real one; the reads are said to have found whatever the test wants.
"""

from __future__ import annotations

import asyncio

from fluss.server.tablet.fetch_memory import FetchMemory, ReadTurns
from tests.unit.server.tablet.support import run


def _turns(count: int, *, turn_timeout_s: float = 120.0) -> tuple[ReadTurns, FetchMemory]:
    memory = FetchMemory(100, turn_timeout_s=turn_timeout_s)
    return ReadTurns(memory, count), memory


def test_there_are_so_many_reads_at_the_same_time():
    async def main():
        turns, memory = _turns(2)
        assert [await turns.begin(10, owner) for owner in "ab"] == [10, 10]
        third = asyncio.ensure_future(turns.begin(10, "c"))
        assert not (await asyncio.wait((third,), timeout=0.01))[0]
        turns.end(10, 5, "a")
        assert await third == 10
        turns.end(10, 0, "b")
        turns.end(10, 7, "c")
        assert memory.used_bytes == 12

    run(main())


def test_who_was_granted_memory_that_others_have_used_up_waits_again():
    async def main():
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

    run(main())


def test_without_memory_one_who_holds_none_gets_a_loan_and_others_nothing():
    async def main():
        turns, memory = _turns(2, turn_timeout_s=0.01)
        memory.count(150, "a")
        assert await turns.begin(10, "b") == 0
        assert await turns.begin(10, "a") is None
        turns.end(0, 30, "b")
        assert memory.used_bytes == 180
        assert await turns.begin(10, "c") == 0, "both turns can be had again"
        assert await turns.begin(10, "d") == 0

    run(main())


def test_who_gives_up_waiting_for_a_turn_keeps_nothing():
    async def main():
        turns, memory = _turns(1)
        assert await turns.begin(10, "a") == 10
        second = asyncio.ensure_future(turns.begin(10, "b"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait((second,))
        assert memory.used_bytes == 10
        turns.end(10, 0, "a")
        assert await turns.begin(10, "c") == 10

    run(main())
