"""What a record says about its row."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ChangeType(IntEnum):
    """The kind of a change; the number is the byte in log batches."""

    AppendOnly = 0
    Insert = 1
    UpdateBefore = 2
    UpdateAfter = 3
    Delete = 4

    def short_string(self) -> str:
        """Return the sign of the change, such as ``+I``."""
        return _SHORT_STRINGS[self]

    def __str__(self) -> str:
        return self.short_string()

    def __format__(self, format_spec: str) -> str:
        return format(self.short_string(), format_spec)

    def __repr__(self) -> str:
        return f"ChangeType.{self.name}"


_SHORT_STRINGS: Final = ("+A", "+I", "-U", "+U", "-D")
