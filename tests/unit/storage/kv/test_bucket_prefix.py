"""Buckets, partitions and tables are ranges of keys in the order of their numbers, and none reaches into another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluss.storage.kv.bucket_prefix import (
    PartitionKeys,
    bucket_prefix,
    end_of_prefix,
    partition_of,
    partition_range,
    prefix_range,
    table_range,
)

# Those whose codes are alike or have a different length, more often than others.
NUMBERS = st.sampled_from((0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1, 2**63 - 1)) | st.integers(0, 2**63 - 1)
PARTITIONS = st.none() | NUMBERS
BUCKETS = st.tuples(NUMBERS, PARTITIONS, NUMBERS)
ROW_KEYS = st.binary(max_size=8) | st.sampled_from((b"", b"\x00", b"\xff" * 9))


def in_order(bucket: tuple[int, int | None, int]) -> tuple[int, int, int]:
    """Tables, then their partitions, none before all others, then buckets."""
    table_id, partition_id, bucket_id = bucket
    return table_id, -1 if partition_id is None else partition_id, bucket_id


@given(one=BUCKETS, other=BUCKETS, key=ROW_KEYS, other_key=ROW_KEYS)
def test_the_order_of_keys_is_that_of_buckets(one, other, key, other_key):
    first, second = bucket_prefix(*one) + key, bucket_prefix(*other) + other_key
    if one == other:
        assert (first < second) == (key < other_key)
    else:
        assert (first < second) == (in_order(one) < in_order(other))


@given(one=BUCKETS, other=BUCKETS, key=ROW_KEYS)
def test_a_range_has_the_keys_of_one_bucket(one, other, key):
    first, end = prefix_range(bucket_prefix(*one))
    assert (first <= bucket_prefix(*other) + key < end) == (one == other)


@given(bucket=BUCKETS, key=ROW_KEYS, table_id=NUMBERS, partition_id=PARTITIONS)
def test_ranges_of_tables_and_partitions_have_the_keys_of_all_their_buckets(bucket, key, table_id, partition_id):
    stored = bucket_prefix(*bucket) + key
    for table in (table_id, bucket[0]):
        first, end = table_range(table)
        assert (first <= stored < end) == (table == bucket[0])
        for partition in (partition_id, bucket[1]):
            first, end = partition_range(PartitionKeys(table, partition))
            assert (first <= stored < end) == ((table, partition) == bucket[:2])


@given(bucket=BUCKETS, key=ROW_KEYS)
def test_a_key_says_whose_it_is(bucket, key):
    assert partition_of(bucket_prefix(*bucket) + key) == bucket[:2]


@given(key=st.binary(max_size=20))
def test_whatever_a_key_says_it_lies_in_the_range_that_it_says(key):
    partition = partition_of(key)
    if partition is not None:
        first, end = partition_range(partition)
        assert first <= key < end


@given(prefix=st.binary(max_size=4), key=st.binary(max_size=6))
def test_the_end_of_a_prefix_is_behind_all_keys_with_it(prefix, key):
    end = end_of_prefix(prefix)
    assert (end is None or key < end) if key.startswith(prefix) else key < prefix or (end is not None and key >= end)


def test_a_bucket_of_a_usual_table_has_a_short_prefix():
    assert bucket_prefix(12, None, 7) == b"\x02\x0c\x00\x02\x07"
    assert len(bucket_prefix(70_000, 70_000, 4095)) == 11
