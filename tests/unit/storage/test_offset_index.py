"""An offset index leads to the last known place at or before an offset, and a damaged one is refused by name.
Lookups against a plain search, padded files, and systematic damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import ErrorCode, FlussError
from fluss.storage.log.offset_index import OFFSET_ENTRY_BYTES, OffsetIndex, encode_offset_entries
from tests.damage import count_refusals

FILE = "00000000000000000100.index"


def encode(base_offset: int, entries: list[tuple[int, int]]) -> bytes:
    offsets, positions = np.array(entries, np.int64).reshape(-1, 2).T
    return encode_offset_entries(base_offset, offsets, positions)


@st.composite
def index_entries(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    base_offset = draw(st.integers(0, 2**62))
    offsets = sorted(draw(st.sets(st.integers(0, 2**31 - 1), max_size=20)))
    positions = draw(st.sets(st.integers(1, 2**31 - 1), min_size=len(offsets), max_size=len(offsets)))
    return base_offset, [(base_offset + offset, at) for offset, at in zip(offsets, sorted(positions), strict=True)]


@given(index_entries(), st.integers(0, 5), st.data())
@settings(max_examples=100)
def test_lookups_agree_with_a_plain_search(
    drawn: tuple[int, list[tuple[int, int]]], padding: int, data: st.DataObject
) -> None:
    base_offset, entries = drawn
    index = OffsetIndex.parse(encode(base_offset, entries) + bytes(padding * OFFSET_ENTRY_BYTES), base_offset)
    assert len(index) == len(entries)
    candidates = [base_offset, base_offset + 2**31, *(offset + delta for offset, _ in entries for delta in (-1, 0, 1))]
    target = data.draw(st.sampled_from(candidates))
    expected = max((entry for entry in entries if entry[0] <= target), default=(base_offset, 0))
    assert index.lookup(target) == expected


def test_an_empty_or_fresh_index_leads_to_the_start() -> None:
    assert OffsetIndex.parse(b"", 100).lookup(500) == (100, 0)
    assert OffsetIndex.parse(bytes(800), 100).lookup(500) == (100, 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bytes(7), "its 7 bytes are not a multiple of the entry size 8"),
        (encode(0, [(5, 100), (5, 200)]), "relative offset 5 after 5, at entry 1 of 2"),
        (encode(0, [(5, 100), (6, 100)]), "position 100 after 100, at entry 1 of 2"),
        (encode(0, [(5, 100)]) + bytes(8) + encode(0, [(6, 200)]), "relative offset 0 after 5, at entry 1 of 3"),
        (b"\xff\xff\xff\xff\0\0\0\1", "relative offset -1 in the first entry, at entry 0 of 1"),
        (b"\0\0\0\1\x80\0\0\0", "position -2147483648 in the first entry"),
    ],
)
def test_damage_is_refused_with_the_name_of_the_file(data: bytes, message: str) -> None:
    with pytest.raises(FlussError, match=f"The offset index {FILE} is damaged: {message}") as refusal:
        OffsetIndex.parse(data, 100, FILE)
    assert refusal.value.error_code == ErrorCode.LOG_STORAGE_EXCEPTION


def test_an_offset_beyond_64_bits_is_damage() -> None:
    with pytest.raises(FlussError, match="5 after the base offset 9223372036854775807 is not an offset"):
        OffsetIndex.parse(encode(0, [(5, 100)]), 2**63 - 1)


def test_damage_is_read_or_refused_and_nothing_else() -> None:
    valid = encode(100, [(142, 4096), (1000, 70_000), (5000, 80_000)])
    assert count_refusals(lambda data: OffsetIndex.parse(data, 100, FILE).lookup(900), valid, FlussError) > 50
