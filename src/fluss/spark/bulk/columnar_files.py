"""Files that know their columns: Parquet, and Arrow IPC files (which Feather files are, too) and streams."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from fluss.spark.bulk.files import BATCH_ROWS, DataFile, FileFacts, FilePiece, PlacedBatch, Unit, row_slices
from fluss.spark.bulk.fitting import ColumnFit
from fluss.spark.bulk.jobs import UnfitInputError

_FILE_MAGIC: Final = b"ARROW1"


# Parquet


def examine_parquet(file: DataFile) -> FileFacts:
    """Read the footer of a file."""
    with file.open() as opened, _open_parquet(opened, file) as reader:
        metadata, schema = reader.metadata, reader.schema_arrow
    row_counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    units = tuple(Unit(file.size_bytes * rows // max(metadata.num_rows, 1), rows) for rows in row_counts)
    return FileFacts(file, tuple(schema.names), schema, units)


def read_parquet(piece: FilePiece, fit: ColumnFit) -> Iterator[PlacedBatch]:
    """Read row groups, one after the other."""
    file, sources = piece.file, list(fit.sources.values())
    # A name with a dot means a field of a struct to the reader, so that everything is read.
    columns = None if any("." in name for name in piece.names) else sources
    with file.open() as opened, _open_parquet(opened, file) as reader:
        for group in range(piece.start, piece.stop):
            first = 0
            try:
                for batch in reader.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False):
                    rows = pa.RecordBatch.from_arrays([batch.column(name) for name in sources], names=fit.targets)
                    yield PlacedBatch(rows, partial(_parquet_place, file, group, first))
                    first += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                raise UnfitInputError(f"{_parquet_place(file, group, first, 0)}: {error}") from error


def _open_parquet(opened: pa.NativeFile, file: DataFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(opened, pre_buffer=True)
    except (pa.ArrowException, OSError) as error:
        raise UnfitInputError(f"{file.path} is no Parquet file: {error}") from error


def _parquet_place(file: DataFile, group: int, first: int, number: int) -> str:
    return f"{file.path}, row group {group}, row {first + number}"


# Arrow


def examine_arrow(file: DataFile) -> FileFacts:
    """Read the schema of a file. A stream does not say where its batches are, so it is read in one go."""
    with file.open() as opened:
        try:
            if not _is_arrow_file(opened):
                with pa.ipc.open_stream(opened) as stream:
                    whole = Unit(file.size_bytes, None)
                    return FileFacts(file, tuple(stream.schema.names), stream.schema, (whole,))
            with pa.ipc.open_file(opened) as reader:
                count = reader.num_record_batches
                units = tuple(Unit(file.size_bytes // count, None) for _ in range(count))
                return FileFacts(file, tuple(reader.schema.names), reader.schema, units)
        except (pa.ArrowException, OSError) as error:
            raise UnfitInputError(f"{file.path} is no Arrow file: {error}") from error


def read_arrow(piece: FilePiece, fit: ColumnFit) -> Iterator[PlacedBatch]:
    """Read record batches, one after the other."""
    with piece.file.open() as opened:
        try:
            for number, batch in _arrow_batches(opened, piece):
                rows = pa.RecordBatch.from_arrays(
                    [batch.column(name) for name in fit.sources.values()], names=fit.targets
                )
                for first, part in row_slices(rows):
                    yield PlacedBatch(part, partial(_arrow_place, piece.file, number, first))
        except (pa.ArrowException, OSError) as error:
            raise UnfitInputError(f"{piece.file.path} cannot be read: {error}") from error


def _arrow_batches(opened: pa.NativeFile, piece: FilePiece) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not _is_arrow_file(opened):
        with pa.ipc.open_stream(opened) as stream:
            yield from enumerate(stream)
        return
    with pa.ipc.open_file(opened) as reader:
        for number in range(piece.start, piece.stop):
            yield number, reader.get_batch(number)


def _is_arrow_file(opened: pa.NativeFile) -> bool:
    magic = opened.read(len(_FILE_MAGIC))
    opened.seek(0)
    return bool(magic == _FILE_MAGIC)


def _arrow_place(file: DataFile, batch: int, first: int, number: int) -> str:
    return f"{file.path}, record batch {batch}, row {first + number}"
