"""Partition names: the values of the partition columns as texts, joined with ``$``.

| type | text |
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

The released Python clients write some of these texts differently, in the ``"rust"`` style: floats without an exponent
and without a needless point (``1``, ``10000000000``, ``0_00001``), and no, three or nine digits of the second. A row
written in one style is not found in partitions named in the other, so all writers of a table must agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from fluss.errors import FlussError
from fluss.row.java_text import civil_date, float_text, time_of_day
from fluss.row.values import DAY_MS, NANOS_PER_MILLI, Timestamp
from fluss.schema.table import VALUE_SEPARATOR
from fluss.schema.types import DataType, TypeRoot

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


def partition_value(value: Any, data_type: DataType, *, style: PartitionStyle = "java") -> str:
    """Return the text of an internal value. Texts of any characters come out: names are checked where they are used."""
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
            return _timestamp_text(value, data_type, style)
        case TypeRoot.FLOAT:
            return _float_text(value, 32, style)
        case TypeRoot.DOUBLE:
            return _float_text(value, 64, style)
    raise FlussError(f"A column of type {data_type} cannot be a partition column")


def row_partition_name(types: Sequence[DataType], values: Sequence[Any], *, style: PartitionStyle = "java") -> str:
    """Return the name of the partition of a row from the internal values of its partition columns."""
    return VALUE_SEPARATOR.join(
        partition_value(value, data_type, style=style) for data_type, value in zip(types, values, strict=True)
    )


def read_partition_value(text: str, data_type: DataType) -> Any:
    """Return the internal value that has this text in either style; FlussError if there is none."""
    try:
        value = _read(text, data_type)
    except (ValueError, OverflowError):
        value = None
    if value is None or all(text != partition_value(value, data_type, style=style) for style in _STYLES):
        raise FlussError(f"The partition value {text!r} is no text of a {data_type} value")
    return value


def _read(text: str, data_type: DataType) -> Any:
    """Read a text leniently: what does not come out as the same text again is refused anyway."""
    match data_type.root:
        case TypeRoot.CHAR | TypeRoot.STRING:
            return text
        case TypeRoot.BOOLEAN:
            return text == "true"
        case TypeRoot.TINYINT | TypeRoot.SMALLINT | TypeRoot.INTEGER | TypeRoot.BIGINT:
            return int(text)
        case TypeRoot.BINARY | TypeRoot.BYTES:
            return bytes.fromhex(text)
        case TypeRoot.FLOAT:
            return float(np.float32(text.replace("_", ".")))
        case TypeRoot.DOUBLE:
            return float(text.replace("_", "."))
        case TypeRoot.DATE | TypeRoot.TIME | TypeRoot.TIMESTAMP | TypeRoot.TIMESTAMP_LTZ:
            parts = _TIMES[data_type.root].fullmatch(text)
            return None if parts is None else _read_time(parts.groupdict(), data_type.root)
    raise FlussError(f"A column of type {data_type} cannot be a partition column")


def _read_time(parts: dict[str, str], root: TypeRoot) -> Any:
    days = int(np.datetime64(parts["date"], "D").astype(np.int64)) if "date" in parts else 0
    if root is TypeRoot.DATE:
        return days
    seconds = (int(parts["hour"]) * 60 + int(parts["minute"])) * 60 + int(parts["second"])
    millis, nanos = divmod(int(parts["fraction"].ljust(9, "0")), NANOS_PER_MILLI)
    millis += seconds * 1000
    return millis if root is TypeRoot.TIME else Timestamp(days * DAY_MS + millis, nanos)


def _timestamp_text(value: Timestamp, data_type: DataType, style: PartitionStyle) -> str:
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


def _float_text(value: float, bits: int, style: PartitionStyle) -> str:
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if math.isnan(value) or style == "java":
        text = float_text(value, bits=bits)
    else:
        text = np.format_float_positional(np.float32(value) if bits == 32 else np.float64(value), trim="-")
    return text.replace(".", "_")
