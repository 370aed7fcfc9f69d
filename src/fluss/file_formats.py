"""Files of rows by their names: what they consist of, and whether they are compressed as a whole."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Final

COMPRESSED_SUFFIXES: Final = (".gz", ".bz2", ".zst", ".lz4", ".br")


class FileFormat(StrEnum):
    """What a file consists of."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"


FORMATS: Final = {
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
    """Whether a file as a whole is compressed, so that it can only be read from its beginning."""
    return path.lower().endswith(COMPRESSED_SUFFIXES)


def format_by_name(path: str) -> FileFormat | None:
    """Return what the name of a file says about its content, None if it says nothing."""
    name = path.lower()
    for suffix in COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    return FORMATS.get(os.path.splitext(name)[1])
