"""Damage: ways to turn a valid input into an invalid one, all from one seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

# Values that lengths, counts and offsets break on: zero, signs, powers of two, and just beside them.
_INTERESTING = [0, 1, 2, 3, 7, 8, 16, 63, 64, 127, 128, 255, 256, 1024, 4096, 32767, 32768, 65535, 65536]
_INTERESTING += [2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2, 2**64 - 8, 2**32 - 12]
_FORMATS = ["<B", "<H", "<I", "<Q", ">H", ">I", ">Q"]


def damaged(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return one input: usually a valid one with a few small injuries, sometimes pure noise."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(200))
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(_INJURIES)(rng, data, seeds)
    return bytes(data)


def _flip_bit(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)))


def _overwrite_integer(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    form = rng.choice(_FORMATS)
    width = struct.calcsize(form)
    if len(data) >= width:
        value = rng.choice(_INTERESTING) & (2 ** (8 * width) - 1)
        struct.pack_into(form, data, rng.randrange(len(data) - width + 1), value)


def _nudge_integer(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """Change a number by a little: the lies that pass the coarse checks."""
    form = rng.choice(_FORMATS)
    width = struct.calcsize(form)
    if len(data) >= width:
        position = rng.randrange(len(data) - width + 1)
        (value,) = struct.unpack_from(form, data, position)
        struct.pack_into(form, data, position, (value + rng.randrange(-9, 10)) & (2 ** (8 * width) - 1))


def _cut_end(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _cut_middle(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.randrange(1, 17)]


def _insert_noise(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    position = rng.randrange(len(data) + 1)
    data[position:position] = rng.randbytes(rng.randrange(1, 17))


def _repeat_slice(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    position = rng.randrange(len(data) + 1)
    data[position:position] = data[start : start + rng.randrange(1, 65)]


def _splice_other(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = rng.choice(seeds)
    start = rng.randrange(len(other) + 1)
    position = rng.randrange(len(data) + 1)
    piece = other[start : start + rng.randrange(1, 129)]
    data[position : position + len(piece)] = piece


def _endless_varint(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    position = rng.randrange(len(data) + 1)
    data[position : position + 12] = b"\xff" * rng.randrange(4, 13)


_INJURIES = [
    _flip_bit,
    _set_byte,
    _overwrite_integer,
    _overwrite_integer,
    _nudge_integer,
    _cut_end,
    _cut_middle,
    _insert_noise,
    _repeat_slice,
    _splice_other,
    _endless_varint,
]
