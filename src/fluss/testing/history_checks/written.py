"""The writes of a history by the numbers of their rows: which write a row came from, and what had ended before it.

Everything is done for whole columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fluss.testing.history import DAMAGED, History, Numbers, Outcome
from fluss.testing.history_checks.findings import Findings, Violation

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


@dataclass(frozen=True)
class WrittenRows:
    """All rows that were sent, in the order of their numbers; columns beside each other."""

    number: Numbers
    table: Numbers
    key: Numbers
    kind: Numbers
    process: Numbers
    # The place of the row in the order of sending.
    sequence: Numbers
    start_ns: Numbers
    end_ns: Numbers
    outcome: Numbers

    @classmethod
    def of(cls, history: History) -> WrittenRows:
        writes, operations = history.writes.table(), history.operations.table()
        order = np.argsort(writes["number"], kind="stable")
        operation = writes["operation"][order]
        number = writes["number"][order]
        if (np.diff(number) == 0).any():
            raise ValueError("a history cannot be checked if two writes carry the same number")
        return cls(
            number=number,
            table=writes["table"][order],
            key=writes["key"][order],
            kind=writes["kind"][order],
            process=operations["process"][operation],
            sequence=order.astype(np.int64),
            start_ns=operations["start_ns"][operation],
            end_ns=operations["end_ns"][operation],
            outcome=operations["outcome"][operation],
        )

    def rows_of(self, numbers: Numbers) -> Numbers:
        """Return the row of each number, or -1."""
        return rows_where(self.number, numbers)


def check_origin(
    findings: Findings, table: int, names: list[str], written: WrittenRows, rows: Numbers, numbers: Numbers, how: str
) -> None:
    """Check that rows were sent to this table and not refused. ``rows`` are their writes, by number."""
    is_damaged = numbers == DAMAGED
    findings.add(Violation.DAMAGED, is_damaged, lambda i: f"a row came back damaged by {how}")
    is_phantom = (rows < 0) & ~is_damaged
    findings.add(Violation.PHANTOM, is_phantom, lambda i: f"{numbers[i]} was found by {how} and never written")
    is_foreign = (rows >= 0) & (written.table[rows] != table) if written.number.size else is_phantom & False
    findings.add(
        Violation.FOREIGN,
        is_foreign,
        lambda i: f"{numbers[i]} was written to {names[written.table[rows[i]]]} and found by {how}",
    )
    if written.number.size:
        is_refused = (rows >= 0) & ~is_foreign & (written.outcome[rows] == Outcome.FAILED)
        findings.add(
            Violation.REFUSED_BUT_THERE,
            is_refused,
            lambda i: f"the write of {numbers[i]} was refused, and {how} finds it",
        )
