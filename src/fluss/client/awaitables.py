"""Results that serve two styles: ``x = f()`` and ``x = await f()`` mean the same."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, Generic, Self, TypeVar

from fluss.client.runtime import outcome

T = TypeVar("T")


class AwaitsItself:
    """Base of results that are complete when they are returned; awaiting one returns the same object.

    ``asyncio.gather`` and ``asyncio.wait_for`` take such objects, ``asyncio.create_task`` does not.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, Self]:
        # An await needs an iterator; this one is over at once.
        yield from ()
        return self


class StartedCall(Generic[T]):
    """Something that began when it was called. It may be awaited any number of times, on any loop, or not at all."""

    __slots__ = ("_future",)

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, Any, T]:
        return outcome(self._future).__await__()

    def wait(self) -> T:
        """Block the calling thread until it is done."""
        return self._future.result()

    def done(self) -> bool:
        return self._future.done()
