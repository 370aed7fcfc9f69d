"""Iterators whose items are made ahead, on other threads, while the caller does something else."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, wait
from itertools import islice
from typing import TypeVar

_T = TypeVar("_T")


class Begun(Iterator[_T]):
    """The items of a generator, of which the first is being made from now on, on a thread of its own.

    All others are made when they are asked for. ``close`` has to be called in the end; it waits for the first item.
    """

    def __init__(self, items: Generator[_T, None, None]) -> None:
        self._items = items
        self._first: Future[list[_T]] | None = Future()
        thread = threading.Thread(target=self._make_first, args=(self._first,), name="fluss-ahead", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is shutting down. Then there is nothing ahead.
            self._first = None

    def _make_first(self, first: Future[list[_T]]) -> None:
        try:
            found = list(islice(self._items, 1))
        except BaseException as error:
            first.set_exception(error)
        else:
            first.set_result(found)

    def __next__(self) -> _T:
        if self._first is not None:
            found = self._first.result()
            self._first = None
            if found:
                return found[0]
        return next(self._items)

    def close(self) -> None:
        """Let go of everything. May be called again."""
        if self._first is not None:
            wait([self._first])
            self._first = None
        self._items.close()


def in_order(futures: Iterable[Future[_T]], ahead: int) -> Generator[_T, None, None]:
    """Yield what is under way, in its order; up to ``ahead`` of it is begun before it is asked for."""
    begun: deque[Future[_T]] = deque()
    try:
        for future in futures:
            begun.append(future)
            while begun and (len(begun) > ahead or begun[0].done()):
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()


def submitted(threads: Executor, work: Callable[[], _T]) -> Future[_T]:
    """Have a thread do something. When the interpreter is shutting down, it is done at once."""
    try:
        return threads.submit(work)
    except RuntimeError:
        return done(work())


def done(result: _T) -> Future[_T]:
    """Return a result as one that was under way."""
    future: Future[_T] = Future()
    future.set_result(result)
    return future
