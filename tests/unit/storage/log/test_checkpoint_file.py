"""Checkpoint files keep one offset per bucket as text, and a file that was cut or edited wrongly is refused.
The exact text, random offsets in both directions, faults line by line, and systematic damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import ErrorCode, FlussError
from fluss.schema.table import TableBucket
from fluss.storage.log.checkpoint_file import decode_checkpoint, encode_checkpoint
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
