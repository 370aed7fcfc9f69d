"""Ways to damage bytes, and the one promise about them: a decoder returns a value or raises the error it announces."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from fluss.errors import CorruptRecordError, FlussError

Decoder = Callable[[bytes], object]


def truncations(valid: bytes) -> Iterator[bytes]:
    """Yield every proper prefix."""
    for size in range(len(valid)):
        yield valid[:size]


def bit_flips(valid: bytes) -> Iterator[bytes]:
    """Yield the data with each of its bits flipped, eight times per byte, the lowest bit first."""
    for index in range(len(valid)):
        for bit in range(8):
            damaged = bytearray(valid)
            damaged[index] ^= 1 << bit
            yield bytes(damaged)


def injuries(valid: bytes) -> Iterator[bytes]:
    """Yield every truncation, every bit flip, one byte too many, and some noise of about the same length."""
    yield from truncations(valid)
    yield from bit_flips(valid)
    yield valid + b"\0"
    rng = random.Random(len(valid))
    for _ in range(50):
        yield rng.randbytes(rng.randrange(2 * len(valid) + 8))


def is_refused(decode: Decoder, data: bytes, error: type[FlussError] = CorruptRecordError) -> bool:
    """Return whether the data is refused with ``error`` and a sentence; any other exception fails the test."""
    reason = None
    try:
        decode(data)
    except error as refusal:
        reason = refusal.message
    assert reason != "", data.hex()
    return reason is not None


def count_refusals(
    decode: Decoder,
    valid: bytes,
    error: type[FlussError] = CorruptRecordError,
    *,
    damage: Callable[[bytes], Iterator[bytes]] = injuries,
) -> int:
    """Feed a valid input and then all its damaged forms to a decoder; return how many of those it refuses."""
    decode(valid)
    return sum(is_refused(decode, damaged, error) for damaged in damage(valid))
