"""How the rows of a table are stored: in its log, and in its key-value store."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Self

from fluss.errors import FlussError

LOG_FORMAT_PROPERTY: Final = "table.log.format"
KV_FORMAT_PROPERTY: Final = "table.kv.format"


class _Format(StrEnum):
    @classmethod
    def _described(cls, what: str, text: str) -> Self:
        if not isinstance(text, str):
            raise TypeError(f"the {what} must be str, got {type(text).__name__}")
        try:
            return cls(text.upper())
        except ValueError:
            raise FlussError(f"Unknown {what}: {text!r}; known are {', '.join(cls)}") from None


class LogFormat(_Format):
    """The encoding of rows in log batches; readers take ARROW when a table does not say."""

    ARROW = "ARROW"
    INDEXED = "INDEXED"
    COMPACTED = "COMPACTED"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the format of a name in any case."""
        return cls._described("log format", text)


class KvFormat(_Format):
    """The encoding of rows in the key-value store; readers take COMPACTED when a table does not say."""

    COMPACTED = "COMPACTED"
    INDEXED = "INDEXED"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the format of a name in any case."""
        return cls._described("kv format", text)
