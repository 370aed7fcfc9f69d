"""Files of rows by name: what format they are in, and how they are opened."""

from __future__ import annotations

import os
import sys
from typing import Final

import pyarrow as pa

from fluss.cli.kernel.exits import CommandError, Exit
from fluss.file_formats import FileFormat, format_by_name, is_compressed

STANDARD_INPUT: Final = "-"
_MAGIC: Final = b"ARROW1"


def format_of(path: str, *, has_option: bool = False) -> FileFormat:
    """Return what the name of a file says about its content. ``has_option``: the command has --file-format, too."""
    found = format_by_name(path)
    if found is None:
        name = f"end it with {', '.join(f'.{each}' for each in FileFormat)}"
        step = f"give --file-format {'|'.join(FileFormat)}" if has_option else name
        raise CommandError(f"what is in '{path}'? Its name does not say; {step}", Exit.USAGE)
    return found


def open_stream(path: str) -> pa.NativeFile:
    """Open a file, or standard input, from its beginning, decompressed if its name says so."""
    if path == STANDARD_INPUT:
        return pa.PythonFile(sys.stdin.buffer, mode="r")
    if not os.path.exists(path):
        raise CommandError(f"there is no file {path}", Exit.NOT_FOUND)
    return pa.input_stream(path, compression="detect" if is_compressed(path) else None)


def compression_of(path: str, file_format: FileFormat) -> str | None:
    """Return how a file is compressed as a whole when it is written: as its name says. Parquet and Arrow never are."""
    if not is_compressed(path) or file_format not in (FileFormat.CSV, FileFormat.JSON):
        return None
    return str(pa.Codec.detect(path).name)


def is_arrow_file(source: pa.NativeFile) -> bool:
    """Whether an Arrow file can be read anywhere in it; others are streams."""
    magic = source.read(len(_MAGIC))
    source.seek(0)
    return bool(magic == _MAGIC)
