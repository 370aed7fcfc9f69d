"""Work at an interval: repeated, not given up after a failure, and finished before a stop returns.

A real event loop and intervals of a millisecond.
"""

from __future__ import annotations

import asyncio

from fluss.server.periodic import Periodic
from fluss.testing.waiting import eventually_async


async def test_work_is_repeated_also_after_failures(caplog):
    calls = []

    async def action():
        calls.append(len(calls))
        if len(calls) % 2:
            raise RuntimeError("a bug")

    periodic = Periodic("the work", 1, action)
    periodic.start()
    await eventually_async(lambda: len(calls) >= 4)
    await periodic.stop()
    count = len(calls)
    await asyncio.sleep(0.01)
    assert len(calls) == count
    assert "the work failed" in caplog.text


async def test_trouble_of_the_machine_is_told_in_a_sentence(caplog):
    async def action():
        raise OSError(28, "No space left on device")

    periodic = Periodic("the work", 1, action)
    periodic.start()
    await eventually_async(lambda: caplog.records)
    await periodic.stop()
    assert "the work failed: [Errno 28] No space left on device; it is tried again in 0.001 s" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_stop_lets_the_work_that_was_begun_finish():
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), []

    async def action():
        begun.set()
        await may_end.wait()
        ended.append(True)

    periodic = Periodic("the work", 1, action)
    periodic.start()
    await begun.wait()
    stopping = asyncio.create_task(periodic.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    may_end.set()
    await stopping
    assert ended == [True]


async def test_a_stop_does_not_wait_for_the_interval_and_may_be_repeated():
    async def action():
        raise AssertionError("an hour has not passed")

    periodic = Periodic("the work", 3_600_000, action)
    periodic.start()
    await periodic.stop()
    await periodic.stop()
    await Periodic("never started", 1, action).stop()
