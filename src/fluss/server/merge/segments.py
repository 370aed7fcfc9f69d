"""Folding many short lists at once: entries of one array, cut into segments, each folded from its first entry on.

A fold that keeps every intermediate result looks sequential, but different segments do not depend on each other. So
the second entries of all segments are folded in one step, then all third ones, and so on. When few long segments are
left, numpy walks along each of them instead.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fluss.buffers import Int64Array
from fluss.row.arrow_arrays import BoolArray, ValidMask


class Segments:
    """Entries numbered from 0, each segment the entries from its first one to the next segment. Never changes."""

    def __init__(self, is_first: BoolArray) -> None:
        assert not len(is_first) or is_first[0], "the first entry begins a segment"
        self.count = len(is_first)
        # The first entry of each segment.
        self.starts: Int64Array = np.flatnonzero(is_first)

    @property
    def are_single(self) -> bool:
        """Whether no segment has a second entry, so that there is nothing to fold."""
        return len(self.starts) == self.count

    @cached_property
    def numbers(self) -> Int64Array:
        """Entry -> its own number."""
        return np.arange(self.count)

    @cached_property
    def first_entries(self) -> Int64Array:
        """Entry -> the first entry of its segment."""
        return np.repeat(self.starts, self._lengths)

    @cached_property
    def _lengths(self) -> Int64Array:
        return np.diff(np.append(self.starts, self.count))

    @cached_property
    def _rounds(self) -> tuple[Int64Array, list[int]]:
        """All entries by the number of entries before them in their segment, and where each such round ends."""
        indexes = self.numbers - self.first_entries
        return np.argsort(indexes, kind="stable"), np.cumsum(np.bincount(indexes)).tolist()

    def folded(self, step: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return for each entry the fold of its segment up to it: ``step`` of the result before and its own value."""
        results = values.copy()
        if self.are_single:
            return results
        by_index, round_ends = self._rounds
        with np.errstate(over="ignore", invalid="ignore"):
            for index, (begin, end) in enumerate(pairwise(round_ends), start=1):
                entries = by_index[begin:end]
                rounds_left = len(round_ends) - index
                if len(entries) < rounds_left:
                    self._walk(step, results, entries)
                    break
                results[entries] = step(results[entries - 1], results[entries])
        return results

    def _walk(self, step: np.ufunc, results: npt.NDArray[Any], entries: Int64Array) -> None:
        """Fold the rest of some segments one after the other, each from an entry on."""
        ends = np.append(self.starts, self.count)[np.searchsorted(self.starts, entries, side="right")]
        for entry, end in zip(entries.tolist(), ends.tolist(), strict=True):
            rest = results[entry - 1 : end]
            rest[:] = step.accumulate(rest, dtype=rest.dtype)

    def last_valid(self, valid: BoolArray) -> Int64Array:
        """Entry -> the last entry up to it, in its segment, that has a value; itself if there is none."""
        last = np.maximum.accumulate(np.where(valid, self.numbers, -1))
        return np.where(last >= self.first_entries, last, self.numbers)

    def first_valid(self, valid: BoolArray) -> Int64Array:
        """Entry -> the first entry of its segment that has a value; itself if that one comes later or is none."""
        first_by_segment = np.minimum.reduceat(np.where(valid, self.numbers, self.count), self.starts)
        first = np.repeat(first_by_segment, self._lengths)
        return np.where(first <= self.numbers, first, self.numbers)

    def any_so_far(self, flags: BoolArray) -> BoolArray:
        """Return for each entry whether it is flagged, or one before it in its segment."""
        so_far: BoolArray = flags[self.last_valid(flags)]
        return so_far

    def any_valid(self, valid: ValidMask) -> ValidMask:
        """Return which entries have a value, or one before them in their segment."""
        if valid is None:
            return None
        so_far = self.any_so_far(valid)
        return None if so_far.all() else so_far
