"""Partition names: the formatted values of the partition columns, joined with ``$``.

| type | format |
|---|---|
| CHAR, STRING | as it is |
| BOOLEAN | ``true``, ``false`` |
| TINYINT, SMALLINT, INT, BIGINT | decimal |
| BINARY, BYTES | lower-case hex |
| DATE | ``2025-05-27`` |
| TIME | ``01-30-02_199``, always three digits at the end |
| TIMESTAMP, TIMESTAMP_LTZ in UTC | ``2025-05-31-03-42-35_428``: the digits of the second without zeros at the end |
| FLOAT, DOUBLE | as Java writes them with ``_`` for the point: ``5_73``, ``1_0E10``; ``NaN``, ``Inf``, ``-Inf`` |

DECIMAL and nested types cannot be partition columns, and partition values are never null.

The released Python clients format some of these values differently, in the ``"rust"`` style: floats without an exponent
and without a needless point (``1``, ``10000000000``, ``0_00001``), and no, three or nine digits of the second. A row
written in one style is not found in partitions named in the other, so all writers of a table must agree.

The value of a partition that the coordinator creates by the clock follows a pattern of its time unit:

| unit | default pattern | value at 2024-11-11 11:11 |
|---|---|---|
| YEAR | ``yyyy`` | 2024 |
| QUARTER | ``yyyyQ`` | 20244 |
| MONTH | ``yyyyMM`` | 202411 |
| DAY | ``yyyyMMdd`` | 20241111 |
| HOUR | ``yyyyMMddHH`` | 2024111111 |

These values sort like the times they stand for. They are pure functions of the time that the caller passes, which is
the wall clock of the table's time zone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias, get_args

import numpy as np

from fluss.errors import ErrorCode, FlussError
from fluss.row.values import DAY_MS, NANOS_PER_MILLI, Timestamp, civil_date, format_float, time_of_day
from fluss.schema.table import VALUE_SEPARATOR, new_name_problem
from fluss.schema.table_options import TimeUnit
from fluss.schema.types import BinaryType, DataType, TypeRoot

PartitionStyle: TypeAlias = Literal["java", "rust"]
_STYLES: Final[tuple[PartitionStyle, ...]] = get_args(PartitionStyle)

_DATE: Final = r"(?P<date>-?\d{4,}-\d\d-\d\d)"
_TIME: Final = r"(?P<hour>\d\d)-(?P<minute>\d\d)-(?P<second>\d\d)_(?P<fraction>\d{0,9})"
_TIMES: Final = {
    TypeRoot.DATE: re.compile(_DATE),
    TypeRoot.TIME: re.compile(_TIME),
    TypeRoot.TIMESTAMP: re.compile(f"{_DATE}-{_TIME}"),
    TypeRoot.TIMESTAMP_LTZ: re.compile(f"{_DATE}-{_TIME}"),
}

_INTEGERS: Final[dict[TypeRoot, type[np.signedinteger[Any]]]] = {
    TypeRoot.TINYINT: np.int8,
    TypeRoot.SMALLINT: np.int16,
    TypeRoot.INTEGER: np.int32,
    TypeRoot.BIGINT: np.int64,
}
# How values are written, for people.
_FORMS: Final = {
    TypeRoot.CHAR: "its text",
    TypeRoot.STRING: "its text",
    TypeRoot.BOOLEAN: "true or false",
    TypeRoot.TINYINT: "a decimal number",
    TypeRoot.SMALLINT: "a decimal number",
    TypeRoot.INTEGER: "a decimal number",
    TypeRoot.BIGINT: "a decimal number",
    TypeRoot.BINARY: "lower-case hex",
    TypeRoot.BYTES: "lower-case hex",
    TypeRoot.DATE: "yyyy-MM-dd",
    TypeRoot.TIME: "HH-mm-ss_SSS",
    TypeRoot.TIMESTAMP: "yyyy-MM-dd-HH-mm-ss_SSS",
    TypeRoot.TIMESTAMP_LTZ: "yyyy-MM-dd-HH-mm-ss_SSS in UTC",
    TypeRoot.FLOAT: "a number with _ for the point",
    TypeRoot.DOUBLE: "a number with _ for the point",
}


def format_partition_value(value: Any, data_type: DataType, *, style: PartitionStyle = "java") -> str:
    """Format an internal value. Any characters may come out: names are checked where they are used."""
    if value is None:
        raise FlussError("Partition value shouldn't be null: a row needs a value in every partition column")
    match data_type.root:
        case TypeRoot.CHAR | TypeRoot.STRING:
            return str(value)
        case TypeRoot.BOOLEAN:
            return "true" if value else "false"
        case TypeRoot.TINYINT | TypeRoot.SMALLINT | TypeRoot.INTEGER | TypeRoot.BIGINT:
            return str(value)
        case TypeRoot.BINARY | TypeRoot.BYTES:
            return bytes(value).hex()
        case TypeRoot.DATE:
            year, month, day = civil_date(value)
            return f"{year:04d}-{month:02d}-{day:02d}"
        case TypeRoot.TIME:
            hour, minute, second = time_of_day(value)
            return f"{hour:02d}-{minute:02d}-{second:02d}_{value % 1000:03d}"
        case TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            return _format_timestamp(value, data_type, style)
        case TypeRoot.FLOAT:
            return _format_float(value, 32, style)
        case TypeRoot.DOUBLE:
            return _format_float(value, 64, style)
    raise FlussError(f"A column of type {data_type} cannot be a partition column")


def row_partition_name(types: Sequence[DataType], values: Sequence[Any], *, style: PartitionStyle = "java") -> str:
    """Return the name of the partition of a row from the internal values of its partition columns."""
    return VALUE_SEPARATOR.join(
        format_partition_value(value, data_type, style=style) for data_type, value in zip(types, values, strict=True)
    )


def parse_partition_value(text: str, data_type: DataType) -> Any:
    """Return the internal value that is formatted so in either style; FlussError with code 43 if there is none."""
    try:
        value = _parse(text, data_type)
    except (ValueError, OverflowError):
        value = None
    if value is None or all(text != format_partition_value(value, data_type, style=style) for style in _STYLES):
        raise FlussError(
            f"The partition value {text!r} is no text of a {data_type} value, which is written as {_form(data_type)}",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    return value


def _form(data_type: DataType) -> str:
    return _FORMS.get(data_type.root, "no partition value")


def partition_form(columns: Mapping[str, DataType], patterns: Mapping[str, str]) -> str:
    """Say how the names of partitions are written: for each partition column, in order, its value.

    ``patterns`` has the patterns of columns whose values follow the clock.
    """
    return f" {VALUE_SEPARATOR} ".join(
        f"{patterns.get(name) or _form(data_type)} ({name} {data_type})" for name, data_type in columns.items()
    )


def _parse(text: str, data_type: DataType) -> Any:
    """Parse leniently: the caller refuses a value that is not formatted as the same text again."""
    match data_type.root:
        case TypeRoot.CHAR | TypeRoot.STRING:
            return text
        case TypeRoot.BOOLEAN:
            return text == "true"
        case TypeRoot.TINYINT | TypeRoot.SMALLINT | TypeRoot.INTEGER | TypeRoot.BIGINT:
            number, limits = int(text), np.iinfo(_INTEGERS[data_type.root])
            return number if limits.min <= number <= limits.max else None
        case TypeRoot.BINARY | TypeRoot.BYTES:
            value = bytes.fromhex(text)
            return None if isinstance(data_type, BinaryType) and len(value) != data_type.length else value
        case TypeRoot.FLOAT:
            return float(np.float32(text.replace("_", ".")))
        case TypeRoot.DOUBLE:
            return float(text.replace("_", "."))
        case TypeRoot.DATE | TypeRoot.TIME | TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            parts = _TIMES[data_type.root].fullmatch(text)
            return None if parts is None else _parse_time(parts.groupdict(), data_type.root)
    raise FlussError(f"A column of type {data_type} cannot be a partition column")


def _parse_time(parts: dict[str, str], root: TypeRoot) -> Any:
    days = int(np.datetime64(parts["date"], "D").astype(np.int64)) if "date" in parts else 0
    if root is TypeRoot.DATE:
        return days
    seconds = (int(parts["hour"]) * 60 + int(parts["minute"])) * 60 + int(parts["second"])
    millis, nanos = divmod(int(parts["fraction"].ljust(9, "0")), NANOS_PER_MILLI)
    millis += seconds * 1000
    return millis if root is TypeRoot.TIME else Timestamp(days * DAY_MS + millis, nanos)


def _format_timestamp(value: Timestamp, data_type: DataType, style: PartitionStyle) -> str:
    days, millis = divmod(value.millis, DAY_MS)
    year, month, day = civil_date(days)
    if not 1 <= year <= 9999:
        raise FlussError(f"A partition of type {data_type} must be in the years 1 to 9999, not {year}")
    hour, minute, second = time_of_day(millis)
    nanos = millis % 1000 * NANOS_PER_MILLI + value.nanos
    fraction = f"{nanos:09d}".rstrip("0")
    if style == "rust" and nanos:
        fraction = f"{nanos:09d}" if value.nanos else f"{millis % 1000:03d}"
    return f"{year:04d}-{month:02d}-{day:02d}-{hour:02d}-{minute:02d}-{second:02d}_{fraction}"


def _format_float(value: float, bits: int, style: PartitionStyle) -> str:
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if math.isnan(value) or style == "java":
        text = format_float(value, bits=bits)
    else:
        text = np.format_float_positional(np.float32(value) if bits == 32 else np.float64(value), trim="-")
    return text.replace(".", "_")


# Auto partitions

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

        A pattern that does not show exactly the fields of the unit, or whose values cannot name a partition, is a
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
        """Return the start of the time that a partition spans, without a zone; a value of another form has code 43."""
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
