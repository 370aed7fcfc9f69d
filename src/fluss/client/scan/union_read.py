"""One pass over a whole table and its lake: history from the files of the lake, what is newer from Fluss.

    log table      the files, then what the log has behind them
    primary key    the files without the rows that have changed since, then the rows that changed and are still there

Rows of a log bucket come in the order of the log. Files are streamed; of a table with a primary key the changes since
the lake's snapshot are in memory, no more than a few million at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pat

import fluss.arrow_compute as pc
from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.decode import ScanColumns, filtered_rows
from fluss.client.kernel.runtime import Runtime, is_blocking, run_blocking
from fluss.client.scan.changelog_fold import ChangelogFold, change_types, encoded_keys
from fluss.client.scan.fetch.pipeline import ScanPipeline
from fluss.client.scan.table_read import TableRead, TableReadOptions
from fluss.client.scan.union_plan import UnionPlan, has_lake, plan_union
from fluss.row.arrow_arrays import bool_array, joined_batches
from fluss.schema.offsets import ChangeType
from fluss.schema.table import TableBucket, TableInfo

if TYPE_CHECKING:
    from fluss.lake.scans import LakeFile

# Changes that are in memory at a time. A bucket that has more is read from Fluss, which has all its rows.
_CHANGES_MAX: Final = 4_000_000
# Up to so many rows are looked for in Fluss first, where a few are found without opening the lake.
_FEW_ROWS: Final = 100_000


async def begin_read(
    cluster: Cluster, runtime: Runtime, info: TableInfo, options: TableReadOptions
) -> TableRead | UnionRead:
    """Begin to read a table: the union with its lake if it has one. Runs on the loop of the cluster."""
    if not has_lake(cluster, info):
        return await TableRead.begin(cluster, runtime, info, options)
    if options.row_limit is not None and options.row_limit <= _FEW_ROWS and options.partitions is None:
        read = await TableRead.begin(cluster, runtime, info, replace(options, progress=None))
        rows = await read.all_rows()
        if sum(batch.num_rows for batch in rows) >= options.row_limit:
            return UnionRead(cluster, runtime, options, None, rows)
    plan = await plan_union(cluster, runtime, info, options.columns, options.partitions)
    if plan is None:
        return await TableRead.begin(cluster, runtime, info, options)
    return UnionRead(cluster, runtime, options, plan)


class UnionRead:
    """A read that has begun. It is used once, by one of the methods, which ends it.

    Without a plan it has nothing but ``rows``, which are there already.
    """

    def __init__(
        self,
        cluster: Cluster,
        runtime: Runtime,
        options: TableReadOptions,
        plan: UnionPlan | None,
        rows: Sequence[pa.RecordBatch] = (),
    ) -> None:
        self._cluster = cluster
        self._runtime = runtime
        self._options = options
        self._columns = options.columns
        self._plan = plan
        self._rows = rows
        self._unfiltered = self._columns.with_filter_columns()

    async def all_rows(self) -> list[pa.RecordBatch]:
        """Read everything."""
        if is_blocking():
            return list(self._limited(is_collected=True))
        stopped = threading.Event()
        try:
            # Not one of the runtime's threads: they are few, and others need them for what this one waits for.
            return await asyncio.to_thread(self._collected, stopped)
        except asyncio.CancelledError:
            stopped.set()
            raise

    def _collected(self, stopped: threading.Event) -> list[pa.RecordBatch]:
        rows = []
        with contextlib.closing(self._limited(is_collected=True)) as batches:
            for batch in batches:
                rows.append(batch)
                if stopped.is_set():
                    break
        return rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield rows as they come, blocking. A bucket whose rows a server has lost half way is an error (code 66)."""
        return self._limited(is_collected=False)

    def _limited(self, *, is_collected: bool) -> Generator[pa.RecordBatch, None, None]:
        """Yield rows as far as the limit goes, and show the progress."""
        left, progress = self._options.row_limit, self._options.progress
        row_count, total = 0, self._row_count()
        is_complete = False
        try:
            for batch in self._all_batches(is_collected=is_collected):
                kept = batch if left is None else batch.slice(0, left - row_count)
                row_count += kept.num_rows
                if progress is not None:
                    progress.update(row_count, partial(_part, row_count, total))
                if kept.num_rows:
                    yield kept
                if row_count == left:
                    break
            is_complete = True
        finally:
            if progress is not None:
                progress.end(row_count, is_complete=is_complete)

    def _row_count(self) -> int:
        """Return about how many rows there are."""
        plan = self._plan
        if plan is None:
            return 0
        in_files: int = sum(file.data.record_count for file in plan.files)
        return in_files + sum(stop - start for start, stop in plan.tails.values())

    def _all_batches(self, *, is_collected: bool) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        if plan is None:
            yield from self._rows
            return
        if not plan.info.has_primary_key():
            yield from self._history(plan)
            starts = {bucket: start for bucket, (start, _) in plan.tails.items()}
            yield from self._from_fluss(plan, list(starts), starts, is_collected=is_collected)
            return
        in_fluss = list(plan.in_fluss)
        groups, too_many = _grouped_tails(plan)
        in_fluss += too_many
        merged = {*plan.tails, *too_many}
        yield from self._lake_rows(plan, [file for file in plan.files if plan.bucket_of(file) not in merged])
        for tails in groups:
            yield from self._merged(plan, tails)
        yield from self._from_fluss(plan, in_fluss, None, is_collected=is_collected)

    # The lake

    def _history(self, plan: UnionPlan) -> Iterator[pa.RecordBatch]:
        """Yield what the lake has of a log table."""
        for stop, files in groupby(plan.files, lambda file: _stop_of(plan, file)):
            yield from self._lake_rows(plan, files, offset_stop=stop)

    def _lake_rows(
        self, plan: UnionPlan, files: Iterable[LakeFile], *, offset_stop: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        for batch in plan.lake.batches(files, offset_stop=offset_stop):
            yield filtered_rows(_chosen(batch, self._unfiltered), self._columns)

    # Fluss

    def _from_fluss(
        self,
        plan: UnionPlan,
        buckets: Sequence[TableBucket],
        starts: Mapping[TableBucket, int] | None,
        *,
        is_collected: bool,
    ) -> Iterator[pa.RecordBatch]:
        """Yield what Fluss has of some buckets: logs from where they start, or current rows."""
        if not buckets:
            return
        options = replace(self._options, buckets=buckets, starts=starts, partitions=None, progress=None)
        read = self._runtime.run(TableRead.begin(self._cluster, self._runtime, plan.info, options))
        yield from run_blocking(read.all_rows()) if is_collected else read.batches()

    # Both

    def _merged(self, plan: UnionPlan, tails: Mapping[TableBucket, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of buckets that have changed since the snapshot."""
        key_names = plan.info.physical_primary_keys
        with_keys = self._unfiltered.with_columns(key_names)
        fold = ChangelogFold(self._columns, with_keys, key_names, keeps_deletes=True)
        pipeline = ScanPipeline(self._cluster, self._runtime, plan.info, with_keys)
        with contextlib.closing(pipeline):
            for run in pipeline.begin_bounded(tails).runs():
                fold.add(run)
        files: dict[TableBucket | None, list[LakeFile]] = {}
        for file in plan.files:
            files.setdefault(plan.bucket_of(file), []).append(file)
        for bucket in tails:
            for batch in merged_rows(fold, bucket, plan.lake.batches(files.get(bucket, ())), with_keys, key_names):
                yield filtered_rows(_chosen(batch, self._unfiltered), self._columns)


def merged_rows(
    fold: ChangelogFold,
    bucket: TableBucket,
    lake: Iterable[pa.RecordBatch],
    with_keys: ScanColumns,
    key_names: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a bucket: those of the lake whose keys have not changed, then those that have.

    ``fold`` has the changes, with those that delete; all rows have the columns ``with_keys``.
    """
    changed = _Changed(fold.changes(bucket), with_keys, key_names)
    yield from changed.without(_chosen(batch, with_keys) for batch in lake)
    yield from changed.rows()


class _Changed:
    """The last change of every key of a bucket, of those that have changed."""

    def __init__(self, changes: pa.Table | None, with_keys: ScanColumns, key_names: Sequence[str]) -> None:
        names = [column.name for column in with_keys.columns]
        self._with_keys = with_keys
        self._changes = changes
        self._positions = [names.index(name) for name in key_names]
        self._types = [with_keys.columns[position].data_type for position in self._positions]

    def without(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of batches whose keys have not changed."""
        changes = self._changes
        if changes is None or not changes.num_rows:
            yield from batches
            return
        # Keys of one column are compared as they are, which is quicker than by their bytes.
        column = self._with_keys.arrow_schema.field(self._positions[0])
        is_direct = len(self._positions) == 1 and _is_comparable(column.type)
        keys = changes[str(self._positions[0]) if is_direct else "key"].combine_chunks()
        # A search begins with an index of all keys, so it is made for as many rows as there are keys.
        for rows in joined_batches(batches, len(keys)):
            found = rows.column(self._positions[0]) if is_direct else encoded_keys(rows, self._positions, self._types)
            is_changed = pc.is_in(found, value_set=keys)
            yield rows.filter(pc.invert(is_changed)) if is_changed.true_count else rows

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that changed and are there."""
        changes = self._changes
        if changes is None:
            return
        there = changes.filter(bool_array(change_types(changes) != ChangeType.Delete))
        schema = self._with_keys.arrow_schema
        for batch in there.select(range(len(schema))).to_batches():
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _part(row_count: int, total: int) -> float:
    return min(row_count / max(total, 1), 1.0)


def _is_comparable(key_type: pa.DataType) -> bool:
    """Whether values of a type are the same key exactly if they are equal. Zero is not the same as minus zero."""
    return not pat.is_floating(key_type) and not pat.is_nested(key_type)


def _grouped_tails(
    plan: UnionPlan,
) -> tuple[list[dict[TableBucket, tuple[int, int]]], list[TableBucket]]:
    """Return changes that are read at the same time, and the buckets that have too many of them.

    Partitions are never among the latter: one may have rows in the lake that are older than itself.
    """
    groups: list[dict[TableBucket, tuple[int, int]]] = []
    too_many: list[TableBucket] = []
    count = _CHANGES_MAX
    for bucket, (start, stop) in plan.tails.items():
        if stop - start > _CHANGES_MAX and bucket.partition_id is None:
            too_many.append(bucket)
            continue
        if count + stop - start > _CHANGES_MAX:
            groups.append({})
            count = 0
        groups[-1][bucket] = start, stop
        count += stop - start
    return groups, too_many


def _stop_of(plan: UnionPlan, file: LakeFile) -> int | None:
    bucket = plan.bucket_of(file)
    return None if bucket is None else plan.offset_stops.get(bucket)


def _chosen(batch: pa.RecordBatch, columns: ScanColumns) -> pa.RecordBatch:
    """Return columns in their order, in which one may be twice."""
    names = batch.schema.names
    arrays = [batch.column(names.index(column.name)) for column in columns.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.arrow_schema)
