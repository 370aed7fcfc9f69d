"""A handle gives the same outcome to everybody who asks, on any thread and any loop, and is no burden if nobody does.
Shown with writes that end when the test says so."""

from __future__ import annotations

import asyncio
import gc
import warnings
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from fluss.client.write.result import CompletedWrite, JoinedWrites, WriteResultHandle
from fluss.errors import FlussError, NetworkError, RequestTimeoutError


class ScriptedWrite:
    def __init__(self) -> None:
        self.done: Future[None] = Future()
        self.error: FlussError | None = None
        self.is_reported = False

    def end(self, error: FlussError | None = None) -> None:
        self.error = error
        self.done.set_result(None)

    def error_of(self, packed_row: bytes | None) -> FlussError | None:
        return self.error

    def mark_reported(self) -> None:
        self.is_reported = True


def test_waits_may_be_repeated_and_the_handle_itself_awaited() -> None:
    write = ScriptedWrite()
    handle = WriteResultHandle(write)

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.01, write.end)
        await handle.wait()
        await handle
        await asyncio.gather(handle.wait(), handle, handle.wait())

    asyncio.run(main())
    asyncio.run(handle.wait())
    handle.result()
    assert not write.is_reported


def test_every_wait_raises_the_failure_as_an_error_of_its_own() -> None:
    write = ScriptedWrite()
    handle = WriteResultHandle(write)
    write.end(NetworkError("gone"))
    caught = []
    for _ in range(2):
        with pytest.raises(NetworkError, match="gone") as raised:
            handle.result()
        caught.append(raised.value)
    assert caught[0] is not caught[1]
    assert caught[0].error_code == 1
    assert write.is_reported


async def test_a_wait_that_is_given_up_can_be_taken_up_again() -> None:
    write = ScriptedWrite()
    handle = WriteResultHandle(write)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(handle.wait(), 0.01)
    assert not handle.done()
    with pytest.raises(RequestTimeoutError, match=r"no acknowledgement within 0\.01 s"):
        handle.result(0.01)
    write.end()
    handle.result()


def test_a_thread_waits_while_another_one_ends_the_write() -> None:
    write = ScriptedWrite()
    handle = WriteResultHandle(write)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(handle.result, 5)
        assert not waiting.done()
        write.end()
        waiting.result(120)


def test_ignoring_a_handle_never_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        failed = ScriptedWrite()
        WriteResultHandle(failed)
        failed.end(FlussError("nobody asks"))
        del failed
        gc.collect()


def test_the_representation_says_whether_somebody_has_waited() -> None:
    write = ScriptedWrite()
    handle = WriteResultHandle(write)
    write.end()
    assert repr(handle) == "WriteResultHandle(pending)"
    handle.result()
    assert repr(handle) == "WriteResultHandle(consumed)"


def test_handles_are_not_made_without_a_write() -> None:
    with pytest.raises(TypeError):
        WriteResultHandle()  # type: ignore[call-arg]


def test_a_write_of_nothing_is_done() -> None:
    handle = WriteResultHandle(CompletedWrite())
    assert handle.done()
    asyncio.run(handle.wait())


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_joined_writes_end_with_the_last_and_fail_with_the_first_failure(order: tuple[int, ...]) -> None:
    writes = [ScriptedWrite() for _ in range(3)]
    handle = WriteResultHandle(JoinedWrites(writes))
    for number in order:
        assert not handle.done()
        writes[number].end(FlussError(f"write {number}") if number else None)
    assert handle.done()
    with pytest.raises(FlussError, match="write 1"):
        handle.result()
    assert all(write.is_reported for write in writes)


def test_joined_writes_that_are_done_already_are_done() -> None:
    writes = [ScriptedWrite() for _ in range(2)]
    for write in writes:
        write.end()
    assert WriteResultHandle(JoinedWrites(writes)).done()
