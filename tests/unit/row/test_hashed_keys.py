"""Keys are hashed and compared by columns as they would be one by one, wherever their bytes lie.
Random keys of every length, in buffers with other bytes around them, against plain Python."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.row.encoded import EncodedRows
from fluss.row.hashed_keys import HashedKeys, are_equal, hash_of, row_words

# Zeros matter: what a key does not have reads as zeros, too.
KEYS = st.lists(st.binary(max_size=40) | st.text("\x00\x01\xff", max_size=20).map(lambda text: text.encode("latin-1")))


def scattered(rows: list[bytes], rng: random.Random) -> EncodedRows:
    """Lay rows out in any order, with other bytes before, between and behind them, or without."""
    gap_max = rng.choice((0, 1, 20))
    data = bytearray(rng.randbytes(rng.randint(0, gap_max)))
    starts = [0] * len(rows)
    for number in rng.sample(range(len(rows)), len(rows)):
        starts[number] = len(data)
        data += rows[number] + rng.randbytes(rng.randint(0, gap_max))
    positions = np.array(starts, np.int64)
    lengths = np.array([len(row) for row in rows], np.int64)
    return EncodedRows(np.frombuffer(bytes(data), np.uint8), positions, positions + lengths)


def test_one_key_and_many_have_the_same_hash_whatever_its_length() -> None:
    rng = random.Random(1)
    for length in range(41):
        keys = [rng.randbytes(length) for _ in range(3)] + [bytes(length), b"\xff" * length]
        expected = [hash_of(key) for key in keys]
        assert HashedKeys.from_list(keys).hashes.tolist() == expected
        assert [HashedKeys.from_list([key]).hashes.tolist() for key in keys] == [[number] for number in expected]
    mixed = [rng.randbytes(rng.randrange(41)) for _ in range(500)]
    assert HashedKeys.from_list(mixed).hashes.tolist() == [hash_of(key) for key in mixed]


@given(KEYS, st.randoms(use_true_random=False))
def test_equal_keys_have_equal_hashes_wherever_they_lie(keys: list[bytes], rng: random.Random) -> None:
    expected = [hash_of(key) for key in keys]
    for rows in (EncodedRows.from_list(keys), scattered(keys, rng), scattered(keys, rng)):
        hashed = HashedKeys.of(rows)
        assert len(hashed) == len(keys)
        assert hashed.hashes.dtype == np.uint64
        assert hashed.hashes.tolist() == expected
        assert hashed.keys.to_list() == keys


def test_different_keys_have_different_hashes() -> None:
    """Also those that differ in their length only, in one bit, or in the order of their words."""
    rng = random.Random(2)
    words = [rng.randbytes(8) for _ in range(3)]
    base = rng.randbytes(24)
    keys = {bytes(length) for length in range(41)}
    keys |= {b"a" + bytes(length) for length in range(40)}
    keys |= {base[:at] + bytes([base[at] ^ 1 << bit]) + base[at + 1 :] for at in range(24) for bit in range(8)}
    keys |= {words[a] + words[b] + words[c] for a in range(3) for b in range(3) for c in range(3)}
    keys |= {number.to_bytes(8, "big") for number in range(20_000)}
    keys |= {b"%d" % number for number in range(20_000)}
    assert len(set(HashedKeys.from_list(sorted(keys)).hashes.tolist())) == len(keys)


def test_the_upper_bits_of_hashes_are_spread_evenly() -> None:
    """They choose a place in a table: of sequential keys no place gets many more than its share."""
    for keys in (
        [number.to_bytes(8, "big") for number in range(16_384)],
        [number.to_bytes(8, "little") for number in range(16_384)],
        [b"customer-%08d" % number for number in range(16_384)],
        [(number << 32).to_bytes(8, "little") for number in range(16_384)],
    ):
        upper = (HashedKeys.from_list(keys).hashes >> np.uint64(56)).astype(np.int64)
        counts = np.bincount(upper, minlength=256)
        # 64 are expected.
        assert counts.max() < 512


@given(st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20), st.integers(0, 3))), st.randoms())
def test_rows_are_compared_like_bytes(pairs: list[tuple[bytes, bytes, int]], rng: random.Random) -> None:
    some, others = [], []
    for row, other, kind in pairs:
        some.append(row)
        others.append((other, row, row + b"\x00", row[:-1] + bytes([(row[-1] + 1) % 256]) if row else b"\x00")[kind])
    expected = [row == other for row, other in zip(some, others, strict=True)]
    for left, right in (
        (EncodedRows.from_list(some), EncodedRows.from_list(others)),
        (scattered(some, rng), scattered(others, rng)),
    ):
        assert are_equal(left, right).tolist() == expected
        assert are_equal(right, left).tolist() == expected


def test_what_follows_a_row_does_not_matter() -> None:
    data = np.frombuffer(b"abcdefghabcdefgXabcdefg", np.uint8)
    starts = np.array([0, 8, 16], np.int64)
    rows = EncodedRows(data, starts, starts + 7)
    assert are_equal(rows, rows.some(np.array([1, 2, 0]))).tolist() == [True, True, True]
    assert len(set(HashedKeys.of(rows).hashes.tolist())) == 1


@pytest.mark.parametrize("data_size", range(20))
def test_words_at_the_end_of_a_buffer_have_zeros_behind_them(data_size: int) -> None:
    data = bytes(range(1, data_size + 1))
    bounds = [(start, end) for start in range(data_size + 1) for end in range(start, data_size + 1)]
    starts, ends = (np.array(column, np.int64) for column in zip(*bounds, strict=True))
    rows = EncodedRows(np.frombuffer(data, np.uint8), starts, ends)
    for index in range(4):
        expected = [
            int.from_bytes(data[min(start + 8 * index, end) : min(start + 8 * index + 8, end)], "little")
            for start, end in bounds
        ]
        assert row_words(rows, index).tolist() == expected


def test_no_keys_have_no_hashes() -> None:
    for keys in (HashedKeys.from_list([]), HashedKeys.from_list([b"a", b"b"]).some(np.empty(0, np.int64))):
        assert len(keys) == 0
        assert keys.hashes.tolist() == []
        assert are_equal(keys.keys, keys.keys).tolist() == []
        assert row_words(keys.keys, 0).tolist() == []
    assert HashedKeys.from_list([b"", b""]).hashes.tolist() == [hash_of(b"")] * 2
    assert are_equal(EncodedRows.from_list([b""]), EncodedRows.from_list([b""])).tolist() == [True]


def test_some_keys_keep_their_hashes() -> None:
    keys = [b"%d" % number for number in range(10)]
    some = HashedKeys.from_list(keys).some(np.array([7, 0, 7]))
    assert some.keys.to_list() == [b"7", b"0", b"7"]
    assert some.hashes.tolist() == [hash_of(b"7"), hash_of(b"0"), hash_of(b"7")]
