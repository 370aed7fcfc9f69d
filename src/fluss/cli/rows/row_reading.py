"""Rows of files, a batch at a time, with the place of each: Parquet, Arrow, CSV, JSON lines, also from standard input.

A file is read the same way each time, so that a load can go on at a position. Positions are numbers of row groups, of
record batches, or of bytes (of a file of lines). Rows that cannot be read at all are rejected here: lines with too many
or too few values, and lines that are no JSON.
"""

from __future__ import annotations

import io
import json as plain_json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from fluss.cli.kernel.exits import CommandError, Exit
from fluss.cli.kernel.values import value_from_json, value_from_text
from fluss.cli.rows.row_files import STANDARD_INPUT, is_arrow_file, open_stream
from fluss.errors import FlussError
from fluss.file_formats import FileFormat, csv_row_lines
from fluss.schema.arrow import arrow_type
from fluss.schema.schema import Schema
from fluss.schema.types import TypeRoot

BATCH_ROWS: Final = 32_768
_BLOCK_BYTES: Final = 4 * 1024 * 1024
# A line that is longer is taken for a file that has no lines.
_LINE_BYTES_MAX: Final = 256 * 1024 * 1024
# What has no text of its own: base64, and JSON.
_WRITTEN_TYPES: Final = frozenset({TypeRoot.BYTES, TypeRoot.BINARY, TypeRoot.ARRAY, TypeRoot.MAP, TypeRoot.ROW})
# The end of a line before one that does not begin with an object. In front of the first one there may be a mark (BOM).
_NO_OBJECT: Final = re.compile(rb"\n[ \t\r]*+[^{ \t\r\n\xef]")
# What the fast parser reads in the same way as ``value_from_json``.
_FAST_TYPES: Final = frozenset(
    {TypeRoot.BOOLEAN, TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INTEGER, TypeRoot.BIGINT}
    | {TypeRoot.FLOAT, TypeRoot.DOUBLE, TypeRoot.STRING, TypeRoot.CHAR}
)


class Rejected(NamedTuple):
    """A row that did not fit: where it is, why, and what it was."""

    place: str
    reason: str
    content: Any


class FileBatch(NamedTuple):
    """Some rows under the names of the file. ``position`` is where to go on behind them, None if that is not here."""

    rows: pa.RecordBatch
    place: Callable[[int], str]
    position: int | None
    # Whether all values are texts, whatever they are in the table.
    is_text: bool = False


Reject = Callable[[Rejected], None]


@dataclass(frozen=True)
class CsvStyle:
    """How values of CSV files are written."""

    delimiter: str | None = None
    quote: str = '"'
    has_header: bool = True
    null_values: Sequence[str] = ("",)
    is_multiline: bool = False

    def __post_init__(self) -> None:
        for name, text in (("delimiter", self.delimiter), ("quote", self.quote)):
            if text is not None and len(text) != 1:
                raise CommandError(f"the {name} of CSV must be one character, got {text!r}", Exit.USAGE)


@dataclass(frozen=True)
class FileReader:
    """Reads files for a table with this schema. ``renames`` are columns of the table by their names in files."""

    schema: Schema
    csv_format: CsvStyle = field(default_factory=CsvStyle)
    renames: Mapping[str, str] = field(default_factory=dict)
    ignores_extra: bool = False

    def read(self, path: str, file_format: FileFormat, reject: Reject, start: int = 0) -> Iterator[FileBatch]:
        """Read a file from a position on."""
        try:
            match file_format:
                case FileFormat.PARQUET:
                    yield from _parquet(path, start)
                case FileFormat.ARROW:
                    yield from _arrow(path, start)
                case FileFormat.CSV:
                    yield from _csv(path, start, self.csv_format, self.schema, reject)
                case FileFormat.JSON:
                    yield from _JsonLines(path, self, reject).batches(start)
        except FileNotFoundError:
            raise CommandError(f"there is no file {path}", Exit.NOT_FOUND) from None
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise _unreadable(path, file_format, error) from None
        except OSError as error:
            # Without a number it is one of pyarrow's, about what is in the file.
            if error.errno is not None:
                raise
            raise _unreadable(path, file_format, error) from None

    def column_of(self, name: str) -> str | None:
        """Return the column of the table for a name in a file, None if it is left out."""
        target = self.renames.get(name, name)
        if target in self.schema.column_names or not self.ignores_extra:
            return target
        return None


def _unreadable(path: str, file_format: FileFormat, error: Exception) -> CommandError:
    return CommandError(f"{path} cannot be read as {file_format.value}: {error}", Exit.DATA)


# Parquet and Arrow


def _parquet(path: str, start: int) -> Iterator[FileBatch]:
    import pyarrow.parquet as pq

    if path == STANDARD_INPUT:
        raise CommandError("Parquet is read from its end, so not from standard input; give a file", Exit.USAGE)
    with pq.ParquetFile(path, pre_buffer=True) as reader:
        for group in range(start, reader.metadata.num_row_groups):
            first, count = 0, reader.metadata.row_group(group).num_rows
            for batch in reader.iter_batches(BATCH_ROWS, row_groups=[group]):
                place = partial(_row_place, path, f"row group {group}, ", first)
                first += batch.num_rows
                yield FileBatch(batch, place, group + 1 if first == count else None)


def _arrow(path: str, start: int) -> Iterator[FileBatch]:
    if path == STANDARD_INPUT:
        with pa.ipc.open_stream(open_stream(path)) as stream:
            yield from _arrow_batches(path, enumerate(stream), start)
        return
    with pa.OSFile(path) as source:
        if not is_arrow_file(source):
            with pa.ipc.open_stream(source) as stream:
                yield from _arrow_batches(path, enumerate(stream), start)
            return
        with pa.ipc.open_file(source) as reader:
            numbers = range(start, reader.num_record_batches)
            yield from _arrow_batches(path, ((number, reader.get_batch(number)) for number in numbers), start)


def _arrow_batches(path: str, batches: Iterator[tuple[int, pa.RecordBatch]], start: int) -> Iterator[FileBatch]:
    for number, batch in batches:
        if number < start:
            continue
        for first in range(0, batch.num_rows, BATCH_ROWS):
            part = batch.slice(first, BATCH_ROWS)
            is_last = first + BATCH_ROWS >= batch.num_rows
            place = partial(_row_place, path, f"batch {number}, ", first)
            yield FileBatch(part, place, number + 1 if is_last else None)


def _row_place(path: str, part: str, first: int, number: int) -> str:
    return f"{path}, {part}row {first + number}"


# Lines


class _Block(NamedTuple):
    """Whole lines: the number of the first, counted from 1, and where they end in the file."""

    data: bytes
    line_first: int
    end: int


def _chunks(path: str) -> Iterator[bytes]:
    if path == STANDARD_INPUT:
        # A pipe gives what it has, so that rows are sent as they come.
        yield from iter(lambda: os.read(sys.stdin.fileno(), _BLOCK_BYTES), b"")
        return
    with open_stream(path) as stream:
        yield from iter(lambda: stream.read(_BLOCK_BYTES), b"")


def _blocks(path: str, start: int) -> Iterator[_Block]:
    """Read whole lines from a position on. Those before it are read, too, to be counted."""
    line, end = 1, 0
    rest = b""
    for chunk in _chunks(path):
        cut = chunk.rfind(b"\n") + 1
        if not cut:
            rest += chunk
            if len(rest) > _LINE_BYTES_MAX:
                raise CommandError(f"{path}, line {line}: it has more than {_LINE_BYTES_MAX} bytes", Exit.DATA)
            continue
        data, rest = rest + chunk[:cut], chunk[cut:]
        end += len(data)
        if end > start:
            yield _Block(data, line, end)
        line += data.count(b"\n")
    if rest and end + len(rest) > start:
        yield _Block(rest + b"\n", line, end + len(rest))


def _line_place(path: str, line: int) -> str:
    return f"{path}, line {line}"


# CSV


def _csv(path: str, start: int, csv_format: CsvStyle, schema: Schema, reject: Reject) -> Iterator[FileBatch]:
    """Read texts; it is the columns of the table that make numbers of them."""
    delimiter = csv_format.delimiter or ("\t" if ".tsv" in path.lower() else ",")
    names = None if csv_format.has_header else schema.column_names
    if csv_format.is_multiline:
        yield from _multiline_csv(path, csv_format, delimiter, names)
    else:
        yield from _CsvLines(path, csv_format, delimiter, reject).batches(names, start)


class _CsvLines:
    """Reads rows of CSV that are lines. Rows of several lines are refused: blocks would end inside of them."""

    def __init__(self, path: str, csv_format: CsvStyle, delimiter: str, reject: Reject) -> None:
        from pyarrow import csv

        self._path = path
        self._reject = reject
        self._csv_format = csv_format
        self._delimiter = delimiter
        self._parse = partial(csv.ParseOptions, delimiter=delimiter, quote_char=csv_format.quote)

    def batches(self, names: Sequence[str] | None, start: int) -> Iterator[FileBatch]:
        for block in _blocks(self._path, 0):
            data, line = block.data, block.line_first
            if names is None:
                head, _, data = data.partition(b"\n")
                names = self._head(head + b"\n")
                line += 1
            if block.end <= start:
                continue
            lines = csv_row_lines(data)
            if not len(lines):
                continue
            table, bad = self._parsed(data, len(lines), names)
            if table is None:
                raise self._torn(line + self._first_torn(data.split(b"\n"), lines, names))
            for row in bad:
                place = _line_place(self._path, line + lines[_row_number(row)])
                reason = f"{row.actual_columns} values where there are {row.expected_columns} columns"
                self._reject(Rejected(place, reason, row.text))
            lines = np.delete(lines, list(map(_row_number, bad))) + line
            for batch in table.combine_chunks().to_batches():
                yield FileBatch(batch, partial(self._place, lines), block.end, is_text=True)

    def _place(self, lines: np.ndarray, number: int) -> str:
        return _line_place(self._path, lines[number])

    def _head(self, data: bytes) -> list[str]:
        from pyarrow import csv

        table = csv.read_csv(pa.BufferReader(data), parse_options=self._parse())
        if table.num_rows:
            raise self._torn(1)
        names: list[str] = table.column_names
        return names

    def _parsed(self, data: bytes, row_count: int, names: Sequence[str]) -> tuple[pa.Table | None, list[Any]]:
        """Return rows, and those that have too many or too few values; no table if rows are not the lines."""
        from pyarrow import csv

        bad: list[Any] = []

        def skip(row: Any) -> str:
            bad.append(row)
            return "skip"

        # One more row, which is not seen if a text in quotes goes on behind the data.
        mark = next(each for each in "012" if each not in (self._delimiter, self._csv_format.quote))
        data += (mark + self._delimiter * (len(names) - 1)).encode() + b"\n"
        table = csv.read_csv(
            pa.BufferReader(data),
            csv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
            self._parse(invalid_row_handler=skip),
            _texts(names, self._csv_format),
        )
        if table.num_rows + len(bad) != row_count + 1:
            return None, bad
        return table.slice(0, table.num_rows - 1), bad

    def _first_torn(self, data: Sequence[bytes], lines: np.ndarray, names: Sequence[str]) -> int:
        """Find the first of the lines that is not a row, in halves of halves."""
        first, end = 0, len(lines)
        while end - first > 1:
            middle = (first + end) // 2
            part = b"\n".join(data[number] for number in lines[first:middle]) + b"\n"
            if self._parsed(part, middle - first, names)[0] is None:
                end = middle
            else:
                first = middle
        return int(lines[first])

    def _torn(self, line: int) -> CommandError:
        return CommandError(
            f"{_line_place(self._path, line)}: a row does not end where the line does; if texts have line ends in "
            "them, give --multiline",
            Exit.DATA,
        )


def _row_number(row: Any) -> int:
    # Rows are counted from 1.
    return (row.number or 1) - 1


def _texts(names: Sequence[str], csv_format: CsvStyle) -> Any:
    from pyarrow import csv

    return csv.ConvertOptions(
        column_types={name: pa.string() for name in names},
        null_values=list(csv_format.null_values),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        # Which row has text that is not UTF-8 is found when rows are fitted.
        check_utf8=False,
    )


def _lines_with_rows(data: bytes) -> list[int]:
    return [number for number, line in enumerate(data.split(b"\n")) if line.strip()]


def _multiline_csv(path: str, csv_format: CsvStyle, delimiter: str, names: Sequence[str] | None) -> Iterator[FileBatch]:
    """Read a file whose lines are not its rows, in one go: there are no positions in it."""
    from pyarrow import csv

    parse = csv.ParseOptions(delimiter=delimiter, quote_char=csv_format.quote, newlines_in_values=True)
    with open_stream(path) as stream:
        begin = stream.read(_BLOCK_BYTES)
        if not begin.strip():
            return
        if names is None:
            head = begin.partition(b"\n")[0]
            names = csv.read_csv(pa.BufferReader(head + b"\n"), parse_options=parse).column_names
        read = csv.ReadOptions(block_size=_BLOCK_BYTES, column_names=names, skip_rows=int(csv_format.has_header))
        # Standard input cannot be read a second time.
        whole = pa.PythonFile(_Continued(begin, stream), mode="r")
        first = 0
        with csv.open_csv(whole, read, parse, _texts(names, csv_format)) as reader:
            for batch in reader:
                yield FileBatch(batch, partial(_row_place, path, "", first), None, is_text=True)
                first += batch.num_rows


class _Continued(io.RawIOBase):
    """A stream of which the beginning was read already: that, and then the rest."""

    def __init__(self, begin: bytes, rest: pa.NativeFile) -> None:
        super().__init__()
        self._begin = memoryview(begin)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._begin:
            self._begin = memoryview(self._rest.read(len(buffer)))
        count = min(len(buffer), len(self._begin))
        buffer[:count] = self._begin[:count]
        self._begin = self._begin[count:]
        return count


def read_texts(rows: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Read the texts of columns that are bytes, lists and the like in a table: in the form that they are written in."""
    for number, name in enumerate(rows.schema.names):
        column = schema.column(name)
        if column.data_type.root not in _WRITTEN_TYPES:
            continue
        try:
            texts = rows.column(number).to_pylist()
        except UnicodeDecodeError:
            raise FlussError(f"column '{name}' has text that is not UTF-8") from None
        values = [None if text is None else value_from_text(text, column.data_type, name) for text in texts]
        rows = rows.set_column(number, name, _array(values, arrow_type(column.data_type)))
    return rows


# JSON lines


class _JsonLines:
    """Reads objects, one in a line: many at once, or one by one where a type or a mistake needs it."""

    def __init__(self, path: str, reader: FileReader, reject: Reject) -> None:
        self._path = path
        self._reader = reader
        self._reject = reject
        self._types = {column.name: column.data_type for column in reader.schema.columns}
        self._arrow = reader.schema.to_arrow()
        self._is_fast = not reader.renames and all(each.root in _FAST_TYPES for each in self._types.values())

    def batches(self, start: int) -> Iterator[FileBatch]:
        for block in _blocks(self._path, start):
            if not block.data.strip():
                continue
            lines = _lines_with_rows(block.data)
            batch = self._fast(block.data) if self._is_fast else None
            if batch is None or batch.num_rows != len(lines):
                batch, lines = self._slow(block)
            places = [block.line_first + number for number in lines]
            for first in range(0, batch.num_rows, BATCH_ROWS):
                is_last = first + BATCH_ROWS >= batch.num_rows
                place = partial(self._place, places, first)
                yield FileBatch(batch.slice(first, BATCH_ROWS), place, block.end if is_last else None)

    def _place(self, places: list[int], first: int, number: int) -> str:
        return _line_place(self._path, places[first + number])

    def _fast(self, data: bytes) -> pa.RecordBatch | None:
        from pyarrow import json

        if _NO_OBJECT.search(b"\n" + data):
            # pyarrow takes null for a row of nulls, and a file that begins with it for a reason to crash.
            return None
        # Numbers are read as they are in the table; that each fits is seen where rows are fitted.
        schema = pa.schema([pa.field(each.name, each.type) for each in self._arrow])
        parse = json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="ignore" if self._reader.ignores_extra else "error"
        )
        try:
            table = json.read_json(
                pa.BufferReader(data), json.ReadOptions(use_threads=False, block_size=len(data) + 1), parse
            )
        except pa.ArrowException:
            # Something is wrong in it: which line is found one by one.
            return None
        if any(pat.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py() for column in table.columns):
            # A number that is too large.
            return None
        batches = table.combine_chunks().to_batches()
        return batches[0] if len(batches) == 1 else None

    def _slow(self, block: _Block) -> tuple[pa.RecordBatch, list[int]]:
        columns: dict[str, list[Any]] = {name: [] for name in self._types}
        lines: list[int] = []
        for number, line in enumerate(block.data.split(b"\n")):
            if not line.strip():
                continue
            try:
                row = self._row(line)
            except (FlussError, ValueError, RecursionError) as error:
                reason = error.message if isinstance(error, FlussError) else f"this is no JSON: {error}"
                place = _line_place(self._path, block.line_first + number)
                self._reject(Rejected(place, reason, line.decode(errors="replace")))
                continue
            for name, values in columns.items():
                values.append(row.get(name))
            lines.append(number)
        arrays = [_array(values, self._arrow.field(name).type) for name, values in columns.items()]
        return pa.RecordBatch.from_arrays(arrays, names=list(columns)), lines

    def _row(self, line: bytes) -> dict[str, Any]:
        found = plain_json.loads(line, parse_float=Decimal)
        return row_from_json(found, self._reader)


def row_from_json(found: Any, reader: FileReader) -> dict[str, Any]:
    """Return an object of JSON as a row of a table; what does not fit is a FlussError."""
    if not isinstance(found, dict):
        raise FlussError(f'an object is wanted, such as {{"{reader.schema.column_names[0]}": ...}}')
    row: dict[str, Any] = {}
    for name, value in found.items():
        target = reader.column_of(name)
        if target is None:
            continue
        if target not in reader.schema.column_names:
            raise FlussError(
                f"the table has no column '{target}'; --rename {name}=COLUMN renames it, --ignore-extra leaves such out"
            )
        row[target] = value_from_json(value, reader.schema.column(target).data_type, target)
    return row


def _array(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    """Make a column of values that belong to its type. Only their range, and digits of decimals, can still be wrong."""
    try:
        if pat.is_timestamp(arrow_type) and arrow_type.tz is not None:
            # Moments of numpy, which have more digits, are taken without a zone only.
            return pa.array(values, pa.timestamp(arrow_type.unit)).cast(arrow_type)
        return pa.array(values, arrow_type)
    except (pa.ArrowException, OverflowError):
        # As what they are; fitting finds the one that is wrong.
        if pat.is_integer(arrow_type) or pat.is_decimal(arrow_type) or pat.is_floating(arrow_type):
            return pa.array([None if value is None else str(value) for value in values], pa.string())
        raise
