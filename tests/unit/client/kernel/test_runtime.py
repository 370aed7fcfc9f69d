"""The library's thread serves any thread and any event loop, survives Ctrl-C and fork, and drains at exit.
Shown with real threads, loops and signals; what ends or forks an interpreter runs in one of its own."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fluss.client.kernel.runtime import (
    AwaitsItself,
    Runtime,
    StartedCall,
    is_blocking,
    run_as_called,
    run_blocking,
    runtime,
)
from fluss.errors import FlussError
from fluss.testing.waiting import eventually


async def _thread_name() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


async def _fail() -> None:
    raise FlussError("as asked", 7)


def _python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )


def test_there_is_one_runtime_per_process_and_its_thread_is_a_daemon() -> None:
    assert runtime() is runtime()
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "fluss-client"] == [True]


def test_a_blocking_call_returns_what_the_coroutine_returns_and_raises_what_it_raises() -> None:
    assert runtime().run(_thread_name()) == "fluss-client"
    with pytest.raises(FlussError, match="as asked"):
        runtime().run(_fail())


def test_many_threads_block_at_the_same_time_without_holding_each_other_up() -> None:
    # Every one of them waits for the last; if they ran one after another, none would finish.
    barrier = threading.Barrier(16)

    async def meet() -> int:
        return await asyncio.get_running_loop().run_in_executor(pool, barrier.wait)

    with ThreadPoolExecutor(16) as pool, ThreadPoolExecutor(16) as callers:
        places = callers.map(lambda _: runtime().run(meet()), range(16))
        assert sorted(places) == list(range(16))


def test_a_blocking_call_works_inside_a_running_event_loop() -> None:
    async def main() -> str:
        return runtime().run(_thread_name())

    assert asyncio.run(main()) == "fluss-client"


def test_a_blocking_call_on_the_librarys_own_loop_is_refused() -> None:
    async def call_itself() -> None:
        runtime().run(_thread_name())

    with pytest.raises(RuntimeError, match="wait for itself"):
        runtime().run(call_itself())


def test_bridged_calls_work_from_several_loops_in_several_threads() -> None:
    async def main() -> list[str]:
        return await asyncio.gather(*(runtime().bridge(_thread_name()) for _ in range(50)))

    with ThreadPoolExecutor(4) as callers:
        for names in callers.map(lambda _: asyncio.run(main()), range(4)):
            assert names == ["fluss-client"] * 50


def test_a_bridged_call_on_the_librarys_own_loop_is_a_plain_await() -> None:
    async def main() -> str:
        return await runtime().bridge(_thread_name())

    assert runtime().run(main()) == "fluss-client"


def test_cancelling_a_bridged_call_leaves_the_work_alone() -> None:
    released = threading.Event()
    finished = threading.Event()

    async def work() -> None:
        await asyncio.get_running_loop().run_in_executor(None, released.wait)
        finished.set()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runtime().bridge(work()), 0.01)

    asyncio.run(main())
    released.set()
    assert finished.wait(120)


def test_cancelling_a_bridged_call_cancels_the_work_if_asked_to() -> None:
    started = threading.Event()
    cancelled = threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def main() -> None:
        task = asyncio.create_task(runtime().bridge(work(), cancels=True))
        assert await asyncio.to_thread(started.wait, 120)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    assert cancelled.wait(120)


def test_work_that_outlives_the_loop_of_its_caller_disturbs_nobody() -> None:
    released = threading.Event()
    done = threading.Event()

    async def work() -> None:
        await asyncio.get_running_loop().run_in_executor(None, released.wait)
        done.set()

    async def main() -> None:
        task = asyncio.create_task(runtime().bridge(work()))
        await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(main())
    released.set()
    assert done.wait(120)
    assert runtime().run(_thread_name()) == "fluss-client"
    gc.collect()


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Take interrupts as a program in the foreground does: shells have those in the background ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_a_blocking_call_and_cancels_its_work() -> None:
    cancelled = threading.Event()
    started = threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.set()

    def press() -> None:
        started.wait()
        # The main thread has to be inside its wait.
        ident = threading.main_thread().ident or 0
        eventually(lambda: sys._current_frames()[ident].f_code.co_filename == threading.__file__)
        time.sleep(0.2)
        signal.pthread_kill(ident, signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        runtime().run(work())
    assert cancelled.wait(120)
    assert runtime().run(_thread_name()) == "fluss-client"


def test_other_threads_go_on_while_one_is_blocked() -> None:
    released = threading.Event()

    async def work() -> None:
        await asyncio.get_running_loop().run_in_executor(None, released.wait)

    with ThreadPoolExecutor(1) as caller:
        blocked = caller.submit(runtime().run, work())
        for _ in range(1000):
            assert not blocked.done()
        released.set()
        blocked.result(120)


def test_offloaded_work_leaves_the_loop_free() -> None:
    async def main() -> tuple[str, int]:
        name = await runtime().offload(lambda: threading.current_thread().name)
        return name, await runtime().offload(int, "ff", base=16)

    name, number = runtime().run(main())
    assert name.startswith("fluss-client-worker")
    assert number == 255


def test_a_child_process_gets_a_runtime_of_its_own_and_the_parents_is_refused_there() -> None:
    answer = _python(
        """
        import asyncio, os, sys
        from fluss.client.kernel.runtime import runtime
        async def pid(): return os.getpid()
        before = runtime()
        before.run(pid())
        child = os.fork()
        if child == 0:
            assert runtime() is not before
            assert runtime().run(pid()) == os.getpid()
            try:
                before.run(pid())
            except Exception as error:
                print(type(error).__name__, "before the process forked" in error.message)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert runtime() is before and before.run(pid()) == os.getpid()
        print("parent lives")
        """,
        "-W",
        "ignore::DeprecationWarning",
    )
    assert (answer.stdout, answer.stderr) == ("FlussError True\nparent lives\n", "")


def test_what_is_registered_is_done_before_the_interpreter_ends() -> None:
    answer = _python(
        """
        import asyncio
        from fluss.client.kernel.runtime import runtime
        async def drain(timeout_s):
            await asyncio.sleep(0.01)
            print("drained", timeout_s)
        async def forgotten(timeout_s):
            print("never")
        runtime().drain_at_exit(drain)
        runtime().drain_at_exit(forgotten)()
        """,
        "-X",
        "dev",
    )
    assert (answer.stdout, answer.stderr) == ("drained 5.0\n", "")


def test_offloaded_work_is_done_in_place_while_the_interpreter_ends() -> None:
    answer = _python(
        """
        from fluss.client.kernel.runtime import runtime
        here = runtime()
        async def warm_up(): return await here.offload(int, "1")
        here.run(warm_up())
        async def drain(timeout_s):
            print("offloaded", await here.offload(int, "7"))
        here.drain_at_exit(drain)
        """
    )
    assert (answer.stdout, answer.stderr) == ("offloaded 7\n", "")


def test_an_exit_does_not_wait_for_ever() -> None:
    answer = _python(
        """
        import asyncio
        from fluss.client.kernel import runtime as module
        module.EXIT_DRAIN_S = module._STOP_TIMEOUT_S = 0.1
        async def hang(timeout_s): await asyncio.sleep(3600)
        module.runtime().drain_at_exit(hang)
        """
    )
    assert answer.returncode == 0
    assert "1 connections had unsent data at exit" in answer.stderr


def test_a_runtime_that_was_shut_down_refuses_work_with_a_sentence() -> None:
    ended = Runtime()
    ended.shut_down(0.1)
    with pytest.raises(FlussError, match="shutting down"):
        ended.run(_thread_name())


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


def test_a_coroutine_can_be_run_by_a_thread_that_blocks_where_it_would_wait() -> None:
    async def work() -> tuple[str, str, bool]:
        # Other threads have nothing to do with it.
        assert not await runtime().bridge(_is_blocking())
        return await runtime().bridge(_thread_name()), await runtime().on_worker(_current_thread), is_blocking()

    async def main() -> tuple[str, str, bool]:
        # Also inside a running loop, which is not used.
        return run_blocking(work())

    here = _current_thread()
    assert run_blocking(work()) == asyncio.run(main()) == ("fluss-client", here, True)
    assert not is_blocking()
    # Awaited, the same coroutine leaves the loop free.
    name, worker, was_blocking = asyncio.run(work())
    assert (name, worker.startswith("fluss-client-worker"), was_blocking) == ("fluss-client", True, False)


def test_a_coroutine_that_fails_or_waits_for_a_loop_fails_its_thread() -> None:
    with pytest.raises(FlussError, match="as asked"):
        run_blocking(runtime().bridge(_fail()))
    with pytest.raises(AssertionError, match="waits for an event loop"):
        run_blocking(_thread_name())
    assert not is_blocking()


class _Scanner:
    """What methods that are called in both ways look like."""

    def read(self, *_: object, **__: object) -> str:
        return run_as_called(self._read())

    async def _read(self) -> str:
        return "blocking" if is_blocking() else "waiting"


def test_a_call_that_is_awaited_in_place_does_not_block() -> None:
    scanner, bound = _Scanner(), _Scanner().read

    async def each() -> AsyncIterator[str]:
        yield await scanner.read(1)  # type: ignore[misc]  # Known as what returns its result, as to all type checkers.

    async def main() -> list[str]:
        found = [
            await scanner.read(),  # type: ignore[misc]
            await scanner.read(1, timeout=2),  # type: ignore[misc]
            await scanner.read(*[1], **{"a": 1}),  # type: ignore[misc]
            (await bound()).strip(),  # type: ignore[misc]
            f"{await scanner.read()}",  # type: ignore[misc]
            *[await scanner.read() for _ in range(2)],  # type: ignore[misc]
            *[text async for text in each()],
        ]
        for _ in range(100):
            found.append(await scanner.read())  # type: ignore[misc]  # noqa: PERF401 - often enough to be specialised
        return found

    assert set(asyncio.run(main())) == {"waiting"}


def test_a_call_that_is_not_awaited_blocks_wherever_it_is() -> None:
    scanner = _Scanner()

    def plain() -> str:
        return scanner.read()

    async def identity(text: str) -> str:
        return text

    async def main() -> list[str]:
        first = scanner.read()
        await asyncio.sleep(0)
        return [
            first,
            scanner.read().strip(),
            plain(),
            await identity(scanner.read()),
            *[scanner.read() for _ in range(100)],
            *map(scanner.read, range(2)),
            await asyncio.to_thread(scanner.read),
        ]

    assert {plain(), *asyncio.run(main())} == {"blocking"}


async def _is_blocking() -> bool:
    return is_blocking()


def _current_thread() -> str:
    return threading.current_thread().name
