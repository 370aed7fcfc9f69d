"""The union of two containers has the numbers of both, whatever their forms, and the form that takes fewest bytes.
Shown against plain sets of numbers: few, many, scattered and neighbouring ones; damaged containers are refused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError
from fluss.server.merge.roaring_containers import ARRAY, BITMAP, RUN, Container, checked_container, smallest, united
from tests.unit.server.merge.bitmap_samples import container_numbers

NUMBER_END = 1 << 16


def _range_of(first: int, count: int, step: int) -> range:
    return range(first, min(first + count * step, NUMBER_END), step)


# A few numbers, runs, and so many numbers that only a bitmap holds them in little space.
number_sets = st.lists(
    st.builds(
        _range_of,
        st.integers(0, NUMBER_END - 1),
        st.sampled_from([1, 2, 3, 9, 700, 5000, NUMBER_END]),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=4,
).map(lambda ranges: sorted(set(chain(*ranges))))


def _words(numbers: Sequence[int]) -> bytes:
    return b"".join(number.to_bytes(2, "little") for number in numbers)


def in_form(form: int, numbers: Sequence[int]) -> Container:
    if form == ARRAY:
        return Container(ARRAY, len(numbers), _words(numbers))
    if form == BITMAP:
        bits = bytearray(8192)
        for number in numbers:
            bits[number >> 3] |= 1 << (number & 7)
        return Container(BITMAP, len(numbers), bytes(bits))
    present = set(numbers)
    firsts = [number for number in numbers if number - 1 not in present]
    lasts = [number for number in numbers if number + 1 not in present]
    runs = chain(*((first, last - first) for first, last in zip(firsts, lasts, strict=True)))
    return Container(RUN, len(numbers), _words([len(firsts), *runs]))


def fewest_bytes(numbers: Sequence[int]) -> int:
    return min(2 * len(numbers), 8192, len(in_form(RUN, numbers).content))


forms = st.sampled_from([ARRAY, BITMAP, RUN])


@given(number_sets, number_sets, forms, forms)
def test_a_union_has_the_numbers_of_both_in_the_smallest_form(
    one: list[int], other: list[int], form: int, other_form: int
) -> None:
    union = united(in_form(form, one), in_form(other_form, other))
    expected = sorted({*one, *other})
    assert container_numbers(union) == expected
    assert union.number_count == len(expected)
    assert len(union.content) == fewest_bytes(expected)
    assert checked_container(*union) == union


@given(number_sets, forms)
def test_every_form_of_a_set_is_accepted_and_made_small(numbers: list[int], form: int) -> None:
    container = in_form(form, numbers)
    assert checked_container(*container) == container
    small = smallest(container)
    assert container_numbers(small) == numbers
    assert len(small.content) == fewest_bytes(numbers)


def test_runs_that_touch_are_joined() -> None:
    touching = Container(RUN, 20, _words([2, 0, 9, 10, 9]))
    assert smallest(checked_container(*touching)).content == _words([1, 0, 19])


@pytest.mark.parametrize(
    "container",
    [
        Container(ARRAY, 2, _words([5, 5])),
        Container(ARRAY, 2, _words([6, 5])),
        Container(ARRAY, 3, _words([5, 6])),
        Container(ARRAY, 0, b""),
        Container(BITMAP, 1, bytes(8192)),
        Container(BITMAP, 0, bytes(8192)),
        Container(BITMAP, 1, b"\1"),
        Container(RUN, 0, _words([0])),
        Container(RUN, 2, _words([1, 5, 2])),
        Container(RUN, 6, _words([2, 5, 2, 6, 2])),
        Container(RUN, 6, _words([2, 9, 2, 5, 2])),
        Container(RUN, 2, _words([1, 65535, 1])),
        Container(RUN, 3, _words([2, 5, 2])),
        Container(RUN, 0, b""),
        Container(3, 1, _words([1])),
    ],
)
def test_a_damaged_container_is_refused(container: Container) -> None:
    with pytest.raises(CorruptRecordError, match="container"):
        checked_container(*container)
