"""Small JSON files with known fields: exact on the way out, distrustful on the way in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fluss.buffers import BytesLike
from fluss.errors import FlussError
from fluss.integers import INT32_MAX, INT64_MAX
from fluss.storage.damage import damaged


def write_json(fields: Mapping[str, Any]) -> bytes:
    """Write the fields in their order, without white space."""
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


class JsonObject:
    """A JSON object whose fields are checked one by one as they are read. Unknown fields are left alone."""

    __slots__ = ("_fields", "_file_name", "_what")

    def __init__(self, fields: Mapping[str, Any], what: str, file_name: str | None) -> None:
        self._fields = fields
        self._what = what
        self._file_name = file_name

    @classmethod
    def parse(cls, data: BytesLike, what: str, file_name: str | None, *, version: int) -> JsonObject:
        """Read a whole file: an object whose field ``version`` is the given one."""
        try:
            fields = json.loads(bytes(data).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise damaged(what, f"it is not JSON ({error})", file_name) from error
        if not isinstance(fields, dict):
            raise damaged(what, "it is not a JSON object", file_name)
        found = cls(fields, what, file_name)
        if found.integer("version", lowest=0, highest=INT32_MAX) != version:
            raise found.fault(f"its version is {fields['version']}, this version reads only {version}")
        return found

    def fault(self, reason: str) -> FlussError:
        """Build the error for a fault that was found by the caller."""
        return damaged(self._what, reason, self._file_name)

    def integer(self, name: str, *, lowest: int, highest: int = INT64_MAX) -> int:
        value = self._fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fault(f"the field {name!r} is {_shown(value)}, not an integer")
        if not lowest <= value <= highest:
            raise self.fault(f"the field {name!r} is {_shown(value)}, not between {lowest} and {highest}")
        return value

    def optional_integer(self, name: str, *, lowest: int, highest: int = INT64_MAX) -> int | None:
        return self.integer(name, lowest=lowest, highest=highest) if name in self._fields else None

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str):
            raise self.fault(f"the field {name!r} is {_shown(value)}, not a text")
        # JSON can spell halves of characters, which no file name and no answer can hold.
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise self.fault(f"the field {name!r} holds half of a character: {_shown(value)}")
        return value

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if name in self._fields else None

    def objects(self, name: str) -> list[JsonObject]:
        values = self._fields.get(name)
        if not isinstance(values, list):
            raise self.fault(f"the field {name!r} is {_shown(values)}, not a list")
        for index, value in enumerate(values):
            if not isinstance(value, dict):
                raise self.fault(f"entry {index} of {name!r} is {_shown(value)}, not an object")
        return [JsonObject(value, self._what, self._file_name) for value in values]


def _shown(value: Any) -> str:
    """Show a value from a file in an error message, however large it is."""
    if value is None:
        return "missing"
    if isinstance(value, int):
        return str(value) if abs(value) <= INT64_MAX else "a very large number"
    return f"{value[:40]!r}" if isinstance(value, str) else f"a {type(value).__name__}"
