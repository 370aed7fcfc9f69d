"""What a snapshot of a lake table has: data files by partition and bucket, and their rows, with all deletes applied.

pyiceberg plans and reads tables with deletes by position. Deletes by key, which Apache Fluss's own tiering service
writes, are applied here: such a delete file concerns the data files of its partition that were committed before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, _read_deletes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.schema import Schema as LakeSchema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.transforms import BucketTransform

from fluss.errors import ErrorCode, FlussError
from fluss.lake.arrow_conversion import arrow_schema
from fluss.lake.key_set import KeySet
from fluss.lake.manifest_cache import cached_manifests
from fluss.lake.schema_mapping import BUCKET_COLUMN

_ALL: Final = AlwaysTrue()


@dataclass(frozen=True)
class LakeFile:
    """A data file of a snapshot with what is deleted from it. It can be pickled."""

    data: DataFile
    # Values of the partition keys of the Fluss table.
    partition_values: tuple[str, ...]
    bucket_id: int
    sequence_number: int
    position_deletes: tuple[DataFile, ...] = ()
    equality_deletes: tuple[DataFile, ...] = ()

    @property
    def has_deletes(self) -> bool:
        """Whether something may be deleted from it; if not, the Parquet file can be read as it is."""
        return bool(self.position_deletes or self.equality_deletes)


class LakeScan:
    """Rows of a lake table at one snapshot: the given one, or the newest.

    ``columns`` are all, with those of the system, if none are given. ``row_filter`` is an expression of pyiceberg,
    applied to files and to rows.
    """

    def __init__(
        self,
        table: IcebergTable,
        *,
        snapshot_id: int | None = None,
        columns: Sequence[str] | None = None,
        row_filter: BooleanExpression = _ALL,
    ) -> None:
        metadata = table.metadata
        snapshot = metadata.current_snapshot() if snapshot_id is None else metadata.snapshot_by_id(snapshot_id)
        if snapshot is None and snapshot_id is not None:
            raise FlussError(
                f"The lake table {'.'.join(table.name())} has no snapshot {snapshot_id}; it may have expired",
                ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
            )
        self._metadata = metadata
        self._io = table.io
        self._snapshot = snapshot
        self._filter = row_filter
        self._schema = metadata.schema()
        self._columns = [field.name for field in self._schema.fields] if columns is None else list(columns)
        self._keys: dict[str, KeySet] = {}

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the rows."""
        return arrow_schema(self._projection(self._columns), with_field_ids=False)

    def _projection(self, names: Iterable[str]) -> LakeSchema:
        return LakeSchema(*(self._schema.find_field(name) for name in names), schema_id=self._schema.schema_id)

    # Planning

    def files(self) -> list[LakeFile]:
        """Return the data files that may have rows of this scan."""
        if self._snapshot is None:
            return []
        planner = ManifestGroupPlanner(self._metadata, self._io, self._filter)
        data: list[ManifestEntry] = []
        positions = DeleteFileIndex()
        equalities: dict[Any, list[tuple[int, DataFile]]] = {}
        for entries in planner.plan_manifest_entries(cached_manifests(self._snapshot, self._io)):
            for entry in entries:
                file = entry.data_file
                if file.content == DataFileContent.DATA:
                    data.append(entry)
                elif file.content == DataFileContent.POSITION_DELETES:
                    positions.add_delete_file(entry, partition_key=file.partition)
                else:
                    equalities.setdefault(_partition_key(file), []).append((entry.sequence_number, file))
        return [self._lake_file(entry, positions, equalities) for entry in data]

    def _lake_file(
        self,
        entry: ManifestEntry,
        positions: DeleteFileIndex,
        equalities: Mapping[Any, list[tuple[int, DataFile]]],
    ) -> LakeFile:
        file, number = entry.data_file, entry.sequence_number or 0
        by_position = positions.for_data_file(number, file, partition_key=file.partition)
        by_key = [deletes for at, deletes in equalities.get(_partition_key(file), ()) if at > number]
        values, bucket_id = _place(self._metadata.specs()[file.spec_id], file)
        ordered = sorted(by_position, key=lambda each: each.file_path)
        return LakeFile(file, values, bucket_id, number, tuple(ordered), tuple(by_key))

    # Reading

    def read(self, files: Iterable[LakeFile] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files of this scan, of all if none are given, a batch at a time."""
        schema = self.arrow_schema
        for file in self.files() if files is None else files:
            for batch in self.read_file(file):
                if batch.num_rows:
                    yield _in_schema(batch, schema)

    def to_table(self) -> pa.Table:
        """Return all rows."""
        return pa.Table.from_batches(self.read(), self.arrow_schema)

    def read_file(self, file: LakeFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file, in the order in which it has them."""
        key_sets = self._key_sets(file.equality_deletes)
        key_columns = [name for keys in key_sets for name in keys.names if name not in self._columns]
        projection = self._projection([*self._columns, *dict.fromkeys(key_columns)])
        scan = ArrowScan(self._metadata, self._io, projection, self._filter)
        deletes = {file.data.file_path: deleted_positions(self._io, file)}
        for batch in scan._record_batches_from_scan_tasks_and_deletes([FileScanTask(file.data)], deletes):
            kept = batch
            for keys in key_sets:
                gone = keys.contains(kept)
                if gone.any():
                    kept = kept.filter(pa.array(~gone))
            yield kept.select(self._columns) if key_columns else kept

    def _key_sets(self, files: Sequence[DataFile]) -> list[KeySet]:
        """Return the keys of delete files, each read once for all data files that it concerns."""
        sets = []
        for file in files:
            keys = self._keys.get(file.file_path)
            if keys is None:
                names = [self._schema.find_field(field_id).name for field_id in file.equality_ids]
                projection = self._projection(names)
                scan = ArrowScan(self._metadata, self._io, projection, _ALL)
                keys = self._keys[file.file_path] = KeySet(scan.to_table([FileScanTask(file)]))
            sets.append(keys)
        return sets


def detached(table: IcebergTable) -> IcebergTable:
    """Return a table at its newest snapshot, without its catalog and its past: small, and it can be pickled."""
    snapshot = table.metadata.current_snapshot()
    metadata = table.metadata.model_copy(
        update={"snapshots": [] if snapshot is None else [snapshot], "snapshot_log": [], "metadata_log": []}
    )
    return IcebergTable(table.name(), metadata, table.metadata_location, table.io, None)


def deleted_positions(io: FileIO, file: LakeFile) -> list[pa.ChunkedArray]:
    """Return the positions of rows of a data file that are deleted, by delete file."""
    by_file = (_read_deletes(io, deletes).get(file.data.file_path) for deletes in file.position_deletes)
    return [positions for positions in by_file if positions is not None]


def _partition_key(file: DataFile) -> tuple[Any, ...]:
    return (file.spec_id, *file.partition)


def _place(spec: Any, file: DataFile) -> tuple[tuple[str, ...], int]:
    """Return the values of the Fluss partition and the bucket that a file of a partition belongs to."""
    values = tuple(file.partition)
    last = spec.fields[-1] if spec.fields else None
    if last is not None and (isinstance(last.transform, BucketTransform) or last.name == BUCKET_COLUMN):
        return values[:-1], int(values[-1])
    return values, -1


def _in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch in the schema of the scan: files have 32-bit offsets or 64-bit ones, depending on their writer."""
    if batch.schema.equals(schema):
        return batch
    columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
