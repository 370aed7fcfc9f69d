"""Amounts as people read them: rows, bytes, rates, durations."""

from __future__ import annotations

from typing import Final

_SCALES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600


def format_count(count: int, noun: str) -> str:
    """Return ``1 file``, ``12,000 rows``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_scaled(amount: float) -> str:
    """Return an amount in three digits or so: ``853``, ``4.25 M``."""
    for scale, letter in _SCALES:
        if amount >= scale:
            return f"{amount / scale:.3g} {letter}" if amount < 999.5 * scale else f"{amount / scale:.0f} {letter}"
    return f"{amount:.0f}"


def format_bytes(byte_count: int) -> str:
    """Return ``12 B``, ``3.05 MB``; a megabyte is a million bytes."""
    text = format_scaled(byte_count)
    return f"{text}B" if text[-1].isalpha() else f"{text} B"


def format_rate(rows_per_second: float) -> str:
    """Return ``1.52 M rows/s``."""
    return f"{format_scaled(rows_per_second)} rows/s"


def format_duration(seconds: float) -> str:
    """Return ``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
