"""Keys with a hash each: what finds equal keys among thousands without an object for any of them.

The hash depends on random numbers of the process, so that a client cannot choose keys that collide. It is never stored.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from fluss.buffers import Int64Array
from fluss.row.arrow_arrays import BoolArray
from fluss.row.encoded import EncodedRows
from fluss.row.varint import WORD_BYTES, UInt64Array, read_words

_BITS: Final = 64
_MASK: Final = 2**_BITS - 1
_BITS_PER_BYTE: Final = 8
# All are odd: multiplying by an odd number maps no two hashes to one. The seed is multiplied with the length of a key,
# so that keys which differ only in zeros at their ends have different hashes.
_SEED: Final = secrets.randbits(_BITS) | 1
_FACTOR: Final = secrets.randbits(_BITS) | 1 | 1 << (_BITS - 1)
_LAST_FACTOR: Final = secrets.randbits(_BITS) | 1 | 1 << (_BITS - 1)
# The upper half is what depends on all bits below it.
_FOLD_BITS: Final = _BITS // 2
# Up to so many keys, a loop over them is faster than setting up operations on arrays.
_FEW_KEYS: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class HashedKeys:
    """Keys, and the hash of each of them."""

    keys: EncodedRows
    hashes: UInt64Array

    @classmethod
    def of(cls, keys: EncodedRows) -> HashedKeys:
        return cls(keys, _hashes(keys))

    @classmethod
    def from_list(cls, keys: list[bytes]) -> HashedKeys:
        return cls.of(EncodedRows.from_list(keys))

    def __len__(self) -> int:
        return len(self.hashes)

    def some(self, indexes: Int64Array | slice) -> HashedKeys:
        """Return the keys at some indexes, in their order."""
        return HashedKeys(self.keys.some(indexes), self.hashes[indexes])


def hash_of(key: bytes) -> int:
    """Return the hash of one key, the same as among many."""
    result = (len(key) + 1) * _SEED & _MASK
    for start in range(0, len(key), WORD_BYTES):
        result = (result ^ int.from_bytes(key[start : start + WORD_BYTES], "little")) * _FACTOR & _MASK
        result ^= result >> _FOLD_BITS
    return result * _LAST_FACTOR & _MASK


def are_equal(some: EncodedRows, others: EncodedRows) -> BoolArray:
    """Compare row by row: whether both have the same bytes."""
    if len(some) <= _FEW_KEYS:
        return np.array([row == other for row, other in zip(some.to_list(), others.to_list(), strict=True)], np.bool_)
    lengths = some.lengths
    is_equal: BoolArray = lengths == others.lengths
    common_words = _word_count(int(lengths.min()))
    for index in range(common_words):
        is_equal &= row_words(some, index) == row_words(others, index)
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
    data = rows.data if len(rows.data) >= WORD_BYTES else np.concatenate((rows.data, np.zeros(WORD_BYTES, np.uint8)))
    positions = rows.starts + index * WORD_BYTES
    words = read_words(data, positions if not index else np.minimum(positions, rows.ends))
    missing_bytes = WORD_BYTES - np.clip(rows.ends - positions, 0, WORD_BYTES)
    # Shifting by the whole 64 bits gives zero in numpy.
    foreign_bits = (missing_bytes * _BITS_PER_BYTE).astype(np.uint64)
    words <<= foreign_bits
    words >>= foreign_bits
    return words


def _hashes(keys: EncodedRows) -> UInt64Array:
    if len(keys) <= _FEW_KEYS:
        return np.array([hash_of(key) for key in keys.to_list()], np.uint64)
    lengths = keys.lengths
    hashes = (lengths + 1).astype(np.uint64)
    hashes *= np.uint64(_SEED)
    common_words = _word_count(int(lengths.min()))
    for index in range(common_words):
        hashes = _with_word(hashes, row_words(keys, index))
    # Fewer and fewer keys have further words. The last few keys are hashed one by one, however long they are.
    index, numbers = common_words, np.flatnonzero(lengths > common_words * WORD_BYTES)
    while len(numbers) > _FEW_KEYS:
        hashes[numbers] = _with_word(hashes[numbers], row_words(keys.some(numbers), index))
        index += 1
        numbers = numbers[lengths[numbers] > index * WORD_BYTES]
    hashes *= np.uint64(_LAST_FACTOR)
    for number in numbers.tolist():
        hashes[number] = hash_of(keys.row(number))
    return hashes


def _with_word(hashes: UInt64Array, words: UInt64Array) -> UInt64Array:
    words ^= hashes
    words *= np.uint64(_FACTOR)
    words ^= words >> np.uint64(_FOLD_BITS)
    return words


def _word_count(length: int) -> int:
    return -(-length // WORD_BYTES)
