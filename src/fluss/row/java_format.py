"""Values as Java's ``toString`` formats them, where that is part of a key or of a partition name.

Numbers: at least one digit on each side of the point, as few digits as identify the number, and an exponent outside
0.001 to 10 million (``1.0E10``, ``5.73``, ``1.0E-5``). This is what Java 19 and later print; older versions print more
digits than needed for a few numbers.
"""

from __future__ import annotations

import math

import numpy as np

from fluss.row.values import DAY_MS, NANOS_PER_MILLI, Timestamp

# Powers of ten within which numbers are written without an exponent.
_PLAIN_EXPONENT_MIN, _PLAIN_EXPONENT_MAX = -3, 6


def format_float(value: float, *, bits: int) -> str:
    """Format a FLOAT (32 bits) or a DOUBLE (64 bits)."""
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if math.isinf(value):
        return f"{sign}Infinity"
    if value == 0:
        return f"{sign}0.0"
    digits, exponent = _shortest_digits(abs(value), bits)
    if not _PLAIN_EXPONENT_MIN <= exponent <= _PLAIN_EXPONENT_MAX:
        return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return f"{sign}{whole}.{fraction or '0'}"


def _shortest_digits(value: float, bits: int) -> tuple[str, int]:
    """Return the significant digits of a positive number, and the power of ten of the first one."""
    number = np.float32(value) if bits == 32 else np.float64(value)
    digits, exponent = _digits_of(np.format_float_scientific(number, trim="-"))
    if len(digits) > 1:
        return digits, exponent
    # Java writes two digits at least, so it takes the nearer 4.9E-324 where 5E-324 would do.
    two_digits = f"{float(number):.1e}"
    return _digits_of(two_digits) if type(number)(two_digits) == number else (digits, exponent)


def _digits_of(scientific: str) -> tuple[str, int]:
    mantissa, exponent = scientific.split("e")
    digits = mantissa.replace(".", "").rstrip("0")
    return digits, int(exponent)


def format_date_time(value: Timestamp) -> str:
    """Format a TIMESTAMP: ``2024-01-15T08:30``, with seconds and digits of the second in threes as far as needed."""
    date, (hour, minute, second), nanos = _split(value)
    text = f"{date}T{hour:02d}:{minute:02d}"
    return text if second == nanos == 0 else f"{text}:{second:02d}{_fraction_in_threes(nanos)}"


def format_instant(value: Timestamp) -> str:
    """Format a TIMESTAMP_LTZ: ``2024-01-15T08:30:00Z``, with digits of the second in threes as far as needed."""
    date, (hour, minute, second), nanos = _split(value)
    return f"{date}T{hour:02d}:{minute:02d}:{second:02d}{_fraction_in_threes(nanos)}Z"


def civil_date(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a number of days since 1970-01-01. Year 0 is the one before year 1."""
    day = np.datetime64(days, "D")
    month = day.astype("datetime64[M]")
    months = int(month.astype(np.int64))
    return 1970 + months // 12, months % 12 + 1, int((day - month.astype("datetime64[D]")).astype(np.int64)) + 1


def time_of_day(millis: int) -> tuple[int, int, int]:
    """Return hour, minute and second."""
    minutes, second = divmod(millis // 1000, 60)
    return minutes // 60, minutes % 60, second


def _split(value: Timestamp) -> tuple[str, tuple[int, int, int], int]:
    """Return the date as text, the time, and the nanoseconds of the second."""
    days, millis = divmod(value.millis, DAY_MS)
    year, month, day = civil_date(days)
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    nanos = millis % 1000 * NANOS_PER_MILLI + value.nanos
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}", time_of_day(millis), nanos


def _fraction_in_threes(nanos: int) -> str:
    if nanos == 0:
        return ""
    digits = f"{nanos:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f".{digits}"
