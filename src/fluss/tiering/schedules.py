"""Which table is tiered next: what the coordinator hands out, or certain tables by a clock of one's own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from fluss.client.bulk import JOBS, FinishedRound, TieringAssignment, TieringCalls, retried
from fluss.errors import FlussError
from fluss.schema.table import TablePath

logger = logging.getLogger(__name__)

# How long a coordinator may be away when a round asks whether it may commit. Then the round is given up.
_CONFIRM_LIMIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Beat:
    """An answer of a schedule: a table to be tiered now, if there is one, and rounds that are not ours any more."""

    assignment: TieringAssignment | None
    refused: Mapping[int, FlussError]


class Schedule(Protocol):
    """Says which table is tiered when."""

    def beat(
        self,
        tiering: Collection[TieringAssignment],
        finished: Sequence[FinishedRound],
        failed: Sequence[TieringAssignment],
        *,
        wants_table: bool,
    ) -> Beat:
        """Tell what is going on, and ask for a table."""
        ...

    def confirm(self, assignment: TieringAssignment) -> None:
        """Raise a FlussError if a round must not be committed."""
        ...

    def wait_s(self) -> float:
        """Return after how many seconds there has to be a beat, if nothing happens before."""
        ...


class CoordinatorSchedule:
    """The schedule of the cluster, by heartbeats. Several services share its tables."""

    def __init__(self, calls: TieringCalls, poll_interval_s: float) -> None:
        self._calls = calls
        self._poll_interval_s = poll_interval_s

    def beat(
        self,
        tiering: Collection[TieringAssignment],
        finished: Sequence[FinishedRound],
        failed: Sequence[TieringAssignment],
        *,
        wants_table: bool,
    ) -> Beat:
        answer = self._calls.heartbeat(tiering=tiering, finished=finished, failed=failed, request_table=wants_table)
        return Beat(answer.assignment, answer.refused)

    def confirm(self, assignment: TieringAssignment) -> None:
        answer = retried(lambda: self._calls.heartbeat(tiering=[assignment]), JOBS, _CONFIRM_LIMIT_S)
        if assignment.table_id in answer.refused:
            raise answer.refused[assignment.table_id]

    def wait_s(self) -> float:
        return self._poll_interval_s


class NamedSchedule:
    """Certain tables, each again when its freshness is over. The coordinator is not asked.

    Beside other services that is safe, because commits are conditional, but one of two rounds of a table is in vain.
    """

    def __init__(
        self,
        paths: Sequence[TablePath],
        facts: Callable[[TablePath], tuple[int, float]],
        poll_interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``facts`` returns the id of a table and its freshness in seconds, or raises a FlussError."""
        self._facts = facts
        self._poll_interval_s = poll_interval_s
        self._clock = clock
        self._due_s = dict.fromkeys(paths, clock())
        self._epochs = dict.fromkeys(paths, 0)
        self._freshness_s: dict[TablePath, float] = {}

    def beat(
        self,
        tiering: Collection[TieringAssignment],
        finished: Sequence[FinishedRound],
        failed: Sequence[TieringAssignment],
        *,
        wants_table: bool,
    ) -> Beat:
        now_s = self._clock()
        for ended in finished:
            path = ended.assignment.table_path
            self._due_s[path] = now_s if ended.by_force else now_s + self._freshness_s[path]
        for assignment in failed:
            self._due_s[assignment.table_path] = now_s
        running = {assignment.table_path for assignment in tiering}
        due = [path for path, due_s in self._due_s.items() if due_s <= now_s and path not in running]
        for path in sorted(due, key=self._due_s.__getitem__) if wants_table else ():
            table_id = self._table_id(path)
            if table_id is not None:
                self._epochs[path] += 1
                return Beat(TieringAssignment(table_id, path, 0, self._epochs[path]), {})
        return Beat(None, {})

    def _table_id(self, path: TablePath) -> int | None:
        """Return the id of a table that is due, None if it is to be asked for later.

        A name that was never that of a table is an error; a table that was dropped does not keep others from theirs.
        """
        try:
            table_id, self._freshness_s[path] = self._facts(path)
        except FlussError as error:
            if path not in self._freshness_s:
                raise
            logger.warning("%s cannot be tiered now: %s", path, error.message)
            self._due_s[path] = self._clock() + self._poll_interval_s
            return None
        return table_id

    def confirm(self, assignment: TieringAssignment) -> None:
        return

    def wait_s(self) -> float:
        soonest_s = min(self._due_s.values(), default=0.0) - self._clock()
        return min(self._poll_interval_s, soonest_s) if soonest_s > 0 else self._poll_interval_s
