"""Iterators that are ahead give the same items as those that are not, end what they began, and tell what went wrong."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from fluss.ahead import Begun


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
