"""Rows and keys as users give them, dicts, lists, tuples: to internal values, or a sentence about what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluss.errors import FlussError
from fluss.row.python_values import to_internal
from fluss.schema.schema import Column, shown_names


def internal_values(row: Any, columns: Sequence[Column]) -> list[Any]:
    """Convert a row, or a key, that gives these columns. What does not fit is a FlussError that says why."""
    return [
        to_internal(value, column.data_type, column.name)
        for value, column in zip(_given_values(row, columns), columns, strict=True)
    ]


def _given_values(row: Any, columns: Sequence[Column]) -> Sequence[Any]:
    if isinstance(row, dict):
        return _values_by_name(row, columns)
    if not isinstance(row, list | tuple):
        # A GenericRow carries its values by position; the attribute of that name of other classes is no list.
        row_class, row = type(row).__name__, getattr(row, "values", None)
        if not isinstance(row, list | tuple):
            raise FlussError(f"Row must be a dict, list, or tuple; got {row_class}")
    if len(row) != len(columns):
        names = shown_names([column.name for column in columns])
        raise FlussError(f"Expected {len(columns)} elements, got {len(row)}; the columns are {names}")
    return row


def _values_by_name(row: dict[Any, Any], columns: Sequence[Column]) -> list[Any]:
    names = [column.name for column in columns]
    for name in row:
        if not isinstance(name, str):
            raise FlussError(f"Dict keys must be strings; got {type(name).__name__}")
        if name not in names:
            raise FlussError(f"Unknown field '{name}'. Expected: {shown_names(names)}")
    for column in columns:
        if column.name not in row and not column.data_type.nullable:
            raise FlussError(f"Missing value for non-nullable field '{column.name}'")
    return [row.get(name) for name in names]
