"""Order in time, for whole columns: what had ended before something else began."""

from __future__ import annotations

from typing import Final

import numpy as np

from fluss.testing.history import Numbers

# The answer when nothing was before.
NOTHING_BEFORE: Final = -1

# Odd numbers whose bits are well mixed, one for each column of a row.
_MIXERS: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)


def largest_before(
    groups: Numbers, moments: Numbers, values: Numbers, asked_groups: Numbers, asked_moments: Numbers
) -> Numbers:
    """Return for each question the largest value in its group at a moment before the one that is asked for.

    Moments may be the ends of operations, asked with the beginnings of others, or places in any other order. Values are
    at least 0; NOTHING_BEFORE stands for none.
    """
    if not groups.size or not asked_groups.size:
        return np.full(asked_groups.size, NOTHING_BEFORE)
    # Groups and moments become ranks, so that a pair of them fits into one integer, whatever they are.
    known_groups, group_ranks = np.unique(groups, return_inverse=True)
    known_moments, moment_ranks = np.unique(moments, return_inverse=True)
    span = known_moments.size + 1
    pairs = group_ranks * span + moment_ranks
    order = np.argsort(pairs, kind="stable")
    # The maximum so far does not reach into the next group: its sums are larger. Values of the group are told apart
    # from those of others by their ranks, too.
    known_values, value_ranks = np.unique(values, return_inverse=True)
    value_span = known_values.size
    largest = np.maximum.accumulate(group_ranks[order] * value_span + value_ranks[order])
    asked_ranks = np.minimum(np.searchsorted(known_groups, asked_groups), known_groups.size - 1)
    is_known = known_groups[asked_ranks] == asked_groups
    earlier = np.searchsorted(known_moments, asked_moments, side="left")
    places = np.searchsorted(pairs[order], asked_ranks * span + earlier, side="left") - 1
    found = largest[np.maximum(places, 0)]
    is_there = is_known & (places >= 0) & (found // value_span == asked_ranks)
    return np.where(is_there, known_values[found % value_span], NOTHING_BEFORE)


def rows_where(sorted_values: Numbers, asked: Numbers) -> Numbers:
    """Return the position of each asked value among sorted ones, or -1."""
    if not sorted_values.size:
        return np.full(asked.size, -1)
    places = np.minimum(np.searchsorted(sorted_values, asked), sorted_values.size - 1)
    return np.where(sorted_values[places] == asked, places, -1)


def mixed(*columns: Numbers) -> Numbers:
    """Return one number for each row that is as good as unique to the values in it."""
    result = np.zeros(columns[0].size, np.uint64)
    with np.errstate(over="ignore"):
        for column, mixer in zip(columns, _MIXERS, strict=False):
            result = (result ^ column.astype(np.uint64)) * np.uint64(mixer)
            result ^= result >> np.uint64(29)
    return result.astype(np.int64)


def starts_of_runs(*columns: Numbers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Say for each row whether it differs from the one before in some column; the first one does."""
    starts = np.ones(columns[0].size, np.bool_)
    if starts.size:
        starts[1:] = False
        for column in columns:
            starts[1:] |= column[1:] != column[:-1]
    return starts
