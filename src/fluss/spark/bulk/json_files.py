"""Files of JSON lines: one object per line, its fields by name."""

from __future__ import annotations

import json as plain_json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import json

from fluss.schema.schema import Schema
from fluss.spark.bulk.files import DataFile
from fluss.spark.bulk.fitting import ColumnFit
from fluss.spark.bulk.pieces import FileFacts, FilePiece, PlacedBatch
from fluss.spark.bulk.text_lines import LineBlock, blame, line_blocks, placed_rows
from fluss.spark.bulk.unfit import UnfitInputError

_FIRST_LINE_BYTES_MAX: Final = 4 * 1024 * 1024


def examine(file: DataFile, source_names: Mapping[str, str]) -> FileFacts:
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


def check_types(schema: Schema, columns: Sequence[str]) -> None:
    """Refuse columns for whose values there is no JSON form that all agree on."""
    arrow = schema.to_arrow()
    for name in columns:
        if _has_map(arrow.field(name).type):
            raise UnfitInputError(
                f"Column '{name}' is {schema.column(name).data_type}, and maps cannot be read from JSON; use Parquet"
            )


def read(piece: FilePiece, fit: ColumnFit, schema: Schema, *, ignore_extra: bool) -> Iterator[PlacedBatch]:
    """Read the lines of a piece, typed as the columns of the table are."""
    parser = _Parser(piece, fit, schema, ignore_extra)
    for block in line_blocks(piece):
        yield from parser.read_block(block)


class _Parser:
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
        """Parse lines that are to blame; a field that nobody expects is named."""
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
