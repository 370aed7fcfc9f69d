"""Errors of the library as users of Spark see them.

Spark shows the traceback of a Python worker before its last line, the sentence that says what is wrong. The frames
below a data source mean nothing to its users, so they are left out.
"""

from __future__ import annotations

from types import TracebackType

from fluss.errors import FlussError


class PlainErrors:
    """``with PlainErrors():`` a FlussError leaves the block as a new one, which remembers nothing but its sentence."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, FlussError):
            raise error.copied() from None
