"""One expression serves two styles: results that may be awaited or not, and calls that began without an await.
Shown by using them both ways, on several loops, and by never awaiting them."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from fluss.client.kernel.runtime import AwaitsItself, StartedCall, runtime
from fluss.errors import FlussError


class _Batches(list[int], AwaitsItself):
    __hash__ = object.__hash__  # type: ignore[assignment]  # a list has none


def test_a_result_that_awaits_itself_is_the_same_with_and_without_await() -> None:
    result = _Batches([1, 2])

    async def main() -> None:
        assert await result is result
        assert await asyncio.wait_for(result, 120) is result
        gathered = await asyncio.gather(result, asyncio.sleep(0))
        assert gathered[0] is result

    asyncio.run(main())
    assert result == [1, 2]


def test_a_started_call_runs_whether_or_not_anybody_awaits_it() -> None:
    ran = threading.Event()

    async def work() -> str:
        ran.set()
        return "done"

    call = StartedCall(runtime().submit(work()))
    assert ran.wait(120)
    assert call.wait() == "done"
    assert call.done()
    del call
    gc.collect()


def test_a_started_call_may_be_awaited_on_several_loops_and_again() -> None:
    async def work() -> str:
        await asyncio.sleep(0.01)
        return "done"

    call = StartedCall(runtime().submit(work()))

    async def main() -> None:
        assert await asyncio.gather(call, call) == ["done", "done"]

    asyncio.run(main())
    asyncio.run(main())


def test_a_cancelled_wait_does_not_cancel_a_started_call() -> None:
    released = threading.Event()

    async def work() -> str:
        await asyncio.get_running_loop().run_in_executor(None, released.wait)
        return "done"

    call = StartedCall(runtime().submit(work()))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call, 0.01)
        released.set()
        assert await call == "done"

    asyncio.run(main())


def test_the_failure_of_a_started_call_reaches_who_waits() -> None:
    async def work() -> None:
        raise FlussError("no")

    call = StartedCall(runtime().submit(work()))
    with pytest.raises(FlussError, match="no"):
        call.wait()

    async def main() -> None:
        with pytest.raises(FlussError, match="no"):
            await call

    asyncio.run(main())
