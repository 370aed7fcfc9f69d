"""Ranges of one buffer are gathered, and numbers at any byte are read and written, as if done one by one.
Shown on random ranges (in order, out of order, overlapping, empty) against plain slices."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.row.encoded import EncodedRows, gather_ranges, joined_rows, offsets_of, trimmed_rows, unaligned

DATA = bytes(range(256))


@st.composite
def ranges(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Draw (start, length) pairs inside ``DATA``, sometimes in order and without overlap."""
    if draw(st.booleans()):
        cuts = sorted(draw(st.lists(st.integers(0, len(DATA)), max_size=24)))
        return [(start, end - start) for start, end in zip(cuts[::2], cuts[1::2], strict=False)]
    starts = draw(st.lists(st.integers(0, len(DATA)), max_size=12))
    return [(start, draw(st.integers(0, len(DATA) - start))) for start in starts]


@pytest.mark.parametrize(("few_ranges_max", "block_bytes"), [(64, 1 << 18), (0, 1), (0, 50), (0, 1 << 18)])
@given(pairs=ranges())
def test_gathered_ranges_are_the_slices_one_after_the_other(
    few_ranges_max: int, block_bytes: int, pairs: list[tuple[int, int]]
) -> None:
    starts = np.array([start for start, _ in pairs], dtype=np.int64)
    lengths = np.array([length for _, length in pairs], dtype=np.int64)
    data = np.frombuffer(DATA, np.uint8)
    gathered = gather_ranges(data, starts, lengths, few_ranges_max=few_ranges_max, block_bytes=block_bytes)
    assert gathered.tobytes() == b"".join(DATA[start : start + length] for start, length in pairs)


def rows_at(pairs: list[tuple[int, int]]) -> EncodedRows:
    starts = np.array([start for start, _ in pairs], dtype=np.int64)
    lengths = np.array([length for _, length in pairs], dtype=np.int64)
    return EncodedRows(np.frombuffer(DATA, np.uint8), starts, starts + lengths)


@given(sources=st.lists(ranges(), max_size=5))
def test_joined_rows_are_those_of_all_arrays_in_one(sources: list[list[tuple[int, int]]]) -> None:
    joined = joined_rows([rows_at(pairs) for pairs in sources])
    assert joined.to_list() == [DATA[start : start + length] for pairs in sources for start, length in pairs]


@given(pairs=ranges().filter(bool), bytes_per_byte_max=st.integers(1, 300))
def test_trimmed_rows_are_the_same_and_keep_little_else(pairs: list[tuple[int, int]], bytes_per_byte_max: int) -> None:
    rows = rows_at(pairs)
    trimmed = trimmed_rows(rows, bytes_per_byte_max=bytes_per_byte_max)
    assert trimmed.to_list() == rows.to_list()
    assert len(trimmed.data) <= bytes_per_byte_max * int(rows.lengths.sum())


def test_offsets_are_the_running_sum_of_lengths() -> None:
    assert offsets_of(np.array([3, 0, 200], dtype=np.uint8)).tolist() == [0, 3, 3, 203]
    assert offsets_of(np.array([], dtype=np.uint8)).tolist() == [0]


@given(st.integers(0, 40), st.lists(st.integers(0, 32), max_size=6))
def test_numbers_are_read_at_any_byte(size: int, positions: list[int]) -> None:
    data = np.frombuffer(DATA[100 : 100 + size], dtype=np.uint8)
    inside = [position for position in positions if position + 8 <= size]
    found = unaligned(data, "<u8")
    assert len(found) == max(size - 7, 0)
    expected = [struct.unpack_from("<Q", data, position)[0] for position in inside]
    assert found[np.array(inside, dtype=np.intp)].tolist() == expected


def test_numbers_are_written_at_any_byte_and_nowhere_else() -> None:
    data = np.full(12, 0xEE, dtype=np.uint8)
    unaligned(data, "<u4")[np.array([1, 7])] = np.array([0x04030201, 0x08070605], dtype=np.uint32)
    assert data.tobytes().hex() == "ee01020304eeee05060708ee"
