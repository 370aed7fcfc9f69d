"""Parts of tables are given to tasks: every row to exactly one, to few tasks, all of about the same size.
Shown with parts of all sizes, drawn at random."""

from __future__ import annotations

import math
import pickle
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.schema.table import TableBucket
from fluss.spark.read.planner import Split, divide, pack

MB = 1024 * 1024


@st.composite
def parts(draw: st.DrawFn, *, kind: Literal["log", "rows"] = "log") -> list[Split]:
    sizes = draw(st.lists(st.integers(0, 5000), max_size=30))
    found = []
    for number, size in enumerate(sizes):
        start = draw(st.integers(0, 10_000))
        found.append(Split(number // 4, f"p{number // 4}", number % 4, start, start + size, kind))
    return found


def rows(splits: list[Split]) -> list[tuple[int | None, int, int]]:
    return sorted(
        (split.partition_id, split.bucket_id, offset) for split in splits for offset in range(split.start, split.stop)
    )


@given(parts(), st.integers(1, 40), st.integers(1, 500_000), st.none() | st.integers(1, 3000))
def test_every_offset_is_in_one_task_and_tasks_have_the_same_size(
    splits: list[Split], tasks_max: int, target_task_bytes: int, task_rows_max: int | None
) -> None:
    tasks = pack(
        splits,
        [100] * len(splits),
        target_task_bytes=target_task_bytes,
        tasks_max=tasks_max,
        may_split=True,
        task_rows_max=task_rows_max,
    )
    assert rows([split for task in tasks for split in task]) == rows(splits)
    assert len(tasks) <= tasks_max
    sizes = [sum(split.weight for split in task) for task in tasks]
    assert all(sizes)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    needed = 0 if task_rows_max is None else math.ceil(sum(sizes) / task_rows_max)
    if task_rows_max is not None and needed <= tasks_max:
        assert max(sizes, default=0) <= task_rows_max
    if sizes and max(sizes) * 100 > 2 * target_task_bytes and max(sizes) > 1:
        assert len(tasks) == tasks_max, "tasks are larger than wanted only where there may not be more of them"


@given(parts(kind="rows"), st.integers(1, 40), st.integers(1, 500_000))
def test_what_must_stay_whole_does(splits: list[Split], tasks_max: int, target_task_bytes: int) -> None:
    tasks = pack(splits, [100] * len(splits), target_task_bytes=target_task_bytes, tasks_max=tasks_max, may_split=False)
    given_out = [split for task in tasks for split in task]
    assert sorted(given_out, key=str) == sorted(splits, key=str)
    assert len(tasks) <= tasks_max
    loads = [sum(max(split.weight, 1) for split in task) for task in tasks]
    if len(loads) > 1:
        largest = max(splits, key=lambda split: split.weight)
        assert max(loads) <= max(2 * sum(loads) / len(loads), max(largest.weight, 1))


def test_the_number_of_tasks_follows_the_bytes() -> None:
    splits = [Split(None, None, bucket, 0, 1_000_000) for bucket in range(4)]

    def count(bytes_per_row: float, **options: int) -> int:
        given_options = {"target_task_bytes": 32 * MB, "tasks_max": 100, **options}
        return len(pack(splits, [bytes_per_row] * len(splits), may_split=True, **given_options))

    assert count(1) == 1
    assert count(32 * MB / 1_000_000) == 4
    assert count(137) == round(4_000_000 * 137 / (32 * MB)) == 16
    assert count(137, tasks_max=3) == 3
    assert count(1, task_rows_max=500_000) == 8
    assert count(1, task_rows_max=500_000, tasks_max=5) == 5
    # Of three tasks the last one would keep one of two cores waiting for the other.
    assert count(24, cores=2) == 4
    assert count(137, cores=2) == 16
    assert count(137, cores=6) == 18
    assert count(137, cores=6, tasks_max=7) == 7
    # Tasks become smaller for the sake of cores that would be idle, but not tiny, and what one task does stays one.
    assert count(24, cores=8) == 8
    assert count(24, cores=64) == 11
    assert count(1, cores=64) == 1


@given(parts(), st.integers(1, 40), st.data())
def test_parts_whose_rows_have_other_sizes_are_cut_by_their_bytes(
    splits: list[Split], task_count: int, data: st.DataObject
) -> None:
    row_bytes = [data.draw(st.integers(1, 1000)) for _ in splits]
    tasks = divide(splits, task_count, may_split=True, row_bytes=row_bytes)
    assert rows([split for task in tasks for split in task]) == rows(splits)
    assert len(tasks) <= task_count
    by_bucket = {(split.partition_id, split.bucket_id): size for split, size in zip(splits, row_bytes, strict=True)}
    sizes = [sum(split.weight * by_bucket[split.partition_id, split.bucket_id] for split in task) for task in tasks]
    assert all(sizes)
    # A task ends with the row that reaches its end, and the next one has so much less.
    assert max(sizes, default=0) <= sum(sizes) / task_count + 1 + max(row_bytes, default=0)


def test_empty_parts_of_logs_take_no_task_and_empty_buckets_do() -> None:
    assert pack([Split(None, None, 0, 7, 7)], [1], target_task_bytes=1, tasks_max=9, may_split=True) == []
    bucket = Split(None, None, 0, 0, 0, "rows", 0)
    assert pack([bucket], [1], target_task_bytes=1, tasks_max=9, may_split=False) == [(bucket,)]


@pytest.mark.parametrize("partition_id", [None, 7])
def test_a_part_knows_its_bucket_and_can_be_sent(partition_id: int | None) -> None:
    split = pickle.loads(pickle.dumps(Split(partition_id, None, 3, 10, 20)))
    assert split.bucket(5) == TableBucket.new_with_partition(5, partition_id, 3)
    assert split.weight == 10
