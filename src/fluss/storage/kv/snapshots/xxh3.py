"""XXH3, 64 bits, without a seed: the checksum of RocksDB's blocks, of many at once.

Inputs of more than 240 bytes are hashed together, column by column: piece ``n`` of 1024 bytes of all of them is a step
of numpy. So a piece of a file with hundreds of blocks costs a few dozen calls. Shorter ones, of which a file has a
handful, are hashed one by one, with Python's integers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from fluss.buffers import UInt8Array

_UInt64Array = npt.NDArray[np.uint64]

_MASK: Final = 2**64 - 1
_PRIME32_1, _PRIME32_2, _PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME64_1, _PRIME64_2, _PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME64_4, _PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_PRIME_MX1, _PRIME_MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_LONG_BYTES: Final = 241
_BLOCK_BYTES: Final = 1024
_STRIPE_BYTES: Final = 64
_STRIPES_PER_BLOCK: Final = _BLOCK_BYTES // _STRIPE_BYTES
_LANES: Final = 8
_INITIAL: Final = np.array(
    [_PRIME32_3, _PRIME64_1, _PRIME64_2, _PRIME64_3, _PRIME64_4, _PRIME32_2, _PRIME64_5, _PRIME32_1], np.uint64
)
# Neighbouring lanes get each other's data.
_SWAPPED: Final = np.arange(_LANES) ^ 1
_LOW: Final = np.uint64(0xFFFFFFFF)
_32: Final = np.uint64(32)
_47: Final = np.uint64(47)


def _secret_lanes(offset: int) -> _UInt64Array:
    return np.frombuffer(_SECRET, "<u8", _LANES, offset)


_STRIPE_SECRETS: Final = np.stack([_secret_lanes(8 * stripe) for stripe in range(_STRIPES_PER_BLOCK)])
_SCRAMBLE_SECRET: Final = _secret_lanes(len(_SECRET) - _STRIPE_BYTES)
_LAST_SECRET: Final = _secret_lanes(len(_SECRET) - _STRIPE_BYTES - 7)
_MERGE_SECRET: Final = [int(number) for number in _secret_lanes(11)]


def xxh3_64(blocks: Sequence[bytes | memoryview]) -> list[int]:
    """Return the hash of each block."""
    hashes = [0] * len(blocks)
    long = [number for number, block in enumerate(blocks) if len(block) >= _LONG_BYTES]
    # Those of about the same length together, so that little of the table below is empty.
    long.sort(key=lambda number: len(blocks[number]))
    first = 0
    while first < len(long):
        last = first
        while last < len(long) and len(blocks[long[last]]) <= 2 * len(blocks[long[first]]):
            last += 1
        group = long[first:last]
        for number, value in zip(group, _long_hashes([blocks[number] for number in group]), strict=True):
            hashes[number] = value
        first = last
    for number, block in enumerate(blocks):
        if len(block) < _LONG_BYTES:
            hashes[number] = _short_hash(bytes(block))
    return hashes


# Long inputs


def _long_hashes(blocks: Sequence[bytes | memoryview]) -> list[int]:
    lengths = np.array([len(block) for block in blocks], np.int64)
    table, ends = _table(blocks, int(lengths.max()))
    sums = np.tile(_INITIAL, (len(blocks), 1))
    # Behind its last byte minus one, a block has whole pieces, then whole stripes, then the last stripe.
    pieces, rest = np.divmod(lengths - 1, _BLOCK_BYTES)
    stripes = rest // _STRIPE_BYTES
    for piece in range(int(pieces.max()) + 1):
        data = table[:, piece * _BLOCK_BYTES : (piece + 1) * _BLOCK_BYTES].view("<u8")
        data = data.reshape(len(blocks), _STRIPES_PER_BLOCK, _LANES)
        counts = np.where(pieces > piece, _STRIPES_PER_BLOCK, np.where(pieces == piece, stripes, 0))
        is_used = np.arange(_STRIPES_PER_BLOCK) < counts[:, None]
        sums += _accumulated(data, _STRIPE_SECRETS, is_used)
        scrambled = (sums ^ (sums >> _47) ^ _SCRAMBLE_SECRET) * np.uint64(_PRIME32_1)
        sums = np.where((pieces > piece)[:, None], scrambled, sums)
    last = ends.view("<u8").reshape(len(blocks), 1, _LANES)
    sums += _accumulated(last, _LAST_SECRET[None], np.ones((len(blocks), 1), np.bool_))
    return [_merged(row, len(block)) for row, block in zip(sums.tolist(), blocks, strict=True)]


def _table(blocks: Sequence[bytes | memoryview], length_max: int) -> tuple[UInt8Array, UInt8Array]:
    """Return the blocks as rows of one table, with zeros behind them, and the last stripe of each."""
    width = -(-length_max // _BLOCK_BYTES) * _BLOCK_BYTES
    table = np.zeros((len(blocks), width), np.uint8)
    ends = np.empty((len(blocks), _STRIPE_BYTES), np.uint8)
    for row, block in enumerate(blocks):
        data = np.frombuffer(block, np.uint8)
        table[row, : len(data)] = data
        ends[row] = data[-_STRIPE_BYTES:]
    return table, ends


def _accumulated(data: _UInt64Array, secrets: _UInt64Array, is_used: npt.NDArray[np.bool_]) -> _UInt64Array:
    """Return what the used stripes of each row add to its lanes."""
    keyed = data ^ secrets
    products = (keyed & _LOW) * (keyed >> _32) + data[:, :, _SWAPPED]
    added: _UInt64Array = (products * is_used[:, :, None]).sum(axis=1, dtype=np.uint64)
    return added


def _merged(lanes: list[int], length: int) -> int:
    value = length * _PRIME64_1
    for lane in range(0, _LANES, 2):
        value += _folded(lanes[lane] ^ _MERGE_SECRET[lane], lanes[lane + 1] ^ _MERGE_SECRET[lane + 1])
    return _avalanche(value & _MASK)


# Short inputs


def _short_hash(data: bytes) -> int:
    length = len(data)
    if length > 128:
        return _hash_129_to_240(data)
    if length > 16:
        return _hash_17_to_128(data)
    if length > 8:
        low = _read64(data, 0) ^ _read64(_SECRET, 24) ^ _read64(_SECRET, 32)
        high = _read64(data, length - 8) ^ _read64(_SECRET, 40) ^ _read64(_SECRET, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche((length + swapped + high + _folded(low, high)) & _MASK)
    if length > 3:
        joined = (_read32(data, length - 4) + (_read32(data, 0) << 32)) & _MASK
        value = joined ^ _read64(_SECRET, 8) ^ _read64(_SECRET, 16)
        value ^= _rotated(value, 49) ^ _rotated(value, 24)
        value = value * _PRIME_MX2 & _MASK
        value ^= (value >> 35) + length
        value = value * _PRIME_MX2 & _MASK
        return value ^ value >> 28
    if length:
        joined = data[0] << 16 | data[length >> 1] << 24 | data[-1] | length << 8
        return _avalanche64(joined ^ _read32(_SECRET, 0) ^ _read32(_SECRET, 4))
    return _avalanche64(_read64(_SECRET, 56) ^ _read64(_SECRET, 64))


def _hash_17_to_128(data: bytes) -> int:
    length = len(data)
    value = length * _PRIME64_1
    for step in range((length - 1) // 32, -1, -1):
        value += _mixed(data, 16 * step, 32 * step)
        value += _mixed(data, length - 16 * (step + 1), 32 * step + 16)
    return _avalanche(value & _MASK)


def _hash_129_to_240(data: bytes) -> int:
    length = len(data)
    value = length * _PRIME64_1
    for step in range(8):
        value += _mixed(data, 16 * step, 16 * step)
    value = _avalanche(value & _MASK)
    for step in range(8, length // 16):
        value += _mixed(data, 16 * step, 16 * (step - 8) + 3)
    value += _mixed(data, length - 16, 136 - 17)
    return _avalanche(value & _MASK)


def _mixed(data: bytes, at: int, secret_at: int) -> int:
    return _folded(
        _read64(data, at) ^ _read64(_SECRET, secret_at), _read64(data, at + 8) ^ _read64(_SECRET, secret_at + 8)
    )


# Parts of both


def _folded(a: int, b: int) -> int:
    product = a * b
    return (product ^ product >> 64) & _MASK


def _avalanche(value: int) -> int:
    value ^= value >> 37
    value = value * _PRIME_MX1 & _MASK
    return value ^ value >> 32


def _avalanche64(value: int) -> int:
    value ^= value >> 33
    value = value * _PRIME64_2 & _MASK
    value ^= value >> 29
    value = value * _PRIME64_3 & _MASK
    return value ^ value >> 32


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _read64(data: bytes, at: int) -> int:
    number: int = struct.unpack_from("<Q", data, at)[0]
    return number


def _read32(data: bytes, at: int) -> int:
    number: int = struct.unpack_from("<I", data, at)[0]
    return number
