"""Keys land in the same buckets one by one and a batch at a time, and those that have none are refused.
Shown by comparing the columnar hashes with the scalar ones on random keys, and with keys at the edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import FlussError
from fluss.row.bucketing import bucket_for, buckets_for, split_by_bucket, spread, spread_all
from fluss.row.encoded import EncodedRows

LAKE_FORMATS = [None, "lance", "paimon", "iceberg"]


def test_hudi_keys_are_their_own_hash() -> None:
    keys = [bytes.fromhex("0000000a"), bytes.fromhex("ffffffff"), bytes.fromhex("80000007")]
    expected = [10 % 7, 0x7FFFFFFF % 7, 0]
    assert [bucket_for(key, 7, "hudi") for key in keys] == expected
    assert buckets_for(EncodedRows.from_list(keys), 7, "hudi").tolist() == expected


@given(
    st.lists(st.binary(min_size=1, max_size=24), max_size=80),
    st.lists(st.binary(min_size=30, max_size=90), max_size=3),
    st.integers(1, 2**31 - 1),
    st.sampled_from(LAKE_FORMATS),
    st.sampled_from(["java", "rust"]),
)
def test_a_batch_of_keys_lands_where_each_key_alone_lands(
    short: list[bytes], long: list[bytes], bucket_count: int, lake_format: str | None, variant: Any
) -> None:
    keys = short + long + short
    buckets = buckets_for(EncodedRows.from_list(keys), bucket_count, lake_format, variant)
    assert buckets.dtype == np.int32
    assert buckets.tolist() == [bucket_for(key, bucket_count, lake_format, variant) for key in keys]
    assert all(0 <= bucket < bucket_count for bucket in buckets.tolist())


def test_one_very_long_key_among_many_short_ones_is_hashed_like_them() -> None:
    keys = [b"k%d" % i for i in range(100)] + [bytes(range(256)) * 2000]
    buckets = buckets_for(EncodedRows.from_list(keys), 12)
    assert buckets.tolist() == [bucket_for(key, 12) for key in keys]


def test_the_one_number_that_mixes_to_the_lowest_int32_becomes_zero() -> None:
    # Its absolute value does not fit 32 bits.
    number = -2_089_875_627
    assert spread(number) == 0
    assert spread_all(np.array([number], dtype=np.int32)).tolist() == [0]


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20))
def test_second_stage_of_many_is_that_of_each(numbers: list[int]) -> None:
    assert spread_all(np.array(numbers, dtype=np.int32)).tolist() == [spread(number) for number in numbers]


@pytest.mark.parametrize("lake_format", [*LAKE_FORMATS, "hudi"])
def test_an_empty_key_is_refused(lake_format: str | None) -> None:
    with pytest.raises(FlussError, match="empty"):
        bucket_for(b"", 4, lake_format)
    with pytest.raises(FlussError, match="row 1 is empty"):
        buckets_for(EncodedRows.from_list([b"four", b"", b"four"]), 4, lake_format)


def test_a_hudi_key_of_another_length_is_refused() -> None:
    with pytest.raises(FlussError, match="4 bytes, got 3"):
        bucket_for(b"abc", 4, "hudi")
    with pytest.raises(FlussError, match="got 5 in row 1"):
        buckets_for(EncodedRows.from_list([b"four", b"fives"]), 4, "hudi")


@pytest.mark.parametrize("bucket_count", [0, -1, 2**31])
def test_an_impossible_bucket_count_is_refused(bucket_count: int) -> None:
    with pytest.raises(FlussError, match="bucket count"):
        bucket_for(b"key", bucket_count)
    with pytest.raises(FlussError, match="bucket count"):
        buckets_for(EncodedRows.from_list([b"key"]), bucket_count)


def test_unknown_lake_formats_and_hash_variants_are_refused() -> None:
    with pytest.raises(FlussError, match="lake format 'delta'"):
        bucket_for(b"key", 4, "delta")
    unknown: Any = "go"
    with pytest.raises(FlussError, match="hash variant 'go'"):
        buckets_for(EncodedRows.from_list([b"key"]), 4, None, unknown)


def test_no_keys_have_no_buckets() -> None:
    assert buckets_for(EncodedRows.from_list([]), 4).tolist() == []
    assert split_by_bucket(np.empty(0, dtype=np.int32), 4) == []


@pytest.mark.parametrize("bucket_count", [16, 1 << 20])
@given(data=st.data())
def test_rows_grouped_by_bucket_keep_their_order(bucket_count: int, data: st.DataObject) -> None:
    buckets = data.draw(st.lists(st.sampled_from([0, 3, bucket_count - 1]), max_size=30))
    groups = split_by_bucket(np.array(buckets, dtype=np.int32), bucket_count)
    expected = {b: [row for row, bucket in enumerate(buckets) if bucket == b] for b in sorted(set(buckets))}
    assert [(bucket, rows.tolist()) for bucket, rows in groups] == list(expected.items())
