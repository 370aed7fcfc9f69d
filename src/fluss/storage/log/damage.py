"""The error for a file of a log that does not hold what it should."""

from __future__ import annotations

from fluss.errors import ErrorCode, FlussError


def damaged(what: str, reason: str, file_name: str | None) -> FlussError:
    """Build the error. ``what`` is the kind of file; ``file_name`` says which one, where the caller knows it."""
    which = f"{what} {file_name}" if file_name else what
    return FlussError(f"The {which} is damaged: {reason}", ErrorCode.LOG_STORAGE_EXCEPTION)
