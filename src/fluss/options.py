"""Options of clients, servers, tables and Spark: what each of them says about itself, and how values are written.

An ``Option`` has a key, a type, a default, bounds and a meaning. The tables of options are made of it: ``config`` has
those of clients, ``schema.table_options`` those of tables, ``server.server_options`` those of servers, and
``fluss.spark`` its own. Values are written as texts:

| kind | written as | examples |
|---|---|---|
| boolean | ``true`` or ``false``, any case | ``true``, ``FALSE`` |
| integer | decimal digits with an optional sign | ``3``, ``-1`` |
| duration | digits and a unit from nanoseconds to days | ``7 d``, ``0ms``, ``10 min`` |
| memory size | digits and a unit, powers of 1024 | ``64 mb``, ``1g`` |
| choice | one of a few words, any case | ``ARROW``, ``zstd`` |
| time zone | a name of the zone database, or an offset | ``Asia/Shanghai``, ``UTC``, ``+08:00`` |

A unit is never optional: ``7`` alone says too little. Spark, tables and servers take booleans in any case, clients do
not.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, timedelta, timezone, tzinfo
from enum import StrEnum
from functools import cached_property
from typing import ClassVar, Final, Generic, TypeVar, cast
from zoneinfo import ZoneInfo

from fluss.errors import ErrorCode, FlussError
from fluss.integers import INT32_MAX, INT64_MAX

T = TypeVar("T")
EnumT = TypeVar("EnumT", bound=StrEnum)
QuotaT = TypeVar("QuotaT", int, float)

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

# What is shown instead of a secret.
HIDDEN: Final = "***"
_SECRET_WORDS: Final = r"passw|pwd|passphrase|secret|credential|jaas|token|key|authorization|signature|\bsas\b|cookie"
_SECRET_KEY: Final = re.compile(rf"{_SECRET_WORDS}|basic.?auth|connection.?string", re.IGNORECASE)
# Up to the last @ of the host: passwords may have some, too.
_ADDRESS_PASSWORD: Final = re.compile(r"(://[^\s/:@]*:)[^\s/]+@")
# As in the addresses of databases and of signed files, and in connection strings.
_SECRET_PARAMETER: Final = re.compile(
    rf"((?:^|[?&;])[^=?&;\s]*(?:{_SECRET_WORDS}|\bsig\b)[^=?&;\s]*=)[^&;\s]+", re.IGNORECASE
)
_CLOSE_KEY_CHARS_MAX: Final = 100
# Leading zeros are set apart, so that the digits that count can be counted.
_INTEGER: Final = re.compile(r"(?P<sign>[+-]?)(?=[0-9])0*+(?P<digits>[0-9]*+)")
# More significant digits than any option has; longer numbers are out of range without looking.
_DIGITS_MAX: Final = 20
_QUANTITY: Final = re.compile(r"([0-9]{1,30})\s*(\S+)")
_ZONE_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?")


@dataclass(frozen=True, slots=True)
class ValueType(Generic[T]):
    """A kind of value: what to write, how it is read, and the unit of the numbers that come out.

    ``read`` raises ValueError for a text that is no such value, or a FlussError that says more.
    """

    expected: str
    read: Callable[[str], T]
    unit: str = ""


class Option(Generic[T]):
    """One option: key, type, default, bounds and meaning.

    The default is a value, or the text that a user would write for it. ``lowest`` and ``highest`` are the bounds of
    numbers, in the unit of the value. A ``secret`` is never shown. ``error_code`` is that of errors about values.
    """

    # So much of a refused text is shown.
    shown_chars_max: ClassVar[int] = 100

    def __init__(
        self,
        key: str,
        value_type: ValueType[T],
        default: T | str,
        doc: str,
        *,
        lowest: float | None = None,
        highest: float | None = None,
        secret: bool = False,
        error_code: ErrorCode | None = None,
    ) -> None:
        self.key = key
        self.value_type = value_type
        self.default_text = "" if default is None else format_value(default)
        self.doc = doc
        self.lowest = lowest
        self.highest = highest
        self.secret = secret
        self.error_code = error_code
        self._default = default
        self.__doc__ = doc

    @cached_property
    def default(self) -> T:
        """The value that counts unless one is given."""
        return self.value_type.read(self._default) if isinstance(self._default, str) else self._default

    def parse(self, text: str) -> T:
        """Read the value; a text that is none is a FlussError."""
        try:
            return self.read(text)
        except FlussError as error:
            problem = error.message
        except ValueError as error:
            problem = str(error)
        raise FlussError(f"Invalid value '{self.shown(text)}' for '{self.key}': {problem}", self.error_code)

    def read(self, text: str) -> T:
        """Read the value; a text that is none is a FlussError or ValueError that says why, and not of which option."""
        try:
            value = self.value_type.read(text)
        except ValueError:
            raise ValueError(f"expected {self.value_type.expected}") from None
        # Only numbers have bounds.
        if self.lowest is not None and cast(float, value) < self.lowest:
            raise ValueError(self._below_lowest())
        if self.highest is not None and cast(float, value) > self.highest:
            raise ValueError(self._above_highest())
        return value

    def shown(self, text: str) -> str:
        """Return a text as it may stand in a message."""
        if self.secret:
            return HIDDEN
        return text if len(text) <= self.shown_chars_max else text[: self.shown_chars_max] + "..."

    def _below_lowest(self) -> str:
        return f"it must be at least {self.lowest}"

    def _above_highest(self) -> str:
        return f"it must be at most {self.highest}"


def is_secret_key(key: str) -> bool:
    """Whether a key sounds like one whose value must not be shown, whatever it configures; names of files may be."""
    return _SECRET_KEY.search(key) is not None and not key.endswith(".file")


def without_passwords(text: str) -> str:
    """Return a text without the passwords of the addresses in it.

    As in ``https://user:password@host`` and ``jdbc:mysql://host/db?password=...``.
    """
    return _SECRET_PARAMETER.sub(rf"\1{HIDDEN}", _ADDRESS_PASSWORD.sub(rf"\1{HIDDEN}@", text))


def format_value(value: object) -> str:
    """Return the text that a user would write for a Python value."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def suggestion(key: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown key: the known one that looks most like it, if any does."""
    if len(key) > _CLOSE_KEY_CHARS_MAX:
        return ""
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _read_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def integer_between(lowest: int, highest: int, expected: str | None = None) -> ValueType[int]:
    """Return the type of integers in a range, both ends included. Without a negative end there is no minus sign."""

    def read(text: str) -> int:
        integer = _INTEGER.fullmatch(text)
        if integer is None or len(integer["digits"]) > _DIGITS_MAX or (integer["sign"] == "-" and lowest >= 0):
            raise ValueError
        number = int(f"{integer['sign']}0{integer['digits']}")
        if not lowest <= number <= highest:
            raise ValueError
        return number

    return ValueType(expected or f"an integer between {lowest} and {highest}", read)


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
INT32: Final[ValueType[int]] = integer_between(-INT32_MAX - 1, INT32_MAX, "an integer")
INT64: Final[ValueType[int]] = integer_between(-INT64_MAX - 1, INT64_MAX, "an integer")
# Milliseconds; what is shorter than one counts as nothing.
DURATION_MS: Final[ValueType[int]] = ValueType(
    "a duration with a unit, such as '7 d', '10 min' or '0ms'", _read_duration_ms, " ms"
)
MEMORY_BYTES: Final[ValueType[int]] = ValueType(
    "a memory size with a unit, such as '64 mb' or '1 gb'", _read_memory_bytes, " bytes"
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


def word_of(*words: str) -> ValueType[str]:
    """Return the type of an option whose value is one of a few words, in any case."""

    def read(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError
        return text.strip().lower()

    return ValueType(f"one of {', '.join(words)}", read)


def quotas_of(value_type: ValueType[QuotaT]) -> ValueType[dict[str, QuotaT]]:
    """Return the type of options that give some users or addresses a quota: ``alice=10mb, 10.0.0.7=1mb``."""

    def read(text: str) -> dict[str, QuotaT]:
        overrides: dict[str, QuotaT] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            # A name may be an address, and those of IPv6 hold colons.
            name, equals, value_text = (piece.strip() for piece in part.rpartition("="))
            if not (name and equals):
                raise FlussError(f"'{part}' is not of the form name=value")
            if name in overrides:
                raise FlussError(f"'{name}' occurs twice")
            try:
                value = value_type.read(value_text)
            except ValueError:
                raise FlussError(f"'{part}': expected {value_type.expected} after the '='") from None
            if value < 0:
                raise FlussError(f"'{part}': a quota is not negative; 0 is no limit")
            overrides[name] = value
        return overrides

    return ValueType(f"name={value_type.expected}, several separated by commas", read)
