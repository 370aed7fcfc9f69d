"""So many requests may be on the way; others wait for their turn, and those who give up leave it to the next.
Shown with tasks on one event loop."""

from __future__ import annotations

import asyncio

import pytest

from fluss.client.lookup.lookup_client import RequestSlots
from fluss.errors import FlussError


async def _a_moment() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_those_who_wait_get_a_slot_in_their_order() -> None:
    slots = RequestSlots(2)
    await slots.wait()
    slots.take()
    assert [slots.has_free] == [False]
    order: list[int] = []

    async def waits(number: int) -> None:
        await slots.wait()
        order.append(number)

    tasks = [asyncio.create_task(waits(number)) for number in range(3)]
    await _a_moment()
    slots.give_back()
    assert slots.has_free, "nobody gets it before its owner has had the chance"
    slots.grant()
    await _a_moment()
    assert order == [0]
    slots.give_back()
    slots.give_back()
    slots.grant()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]


async def test_a_turn_that_is_not_taken_goes_to_the_next() -> None:
    slots = RequestSlots(1)
    slots.take()
    waiting = [asyncio.create_task(slots.wait()) for _ in range(3)]
    await _a_moment()
    waiting[0].cancel()
    slots.give_back()
    slots.grant()
    # It is the turn of the second, which is cancelled before it knows.
    waiting[1].cancel()
    await asyncio.wait_for(waiting[2], 120)
    assert waiting[0].cancelled()
    assert waiting[1].cancelled()
    slots.give_back()
    assert slots.has_free


async def test_closing_ends_the_waiting() -> None:
    slots = RequestSlots(1)
    slots.take()
    waiting = asyncio.create_task(slots.wait())
    await _a_moment()
    slots.close(FlussError("closed"))
    with pytest.raises(FlussError, match="closed"):
        await waiting
