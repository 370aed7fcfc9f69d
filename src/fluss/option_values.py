"""Values of options as people write them: durations, memory sizes, switches, choices, time zones.

| kind | written as | examples |
|---|---|---|
| boolean | ``true`` or ``false``, any case | ``true``, ``FALSE`` |
| integer | decimal digits with an optional sign | ``3``, ``-1`` |
| duration | digits and a unit from nanoseconds to days | ``7 d``, ``0ms``, ``10 min`` |
| memory size | digits and a unit, powers of 1024 | ``64 mb``, ``1g`` |
| choice | one of a few words, any case | ``ARROW``, ``zstd`` |
| time zone | a name of the zone database, or an offset | ``Asia/Shanghai``, ``UTC``, ``+08:00`` |

A unit is never optional: ``7`` alone says too little.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, timedelta, timezone, tzinfo
from enum import StrEnum
from typing import Final, Generic, TypeVar
from zoneinfo import ZoneInfo

from fluss.config import INT32_MAX, INT64_MAX
from fluss.errors import ErrorCode, FlussError

T = TypeVar("T")
EnumT = TypeVar("EnumT", bound=StrEnum)

_NANOS_PER_MS: Final = 1_000_000
_NANOS: Final = {
    1: ("ns", "nano", "nanos", "nanosecond", "nanoseconds"),
    1_000: ("µs", "μs", "micro", "micros", "microsecond", "microseconds"),
    _NANOS_PER_MS: ("ms", "milli", "millis", "millisecond", "milliseconds"),
    1_000 * _NANOS_PER_MS: ("s", "sec", "secs", "second", "seconds"),
    60_000 * _NANOS_PER_MS: ("m", "min", "minute", "minutes"),
    3_600_000 * _NANOS_PER_MS: ("h", "hour", "hours"),
    86_400_000 * _NANOS_PER_MS: ("d", "day", "days"),
}
_BYTES: Final = {
    1: ("b", "bytes"),
    1024: ("k", "kb", "kibibytes"),
    1024**2: ("m", "mb", "mebibytes"),
    1024**3: ("g", "gb", "gibibytes"),
    1024**4: ("t", "tb", "tebibytes"),
}
_NANOS_BY_UNIT: Final = {unit: nanos for nanos, units in _NANOS.items() for unit in units}
_BYTES_BY_UNIT: Final = {unit: count for count, units in _BYTES.items() for unit in units}

# Numbers of more digits are out of every range; they are not worth converting.
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,30}")
_QUANTITY: Final = re.compile(r"([0-9]{1,30})\s*(\S+)")
_ZONE_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?")
_SHOWN_CHARS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class ValueType(Generic[T]):
    """A kind of value: what to write, and how it is read. ``read`` raises ValueError for anything else."""

    expected: str
    read: Callable[[str], T]

    def parse(self, key: str, text: str) -> T:
        """Return the value that an option has; a text that says none is a FlussError with code 39."""
        try:
            return self.read(text)
        except ValueError:
            shown = text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."
            raise FlussError(
                f"Invalid value '{shown}' for '{key}': expected {self.expected}", ErrorCode.INVALID_CONFIG_EXCEPTION
            ) from None


def _read_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _integer_reader(lowest: int, highest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if _INTEGER.fullmatch(text) is None or not lowest <= int(text) <= highest:
            raise ValueError
        return int(text)

    return read


def _quantity(text: str, count_by_unit: dict[str, int]) -> int:
    quantity = _QUANTITY.fullmatch(text.strip())
    count = None if quantity is None else count_by_unit.get(quantity[2].lower())
    if quantity is None or count is None:
        raise ValueError
    return int(quantity[1]) * count


def _read_duration_ms(text: str) -> int:
    milliseconds = _quantity(text, _NANOS_BY_UNIT) // _NANOS_PER_MS
    if milliseconds > INT64_MAX:
        raise ValueError
    return milliseconds


def _read_memory_bytes(text: str) -> int:
    byte_count = _quantity(text, _BYTES_BY_UNIT)
    if byte_count > INT64_MAX:
        raise ValueError
    return byte_count


def _read_ratio(text: str) -> float:
    ratio = float(text)
    if not 0.0 <= ratio <= 1.0:
        raise ValueError
    return ratio


def _read_time_zone(text: str) -> tzinfo:
    offset = _ZONE_OFFSET.fullmatch(text)
    if offset is not None:
        minutes = int(offset[2]) * 60 + int(offset[3] or 0)
        if minutes > 18 * 60:
            raise ValueError
        return timezone(timedelta(minutes=-minutes if offset[1] == "-" else minutes))
    if text == "Z":
        return UTC
    try:
        return ZoneInfo(text)
    except (OSError, LookupError):
        # An unknown name is a KeyError, the name of a directory of the zone database an OSError.
        raise ValueError from None


TEXT: Final[ValueType[str]] = ValueType("text", str)
BOOLEAN: Final[ValueType[bool]] = ValueType("true or false", _read_boolean)
INT32: Final[ValueType[int]] = ValueType("an integer", _integer_reader(-INT32_MAX - 1, INT32_MAX))
INT64: Final[ValueType[int]] = ValueType("an integer", _integer_reader(-INT64_MAX - 1, INT64_MAX))
# Milliseconds; what is shorter than one counts as nothing.
DURATION_MS: Final[ValueType[int]] = ValueType(
    "a duration with a unit, such as '7 d', '10 min' or '0ms'", _read_duration_ms
)
MEMORY_BYTES: Final[ValueType[int]] = ValueType(
    "a memory size with a unit, such as '64 mb' or '1 gb'", _read_memory_bytes
)
RATIO: Final[ValueType[float]] = ValueType("a number between 0 and 1", _read_ratio)
TIME_ZONE: Final[ValueType[tzinfo]] = ValueType(
    "a time zone, such as 'Europe/Berlin', 'UTC' or '+08:00' (names need the system's zone database or 'pip install "
    "tzdata')",
    _read_time_zone,
)


def choice_of(choices: type[EnumT]) -> ValueType[EnumT]:
    """Return the type of an option whose value is one word of an enumeration, in any case."""
    by_word = {choice.value.lower(): choice for choice in choices}

    def read(text: str) -> EnumT:
        choice = by_word.get(text.lower())
        if choice is None:
            raise ValueError
        return choice

    return ValueType(f"one of {', '.join(choices)}", read)
