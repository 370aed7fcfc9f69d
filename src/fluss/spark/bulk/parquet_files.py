"""Parquet files: their row groups."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from fluss.spark.bulk.files import DataFile
from fluss.spark.bulk.fitting import ColumnFit
from fluss.spark.bulk.pieces import BATCH_ROWS, FileFacts, FilePiece, PlacedBatch, Unit
from fluss.spark.bulk.unfit import UnfitInputError


def examine(file: DataFile) -> FileFacts:
    """Read the footer of a file."""
    with file.open() as opened, _open(opened, file) as reader:
        metadata, schema = reader.metadata, reader.schema_arrow
    row_counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    units = tuple(Unit(file.size_bytes * rows // max(metadata.num_rows, 1), rows) for rows in row_counts)
    return FileFacts(file, tuple(schema.names), schema, units)


def read(piece: FilePiece, fit: ColumnFit) -> Iterator[PlacedBatch]:
    """Read row groups, one after the other."""
    file, sources = piece.file, list(fit.sources.values())
    # A name with a dot means a field of a struct to the reader, so that everything is read.
    columns = None if any("." in name for name in piece.names) else sources
    with file.open() as opened, _open(opened, file) as reader:
        for group in range(piece.start, piece.stop):
            first = 0
            try:
                for batch in reader.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
                    rows = pa.RecordBatch.from_arrays([batch.column(name) for name in sources], names=fit.targets)
                    yield PlacedBatch(rows, partial(_place, file, group, first))
                    first += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                raise UnfitInputError(f"{_place(file, group, first, 0)}: {error}") from error


def _open(opened: pa.NativeFile, file: DataFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(opened, pre_buffer=True)
    except (pa.ArrowException, OSError) as error:
        raise UnfitInputError(f"{file.path} is no Parquet file: {error}") from error


def _place(file: DataFile, group: int, first: int, number: int) -> str:
    return f"{file.path}, row group {group}, row {first + number}"
