"""Checksums do not depend on the kind of buffer, and no length of a record can lead outside the data.
Random rows are framed, split again and compared with a plain loop; every length is then made to lie."""

from __future__ import annotations

import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError, FlussError
from fluss.record.framing import (
    concat_rows,
    crc32c,
    crc32c_chain,
    fixed_width_rows,
    join_length_prefixed,
    split_length_prefixed,
)
from fluss.row.encoded import EncodedRows
from tests.damage import count_refusals
from tests.unit.record.row_layouts import encoded_rows

row_lists = st.lists(st.binary(max_size=300), max_size=12)


def framed(rows: list[bytes]) -> bytes:
    return b"".join(struct.pack("<i", len(row)) + row for row in rows)


def split(data: bytes, count: int, payload_bytes_min: int = 0) -> list[bytes]:
    starts, ends = split_length_prefixed(data, count, what="test record", payload_bytes_min=payload_bytes_min)
    return EncodedRows(np.frombuffer(data, np.uint8), starts, ends).to_list()


@given(encoded_rows(row_lists))
def test_joined_records_are_what_a_plain_loop_writes(rows: EncodedRows) -> None:
    joined = join_length_prefixed(rows)
    assert joined.data.tobytes() == framed(rows.to_list())
    assert joined.to_list() == [framed([row]) for row in rows.to_list()]


@given(row_lists)
def test_split_records_are_those_that_were_joined(rows: list[bytes]) -> None:
    assert split(framed(rows), len(rows)) == rows


@given(st.integers(0, 40), st.integers(1, 200))
def test_records_of_equal_length_are_split_like_others(length: int, count: int) -> None:
    rows = [bytes([index % 251]) * length for index in range(count)]
    assert split(framed(rows), count) == rows


def test_records_that_only_look_equally_long_are_told_apart() -> None:
    # Three records whose total is three times the first: the second is one byte longer, the third one shorter.
    rows = [b"abc", b"defg", b"hi"]
    assert split(framed(rows), 3) == rows


@given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9), st.binary(max_size=9)), max_size=8))
def test_parts_are_concatenated_row_by_row(rows: list[tuple[bytes, bytes, bytes]]) -> None:
    columns = [EncodedRows.from_list([row[part] for row in rows]) for part in range(3)]
    assert concat_rows(*columns).to_list() == [b"".join(row) for row in rows]
    assert join_length_prefixed(*columns).data.tobytes() == framed([b"".join(row) for row in rows])


def test_numbers_become_rows_of_their_own_bytes() -> None:
    assert fixed_width_rows(np.array([1, 258], "<i2")).to_list() == [b"\1\0", b"\2\1"]
    assert fixed_width_rows(np.arange(6, dtype="<i4")[::3]).to_list() == [b"\0\0\0\0", b"\3\0\0\0"]


def test_splitting_copies_no_payload() -> None:
    data = np.frombuffer(bytearray(framed([b"one", b"three"])), np.uint8)
    starts, ends = split_length_prefixed(data, 2, what="test record")
    rows = EncodedRows(data, starts, ends)
    data[starts[0]] = ord("O")
    assert rows.to_list() == [b"One", b"three"]


@pytest.mark.parametrize(
    ("data", "count", "message"),
    [
        (b"", -1, "announces -1 test records"),
        (framed([b"a"]), 2, "announces 2 test records, its 5 bytes cannot hold that many"),
        (b"\1\0", 0, "2 bytes follow the last of 0 test records"),
        (framed([b"ab"]) + b"\0", 1, "1 bytes follow the last of 1 test records"),
        (framed([b"abc"])[:-1], 1, "at byte 0 of 6, has the length 3, only 2 bytes follow"),
        (framed([b"abcdef"]), 2, "test record 1 of 2, at byte 10 of 10, is cut off before its length"),
        (framed([b"ab"]) + struct.pack("<i", -1) + b"a", 2, "record 1 of 2, at byte 6 of 11, has the length -1"),
        (struct.pack("<i", -(2**31)) + bytes(8), 3, "at byte 0 of 12, has the length -2147483648"),
        (struct.pack("<i", 2**31 - 1) + bytes(8), 3, "has the length 2147483647, only 8 bytes follow"),
        # A length of -4 leads back to itself: the walk must end all the same.
        (struct.pack("<i", -4) * 3, 3, "has the length -4"),
    ],
)
def test_a_lying_length_or_count_is_named(data: bytes, count: int, message: str) -> None:
    with pytest.raises(CorruptRecordError, match=message):
        split(data, count)


def test_a_payload_shorter_than_its_kind_allows_is_refused() -> None:
    assert split(framed([b"ab", b"cd"]), 2, payload_bytes_min=2) == [b"ab", b"cd"]
    with pytest.raises(CorruptRecordError, match="record 1 of 2, at byte 9 of 14, has the length 1, at least 2"):
        split(framed([b"abcde", b"c"]), 2, payload_bytes_min=2)


def test_a_huge_count_is_refused_before_memory_is_used() -> None:
    with pytest.raises(CorruptRecordError, match="announces 2147483647"):
        split(bytes(64), 2**31 - 1)


@pytest.mark.parametrize("rows", [[b"abc", b"", b"defgh"], [b"ab", b"cd", b"ef"]])
def test_damage_is_read_or_refused_and_nothing_else(rows: list[bytes]) -> None:
    assert count_refusals(lambda data: split(data, len(rows)), framed(rows)) > 100


def test_a_record_beyond_its_int32_length_is_refused() -> None:
    huge = EncodedRows(np.zeros(1, np.uint8), np.array([0]), np.array([2**31]))
    with pytest.raises(FlussError, match="2147483648 bytes is too large"):
        join_length_prefixed(huge)


def test_every_kind_of_buffer_gives_the_same_checksum() -> None:
    data = bytes(range(200))
    expected = crc32c(data)
    for buffer in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8), pa.py_buffer(data)):
        assert crc32c(buffer) == expected
    assert crc32c(np.frombuffer(data, "<i8")) == expected
    assert crc32c(pa.py_buffer(b"xx" + data).slice(2)) == expected


@pytest.mark.parametrize("before", ["pass", "import crc32c"])
def test_the_library_of_checksums_is_loaded_without_its_command(before: str) -> None:
    program = (
        f"import sys; {before}; before = set(sys.modules); from fluss.record.framing import crc32c; "
        "assert crc32c(b'123456789') == 0xE3069283; assert 'argparse' not in set(sys.modules) - before; "
        "import crc32c as library; assert library.crc32c(b'123456789') == crc32c(b'123456789'); "
        "assert library.crc32c is sys.modules['crc32c._crc32c'].crc32c"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=600)


def test_the_checksum_of_nothing_is_zero() -> None:
    assert crc32c(b"") == crc32c_chain([]) == crc32c_chain([b"", bytearray()]) == 0


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_parts_have_the_checksum_of_the_whole(parts: list[bytes]) -> None:
    whole = b"".join(parts)
    assert crc32c_chain(parts) == crc32c(whole)
    assert crc32c(whole[7:], crc32c(whole[:7])) == crc32c(whole)
