"""Data of callers, in whatever object it comes, as record batches of Arrow."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from fluss.errors import FlussError
from fluss.schema.arrow import arrow_type
from fluss.schema.fitting import refuse_columns
from fluss.schema.schema import Schema
from fluss.schema.types import DataType, MapType, child_types


def record_batch(data: Any) -> list[pa.RecordBatch]:
    """Return one batch of a caller, or a whole table of them, which is in memory anyway."""
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        return list(data.to_batches())
    if hasattr(data, "__arrow_c_array__"):
        with readable():
            return [pa.record_batch(data)]
    raise FlussError(f"Failed to convert RecordBatch: expected a pyarrow.RecordBatch, got {type(data).__name__}")


def is_stream(data: Any) -> bool:
    """Whether the data comes piece by piece, and its end is not known; a table or data frame is all there."""
    if isinstance(data, pa.RecordBatchReader):
        return True
    return hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.Table) and not _is_data_frame(data)


def record_batch_stream(data: Any) -> pa.RecordBatchReader:
    """Return a reader of the stream of a caller."""
    with readable():
        return data if isinstance(data, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(data)


def record_batches(data: Any) -> list[pa.RecordBatch]:
    """Return all batches of data that is all there."""
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.RecordBatch):
        with readable():
            return list((data if isinstance(data, pa.Table) else pa.table(data)).to_batches())
    if isinstance(data, pa.RecordBatch) or hasattr(data, "__arrow_c_array__"):
        return record_batch(data)
    raise TypeError(
        f"expected a pyarrow Table, RecordBatch or RecordBatchReader, or an object with __arrow_c_stream__, got "
        f"{type(data).__name__}{_way_out(data)}"
    )


def _way_out(data: Any) -> str:
    if hasattr(data, "collect"):
        return "; collect() it first"
    if isinstance(data, dict):
        return "; make a table of it with pyarrow.table(...)"
    return "; append_many and upsert_many take rows" if isinstance(data, list | tuple | Iterator) else ""


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


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Give errors of the data itself, such as those of a query that fails half way, the class of all others."""
    try:
        yield
    except pa.ArrowException as error:
        raise FlussError(f"The data cannot be read: {error}") from error


# pandas


def is_pandas(data: Any) -> bool:
    """Whether the data is a data frame of pandas, whose index is no column."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def check_rows(rows: Any) -> None:
    """Refuse columns, over which one can go as well, and one row, where rows are expected."""
    if is_pandas(rows) or hasattr(rows, "__arrow_c_stream__"):
        raise TypeError(f"expected rows, got {_shown_class(rows)}; use write_arrow, or upsert_arrow and delete_arrow")
    if isinstance(rows, Mapping):
        raise TypeError("expected rows, such as a list of dicts, got one dict; put it into a list if it is a row")


def _shown_class(data: Any) -> str:
    """Return a class with its library: all of them have a DataFrame."""
    library = type(data).__module__.partition(".")[0]
    return type(data).__name__ if library == "builtins" else f"{type(data).__name__} of {library}"


def pandas_table(frame: Any, schema: Schema, *, holder: str, strict: bool) -> pa.Table:
    """Return a data frame of pandas as Arrow. Levels of its index count as columns if they have the name of one.

    Values that are Python objects have the types that pyarrow finds for them. With ``strict`` all columns are
    converted by pyarrow, to the types of the schema and by its own rules.
    """
    if not is_pandas(frame):
        hint = "; write_arrow and upsert_arrow take it" if hasattr(frame, "__arrow_c_stream__") else ""
        raise TypeError(f"expected a pandas DataFrame, got {_shown_class(frame)}{hint}")
    levels = [name for name in frame.index.names if name in schema.column_names and name not in frame.columns]
    if levels:
        frame = frame.reset_index(level=levels)
    names = list(frame.columns)
    for name in names:
        if not isinstance(name, str):
            raise FlussError(f"The columns of a data frame need names that are str, got {name!r}")
    refuse_columns(names, schema, holder)
    if strict:
        try:
            return pa.Table.from_pandas(frame, schema=schema.to_arrow(), preserve_index=False)
        except (pa.ArrowException, KeyError) as error:
            raise FlussError(f"The data frame does not fit {holder}: {error}") from error
    return pa.table({name: _pandas_column(frame[name], schema.column(name).data_type, name) for name in names})


def _pandas_column(series: Any, data_type: DataType, name: str) -> pa.Array | pa.ChunkedArray:
    if series.dtype != object:
        with readable():
            return pa.array(series, from_pandas=True)
    if not _has_maps(data_type):
        kinds = set(map(type, series))
        if dt.date in kinds and any(issubclass(kind, dt.datetime) for kind in kinds):
            # pyarrow would find dates here, and cut the times off.
            series = series.map(_at_midnight)
        try:
            return pa.array(series, from_pandas=True)
        except (pa.ArrowException, OverflowError):
            # Objects that have no type in common, such as texts among numbers.
            pass
    target = arrow_type(data_type)
    try:
        return pa.array(series, type=target, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        for row, value in enumerate(series.tolist()):
            if not _is_convertible(value, target):
                raise FlussError(
                    f"Row {row} has {value!r:.60} in column '{name}', which does not fit {data_type}"
                ) from None
        raise FlussError(f"Column '{name}' cannot be converted to {data_type}: {error}") from error


def _at_midnight(value: Any) -> Any:
    return dt.datetime.combine(value, dt.time()) if type(value) is dt.date else value


def _is_convertible(value: Any, target: pa.DataType) -> bool:
    try:
        pa.array([value], type=target, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _has_maps(data_type: DataType) -> bool:
    """Whether there are maps in values, for which Python has dicts, like for structs."""
    return isinstance(data_type, MapType) or any(map(_has_maps, child_types(data_type)))
