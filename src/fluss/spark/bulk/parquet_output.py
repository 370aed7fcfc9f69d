"""Parquet files of a wanted size, written to a place where nobody looks for them yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from fluss.errors import FlussError

# A row group is kept in memory until it is complete.
_ROW_GROUP_BYTES_MAX: Final = 128 * 1024 * 1024
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")


@dataclass(frozen=True)
class ParquetLayout:
    """How rows are laid out in files. It goes to the executors."""

    compression: str = "zstd"
    row_group_rows: int = 250_000
    file_bytes: int = 128 * 1024 * 1024
    """About how many bytes of rows are in a file, before compression."""

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise FlussError(f"compression must be one of {', '.join(COMPRESSIONS)}, got {self.compression!r}")
        for name, value in (("row_group_rows", self.row_group_rows), ("file_bytes", self.file_bytes)):
            if value < 1:
                raise FlussError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A complete file: where it is, where it belongs below the target, and what is in it."""

    path: str
    place: str
    rows: int
    size_bytes: int


class ParquetOutput:
    """Writes rows of one schema to one file after the other. Complete it with ``close``; else its last file is not.

    ``name`` is the beginning of file names below ``directory``.
    """

    def __init__(
        self,
        filesystem: fs.FileSystem,
        directory: str,
        place: str,
        name: str,
        schema: pa.Schema,
        layout: ParquetLayout,
    ) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._place = place
        self._name = name
        self._schema = schema
        self._layout = layout
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self._file_rows = self._file_bytes = 0
        self.files: list[WrittenFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Take rows; they are written when a row group is complete."""
        first = 0
        while first < rows.num_rows:
            part = rows.slice(first, self._layout.row_group_rows - self._pending_rows)
            first += part.num_rows
            self._pending.append(part)
            self._pending_rows += part.num_rows
            self._pending_bytes += part.nbytes
            is_full = self._file_bytes + self._pending_bytes >= self._layout.file_bytes
            is_complete = self._pending_rows >= self._layout.row_group_rows
            if is_full or is_complete or self._pending_bytes >= _ROW_GROUP_BYTES_MAX:
                self._write_group()
            if is_full:
                self._end_file()

    def close(self) -> None:
        """Write what is left."""
        self._write_group()
        self._end_file()

    def write_empty(self) -> None:
        """Write a file without rows."""
        self._open()
        self._end_file()

    def _open(self) -> pq.ParquetWriter:
        if self._writer is None:
            self._filesystem.create_dir(self._directory, recursive=True)
            compression = self._layout.compression.upper()
            self._writer = pq.ParquetWriter(
                self._path, self._schema, filesystem=self._filesystem, compression=compression
            )
        return self._writer

    @property
    def _path(self) -> str:
        return f"{self._directory}/{self._file_name}"

    @property
    def _file_name(self) -> str:
        return f"{self._name}-{len(self.files)}.parquet"

    def _write_group(self) -> None:
        if not self._pending_rows:
            return
        table = pa.Table.from_batches(self._pending, self._schema)
        self._open().write_table(table, row_group_size=table.num_rows)
        self._file_rows += self._pending_rows
        self._file_bytes += self._pending_bytes
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def _end_file(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        size_bytes = self._filesystem.get_file_info(self._path).size
        place = f"{self._place}{self._file_name}"
        self.files.append(WrittenFile(self._path, place, self._file_rows, size_bytes))
        self._file_rows = self._file_bytes = 0
