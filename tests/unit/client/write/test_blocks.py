"""Rows without a key are spread over the buckets, and batches have a size that follows the traffic and the compression.
Shown on the assigners with random numbers from a seed, and on the sizes with sequences of observations."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from fluss.client.write.blocks import BatchSize, CompressionRatio, RoundRobinAssigner, StickyAssigner


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


def test_half_empty_batches_shrink_the_target_and_full_ones_grow_it_back() -> None:
    size = BatchSize(250, 1000, is_dynamic=True)
    assert size.target_bytes == 1000
    size.observe(0.49)
    assert size.target_bytes == 950
    for fill_ratio in (0.5, 0.6, 0.8):
        size.observe(fill_ratio)
    assert size.target_bytes == 950, "between a half and four fifths nothing changes"
    size.observe(0.81)
    assert size.target_bytes == 1000, "never above the configured size"
    for _ in range(100):
        size.observe(0)
    assert size.target_bytes == 250, "never below the minimum"


def test_a_fixed_target_stays() -> None:
    size = BatchSize(250, 1000, is_dynamic=False)
    size.observe(0.1)
    assert size.target_bytes == 1000


def test_bad_compression_is_believed_at_once_and_good_compression_slowly() -> None:
    estimate = CompressionRatio()
    estimate.observe(1000, 100)
    assert estimate.ratio == pytest.approx(0.995)
    for _ in range(1000):
        estimate.observe(1000, 100)
    assert estimate.ratio == pytest.approx(0.1)
    estimate.observe(1000, 120)
    assert estimate.ratio == pytest.approx(0.15), "a step at least"
    estimate.observe(1000, 900)
    assert estimate.ratio == pytest.approx(0.9)


def test_a_batch_never_holds_much_more_than_its_target_before_compression() -> None:
    estimate = CompressionRatio()
    assert estimate.uncompressed(1000) == 1000
    for _ in range(1000):
        estimate.observe(1000, 0)
    assert estimate.uncompressed(1000) == 4000
