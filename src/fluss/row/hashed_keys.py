"""Keys with a hash each: what finds equal keys among thousands without an object for any of them.

The seeds of a hash are secret, so that clients cannot choose keys that collide. Those of ``HashedKeys`` live and die
with the process.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fluss.buffers import Int64Array
from fluss.row.arrow_arrays import BoolArray
from fluss.row.encoded import EncodedRows
from fluss.row.varint import WORD_BYTES, UInt64Array, read_words

_BITS: Final = 64
_MASK: Final = 2**_BITS - 1
_BITS_PER_BYTE_LOG2: Final = 3
_NO_NUMBERS: Final = np.empty(0, np.int64)
# The upper half is what depends on all bits below it.
_FOLD_BITS: Final = _BITS // 2
# Up to so many keys, a loop over them is faster than setting up operations on arrays.
_FEW_KEYS: Final = 16


class HashSeeds(NamedTuple):
    """Three odd numbers of 64 bits: with others, keys have other hashes."""

    # Multiplied with the length, so that keys that differ only in zeros at their ends have different hashes.
    length_factor: int
    word_factor: int
    last_factor: int

    @classmethod
    def random(cls) -> HashSeeds:
        length_factor, word_factor, last_factor = (secrets.randbits(_BITS) | 1 for _ in range(3))
        return cls(length_factor, word_factor | 1 << (_BITS - 1), last_factor | 1 << (_BITS - 1))


_OF_THIS_PROCESS: Final = HashSeeds.random()


@dataclass(slots=True, eq=False)
class HashedKeys:
    """Keys, and the hash of each of them."""

    keys: EncodedRows
    hashes: UInt64Array

    @classmethod
    def of(cls, keys: EncodedRows) -> HashedKeys:
        return cls(keys, key_hashes(keys))

    @classmethod
    def from_list(cls, keys: list[bytes]) -> HashedKeys:
        return cls.of(EncodedRows.from_list(keys))

    def __len__(self) -> int:
        return len(self.hashes)

    def some(self, indexes: Int64Array | slice) -> HashedKeys:
        """Return the keys at some indexes, in their order."""
        return HashedKeys(self.keys.some(indexes), self.hashes[indexes])


def hash_of(key: bytes, seeds: HashSeeds = _OF_THIS_PROCESS) -> int:
    """Return the hash of one key, the same as among many."""
    result = (len(key) + 1) * seeds.length_factor & _MASK
    for start in range(0, len(key), WORD_BYTES):
        result = (result ^ int.from_bytes(key[start : start + WORD_BYTES], "little")) * seeds.word_factor & _MASK
        result ^= result >> _FOLD_BITS
    return result * seeds.last_factor & _MASK


def key_hashes(keys: EncodedRows, seeds: HashSeeds = _OF_THIS_PROCESS) -> UInt64Array:
    """Return the hash of each key."""
    if len(keys) <= _FEW_KEYS:
        return np.array([hash_of(key, seeds) for key in keys.to_list()], np.uint64)
    lengths = keys.lengths
    hashes = (lengths + 1).astype(np.uint64)
    hashes *= np.uint64(seeds.length_factor)
    word_factor = np.uint64(seeds.word_factor)
    common_words = _word_count(int(lengths.min()))
    for index in range(common_words):
        hashes = _with_word(hashes, row_words(keys, index), word_factor)
    # Those that go on become fewer. The last of them are hashed one by one, however long they are.
    has_more = int(lengths.max()) > common_words * WORD_BYTES
    index, numbers = common_words, np.flatnonzero(lengths > common_words * WORD_BYTES) if has_more else _NO_NUMBERS
    while len(numbers) > _FEW_KEYS:
        hashes[numbers] = _with_word(hashes[numbers], row_words(keys.some(numbers), index), word_factor)
        index += 1
        numbers = numbers[lengths[numbers] > index * WORD_BYTES]
    hashes *= np.uint64(seeds.last_factor)
    for number in numbers.tolist():
        hashes[number] = hash_of(keys.row(number), seeds)
    return hashes


def are_equal(some: EncodedRows, others: EncodedRows) -> BoolArray:
    """Compare row by row: whether both have the same bytes."""
    if len(some) <= _FEW_KEYS:
        return np.array([row == other for row, other in zip(some.to_list(), others.to_list(), strict=True)], np.bool_)
    lengths = some.lengths
    is_equal: BoolArray = lengths == others.lengths
    common_words = _word_count(int(lengths.min()))
    for index in range(common_words):
        # What stands behind the ends of rows is shifted out of both at once. Where one is longer than the other that
        # says nothing, and need not.
        differences = _unmasked_words(some, index)
        differences ^= _unmasked_words(others, index)
        differences <<= _foreign_bits(lengths, index)
        is_equal &= differences == 0
    if int(lengths.max()) <= common_words * WORD_BYTES:
        return is_equal
    # Fewer and fewer rows have further words. The last few rows are compared one by one, however long they are.
    index, numbers = common_words, np.flatnonzero(is_equal & (lengths > common_words * WORD_BYTES))
    while len(numbers) > _FEW_KEYS:
        differs = row_words(some.some(numbers), index) != row_words(others.some(numbers), index)
        is_equal[numbers[differs]] = False
        index += 1
        numbers = numbers[~differs & (lengths[numbers] > index * WORD_BYTES)]
    for number in numbers.tolist():
        is_equal[number] = some.row(number) == others.row(number)
    return is_equal


def row_words(rows: EncodedRows, index: int) -> npt.NDArray[np.uint64]:
    """Return eight bytes of every row as a little-endian number; what a row does not have is zero."""
    words = _unmasked_words(rows, index)
    foreign_bits = _foreign_bits(rows.lengths, index)
    words <<= foreign_bits
    words >>= foreign_bits
    return words


def _unmasked_words(rows: EncodedRows, index: int) -> UInt64Array:
    """Return the same with whatever stands behind the end of a row."""
    data = rows.data if len(rows.data) >= WORD_BYTES else np.concatenate((rows.data, np.zeros(WORD_BYTES, np.uint8)))
    return read_words(data, np.minimum(rows.starts + index * WORD_BYTES, rows.ends) if index else rows.starts)


def _foreign_bits(lengths: Int64Array, index: int) -> UInt64Array:
    """Return how many bits of a word do not belong to its row; shifting by 64 of them gives zero in numpy."""
    bits = np.maximum((index + 1) * WORD_BYTES - lengths, 0)
    if index:
        np.minimum(bits, WORD_BYTES, out=bits)
    bits <<= _BITS_PER_BYTE_LOG2
    return bits.view(np.uint64)


def _with_word(hashes: UInt64Array, words: UInt64Array, factor: np.uint64) -> UInt64Array:
    words ^= hashes
    words *= factor
    words ^= words >> np.uint64(_FOLD_BITS)
    return words


def _word_count(length: int) -> int:
    return -(-length // WORD_BYTES)
