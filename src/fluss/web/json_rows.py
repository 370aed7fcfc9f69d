"""Rows as JSON for people: what JavaScript cannot hold exactly becomes a text, and everything has an upper size."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

# The largest integer of which JavaScript knows all neighbours.
_EXACT_MAX: Final = 2**53
_CELL_CHARACTERS_MAX: Final = 2000
_BYTES_SHOWN_MAX: Final = 256


def json_rows(table: pa.Table) -> list[list[Any]]:
    """Return the rows of a table, each as a list of values that JSON has."""
    columns = [[json_value(value) for value in column.to_pylist()] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def json_value(value: Any) -> Any:
    """Return a value as JSON has it, or its text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -_EXACT_MAX <= value <= _EXACT_MAX else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, bytes | bytearray | memoryview):
        shown = bytes(value[:_BYTES_SHOWN_MAX]).hex()
        return f"0x{shown}" if len(value) <= _BYTES_SHOWN_MAX else f"0x{shown}… ({len(value)} bytes)"
    if isinstance(value, Mapping | Sequence):
        return _cut(json.dumps(value, default=_inner, ensure_ascii=False))
    if isinstance(value, datetime) and value.microsecond % 1000 == 0:
        return value.isoformat(sep=" ", timespec="milliseconds")
    return _cut(str(value))


def _inner(value: Any) -> Any:
    shown = json_value(value)
    return shown if isinstance(shown, str | int | float) else str(value)


def _cut(text: str) -> str:
    # JSON has no halves of characters, which Python strings can have.
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _CELL_CHARACTERS_MAX else f"{text[:_CELL_CHARACTERS_MAX]}…"
