"""Splits: the parts of a table that tasks read, and how they are packed into few tasks of about the same size.

A task costs 30 to 100 ms before its first row, so small splits share one. Splits of logs may be cut anywhere: they are
laid end to end and cut into pieces of the same size. What must stay whole, such as the rows of a bucket with a primary
key, is given to the task that has the least so far, the largest splits first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import pyarrow as pa

from fluss import FlussTable
from fluss.client.bulk import LogRange, read_ranges, rows_at
from fluss.schema.predicate import Predicate
from fluss.schema.table import TableBucket

Task: TypeAlias = "tuple[Split, ...]"


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a table that is read by one task, always with the same result.

    Of the kind ``log`` it is the records of a bucket from the offset ``start`` up to and without ``stop``; of the kind
    ``rows`` it is the rows of a bucket after all changes before ``stop``, whatever ``start`` is. ``row_count`` tells
    how many rows that may be, where the offsets do not tell.
    """

    partition_id: int | None
    partition_name: str | None
    bucket_id: int
    start: int
    stop: int
    kind: Literal["log", "rows"] = "log"
    row_count: int | None = None

    @property
    def weight(self) -> int:
        """About how many rows there are."""
        return self.stop - self.start if self.row_count is None else self.row_count

    def bucket(self, table_id: int) -> TableBucket:
        return TableBucket.new_with_partition(table_id, self.partition_id, self.bucket_id)


def pack(
    splits: Sequence[Split],
    bytes_per_row: float,
    *,
    target_task_bytes: int,
    tasks_max: int,
    may_split: bool,
    task_rows_max: int | None = None,
) -> list[Task]:
    """Give parts to tasks of about ``target_task_bytes`` each, but to no more than ``tasks_max`` of them.

    Every row is in exactly one task. Only with ``may_split`` is a part cut. Then no task has more than
    ``task_rows_max`` rows, unless that took more than ``tasks_max`` tasks.
    """
    row_count = sum(split.weight for split in splits)
    task_count = round(row_count * bytes_per_row / target_task_bytes)
    if may_split and task_rows_max is not None:
        task_count = max(task_count, -(-row_count // task_rows_max))
    return divide(splits, max(1, min(task_count, tasks_max)), may_split=may_split)


def divide(splits: Sequence[Split], task_count: int, *, may_split: bool) -> list[Task]:
    """Give parts to so many tasks, or fewer if there is not enough; the same parts always in the same way."""
    splits = [split for split in splits if split.start < split.stop or split.kind == "rows"]
    if not splits:
        return []
    if not may_split:
        return _distributed(splits, min(task_count, len(splits)))
    return _cut(splits, min(task_count, sum(split.weight for split in splits)))


def _cut(splits: Sequence[Split], task_count: int) -> list[Task]:
    """Cut parts of logs, laid end to end, into pieces whose sizes differ by one row at most."""
    row_count = sum(split.weight for split in splits)
    ends = [row_count * (number + 1) // task_count for number in range(task_count)]
    tasks: list[Task] = []
    task: list[Split] = []
    rows_before = 0
    for split in splits:
        start = split.start
        while start < split.stop:
            stop = min(split.stop, start + ends[len(tasks)] - rows_before)
            task.append(replace(split, start=start, stop=stop))
            rows_before += stop - start
            start = stop
            if rows_before == ends[len(tasks)]:
                tasks.append(tuple(task))
                task = []
    return tasks


def _distributed(splits: Sequence[Split], task_count: int) -> list[Task]:
    """Give each part to a task as a whole."""
    shares = balanced([split.weight for split in splits], task_count)
    return [tuple(splits[number] for number in share) for share in shares]


def balanced(weights: Sequence[int], task_count: int) -> list[list[int]]:
    """Give things by their weights to tasks: each, the heaviest first, to the task that has the least so far.

    Returns the numbers of the things of each task, in this order; no task has nothing.
    """
    shares: list[list[int]] = [[] for _ in range(task_count)]
    loads = [(0, task) for task in range(task_count)]
    for number in sorted(range(len(weights)), key=lambda number: weights[number], reverse=True):
        load, task = heapq.heappop(loads)
        shares[task].append(number)
        # An empty split costs time, too.
        heapq.heappush(loads, (load + max(weights[number], 1), task))
    return [share for share in shares if share]


def split_rows(
    table: FlussTable, split: Split, columns: Sequence[str] | None = None, predicate: Predicate | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, blocking; those of a log in their order. Closing the iterator ends all fetching.

    Batches for whose rows the predicate can be ruled out may be left out; other rows are not looked at.
    """
    bucket = split.bucket(table.get_table_info().table_id)
    if split.kind == "rows":
        yield from rows_at(table, bucket, split.stop, columns=columns)
        return
    ranges = [LogRange(bucket, split.start, split.stop)]
    for run in read_ranges(table, ranges, columns=columns, predicate=predicate):
        yield run.batch
