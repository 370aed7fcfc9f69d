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
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from fluss.errors import FlussError

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.schema.types import DataType

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# The digits of a second in a time.
_DIGITS: Final = re.compile(r"[.,]([0-9]+)")
_PYTHON_DIGITS: Final = 6
_PLAIN_DIGITS_MAX: Final = 100
# More than a column of integers can hold.
_INTEGER_END: Final = 2**63
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
            # Of 1e999999999 only that would be a gigabyte.
            return format(value, "f") if abs(value.adjusted()) <= _PLAIN_DIGITS_MAX else str(value)
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
    """Return the lines of CSV; null is nothing, and an empty text is two quotes.

    A null in a single column is an empty line, which most readers leave out.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
    for row in rows:
        buffer.seek(0)
        buffer.truncate()
        cells = [plain_text(value) for value in row]
        is_empty = [not text and value is not None for value, text in zip(row, cells, strict=True)]
        if any(is_empty) or cells == [""]:
            yield (
                ",".join('""' if empty else _csv_cell(text) for empty, text in zip(is_empty, cells, strict=True)) + "\n"
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
            if not value.isascii() and _SURROGATE.search(value):
                raise _misfit(value.encode(errors="replace").decode(), data_type, name, "what is not UTF-8 is no text")
            return value
        case TypeRoot.BOOLEAN if isinstance(value, bool):
            return value
        case TypeRoot.DECIMAL if _is_number(value):
            return _decimal(str(value), data_type, name)
        case TypeRoot.FLOAT | TypeRoot.DOUBLE if _is_number(value):
            return _float(value, data_type, name)
        case TypeRoot.TINYINT | TypeRoot.SMALLINT | TypeRoot.INTEGER | TypeRoot.BIGINT:
            if isinstance(value, int) and not isinstance(value, bool):
                return value
            # Of what is larger, `1e999999999`, the integer alone would take more than a machine has.
            if isinstance(value, float | Decimal) and -_INTEGER_END <= value < _INTEGER_END and value == int(value):
                return int(value)
    raise _misfit(value, data_type, name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _decimal(text: str, data_type: DataType, name: str) -> Decimal:
    """Return a decimal of which the column holds every digit: another one could be another key."""
    found = Decimal(text)
    _, digits, exponent = found.as_tuple()
    if isinstance(exponent, int) and found:
        zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
        if exponent + zeros < -data_type.scale:  # type: ignore[attr-defined]
            raise _misfit(text, data_type, name, "it has more digits behind the point")
    return found


def _float(value: float | Decimal | str, data_type: DataType, name: str) -> float:
    """Return a number, or a text of one, as a float; only what is infinite itself may become infinite."""
    from fluss.schema.types import TypeRoot

    is_short = data_type.root is TypeRoot.FLOAT
    try:
        found = float(value)
        if is_short:
            # Refuses what is finite, and not as 32 bits.
            struct.pack("<f", found)
        is_beyond = math.isinf(found) and "inf" not in str(value).lower()
    except OverflowError:
        is_beyond = True
    if is_beyond:
        raise _misfit(value, data_type, name, f"it is beyond the range of {32 if is_short else 64}-bit floats")
    return found


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
                return _float(text, data_type, name)
            case TypeRoot.DECIMAL:
                return _decimal(text, data_type, name)
            case TypeRoot.BYTES | TypeRoot.BINARY:
                return base64.b64decode(text, validate=True)
            case TypeRoot.DATE:
                return dt.date.fromisoformat(text)
            case TypeRoot.TIME:
                _check_digits(text, data_type, name)
                time = dt.time.fromisoformat(text)
                if time.tzinfo is not None:
                    raise ValueError
                return time
            case TypeRoot.TIMESTAMP:
                value = dt.datetime.fromisoformat(text)
                if value.tzinfo is not None:
                    raise ValueError
                return _with_digits(value, _check_digits(text, data_type, name))
            case TypeRoot.TIMESTAMP_LTZ:
                instant = dt.datetime.fromisoformat(text)
                instant = instant if instant.tzinfo is not None else instant.replace(tzinfo=dt.UTC)
                return _with_digits(instant, _check_digits(text, data_type, name))
    except (ValueError, KeyError, InvalidOperation, binascii.Error, OverflowError):
        raise _misfit(text, data_type, name) from None
    try:
        value = json.loads(text, parse_float=Decimal)
    except ValueError:
        raise _misfit(text, data_type, name, "JSON is expected") from None
    if isinstance(value, str):
        raise _misfit(text, data_type, name)
    return value_from_json(value, data_type, name)


def _check_digits(text: str, data_type: DataType, name: str) -> str:
    """Return the digits of the second in a time, without zeros behind them, if a column can hold all of them."""
    found = _DIGITS.search(text)
    digits = found[1].rstrip("0") if found is not None else ""
    if len(digits) > data_type.precision:  # type: ignore[attr-defined]
        raise _misfit(text, data_type, name, "it has more digits of a second")
    return digits


def _with_digits(value: dt.datetime, digits: str) -> Any:
    """Return a moment with all digits of its second, of which Python has cut off those beyond the sixth."""
    if len(digits) <= _PYTHON_DIGITS:
        return value
    import numpy as np

    micros = (value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value) - dt.datetime(1970, 1, 1)
    nanos = micros // dt.timedelta(microseconds=1) * 1000 + int(digits[_PYTHON_DIGITS:].ljust(3, "0"))
    if abs(nanos) >= _INTEGER_END:
        raise OverflowError
    return np.datetime64(nanos, "ns")


def complete_values(values: list[Any], column: pa.Array) -> list[Any]:
    """Give the Python values of a column what they cannot show: digits behind the sixth, and that a map is empty.

    Moments that have such digits are texts.
    """
    import pyarrow as pa

    if pa.types.is_map(column.type) and pa.types.is_string(column.type.key_type):
        return [{} if value == [] else value for value in values]
    if not pa.types.is_timestamp(column.type) or column.type.unit != "ns":
        return values
    nanos = column.cast(pa.int64()).to_pylist()
    return [
        value if nano is None or nano % 1000 == 0 else _nanos_text(value, nano % 1000)
        for value, nano in zip(values, nanos, strict=True)
    ]


def _nanos_text(value: dt.datetime, rest: int) -> str:
    text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
    return f"{text}{rest:03}{'' if value.tzinfo is None else 'Z'}"


def python_values(column: pa.Array) -> list[Any]:
    """Return the values of a column that belongs to no table, as Python has them; moments that it has not as texts.

    These are years before 1 and after 9999, and nanoseconds unless pandas is there.
    """
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        values = column.cast(_with_texts(column.type)).to_pylist()
    return values


def _with_texts(arrow: pa.DataType) -> pa.DataType:
    import pyarrow as pa
    import pyarrow.types as pat

    if pat.is_temporal(arrow):
        return pa.string()
    if pat.is_map(arrow):
        return pa.map_(_with_texts(arrow.key_type), _with_texts(arrow.item_type))
    if pat.is_list(arrow):
        return pa.list_(_with_texts(arrow.value_type))
    if pat.is_struct(arrow):
        return pa.struct([pa.field(each.name, _with_texts(each.type)) for each in arrow])
    return arrow


def _misfit(value: Any, data_type: DataType, name: str, reason: str = "") -> FlussError:
    shown = shown_text(value, _SHOWN_CHARS_MAX)
    return FlussError(
        f"column '{name}' is {data_type}, and {shown!r} is no such value{f': {reason}' if reason else ''}"
    )
