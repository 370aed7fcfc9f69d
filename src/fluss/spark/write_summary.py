"""What goes into a write, and what it has done."""

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

    @classmethod
    def total(cls, summaries: Iterable[WriteSummary]) -> WriteSummary:
        """Put the summaries of tasks together."""
        total = cls()
        for each in summaries:
            total.rows += each.rows
            total.rows_found += each.rows_found
            total.rows_by_bucket += each.rows_by_bucket
        return total
