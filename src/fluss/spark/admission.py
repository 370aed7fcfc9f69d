"""How much of a backlog one micro-batch may read, divided over the buckets that have one.

Every bucket gets a share in proportion to what it has waiting, so that all of them catch up at the same time. Shares
are whole rows, and what rounding leaves over goes to the buckets that have waited longest for a row: a bucket with
little in it is served next to one that is flooded, after as many micro-batches as there are buckets at the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

BucketT = TypeVar("BucketT")


class Admission(Generic[BucketT]):
    """Divides limits, and remembers which buckets got nothing the last times. Belongs to one query."""

    def __init__(self) -> None:
        # How many times in a row a bucket with a backlog was left out.
        self._waits: dict[BucketT, int] = {}

    def divide(self, backlogs: Mapping[BucketT, int], rows_max: int | None) -> dict[BucketT, int]:
        """Say how many rows of each bucket are read now; buckets that get none are missing.

        Backlogs are given from the oldest bucket to the newest. Together the shares are ``rows_max`` rows, or
        everything if that is less or ``rows_max`` is None: unless it is 0, somebody gets something.
        """
        waiting = {bucket: rows for bucket, rows in backlogs.items() if rows > 0}
        total = sum(waiting.values())
        if rows_max is None or total <= rows_max:
            self._waits.clear()
            return waiting
        shares = {bucket: rows * rows_max // total for bucket, rows in waiting.items()}
        rest = rows_max - sum(shares.values())

        def claim(bucket: BucketT) -> tuple[int, int]:
            waits = self._waits.get(bucket, 0) if shares[bucket] == 0 else 0
            return waits, waiting[bucket] * rows_max % total

        # The sort is stable: of equals, the oldest comes first.
        for bucket in sorted(waiting, key=claim, reverse=True)[:rest]:
            shares[bucket] += 1
        self._waits = {bucket: self._waits.get(bucket, 0) + 1 for bucket, share in shares.items() if share == 0}
        return {bucket: share for bucket, share in shares.items() if share > 0}


def take_whole(sizes: Iterable[tuple[BucketT, int]], rows_max: int | None) -> dict[BucketT, int]:
    """Take things that cannot be cut, in their order, as long as all of them together are within the limit.

    The first one is taken whatever its size, so that there is always progress.
    """
    taken: dict[BucketT, int] = {}
    total = 0
    for bucket, rows in sizes:
        total += rows
        if taken and rows_max is not None and total > rows_max:
            break
        taken[bucket] = rows
    return taken


def rows_within(bytes_max: int, bytes_per_row: float) -> int:
    """Return how many rows a limit of bytes stands for; at least one."""
    return max(1, int(bytes_max / max(bytes_per_row, 1.0)))
