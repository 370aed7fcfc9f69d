"""The errors for files that do not hold what they should."""

from __future__ import annotations

from fluss.errors import ErrorCode, FlussError


def damaged(what: str, reason: str, file_name: str | None) -> FlussError:
    """Build the error for a file of a log. ``what`` is its kind; ``file_name`` says which one, where that is known."""
    which = f"{what} {file_name}" if file_name else what
    return FlussError(f"The {which} is damaged: {reason}", ErrorCode.LOG_STORAGE_EXCEPTION)
