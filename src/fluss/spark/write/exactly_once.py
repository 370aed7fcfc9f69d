"""What a task does with its rows: write them at least once or exactly once, and say what was written.

Exactly once, however often and wherever the task is tried, takes three more modules: ``writer_record`` (what attempts
must know of each other), ``log_write`` and ``keyed_write`` (what they do with it). Batch and streaming writes differ
only in where the record is kept.

The tasks of queries keep their records in small files below the checkpoint, ``SinkState``:

    <checkpoint>/fluss-sink/directory                         says which directory this is
    <checkpoint>/fluss-sink/<query>/<batch>/<partition>.json  the record of a task, and -1.json, -2.json what it became

A record is made by creating its file, which only one attempt can. Files are never changed. The driver deletes those of
a micro-batch when a later one is committed: up to then Spark may repeat it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs as pafs

from fluss import FlussTable
from fluss.client.bulk import CountedWriter
from fluss.errors import FlussError
from fluss.spark.naming import format_bucket
from fluss.spark.write.keyed_write import KeyedWrite
from fluss.spark.write.log_write import LogWrite
from fluss.spark.write.sink import SinkPlan
from fluss.spark.write.sink_rows import SinkRows, WriteSummary
from fluss.spark.write.task_failure import refusing_rows
from fluss.spark.write.writer_record import Attempt, DriverRecord, RecordStore, WriterRecord

SINK_DIRECTORY: Final = "fluss-sink"
_MARK: Final = "directory"
# Names that Hadoop, and so Spark, has for stores which pyarrow knows by another one. Keys, region and endpoint are
# those of the environment of a process (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL): it does not see what Hadoop was told.
_HADOOP_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}
# Stores of pyarrow in which a file appears when it is complete.
_WHOLE_FILES: Final = frozenset({"s3", "gcs"})
# Records of one task. Each of them is there because of new partitions or a forgotten writer.
_RECORDS_MAX: Final = 100_000


def write_at_least_once(table: FlussTable, plan: SinkPlan, rows: Iterable[SinkRows]) -> WriteSummary:
    """Write rows, and return when they are stored. If the task is tried again, all of them are written again."""
    writer = CountedWriter(table, target_columns=plan.target_columns)
    for batch in rows:
        with refusing_rows():
            writer.write(batch.rows, batch.is_delete)
    writer.flush()
    counts = writer.row_counts
    summary = WriteSummary(rows=counts.total())
    for (partition_name, bucket_id), row_count in counts.items():
        summary.rows_by_bucket[format_bucket(partition_name, bucket_id)] = row_count
    return summary


def write_exactly_once(
    table: FlussTable, plan: SinkPlan, rows: Iterable[SinkRows], records: RecordStore
) -> WriteSummary:
    """Write the rows that no attempt of the task has written before, and return when all of them are stored."""
    return ExactlyOnceWrite(
        table,
        records,
        target_columns=plan.target_columns,
        accepts_new_table=plan.options.on_table_change == "accept",
    ).write_rows(rows)


class ExactlyOnceWrite:
    """One attempt to write the rows of one task. To be used once, by one thread.

    The record of the task is kept in a store, or was made by the driver, which gives the same one to all attempts;
    ``is_fresh`` says that this is the first of them, which need not look for what others have written. With
    ``target_columns``, for a primary-key table, only these columns are written. ``accepts_new_table`` says what to do
    if the table was created again since: all rows are written to it.
    """

    def __init__(
        self,
        table: FlussTable,
        record: WriterRecord | RecordStore,
        *,
        is_fresh: bool = False,
        target_columns: Sequence[str] | None = None,
        accepts_new_table: bool = False,
    ) -> None:
        self._table = table
        self._target_columns = target_columns
        store: RecordStore
        if isinstance(record, WriterRecord):
            # An attempt before this one may have written to partitions that the driver did not know.
            store = DriverRecord(record if is_fresh else record.with_new_partitions(table))
        else:
            store = record
        self._attempt = Attempt(table, store, is_resumed=not is_fresh, accepts_new_table=accepts_new_table)

    def write(self, batches: Iterable[pa.RecordBatch]) -> WriteSummary:
        """Append or upsert all rows, which have the form of the table, and return when they are stored.

        In all attempts the rows must be the same. They may come in another order, except that in a primary-key table
        those of one key should not. An error leaves a state with which the next attempt goes on.
        """
        return self.write_rows(SinkRows(batch) for batch in batches)

    def write_rows(self, batches: Iterable[SinkRows]) -> WriteSummary:
        """Write rows, and delete those that are marked; otherwise like ``write``."""
        if self._table.has_primary_key():
            return KeyedWrite(self._table, self._attempt, self._target_columns).write(batches)
        return LogWrite(self._table, self._attempt).write(batch.rows for batch in batches)


@dataclass(frozen=True)
class SinkState:
    """The records of all tasks of the queries with one checkpoint. Made on the driver, and sent to tasks.

    ``mark`` is what the driver has found in the directory. Tasks find the same, or are on a machine that does not see
    the directory.
    """

    location: str = field(repr=False)
    mark: str

    @classmethod
    def open(cls, location: str | None, *, new_mark: Callable[[], str] = lambda: secrets.token_hex(16)) -> SinkState:
        """Prepare the directory below a checkpoint."""
        if location is None:
            raise FlussError(
                "Exactly-once writes keep account below the checkpoint, so they must know where it is: give the query "
                '.option("checkpointLocation", "..."), or set sink.delivery-guarantee to at-least-once'
            )
        location = _absolute_location(location)
        files = state_files(location)
        path = f"{SINK_DIRECTORY}/{_MARK}"
        mark = files.read(path)
        if mark is None:
            files.create(path, new_mark().encode())
            mark = files.read(path)
        if mark is None:
            raise FlussError(f"The checkpoint location {shown_location(location)} cannot be written to")
        return cls(location, mark.decode(errors="replace"))

    def task(self, query: str, batch: int, partition: int) -> TaskRecords:
        """Return where one task of a micro-batch keeps its record."""
        files = state_files(self.location)
        mark = files.read(f"{SINK_DIRECTORY}/{_MARK}")
        if mark is None or mark.decode(errors="replace") != self.mark:
            raise FlussError(
                f"The checkpoint location {shown_location(self.location)} is not the same directory here as on the "
                "driver. Exactly-once writes need one that all executors share, such as an hdfs: or s3: URI"
            )
        return TaskRecords(files, f"{SINK_DIRECTORY}/{query}/{batch}/{partition}")

    def forget_before(self, query: str, batch: int) -> None:
        """Delete the records of the micro-batches before this one: Spark does not repeat them any more."""
        files = state_files(self.location)
        for name in files.directories(f"{SINK_DIRECTORY}/{query}"):
            if name.isdecimal() and int(name) < batch:
                files.delete(f"{SINK_DIRECTORY}/{query}/{name}")

    def forget(self, query: str) -> None:
        """Delete all records of a query."""
        state_files(self.location).delete(f"{SINK_DIRECTORY}/{query}")


class TaskRecords:
    """Keeps the record of one task. Implements ``RecordStore``."""

    def __init__(self, files: StateFiles, path: str) -> None:
        self._files = files
        self._path = path
        # How many records there are, as far as this attempt has seen.
        self._count = 0

    def load(self) -> WriterRecord | None:
        record = None
        for number in range(_RECORDS_MAX):
            content = self._files.read(self._name(number))
            if content is None:
                break
            self._count = number + 1
            record = WriterRecord.from_json(content)
        return record

    def put(self, record: WriterRecord) -> bool:
        if not self._files.create(self._name(self._count), record.to_json().encode()):
            return False
        self._count += 1
        return True

    def _name(self, number: int) -> str:
        return f"{self._path}-{number}.json" if number else f"{self._path}.json"


class StateFiles(Protocol):
    """Files in one directory, by relative path."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, None if there is none."""
        ...

    def create(self, path: str, content: bytes) -> bool:
        """Create a file, whole or not at all; False if it is there already."""
        ...

    def directories(self, path: str) -> list[str]:
        """Return the names of the directories in a directory; none if it does not exist."""
        ...

    def delete(self, path: str) -> None:
        """Delete a directory with everything in it, if it is there."""
        ...


@dataclass(frozen=True)
class LocalFiles:
    """Files of an operating system."""

    root: Path

    def read(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, path: str, content: bytes) -> bool:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        # A reader never sees a file before it is whole.
        unfinished = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
        unfinished.write_bytes(content)
        try:
            os.link(unfinished, target)
        except FileExistsError:
            return False
        finally:
            unfinished.unlink()
        return True

    def directories(self, path: str) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self.root / path) if entry.is_dir()]
        except FileNotFoundError:
            return []

    def delete(self, path: str) -> None:
        shutil.rmtree(self.root / path, ignore_errors=True)


@dataclass(frozen=True)
class ArrowFiles:
    """Files of a store that pyarrow knows, such as S3 or HDFS.

    Few of these can create a file only if there is none. Two attempts that begin in the same instant could both believe
    that they are the first; Spark does not start a second one before it has given up the first.
    """

    files: pafs.FileSystem
    root: str

    def read(self, path: str) -> bytes | None:
        try:
            with self.files.open_input_stream(f"{self.root}/{path}") as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None

    def create(self, path: str, content: bytes) -> bool:
        if self.read(path) is not None:
            return False
        target = f"{self.root}/{path}"
        directory, _, name = target.rpartition("/")
        self.files.create_dir(directory, recursive=True)
        # Elsewhere a file is there from the moment when it is opened, and stays as it is if its writer dies.
        is_whole = self.files.type_name in _WHOLE_FILES
        written = target if is_whole else f"{directory}/.{name}.{secrets.token_hex(8)}"
        with self.files.open_output_stream(written) as stream:
            stream.write(content)
        if not is_whole:
            try:
                self.files.move(written, target)
            except OSError:
                # Some stores refuse to replace the file of another attempt.
                if self.read(path) is None:
                    raise
                self.files.delete_file(written)
        # If several attempts wrote at once, the file of the last one counts for all of them.
        return self.read(path) == content

    def directories(self, path: str) -> list[str]:
        found = self.files.get_file_info(pafs.FileSelector(f"{self.root}/{path}", allow_not_found=True))
        return [info.base_name for info in found if info.type == pafs.FileType.Directory]

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.files.delete_dir(f"{self.root}/{path}")


def state_files(location: str) -> StateFiles:
    """Return the files of a directory: a path, or a URI that pyarrow knows."""
    parts = urlsplit(location)
    # A single letter is a drive of Windows.
    if len(parts.scheme) <= 1:
        return LocalFiles(Path(location))
    if parts.scheme == "file":
        return LocalFiles(Path(unquote(parts.path)))
    if parts.scheme in _HADOOP_SCHEMES:
        location = urlunsplit(parts._replace(scheme=_HADOOP_SCHEMES[parts.scheme]))
    try:
        files, path = pafs.FileSystem.from_uri(location)
    except (pa.ArrowException, OSError, ValueError):
        found = _fsspec_files(location)
        if found is not None:
            return found
        # The error of pyarrow shows the location, which may contain access keys.
        raise FlussError(
            f"pyarrow cannot open the checkpoint location {shown_location(location)}, which exactly-once writes need. "
            "Use a path, or a file:, hdfs:, s3:, s3a:, gs: or abfss: URI, or one of an installed fsspec; "
            "or set sink.delivery-guarantee to at-least-once"
        ) from None
    return ArrowFiles(files, path.rstrip("/"))


def _fsspec_files(location: str) -> ArrowFiles | None:
    """Return the files of a store that fsspec knows, None if there is no fsspec or it knows no such store."""
    try:
        files, path = import_module("fsspec.core").url_to_fs(location)
    except (ImportError, OSError, ValueError):
        return None
    return ArrowFiles(pafs.PyFileSystem(pafs.FSSpecHandler(files)), str(path).rstrip("/"))


def _absolute_location(location: str) -> str:
    """Return a location that means the same in all processes: Spark takes a path as one of the driver's."""
    return location if len(urlsplit(location).scheme) > 1 else str(Path(location).absolute())


def shown_location(location: str) -> str:
    """Return a location for messages: without the keys that a URI can have before its host and behind its path."""
    parts = urlsplit(location)
    if len(parts.scheme) <= 1:
        return location
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
