"""The data of the end-to-end benchmarks. Needs only pyarrow and numpy: the processes of other clients use it, too."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("customer", pa.string()),
        pa.field("amount", pa.float64()),
        pa.field("quantity", pa.int32()),
        pa.field("paid", pa.bool_()),
    ]
)
# Just below the size at which writers split: every client sends what it is given.
BATCH_ROWS = 45_000
# Keys that are there to be looked up, and how many lookups are under way at once.
LOOKUP_KEYS = 100_000
LOOKUPS_IN_FLIGHT = 1000


def order_batch(row_count: int, first_id: int = 0) -> pa.RecordBatch:
    """Return orders with made-up but reproducible values: about 43 bytes a row."""
    ids = np.arange(first_id, first_id + row_count)
    return pa.record_batch(
        [
            pa.array(ids),
            pa.array([f"customer-{number:012d}" for number in ids % 100_003]),
            pa.array((ids * 7919 % 1_000_003) / 100),
            pa.array((ids % 17).astype(np.int32)),
            pa.array(ids % 3 == 0),
        ],
        schema=SCHEMA,
    )


def order_rows(row_count: int) -> list[dict[str, object]]:
    """Return the same orders as dicts."""
    rows: list[dict[str, object]] = order_batch(row_count).to_pylist()
    return rows
