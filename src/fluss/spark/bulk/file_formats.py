"""The formats of files to load: CSV, JSON lines, Parquet, Arrow.

Each has ``examine_...``, which finds out columns and where the file can be cut, and ``read_...``, which yields the rows
of a piece with their places. Files of lines are read in blocks of whole lines, of a range of bytes; when a block cannot
be parsed, the error names the line. Parquet files are cut between row groups; Arrow IPC files, which Feather files are,
too, between record batches. An Arrow stream is read in one go.
"""

from __future__ import annotations

import json as plain_json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat
from pyarrow import csv, json

from fluss.errors import FlussError
from fluss.file_formats import csv_row_lines
from fluss.schema.schema import Schema
from fluss.spark.bulk.files import BATCH_ROWS, DataFile, FileFacts, FilePiece, PlacedBatch, Unit, row_slices
from fluss.spark.bulk.fitting import ColumnFit
from fluss.spark.bulk.task_results import UnfitInputError

_HEADER_BYTES_MAX: Final = 4 * 1024 * 1024
_BLOCK_BYTES: Final = 8 * 1024 * 1024
_MULTILINE_HINT: Final = "; if values have line ends in them, give multiline=True"
_FIRST_LINE_BYTES_MAX: Final = 4 * 1024 * 1024
_SEARCH_BYTES: Final = 64 * 1024
# A line that is longer is taken for a file that has no lines.
_LINE_BYTES_MAX: Final = 256 * 1024 * 1024
_FILE_MAGIC: Final = b"ARROW1"


# CSV


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


def examine_csv(file: DataFile, csv_format: CsvFormat, names: Sequence[str]) -> FileFacts:
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


def check_csv_types(schema: Schema, columns: Sequence[str]) -> None:
    """Refuse columns that cannot be written as one text."""
    arrow = schema.to_arrow()
    for name in columns:
        if pat.is_nested(arrow.field(name).type):
            raise UnfitInputError(
                f"Column '{name}' is {schema.column(name).data_type}, which CSV files cannot hold; use Parquet"
            )


def read_csv(piece: FilePiece, fit: ColumnFit, schema: Schema, csv_format: CsvFormat) -> Iterator[PlacedBatch]:
    """Read the lines of a piece, typed as the columns of the table are."""
    parser = _CsvParser(piece, fit, schema, csv_format)
    if csv_format.is_multiline:
        yield from parser.read_stream()
        return
    for block in line_blocks(piece):
        yield from parser.read_block(block)


class _CsvParser:
    """Parses the lines of one piece."""

    def __init__(self, piece: FilePiece, fit: ColumnFit, schema: Schema, csv_format: CsvFormat) -> None:
        self._piece = piece
        self._targets = fit.targets
        arrow = schema.to_arrow()
        types: Mapping[str, pa.DataType] = {source: arrow.field(name).type for name, source in fit.sources.items()}
        self._csv_format = csv_format
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
        """Return the rows of some lines; those that are not lines are an error, as a block may end inside of one."""
        if not data.endswith(b"\n"):
            data += b"\n"
        row_count = len(csv_row_lines(data))
        # Behind the lines, one with too many values. It is not seen if a value in quotes goes on behind them.
        mark = self._mark()
        seen: list[Any] = []
        parse = self._csv_format.parse_options(self._piece.file)

        def skip_mark(row: Any) -> str:
            if row.text != mark:
                return "error"
            seen.append(row)
            return "skip"

        parse.invalid_row_handler = skip_mark
        data += mark.encode() + b"\n"
        # One byte more than there are: the reader wants to see that there are no more.
        table = csv.read_csv(pa.BufferReader(data), self._options(len(data) + 1), parse, self._convert)
        if table.num_rows != row_count or len(seen) != 1:
            raise pa.ArrowInvalid("a row does not end where the line does")
        return table

    def _mark(self) -> str:
        special = (self._parse.delimiter, self._parse.quote_char, self._parse.escape_char)
        value = next(each for each in "0123" if each not in special)
        return str(self._parse.delimiter).join([value] * (len(self._piece.names) + 1))

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


# JSON lines


def examine_json(file: DataFile, source_names: Mapping[str, str]) -> FileFacts:
    """Read the names in the first line. Later lines may have more: those in ``source_names``, by column."""
    with file.open_stream() as stream:
        lines = stream.read(_FIRST_LINE_BYTES_MAX).splitlines()
    first = next((line for line in lines if line.strip()), b"{}")
    names = list(_object(first, file))
    folded = {name.casefold() for name in names}
    later = [
        source
        for target, source in source_names.items()
        if source.casefold() not in folded and target not in file.path_values
    ]
    return FileFacts(file, (*names, *later), is_whole=file.is_compressed)


def _object(line: bytes, file: DataFile) -> dict[str, Any]:
    try:
        value = plain_json.loads(line)
    except ValueError as error:
        raise UnfitInputError(f"{file.path}, first line: {error}; there must be one JSON object per line") from None
    if not isinstance(value, dict):
        raise UnfitInputError(
            f"{file.path}, first line: one JSON object per line is wanted, it is {type(value).__name__}"
        )
    return value


def check_json_types(schema: Schema, columns: Sequence[str]) -> None:
    """Refuse columns for whose values there is no JSON form that all agree on."""
    arrow = schema.to_arrow()
    for name in columns:
        if _has_map(arrow.field(name).type):
            raise UnfitInputError(
                f"Column '{name}' is {schema.column(name).data_type}, and maps cannot be read from JSON; use Parquet"
            )


def read_json(piece: FilePiece, fit: ColumnFit, schema: Schema, *, ignore_extra: bool) -> Iterator[PlacedBatch]:
    """Read the lines of a piece, typed as the columns of the table are."""
    parser = _JsonParser(piece, fit, schema, ignore_extra)
    for block in line_blocks(piece):
        yield from parser.read_block(block)


class _JsonParser:
    """Parses the lines of one piece."""

    def __init__(self, piece: FilePiece, fit: ColumnFit, schema: Schema, ignore_extra: bool) -> None:
        self._piece = piece
        arrow = schema.to_arrow()
        self._sources = fit.sources
        self._types = [arrow.field(name).type for name in fit.sources]
        fields = zip(fit.sources.values(), map(_readable, self._types), strict=True)
        self._parse = json.ParseOptions(
            explicit_schema=pa.schema(list(fields)), unexpected_field_behavior="ignore" if ignore_extra else "error"
        )

    def _table(self, data: bytes) -> pa.Table:
        options = json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = json.read_json(pa.BufferReader(data), options, self._parse)
        columns = [
            table[source].cast(data_type) for source, data_type in zip(self._sources.values(), self._types, strict=True)
        ]
        return pa.table(columns, names=list(self._sources))

    def read_block(self, block: LineBlock) -> Iterator[PlacedBatch]:
        if not block.data.strip():
            return
        try:
            table = self._table(block.data)
        except pa.ArrowException as error:
            raise blame(block, self._piece, error, self._checked_line) from None
        yield from placed_rows(table, self._piece, block)

    def _checked_line(self, data: bytes) -> None:
        """Parse lines that are to blame; a field that the table does not have is named."""
        try:
            self._table(data)
        except pa.ArrowException as error:
            if data.count(b"\n") == 1 and "unexpected field" in str(error):
                extra = set(_object(data, self._piece.file)) - set(self._sources.values())
                if extra:
                    raise ValueError(
                        f"the table has no column '{min(extra)}'; rename it with columns={{...}}, or leave out such "
                        "fields with ignore_extra=True"
                    ) from None
            raise


def _readable(data_type: pa.DataType) -> pa.DataType:
    """Return the type that the parser makes on the way to a type: it reads times and dates as numbers, we as texts."""
    if pat.is_date(data_type) or pat.is_time(data_type) or pat.is_fixed_size_binary(data_type):
        return pa.string()
    if pat.is_list(data_type):
        return pa.list_(_readable(data_type.value_type))
    if pat.is_struct(data_type):
        return pa.struct([(child.name, _readable(child.type)) for child in data_type])
    return data_type


def _has_map(data_type: pa.DataType) -> bool:
    if pat.is_list(data_type):
        return _has_map(data_type.value_type)
    if pat.is_struct(data_type):
        return any(_has_map(child.type) for child in data_type)
    return bool(pat.is_map(data_type))


# Lines of text


class LineBlock(NamedTuple):
    """Whole lines, and how many lines of the piece are before them."""

    data: bytes
    lines_before: int


def line_blocks(piece: FilePiece) -> Iterator[LineBlock]:
    """Read the lines that begin in the range of a piece."""
    lines_before = 0
    for data in _blocks(piece):
        yield LineBlock(data, lines_before)
        lines_before += data.count(b"\n")


def _blocks(piece: FilePiece) -> Iterator[bytes]:
    file = piece.file
    if file.is_compressed:
        with file.open_stream() as stream:
            stream.read(piece.data_start)
            yield from _whole_lines(stream, None, file.path)
        return
    with file.open() as opened:
        start = _line_start(opened, piece.start, piece)
        stop = _line_start(opened, piece.stop, piece)
        opened.seek(start)
        yield from _whole_lines(opened, stop - start, file.path)


def _line_start(opened: pa.NativeFile, position: int, piece: FilePiece) -> int:
    """Return where the first line begins that begins at a position or behind it."""
    if position in (piece.data_start, piece.file.size_bytes):
        return position
    position -= 1
    opened.seek(position)
    while data := opened.read(_SEARCH_BYTES):
        end: int = data.find(b"\n")
        if end >= 0:
            return position + end + 1
        position += len(data)
    return position


def _whole_lines(stream: pa.NativeFile, byte_count: int | None, path: str) -> Iterator[bytes]:
    """Read so many bytes, or everything, in blocks that end where a line ends."""
    parts: list[bytes] = []
    left = byte_count
    while data := stream.read(_BLOCK_BYTES if left is None else min(_BLOCK_BYTES, left)):
        left = None if left is None else left - len(data)
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join((*parts, data[:end]))
            parts, data = [], data[end:]
        parts.append(data)
        if sum(map(len, parts)) > _LINE_BYTES_MAX:
            raise UnfitInputError(f"{path} has a line of more than {_LINE_BYTES_MAX} bytes; is it a file of lines?")
    rest = b"".join(parts)
    if rest:
        yield rest


def line_place(piece: FilePiece, number: int) -> str:
    """Say where a line of a piece is. Counts the lines before the piece, so it is for errors."""
    if piece.file.is_compressed:
        before = 1 if piece.data_start else 0
    else:
        before = _lines_before(piece)
    return f"{piece.file.path}, line {before + number + 1}"


def _lines_before(piece: FilePiece) -> int:
    with piece.file.open() as opened:
        left = _line_start(opened, piece.start, piece)
        opened.seek(0)
        count = 0
        while left and (data := opened.read(min(_BLOCK_BYTES, left))):
            count += data.count(b"\n")
            left -= len(data)
    return count


def row_lines(data: bytes) -> list[int]:
    """Return which lines have rows; parsers leave out the others."""
    return [number for number, line in enumerate(data.split(b"\n")) if line.strip()]


def blame(
    block: LineBlock, piece: FilePiece, error: Exception, parse: Callable[[bytes], object], hint: str = ""
) -> UnfitInputError:
    """Find the first line of a block that cannot be parsed, and say what is wrong with it.

    Halves of halves are parsed until one line is left; fewer, if the lines are fine by themselves.
    """
    lines = block.data.split(b"\n")
    first, end = 0, len(lines)
    while end - first > 1:
        middle = (first + end) // 2
        if _reason(lines[first:middle], parse) is not None:
            end = middle
        elif _reason(lines[middle:end], parse) is not None:
            first = middle
        else:
            break
    reason = _reason(lines[first:end], parse) or str(error)
    return UnfitInputError(f"{line_place(piece, block.lines_before + first)}: {reason}{hint}")


def _reason(lines: Sequence[bytes], parse: Callable[[bytes], object]) -> str | None:
    data = b"\n".join(lines)
    if not data.strip():
        return None
    try:
        parse(data + b"\n")
    except (pa.ArrowException, ValueError) as error:
        return str(error)
    return None


def placed_rows(table: pa.Table, piece: FilePiece, block: LineBlock) -> Iterator[PlacedBatch]:
    """Return the rows that a block of lines has become, with the lines they are from."""
    first = 0
    for batch in table.to_batches():
        for start, rows in row_slices(batch):
            yield PlacedBatch(rows, partial(_place, piece, block, first + start))
        first += batch.num_rows


def _place(piece: FilePiece, block: LineBlock, first: int, number: int) -> str:
    return line_place(piece, block.lines_before + row_lines(block.data)[first + number])


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
