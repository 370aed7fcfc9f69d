"""Files of rows: what they consist of by their names, whether they are compressed, and where rows of CSV are."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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


def csv_row_lines(data: bytes) -> npt.NDArray[np.int64]:
    """Return which lines are rows of CSV: those with anything in them. The data ends where a line does.

    What a reader of rows must find, as long as no value has a line end in it.
    """
    import numpy as np

    values = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(values == ord("\n"))
    sizes = np.diff(ends, prepend=-1) - 1
    return np.flatnonzero((sizes > 1) | ((sizes == 1) & (values[ends - 1] != ord("\r"))))
