"""One pass over a whole table: the rows a primary-key table has now, or everything a log table holds up to now.

Three ways lead to the rows, and ``TableRead.begin`` takes the one that fits:

    log table                               its log from the earliest to the latest offset
    primary key, servers with scans         the rows of every bucket as they are at one moment (``SnapshotFetcher``)
    primary key, servers before 1.0         all changes up to the latest offset, folded (``ChangelogFold``); where the
                                            oldest are gone, behind the rows of the last snapshot in remote storage

What is consistent: the rows of one bucket are exactly those after all changes before one offset, none of them newer
or older. Every write that was acknowledged before the read began is in them. Buckets are looked at at the same time,
but not in one transaction: a write that changes several buckets during the read may be seen in some of them only.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.decode import ScanColumns
from fluss.client.kernel.runtime import Runtime, run_blocking
from fluss.client.scan.changelog_fold import ChangelogFold
from fluss.client.scan.fetch.buffer import FROM_SNAPSHOT
from fluss.client.scan.fetch.pipeline import ScanPipeline, bounds
from fluss.client.scan.fetch.snapshot_fetcher import SnapshotLostError
from fluss.client.scan.progress import ProgressBar
from fluss.client.scan.records import RecordRun
from fluss.client.scan.table_buckets import can_scan_rows, incomplete_changelogs, table_buckets
from fluss.schema.offsets import EARLIEST_OFFSET
from fluss.schema.predicate import BoundPredicate
from fluss.schema.table import PartitionSpec, TableBucket, TableInfo

# How often the rows of a bucket are read anew when servers have lost them, in a read that keeps all rows anyway.
_RESTARTS_MAX: Final = 3
# The end of the snapshot is the end of the read, wherever in the log it is.
_SNAPSHOT_ONLY: Final = (FROM_SNAPSHOT, 0)


@dataclass(frozen=True, slots=True)
class TableReadOptions:
    """What is to be read of a table: rows that the filter of ``columns`` keeps, of which ``row_limit`` may be any.

    ``predicate`` tells servers which batches of a log they may skip.
    """

    columns: ScanColumns
    predicate: BoundPredicate | None = None
    row_limit: int | None = None
    # Chosen partitions; None stands for all.
    partitions: Collection[str | PartitionSpec] | None = None
    # Some buckets, instead of partitions.
    buckets: Collection[TableBucket] | None = None
    # Parts of logs, from where to where, instead of both.
    ranges: Mapping[TableBucket, tuple[int, int]] | None = None
    # Shows how far the read is.
    progress: ProgressBar | None = None


class TableRead:
    """A read that has begun. It is used once, by one of the methods, which ends it."""

    def __init__(
        self,
        runtime: Runtime,
        pipeline: ScanPipeline,
        found: Mapping[TableBucket, tuple[int, int]],
        rows: _KeptRows,
        fold: ChangelogFold | None = None,
        progress: ProgressBar | None = None,
    ) -> None:
        self._runtime = runtime
        self._pipeline = pipeline
        self._read = pipeline.begin_bounded(found)
        self._rows = rows
        # Between the log and the rows, if the log has changes.
        self._fold = fold
        self._restarts: Counter[TableBucket] = Counter()
        self._found = found
        self._row_count = 0
        self._progress = progress

    @classmethod
    async def begin(cls, cluster: Cluster, runtime: Runtime, info: TableInfo, options: TableReadOptions) -> TableRead:
        """Find out what there is, and how to read it. Runs on the loop of the cluster."""
        path, columns = info.table_path, options.columns
        if options.ranges is not None:
            pipeline = ScanPipeline(cluster, runtime, info, columns, predicate=options.predicate)
            rows = _KeptRows(list(options.ranges), options.row_limit)
            return cls(runtime, pipeline, options.ranges, rows, progress=options.progress)
        if options.buckets is None:
            buckets = await table_buckets(cluster, info, options.partitions, columns.row_filter)
        else:
            buckets = list(options.buckets)
        rows = _KeptRows(buckets, options.row_limit)
        earliest = dict.fromkeys(buckets, EARLIEST_OFFSET)
        if not info.has_primary_key():
            pipeline = ScanPipeline(cluster, runtime, info, columns, predicate=options.predicate)
            return cls(runtime, pipeline, await bounds(cluster, path, earliest), rows, progress=options.progress)
        if await can_scan_rows(cluster, path, buckets):
            # Servers know nothing of filters here, so as many rows may be needed as there are.
            row_limit = options.row_limit if columns.row_filter is None else None
            pipeline = ScanPipeline(cluster, runtime, info, columns, rows_only=True, row_limit=row_limit)
            return cls(runtime, pipeline, dict.fromkeys(buckets, _SNAPSHOT_ONLY), rows, progress=options.progress)
        incomplete = await incomplete_changelogs(cluster, path, buckets)
        # Of a row that is filtered out, earlier changes may not be: rows are filtered when they are known.
        unfiltered = columns.with_filter_columns()
        with_keys = unfiltered.with_columns(info.physical_primary_keys)
        fold = ChangelogFold(columns, with_keys, info.physical_primary_keys)
        pipeline = ScanPipeline(cluster, runtime, info, with_keys)
        found = await bounds(cluster, path, earliest | dict.fromkeys(incomplete, FROM_SNAPSHOT))
        return cls(runtime, pipeline, found, rows, fold, options.progress)

    async def all_rows(self) -> list[pa.RecordBatch]:
        """Read everything."""
        with contextlib.closing(self._pipeline), self._ending():
            while not self._is_done:
                with self._restarting():
                    await self._runtime.on_worker(self._keep, await self._read.step())
            return await self._runtime.on_worker(self._kept)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield rows as they come, blocking. A bucket whose rows a server has lost half way is an error (code 66)."""
        with contextlib.closing(self._pipeline), self._ending():
            while not self._is_done:
                self._keep(run_blocking(self._read.step()))
                yield from self._rows.take()
            yield from self._kept()

    def close(self) -> None:
        """End a read that is not wanted any more. One that has ended is left as it is."""
        self._pipeline.close()

    @property
    def _is_done(self) -> bool:
        return self._read.is_done or self._rows.is_full

    def _keep(self, runs: list[RecordRun]) -> None:
        keep = self._rows.add if self._fold is None else self._fold.add
        for run in runs:
            keep(run)
            self._row_count += run.count
        if self._progress is not None:
            self._progress.update(self._row_count, self._fraction)

    def _fraction(self) -> float:
        """Return which part of the read is done: of the offsets, or of the buckets if rows of a moment are read."""
        left = {bucket: at for bucket, at in self._pipeline.subscriptions.positions().items() if bucket in self._found}
        total = sum(stop - start for start, stop in self._found.values() if start != FROM_SNAPSHOT)
        if not total:
            return 1 - len(left) / max(len(self._found), 1)
        return 1 - sum(self._found[bucket][1] - max(at, self._found[bucket][0]) for bucket, at in left.items()) / total

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Have the last line of the progress shown."""
        try:
            yield
        except BaseException:
            if self._progress is not None:
                self._progress.end(self._row_count, is_complete=False)
            raise
        if self._progress is not None:
            self._progress.end(self._row_count, is_complete=True)

    def _kept(self) -> list[pa.RecordBatch]:
        if self._fold is not None:
            for run in self._fold.rows():
                self._rows.add(run)
        return self._rows.take()

    @contextlib.contextmanager
    def _restarting(self) -> Iterator[None]:
        """Read a bucket again whose rows a server has lost: those that came before were not handed out yet."""
        try:
            yield
        except SnapshotLostError as lost:
            self._restarts[lost.bucket] += 1
            # What has been folded cannot be taken back.
            if self._fold is not None or self._restarts[lost.bucket] > _RESTARTS_MAX:
                raise
            self._rows.forget(lost.bucket)
            (subscription,) = self._pipeline.subscriptions.begin({lost.bucket: FROM_SNAPSHOT})
            self._read.restart(subscription, _SNAPSHOT_ONLY[1])


class _KeptRows:
    """Keeps at most ``row_limit`` rows, in the order of the buckets and not of their arrival.

    They are kept by bucket, so that those of one can be forgotten and read again.
    """

    def __init__(self, buckets: list[TableBucket], row_limit: int | None) -> None:
        self._batches: dict[TableBucket, list[pa.RecordBatch]] = {bucket: [] for bucket in buckets}
        self._rows_left = row_limit

    @property
    def is_full(self) -> bool:
        return self._rows_left == 0

    def add(self, run: RecordRun) -> None:
        """Keep further rows of a bucket, as far as the limit allows."""
        batch = run.batch
        assert batch is not None
        if self._rows_left is not None:
            batch = batch.slice(0, self._rows_left)
            self._rows_left -= batch.num_rows
        if batch.num_rows:
            self._batches[run.bucket].append(batch)

    def forget(self, bucket: TableBucket) -> None:
        """Let go of the rows of a bucket."""
        if self._rows_left is not None:
            self._rows_left += sum(batch.num_rows for batch in self._batches[bucket])
        self._batches[bucket].clear()

    def take(self) -> list[pa.RecordBatch]:
        """Return what has been kept, and keep it no longer."""
        taken = [batch for batches in self._batches.values() for batch in batches]
        for batches in self._batches.values():
            batches.clear()
        return taken
