"""Compaction: small files of a lake table become large ones, and rows that were deleted are left out.

Files of a bucket are taken in the order of their offsets, and only neighbours are put together. So what comes out is
ordered by ``__offset``, file by file and within each, without sorting; and memory holds one row group.

| a bucket is compacted if | and then these files are rewritten |
|---|---|
| it has ``MIN_FILES`` files below their target size, or more | those, with at least one neighbour |
| more than ``MAX_DELETED`` of its rows are deleted, or by more than ``MAX_DELETE_FILES`` files | those with deletes |

All that is rewritten is replaced in one snapshot, with the offsets that the table had before, made on one state of the
table or not at all: a round that commits in between is not undone by it. Readers of older snapshots keep their files
until those expire.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.types import LongType

from fluss import FlussTable
from fluss.amounts import format_bytes, format_count, format_duration
from fluss.client.bulk import admin_of, lake_snapshot_of, reopened, tiering_calls_of
from fluss.lake.commits import (
    OFFSETS_KEY,
    LakeConflictError,
    commit_files,
    latest_tiered_snapshot,
    tiering_properties,
)
from fluss.lake.data_files import DataFileWriter, FileLayout, delete_files
from fluss.lake.scans import LakeFile, LakeScan, detached
from fluss.lake.schema_mapping import OFFSET_COLUMN
from fluss.tiering.round_plan import lake_tables_of, recovered
from fluss.tiering.task_runners import RunHere, TaskRunner

MIN_FILES: Final = 3
MAX_DELETED: Final = 0.1
MAX_DELETE_FILES: Final = 20
# A file that is nearly as large as it should be is left alone.
_NEARLY_FULL: Final = 0.75
# How often it is begun again because rounds were committed meanwhile.
_TRIES_MAX: Final = 3

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What a compaction has done. ``snapshot_id`` is None if there was nothing to do."""

    table: str
    snapshot_id: int | None
    files_before: int
    """Data files that were rewritten."""
    files_after: int
    delete_files: int
    """Delete files that are not needed any more."""
    rows: int
    bytes_before: int
    bytes_after: int
    seconds: float

    def __str__(self) -> str:
        if self.snapshot_id is None:
            return f"{self.table}: nothing to compact"
        deletes = f" and {format_count(self.delete_files, 'delete file')}" if self.delete_files else ""
        return (
            f"{self.table}: {format_count(self.files_before, 'file')} ({format_bytes(self.bytes_before)}){deletes} "
            f"became {format_count(self.files_after, 'file')} ({format_bytes(self.bytes_after)}) with "
            f"{format_count(self.rows, 'row')} in {format_duration(self.seconds)}"
        )


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Neighbours that are rewritten together, in their order."""

    partition_values: tuple[str, ...]
    bucket_id: int
    files: tuple[LakeFile, ...]

    @property
    def byte_count(self) -> int:
        return sum(file.data.file_size_in_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class GroupResult:
    """What a group has become."""

    rows: int
    data_files: tuple[DataFile, ...]


@dataclass(frozen=True)
class CompactionWork:
    """What tasks are told."""

    layout: FileLayout
    lake_table: IcebergTable

    def run(self, table: FlussTable, item: FileGroup) -> GroupResult:
        """Rewrite one group."""
        scan = LakeScan(self.lake_table)
        schema = self.layout.arrow_schema
        partition = self.layout.partition(item.partition_values, item.bucket_id)
        with DataFileWriter(self.layout, partition, name="compacted") as writer:
            for batch in scan.read(item.files):
                writer.write(batch.cast(schema) if not batch.schema.equals(schema, check_metadata=True) else batch)
        return GroupResult(writer.row_count, tuple(writer.files))


def compact(
    table: FlussTable,
    *,
    lake_properties: Mapping[str, str] | None = None,
    run_tasks: TaskRunner | None = None,
    everything: bool = True,
    still_ours: Callable[[], None] = lambda: None,
) -> CompactionReport:
    """Rewrite the small files of a table's lake, and those with deleted rows.

    With ``everything`` two small files, or one deleted row, are enough; without, it is done for buckets where it pays
    off. Safe beside rounds of tiering: if one is committed meanwhile, it is begun again.
    """
    started_s = time.monotonic()
    for attempt in range(_TRIES_MAX):
        try:
            return _Compaction(table, lake_properties, run_tasks or RunHere(), everything, still_ours).run(started_s)
        except LakeConflictError as error:
            if attempt == _TRIES_MAX - 1:
                raise
            logger.info("%s; the compaction is begun again", error.message)
    raise AssertionError("the last attempt returns or raises")


class _Compaction:
    def __init__(
        self,
        table: FlussTable,
        lake_properties: Mapping[str, str] | None,
        run_tasks: TaskRunner,
        everything: bool,
        still_ours: Callable[[], None],
    ) -> None:
        self._table = reopened(table)
        self._run_tasks = run_tasks
        self._everything = everything
        self._still_ours = still_ours
        self._calls = tiering_calls_of(admin_of(table))
        self._lake_table, self._offsets_path = tiered_state(self._table, lake_properties)

    def run(self, started_s: float) -> CompactionReport:
        info, lake_table = self._table.get_table_info(), self._lake_table
        name = str(info.table_path)
        layout = FileLayout.of(lake_table)
        groups: list[FileGroup] = []
        files = LakeScan(lake_table).files() if self._offsets_path is not None else []
        offset_id = offset_id_of(lake_table)
        for bucket_files in by_bucket(in_order(files, offset_id)).values():
            groups += planned_groups(bucket_files, layout.target_bytes, everything=self._everything)
        if not groups:
            return CompactionReport(name, None, 0, 0, 0, 0, 0, 0, time.monotonic() - started_s)
        assert self._offsets_path is not None
        work = CompactionWork(layout, detached(lake_table))
        results = self._run_tasks("compact", self._table, work, groups, [group.byte_count for group in groups])
        added = [file for result in results for file in result.data_files]
        rewritten = [file for group in groups for file in group.files]
        gone = unused_deletes(files, rewritten)
        try:
            self._still_ours()
            snapshot_id = commit_files(
                lake_table,
                added=added,
                replaced=[*(file.data for file in rewritten), *gone],
                properties=tiering_properties(self._offsets_path),
            )
        except LakeConflictError:
            delete_files(lake_table.io, added)
            raise
        self._calls.commit(info.table_id, snapshot_id, self._offsets_path)
        return CompactionReport(
            name,
            snapshot_id,
            len(rewritten),
            len(added),
            len(gone),
            sum(result.rows for result in results),
            sum(group.byte_count for group in groups),
            sum(file.file_size_in_bytes for file in added),
            time.monotonic() - started_s,
        )


def tiered_state(
    table: FlussTable, lake_properties: Mapping[str, str] | None = None
) -> tuple[IcebergTable, str | None]:
    """Return the lake table in a state that Fluss knows, and where the offsets of its newest tiered snapshot are.

    None if it was never tiered. An interrupted round is registered first.
    """
    info = table.get_table_info()
    # Before the lake table: a round that commits in between makes a snapshot that this state of it would not have.
    known = lake_snapshot_of(table)
    lake_table = lake_tables_of(info, lake_properties).load(info.table_path)
    recovered(tiering_calls_of(admin_of(table)), info, lake_table, known)
    tiered = latest_tiered_snapshot(lake_table)
    if tiered is None or tiered.summary is None:
        return lake_table, None
    return lake_table, tiered.summary.get(OFFSETS_KEY)


# Planning


def by_bucket(files: Iterable[LakeFile]) -> dict[tuple[tuple[str, ...], int], list[LakeFile]]:
    """Group files by partition and bucket, each in the order of offsets."""
    found: dict[tuple[tuple[str, ...], int], list[LakeFile]] = {}
    for file in files:
        found.setdefault((file.partition_values, file.bucket_id), []).append(file)
    return found


def planned_groups(files: Sequence[LakeFile], target_bytes: int, *, everything: bool) -> list[FileGroup]:
    """Return what is rewritten of one bucket, whose files are in their order."""
    small = {file.data.file_path for file in files if file.data.file_size_in_bytes < target_bytes * _NEARLY_FULL}
    with_deletes = {file.data.file_path for file in files if file.has_deletes}
    deletes = {each.file_path: each for file in files for each in (*file.position_deletes, *file.equality_deletes)}
    rows = sum(file.data.record_count for file in files)
    deleted_rows = sum(each.record_count for each in deletes.values())
    chosen: set[str] = set()
    if len(small) >= (2 if everything else MIN_FILES):
        chosen |= small
    if everything or deleted_rows > rows * MAX_DELETED or len(deletes) > MAX_DELETE_FILES:
        chosen |= with_deletes
    return [
        FileGroup(group[0].partition_values, group[0].bucket_id, tuple(group))
        for run in _neighbours(files, chosen)
        for group in _packed(run, target_bytes)
        if len(group) > 1 or group[0].has_deletes
    ]


def _neighbours(files: Sequence[LakeFile], chosen: set[str]) -> Iterator[list[LakeFile]]:
    """Yield runs of chosen files between which there are no others."""
    run: list[LakeFile] = []
    for file in files:
        if file.data.file_path in chosen:
            run.append(file)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _packed(run: Sequence[LakeFile], target_bytes: int) -> Iterator[list[LakeFile]]:
    group: list[LakeFile] = []
    size = 0
    for file in run:
        if group and size + file.data.file_size_in_bytes > target_bytes:
            yield group
            group, size = [], 0
        group.append(file)
        size += file.data.file_size_in_bytes
    if group:
        yield group


def in_order(files: Iterable[LakeFile], offset_id: int) -> list[LakeFile]:
    """Return files in the order of their offsets; ``offset_id`` is the field id of ``__offset``."""

    def key(file: LakeFile) -> tuple[int, int, str]:
        lower = (file.data.lower_bounds or {}).get(offset_id)
        offset = 0 if lower is None else int(from_bytes(LongType(), lower))
        return offset, file.sequence_number, file.data.file_path

    return sorted(files, key=key)


def offset_id_of(lake_table: IcebergTable) -> int:
    """Return the field id of ``__offset``."""
    field_id: int = lake_table.schema().find_field(OFFSET_COLUMN).field_id
    return field_id


def unused_deletes(files: Sequence[LakeFile], rewritten: Sequence[LakeFile]) -> list[DataFile]:
    """Return the delete files that concern none but rewritten data files."""
    paths = {file.data.file_path for file in rewritten}
    kept = {
        each.file_path
        for file in files
        if file.data.file_path not in paths
        for each in (*file.position_deletes, *file.equality_deletes)
    }
    gone = {each.file_path: each for file in rewritten for each in (*file.position_deletes, *file.equality_deletes)}
    return [each for path, each in gone.items() if path not in kept]
