"""JSON documents: written without white space, and read one expected value at a time, trusting nothing.

``parse_object`` bounds the size and refuses what JSON leaves open (repeated keys, NaN). A ``JsonObject`` then hands out
values of the type its reader expects; anything else is a ``FlussError`` that names the place, such as
``schema.columns[3].id``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from fluss.buffers import BytesLike
from fluss.errors import FlussError
from fluss.integers import INT64_MAX

_Value = TypeVar("_Value")
_MISSING: Final = object()
_SHOWN_CHARS_MAX: Final = 60


class _NumberText(str):
    """A number with a fraction or an exponent, as it was written; no field here takes one."""


def write_json(values: Mapping[str, Any]) -> bytes:
    """Write an object with its keys in their order. Half of a character is a UnicodeEncodeError."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()


def parse_object(data: BytesLike | str, *, bytes_max: int | None = None) -> JsonObject:
    """Parse a JSON object of at most ``bytes_max`` bytes."""
    if bytes_max is not None and len(data) > bytes_max:
        raise FlussError(f"the JSON has {len(data)} bytes, at most {bytes_max} are accepted")
    try:
        text = data if isinstance(data, str) else bytes(data).decode()
        root = json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_NumberText
        )
    except RecursionError:
        raise FlussError("the JSON is nested too deeply") from None
    except ValueError as error:
        # Covers invalid UTF-8, invalid JSON and integers of thousands of digits.
        raise FlussError(f"it is not valid JSON: {error}") from None
    if not isinstance(root, dict):
        raise FlussError(f"the JSON must be an object, found {_shown(root)}")
    return JsonObject(root, "")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key is given twice in one object")
    return values


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


class JsonObject:
    """An object and its place in the document. Keys that its reader does not ask for are left alone."""

    def __init__(self, values: dict[str, Any], path: str) -> None:
        self._values = values
        self._path = path

    def has(self, key: str) -> bool:
        return key in self._values

    def error(self, key: str, problem: str) -> FlussError:
        """Return the error that says what is wrong with the value of a key."""
        return FlussError(f"{self._place(key)} {problem}")

    def string(self, key: str) -> str:
        return self._take(key, _string, "a string")

    def optional_string(self, key: str) -> str | None:
        return None if self._values.get(key) is None else self.string(key)

    def integer(self, key: str, *, lowest: int | None = None, highest: int = INT64_MAX) -> int:
        """Return an integer; without ``lowest`` it is for the reader to check its range."""
        value = self._take(key, _integer, "an integer")
        if lowest is not None and not lowest <= value <= highest:
            raise self.error(key, f"must be between {lowest} and {highest}")
        return value

    def integers(self, key: str) -> list[int]:
        """Return a list of integers, whose ranges are for the reader to check."""
        return self._take(key, _integers, "a list of integers")

    def optional_integer(self, key: str, *, lowest: int, highest: int = INT64_MAX) -> int | None:
        return None if self._values.get(key) is None else self.integer(key, lowest=lowest, highest=highest)

    def boolean(self, key: str, default: bool) -> bool:
        return self._take(key, _boolean, "true or false") if self.has(key) else default

    def strings(self, key: str) -> list[str]:
        return self._take(key, _strings, "a list of strings")

    def string_map(self, key: str) -> dict[str, str]:
        """Return strings under strings. Numbers and booleans count as the string they are written as."""
        return self._take(key, _string_map, "an object with strings as values")

    def object(self, key: str) -> JsonObject:
        values = self._take(key, _object, "an object")
        return JsonObject(values, self._place(key))

    def objects(self, key: str) -> list[JsonObject]:
        items = self._take(key, _objects, "a list of objects")
        return [JsonObject(values, f"{self._place(key)}[{index}]") for index, values in enumerate(items)]

    def _take(self, key: str, convert: Callable[[Any], _Value | None], expected: str) -> _Value:
        value = self._values.get(key, _MISSING)
        if value is _MISSING:
            raise FlussError(f"{self._place(key)} is missing")
        converted = convert(value)
        if converted is None:
            raise FlussError(f"{self._place(key)} must be {expected}, found {_shown(value)}")
        return converted

    def _place(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def _string(value: Any) -> str | None:
    # Escapes such as \ud800 can name half of a character, which UTF-8 cannot hold.
    return value if type(value) is str and _is_encodable(value) else None


def _integer(value: Any) -> int | None:
    return value if type(value) is int else None


def _integers(value: Any) -> list[int] | None:
    return value if isinstance(value, list) and all(type(item) is int for item in value) else None


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _objects(value: Any) -> list[dict[str, Any]] | None:
    return value if isinstance(value, list) and all(isinstance(item, dict) for item in value) else None


def _strings(value: Any) -> list[str] | None:
    return value if isinstance(value, list) and all(_string(item) is not None for item in value) else None


def _string_map(value: Any) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    strings = {key: _scalar_string(item) for key, item in value.items() if _is_encodable(key)}
    checked = {key: string for key, string in strings.items() if string is not None}
    return checked if len(checked) == len(value) else None


def _scalar_string(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    return str(value) if isinstance(value, _NumberText) else _string(value)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = ascii(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."
