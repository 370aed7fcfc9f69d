"""Arrow IPC files, which Feather files are, too, and streams: their record batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa

from fluss.spark.bulk.files import DataFile
from fluss.spark.bulk.fitting import ColumnFit
from fluss.spark.bulk.pieces import FileFacts, FilePiece, PlacedBatch, Unit, row_slices
from fluss.spark.bulk.unfit import UnfitInputError

_FILE_MAGIC: Final = b"ARROW1"


def examine(file: DataFile) -> FileFacts:
    """Read the schema of a file. A stream does not say where its batches are, so it is read in one go."""
    with file.open() as opened:
        try:
            if not _is_file(opened):
                with pa.ipc.open_stream(opened) as stream:
                    whole = Unit(file.size_bytes, None)
                    return FileFacts(file, tuple(stream.schema.names), stream.schema, (whole,))
            with pa.ipc.open_file(opened) as reader:
                count = reader.num_record_batches
                units = tuple(Unit(file.size_bytes // count, None) for _ in range(count))
                return FileFacts(file, tuple(reader.schema.names), reader.schema, units)
        except (pa.ArrowException, OSError) as error:
            raise UnfitInputError(f"{file.path} is no Arrow file: {error}") from error


def read(piece: FilePiece, fit: ColumnFit) -> Iterator[PlacedBatch]:
    """Read record batches, one after the other."""
    with piece.file.open() as opened:
        try:
            for number, batch in _batches(opened, piece):
                rows = pa.RecordBatch.from_arrays(
                    [batch.column(name) for name in fit.sources.values()], names=fit.targets
                )
                for first, part in row_slices(rows):
                    yield PlacedBatch(part, partial(_place, piece.file, number, first))
        except (pa.ArrowException, OSError) as error:
            raise UnfitInputError(f"{piece.file.path} cannot be read: {error}") from error


def _batches(opened: pa.NativeFile, piece: FilePiece) -> Iterator[tuple[int, pa.RecordBatch]]:
    if not _is_file(opened):
        with pa.ipc.open_stream(opened) as stream:
            yield from enumerate(stream)
        return
    with pa.ipc.open_file(opened) as reader:
        for number in range(piece.start, piece.stop):
            yield number, reader.get_batch(number)


def _is_file(opened: pa.NativeFile) -> bool:
    magic = opened.read(len(_FILE_MAGIC))
    opened.seek(0)
    return bool(magic == _FILE_MAGIC)


def _place(file: DataFile, batch: int, first: int, number: int) -> str:
    return f"{file.path}, record batch {batch}, row {first + number}"
