"""Which keys a store certainly does not have below its recent rows: most keys of a load are new.

A Bloom filter whose bits for one key lie in one word of 64 bits. RocksDB has filters, too, one per table and per piece
of it; asking all of them takes many times as long as asking this one.

It is made of parts: one that is full is left as it is, and the next one is several times as large. It lives in memory
only, and only for stores whose keys were all seen: those that were empty when they were opened.
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np

from fluss.row.arrow_arrays import BoolArray
from fluss.row.varint import UInt64Array

_BITS_PER_KEY: Final = 12
_WORD_BITS: Final = 64
_KEYS_MIN: Final = 2**17
_GROWTH: Final = 4
# Three bits of a word, by pieces of the hash that do not choose the word.
_BIT_SHIFTS: Final = (np.uint64(0), np.uint64(6), np.uint64(12))
_BIT_MASK: Final = np.uint64(_WORD_BITS - 1)
_ONE: Final = np.uint64(1)


class FilterMemory:
    """What the filters of all stores together may take. May be used from any thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_left = bytes_max
        self._lock = threading.Lock()

    def take(self, byte_count: int) -> bool:
        """Take memory if there is some."""
        with self._lock:
            if byte_count > self._bytes_left:
                return False
            self._bytes_left -= byte_count
            return True

    def give_back(self, byte_count: int) -> None:
        with self._lock:
            self._bytes_left += byte_count


class KeyFilter:
    """The keys of a store by their hashes. One thread adds at a time; any number may ask meanwhile."""

    def __init__(self, memory: FilterMemory) -> None:
        self._memory = memory
        self._parts: tuple[UInt64Array, ...] = ()
        # Keys that fit into the newest part.
        self._room = 0

    @property
    def byte_count(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def add(self, hashes: UInt64Array) -> bool:
        """Add keys; return False if there is no memory, and from then on the filter is of no use."""
        if len(hashes) > self._room and not self._grow(len(hashes)):
            return False
        self._room -= len(hashes)
        words, (places, bits) = self._parts[-1], _places_and_bits(self._parts[-1], hashes)
        while len(places):
            # Of several keys with the same word one is added; the others look again.
            words[places] |= bits
            is_missing = words[places] & bits != bits
            places, bits = places[is_missing], bits[is_missing]
        return True

    def may_have(self, hashes: UInt64Array) -> BoolArray:
        """Return which keys may have been added. All others were not."""
        result = np.zeros(len(hashes), np.bool_)
        for words in self._parts:
            places, bits = _places_and_bits(words, hashes)
            result |= words[places] & bits == bits
        return result

    def close(self) -> None:
        """Give the memory back, once. Whoever is still asking is told the truth: nothing is taken out."""
        self._memory.give_back(self.byte_count)

    def _grow(self, key_count: int) -> bool:
        keys_before = sum(len(part) for part in self._parts) * _WORD_BITS // _BITS_PER_KEY
        keys_max = max(_KEYS_MIN, 2 * key_count, (_GROWTH - 1) * keys_before)
        word_count = 1 << (keys_max * _BITS_PER_KEY // _WORD_BITS).bit_length()
        words = np.zeros(word_count, np.uint64)
        if not self._memory.take(words.nbytes):
            return False
        self._parts = *self._parts, words
        self._room = word_count * _WORD_BITS // _BITS_PER_KEY
        return True


def _places_and_bits(words: UInt64Array, hashes: UInt64Array) -> tuple[np.ndarray, UInt64Array]:
    """Return the word of each key, by the upper bits of its hash, and its bits in there, by lower ones."""
    places = (hashes >> np.uint64(_WORD_BITS + 1 - len(words).bit_length())).astype(np.int64)
    bits = np.zeros(len(hashes), np.uint64)
    for shift in _BIT_SHIFTS:
        bits |= _ONE << (hashes >> shift & _BIT_MASK)
    return places, bits
