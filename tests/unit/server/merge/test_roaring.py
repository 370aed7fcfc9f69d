"""Serialized bitmaps are what the Java library writes and reads; whatever else a client sends is refused.
Shown with bytes that the Java library wrote, by writing back what was read, and by damaging every byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import CorruptRecordError
from fluss.server.merge.roaring import read_bitmap32, read_bitmap64, union
from tests.damage import count_refusals, truncations
from tests.unit.server.merge.bitmap_samples import (
    READERS,
    WRITERS,
    JavaBitmap,
    bitmap_numbers,
    bitmap_of,
    java_bitmaps,
    numbers_in,
    serialized,
)

SAMPLES = java_bitmaps()
samples = pytest.mark.parametrize("sample", SAMPLES, ids=[f"{s.bits} bits: {s.title}" for s in SAMPLES])


@samples
def test_bitmaps_of_the_java_library_are_read(sample: JavaBitmap) -> None:
    assert numbers_in(sample.bits, sample.java) == sample.numbers


@samples
def test_bitmaps_are_written_as_the_java_library_reads_them(sample: JavaBitmap) -> None:
    made_small = union({}, READERS[sample.bits](sample.java))
    assert WRITERS[sample.bits](made_small) == sample.ours


@samples
def test_a_bitmap_that_is_cut_off_or_too_long_is_refused(sample: JavaBitmap) -> None:
    # The contents of a bitmap container are long and have no structure of their own.
    if len(sample.java) < 2000:
        assert count_refusals(READERS[sample.bits], sample.java, damage=truncations) == len(sample.java)
    with pytest.raises(CorruptRecordError, match="ends after"):
        READERS[sample.bits](sample.java + b"\0")


@samples
def test_damage_is_refused_or_makes_another_bitmap_but_nothing_else(sample: JavaBitmap) -> None:
    # Any other error than the one announced fails here. Damage that changes a number cannot be noticed.
    if len(sample.java) < 300:
        assert count_refusals(READERS[sample.bits], sample.java) > len(sample.java)


# High parts that share bytes and others that do not, so that trees have prefixes, branches and all kinds of nodes.
numbers_by_bits = {
    bits: st.sets(
        st.builds(
            lambda high, low: high << 16 | low,
            st.one_of(
                st.integers(0, 80),
                st.sampled_from([0, 255, 256, 1 << (bits - 17)]),
                st.integers(0, (1 << bits - 16) - 1),
            ),
            st.integers(0, 0xFFFF),
        ),
        max_size=120,
    )
    for bits in (32, 64)
}


@given(st.data(), st.sampled_from([32, 64]))
def test_the_union_of_two_bitmaps_survives_being_written_and_read(data: st.DataObject, bits: int) -> None:
    one, other = data.draw(numbers_by_bits[bits]), data.draw(numbers_by_bits[bits])
    merged = union(bitmap_of(one), bitmap_of(other))
    assert list(merged) == sorted(merged)
    assert bitmap_numbers(merged) == one | other
    assert READERS[bits](WRITERS[bits](merged)) == merged


def test_all_kinds_of_nodes_are_written_and_read() -> None:
    for children in (2, 4, 5, 16, 17, 48, 49, 256):
        numbers = frozenset((child << 24) | (other << 16) for child in range(children) for other in range(2))
        assert numbers_in(64, serialized(64, numbers)) == numbers


def test_a_union_does_not_change_its_parts() -> None:
    one, other = bitmap_of({1, 2}), bitmap_of({3, 1 << 20})
    union(one, other)
    assert (bitmap_numbers(one), bitmap_numbers(other)) == ({1, 2}, {3, 1 << 20})


# The numbers 1, 2 and 3 in the 64-bit format of the C library.
PORTABLE_64 = bytes.fromhex("0100000000000000 00000000 3a30000001000000 00000200 10000000 010002000300")


@pytest.mark.parametrize("data", [PORTABLE_64, bytes(8), b"\2", b"", b"\0\1"])
def test_other_formats_are_told_from_64_bit_bitmaps(data: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="Roaring64Bitmap"):
        read_bitmap64(data)


@pytest.mark.parametrize(
    ("hexadecimal", "reason"),
    [
        ("3a31 0000 00000000", "begins with"),
        ("3a30 0100 00000000", "begins with"),
        ("3a30 0000 01000100", "65537 containers"),
        ("3a30 0000 02000000 01000000 01000000 18000000 1a000000 0100 0100", "out of order"),
    ],
)
def test_what_is_no_32_bit_bitmap_is_refused(hexadecimal: str, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason):
        read_bitmap32(bytes.fromhex(hexadecimal))


# A tree with one leaf, piece by piece: what is wrong takes the place of a piece.
START = "01 0100000000000000"
LEAF = "04 0000 00 000000000000 0000000000000000"
CONTAINERS = "01000000 fe01000000 01 02 01000000 0500"
TAIL = "0100000000000000 00000000 00000000"


def test_a_tree_with_one_leaf_is_a_bitmap() -> None:
    assert numbers_in(64, bytes.fromhex(START + LEAF + CONTAINERS + TAIL)) == {5}


@pytest.mark.parametrize(
    ("tree", "containers", "reason"),
    [
        (LEAF, "01000000 fe01000000 00", "without a container"),
        (LEAF, "00000000", "without a container"),
        (LEAF, "01000000 fe01000000 02", "instead of a container"),
        (LEAF, "01000000 fe01000000 01 02 00000000", "0 numbers"),
        (LEAF, "01000000 fe01000000 01 03 01000000 0500", "unknown form"),
        ("05 0000 00", CONTAINERS, "kind 5"),
        ("00 0000 00 00000000", CONTAINERS, "children"),
        ("00 0200 00 00000101" + 2 * LEAF, CONTAINERS, "children"),
        ("03 0200 00 01" + 31 * "00" + LEAF, CONTAINERS, "children"),
        ("02 0100 00" + 256 * "ff" + LEAF, CONTAINERS, "children"),
        ("00 0200 00 00000100" + 2 * LEAF, CONTAINERS, "wrong place"),
        ("00 0100 01 01 00000000" + LEAF, CONTAINERS, "wrong place"),
        ("00 0100 06 000000000000 00000000" + LEAF, CONTAINERS, "6 bytes of the key"),
        ("00 0200 00 00000100" + LEAF + "04 0000 00 010000000000 0000000000000000", CONTAINERS, "of its own"),
    ],
)
def test_a_damaged_tree_is_refused(tree: str, containers: str, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason):
        read_bitmap64(bytes.fromhex(START + tree + containers + TAIL))
