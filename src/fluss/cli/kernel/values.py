"""Values of rows as texts: for people, as JSON, as CSV; and texts and JSON back into values of a column.

type                    in JSON                         as a text
numbers, BOOLEAN        a number, true or false         as in JSON
DECIMAL                 a text, so that nothing is      1.50
                        rounded; a number is taken
STRING, CHAR            a text                          the text
BYTES, BINARY           base64                          base64
DATE, TIME              2026-01-31, 12:30:00.5          the same
TIMESTAMP               2026-01-31T12:30:00             the same, or with a blank
TIMESTAMP_LTZ           2026-01-31T12:30:00Z            the same; without a zone it is UTC
ARRAY                   a list                          JSON
MAP                     an object if keys are texts,    JSON
                        else a list of pairs
ROW                     an object                       JSON
"""

from __future__ import annotations

import base64
import binascii
import csv
import datetime as dt
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from fluss.errors import FlussError

if TYPE_CHECKING:
    from fluss.schema.types import DataType

# What a terminal acts upon: commands to it, line ends, and marks that turn the direction of the text around them.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SHOWN_CHARS_MAX: Final = 60


# Out


def json_value(value: Any) -> Any:
    """Return a value in terms of JSON."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Decimal():
            return format(value, "f")
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode()
        case dt.datetime():
            return value.isoformat().replace("+00:00", "Z")
        case dt.date() | dt.time():
            return value.isoformat()
        case Mapping():
            return {str(key): json_value(each) for key, each in value.items()}
        case list() | tuple() if value and all(_is_pair(each) for each in value):
            if all(isinstance(key, str) for key, _ in value):
                return {key: json_value(each) for key, each in value}
            return [[json_value(key), json_value(each)] for key, each in value]
        case list() | tuple():
            return [json_value(each) for each in value]
    return str(value)


def _is_pair(value: Any) -> bool:
    # Entries of a map are the only tuples among the values of rows.
    return type(value) is tuple and len(value) == 2


def json_text(value: Any) -> str:
    """Return one line of JSON."""
    return json.dumps(json_value(value), ensure_ascii=False)


def plain_text(value: Any) -> str:
    """Return a value as a text that can be read back."""
    plain = json_value(value)
    if isinstance(plain, str):
        return plain
    return "" if plain is None else json.dumps(plain, ensure_ascii=False)


def shown_text(value: Any, chars_max: int) -> str:
    """Return a value for people: nothing for null, in one line, without signs that a terminal would act upon."""
    text = _CONTROL.sub(_escaped, plain_text(value))
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def shown_lines(text: str) -> str:
    """Return a message, which may quote values of files and servers, without signs that a terminal would act upon."""
    return "\n".join(_CONTROL.sub(_escaped, line) for line in text.split("\n"))


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1] if ord(found[0]) < 0x80 else f"\\u{ord(found[0]):04x}"


def csv_text(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Return the lines of CSV; null is nothing, and an empty text is two quotes."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
    for row in rows:
        buffer.seek(0)
        buffer.truncate()
        cells = [plain_text(value) for value in row]
        if any(value == "" and isinstance(value, str) for value in row):
            yield (
                ",".join('""' if value == "" else _csv_cell(text) for value, text in zip(row, cells, strict=True))
                + "\n"
            )
            continue
        writer.writerow(cells)
        yield buffer.getvalue()


def _csv_cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if re.search('[,"\r\n]', text) else text


# In


def value_from_json(value: Any, data_type: DataType, name: str) -> Any:
    """Return a value of JSON as one that a column of a type takes; one that cannot be is a FlussError."""
    from fluss.schema.types import TypeRoot

    if value is None:
        return None
    root = data_type.root
    if isinstance(value, str) and root not in (TypeRoot.STRING, TypeRoot.CHAR):
        return value_from_text(value, data_type, name)
    match root:
        case TypeRoot.ARRAY if isinstance(value, list):
            return [value_from_json(each, data_type.element_type, name) for each in value]  # type: ignore[attr-defined]
        case TypeRoot.MAP if isinstance(value, list | dict):
            return _map_from_json(value, data_type, name)
        case TypeRoot.ROW if isinstance(value, dict):
            fields = {field.name: field.data_type for field in data_type.fields}  # type: ignore[attr-defined]
            unknown = set(value) - set(fields)
            if unknown:
                raise _misfit(value, data_type, name, f"it has no field '{min(unknown)}'")
            return {key: value_from_json(value.get(key), each, f"{name}.{key}") for key, each in fields.items()}
        case TypeRoot.STRING | TypeRoot.CHAR if isinstance(value, str):
            return value
        case TypeRoot.BOOLEAN if isinstance(value, bool):
            return value
        case TypeRoot.DECIMAL if _is_number(value):
            return Decimal(str(value))
        case TypeRoot.FLOAT | TypeRoot.DOUBLE if isinstance(value, int | float | Decimal) and not isinstance(
            value, bool
        ):
            return float(value)
        case TypeRoot.TINYINT | TypeRoot.SMALLINT | TypeRoot.INTEGER | TypeRoot.BIGINT:
            if isinstance(value, int) and not isinstance(value, bool):
                return value
            if isinstance(value, float | Decimal) and value == int(value):
                return int(value)
    raise _misfit(value, data_type, name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _map_from_json(value: list[Any] | dict[str, Any], data_type: DataType, name: str) -> list[tuple[Any, Any]]:
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise _misfit(value, data_type, name, "a map is an object, or a list of pairs")
    key_type, value_type = data_type.key_type, data_type.value_type  # type: ignore[attr-defined]
    return [(value_from_json(key, key_type, name), value_from_json(each, value_type, name)) for key, each in pairs]


def value_from_text(text: str, data_type: DataType, name: str) -> Any:
    """Return a text, as it is given on a command line, as a value of a column."""
    from fluss.schema.types import TypeRoot

    root = data_type.root
    try:
        match root:
            case TypeRoot.STRING | TypeRoot.CHAR:
                return text
            case TypeRoot.BOOLEAN:
                return {"true": True, "false": False}[text.strip().lower()]
            case TypeRoot.TINYINT | TypeRoot.SMALLINT | TypeRoot.INTEGER | TypeRoot.BIGINT:
                return int(text)
            case TypeRoot.FLOAT | TypeRoot.DOUBLE:
                return float(text)
            case TypeRoot.DECIMAL:
                return Decimal(text)
            case TypeRoot.BYTES | TypeRoot.BINARY:
                return base64.b64decode(text, validate=True)
            case TypeRoot.DATE:
                return dt.date.fromisoformat(text)
            case TypeRoot.TIME:
                return dt.time.fromisoformat(text)
            case TypeRoot.TIMESTAMP:
                value = dt.datetime.fromisoformat(text)
                if value.tzinfo is not None:
                    raise ValueError
                return value
            case TypeRoot.TIMESTAMP_LTZ:
                instant = dt.datetime.fromisoformat(text)
                return instant if instant.tzinfo is not None else instant.replace(tzinfo=dt.UTC)
    except (ValueError, KeyError, InvalidOperation, binascii.Error, OverflowError):
        raise _misfit(text, data_type, name) from None
    try:
        value = json.loads(text, parse_float=Decimal)
    except ValueError:
        raise _misfit(text, data_type, name, "JSON is expected") from None
    if isinstance(value, str):
        raise _misfit(text, data_type, name)
    return value_from_json(value, data_type, name)


def _misfit(value: Any, data_type: DataType, name: str, reason: str = "") -> FlussError:
    shown = shown_text(value, _SHOWN_CHARS_MAX)
    return FlussError(
        f"column '{name}' is {data_type}, and {shown!r} is no such value{f': {reason}' if reason else ''}"
    )
