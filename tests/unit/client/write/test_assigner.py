"""Rows without a key are spread over the buckets: in turn, or a batch at a time.
Shown on the assigners alone, with random numbers from a seed."""

from __future__ import annotations

import random
from collections import Counter

from fluss.client.write.blocks import RoundRobinAssigner, StickyAssigner


def test_round_robin_visits_every_bucket_in_turn_from_a_random_start() -> None:
    starts = set()
    for seed in range(20):
        assigner = RoundRobinAssigner(4, random.Random(seed))
        taken = [assigner.take() for _ in range(9)]
        assert taken == [(taken[0] + i) % 4 for i in range(9)]
        starts.add(taken[0])
    assert starts == {0, 1, 2, 3}


def test_sticky_stays_and_then_moves_to_another_bucket() -> None:
    assigner = StickyAssigner(5, random.Random(1))
    visited = Counter[int]()
    for _ in range(500):
        before = assigner.bucket_id
        assert assigner.move() == assigner.bucket_id != before
        visited[assigner.bucket_id] += 1
    assert set(visited) == set(range(5))


def test_sticky_with_a_single_bucket_has_no_choice() -> None:
    assigner = StickyAssigner(1, random.Random(1))
    assert [assigner.move() for _ in range(3)] == [0, 0, 0]


def test_sticky_avoids_buckets_without_a_leader_as_long_as_there_are_others() -> None:
    assigner = StickyAssigner(5, random.Random(1))
    assigner.prefer([1, 3])
    assigner.move()
    assert {assigner.move() for _ in range(20)} == {1, 3}
    assigner.prefer([2])
    assert {assigner.move() for _ in range(3)} == {2}
    assigner.prefer([])
    assert {assigner.move() for _ in range(200)} == set(range(5))
