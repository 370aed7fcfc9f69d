"""Files into a table, without a row that passes through the JVM, and each row exactly once.

The driver looks at the files, cuts them into pieces, packs the pieces into tasks, and gives every task a writer id. A
task reads its pieces, which give the same rows each time, and writes them under its id: an attempt that comes after
another finds by the id what is there already.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark import TaskContext

from fluss import FlussTable
from fluss.client.bulk import PartitionSplitter, new_writer_id, partitions_of, wait_for, writer_batch_bytes
from fluss.errors import FlussError
from fluss.file_formats import FileFormat
from fluss.schema.schema import Schema
from fluss.schema.table import TableInfo, TablePath, spec_of_partition_name
from fluss.spark.bulk.file_formats import (
    CsvFormat,
    check_csv_types,
    check_json_types,
    examine_arrow,
    examine_csv,
    examine_json,
    examine_parquet,
    read_arrow,
    read_csv,
    read_json,
    read_parquet,
)
from fluss.spark.bulk.files import (
    DataFile,
    FileFacts,
    FilePiece,
    PlacedBatch,
    cut,
    find_files,
    pack,
    piece_bytes_for,
)
from fluss.spark.bulk.fitting import ColumnChoice, ColumnFit, RowFitter
from fluss.spark.bulk.jobs import BulkJob, FlussOnSpark, context_of, refuse_speculation
from fluss.spark.bulk.reports import Listener, LoadReport, listener_of
from fluss.spark.bulk.states import BATCH_BYTES, LoadPlan, LoadState, LoadTask, LoadTaskResult
from fluss.spark.bulk.task_results import UnfitInputError
from fluss.spark.connections import await_table, open_connection
from fluss.spark.naming import table_path
from fluss.spark.query_options import client_settings
from fluss.spark.text_limits import text_limits
from fluss.spark.write.exactly_once import ExactlyOnceWrite
from fluss.spark.write.writer_record import WriterRecord, latest_offsets

_TASK_BYTES: Final = 64 * 1024 * 1024
# Reading footers is mostly waiting for the file system.
_EXAMINERS_MAX: Final = 16


def load(
    fs: FlussOnSpark,
    paths: str | Path | Sequence[str | Path],
    table: str | TablePath,
    *,
    format: str | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    mode: Literal["append", "upsert"] | None = None,
    ignore_extra: bool = False,
    create_partitions: bool = True,
    delimiter: str | None = None,
    quote: str = '"',
    escape: str | None = None,
    header: bool = True,
    null_values: Sequence[str] = ("",),
    multiline: bool = False,
    task_bytes: int = _TASK_BYTES,
    resume_dir: str | None = None,
    progress: bool | Listener | None = None,
) -> LoadReport:
    """Load Parquet, CSV, JSON lines or Arrow files into a table; every row once, also when tasks fail and are repeated.

    ``paths`` are files, directories or patterns, local or as addresses, that all executors can read. ``format`` is
    ``parquet``, ``csv``, ``json`` or ``arrow``; by default the suffix of each name says it. Columns are found by name;
    ``columns`` chooses some of the table's columns, or is a dict from the names in the files to those of the table.
    Columns that the files lack are null, or what the directories state (``day=2026-01-01``). ``ignore_extra`` leaves
    out columns that the table does not have, which otherwise are an error. ``delimiter``, ``quote``, ``escape``,
    ``header``, ``null_values`` and ``multiline`` are about CSV files.

    Log tables are appended to; of a primary-key table rows are inserted and updated (``mode`` only states what is
    expected). If several rows have one key, the last of a file counts, but the order of files is open. Partitions that
    are missing are created, unless ``create_partitions`` is False.

    With ``resume_dir``, a directory for this one load, a load whose driver died is continued by calling ``load`` once
    more with the same arguments, as long as servers remember its writer ids (some days); and a load that is complete
    is not done again. Without it, a second call loads everything a second time.

    A file or a row that does not fit is a FlussError that says where it is. Columns are looked at before anything is
    written, rows while they are: what was loaded by then stays in the table.
    """
    started_s = time.monotonic()
    refuse_speculation(fs.spark)
    settings = client_settings(fs.options)
    path = table_path(table)
    target = await_table(settings, path)
    info = target.get_table_info()
    _check_mode(info, mode)
    csv_format = CsvFormat(delimiter, quote, escape, header, tuple(null_values), multiline)
    choice = ColumnChoice.of(columns, info.schema, ignore_extra=ignore_extra)
    files = find_files(paths, format)
    state = None if resume_dir is None else LoadState(resume_dir)
    chosen: dict[str, Any] = {"choice": asdict(choice), "csv": asdict(csv_format)}
    if info.has_primary_key():
        chosen[BATCH_BYTES] = writer_batch_bytes(target)
    plan = None if state is None else state.plan(info, files, chosen)
    is_continued = plan is not None
    if plan is None:
        facts = FileReading(info.schema, choice, csv_format, text_limits(info)).examine(files)
        plan = _planned(target, facts, context_of(fs.spark).defaultParallelism, task_bytes)
        if state is not None:
            state.save(plan, info, files, chosen)
    work = LoadWork(
        settings,
        path,
        info.table_id,
        choice,
        csv_format,
        starts=plan.starts,
        creates_partitions=create_partitions,
        is_continued=is_continued,
    )
    results = _run(fs, work, plan, state, listener_of(progress))
    return LoadReport(
        table=str(path),
        files=len(files),
        rows=sum(result.rows for result in results),
        rows_found=sum(result.rows_found for result in results),
        bytes=sum(file.size_bytes for file in files),
        tasks=len(plan.tasks),
        seconds=time.monotonic() - started_s,
    )


def _check_mode(info: TableInfo, mode: str | None) -> None:
    if mode not in (None, "append", "upsert"):
        raise ValueError(f"mode must be 'append' or 'upsert', got {mode!r}")
    possible = "upsert" if info.has_primary_key() else "append"
    if mode not in (None, possible):
        kind = "a primary key" if info.has_primary_key() else "no primary key"
        raise FlussError(f"{info.table_path} has {kind}, so the mode is {possible!r}, not {mode!r}")
    numbered = info.schema.get_auto_increment_columns()
    if numbered:
        raise FlussError(
            f"{info.table_path} numbers its rows itself, in column '{numbered[0]}', so whole rows cannot be loaded; "
            "read the files with Spark, and write the other columns"
        )


def _planned(target: FlussTable, facts: Sequence[FileFacts], cores: int, task_bytes: int) -> LoadPlan:
    """Cut files into pieces, and give them to tasks."""
    if task_bytes < 1:
        raise ValueError(f"task_bytes must be at least 1, got {task_bytes}")
    info = target.get_table_info()
    piece_bytes = piece_bytes_for(sum(each.file.size_bytes for each in facts), cores, task_bytes)
    pieces = [piece for each in facts for piece in cut(each, piece_bytes)]
    tasks = tuple(LoadTask(packed, new_writer_id(target)) for packed in pack(pieces, piece_bytes))
    partition_ids: list[int | None] = [None]
    if info.is_partitioned():
        partition_ids = [partition.partition_id for partition in partitions_of(target)]
    return LoadPlan(info.table_id, latest_offsets(target, partition_ids), tasks)


def _run(
    fs: FlussOnSpark, work: LoadWork, plan: LoadPlan, state: LoadState | None, listener: Listener
) -> list[LoadTaskResult]:
    """Run the tasks that have not ended in an earlier run."""
    before = {} if state is None else state.results()
    numbers = [number for number in range(len(plan.tasks)) if number not in before]
    job = BulkJob(
        f"load {work.path}",
        work,
        [plan.tasks[number] for number in numbers],
        [plan.tasks[number].size_bytes for number in numbers],
        rows_known=plan.rows_known,
        rows_before=sum(result.rows for result in before.values()),
    )

    def ended(index: int, result: LoadTaskResult) -> None:
        if state is not None and numbers[index] not in before:
            state.task_ended(numbers[index], result)
            before[numbers[index]] = result

    found = [LoadTaskResult(result.rows, result.rows) for result in before.values()]
    results = job.run(fs.spark, listener=listener, on_result=ended)
    for index, result in enumerate(results):
        ended(index, result)
    return [*found, *results]


# On executors


@dataclass(frozen=True)
class LoadWork:
    """Loads the files of a task into a table. It goes to the executors."""

    settings: Mapping[str, str] = field(repr=False)
    path: TablePath
    table_id: int
    choice: ColumnChoice
    csv_format: CsvFormat
    starts: Mapping[str, int]
    """Where the logs of all buckets ended before the load."""
    creates_partitions: bool
    is_continued: bool
    """Whether an earlier run may have written something."""

    def __call__(self, task: LoadTask) -> LoadTaskResult:
        table = await_table(self.settings, self.path)
        info = table.get_table_info()
        if info.table_id != self.table_id:
            raise UnfitInputError(f"{self.path} was dropped and created again while files were loaded; begin anew")
        reading = FileReading(info.schema, self.choice, self.csv_format, text_limits(info))
        batches: Iterable[pa.RecordBatch] = (batch for piece in task.pieces for batch in reading.read(piece))
        if info.is_partitioned() and self.creates_partitions:
            batches = self._with_partitions(table, batches)
        record = WriterRecord(self.table_id, task.writer_id, self.starts, rows_per_batch=0)
        write = ExactlyOnceWrite(table, record, is_fresh=self._is_first_attempt())
        summary = write.write(batches)
        return LoadTaskResult(summary.rows, summary.rows_found)

    def _is_first_attempt(self) -> bool:
        context = TaskContext.get()
        return not self.is_continued and context is not None and context.attemptNumber() == 0

    def _with_partitions(self, table: FlussTable, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass batches on when the partitions of their rows exist."""
        info = table.get_table_info()
        splitter = PartitionSplitter(info.schema, info.partition_keys)
        admin = open_connection(self.settings).get_admin()
        known = {partition.partition_name for partition in partitions_of(table)}
        for batch in batches:
            splitter.check_keys(batch)
            for name, _ in splitter.groups(batch):
                if name not in known:
                    spec = spec_of_partition_name(name, info.partition_keys)
                    wait_for(admin.create_partition(self.path, spec, ignore_if_exists=True))
                    known.add(name)
            yield batch


# Files of all formats


@dataclass(frozen=True)
class FileReading:
    """How files are read into one table. It goes to the executors."""

    schema: Schema
    choice: ColumnChoice
    csv_format: CsvFormat
    text_limits: Mapping[str, int] | None = None

    def examine(self, files: Sequence[DataFile]) -> list[FileFacts]:
        """Look at every file, and refuse those whose columns can never fit. Files without any bytes are left out."""
        filled = [file for file in files if file.size_bytes]
        with ThreadPoolExecutor(_EXAMINERS_MAX, thread_name_prefix="fluss-bulk-files") as workers:
            return list(workers.map(self._examine, filled))

    def _examine(self, file: DataFile) -> FileFacts:
        match file.format:
            case FileFormat.PARQUET:
                facts = examine_parquet(file)
            case FileFormat.ARROW:
                facts = examine_arrow(file)
            case FileFormat.CSV:
                facts = examine_csv(file, self.csv_format, list(self._source_names().values()))
            case FileFormat.JSON:
                facts = examine_json(file, self._source_names())
        fit = self._fit(file, facts.names)
        if facts.schema is not None:
            fields = [facts.schema.field(source).with_name(name) for name, source in fit.sources.items()]
            RowFitter(self.schema, fit, self.text_limits).check(file, pa.schema(fields))
        elif file.format is FileFormat.CSV:
            check_csv_types(self.schema, fit.targets)
        else:
            check_json_types(self.schema, fit.targets)
        return facts

    def read(self, piece: FilePiece) -> Iterator[pa.RecordBatch]:
        """Read a piece in the form of the table: the same batches each time. A row that does not fit ends it."""
        fit = self._fit(piece.file, piece.names)
        fitted = RowFitter(self.schema, fit, self.text_limits)
        for placed in self._placed(piece, fit):
            yield fitted(placed)

    def _placed(self, piece: FilePiece, fit: ColumnFit) -> Iterator[PlacedBatch]:
        match piece.file.format:
            case FileFormat.PARQUET:
                return read_parquet(piece, fit)
            case FileFormat.ARROW:
                return read_arrow(piece, fit)
            case FileFormat.CSV:
                return read_csv(piece, fit, self.schema, self.csv_format)
            case FileFormat.JSON:
                return read_json(piece, fit, self.schema, ignore_extra=self.choice.is_extra_ignored)

    def _fit(self, file: DataFile, names: Sequence[str]) -> ColumnFit:
        return ColumnFit.of(file, names, self.schema, self.choice)

    def _source_names(self) -> dict[str, str]:
        return self.choice.source_names(self.schema)
