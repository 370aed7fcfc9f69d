"""Hashes of encoded rows, all rows of a batch at once, and rows counted by their hashes.

The bytes of a row are read as little-endian words, the last one filled up with zeros. Every word is mixed with its
place and a seed, the mixed words of a row are added up, and the sum is mixed with the length. Mixing is the
finalizer of splitmix64, a bijection in which every bit of the input changes half of the bits of the output.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from fluss.row.encoded import EncodedRows, offsets_of, unaligned

UInt64Array: TypeAlias = npt.NDArray[np.uint64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
# Two hashes of every row.
Hashes: TypeAlias = tuple[UInt64Array, UInt64Array]

_PLACE: Final = np.uint64(0x9E37_79B9_7F4A_7C15)
_LENGTH: Final = np.uint64(0xD6E8_FEB8_6659_FD93)
_M1, _M2 = np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB)
_WORD_BYTES: Final = 8


def row_hashes(rows: EncodedRows, seed: int) -> UInt64Array:
    """Return a 64-bit hash of the bytes of every row."""
    if not len(rows):
        return np.empty(0, np.uint64)
    lengths = rows.lengths
    # One word more than there are whole ones, for what is left; it may be nothing.
    word_counts = lengths // _WORD_BYTES + 1
    firsts = offsets_of(word_counts)
    places = np.arange(int(firsts[-1])) - np.repeat(firsts[:-1], word_counts)
    # Words may be read beyond the end of the data; those bytes do not count.
    data = np.concatenate((rows.data, np.zeros(_WORD_BYTES, np.uint8)))
    words = unaligned(data, "<u8")[np.repeat(rows.starts, word_counts) + _WORD_BYTES * places]
    tail_bits = (lengths % _WORD_BYTES * 8).astype(np.uint64)
    words[firsts[1:] - 1] &= (np.uint64(1) << tail_bits) - np.uint64(1)
    words += (places.astype(np.uint64) + np.uint64(1)) * _PLACE + np.uint64(seed)
    sums: UInt64Array = np.add.reduceat(_mixed(words), firsts[:-1])
    return _mixed(sums + lengths.astype(np.uint64) * _LENGTH)


def _mixed(words: UInt64Array) -> UInt64Array:
    words = (words ^ (words >> np.uint64(30))) * _M1
    words = (words ^ (words >> np.uint64(27))) * _M2
    return words ^ (words >> np.uint64(31))


class RowCounts:
    """How often rows occur, by two hashes of 64 bits with seeds of the caller: 16 bytes per row that was added.

    First rows are added, then others are subtracted. Two different rows that share one of the hashes are told apart by
    the other; that two rows share both is not to be expected.
    """

    def __init__(self, seed: int) -> None:
        self._seeds = seed, seed ^ 0x5DEE_CE66_D1CE_4E5B
        self._added: list[Hashes] = []
        self._hashes = self._checks = np.empty(0, np.uint64)
        self._counts = np.empty(0, np.int64)
        # Rows that were added and not subtracted yet.
        self.count = 0

    def add(self, rows: EncodedRows) -> None:
        """Count rows. Not to be called after ``subtract``."""
        self.add_hashes(self._both(rows))

    def add_hashes(self, hashes: Hashes) -> None:
        """Count rows that were added elsewhere, with the same seed."""
        self._added.append(hashes)
        self.count += len(hashes[0])

    def hashes(self) -> Hashes:
        """Return the hashes of the rows that were added."""
        return (
            np.concatenate([np.empty(0, np.uint64), *(hashes for hashes, _ in self._added)]),
            np.concatenate([np.empty(0, np.uint64), *(checks for _, checks in self._added)]),
        )

    def _both(self, rows: EncodedRows) -> Hashes:
        return row_hashes(rows, self._seeds[0]), row_hashes(rows, self._seeds[1])

    def subtract(self, rows: EncodedRows) -> BoolArray:
        """Say which of these rows are among those that are left, and count them out; of equal rows the first."""
        self._merge_added()
        if not self.count or not len(rows):
            return np.zeros(len(rows), np.bool_)
        hashes, checks = self._both(rows)
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        is_known = (self._hashes[places] == hashes) & (self._checks[places] == checks)
        known = np.flatnonzero(is_known)
        # Sort the rows by their place, then number each of them among its equals.
        order = known[np.argsort(places[known], kind="stable")]
        at = places[order]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = at[1:] != at[:-1]
        starts = np.flatnonzero(is_first)
        numbers = np.arange(len(order)) - np.repeat(starts, np.diff([*starts.tolist(), len(order)]))
        taken = order[numbers < self._counts[at]]
        np.subtract.at(self._counts, places[taken], 1)
        self.count -= len(taken)
        is_taken = np.zeros(len(rows), np.bool_)
        is_taken[taken] = True
        return is_taken

    def _merge_added(self) -> None:
        if not self._added:
            return
        hashes, checks = self.hashes()
        self._added = []
        order = np.lexsort((checks, hashes))
        hashes, checks = hashes[order], checks[order]
        is_first = np.ones(len(hashes), np.bool_)
        is_first[1:] = (hashes[1:] != hashes[:-1]) | (checks[1:] != checks[:-1])
        firsts = np.flatnonzero(is_first)
        self._hashes, self._checks = hashes[firsts], checks[firsts]
        self._counts = np.diff(np.append(firsts, len(hashes)))
