"""Quotas as options: ``alice=10mb, 10.0.0.7=1mb``, and which options make which quota."""

from __future__ import annotations

from typing import TypeVar

from fluss.errors import FlussError
from fluss.options import ValueType

T = TypeVar("T", int, float)


def overrides_of(value_type: ValueType[T]) -> ValueType[dict[str, T]]:
    """Return the type of options that give some names a value of their own."""

    def read(text: str) -> dict[str, T]:
        overrides: dict[str, T] = {}
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
