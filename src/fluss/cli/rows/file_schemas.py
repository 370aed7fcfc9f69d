"""The columns of a file, for a table that is to take its rows: Parquet, Arrow, CSV, JSON lines."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.types as pat

from fluss.cli.kernel.exits import CommandError, Exit
from fluss.cli.rows.row_files import format_of, is_arrow_file, open_stream
from fluss.file_formats import FileFormat
from fluss.schema.types import DECIMAL_PRECISION_MAX

# What types of CSV and JSON are guessed from.
_SAMPLE_BYTES: Final = 4 * 1024 * 1024
_WIDER: Final = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}


def schema_of_file(path: str, file_format: FileFormat | None = None) -> pa.Schema:
    """Return the columns of a file in types that a table can have; those of CSV and JSON are guessed from its rows."""
    wanted = file_format or format_of(path)
    try:
        schema = _schema(path, wanted)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise CommandError(f"there is no file {path}", Exit.NOT_FOUND) from None
        raise CommandError(f"{path} cannot be read as {wanted.value}: {error}", Exit.DATA) from None
    return pa.schema([pa.field(field.name, _table_type(field.type, field.name), field.nullable) for field in schema])


def _schema(path: str, file_format: FileFormat) -> pa.Schema:
    match file_format:
        case FileFormat.PARQUET:
            import pyarrow.parquet as pq

            return pq.read_schema(path).remove_metadata()
        case FileFormat.ARROW:
            with pa.OSFile(path) as source:
                reader = pa.ipc.open_file(source) if is_arrow_file(source) else pa.ipc.open_stream(source)
                return reader.schema.remove_metadata()
    with open_stream(path) as stream:
        sample = stream.read(_SAMPLE_BYTES)
    if len(sample) == _SAMPLE_BYTES:
        sample = sample[: sample.rfind(b"\n") + 1]
    if not sample.strip():
        raise CommandError(f"{path} is empty, so it says nothing about columns", Exit.DATA)
    if file_format is FileFormat.CSV:
        from pyarrow import csv

        delimiter = "\t" if ".tsv" in path.lower() else ","
        read = csv.ReadOptions(block_size=len(sample) + 1)
        return csv.read_csv(pa.BufferReader(sample), read, csv.ParseOptions(delimiter=delimiter)).schema
    from pyarrow import json

    if sample.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] != b"{":
        # Of a null pyarrow crashes.
        raise CommandError(f"{path} cannot be read as json: it has no object in its first line", Exit.DATA)
    return json.read_json(pa.BufferReader(sample), json.ReadOptions(block_size=len(sample) + 1)).schema


def _table_type(arrow_type: pa.DataType, name: str) -> pa.DataType:
    """Return the type of a column that holds all values of a type."""
    if pat.is_dictionary(arrow_type):
        return _table_type(arrow_type.value_type, name)
    if pat.is_null(arrow_type):
        # Nothing is known about it but that it was empty so far.
        return pa.string()
    if arrow_type in _WIDER:
        return _WIDER[arrow_type]
    if pat.is_decimal(arrow_type) and arrow_type.precision <= DECIMAL_PRECISION_MAX and arrow_type.scale >= 0:
        # Other widths of decimals hold the same values, as long as they have no more digits.
        return pa.decimal128(arrow_type.precision, arrow_type.scale)
    if pat.is_uint64(arrow_type):
        return pa.decimal128(20, 0)
    if pat.is_float16(arrow_type):
        return pa.float32()
    if pat.is_list(arrow_type) or pat.is_large_list(arrow_type) or pat.is_fixed_size_list(arrow_type):
        return pa.list_(_table_type(arrow_type.value_type, name))
    if pat.is_map(arrow_type):
        return pa.map_(_table_type(arrow_type.key_type, name), _table_type(arrow_type.item_type, name))
    if pat.is_struct(arrow_type):
        return pa.struct([pa.field(each.name, _table_type(each.type, name), each.nullable) for each in arrow_type])
    if pat.is_duration(arrow_type) or pat.is_interval(arrow_type):
        raise CommandError(f"column '{name}' is {arrow_type}, for which tables have no type; leave it out", Exit.DATA)
    return arrow_type
