"""Rows of a lake table as its Fluss table has them: the same columns, the same types, all deletes applied.

Parquet files are read together by pyarrow's datasets, several at a time, and rows that are deleted from them by their
positions are cut out. What is left, files with deletes by key and tables whose columns were renamed, is read by
``scans``, which is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.types as pat
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, LessThan
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO, _read_deletes, expression_to_pyarrow
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema as LakeSchema
from pyiceberg.schema import index_name_by_id
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IntegerType, LongType

from fluss.ahead import done, in_order, submitted
from fluss.buffers import Int64Array
from fluss.errors import ErrorCode, FlussError
from fluss.lake.arrow_conversion import arrow_schema, lake_array
from fluss.lake.dictionaries import dictionary_columns, is_string, with_dictionaries, without_dictionaries
from fluss.lake.pruning import pruning_condition
from fluss.lake.scans import LakeFile, LakeScan
from fluss.lake.schema_mapping import OFFSET_COLUMN
from fluss.options import without_passwords
from fluss.record.compression import shared_threads
from fluss.row.arrow_arrays import without_rows
from fluss.schema.predicate import BoundPredicate
from fluss.schema.schema import Schema

# Rows of a batch, and how many batches and files are read ahead: this is what a read holds in memory.
_BATCH_ROWS: Final = 131_072
_BATCHES_AHEAD: Final = 5
_FILES_AHEAD: Final = 2
# Batches that have been read and are being finished.
_FINISHED_AHEAD: Final = 3
# How a file is read: by a dataset with a condition, by one without, or by itself.
_PLAIN: Final = 0
_UNFILTERED: Final = 1
_OTHER: Final = 2
_NOWHERE: Final[Int64Array] = np.zeros(0, np.int64)
# Says which of some rows of a file are left out. It gets the rows as the Fluss table has them, and the position of the
# first of them in the file. Several threads ask it at the same time.
RowFinder: TypeAlias = Callable[[pa.RecordBatch, int], Int64Array]
Tagged: TypeAlias = tuple[LakeFile, pa.RecordBatch]


def _no_finder(_: LakeFile) -> None:
    return None


@dataclass(frozen=True)
class _PinnedTable:
    """What readers know of a lake table: one state with one snapshot. It can be pickled, and asks no catalog."""

    identifier: tuple[str, ...]
    metadata: TableMetadata
    io: FileIO

    @classmethod
    def of(cls, table: IcebergTable, snapshot_id: int) -> _PinnedTable:
        metadata = table.metadata
        snapshots = [each for each in metadata.snapshots if each.snapshot_id == snapshot_id]
        kept = {"snapshots": snapshots, "snapshot_log": [], "metadata_log": [], "refs": {}, "statistics": []}
        return cls(table.name(), metadata.model_copy(update=kept), table.io)

    def name(self) -> tuple[str, ...]:
        return self.identifier


class LakeRows:
    """Rows of a lake table at one snapshot. It can be pickled, and read elsewhere.

    ``schema`` is that of the Fluss table, ``fields`` are the columns to return, each once, as the Fluss table has them:
    columns that the lake table does not have yet are null. Rows for which ``predicate`` does not hold may be left out,
    as far as the lake can tell. Raises code 53 if the lake does not have the snapshot, or not a column that it had.
    """

    def __init__(
        self,
        table: IcebergTable,
        snapshot_id: int,
        schema: Schema,
        fields: pa.Schema,
        predicate: BoundPredicate | None = None,
    ) -> None:
        self._table = _PinnedTable.of(table, snapshot_id)
        self._snapshot_id = snapshot_id
        self._fields = fields
        lake_schema: LakeSchema = table.metadata.schema()
        known = {field.name for field in lake_schema.fields}
        self._names = [name for name in fields.names if name in known]
        _check_not_removed(table, [name for name in fields.names if name not in known])
        self._condition = pruning_condition(predicate, schema, known)
        self._lake_schema = lake_schema
        self._arrow_schema = arrow_schema(lake_schema, with_field_ids=False)
        self._is_by_name = _has_stable_names(table)
        # Says at once if there is no such snapshot.
        self._new_scan(self._condition)

    @property
    def snapshot_id(self) -> int:
        """The snapshot that is read."""
        return self._snapshot_id

    def _new_scan(self, condition: BooleanExpression, columns: Sequence[str] | None = None) -> LakeScan:
        names = self._names if columns is None else columns
        return LakeScan(self._table, snapshot_id=self._snapshot_id, columns=names, row_filter=condition)

    def files(self) -> list[LakeFile]:
        """Return the data files that may have rows: bucket by bucket, those of a bucket in the order of the log."""
        with reading_lake(self._table):
            files = self._new_scan(self._condition).files()
        offset_id = self._lake_schema.find_field(OFFSET_COLUMN).field_id

        def place(file: LakeFile) -> tuple[Any, ...]:
            return file.partition_values, file.bucket_id, _first_offset(file, offset_id), file.data.file_path

        return sorted(files, key=place)

    def select(self, names: Sequence[str]) -> LakeRows:
        """Return the same rows with some of their columns. Names of other columns are passed over."""
        chosen = copy(self)
        chosen._fields = pa.schema([field for field in self._fields if field.name in names])
        chosen._names = [name for name in self._names if name in names]
        return chosen

    def batches(
        self,
        files: Iterable[LakeFile],
        *,
        offset_stop: int | None = None,
        finder: Callable[[LakeFile], RowFinder | None] = _no_finder,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some of the files, in their order; with ``offset_stop`` only those before it in the log.

        Rows for which the predicate does not hold may be among them. Those are not that are found by what ``finder``
        returns for their file; positions mean something if the file ``has_positions`` and there is no condition.
        """
        return (batch for _, batch in self.file_batches(files, offset_stop=offset_stop, finder=finder))

    def file_batches(
        self,
        files: Iterable[LakeFile],
        *,
        offset_stop: int | None = None,
        finder: Callable[[LakeFile], RowFinder | None] = _no_finder,
    ) -> Generator[Tagged, None, None]:
        """Yield what ``batches`` does, with the file that the rows are in.

        The ``finder`` is asked for a file when rows of it have come, and not before.
        """
        condition = self._condition
        if offset_stop is not None:
            condition = And(condition, LessThan(OFFSET_COLUMN, offset_stop))
        files = list(files)
        if not files:
            return
        reading = _Reading(self, condition, finder)
        with reading_lake(self._table):
            for rows in in_order(reading.read(files), _FINISHED_AHEAD):
                yield from rows

    def number_bounds(self, file: LakeFile, name: str) -> tuple[int, int] | None:
        """Return between which whole numbers the values of a column are in a file; None if that is not known."""
        try:
            field = self._lake_schema.find_field(name)
        except ValueError:
            return None
        ends = [(bounds or {}).get(field.field_id) for bounds in (file.data.lower_bounds, file.data.upper_bounds)]
        if not isinstance(field.field_type, IntegerType | LongType) or None in ends:
            return None
        lower, upper = (from_bytes(field.field_type, end) for end in ends)
        return lower, upper

    @property
    def has_condition(self) -> bool:
        """Whether rows may be left out, as far as the lake can tell."""
        return bool(self._condition != AlwaysTrue())

    def has_positions(self, file: LakeFile) -> bool:
        """Whether rows of a file can be left out by their positions: all it takes is to read it as it is."""
        return self._is_by_name and not file.equality_deletes and file.data.file_format == FileFormat.PARQUET

    def is_plain(self, file: LakeFile) -> bool:
        """Whether a file is Parquet that can be read as it is, by the names of its columns."""
        return self.has_positions(file) and not file.position_deletes

    def _fluss_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the types of the Fluss table, but for numbers of entries of dictionaries."""
        names = batch.schema.names
        found = [batch.column(names.index(field.name)) if field.name in names else None for field in self._fields]
        columns = [
            pa.nulls(batch.num_rows, field.type)
            if column is None
            else column
            if pat.is_dictionary(column.type)
            else lake_array(column, field.type)
            for column, field in zip(found, self._fields, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, names=self._fields.names)


class _Reading:
    """One pass over files, with a condition under which rows may be left out, and rows that are left out.

    Arrow's threads read and decode; what is done with a batch then is done by other threads, too, for several batches
    at the same time.
    """

    def __init__(
        self,
        rows: LakeRows,
        condition: BooleanExpression,
        finder: Callable[[LakeFile], RowFinder | None],
    ) -> None:
        self._rows = rows
        self._finder = finder
        self._condition = condition
        self._io: Any = rows._table.io
        self._schema = rows._lake_schema
        # Positions by delete file, then by data file. Delete files belong to one bucket, and buckets come one by one.
        self._deletes: dict[str, dict[str, pa.ChunkedArray]] = {}

    def read(self, files: Iterable[LakeFile]) -> Iterator[Future[list[Tagged]]]:
        """Yield the rows of files, of which some are still under way."""
        for group in self._grouped(files):
            if self._kind(group[0]) == _OTHER:
                (file,) = group
                find = self._finder(file)
                for batch in self._rows._new_scan(self._condition, self._columns()).read_file(file):
                    yield done(self._finished(file, batch, 0, _NOWHERE, None, find))
            else:
                yield from self._read_parquet(group)

    def _grouped(self, files: Iterable[LakeFile]) -> Iterator[list[LakeFile]]:
        """Put files that follow each other together if they can be read together."""
        for kind, group in groupby(files, self._kind):
            if kind == _OTHER:
                yield from ([file] for file in group)
            else:
                yield list(group)

    def _kind(self, file: LakeFile) -> int:
        if not self._rows.has_positions(file):
            return _OTHER
        if not file.position_deletes:
            return _PLAIN
        # Positions count all rows of a file, so that nothing may be left out of it by a condition.
        return _PLAIN if self._condition == AlwaysTrue() else _UNFILTERED

    def _read_parquet(self, files: Sequence[LakeFile]) -> Iterator[Future[list[Tagged]]]:
        """Yield the rows of Parquet files that are of one kind."""
        paths = [self._path(file) for file in files]
        by_path = dict(zip(paths, files, strict=True))
        columns, before, afterwards = self._columns(), self._arrow_condition(), None
        if self._kind(files[0]) == _UNFILTERED:
            columns = [*dict.fromkeys([*columns, *self._condition_columns()])]
            before, afterwards = None, before
        encoded = self._encoded_columns(files, paths, columns)
        scanner = self._dataset(files, paths, encoded).scanner(
            columns=columns,
            filter=before,
            batch_size=_BATCH_ROWS,
            batch_readahead=_BATCHES_AHEAD,
            fragment_readahead=_FILES_AHEAD,
        )
        current, first = None, 0
        deleted, find = _NOWHERE, None
        for tagged in scanner.scan_batches():
            file, batch = by_path[tagged.fragment.path], tagged.record_batch
            if file is not current:
                current, first, find = file, 0, self._finder(file)
                deleted = self._deleted_positions(file) if file.position_deletes else _NOWHERE
            begin, end = np.searchsorted(deleted, [first, first + batch.num_rows])
            work = partial(self._finished, file, batch, first, deleted[begin:end] - first, afterwards, find)
            first += batch.num_rows
            is_work = encoded or find is not None or begin < end
            yield submitted(shared_threads(), work) if is_work else done(work())

    def _finished(
        self,
        file: LakeFile,
        batch: pa.RecordBatch,
        first: int,
        gone: Int64Array,
        condition: pc.Expression | None,
        find: RowFinder | None,
    ) -> list[Tagged]:
        """Return rows of a file as the Fluss table has them, from ``first`` on, without those that are left out."""
        if condition is not None:
            batch, gone = without_rows(batch, gone).filter(condition), _NOWHERE
        rows = self._rows._fluss_columns(batch)
        if find is not None:
            gone = np.concatenate([gone, find(rows, first)])
        kept = without_rows(rows, gone)
        return [(file, part) for part in without_dictionaries(kept, self._rows._fields) if part.num_rows]

    def _columns(self) -> list[str]:
        # The rows have to be counted if none of the columns is there.
        return self._rows._names or [OFFSET_COLUMN]

    def _condition_columns(self) -> list[str]:
        if self._condition == AlwaysTrue():
            return []
        ids = extract_field_ids(bind(self._schema, self._condition, True))
        return [field.name for field in self._schema.fields if field.field_id in ids]

    def _arrow_condition(self) -> pc.Expression | None:
        if self._condition == AlwaysTrue():
            return None
        return expression_to_pyarrow(bind(self._schema, self._condition, True), self._schema)

    def _path(self, file: LakeFile) -> str:
        path: str = PyArrowFileIO.parse_location(file.data.file_path, self._io.properties)[2]
        return path

    def _file_system(self, file: LakeFile) -> Any:
        scheme, netloc, _ = PyArrowFileIO.parse_location(file.data.file_path, self._io.properties)
        return self._io.fs_by_scheme(scheme, netloc)

    def _encoded_columns(self, files: Sequence[LakeFile], paths: Sequence[str], columns: Sequence[str]) -> list[str]:
        """Return the columns that are read as numbers of entries of dictionaries.

        A condition is for values. The largest file tells for all: if its dictionaries were large enough, so are others.
        """
        by_condition = self._condition_columns()
        strings = [
            name
            for name in columns
            if is_string(self._rows._arrow_schema.field(name).type) and name not in by_condition
        ]
        if not strings:
            return []
        largest = max(range(len(files)), key=lambda index: files[index].data.record_count)
        encoded = dictionary_columns(paths[largest], self._file_system(files[largest]))
        return [name for name in strings if name in encoded]

    def _dataset(self, files: Sequence[LakeFile], paths: Sequence[str], encoded: Sequence[str]) -> ds.FileSystemDataset:
        file_format = ds.ParquetFileFormat(
            read_options=ds.ParquetReadOptions(dictionary_columns=encoded),
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True),
        )
        return ds.FileSystemDataset.from_paths(
            paths,
            schema=with_dictionaries(self._rows._arrow_schema, encoded),
            format=file_format,
            filesystem=self._file_system(files[0]),
        )

    def _deleted_positions(self, file: LakeFile) -> Int64Array:
        """Return the positions of lost rows in ascending order. Each delete file is read once for its bucket."""
        paths = {deletes.file_path for deletes in file.position_deletes}
        self._deletes = {path: found for path, found in self._deletes.items() if path in paths}
        for deletes in file.position_deletes:
            if deletes.file_path not in self._deletes:
                self._deletes[deletes.file_path] = _read_deletes(self._io, deletes)
        by_file = (found.get(file.data.file_path) for found in self._deletes.values())
        positions = [found.to_numpy() for found in by_file if found is not None]
        return np.unique(np.concatenate([_NOWHERE, *positions]))


@contextmanager
def reading_lake(table: IcebergTable | _PinnedTable) -> Iterator[None]:
    """Say what to do about a file that cannot be read; secrets are left out."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise FlussError(
            f"The lake table {'.'.join(table.name())} cannot be read: "
            f"{without_passwords(f'{type(error).__name__}: {error}')}. If files were removed meanwhile, read again; "
            "if this machine cannot reach them, set 'client.lake.read' to off to read what Fluss itself has",
            ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        ) from error


def _check_not_removed(table: IcebergTable, missing: Sequence[str]) -> None:
    """Refuse to read columns that the lake table has had: a user of the lake has removed or renamed them there."""
    former = {field.name for schema in table.metadata.schemas for field in schema.fields}
    for name in missing:
        if name in former:
            raise FlussError(
                f"The lake table {'.'.join(table.name())} has no column '{name}' any more: it was removed or renamed "
                "there. Give it its name again, leave the column out, or set 'client.lake.read' to off to read what "
                "Fluss itself has",
                ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
            )


def _has_stable_names(table: IcebergTable) -> bool:
    """Whether a column has had its name as long as it was there, and no other one had it: as tables of Fluss do."""
    ids: dict[str, int] = {}
    names: dict[int, str] = {}
    for schema in table.metadata.schemas:
        for field_id, name in index_name_by_id(schema).items():
            if ids.setdefault(name, field_id) != field_id or names.setdefault(field_id, name) != name:
                return False
    return True


def _first_offset(file: LakeFile, offset_id: int) -> int:
    bound = (file.data.lower_bounds or {}).get(offset_id)
    return -1 if bound is None else int.from_bytes(bound, "little", signed=True)
