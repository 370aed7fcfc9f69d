"""Iterators that are ahead give the same items as those that are not, end what they began, and tell what went wrong."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from fluss.ahead import Begun, done, in_order, submitted


def counted(stop: int, made: list[int]) -> Generator[int, None, None]:
    for number in range(stop):
        made.append(number)
        yield number


def test_the_first_item_is_made_before_it_is_asked_for() -> None:
    is_made = threading.Event()

    def items() -> Generator[int, None, None]:
        is_made.set()
        yield from range(3)

    begun = Begun(items())
    assert is_made.wait(30)
    assert list(begun) == [0, 1, 2]
    begun.close()


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_begun_iterator_has_all_items(count: int) -> None:
    begun = Begun(counted(count, []))
    assert list(begun) == list(range(count))
    assert list(begun) == []
    begun.close()
    begun.close()


def test_closing_a_begun_iterator_closes_the_generator() -> None:
    ended = []

    def items() -> Generator[int, None, None]:
        try:
            yield from range(100)
        finally:
            ended.append(True)

    for taken in range(3):
        begun = Begun(items())
        for _ in range(taken):
            next(begun)
        begun.close()
        assert len(ended) == taken + 1
        assert list(begun) == []


def test_an_error_of_the_first_item_comes_when_it_is_asked_for() -> None:
    def items() -> Generator[int, None, None]:
        raise ValueError("no items")
        yield

    begun = Begun(items())
    with pytest.raises(ValueError, match="no items"):
        next(begun)
    begun.close()


def test_what_is_under_way_comes_in_its_order() -> None:
    may_end = threading.Event()
    with ThreadPoolExecutor(2) as threads:

        def futures() -> Iterator[Future[int]]:
            yield submitted(threads, lambda: may_end.wait(30) and 0)
            yield submitted(threads, lambda: 1)
            may_end.set()
            yield done(2)
            yield done(3)

        assert list(in_order(futures(), 2)) == [0, 1, 2, 3]


def test_what_is_done_does_not_wait_for_what_follows() -> None:
    made: list[int] = []
    items = in_order(map(done, counted(5, made)), 3)
    assert next(items) == 0
    assert made == [0]


def test_no_more_is_begun_than_is_allowed_ahead() -> None:
    begun: list[Future[int]] = []

    def futures() -> Iterator[Future[int]]:
        for number in range(5):
            begun.append(Future())
            if number == 2:
                begun[0].set_result(0)
            yield begun[-1]

    items = in_order(futures(), 2)
    assert next(items) == 0
    assert len(begun) == 3
    items.close()
    assert [future.cancelled() for future in begun] == [False, True, True]


def test_an_error_comes_in_its_turn_and_ends_the_rest() -> None:
    failed: Future[int] = Future()
    failed.set_exception(ValueError("no item"))
    behind: Future[int] = Future()
    waiting: Future[int] = Future()
    items = in_order(iter([waiting, failed, behind]), 2)
    waiting.set_result(1)
    assert next(items) == 1
    with pytest.raises(ValueError, match="no item"):
        next(items)


def test_threads_that_have_ended_leave_the_work_to_the_caller() -> None:
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    assert submitted(threads, lambda: 7).result() == 7
