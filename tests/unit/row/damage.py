"""Ways to damage bytes, and the one promise about them: a decoder returns a value or raises a FlussError."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fluss.errors import FlussError


def truncations(data: bytes) -> Iterator[bytes]:
    """Yield every proper prefix."""
    for size in range(len(data)):
        yield data[:size]


def bit_flips(data: bytes) -> Iterator[bytes]:
    """Yield the data with each of its bits flipped."""
    for index in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[index >> 3] ^= 1 << (index & 7)
        yield bytes(damaged)


def decodes_or_refuses(decode: Callable[[bytes], Any], data: bytes) -> bool:
    """Return whether the data decodes; any exception but a FlussError passes through and fails the test."""
    try:
        decode(data)
    except FlussError:
        return False
    return True
