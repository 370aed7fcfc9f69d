"""How many bytes rows take as Arrow columns, measured on a few; ``row.arrow_arrays`` estimates from their types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from fluss.client.bulk.ranges import LogRange, read_ranges
from fluss.client.table import FlussTable
from fluss.errors import FlussError

# Rows that are measured at most.
_SAMPLE_ROWS: Final = 1000


def measured_row_bytes(table: FlussTable, log: LogRange, columns: Sequence[str]) -> float | None:
    """Return what the last rows of a part of a log take on average; None if they cannot be read now."""
    last = log._replace(start=max(log.start, log.stop - _SAMPLE_ROWS))
    try:
        batches: list[pa.RecordBatch] = [run.batch for run in read_ranges(table, [last], columns=columns)]
    except FlussError:
        return None
    row_count = sum(batch.num_rows for batch in batches)
    return sum(batch.nbytes for batch in batches) / row_count if row_count else None
