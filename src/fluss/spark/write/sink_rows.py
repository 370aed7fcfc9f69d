"""Rows on their way into a table, and what was written of them. Known to everything that writes, with Spark or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class SinkRows(NamedTuple):
    """Rows in the form of their table. In a primary-key table some may be deletes, of which only the key counts."""

    rows: pa.RecordBatch
    is_delete: npt.NDArray[np.bool_] | None = None


@dataclass
class WriteSummary:
    """Rows that are stored, altogether and by bucket: ``"<partition name or nothing>:<bucket>"``.

    ``rows_found`` of them had been stored by an attempt before.
    """

    rows: int = 0
    rows_found: int = 0
    rows_by_bucket: Counter[str] = field(default_factory=Counter)

    def described(self, table: object, took_s: float) -> str:
        """Return the summary of a task for its line in the log."""
        found = f" ({self.rows_found} of them by an earlier attempt)" if self.rows_found else ""
        return f"{self.rows} rows{found} to {len(self.rows_by_bucket)} buckets of {table} in {took_s:.3f} s"

    @classmethod
    def total(cls, summaries: Iterable[WriteSummary]) -> WriteSummary:
        """Put the summaries of tasks together."""
        total = cls()
        for each in summaries:
            total.rows += each.rows
            total.rows_found += each.rows_found
            total.rows_by_bucket += each.rows_by_bucket
        return total
