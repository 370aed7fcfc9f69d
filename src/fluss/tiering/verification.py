"""A lake table compared with its Fluss table, bucket by bucket, at the offsets up to which Fluss says the lake has it.

| of a log table | of a table with a primary key |
|---|---|
| offsets follow each other without gap or overlap | no key is there twice |
| they end at the tiered offset | |
| every record that the log still has is the same row | its rows are those that Fluss had at the tiered offset |

Buckets of partitions that Fluss has dropped are looked at by themselves. A task holds a row group of a log table, and
the rows of a bucket of a table with a primary key.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table as IcebergTable

from fluss import FlussTable
from fluss.amounts import format_count, format_duration
from fluss.client.bulk import (
    LogRange,
    lake_snapshot_of,
    named_buckets_of,
    offsets_of,
    read_ranges,
    reopened,
    rows_at,
)
from fluss.errors import ErrorCode, FlussError
from fluss.lake.arrow_conversion import lake_array, lake_batch
from fluss.lake.scans import LakeFile, LakeScan, detached
from fluss.lake.schema_mapping import OFFSET_COLUMN, SYSTEM_COLUMNS
from fluss.schema.offsets import OffsetSpec
from fluss.schema.table import TableBucket, spec_of_partition_name
from fluss.tiering.compaction import by_bucket, in_order, offset_id_of
from fluss.tiering.round_plan import lake_tables_of
from fluss.tiering.task_runners import RunHere, TaskRunner


@dataclass(frozen=True, slots=True)
class VerifiedBucket:
    """What was found in one bucket."""

    partition: str | None
    bucket: int
    lake_rows: int
    compared_rows: int
    """Rows that Fluss still has, too."""
    problem: str | None = None

    @property
    def rows(self) -> int:
        """The rows that were read from the lake."""
        return self.lake_rows

    def __str__(self) -> str:
        where = f"bucket {self.bucket}" if self.partition is None else f"bucket {self.bucket} of '{self.partition}'"
        return f"{where}: {self.problem or format_count(self.lake_rows, 'row')}"


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """A verified table. ``snapshot_id`` is None if the lake has nothing of it, as far as Fluss knows."""

    table: str
    snapshot_id: int | None
    buckets: tuple[VerifiedBucket, ...]
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether nothing wrong was found."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, by bucket."""
        return tuple(str(bucket) for bucket in self.buckets if bucket.problem is not None)

    @property
    def lake_rows(self) -> int:
        """All rows of the lake."""
        return sum(bucket.lake_rows for bucket in self.buckets)

    @property
    def compared_rows(self) -> int:
        """Rows that were compared with those of Fluss."""
        return sum(bucket.compared_rows for bucket in self.buckets)

    def __str__(self) -> str:
        head = (
            f"{self.table}: {format_count(self.lake_rows, 'row')} of the lake in "
            f"{format_count(len(self.buckets), 'bucket')}, {self.compared_rows:,} compared with Fluss, in "
            f"{format_duration(self.seconds)}: "
        )
        return head + ("all right" if self.is_right else "\n  ".join(["wrong", *self.problems]))


def verify(
    table: FlussTable,
    *,
    lake_properties: Mapping[str, str] | None = None,
    run_tasks: TaskRunner | None = None,
) -> VerificationReport:
    """Compare what the lake has of a table with the table itself, while both go on changing."""
    started_s = time.monotonic()
    table = reopened(table)
    info = table.get_table_info()
    known = lake_snapshot_of(table)
    if known is None:
        return VerificationReport(str(info.table_path), None, (), time.monotonic() - started_s)
    lake_table = lake_tables_of(info, lake_properties).load(info.table_path)
    files = LakeScan(lake_table, snapshot_id=known.snapshot_id).files()
    grouped = by_bucket(in_order(files, offset_id_of(lake_table)))
    buckets = {
        (_values(name, info.partition_keys), bucket.bucket_id): bucket
        for bucket, name in named_buckets_of(table).items()
    }
    tiered = [bucket for bucket in buckets.values() if known.get_bucket_offset(bucket) is not None]
    earliest = offsets_of(table, tiered, OffsetSpec.earliest()) if tiered else {}
    places = [*grouped, *(place for place, bucket in buckets.items() if bucket in earliest and place not in grouped)]
    items = []
    for values, bucket_id in places:
        bucket = buckets.get((values, bucket_id))
        end = None if bucket is None else known.get_bucket_offset(bucket)
        first = 0 if bucket is None else earliest.get(bucket, 0)
        items.append(_BucketFiles(values, bucket_id, bucket, end, first, tuple(grouped.get((values, bucket_id), ()))))
    work = _VerificationWork(detached(lake_table), tuple(info.schema.column_names), tuple(info.physical_primary_keys))
    weights = [1 + sum(file.data.record_count for file in item.files) for item in items]
    results = (run_tasks or RunHere())("verify", table, work, items, weights) if items else []
    return VerificationReport(str(info.table_path), known.snapshot_id, tuple(results), time.monotonic() - started_s)


def _values(name: str | None, keys: list[str]) -> tuple[str, ...]:
    return () if name is None else tuple(spec_of_partition_name(name, keys).spec_map.values())


@dataclass(frozen=True, slots=True)
class _BucketFiles:
    """A bucket to be verified; without ``bucket`` Fluss has dropped it, without ``end`` it does not know how far."""

    partition_values: tuple[str, ...]
    bucket_id: int
    bucket: TableBucket | None
    end: int | None
    earliest: int
    files: tuple[LakeFile, ...]


class _WrongError(Exception):
    """Something is wrong; the text says what."""


@dataclass(frozen=True)
class _VerificationWork:
    """What tasks are told."""

    lake_table: IcebergTable
    columns: tuple[str, ...]
    key_columns: tuple[str, ...]

    def run(self, table: FlussTable, item: _BucketFiles) -> VerifiedBucket:
        check = _LogBucket(self, table, item) if not table.has_primary_key() else _KeyBucket(self, table, item)
        problem = None
        try:
            check.run()
        except _WrongError as error:
            problem = str(error)
        except FlussError as error:
            # Dropped meanwhile, or not to be told any more: then there is nothing to compare with.
            if error.error_code not in (ErrorCode.PARTITION_NOT_EXISTS, ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION):
                raise
        partition = "$".join(item.partition_values) if item.partition_values else None
        return VerifiedBucket(partition, item.bucket_id, check.lake_rows, check.compared_rows, problem)


class _LogBucket:
    def __init__(self, work: _VerificationWork, table: FlussTable, item: _BucketFiles) -> None:
        self._work = work
        self._table = table
        self._item = item
        self.lake_rows = self.compared_rows = 0

    def run(self) -> None:
        item, scan = self._item, LakeScan(self._work.lake_table)
        fluss = _Rows(self._records(scan.arrow_schema), scan.arrow_schema)
        position: int | None = None
        with closing(fluss):
            for batch in scan.read(item.files):
                offsets = batch.column(OFFSET_COLUMN).to_numpy(zero_copy_only=False)
                self.lake_rows += batch.num_rows
                _check_sequence(offsets, position)
                position = int(offsets[-1]) + 1
                skipped = max(0, item.earliest - int(offsets[0]))
                if item.end is not None and skipped < batch.num_rows:
                    self._compare(batch.slice(skipped), fluss)
        if item.end is not None and position != item.end and not (position is None and item.end <= item.earliest):
            raise _WrongError(f"the lake ends at offset {position or 0}, and Fluss has {item.end} as its tiered offset")

    def _compare(self, lake: pa.RecordBatch, fluss: _Rows) -> None:
        self.compared_rows += lake.num_rows
        _check_equal(lake, fluss.take(lake.num_rows))

    def _records(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the records that the log still has, as the lake should have them."""
        item = self._item
        if item.bucket is None or item.end is None or item.earliest >= item.end:
            return
        ranges = [LogRange(item.bucket, item.earliest, item.end)]
        with closing(read_ranges(self._table, ranges, columns=self._work.columns)) as runs:
            for run in runs:
                assert run.batch is not None
                yield lake_batch(
                    run.batch,
                    schema,
                    bucket_id=item.bucket_id,
                    offsets=run.base_offset,
                    timestamps_ms=run.timestamp_ms,
                )


class _KeyBucket:
    def __init__(self, work: _VerificationWork, table: FlussTable, item: _BucketFiles) -> None:
        self._work = work
        self._table = table
        self._item = item
        self.lake_rows = self.compared_rows = 0

    def run(self) -> None:
        item, work = self._item, self._work
        names = [field.name for field in work.lake_table.schema().fields if field.name not in SYSTEM_COLUMNS]
        scan = LakeScan(work.lake_table, columns=names)
        schema = scan.arrow_schema
        lake = self._by_key(scan.read(item.files), schema)
        self.lake_rows = lake.num_rows
        keys = lake.select(list(work.key_columns))
        distinct = keys.group_by(keys.schema.names).aggregate([]).num_rows
        if distinct != lake.num_rows:
            raise _WrongError(f"{lake.num_rows} rows have {distinct} keys")
        if item.bucket is None or item.end is None:
            return
        with closing(rows_at(self._table, item.bucket, item.end, columns=work.columns)) as batches:
            fluss = self._by_key((self._in_lake_types(batch, schema) for batch in batches), schema)
        self.compared_rows = lake.num_rows
        if fluss.num_rows != lake.num_rows:
            raise _WrongError(f"the lake has {lake.num_rows} rows, and Fluss had {fluss.num_rows} at offset {item.end}")
        for ours, theirs in zip(_batches(lake), _batches(fluss), strict=True):
            _check_equal(ours, theirs)

    def _by_key(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        rows = pa.Table.from_batches(batches, schema)
        return rows.sort_by([(name, "ascending") for name in self._work.key_columns]).combine_chunks()

    def _in_lake_types(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        present = set(batch.schema.names)
        columns = [
            lake_array(batch.column(field.name), field.type)
            if field.name in present
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _batches(rows: pa.Table) -> list[pa.RecordBatch]:
    return [batch for batch in rows.to_batches(max_chunksize=65_536) if batch.num_rows]


class _Rows:
    """Batches that are taken in other sizes."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches = batches
        self._schema = schema
        self._rest: list[pa.RecordBatch] = []

    def take(self, count: int) -> pa.RecordBatch:
        """Return so many rows, fewer if there are no more."""
        taken: list[pa.RecordBatch] = []
        while count:
            batch = self._rest.pop() if self._rest else next(self._batches, None)
            if batch is None:
                break
            if batch.num_rows > count:
                self._rest.append(batch.slice(count))
                batch = batch.slice(0, count)
            taken.append(batch)
            count -= batch.num_rows
        return (
            pa.Table.from_batches(taken, self._schema).combine_chunks().to_batches()[0]
            if taken
            else _none(self._schema)
        )

    def close(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


def _none(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _check_sequence(offsets: np.ndarray[tuple[int], np.dtype[np.int64]], position: int | None) -> None:
    before = np.concatenate([[offsets[0] - 1 if position is None else position - 1], offsets[:-1]])
    wrong = np.flatnonzero(offsets != before + 1)
    if len(wrong):
        first = int(wrong[0])
        raise _WrongError(
            f"offset {int(offsets[first])} follows {int(before[first])}: records are missing, or there twice (or the "
            "partition was dropped and created again, or records expired while the lake was switched off)"
        )


def _check_equal(lake: pa.RecordBatch, fluss: pa.RecordBatch) -> None:
    if lake.num_rows == fluss.num_rows and lake.equals(fluss):
        return
    # Numbers that are none are not equal to themselves, and look the same.
    ours, theirs = lake.to_pylist(), fluss.to_pylist()
    for number, row in enumerate(ours):
        if number >= len(theirs):
            raise _WrongError(f"the lake has {_shown(row)}, which Fluss does not have")
        if repr(row) != repr(theirs[number]):
            raise _WrongError(f"the lake has {_shown(row)}, and Fluss has {_shown(theirs[number])}")


def _shown(row: Mapping[str, object]) -> str:
    text = repr(row)
    return text if len(text) <= 200 else f"{text[:200]}..."
