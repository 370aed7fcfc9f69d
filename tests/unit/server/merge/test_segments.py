"""Folding all segments at once gives what folding one after the other gives, for short, long and mixed segments.
Shown against ``itertools.accumulate`` with steps that depend on the order, and with and without values."""

from __future__ import annotations

from itertools import accumulate, chain
from operator import sub
from time import thread_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.server.merge.segments import Segments


def segments_of(lengths: list[int]) -> Segments:
    is_first = np.zeros(sum(lengths), np.bool_)
    is_first[np.cumsum([0, *lengths[:-1]])] = True
    return Segments(is_first)


def cut(values: list[int], lengths: list[int]) -> list[list[int]]:
    ends = list(accumulate(lengths))
    return [values[end - length : end] for end, length in zip(ends, lengths, strict=True)]


# Many short ones are folded round by round, few long ones one by one, and after some rounds both can be the case.
lengths_lists = st.lists(st.sampled_from([1, 1, 2, 3, 5, 40]), min_size=1, max_size=30)


@given(st.data(), lengths_lists)
def test_every_entry_has_the_fold_of_its_segment_up_to_it(data: st.DataObject, lengths: list[int]) -> None:
    values = data.draw(st.lists(st.integers(-100, 100), min_size=sum(lengths), max_size=sum(lengths)))
    folded = segments_of(lengths).folded(np.subtract, np.array(values))
    assert folded.tolist() == list(chain(*(accumulate(segment, sub) for segment in cut(values, lengths))))


@given(st.data(), lengths_lists)
def test_first_and_last_valid_entries_are_found_in_their_segment(data: st.DataObject, lengths: list[int]) -> None:
    count = sum(lengths)
    valid = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    firsts, lasts, any_so_far = [], [], []
    for segment in cut(list(range(count)), lengths):
        for length in range(1, len(segment) + 1):
            present = [entry for entry in segment[:length] if valid[entry]] or [segment[length - 1]]
            firsts.append(present[0])
            lasts.append(present[-1])
            any_so_far.append(valid[present[0]])
    segments, mask = segments_of(lengths), np.array(valid)
    assert segments.first_valid(mask).tolist() == firsts
    assert segments.last_valid(mask).tolist() == lasts
    assert segments.any_so_far(mask).tolist() == any_so_far
    assert segments.any_valid(None) is None


def test_values_are_not_changed() -> None:
    values = np.array([1, 2, 3])
    assert segments_of([3]).folded(np.add, values).tolist() == [1, 3, 6]
    assert values.tolist() == [1, 2, 3]


@pytest.mark.parametrize("lengths", [[20_000], [2] * 10_000, [1] * 10_000 + [10_000], list(range(1, 200))])
def test_the_work_does_not_grow_with_the_number_of_rounds(lengths: list[int]) -> None:
    segments, values = segments_of(lengths), np.ones(sum(lengths), np.int64)
    start = thread_time()
    folded = segments.folded(np.add, values)
    assert thread_time() - start < 0.5
    assert folded.tolist() == list(chain(*(range(1, length + 1) for length in lengths)))
