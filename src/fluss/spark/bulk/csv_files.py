"""CSV files: lines of values, with or without names in the first one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import csv

from fluss.errors import FlussError
from fluss.schema.schema import Schema
from fluss.spark.bulk.files import DataFile
from fluss.spark.bulk.fitting import ColumnFit
from fluss.spark.bulk.pieces import FileFacts, FilePiece, PlacedBatch, row_slices
from fluss.spark.bulk.text_lines import LineBlock, blame, line_blocks, placed_rows
from fluss.spark.bulk.unfit import UnfitInputError

_HEADER_BYTES_MAX: Final = 4 * 1024 * 1024
_BLOCK_BYTES: Final = 8 * 1024 * 1024
_MULTILINE_HINT: Final = "; if values have line ends in them, give multiline=True"


@dataclass(frozen=True)
class CsvFormat:
    """How values are written. It goes to the executors."""

    delimiter: str | None = None
    """What is between values: by default a comma, or a tab in files that are called ``.tsv``."""
    quote: str = '"'
    escape: str | None = None
    has_header: bool = True
    null_values: tuple[str, ...] = ("",)
    """Texts that mean null, unless they are quoted."""
    is_multiline: bool = False
    """Whether quoted values may contain line ends. Such files are read in one go."""

    def __post_init__(self) -> None:
        for name, text in (("delimiter", self.delimiter), ("quote", self.quote), ("escape", self.escape)):
            if text is not None and len(text) != 1:
                raise FlussError(f"The {name} of CSV files must be one character, got {text!r}")

    def parse_options(self, file: DataFile) -> csv.ParseOptions:
        delimiter = self.delimiter or ("\t" if ".tsv" in file.path.lower() else ",")
        return csv.ParseOptions(
            delimiter=delimiter,
            quote_char=self.quote,
            escape_char=self.escape or False,
            newlines_in_values=self.is_multiline,
        )


def examine(file: DataFile, csv_format: CsvFormat, names: Sequence[str]) -> FileFacts:
    """Read the names in the first line; files without them have the columns ``names``."""
    is_whole = file.is_compressed or csv_format.is_multiline
    if not csv_format.has_header:
        return FileFacts(file, tuple(names), is_whole=is_whole)
    line = _first_line(file)
    try:
        header = csv.read_csv(pa.BufferReader(line + b"\n"), parse_options=csv_format.parse_options(file))
    except pa.ArrowException as error:
        raise UnfitInputError(f"{file.path} has no line of column names: {error}") from error
    return FileFacts(file, tuple(header.column_names), data_start=len(line), is_whole=is_whole)


def _first_line(file: DataFile) -> bytes:
    with file.open_stream() as stream:
        data: bytes = stream.read(_HEADER_BYTES_MAX)
    end = data.find(b"\n") + 1
    if not end and len(data) == _HEADER_BYTES_MAX:
        raise UnfitInputError(
            f"The first line of {file.path} has more than {_HEADER_BYTES_MAX} bytes; is it a CSV file?"
        )
    return data[:end] if end else data


def check_types(schema: Schema, columns: Sequence[str]) -> None:
    """Refuse columns that cannot be written as one text."""
    arrow = schema.to_arrow()
    for name in columns:
        if pat.is_nested(arrow.field(name).type):
            raise UnfitInputError(
                f"Column '{name}' is {schema.column(name).data_type}, which CSV files cannot hold; use Parquet"
            )


def read(piece: FilePiece, fit: ColumnFit, schema: Schema, csv_format: CsvFormat) -> Iterator[PlacedBatch]:
    """Read the lines of a piece, typed as the columns of the table are."""
    parser = _Parser(piece, fit, schema, csv_format)
    if csv_format.is_multiline:
        yield from parser.read_stream()
        return
    for block in line_blocks(piece):
        yield from parser.read_block(block)


class _Parser:
    """Parses the lines of one piece."""

    def __init__(self, piece: FilePiece, fit: ColumnFit, schema: Schema, csv_format: CsvFormat) -> None:
        self._piece = piece
        self._targets = fit.targets
        arrow = schema.to_arrow()
        types: Mapping[str, pa.DataType] = {source: arrow.field(name).type for name, source in fit.sources.items()}
        self._parse = csv_format.parse_options(piece.file)
        self._convert = csv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=list(csv_format.null_values),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )

    def _options(self, block_bytes: int) -> csv.ReadOptions:
        return csv.ReadOptions(column_names=list(self._piece.names), use_threads=False, block_size=block_bytes)

    def _table(self, data: bytes) -> pa.Table:
        # One byte more than there are: the reader wants to see that there are no more.
        return csv.read_csv(pa.BufferReader(data), self._options(len(data) + 1), self._parse, self._convert)

    def read_block(self, block: LineBlock) -> Iterator[PlacedBatch]:
        if not block.data.strip():
            return
        try:
            table = self._table(block.data)
        except pa.ArrowException as error:
            raise blame(block, self._piece, error, self._table, _MULTILINE_HINT) from None
        yield from placed_rows(table.rename_columns(self._targets), self._piece, block)

    def read_stream(self) -> Iterator[PlacedBatch]:
        """Read a file whose lines are not its rows, from its beginning."""
        path, first = self._piece.file.path, 0
        with self._piece.file.open_stream() as stream:
            stream.read(self._piece.data_start)
            try:
                for batch in csv.open_csv(stream, self._options(_BLOCK_BYTES), self._parse, self._convert):
                    rows = pa.RecordBatch.from_arrays(batch.columns, names=self._targets)
                    for start, part in row_slices(rows):
                        yield PlacedBatch(part, partial(_row_place, path, first + start))
                    first += batch.num_rows
            except pa.ArrowInvalid as error:
                if str(error) != "Empty CSV file":
                    raise UnfitInputError(f"{path}, after row {first}: {error}") from error


def _row_place(path: str, first: int, number: int) -> str:
    return f"{path}, row {first + number}"
