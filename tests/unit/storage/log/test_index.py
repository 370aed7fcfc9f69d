"""The indexes of a segment lead to an entry at or before what is looked up, and damaged files are refused by name.
Lookups in memory and in files against a plain search, padded files, and systematic damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.buffers import Int64Array
from fluss.errors import ErrorCode, FlussError
from fluss.storage.log.file_names import LogFileKind, log_file_name
from fluss.storage.log.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    SparseIndex,
    StoredIndex,
    decode_offset_index,
    decode_time_index,
    encode_offset_index,
    encode_time_index,
)
from fluss.storage.vfs import OsFiles
from tests.damage import count_refusals

Encode = Callable[[int, Int64Array, Int64Array], bytes]
Decode = Callable[..., tuple[Int64Array, Int64Array]]


def encoded(encode: Encode, base_offset: int, entries: list[tuple[int, int]]) -> bytes:
    first, second = np.array(entries, np.int64).reshape(-1, 2).T
    return encode(base_offset, first, second)


def offset_file(entries: list[tuple[int, int]], base_offset: int = 0) -> bytes:
    return encoded(encode_offset_index, base_offset, entries)


def time_file(entries: list[tuple[int, int]], base_offset: int = 0) -> bytes:
    return encoded(encode_time_index, base_offset, entries)


@st.composite
def appends(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int, int]]]:
    """Draw a base offset, and first offset, last offset, position and time of appends that all get an entry."""
    base_offset = draw(st.integers(0, 2**62))
    offsets = sorted(draw(st.sets(st.integers(1, 2**31 - 1), max_size=20)))
    positions = sorted(draw(st.sets(st.integers(1, 2**31 - 1), min_size=len(offsets), max_size=len(offsets))))
    times = sorted(draw(st.sets(st.integers(1, 2**63 - 1), min_size=len(offsets), max_size=len(offsets))))
    rows = zip([0, *offsets], offsets, positions, times, strict=False)
    return base_offset, [(base_offset + first, base_offset + last, at, ms) for first, last, at, ms in rows]


@given(appends(), st.data())
def test_lookups_agree_with_a_plain_search(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[int, list[tuple[int, int, int, int]]], data: st.DataObject
) -> None:
    base_offset, rows = drawn
    in_memory = SparseIndex(base_offset, interval_bytes=0)
    in_memory.add(offset_base=base_offset, offset_last=base_offset, position=0, byte_count=1, timestamp_ms=0)
    for first, last, position, timestamp_ms in rows:
        in_memory.add(offset_base=first, offset_last=last, position=position, byte_count=1, timestamp_ms=timestamp_ms)
    directory = tmp_path_factory.mktemp("index")
    (directory / log_file_name(base_offset, LogFileKind.OFFSET_INDEX)).write_bytes(in_memory.offset_file())
    (directory / log_file_name(base_offset, LogFileKind.TIME_INDEX)).write_bytes(in_memory.time_file())
    in_files = StoredIndex(OsFiles(), directory, base_offset)

    offset_entries = [(last, position) for _, last, position, _ in rows]
    offset = data.draw(
        st.sampled_from([base_offset, *(last + delta for last, _ in offset_entries for delta in (-1, 0, 1))])
    )
    expected = max((entry for entry in offset_entries if entry[0] <= offset), default=(base_offset, 0))
    assert in_memory.lookup(offset) == in_files.lookup(offset) == expected
    assert in_files.check() == in_files.last() == max(offset_entries, default=(base_offset, 0))

    time_entries = [(timestamp_ms, first) for first, _, _, timestamp_ms in rows]
    time_ms = data.draw(st.sampled_from([0, *(ms + delta for ms, _ in time_entries for delta in (-1, 0, 1))]))
    expected_time = max((entry for entry in time_entries if entry[0] < time_ms), default=None)
    assert in_memory.lookup_time(time_ms) == in_files.lookup_time(time_ms) == expected_time


@given(st.sets(st.integers(1, 2**31 - 1), min_size=1, max_size=20), st.integers(0, 5))
def test_files_read_back_with_the_padding_of_other_servers(numbers: set[int], padding: int) -> None:
    base_offset, values = 2**62, np.array(sorted(numbers))
    offset_data = encode_offset_index(base_offset, base_offset + values, values)
    offsets, positions = decode_offset_index(offset_data + bytes(padding * OFFSET_ENTRY_BYTES), base_offset)
    assert (offsets - base_offset).tolist() == positions.tolist() == values.tolist()
    time_data = encode_time_index(base_offset, values, base_offset + values)
    times_ms, offsets = decode_time_index(time_data + bytes(padding * TIME_ENTRY_BYTES), base_offset)
    assert (offsets - base_offset).tolist() == times_ms.tolist() == values.tolist()


def test_an_empty_or_fresh_index_has_no_entries(tmp_path: Path) -> None:
    assert [len(column) for column in decode_offset_index(bytes(800), 100)] == [0, 0]
    for kind in (LogFileKind.OFFSET_INDEX, LogFileKind.TIME_INDEX):
        (tmp_path / log_file_name(100, kind)).write_bytes(b"")
    index = StoredIndex(OsFiles(), tmp_path, 100)
    assert index.lookup(500) == index.last() == index.check() == (100, 0)
    assert index.lookup_time(500) is None


def test_times_may_be_as_far_apart_as_64_bits_allow() -> None:
    assert decode_time_index(time_file([(2**63 - 1, 5)]), 0)[0].tolist() == [2**63 - 1]
    with pytest.raises(FlussError, match="timestamp -9223372036854775808 after 9223372036854775807"):
        decode_time_index(time_file([(2**63 - 1, 5)]) + b"\x80" + bytes(7) + b"\0\0\0\7", 0)


def test_a_time_entry_of_zeros_reads_as_padding() -> None:
    assert [len(column) for column in decode_time_index(time_file([(0, 100)], 100), 100)] == [0, 0]


@pytest.mark.parametrize(
    ("decode", "what", "data", "message"),
    [
        (decode_offset_index, "offset index", bytes(7), "its 7 bytes are not a multiple of the entry size 8"),
        (
            decode_offset_index,
            "offset index",
            offset_file([(5, 1), (5, 2)]),
            "relative offset 5 after 5, at entry 1 of 2",
        ),
        (decode_offset_index, "offset index", offset_file([(5, 9), (6, 9)]), "position 9 after 9, at entry 1 of 2"),
        (
            decode_offset_index,
            "offset index",
            offset_file([(5, 100)]) + bytes(8) + offset_file([(6, 200)]),
            "relative offset 0 after 5, at entry 1 of 3",
        ),
        (
            decode_offset_index,
            "offset index",
            b"\xff\xff\xff\xff\0\0\0\1",
            "relative offset -1 in the first entry, at entry 0 of 1",
        ),
        (decode_offset_index, "offset index", b"\0\0\0\1\x80\0\0\0", "position -2147483648 in the first entry"),
        (decode_time_index, "time index", bytes(11), "its 11 bytes are not a multiple of the entry size 12"),
        (decode_time_index, "time index", time_file([(5, 1), (5, 2)]), "timestamp 5 after 5, at entry 1 of 2"),
        (decode_time_index, "time index", time_file([(5, 2), (6, 2)]), "relative offset 2 after 2, at entry 1 of 2"),
        (decode_time_index, "time index", b"\xff" * 8 + bytes(4), "timestamp -1 in the first entry"),
        (decode_time_index, "time index", bytes(7) + b"\1" + b"\xff" * 4, "relative offset -1 in the first entry"),
    ],
)
def test_damage_is_refused_with_the_name_of_the_file(decode: Decode, what: str, data: bytes, message: str) -> None:
    with pytest.raises(FlussError, match=f"The {what} some-file is damaged: {message}") as refusal:
        decode(data, 100, "some-file")
    assert refusal.value.error_code == ErrorCode.LOG_STORAGE_EXCEPTION


def test_an_offset_beyond_64_bits_is_damage() -> None:
    with pytest.raises(FlussError, match="5 after the base offset 9223372036854775807 is not an offset"):
        decode_offset_index(offset_file([(5, 100)]), 2**63 - 1)


def test_damage_is_read_or_refused_and_nothing_else() -> None:
    offsets = offset_file([(142, 4096), (1000, 70_000), (5000, 80_000)], 100)
    assert count_refusals(lambda data: decode_offset_index(data, 100), offsets, FlussError) > 50
    times = time_file([(1_700_000_000_000, 130), (1_700_000_000_500, 5000)], 100)
    assert count_refusals(lambda data: decode_time_index(data, 100), times, FlussError) > 25
