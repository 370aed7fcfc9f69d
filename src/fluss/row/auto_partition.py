"""Partitions made by the clock: how the time value of an auto-created partition is written.

| unit | default pattern | value at 2024-11-11 11:11 |
|---|---|---|
| YEAR | ``yyyy`` | 2024 |
| QUARTER | ``yyyyQ`` | 20244 |
| MONTH | ``yyyyMM`` | 202411 |
| DAY | ``yyyyMMdd`` | 20241111 |
| HOUR | ``yyyyMMddHH`` | 2024111111 |

The values are texts that sort like the times they stand for. Everything here is a pure function of the time that the
caller passes, which is the wall clock of the table's time zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Self

from fluss.errors import ErrorCode, FlussError
from fluss.schema.names import new_name_problem
from fluss.schema.table_options import TimeUnit

# The fields of each unit, largest first, and the letters and the width of each field in a pattern.
_FIELDS: Final = {
    TimeUnit.YEAR: ("year",),
    TimeUnit.QUARTER: ("year", "quarter"),
    TimeUnit.MONTH: ("year", "month"),
    TimeUnit.DAY: ("year", "month", "day"),
    TimeUnit.HOUR: ("year", "month", "day", "hour"),
}
_FIELD_OF_LETTER: Final = {
    **dict.fromkeys("yu", "year"),
    **dict.fromkeys("Qq", "quarter"),
    **dict.fromkeys("ML", "month"),
    "d": "day",
    "H": "hour",
}
_WIDTHS: Final = {"year": 4, "quarter": 1, "month": 2, "day": 2, "hour": 2}
_DEFAULT_PATTERNS: Final = {
    TimeUnit.YEAR: "yyyy",
    TimeUnit.QUARTER: "yyyyQ",
    TimeUnit.MONTH: "yyyyMM",
    TimeUnit.DAY: "yyyyMMdd",
    TimeUnit.HOUR: "yyyyMMddHH",
}
# A run of one letter, a quoted text ('' is a quote), or a single other character.
_TOKEN: Final = re.compile(r"([A-Za-z])\1*|'((?:[^']|'')*)'|[^A-Za-z']")
_RESERVED: Final = "[]{}#"
_SAMPLE: Final = datetime(2024, 11, 11, 11)


class _Part(NamedTuple):
    """The name of a field, or literal text."""

    text: str
    is_field: bool


@dataclass(frozen=True, slots=True)
class TimePattern:
    """How the time value of a partition is written: fields of fixed width, largest first, and literal text."""

    unit: TimeUnit
    text: str
    _parts: tuple[_Part, ...]

    @classmethod
    def of(cls, unit: TimeUnit, text: str | None = None) -> Self:
        """Read a pattern of Java's letters, such as ``yyyy-MM-dd``; None is the default of the unit.

        A pattern that does not show exactly the fields of the unit, or whose texts cannot name a partition, is a
        FlussError with code 15.
        """
        text = _DEFAULT_PATTERNS[unit] if text is None else text
        if not text.strip():
            raise _bad_pattern(unit, text, "it must not be empty")
        pattern = cls(unit, text, _parse_pattern(unit, text))
        fields = tuple(part.text for part in pattern._parts if part.is_field)
        if fields != _FIELDS[unit]:
            raise _bad_pattern(unit, text, f"it must show {', '.join(_FIELDS[unit])}, once each and in this order")
        problem = new_name_problem(pattern.format(_SAMPLE))
        if problem is not None:
            raise _bad_pattern(unit, text, f"it gives {pattern.format(_SAMPLE)!r}, no partition value: {problem}")
        return pattern

    def format(self, time: datetime) -> str:
        """Return the value of the partition to which a time belongs, by the clock of its own zone."""
        numbers = {
            "year": time.year,
            "quarter": (time.month + 2) // 3,
            "month": time.month,
            "day": time.day,
            "hour": time.hour,
        }
        return "".join(
            f"{numbers[part.text]:0{_WIDTHS[part.text]}d}" if part.is_field else part.text for part in self._parts
        )

    def parse(self, value: str) -> datetime:
        """Return the start of the time that a partition spans, without a zone; other texts have code 43."""
        expression = "".join(
            f"(?P<{part.text}>[0-9]{{{_WIDTHS[part.text]}}})" if part.is_field else re.escape(part.text)
            for part in self._parts
        )
        match = re.fullmatch(expression, value)
        numbers = {} if match is None else {name: int(digits) for name, digits in match.groupdict().items()}
        month = numbers.get("month", 3 * numbers.get("quarter", 1) - 2)
        try:
            return datetime(numbers["year"], month, numbers.get("day", 1), numbers.get("hour", 0))
        except (KeyError, ValueError):
            raise FlussError(
                f"Partition value {value!r} is not a time of the form {self.text!r} for unit {self.unit}; "
                f"a valid one is {self.format(_SAMPLE)!r}",
                ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
            ) from None


def auto_partition_value(now: datetime, offset: int, pattern: TimePattern) -> str:
    """Return the value of the partition ``offset`` units after the one of ``now``, which is in the table's zone."""
    try:
        return pattern.format(_shifted(now, offset, pattern.unit))
    except (OverflowError, ValueError):
        raise FlussError(
            f"The partition {offset} times {pattern.unit} from {now} is outside the years 1 to 9999"
        ) from None


def _shifted(time: datetime, offset: int, unit: TimeUnit) -> datetime:
    match unit:
        case TimeUnit.DAY:
            return time + timedelta(days=offset)
        case TimeUnit.HOUR if time.tzinfo is not None:
            # Hours pass on the world's clock: the local one may skip or repeat some.
            return (time.astimezone(UTC) + timedelta(hours=offset)).astimezone(time.tzinfo)
        case TimeUnit.HOUR:
            return time + timedelta(hours=offset)
    months = {TimeUnit.YEAR: 12, TimeUnit.QUARTER: 3, TimeUnit.MONTH: 1}[unit] * offset
    year, month_index = divmod(time.year * 12 + time.month - 1 + months, 12)
    return time.replace(year=year, month=month_index + 1, day=1)


def _parse_pattern(unit: TimeUnit, text: str) -> tuple[_Part, ...]:
    parts = []
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise _bad_pattern(unit, text, "a quote is not closed")
        position = token.end()
        if token[1] is not None:
            parts.append(_Part(_field_of(unit, text, token[0]), is_field=True))
        elif token[2] is not None:
            parts.append(_Part(token[2].replace("''", "'") or "'", is_field=False))
        elif token[0] in _RESERVED:
            raise _bad_pattern(unit, text, f"{token[0]!r} is not allowed; put it in quotes")
        else:
            parts.append(_Part(token[0], is_field=False))
    return tuple(parts)


def _field_of(unit: TimeUnit, text: str, letters: str) -> str:
    field = _FIELD_OF_LETTER.get(letters[0])
    if field is None:
        raise _bad_pattern(unit, text, f"{letters!r} is not a field; allowed are yyyy, Q, MM, dd and HH")
    if len(letters) != _WIDTHS[field]:
        raise _bad_pattern(unit, text, f"{letters!r} must be {letters[0] * _WIDTHS[field]!r}")
    return field


def _bad_pattern(unit: TimeUnit, text: str, reason: str) -> FlussError:
    return FlussError(
        f"Time format {text!r} is invalid for unit {unit}: {reason}; the default is {_DEFAULT_PATTERNS[unit]!r}",
        ErrorCode.INVALID_TABLE_EXCEPTION,
    )
