"""Rows of a file in the form of their table; what does not fit is rejected row by row, or ends the load."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from fluss.cli.kernel.exits import CommandError, Exit
from fluss.cli.kernel.values import json_value
from fluss.cli.rows.row_reading import FileBatch, FileReader, Rejected, read_texts
from fluss.client.bulk import PartitionSplitter
from fluss.errors import FlussError
from fluss.schema.fitting import DataFitter
from fluss.schema.normalize import normalize_batch
from fluss.schema.table import TableInfo, check_partition_spec, spec_of_partition_name


class RejectFile:
    """Takes rows that did not fit, as JSON lines; without a file the first of them ends everything.

    ``count`` and ``size`` are where an earlier run has stopped counting: what it wrote behind that is written again.
    A file that is shorter, because somebody has taken its rows away, is continued where it ends.
    """

    def __init__(self, path: str | None, count_max: int | None = None, *, count: int = 0, size: int = 0) -> None:
        self.path = path
        self.count = count
        self._count_max = count_max
        self._size = size
        self._file = None
        if path is not None:
            self._file = open(path, "r+b" if size and os.path.exists(path) else "wb")  # noqa: SIM115
            if size:
                # Only then: /dev/null and pipes have no end.
                end = min(size, self._file.seek(0, os.SEEK_END))
                self._file.truncate(end)
                self._file.seek(end)

    def __call__(self, rejected: Rejected) -> None:
        if self._file is None:
            raise CommandError(
                f"{rejected.place}: {rejected.reason}; --rejects FILE takes such rows and goes on", Exit.DATA
            )
        self.count += 1
        if self._count_max is not None and self.count > self._count_max:
            raise CommandError(
                f"{rejected.place}: {rejected.reason}; that is more than {self._count_max} rows that do not fit",
                Exit.DATA,
            )
        line = {"place": rejected.place, "reason": rejected.reason, "row": json_value(rejected.content)}
        self._file.write(json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n")

    def sync(self) -> int:
        """Write everything down, and return the size of the file; without one, that of the file of an earlier run."""
        if self._file is None:
            return self._size
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


class PartitionCheck:
    """Refuses rows of partitions that cannot be: a server would refuse them without saying which rows these are."""

    def __init__(self, info: TableInfo) -> None:
        self._keys = info.partition_keys
        arrow = info.schema.to_arrow()
        self._schema = pa.schema([arrow.field(name) for name in self._keys])
        self._splitter = PartitionSplitter(info.schema, self._keys) if self._keys else None
        self._possible: set[str] = set()

    def check(self, rows: pa.RecordBatch) -> None:
        """Look at rows that have a value in each partition column."""
        if self._splitter is None or not rows.num_rows:
            return
        for name, _ in self._splitter.groups(rows):
            if name in self._possible:
                continue
            try:
                check_partition_spec(spec_of_partition_name(name, self._keys), self._keys, creating=True)
            except FlussError as error:
                # Without the code of a server, which has refused nothing.
                raise FlussError(error.message) from None
            self._possible.add(name)

    def check_row(self, row: Mapping[str, Any]) -> None:
        """Look at a single row. What its columns do not take at all is told by those who write it."""
        values = {name: row.get(name) for name in self._keys}
        if self._splitter is None or None in values.values():
            return
        with suppress(pa.ArrowException, OverflowError):
            self.check(pa.RecordBatch.from_pylist([values], self._schema))


class TableFitter:
    """Brings batches into the form of a table."""

    def __init__(self, info: TableInfo, reader: FileReader, rejects: RejectFile) -> None:
        self._info = info
        self._reader = reader
        self._rejects = rejects
        self._fitter = DataFitter(info.schema)
        self._partitions = PartitionCheck(info)
        # A row without these belongs nowhere.
        self._required = {*info.partition_keys, *(info.bucket_keys if info.has_primary_key() else ())}

    def fit(self, placed: FileBatch) -> Iterator[pa.RecordBatch]:
        """Return the rows that fit, in their order."""
        rows = self._named(placed)
        try:
            yield self._fitted(rows, placed)
        except FlussError:
            yield from self._apart(rows, placed, 0)

    def _named(self, placed: FileBatch) -> pa.RecordBatch:
        names = placed.rows.schema.names
        targets = [self._reader.column_of(name) for name in names]
        for name, target in zip(names, targets, strict=True):
            if target is not None and target not in self._info.schema.column_names:
                file = placed.place(0).partition(",")[0]
                raise CommandError(
                    f"{file} has a column '{name}', which {self._info.table_path} does not have; "
                    f"--rename {name}=COLUMN renames it, --ignore-extra leaves such columns out",
                    Exit.DATA,
                )
        kept = [number for number, target in enumerate(targets) if target is not None]
        if kept == list(range(len(names))) and targets == names:
            return placed.rows
        arrays = [placed.rows.column(number) for number in kept]
        return pa.RecordBatch.from_arrays(arrays, names=[targets[number] for number in kept])

    def _fitted(self, rows: pa.RecordBatch, placed: FileBatch) -> pa.RecordBatch:
        if placed.is_text:
            rows = read_texts(rows, self._info.schema)
        fitted = normalize_batch(self._fitter.fit(rows), self._info.schema)
        for name in self._required:
            if fitted.column(name).null_count:
                raise FlussError(f"column '{name}' is null, and a row needs a value there")
        self._partitions.check(fitted)
        return fitted

    def _apart(self, rows: pa.RecordBatch, placed: FileBatch, first: int) -> Iterator[pa.RecordBatch]:
        """Go through halves of halves, down to the rows that do not fit."""
        try:
            yield self._fitted(rows, placed)
            return
        except FlussError as error:
            if rows.num_rows <= 1:
                # The error counts rows from the beginning of what it was given, which is this one.
                reason = error.message.removeprefix("Row 0 has ").strip()
                self._rejects(Rejected(placed.place(first), reason, _content(rows)))
                return
        half = rows.num_rows // 2
        yield from self._apart(rows.slice(0, half), placed, first)
        yield from self._apart(rows.slice(half), placed, first + half)


def _content(row: pa.RecordBatch) -> dict[str, Any]:
    """Return the values of a single row, of texts that are not UTF-8 what can be read of them."""
    return {name: _readable(column) for name, column in zip(row.schema.names, row.columns, strict=True)}


def _readable(column: pa.Array) -> Any:
    try:
        return column.to_pylist()[0]
    except UnicodeDecodeError as error:
        # Inside of lists and the like, the bytes that it found are all that there is.
        return bytes(error.object).decode(errors="replace")
