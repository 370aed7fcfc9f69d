"""Unscaled decimals of a whole column as 128-bit numbers: Arrow's 16 bytes, and the short big-endian form of rows.

A column is two arrays: ``low``, the lower 64 bits (unsigned), and ``high``, the upper 64 bits (signed). In memory the
low word comes first, so Arrow's buffer is n pairs of words. A row holds the same number big-endian, in as few bytes
as keep its sign: 0 is ``00``, 128 is ``00 80``, -1 is ``ff``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fluss.buffers import Int64Array, UInt8Array
from fluss.row.varint_columns import UInt64Array, count_groups, read_words

DECIMAL_BYTES = 16
_WORD_BITS = 64


def has_digits(low: UInt64Array, high: Int64Array, precision: int) -> npt.NDArray[np.bool_]:
    """Tell for each number whether ``precision`` decimal digits are enough for it."""
    limit_high, limit_low = divmod(10**precision, 1 << _WORD_BITS)
    floor_high, floor_low = divmod(-(10**precision), 1 << _WORD_BITS)
    below = (high < limit_high) | ((high == limit_high) & (low < limit_low))
    above = (high > floor_high) | ((high == floor_high) & (low > floor_low))
    enough: npt.NDArray[np.bool_] = below & above
    return enough


def unscaled_lengths(low: UInt64Array, high: Int64Array) -> UInt8Array:
    """Return how many bytes the big-endian form of each number takes, 1 to 16."""
    # Without its sign bits a negative number needs as many bits as its complement. One bit more holds the sign.
    sign = high >> (_WORD_BITS - 1)
    low_lengths = count_groups(low ^ sign.view(np.uint64), first_bits=7, group_bits=8)
    high_bits = (high ^ sign).view(np.uint64)
    if not high_bits.any():
        return low_lengths
    high_lengths = count_groups(high_bits, first_bits=7, group_bits=8) + np.uint8(8)
    return np.where(high_bits == 0, low_lengths, high_lengths)


def write_unscaled(out: UInt8Array, positions: Int64Array, little_endian: UInt8Array, lengths: UInt8Array) -> None:
    """Write each number big-endian at its position. ``little_endian`` holds 16 bytes per number.

    The lengths come from ``unscaled_lengths``; a length of 0 writes nothing.
    """
    # Byte ``index`` of the big-endian form is the one ``index`` before the last of the little-endian form.
    sources = np.arange(len(lengths)) * DECIMAL_BYTES + lengths - 1
    longest = int(lengths.max(initial=0))
    all_have = int(lengths.min(initial=longest))
    for index in range(longest):
        if index >= all_have:
            rows = np.flatnonzero(lengths > index)
            positions, sources, lengths = positions[rows], sources[rows], lengths[rows]
            all_have = int(lengths.min())
        out[positions + index] = little_endian[sources - index]


def read_unscaled(data: UInt8Array, positions: Int64Array, lengths: Int64Array) -> tuple[UInt64Array, Int64Array]:
    """Read the big-endian numbers of 1 to 16 bytes at each position; return ``low`` and ``high``.

    ``data`` has at least eight bytes, and the caller has checked that the numbers lie inside it.
    """
    first = read_words(data, positions).byteswap().view(np.int64)
    second = read_words(data, np.minimum(positions + 8, len(data))).byteswap()
    # The two words are the number with other bytes behind it: shift those out, and the sign in.
    excess_bits = _WORD_BITS * 2 - lengths * 8
    fits_word = lengths <= 8
    low = (second >> excess_bits.view(np.uint64)) | (
        first.view(np.uint64) << (_WORD_BITS - excess_bits).view(np.uint64)
    )
    low = np.where(fits_word, (first >> (excess_bits - _WORD_BITS)).view(np.uint64), low)
    high = first >> np.where(fits_word, _WORD_BITS - 1, excess_bits)
    return low, high
