"""Tables as data frames of polars, and as relations of duckdb: neither is needed by anything else.

Both are lazy: columns and conditions of a query reach the scan, which begins when the query runs. What a scan does not
understand of a condition is left to them, so results are theirs in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from fluss.errors import FlussError
from fluss.libraries import library_hint
from fluss.schema.predicate import Filter
from fluss.schema.schema import Schema

if TYPE_CHECKING:
    import duckdb
    import polars as pl

# Rows of a frame, unless polars says how many it wants: each costs something, however small it is.
_FRAME_ROWS: Final = 100_000
# Reads columns, rows that conditions keep, and at most so many of them.
ReadBatches: TypeAlias = Callable[[Sequence[str] | None, Filter | None, int | None], Iterator[pa.RecordBatch]]


def require_library(name: str, what: str) -> None:
    """Say what to install before anything is read."""
    hint = library_hint(name)
    if hint is not None:
        raise FlussError(f"{what} needs {name}: {hint}. Or read with to_arrow, which needs nothing")


def polars_frame(table: pa.Table) -> pl.DataFrame:
    """Return a table as a frame of polars, which shares its memory where it can."""
    import polars as pl

    frame = pl.from_arrow(table, rechunk=False)
    assert isinstance(frame, pl.DataFrame), "a table is no single column"
    return frame


def lazy_polars_frame(schema: Schema, read: ReadBatches) -> pl.LazyFrame:
    """Return a lazy frame whose columns, conditions and limits reach the scan."""
    require_library("polars", "A lazy frame")
    from polars.io.plugins import register_io_source

    from fluss.filter.row_filter import RowFilter

    arrow_schema = schema.to_arrow()

    def frames(
        columns: list[str] | None, condition: pl.Expr | None, row_limit: int | None, batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        # A limit comes before a condition, if there are both: rows that are left out count.
        is_hint = condition is not None and row_limit is None
        hint = RowFilter.hint_of_polars(condition, schema) if is_hint else None
        chosen = arrow_schema if columns is None else pa.schema([arrow_schema.field(name) for name in columns])
        for table in _tables(read(columns, hint, row_limit), chosen, batch_rows or _FRAME_ROWS):
            frame = polars_frame(table)
            yield frame if condition is None else frame.filter(condition)

    return register_io_source(frames, schema=polars_frame(arrow_schema.empty_table()).schema)


def _tables(batches: Iterator[pa.RecordBatch], schema: pa.Schema, row_count_min: int) -> Iterator[pa.Table]:
    """Put batches together to tables of so many rows or more, and at least to one."""
    waiting: list[pa.RecordBatch] = []
    row_count = 0
    is_first = True
    for batch in batches:
        waiting.append(batch)
        row_count += batch.num_rows
        if row_count >= row_count_min:
            yield pa.Table.from_batches(waiting, schema=schema)
            waiting, row_count, is_first = [], 0, False
    if waiting or is_first:
        yield pa.Table.from_batches(waiting, schema=schema)


def duckdb_relation(
    schema: Schema, read: ReadBatches, connection: duckdb.DuckDBPyConnection | None
) -> duckdb.DuckDBPyRelation:
    """Return a relation whose columns and conditions reach the scan."""
    require_library("duckdb", "A relation")
    import duckdb

    from fluss.client.scan.arrow_dataset import ScanDataset

    dataset: Any = ScanDataset(schema.to_arrow(), read)
    return duckdb.from_arrow(dataset) if connection is None else connection.from_arrow(dataset)
