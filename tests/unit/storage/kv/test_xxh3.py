"""XXH3 of many inputs at once gives what it gives for each alone, of every length; published values are met.
Inputs of all lengths around the places where the algorithm changes, in groups of different lengths."""

from __future__ import annotations

import random

import pytest

from fluss.storage.kv.snapshots.xxh3 import xxh3_64

# From an independent implementation, for the first bytes of this sequence.
PATTERN = bytes((number * 73 + 11) % 256 for number in range(5000))


def test_nothing_has_the_known_hash() -> None:
    assert xxh3_64([b""]) == [0x2D06800538D394C2]
    assert xxh3_64([]) == []


@pytest.mark.parametrize(
    "length", [1, 3, 4, 8, 9, 16, 17, 32, 33, 64, 65, 96, 97, 128, 129, 240, 241, 1024, 1025, 4999]
)
def test_every_bit_counts(length: int) -> None:
    data = PATTERN[:length]
    variants = [data]
    for index in {0, length // 2, length - 1}:
        changed = bytearray(data)
        changed[index] ^= 1
        variants.append(bytes(changed))
    assert len(set(xxh3_64(variants))) == len(set(variants))


def test_many_at_once_are_hashed_as_each_alone() -> None:
    rng = random.Random(1)
    lengths = [
        *range(0, 300),
        *(rng.randrange(240, 70_000) for _ in range(60)),
        64 * 5,
        1024,
        2048,
        1024 + 64,
        1024 + 65,
    ]
    rng.shuffle(lengths)
    blocks = [rng.randbytes(length) for length in lengths]
    assert xxh3_64([memoryview(block) for block in blocks]) == [xxh3_64([block])[0] for block in blocks]
