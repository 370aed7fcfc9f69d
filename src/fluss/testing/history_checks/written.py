"""The writes of a history by the numbers of their rows: which write a row that was read came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fluss.testing.history import DAMAGED, History, Numbers, Outcome
from fluss.testing.history_checks.findings import Findings, Violation
from fluss.testing.history_checks.order import rows_where


@dataclass(frozen=True)
class WrittenRows:
    """All rows that were sent, in the order of their numbers; columns beside each other."""

    number: Numbers
    table: Numbers
    key: Numbers
    kind: Numbers
    process: Numbers
    # The place of the row in the order of sending.
    sequence: Numbers
    start_ns: Numbers
    end_ns: Numbers
    outcome: Numbers

    @classmethod
    def of(cls, history: History) -> WrittenRows:
        writes, operations = history.writes.table(), history.operations.table()
        order = np.argsort(writes["number"], kind="stable")
        operation = writes["operation"][order]
        number = writes["number"][order]
        if (np.diff(number) == 0).any():
            raise ValueError("a history cannot be checked if two writes carry the same number")
        return cls(
            number=number,
            table=writes["table"][order],
            key=writes["key"][order],
            kind=writes["kind"][order],
            process=operations["process"][operation],
            sequence=order.astype(np.int64),
            start_ns=operations["start_ns"][operation],
            end_ns=operations["end_ns"][operation],
            outcome=operations["outcome"][operation],
        )

    def rows_of(self, numbers: Numbers) -> Numbers:
        """Return the row of each number, or -1."""
        return rows_where(self.number, numbers)


def check_origin(
    findings: Findings, table: int, names: list[str], written: WrittenRows, rows: Numbers, numbers: Numbers, how: str
) -> None:
    """Check that rows were sent to this table and not refused. ``rows`` are their writes, by number."""
    is_damaged = numbers == DAMAGED
    findings.add(Violation.DAMAGED, is_damaged, lambda i: f"a row came back damaged by {how}")
    is_phantom = (rows < 0) & ~is_damaged
    findings.add(Violation.PHANTOM, is_phantom, lambda i: f"{numbers[i]} was found by {how} and never written")
    is_foreign = (rows >= 0) & (written.table[rows] != table) if written.number.size else is_phantom & False
    findings.add(
        Violation.FOREIGN,
        is_foreign,
        lambda i: f"{numbers[i]} was written to {names[written.table[rows[i]]]} and found by {how}",
    )
    if written.number.size:
        is_refused = (rows >= 0) & ~is_foreign & (written.outcome[rows] == Outcome.FAILED)
        findings.add(
            Violation.REFUSED_BUT_THERE,
            is_refused,
            lambda i: f"the write of {numbers[i]} was refused, and {how} finds it",
        )
