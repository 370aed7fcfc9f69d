"""What a check found: violations of promises, each with a sentence that says where to look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# Of each kind of violation so many are told in full; the others are counted.
_EXAMPLES_MAX: Final = 5


class Violation(StrEnum):
    """Which promise was broken."""

    LOST = "lost"
    DOUBLED = "doubled"
    PHANTOM = "phantom"
    FOREIGN = "foreign"
    REFUSED_BUT_THERE = "refused-but-there"
    DAMAGED = "damaged"
    WRITER_ORDER = "writer-order"
    REAL_TIME_ORDER = "real-time-order"
    OFFSET_GAP = "offset-gap"
    OFFSET_ORDER = "offset-order"
    UNSEEN = "unseen"
    SEEN_BEFORE_WRITTEN = "seen-before-written"
    HIGH_WATERMARK = "high-watermark"
    CHANGELOG = "changelog"
    TORN_ROW = "torn-row"
    STALE = "stale"
    PHANTOM_DELETE = "phantom-delete"
    SNAPSHOT = "snapshot"
    FINAL_ROWS = "final-rows"
    BUCKET = "bucket"
    TABLE_LOST = "table-lost"
    TABLE_UNDEAD = "table-undead"


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of violation in one table: how often, and the first examples as sentences."""

    violation: Violation
    table: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        more = f" (and {self.count - len(self.examples)} more)" if self.count > len(self.examples) else ""
        return f"{self.violation} in {self.table}: {'; '.join(self.examples)}{more}"


@dataclass
class Findings:
    """Collects what is wrong with one table."""

    table: str
    found: list[Finding] = field(default_factory=list)

    def add(self, violation: Violation, bad: npt.NDArray[Any], describe: Callable[[int], str]) -> None:
        """Add the rows where ``bad``, a mask or indices, says so; ``describe`` makes a sentence of an index."""
        rows = np.flatnonzero(bad) if bad.dtype == np.bool_ else bad
        if rows.size:
            examples = tuple(describe(int(row)) for row in rows[:_EXAMPLES_MAX])
            self.found.append(Finding(violation, self.table, int(rows.size), examples))
