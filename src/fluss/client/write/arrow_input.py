"""Arrow data of callers, in whatever object it comes, as record batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from fluss.errors import FlussError


def record_batch(data: Any) -> list[pa.RecordBatch]:
    """Return one batch of a caller, or a whole table of them, which is in memory anyway."""
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        return list(data.to_batches())
    if hasattr(data, "__arrow_c_array__"):
        return [pa.record_batch(data)]
    raise FlussError(f"Failed to convert RecordBatch: expected a pyarrow.RecordBatch, got {type(data).__name__}")


def is_stream(data: Any) -> bool:
    """Whether the data comes piece by piece, and its end is not known; a table or data frame is all there."""
    if isinstance(data, pa.RecordBatchReader):
        return True
    return hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.Table) and not _is_data_frame(data)


def record_batch_stream(data: Any) -> pa.RecordBatchReader:
    """Return a reader of the stream of a caller."""
    return data if isinstance(data, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(data)


def record_batches(data: Any) -> list[pa.RecordBatch]:
    """Return all batches of data that is all there."""
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.RecordBatch):
        return list((data if isinstance(data, pa.Table) else pa.table(data)).to_batches())
    if isinstance(data, pa.RecordBatch) or hasattr(data, "__arrow_c_array__"):
        return record_batch(data)
    raise TypeError(
        f"expected a pyarrow Table, RecordBatch or RecordBatchReader, or an object with __arrow_c_stream__, got "
        f"{type(data).__name__}"
    )


def slices(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of at most so many bytes, where its rows allow that; nothing is copied."""
    if batch.nbytes <= bytes_max or batch.num_rows == 1:
        yield batch
        return
    # With rows of about the same size this is the last cut.
    piece_count = -(-batch.nbytes // bytes_max)
    rows_per_piece = -(-batch.num_rows // piece_count)
    if rows_per_piece == batch.num_rows:
        rows_per_piece = -(-batch.num_rows // 2)
    for start in range(0, batch.num_rows, rows_per_piece):
        yield from slices(batch.slice(start, rows_per_piece), bytes_max)


def _is_data_frame(data: Any) -> bool:
    # What polars and pandas have and lazy results, such as those of duckdb, do not.
    return hasattr(data, "__dataframe__")
