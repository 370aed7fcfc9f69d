"""Calls that several callers make at the same time and that are carried out once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Hashable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from fluss.errors import FlussError

T = TypeVar("T")

_Work: TypeAlias = Callable[[], Coroutine[Any, Any, T]]


class SharedCalls:
    """Carries out calls by key, and gives every caller of a key the same outcome.

    A caller that is cancelled does not disturb the others: the call goes on. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[Any]] = {}
        self._is_closed = False

    async def join(self, key: Hashable, work: _Work[T]) -> T:
        """Return the outcome of the call that runs under this key; start one if there is none."""
        task = self._running.get(key)
        return await self._outcome(task if task is not None else self._start(self._running, key, work))

    def start(self, key: Hashable, work: _Work[Any]) -> None:
        """Make a call without waiting for its outcome, unless one runs under this key, or all of them have ended."""
        if key not in self._running and not self._is_closed:
            self._start(self._running, key, work)

    async def join_next(self, key: Hashable, work: _Work[T]) -> T:
        """Like ``join``, but never join a call that began before this one: its outcome may be out of date."""
        task = self._next.get(key)
        if task is not None:
            return await self._outcome(task)
        running = self._running.get(key)
        if running is None:
            return await self._outcome(self._start(self._running, key, work))
        return await self._outcome(self._start(self._next, key, partial(self._after, key, running, work)))

    async def _after(self, key: Hashable, running: asyncio.Task[Any], work: _Work[T]) -> T:
        await asyncio.wait([running])
        self._running[key] = self._next.pop(key)
        try:
            return await work()
        finally:
            del self._running[key]

    async def close(self) -> None:
        """Cancel what runs, and refuse everything from now on."""
        self._is_closed = True
        await cancel_all([*self._running.values(), *self._next.values()])

    def _start(self, tasks: dict[Hashable, asyncio.Task[Any]], key: Hashable, work: _Work[T]) -> asyncio.Task[T]:
        if self._is_closed:
            raise _closed()
        task = asyncio.get_running_loop().create_task(work())
        tasks[key] = task
        task.add_done_callback(partial(_finished, tasks, key))
        return task

    async def _outcome(self, task: asyncio.Task[T]) -> T:
        await asyncio.wait([task])
        if task.cancelled():
            raise _closed()
        error = task.exception()
        if isinstance(error, FlussError):
            # One exception object must not be raised in several tasks.
            raise error.copied().with_traceback(error.__traceback__)
        return task.result()


def _finished(tasks: dict[Hashable, asyncio.Task[Any]], key: Hashable, task: asyncio.Task[Any]) -> None:
    if tasks.get(key) is task:
        del tasks[key]
    if not task.cancelled():
        # Callers that are gone by now would leave the exception unseen, and asyncio would complain.
        task.exception()


def _closed() -> FlussError:
    return FlussError("the connection is closed; create a new one")


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended. How they ended is not told."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
