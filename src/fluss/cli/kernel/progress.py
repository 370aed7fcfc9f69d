"""How far long work is: a bar with rate and rest, on a terminal only."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class WorkProgress:
    """Shows rows and the part of everything that is done, on standard error. Where there is no terminal, nothing."""

    def __init__(self, what: str, total: int | None, *, is_shown: bool | None = None) -> None:
        """``total`` is all that there is to do, in any unit; None if it is not known."""
        self._what = what
        self._total = total
        self._is_shown = sys.stderr.isatty() if is_shown is None else is_shown
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if not self._is_shown:
            return self
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        bar = [BarColumn(), TaskProgressColumn()] if self._total else [SpinnerColumn()]
        self._progress = Progress(
            TextColumn("{task.description}"),
            *bar,
            TextColumn("{task.fields[rows]} rows"),
            TextColumn("{task.fields[rate]} rows/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task(self._what, total=self._total, rows="0", rate="-")
        return self

    def update(self, rows: int, done: int) -> None:
        """Tell how many rows were handled, and how much of everything is done."""
        if self._progress is None or self._task is None:
            return
        elapsed_s = self._progress.tasks[0].elapsed or 0.0
        rate = f"{rows / elapsed_s:,.0f}" if elapsed_s > 0 else "-"
        self._progress.update(self._task, completed=done, rows=f"{rows:,}", rate=rate)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
