"""Failures of tasks that Spark must not repeat: what is wrong with the rows, or with their table, stays wrong.

Spark tries a task that raises four times, each time in a new Python process, and shows the last traceback. A task that
fails for good returns its failure instead, as its commit message. The driver then refuses to commit, with one sentence;
what other tasks have written stays, as it does whenever a write fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from fluss.errors import ErrorCode, FlussError, error_for_code

# What the next attempt would be told, too.
_PERMANENT_CODES: Final = frozenset(
    {
        ErrorCode.DATABASE_NOT_EXIST,
        ErrorCode.TABLE_NOT_EXIST,
        ErrorCode.PARTITION_NOT_EXISTS,
        ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        ErrorCode.INVALID_TARGET_COLUMN,
        ErrorCode.AUTHORIZATION_EXCEPTION,
    }
)


class RowsRefusedError(FlussError):
    """Rows that do not fit their table."""


@contextmanager
def refusing_rows() -> Iterator[None]:
    """A block that only looks at rows: an error that was found on this side is about them."""
    try:
        yield
    except FlussError as error:
        if error.error_code != ErrorCode.CLIENT_ERROR:
            raise
        raise RowsRefusedError(error.message) from error


class TaskFailure(NamedTuple):
    """Why a task has failed for good. It is sent to the driver."""

    message: str
    error_code: int

    @classmethod
    def of(cls, error: FlussError) -> TaskFailure | None:
        """Return the failure of a task that ends with an error; None if another attempt may succeed."""
        if isinstance(error, RowsRefusedError) or error.error_code in _PERMANENT_CODES:
            return cls(error.message, error.error_code)
        return None


def raise_first(failures: Iterable[TaskFailure | None]) -> None:
    """Raise why tasks have failed for good, if some have."""
    found = [failure for failure in failures if failure is not None]
    if not found:
        return
    message, code = found[0]
    others = len(found) - 1
    more = "" if not others else f" ({others} other task{'s' if others > 1 else ''} failed, too)"
    raise FlussError(message + more) if code == ErrorCode.CLIENT_ERROR else error_for_code(code, message + more)
