"""How far a read is, shown on a terminal or in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

# More often than a person can read.
_INTERVAL_S: Final = 0.1
_BAR_CHARS: Final = 24


class ProgressBar:
    """One line that says how much has been read, written again and again. Its end leaves the last one standing."""

    def __init__(self, what: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._stream = stream
        self._clock = clock
        self._begun_s = clock()
        self._shown_s = float("-inf")
        self._shown_chars = 0

    def update(self, row_count: int, fraction: Callable[[], float | None]) -> None:
        """Show how many rows there are, and which part of all that is as far as ``fraction`` knows."""
        now_s = self._clock()
        if now_s - self._shown_s >= _INTERVAL_S:
            self._shown_s = now_s
            self._show(row_count, fraction())

    def end(self, row_count: int, *, is_complete: bool) -> None:
        """Show the last line: that is all, or nothing more comes because of a failure."""
        self._show(row_count, 1.0 if is_complete else None)
        self._stream.write("\n")
        self._stream.flush()

    def _show(self, row_count: int, fraction: float | None) -> None:
        part = ""
        if fraction is not None:
            full = round(fraction * _BAR_CHARS)
            part = f"{fraction:4.0%} {'█' * full}{'░' * (_BAR_CHARS - full)} "
        line = f"{self._what} {part}{row_count:,} rows, {self._clock() - self._begun_s:.1f} s"
        self._stream.write(f"\r{line.ljust(self._shown_chars)}")
        self._stream.flush()
        self._shown_chars = len(line)


def progress_bar(what: str) -> ProgressBar | None:
    """Return a bar if there is a terminal or a notebook to show it, otherwise None."""
    stream = sys.stdout if _is_notebook() else sys.stderr
    if stream is None or not (_is_notebook() or stream.isatty()):
        return None
    return ProgressBar(what, stream)


def _is_notebook() -> bool:
    """Whether the program runs in a kernel of Jupyter, which rewrites lines as terminals do."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
