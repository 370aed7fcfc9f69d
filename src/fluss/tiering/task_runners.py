"""Where tasks run: in this thread, or wherever another runner takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from fluss import FlussTable


class WorkResult(Protocol):
    """What a task returns; it is pickled."""

    @property
    def rows(self) -> int:
        """How many rows the task has dealt with."""
        ...


ItemT = TypeVar("ItemT")
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)
ResultT = TypeVar("ResultT", bound=WorkResult)
ResultT_co = TypeVar("ResultT_co", bound=WorkResult, covariant=True)


class TaskWork(Protocol[ItemT_contra, ResultT_co]):
    """What tasks do, each with one item. It is pickled, as are the items."""

    def run(self, table: FlussTable, item: ItemT_contra) -> ResultT_co:
        """Do the work of one task. ``table`` is that of a connection where the task runs."""
        ...


class TaskRunner(Protocol):
    """Runs tasks, and returns their results in the order of the items. It raises if a task fails for good."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at the same time."""
        ...

    def __call__(
        self,
        what: str,
        table: FlussTable,
        work: TaskWork[ItemT, ResultT],
        items: Sequence[ItemT],
        weights: Sequence[int],
    ) -> list[ResultT]:
        """Run ``work`` for each item. ``what`` is a verb for messages; weights say how much work each item is."""
        ...


class RunHere:
    """Runs tasks in the calling thread, one after the other."""

    parallelism = 1

    def __call__(
        self,
        what: str,
        table: FlussTable,
        work: TaskWork[ItemT, ResultT],
        items: Sequence[ItemT],
        weights: Sequence[int],
    ) -> list[ResultT]:
        return [work.run(table, item) for item in items]
