"""A service that keeps lakes fresh: takes tables from a schedule, runs their rounds, several at a time, and reports.

    beat -> a table -> a slot: plan, tasks, commit, maintenance -> progress -> the next beat tells how it ended

The schedule hears of the service at every change and at least once in an interval, whatever the rounds do. A round that
the schedule has given to another service is told so: before its commit it asks once more, and gives up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from fluss.client.bulk import FinishedRound, TieringAssignment
from fluss.errors import FlussError
from fluss.retry import TIERING_ROUNDS
from fluss.tiering.progress import RoundProgress
from fluss.tiering.round_commit import RoundLostError
from fluss.tiering.rounds import RoundReport
from fluss.tiering.schedules import Schedule

StillOurs: TypeAlias = Callable[[], None]
RunRound: TypeAlias = Callable[[TieringAssignment, StillOurs], RoundReport]
"""Runs a round, calling ``still_ours`` before each commit, which raises RoundLostError if it must not be made."""

logger = logging.getLogger(__name__)


class _Slot:
    """A round under way."""

    def __init__(self, assignment: TieringAssignment) -> None:
        self.assignment = assignment
        # Why it is not ours any more.
        self.lost: FlussError | None = None


class TieringService:
    """Runs until it is stopped. ``on_progress`` is told every round that has ended, from the thread of that round.

    ``on_lost`` is told a table whose round is not ours any more while it runs, to end its tasks.
    """

    def __init__(
        self,
        schedule: Schedule,
        run_round: RunRound,
        *,
        max_tables: int = 4,
        on_progress: Callable[[RoundProgress], None] = lambda progress: None,
        on_lost: Callable[[TieringAssignment], None] = lambda assignment: None,
    ) -> None:
        if max_tables < 1:
            raise ValueError(f"a service tiers at least 1 table at a time, got {max_tables}")
        self._schedule = schedule
        self._run_round = run_round
        self._max_tables = max_tables
        self._on_progress = on_progress
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._running: dict[int, _Slot] = {}
        self._finished: list[FinishedRound] = []
        self._failed: list[TieringAssignment] = []
        self._failures: dict[int, int] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()

    def run(self) -> None:
        """Tier until ``stop`` is called. Raises what the schedule says that waiting does not help against."""
        with ThreadPoolExecutor(self._max_tables, "fluss-tiering") as slots:
            try:
                while not self._stopping.is_set():
                    if not self._beat(slots):
                        self._wake.wait(self._schedule.wait_s())
                        self._wake.clear()
            finally:
                self._stopping.set()
                self._give_up()
        # Others may have the tables at once.
        self._beat(None)

    def stop(self) -> None:
        """Have ``run`` return soon: rounds that are not at their commit yet are given up, and nothing of them stays."""
        self._stopping.set()
        self._wake.set()

    @property
    def is_stopping(self) -> bool:
        """Whether ``stop`` was called, or ``run`` has ended."""
        return self._stopping.is_set()

    # Beats

    def _beat(self, slots: ThreadPoolExecutor | None) -> bool:
        """Tell and ask the schedule; return whether it gave us a table, so that it may have more."""
        with self._lock:
            finished, self._finished = self._finished, []
            failed, self._failed = self._failed, []
            running = [slot.assignment for slot in self._running.values() if slot.lost is None]
            wants_table = slots is not None and len(self._running) < self._max_tables
        try:
            beat = self._schedule.beat(running, finished, failed, wants_table=wants_table)
        except FlussError as error:
            with self._lock:
                self._finished[:0], self._failed[:0] = finished, failed
            if not error.is_retriable and slots is not None:
                raise
            logger.warning("the schedule of lake tables cannot be asked: %s", error.message)
            return False
        for table_id, refusal in beat.refused.items():
            self._lose(table_id, refusal)
        if beat.assignment is None or slots is None:
            return False
        slot = _Slot(beat.assignment)
        with self._lock:
            self._running[slot.assignment.table_id] = slot
        slots.submit(self._round, slot)
        return True

    def _lose(self, table_id: int, error: FlussError) -> None:
        with self._lock:
            slot = self._running.get(table_id)
            if slot is None or slot.lost is not None:
                return
            slot.lost = error
        logger.warning("the round of %s is not ours any more: %s", slot.assignment.table_path, error.message)
        self._on_lost(slot.assignment)

    def _give_up(self) -> None:
        with self._lock:
            slots = [slot for slot in self._running.values() if slot.lost is None]
        for slot in slots:
            self._on_lost(slot.assignment)

    # Rounds

    def _round(self, slot: _Slot) -> None:
        assignment = slot.assignment
        path = str(assignment.table_path)
        finished: FinishedRound | None = None
        try:
            report = self._run_round(assignment, lambda: self._check(slot))
            progress = RoundProgress.of(report)
            finished = FinishedRound(assignment, not report.is_complete, report.bytes, report.rows)
        except FlussError as error:
            is_lost = slot.lost is not None or self._stopping.is_set()
            progress = (
                RoundProgress(path, "lost", error=error.message) if is_lost else RoundProgress.of_error(path, error)
            )
        except Exception as error:
            logger.exception("a round of %s failed", path)
            progress = RoundProgress.of_exception(path, error)
        try:
            self._on_progress(progress)
        except Exception:
            logger.warning("the progress of %s cannot be told", path, exc_info=True)
        self._pause(assignment, is_failed=finished is None)
        with self._lock:
            del self._running[assignment.table_id]
            if finished is not None:
                self._finished.append(finished)
            elif slot.lost is None:
                self._failed.append(assignment)
        self._wake.set()

    def _pause(self, assignment: TieringAssignment, *, is_failed: bool) -> None:
        """Keep a table that fails for a while, so that it is not handed out again at once, for ever."""
        if not is_failed:
            self._failures.pop(assignment.table_id, None)
            return
        count = self._failures[assignment.table_id] = self._failures.get(assignment.table_id, 0) + 1
        self._stopping.wait(TIERING_ROUNDS.pause_s(count))

    def _check(self, slot: _Slot) -> None:
        path = slot.assignment.table_path
        if slot.lost is not None:
            raise RoundLostError(slot.lost.message, slot.lost.error_code)
        if self._stopping.is_set():
            raise RoundLostError(f"The round of {path} was given up: the service is being stopped")
        try:
            self._schedule.confirm(slot.assignment)
        except FlussError as error:
            slot.lost = error
            raise RoundLostError(
                f"The round of {path} must not be committed: {error.message}", error.error_code
            ) from None
