"""A table as a directory of Parquet files, which looks finished only when it is.

Tasks write below a temporary directory inside the target, each attempt to a place of its own. When all are done the
driver moves the files of the attempts that count to their places, and then writes ``_SUCCESS``: a JSON text that says
what there is. Readers leave out names that begin with an underscore.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyarrow.fs import FileInfo, FileSelector, FileSystem

from fluss import FlussTable
from fluss.errors import FlussError
from fluss.schema.schema import shown_names
from fluss.schema.table import TableInfo, TablePath, spec_of_partition_name
from fluss.schema.types import TypeRoot
from fluss.spark.bulk.files import file_system, piece_bytes_for
from fluss.spark.bulk.jobs import BulkJob, FlussOnSpark, context_of
from fluss.spark.bulk.reports import ExportReport, Listener, listener_of
from fluss.spark.connections import await_table
from fluss.spark.query_options import (
    PartitionLike,
    ReadOptions,
    format_columns,
    format_partitions,
    merged_options,
    read_options,
)
from fluss.spark.read.planner import Split, TablePlan, Task, plan_batch
from fluss.spark.read.split_rows import split_rows
from fluss.spark.source_options import Use

if TYPE_CHECKING:
    from fluss.lake.fluss_rows import LakeRows

_TASKS_MAX: Final = 10_000
MANIFEST_NAME: Final = "_SUCCESS"
TEMPORARY_PREFIX: Final = "_temporary-"
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


def export(
    fs: FlussOnSpark,
    table: str | TablePath,
    path: str,
    *,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    partitions: PartitionLike | Sequence[PartitionLike] | None = None,
    compression: str = "zstd",
    row_group_rows: int = ParquetLayout.row_group_rows,
    file_bytes: int = ParquetLayout.file_bytes,
    overwrite: bool = False,
    progress: bool | Listener | None = None,
) -> ExportReport:
    """Write the rows that a table has now to a directory of Parquet files.

    Of a primary-key table these are its current rows. What only the lake has of a table is among them, as in other
    reads; the option ``scan.mode`` of ``fs`` chooses otherwise. Partitions become directories, such as
    ``day=2026-01-01``, and the files in them leave these columns out. ``_SUCCESS`` says what there is, and that it is
    complete. A target that is not empty is refused, unless ``overwrite`` says that an export in it is to be replaced;
    that stays until the new files are complete. ``path`` may be an address, such as ``s3://bucket/orders``; all
    executors must be able to write there. ``filter`` is a condition as for reads; ``file_bytes`` is meant before
    compression.
    """
    started_s = time.monotonic()
    layout = ParquetLayout(compression, row_group_rows, file_bytes)
    chosen = {
        "table": str(table),
        "scan.columns": format_columns(columns),
        "scan.filter": filter,
        "scan.partitions": format_partitions(partitions),
    }
    merged = merged_options(fs.spark, fs.options, chosen, Use.BATCH_READ)
    # A task writes a file, and files have the size that they are to have, however many cores there are.
    options = replace(
        read_options(merged, is_stream=False), target_task_bytes=file_bytes, max_tasks=_TASKS_MAX, cores=1
    )
    if options.view:
        raise FlussError(f"{table} is a view; export the table itself, or read the view with Spark and write that")
    if options.incremental_start_ms is not None:
        raise FlussError("A table is exported as it is now; read a range of time with Spark, and write that")
    target = ExportTarget.at(path, overwrite=overwrite)
    source = await_table(options.connection, options.table.path)
    work = _ExportWork.of(options, source.get_table_info(), target, layout)
    plan = _planned(source, options, work.columns, context_of(fs.spark).defaultParallelism)
    with target:
        results = _run(fs, replace(work, lake=plan.lake), plan, listener_of(progress))
        files = [file for result in results for file in result.files]
        if not files and not source.get_table_info().is_partitioned():
            files = work.empty_file()
        target.complete(files, _manifest(source.get_table_info(), plan, files, layout))
    return ExportReport(
        table=str(source.table_path),
        path=path,
        files=len(files),
        rows=sum(file.rows for file in files),
        bytes=sum(file.size_bytes for file in files),
        tasks=len(plan.tasks),
        seconds=time.monotonic() - started_s,
    )


def _planned(source: FlussTable, options: ReadOptions, columns: Sequence[str], cores: int) -> TablePlan:
    """Plan tasks of the size of a file; smaller ones, if cores would have nothing to do."""
    row_filter = options.row_filter(source.get_table_info().schema)
    plan = plan_batch(source, options, columns, row_filter)
    if not 0 < len(plan.tasks) < cores:
        return plan
    task_bytes = piece_bytes_for(len(plan.tasks) * options.target_task_bytes, cores, options.target_task_bytes)
    return plan_batch(source, replace(options, target_task_bytes=task_bytes), columns, row_filter)


def _run(fs: FlussOnSpark, work: _ExportWork, plan: TablePlan, listener: Listener) -> list[_ExportResult]:
    splits = [split for task in plan.tasks for split in task]
    weights = [sum(split.weight for split in task) for task in plan.tasks]
    # It is not known how many rows a filter leaves out, and not every server counts the rows of a bucket.
    is_known = work.options.filter is None and all(
        split.kind == "log" or split.row_count is not None for split in splits
    )
    job = BulkJob(
        f"export {work.options.table.path}",
        work,
        list(enumerate(plan.tasks)),
        weights,
        rows_known=sum(weights) if is_known else None,
    )
    return job.run(fs.spark, listener=listener)


def _manifest(info: TableInfo, plan: TablePlan, files: Sequence[WrittenFile], layout: ParquetLayout) -> dict[str, Any]:
    ranges: dict[tuple[str | None, int], tuple[int, int]] = {}
    for split in (split for task in plan.tasks for split in task if split.kind != "lake"):
        key = split.partition_name, split.bucket_id
        start, stop = ranges.get(key, (split.start, split.stop))
        ranges[key] = min(start, split.start), max(stop, split.stop)
    return {
        "table": str(info.table_path),
        "table_id": info.table_id,
        "schema": [f"{column.name} {column.data_type}" for column in info.schema.columns],
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.size_bytes for file in files),
        "compression": layout.compression,
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": [{"path": file.place, "rows": file.rows, "bytes": file.size_bytes} for file in files],
        "log": [
            {"partition": partition, "bucket": bucket, "start": start, "stop": stop}
            for (partition, bucket), (start, stop) in ranges.items()
        ],
        "lake_snapshot": None if plan.snapshot.lake is None else plan.snapshot.lake.snapshot_id,
    }


# On executors


@dataclass(frozen=True, slots=True)
class _ExportResult:
    rows: int
    files: tuple[WrittenFile, ...]


@dataclass(frozen=True)
class _ExportWork:
    """What a task does."""

    options: ReadOptions
    table_id: int
    columns: tuple[str, ...]
    schema: pa.Schema
    """Of the files."""
    target: FileSystem
    directory: str
    """Where files that are not finished are."""
    layout: ParquetLayout
    lake: LakeRows | None = None
    """Reads files of the lake, if there are some among the parts."""

    @classmethod
    def of(cls, options: ReadOptions, info: TableInfo, target: ExportTarget, layout: ParquetLayout) -> _ExportWork:
        names = info.schema.column_names
        chosen = tuple(names) if options.columns is None else options.columns
        for name in chosen:
            if name not in names:
                raise FlussError(f"{info.table_path} has no column '{name}'; columns are {shown_names(names)}")
        # The names of partitions show times of day with fewer digits than the columns have.
        stated = [name for name in info.partition_keys if info.schema.column(name).data_type.root is not TypeRoot.TIME]
        kept = [name for name in chosen if name not in stated] or list(chosen)
        arrow = info.schema.to_arrow()
        schema = pa.schema([arrow.field(name) for name in kept])
        return cls(options, info.table_id, chosen, schema, target.filesystem, target.temporary, layout)

    def __call__(self, item: tuple[int, Task]) -> _ExportResult:
        number, task = item
        table = await_table(self.options.connection, self.options.table.path)
        info = table.get_table_info()
        if info.table_id != self.table_id:
            raise FlussError(f"{info.table_path} was dropped and created again while it was exported; begin again")
        # A directory for each attempt: one that has died, or is about to, must not be in the way.
        directory = f"{self.directory}/{number:05d}-{secrets.token_hex(4)}"
        outputs: dict[str | None, ParquetOutput] = {}
        read = self._reader(table)
        for split in task:
            output = outputs.get(split.partition_name)
            if output is None:
                place = _partition_place(info, split.partition_name)
                output = outputs[split.partition_name] = self._output(f"{directory}/{place}", place, number)
            for batch in read(split):
                output.write(batch.select(self.schema.names))
        files: list[WrittenFile] = []
        for output in outputs.values():
            output.close()
            files += output.files
        return _ExportResult(sum(file.rows for file in files), tuple(files))

    def _reader(self, table: FlussTable) -> Callable[[Split], Iterator[pa.RecordBatch]]:
        """Return a function that reads a part, and returns the rows for which the filter holds."""
        row_filter = self.options.row_filter(table.get_table_info().schema)
        if row_filter is None:
            return lambda split: split_rows(table, split, self.columns, lake=self.lake)
        columns = [*self.columns, *sorted(row_filter.columns - set(self.columns))]
        predicate = row_filter.predicate()
        return lambda split: map(row_filter.filter, split_rows(table, split, columns, predicate, self.lake))

    def _output(self, directory: str, place: str, number: int) -> ParquetOutput:
        job = self.directory.rpartition(TEMPORARY_PREFIX)[2]
        name = f"part-{number:05d}-{job}"
        return ParquetOutput(self.target, directory.rstrip("/"), place, name, self.schema, self.layout)

    def empty_file(self) -> list[WrittenFile]:
        """Write a file without rows, so that the columns of an empty table are known."""
        output = self._output(f"{self.directory}/empty", "", 0)
        output.write_empty()
        return output.files


def _partition_place(info: TableInfo, partition_name: str | None) -> str:
    """Return the directory of a partition, with a slash behind it."""
    if partition_name is None:
        return ""
    values = spec_of_partition_name(partition_name, info.partition_keys).spec_map
    return "".join(f"{quote(name, safe='')}={quote(values[name], safe='')}/" for name in info.partition_keys)


# The target


class ExportTarget:
    """The directory that files are written to. A context manager, which leaves nothing unfinished behind."""

    def __init__(self, filesystem: FileSystem, base: str, found: list[FileInfo]) -> None:
        self.filesystem = filesystem
        self.base = base
        self.temporary = f"{base}/{TEMPORARY_PREFIX}{secrets.token_hex(6)}"
        self._found = found

    @classmethod
    def at(cls, path: str, *, overwrite: bool) -> ExportTarget:
        filesystem, base = file_system(path)
        base = base.rstrip("/")
        info = filesystem.get_file_info(base)
        if info.is_file:
            raise FlussError(f"'{path}' is a file; give a directory to export to")
        found = filesystem.get_file_info(FileSelector(base, allow_not_found=True))
        for each in found:
            if not _is_of_an_export(each):
                raise FlussError(
                    f"There is '{each.base_name}' in '{path}', which is of no export; choose another place"
                )
        if found and not overwrite:
            is_unfinished = any(each.base_name.startswith(TEMPORARY_PREFIX) for each in found)
            what = "an export that was not finished" if is_unfinished else "an export"
            raise FlussError(f"There is {what} in '{path}'; give an empty directory, or overwrite=True to replace it")
        return cls(filesystem, base, found)

    def __enter__(self) -> None:
        self.filesystem.create_dir(self.temporary, recursive=True)

    def __exit__(self, *exception: object) -> None:
        self.filesystem.delete_dir(self.temporary)

    def complete(self, files: Sequence[WrittenFile], manifest: dict[str, Any]) -> None:
        """Put files in their places, remove what was there before, and then say that all is there."""
        for info in self._found:
            if info.base_name == MANIFEST_NAME:
                self._delete(info)
        made: set[str] = set()
        for file in files:
            place = f"{self.base}/{file.place}"
            directory = place.rpartition("/")[0]
            if directory not in made:
                self.filesystem.create_dir(directory, recursive=True)
                made.add(directory)
            self.filesystem.move(file.path, place)
        self._delete_old({f"{self.base}/{file.place}" for file in files})
        unfinished = f"{self.temporary}/{MANIFEST_NAME}"
        with self.filesystem.open_output_stream(unfinished) as stream:
            stream.write(json.dumps(manifest, indent=1).encode())
        self.filesystem.move(unfinished, f"{self.base}/{MANIFEST_NAME}")

    def _delete_old(self, new: set[str]) -> None:
        """Remove what was there before the export; directories may have new files among the old ones."""
        for info in self._found:
            if info.base_name == MANIFEST_NAME:
                continue
            if not any(path.startswith(f"{info.path}/") for path in new):
                self._delete(info)
                continue
            for inner in self.filesystem.get_file_info(FileSelector(info.path, recursive=True)):
                if inner.is_file and inner.path not in new:
                    self._delete(inner)

    def _delete(self, info: FileInfo) -> None:
        if info.is_file:
            self.filesystem.delete_file(info.path)
        else:
            self.filesystem.delete_dir(info.path)


def _is_of_an_export(info: FileInfo) -> bool:
    """Whether something looks as if an export, or another writer of Parquet files, has made it."""
    name = info.base_name
    return name.startswith(("_", ".")) or (name.endswith(".parquet") if info.is_file else "=" in name)


# Parquet files of a wanted size


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
