"""Files of rows by name: what format they are in, and how they are opened."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import Final

import pyarrow as pa

from fluss.cli.exits import CommandError, Exit

STANDARD_INPUT: Final = "-"
_COMPRESSED_SUFFIXES: Final = (".gz", ".bz2", ".zst", ".lz4", ".br")
_MAGIC: Final = b"ARROW1"


class FileFormat(StrEnum):
    """What a file consists of."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"


_FORMATS: Final = {
    ".parquet": FileFormat.PARQUET,
    ".pq": FileFormat.PARQUET,
    ".csv": FileFormat.CSV,
    ".tsv": FileFormat.CSV,
    ".json": FileFormat.JSON,
    ".jsonl": FileFormat.JSON,
    ".ndjson": FileFormat.JSON,
    ".arrow": FileFormat.ARROW,
    ".arrows": FileFormat.ARROW,
    ".feather": FileFormat.ARROW,
    ".ipc": FileFormat.ARROW,
}


def is_compressed(path: str) -> bool:
    """Whether the name says that a file of lines is compressed as a whole."""
    return path.lower().endswith(_COMPRESSED_SUFFIXES)


def format_of(path: str) -> FileFormat:
    """Return what the name of a file says about its content."""
    name = path.lower()
    for suffix in _COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    found = _FORMATS.get(os.path.splitext(name)[1])
    if found is None:
        raise CommandError(
            f"what is in '{path}'? Its name does not say; give --file-format {'|'.join(FileFormat)}", Exit.USAGE
        )
    return found


def open_stream(path: str) -> pa.NativeFile:
    """Open a file, or standard input, from its beginning, decompressed if its name says so."""
    if path == STANDARD_INPUT:
        return pa.PythonFile(sys.stdin.buffer, mode="r")
    if not os.path.exists(path):
        raise CommandError(f"there is no file {path}", Exit.NOT_FOUND)
    return pa.input_stream(path, compression="detect" if is_compressed(path) else None)


def is_arrow_file(source: pa.NativeFile) -> bool:
    """Whether an Arrow file can be read anywhere in it; others are streams."""
    magic = source.read(len(_MAGIC))
    source.seek(0)
    return bool(magic == _MAGIC)
