"""What a write call returns: the way to learn how the write ended."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from fluss.client.kernel.runtime import outcome
from fluss.errors import FlussError, RequestTimeoutError


class PendingWrite(Protocol):
    """Rows that were taken together and are on their way."""

    @property
    def done(self) -> Future[None]:
        """Resolves without an error, however the write ended."""
        ...

    def error_of(self, packed_row: bytes | None) -> FlussError | None:
        """Say what became of one row, or of all of them, once ``done``; None is success."""
        ...

    def mark_reported(self) -> None:
        """A caller has been told how the write ended."""
        ...


class WriteResultHandle:
    """One write call. Await it, or its ``wait()``, to know that the rows are stored; or forget it.

    It may be asked any number of times, by any thread and on any event loop, and always gives the same outcome.
    Giving up waiting does not take the rows back.
    """

    __slots__ = ("_is_consumed", "_packed_row", "_write")

    _write: PendingWrite
    # Set if the handle stands for one row among others that may end differently.
    _packed_row: bytes
    # Set once a caller has waited.
    _is_consumed: bool

    def __init__(self, write: PendingWrite) -> None:
        self._write = write

    def __await__(self) -> Generator[Any, Any, None]:
        return self.wait().__await__()

    async def wait(self) -> None:
        """Wait until the configured acknowledgements are there. Raises what the server, or the client, refused."""
        self._is_consumed = True
        await outcome(self._write.done)
        self._raise_failure()

    def result(self, timeout_s: float | None = None) -> None:
        """Block the calling thread until the write is done; otherwise like ``wait``.

        After ``timeout_s`` seconds it raises RequestTimeoutError, and the write goes on.
        """
        self._is_consumed = True
        try:
            self._write.done.result(timeout_s)
        except TimeoutError:
            raise RequestTimeoutError(
                f"the write timed out: no acknowledgement within {timeout_s:g} s; it goes on in the background"
            ) from None
        self._raise_failure()

    def done(self) -> bool:
        """Whether ``wait`` would return, or raise, at once."""
        return self._write.done.done()

    def _raise_failure(self) -> None:
        error = self._write.error_of(getattr(self, "_packed_row", None))
        if error is not None:
            self._write.mark_reported()
            raise error.copied()

    def __repr__(self) -> str:
        return f"WriteResultHandle({'consumed' if hasattr(self, '_is_consumed') else 'pending'})"


class RowHandle(WriteResultHandle):
    """The handle of a row. Its maker sets ``_write``: with one handle per row, leaving out ``__init__`` counts."""

    __slots__ = ()
    __init__ = object.__init__


class CompletedWrite:
    """A write of nothing."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done: Future[None] = Future()
        self.done.set_result(None)

    def error_of(self, packed_row: bytes | None) -> FlussError | None:
        return None

    def mark_reported(self) -> None:
        pass


class JoinedWrites:
    """Several writes that one call made; it fails if one of them does."""

    __slots__ = ("_remaining", "_writes", "done")

    def __init__(self, writes: Sequence[PendingWrite]) -> None:
        self._writes = writes
        self._remaining = iter(writes)
        self.done: Future[None] = Future()
        self._wait_for_next()

    def _wait_for_next(self, _previous: Future[None] | None = None) -> None:
        # One after the other, so that no two threads are in here at once.
        for write in self._remaining:
            if not write.done.done():
                write.done.add_done_callback(self._wait_for_next)
                return
        self.done.set_result(None)

    def error_of(self, packed_row: bytes | None) -> FlussError | None:
        errors = (write.error_of(packed_row) for write in self._writes)
        return next((error for error in errors if error is not None), None)

    def mark_reported(self) -> None:
        for write in self._writes:
            write.mark_reported()
