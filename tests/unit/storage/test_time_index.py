"""A time index leads to an offset at or before the first batch of a time, and a damaged one is refused by name.
Lookups against a plain search, padded files, and systematic damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import ErrorCode, FlussError
from fluss.storage.log.time_index import TIME_ENTRY_BYTES, TimeIndex, encode_time_entries
from tests.damage import count_refusals

FILE = "00000000000000000100.timeindex"


def encode(base_offset: int, entries: list[tuple[int, int]]) -> bytes:
    timestamps_ms, offsets = np.array(entries, np.int64).reshape(-1, 2).T
    return encode_time_entries(base_offset, timestamps_ms, offsets)


@st.composite
def index_entries(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    base_offset = draw(st.integers(0, 2**62))
    timestamps = sorted(draw(st.sets(st.integers(1, 2**63 - 1), max_size=20)))
    offsets = draw(st.sets(st.integers(0, 2**31 - 1), min_size=len(timestamps), max_size=len(timestamps)))
    return base_offset, [(ts, base_offset + offset) for ts, offset in zip(timestamps, sorted(offsets), strict=True)]


@given(index_entries(), st.integers(0, 5), st.data())
@settings(max_examples=100)
def test_lookups_agree_with_a_plain_search(
    drawn: tuple[int, list[tuple[int, int]]], padding: int, data: st.DataObject
) -> None:
    base_offset, entries = drawn
    index = TimeIndex.parse(encode(base_offset, entries) + bytes(padding * TIME_ENTRY_BYTES), base_offset)
    assert len(index) == len(entries)
    candidates = [0, 2**63 - 1, *(min(ts + delta, 2**63 - 1) for ts, _ in entries for delta in (-1, 0, 1))]
    target = data.draw(st.sampled_from(candidates))
    expected = max((entry for entry in entries if entry[0] <= target), default=(0, base_offset))
    assert index.lookup(target) == expected[1]


def test_times_may_be_as_far_apart_as_64_bits_allow() -> None:
    assert TimeIndex.parse(encode(0, [(2**63 - 1, 5)]), 0).lookup(2**63 - 1) == 5
    with pytest.raises(FlussError, match="timestamp -9223372036854775808 after 9223372036854775807"):
        TimeIndex.parse(encode(0, [(2**63 - 1, 5)]) + b"\x80" + bytes(7) + b"\0\0\0\7", 0)


def test_an_entry_of_zeros_loses_nothing() -> None:
    index = TimeIndex.parse(encode(100, [(0, 100)]), 100)
    assert len(index) == 0
    assert index.lookup(0) == 100


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bytes(11), "its 11 bytes are not a multiple of the entry size 12"),
        (encode(0, [(5, 1), (5, 2)]), "timestamp 5 after 5, at entry 1 of 2"),
        (encode(0, [(5, 2), (6, 2)]), "relative offset 2 after 2, at entry 1 of 2"),
        (b"\xff" * 8 + bytes(4), "timestamp -1 in the first entry"),
        (bytes(7) + b"\1" + b"\xff" * 4, "relative offset -1 in the first entry"),
    ],
)
def test_damage_is_refused_with_the_name_of_the_file(data: bytes, message: str) -> None:
    with pytest.raises(FlussError, match=f"The time index {FILE} is damaged: {message}") as refusal:
        TimeIndex.parse(data, 100, FILE)
    assert refusal.value.error_code == ErrorCode.LOG_STORAGE_EXCEPTION


def test_damage_is_read_or_refused_and_nothing_else() -> None:
    valid = encode(100, [(1_700_000_000_000, 130), (1_700_000_000_500, 5000)])
    assert count_refusals(lambda data: TimeIndex.parse(data, 100).lookup(2**40), valid, FlussError) > 25
