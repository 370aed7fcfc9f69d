"""Variable-length integers: seven bits per byte, least significant first, bit 7 set on every byte but the last.

The number is taken as unsigned, two's complement: there is no zig-zag, so a negative int32 always takes 5 bytes and a
negative int64 always 10.

    300          ac 02
    -1 (32 bit)  ff ff ff ff 0f
    -1 (64 bit)  ff ff ff ff ff ff ff ff ff 01

A decoder takes groups of zeros at the end (``80 00`` is 0), as other clients do, but no more bytes than the width
needs and no bits beyond it.

Single numbers come first, then all numbers of a column at once. Columns are written byte by byte: the first byte of
all rows, the second byte of the rows that have one, and so on. Reading takes the eight bytes at each position as one
word, finds the first byte without the continuation bit, and pushes the groups of seven bits together; only varints of
nine and ten bytes need a second look.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fluss.buffers import BytesLike, Int64Array, UInt8Array
from fluss.errors import CorruptRecordError, FlussError
from fluss.row.encoded import unaligned

UInt64Array: TypeAlias = npt.NDArray[np.uint64]
UnsignedArray: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]

VARINT32_BYTES_MAX = 5
VARINT64_BYTES_MAX = 10
WORD_BYTES = 8
_CONTINUE = 0x80
_CONTINUE_ALL = np.uint64(0x8080_8080_8080_8080)
_GROUPS_ALL = np.uint64(0x7F7F_7F7F_7F7F_7F7F)
_ONE = np.uint64(1)
_SEVEN = np.uint8(7)
# Groups of 7, then 14, then 28 bits lie in lanes of 8, 16 and 32 bits; each step joins two neighbours.
_JOIN_STEPS = (
    (np.uint64(0x007F_007F_007F_007F), np.uint64(0x7F00_7F00_7F00_7F00), np.uint64(1)),
    (np.uint64(0x0000_3FFF_0000_3FFF), np.uint64(0x3FFF_0000_3FFF_0000), np.uint64(2)),
    (np.uint64(0x0000_0000_0FFF_FFFF), np.uint64(0x0FFF_FFFF_0000_0000), np.uint64(4)),
)


def encode_varint32(value: int) -> bytes:
    """Encode a signed 32-bit number."""
    return _encode(value, 32)


def encode_varint64(value: int) -> bytes:
    """Encode a signed 64-bit number."""
    return _encode(value, 64)


def decode_varint32(data: BytesLike, position: int = 0) -> tuple[int, int]:
    """Decode the signed 32-bit number at ``position``; return it and the position behind it."""
    return _decode(data, position, 32, VARINT32_BYTES_MAX)


def decode_varint64(data: BytesLike, position: int = 0) -> tuple[int, int]:
    """Decode the signed 64-bit number at ``position``; return it and the position behind it."""
    return _decode(data, position, 64, VARINT64_BYTES_MAX)


def _encode(value: int, bits: int) -> bytes:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise FlussError(f"The number {value} does not fit {bits} bits")
    rest = value & ((1 << bits) - 1)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _decode(data: BytesLike, position: int, bits: int, bytes_max: int) -> tuple[int, int]:
    number = 0
    available = data[position : position + bytes_max]
    for index, byte in enumerate(available):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if number >> bits:
                raise CorruptRecordError(f"The varint at byte {position} has bits beyond its {bits}: {number:#x}")
            sign = 1 << (bits - 1)
            return (number ^ sign) - sign, position + index + 1
    if len(available) < bytes_max:
        raise CorruptRecordError(f"The data ends inside the varint that starts at byte {position}")
    raise CorruptRecordError(f"The varint at byte {position} is longer than {bytes_max} bytes")


# Columns


def varint_lengths(values: UnsignedArray) -> UInt8Array:
    """Return how many bytes each number takes, 1 to 5 (uint32) or 10 (uint64)."""
    return count_groups(values, first_bits=7, group_bits=7)


def count_groups(values: UnsignedArray, *, first_bits: int, group_bits: int) -> UInt8Array:
    """Return how many groups of bits each number takes: at least the first, then as many more as it needs."""
    counts = np.ones(len(values), dtype=np.uint8)
    largest = int(values.max(initial=0))
    bound_bits = first_bits
    while largest >> bound_bits:
        counts += values >= 1 << bound_bits
        bound_bits += group_bits
    return counts


def write_varints(out: UInt8Array, positions: Int64Array, values: UnsignedArray, lengths: UInt8Array) -> None:
    """Write each number at its position. The lengths come from ``varint_lengths``; a length of 0 writes nothing."""
    longest = int(lengths.max(initial=0))
    all_have = int(lengths.min(initial=longest))
    for index in range(longest):
        if index >= all_have:
            rows = np.flatnonzero(lengths > index)
            positions, values, lengths = positions[rows], values[rows], lengths[rows]
            all_have = int(lengths.min())
        groups = values.astype(np.uint8)
        if index + 1 < all_have:
            groups |= _CONTINUE
        else:
            groups &= 0x7F
            groups |= (lengths > index + 1).view(np.uint8) << 7
        out[positions + index] = groups
        values = values >> _SEVEN


def read_words(data: UInt8Array, positions: Int64Array) -> UInt64Array:
    """Read the eight bytes from each position on, little-endian; bytes behind the end of the data read as zero.

    ``data`` has at least eight bytes, and no position lies behind its end.
    """
    position_last = len(data) - WORD_BYTES
    words: UInt64Array
    if int(positions.max(initial=0)) <= position_last:
        words = unaligned(data, "<u8")[positions]
        return words
    clipped = np.minimum(positions, position_last)
    words = unaligned(data, "<u8")[clipped]
    # Shifting by the whole 64 bits gives zero in numpy.
    words >>= ((positions - clipped) << 3).view(np.uint64)
    return words


def read_varints(data: UInt8Array, positions: Int64Array, *, bits: int) -> tuple[UInt64Array, UInt8Array]:
    """Read the number at each position, and how many bytes it takes.

    The length is 0 where no varint of ``bits`` (32 or 64) bits is: more than 5 or 10 bytes, or bits beyond the width.
    The bytes may lie behind the end of a row: the caller compares the lengths with what the row has.
    ``data`` has at least eight bytes, and no position lies behind its end.
    """
    first = data.take(positions, mode="clip")
    if int(first.max(initial=0)) < _CONTINUE:
        return first.astype(np.uint64), np.ones(len(positions), dtype=np.uint8)
    words = read_words(data, positions)
    last_bytes = ~words & _CONTINUE_ALL
    # The lowest set bit marks the byte that ends the varint; below it lie 8 * length - 1 bits.
    below = (last_bytes & (~last_bytes + _ONE)) - _ONE
    lengths = (np.bitwise_count(below) + np.uint8(1)) >> np.uint8(3)
    values = _joined_groups(words & below & _GROUPS_ALL, int(lengths.max()))
    if bits == 32:
        lengths[(lengths > 5) | (values >= 1 << 32)] = 0
    elif not last_bytes.all():
        _read_long(data, positions, values, lengths, np.flatnonzero(last_bytes == 0))
    return values, lengths


def _joined_groups(groups: UInt64Array, length_max: int) -> UInt64Array:
    """Push up to eight groups of seven bits together, in place."""
    lane_bytes = 1
    for low, high, shift in _JOIN_STEPS:
        if length_max <= lane_bytes:
            break
        upper = groups & high
        upper >>= shift
        groups &= low
        groups |= upper
        lane_bytes *= 2
    return groups


def _read_long(
    data: UInt8Array, positions: Int64Array, values: UInt64Array, lengths: UInt8Array, rows: npt.NDArray[np.intp]
) -> None:
    """Complete varints of nine and ten bytes, in place. The first eight bytes are already in ``values``."""
    # Bytes behind the end of the data read as its last byte: such a varint is too long for its row in any case.
    ninth_at = positions[rows] + WORD_BYTES
    ninth = data.take(ninth_at, mode="clip").astype(np.uint64)
    tenth = data.take(ninth_at + 1, mode="clip").astype(np.uint64)
    goes_on = ninth >= _CONTINUE
    values[rows] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
    values[rows] |= np.where(goes_on, tenth, 0) << np.uint64(63)
    lengths[rows] = np.where(goes_on, np.where(tenth > 1, 0, 10), 9)
