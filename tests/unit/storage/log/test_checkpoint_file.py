"""Checkpoint files keep one offset per bucket as text, and a file that was cut or edited wrongly is refused.
The exact text, random offsets in both directions, faults line by line, and systematic damage."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableBucket
from fluss.storage.log.checkpoint_file import (
    CheckpointColumns,
    GroupId,
    decode_checkpoint,
    decode_checkpoint_columns,
    encode_checkpoint,
    encode_checkpoint_groups,
)
from tests.damage import count_refusals

FILE = "high-watermark-checkpoint"
OFFSETS = {TableBucket(1001, 0): 42, TableBucket.with_partition(1002, 7, 1): 2**63 - 1}
TEXT = b"0\n2\n1001 0 42\n1002 7 1 9223372036854775807\n"
int64s = st.integers(0, 2**63 - 1)
buckets = st.builds(TableBucket.new_with_partition, int64s, st.none() | int64s, st.integers(0, 2**31 - 1))


def test_the_text_is_exact_in_both_directions() -> None:
    assert encode_checkpoint(OFFSETS) == TEXT
    assert decode_checkpoint(TEXT) == OFFSETS
    assert encode_checkpoint({}) == b"0\n0\n"
    assert decode_checkpoint(b"0\n0\n") == {}


@given(st.dictionaries(buckets, int64s, max_size=8))
def test_every_checkpoint_reads_back(offsets: dict[TableBucket, int]) -> None:
    assert decode_checkpoint(encode_checkpoint(offsets)) == offsets


@given(st.dictionaries(buckets, int64s, max_size=8))
def test_arrays_have_what_the_mapping_has(offsets: dict[TableBucket, int]) -> None:
    data = encode_checkpoint(offsets)
    columns = decode_checkpoint_columns(data)
    assert _as_mapping(columns) == offsets
    for order in (sorted(offsets.items(), key=repr), sorted(offsets.items(), key=lambda each: each[0].bucket_id)):
        assert _as_mapping(decode_checkpoint_columns(encode_checkpoint(dict(order)))) == offsets


def _as_mapping(columns: CheckpointColumns) -> dict[TableBucket, int]:
    return {
        TableBucket.new_with_partition(table, None if partition < 0 else partition, bucket): offset
        for table, partition, bucket, offset in zip(
            columns.table_ids.tolist(),
            columns.partition_ids.tolist(),
            columns.bucket_ids.tolist(),
            columns.offsets.tolist(),
            strict=True,
        )
    }


small = st.integers(0, 40)


@given(st.dictionaries(st.tuples(small, st.none() | small), st.lists(small, min_size=1, max_size=9), max_size=6))
def test_groups_are_written_and_read_as_they_are_kept(groups: dict[GroupId, list[int]]) -> None:
    arrays = [(group_id, array("q", offsets)) for group_id, offsets in groups.items()]
    data = encode_checkpoint_groups(arrays)
    expected = {
        TableBucket.new_with_partition(*group_id, bucket): offset
        for group_id, offsets in groups.items()
        for bucket, offset in enumerate(offsets)
        if offset
    }
    assert decode_checkpoint(data) == expected
    read = dict(decode_checkpoint_columns(data).groups(lambda group_id: len(groups[group_id])))
    assert {group_id: offsets.tolist() for group_id, offsets in read.items()} == {
        group_id: offsets for group_id, offsets in groups.items() if any(offsets)
    }
    # What is not there any more is left out.
    assert not list(decode_checkpoint_columns(data).groups(lambda group_id: None))
    assert all(len(offsets) == 1 for _, offsets in decode_checkpoint_columns(data).groups(lambda group_id: 1))


@pytest.mark.parametrize("data", [b"0\n2\n1 0 1\n1 0 2\n", b"0\n1\n1 0 1 \n", b"0\n1\n1 0 1\n\n", b"0\n3\n1 0 1\n"])
def test_arrays_are_refused_like_mappings(data: bytes) -> None:
    with pytest.raises(FlussError):
        decode_checkpoint_columns(data, FILE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "its last line is not complete"),
        (b"0\n", "its last line is not complete"),
        (TEXT[:-3], "its last line is not complete"),
        (b"1\n0\n", "its version is '1', this version reads only 0"),
        (b"0\nx\n", "it announces 'x' entries and has 0"),
        (b"0\n3\n1 0 1\n2 0 1\n", "it announces '3' entries and has 2"),
        (b"0\n1\n1 0\n", "line 3 is '1 0', not the ids of a bucket and an offset"),
        (b"0\n1\n1 2 3 4 5\n", "line 3 is '1 2 3 4 5', not the ids of a bucket and an offset"),
        (b"0\n1\n1 0 -1\n", "line 3 is '1 0 -1', not the ids of a bucket and an offset"),
        (b"0\n1\n1  0 1\n", "line 3 is '1  0 1', not the ids of a bucket and an offset"),
        (
            b"0\n1\n1 0 9223372036854775808\n",
            "line 3 is '1 0 9223372036854775808', not the ids of a bucket and an offset",
        ),
        (b"0\n1\n1 2147483648 1\n", "line 3 is '1 2147483648 1', not the ids of a bucket and an offset"),
        ("0\n1\n1 0 ٣\n".encode(), "line 3 is '1 0 ٣', not the ids of a bucket and an offset"),
        (b"0\n2\n1 0 1\n1 0 2\n", "line 4 is about a bucket that was there before: '1 0 2'"),
        (b"0\n0\n\xff\n", "it is not text"),
    ],
)
def test_damage_is_refused_with_the_name_of_the_file(data: bytes, message: str) -> None:
    with pytest.raises(FlussError, match=f"The checkpoint file {FILE} is damaged: .*{message}") as refusal:
        decode_checkpoint(data, FILE)
    assert refusal.value.error_code == ErrorCode.LOG_STORAGE_EXCEPTION


def test_damage_is_read_or_refused_and_nothing_else() -> None:
    assert count_refusals(decode_checkpoint, TEXT, FlussError) > 100
    assert count_refusals(decode_checkpoint_columns, TEXT, FlussError) > 100
