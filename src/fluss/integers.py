"""The ranges of integers that the protocol can carry, and arguments within them."""

from __future__ import annotations

from operator import index
from typing import Final

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1


def int32(what: str, value: int) -> int:
    """Return the value as a plain int; a wrong class is a TypeError, a value out of range an OverflowError."""
    return _checked(what, value, INT32_MAX)


def int64(what: str, value: int) -> int:
    """As ``int32``, for 64 bits."""
    return _checked(what, value, INT64_MAX)


def _checked(what: str, value: int, highest: int) -> int:
    try:
        number = index(value)
    except TypeError:
        raise TypeError(f"{what} must be int, got {type(value).__name__}") from None
    if not -highest - 1 <= number <= highest:
        raise OverflowError(f"{what} must be between {-highest - 1} and {highest}, got {number}")
    return number
