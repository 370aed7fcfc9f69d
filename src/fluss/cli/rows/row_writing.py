"""Writes batches to a file, or to standard output: Parquet, Arrow, CSV, JSON lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, BinaryIO, TypeAlias

import pyarrow as pa

from fluss.cli.kernel.exits import CommandError, Exit, ReaderGoneError
from fluss.cli.kernel.values import complete_values, csv_text, json_text, python_values
from fluss.cli.rows.row_files import STANDARD_INPUT, compression_of
from fluss.file_formats import FileFormat
from fluss.row.python_values import python_column
from fluss.schema.types import DataType

Sink: TypeAlias = BinaryIO | pa.NativeFile
Write = Callable[[pa.RecordBatch], None]


@contextmanager
def row_writer(path: str, file_format: FileFormat, schema: pa.Schema, types: Mapping[str, DataType]) -> Iterator[Write]:
    """Open a file for rows. It gets its name when everything is in it; after a failure there is none.

    ``types`` are those of a table, whose values are then as its records have them.
    """
    if path == STANDARD_INPUT:
        try:
            with _writer(sys.stdout.buffer, file_format, schema, types) as write:
                yield write
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise ReaderGoneError from None
        return
    unfinished = f"{path}.part"
    try:
        with open(unfinished, "wb") as file, ExitStack() as stack:
            whole = compression_of(path, file_format)
            sink = file if whole is None else stack.enter_context(pa.CompressedOutputStream(file, whole))
            yield stack.enter_context(_writer(sink, file_format, schema, types))
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


@contextmanager
def _writer(file: Sink, file_format: FileFormat, schema: pa.Schema, types: Mapping[str, DataType]) -> Iterator[Write]:
    with ExitStack() as stack:
        match file_format:
            case FileFormat.PARQUET:
                import pyarrow.parquet as pq

                yield stack.enter_context(pq.ParquetWriter(file, schema, compression="zstd")).write_batch
            case FileFormat.ARROW:
                # A stream can be written to a pipe, and be read from a file all the same.
                yield stack.enter_context(pa.ipc.new_stream(file, schema)).write_batch
            case FileFormat.CSV:
                _write_lines(file, csv_text([schema.names]))

                def write_csv(batch: pa.RecordBatch) -> None:
                    _check_single_column(batch)
                    _write_lines(file, csv_text(zip(*_columns(batch, types), strict=True)))

                yield write_csv
            case FileFormat.JSON:
                yield lambda batch: _write_lines(
                    file,
                    (
                        f"{json_text(dict(zip(schema.names, row, strict=True)))}\n"
                        for row in zip(*_columns(batch, types), strict=True)
                    ),
                )


def _check_single_column(batch: pa.RecordBatch) -> None:
    if batch.num_columns == 1 and batch.column(0).null_count:
        name = batch.schema.names[0]
        raise CommandError(
            f"'{name}' is the only column and has nulls, which would be empty lines of CSV, and readers leave those "
            "out; write JSON lines or Parquet, or one more column",
            Exit.DATA,
        )


def _write_lines(file: Sink, lines: Iterator[str]) -> None:
    file.write("".join(lines).encode())


def _columns(batch: pa.RecordBatch, types: Mapping[str, DataType]) -> list[list[Any]]:
    return [
        complete_values(python_column(column, types[name]), column) if name in types else python_values(column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
