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

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.decode import filtered_rows
from fluss.client.kernel.runtime import Runtime, is_blocking, run_blocking
from fluss.client.scan.changed_rows import chosen_columns
from fluss.client.scan.known_keys import KNOWN_KEYS
from fluss.client.scan.table_read import TableRead, TableReadOptions
from fluss.client.scan.union_merge import UnionMerge
from fluss.client.scan.union_plan import UnionPlan, has_lake, plan_union
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
        elif plan.info.has_primary_key():
            yield from self._current_rows(plan, is_collected=is_collected)
        else:
            yield from self._whole_log(plan, is_collected=is_collected)

    def _whole_log(self, plan: UnionPlan, *, is_collected: bool) -> Iterator[pa.RecordBatch]:
        # Begun before the files, so that it has come when they have been read; unless it may not be needed at all.
        is_early = self._options.row_limit is None
        tail = self._begin(plan, ranges=plan.tails) if plan.tails and is_early else None
        try:
            for stop, files in groupby(plan.files, lambda file: _stop_of(plan, file)):
                yield from self._lake_rows(plan, files, offset_stop=stop)
            if plan.tails:
                tail = tail or self._begin(plan, ranges=plan.tails)
                yield from _rows_of(tail, is_collected=is_collected)
        finally:
            if tail is not None:
                tail.close()

    def _current_rows(self, plan: UnionPlan, *, is_collected: bool) -> Iterator[pa.RecordBatch]:
        groups, too_many = _grouped_tails(plan)
        merged = {*plan.tails, *too_many}
        yield from self._lake_rows(plan, [file for file in plan.files if plan.bucket_of(file) not in merged])
        for tails in groups:
            yield from self._merged(plan, tails)
        in_fluss = [*plan.in_fluss, *too_many]
        if in_fluss:
            yield from _rows_of(self._begin(plan, buckets=in_fluss), is_collected=is_collected)

    # The lake

    def _lake_rows(
        self,
        plan: UnionPlan,
        files: Iterable[LakeFile],
        *,
        offset_stop: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of files without columns that only a merge needs."""
        lake = plan.lake.select([column.name for column in self._unfiltered.columns])
        for batch in lake.batches(files, offset_stop=offset_stop):
            yield filtered_rows(chosen_columns(batch, self._unfiltered), self._columns)

    # Fluss

    def _begin(
        self,
        plan: UnionPlan,
        *,
        buckets: Sequence[TableBucket] | None = None,
        ranges: Mapping[TableBucket, tuple[int, int]] | None = None,
    ) -> TableRead:
        """Begin to read what Fluss has of some buckets: parts of logs, or current rows."""
        options = replace(self._options, buckets=buckets, ranges=ranges, partitions=None, progress=None)
        return self._runtime.run(TableRead.begin(self._cluster, self._runtime, plan.info, options))

    # Both

    def _merged(self, plan: UnionPlan, tails: Mapping[TableBucket, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of buckets that have changed since the snapshot."""
        is_early = self._options.row_limit is None
        merge = UnionMerge(plan, tails, self._columns, KNOWN_KEYS, is_early=is_early)
        yield from merge.batches(self._cluster, self._runtime)


def _rows_of(read: TableRead, *, is_collected: bool) -> Iterable[pa.RecordBatch]:
    return run_blocking(read.all_rows()) if is_collected else read.batches()


def _part(row_count: int, total: int) -> float:
    return min(row_count / max(total, 1), 1.0)


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
