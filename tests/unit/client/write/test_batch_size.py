"""Batch sizes follow the traffic within their limits, and estimates of compression follow what is observed.
Shown with sequences of observations."""

from __future__ import annotations

import pytest

from fluss.client.write.blocks import BatchSize, CompressionRatio


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
