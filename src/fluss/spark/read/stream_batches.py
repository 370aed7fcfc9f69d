"""The micro-batches of one streaming query: where the first one begins, where each of them ends, and who reads it.

``StreamBatches`` looks at the table and decides. ``Admission`` divides the limit of a micro-batch over the buckets:
every bucket gets a share in proportion to what it has waiting, so that all of them catch up at the same time. Shares
are whole rows, and what rounding leaves over goes to the buckets that have waited longest for a row: a bucket with
little in it is served next to one that is flooded, after as many micro-batches as there are buckets at the latest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pyspark.sql.types import StructType

from fluss.client.bulk import LogRange
from fluss.errors import ErrorCode, FlussError
from fluss.row.arrow_arrays import estimated_row_bytes
from fluss.schema.offsets import OffsetSpec
from fluss.schema.table import TableBucket
from fluss.spark.naming import format_bucket
from fluss.spark.query_options import ReadOptions
from fluss.spark.read.offset_json import Json
from fluss.spark.read.planner import ReadView, Split, Task, cores_of, divide, measured_row_bytes, pack
from fluss.spark.read.split_read import table_columns, table_filter, view_filter
from fluss.spark.read.stream_lag import measured_lag, unread, worst_of
from fluss.spark.read.stream_lake import StreamLake, begins_with_lake
from fluss.spark.read.stream_offsets import (
    BucketPosition,
    LakeFiles,
    PlannedRead,
    StreamOffset,
    advance,
    names_of,
    reads_between,
    resume,
    unread_rows,
    unread_snapshots,
)
from fluss.spark.read.stream_table import StreamTable

if TYPE_CHECKING:
    from fluss.lake.fluss_rows import LakeRows

_TASKS_PER_CORE: Final = 2
# How long a measured size of rows is believed.
_ROW_BYTES_AGE_S_MAX: Final = 60.0
_SHOWN_MAX: Final = 20
_IDLE_PAUSE_SHARE: Final = 0.1
_IDLE_PAUSE_S_MIN: Final = 0.01
_IDLE_PAUSE_S_MAX: Final = 0.1
_POLLING_SHARE_MAX: Final = 0.2
BucketT = TypeVar("BucketT")


class StreamBatches:
    """Plans micro-batches on the driver. It keeps its connection and what it has found out from one to the next."""

    def __init__(
        self,
        options: ReadOptions,
        schema: StructType,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._schema = schema
        self._clock = clock
        # Spark asks every 10 ms while there is nothing to read.
        self._backoff = PollBackoff(clock=clock, sleep=sleep)
        self.table = StreamTable(options, clock=clock, sleep=sleep)
        self._admission = Admission[TableBucket]()
        # Where the logs end that may be read; None if they are read as far as they go.
        self._targets: Mapping[TableBucket, int] | None = None
        self._latest: Mapping[TableBucket, int] = {}
        self._initial: StreamOffset | None = None
        # The end of the last batch that was planned here. Its records were there a moment ago: no need to check.
        self._planned: StreamOffset | None = None
        self._row_bytes: tuple[float, float] | None = None

    # Where batches begin and end

    def initial(self) -> StreamOffset:
        """Return where a query without a checkpoint begins, as ``scan.startup.mode`` says; always the same here."""
        if self._initial is None:
            self._initial = self._lake_beginning()
        if self._initial is None:
            ranges = self.table.ranges(self._startup_view())
            if self._targets is not None:
                targets = self._targets
                ranges = {
                    bucket: (min(earliest, targets[bucket]), targets[bucket])
                    for bucket, (earliest, _) in ranges.items()
                    if bucket in targets
                }
            self._latest = {bucket: latest for bucket, (_, latest) in ranges.items()}
            positions = self._startup_positions({bucket: earliest for bucket, (earliest, _) in ranges.items()})
            self._initial = replace(self._at(positions), is_initial=True)
        return self._initial

    def _lake_beginning(self) -> StreamOffset | None:
        """Return where a stream begins that reads the lake first; None if there is none, or it is not asked for."""
        if not begins_with_lake(self._options):
            return None
        begin = self.table.retry.call(
            lambda _: self._lake.beginning(self.table.table), {ErrorCode.PARTITION_NOT_EXISTS}
        )
        if begin is None:
            return None
        # Partitions that have come meanwhile may be among the buckets.
        existing = self.table.discovered().existing
        positions = {bucket: position for bucket, position in begin.positions.items() if bucket in existing}
        if self._targets is not None:
            # What the lake has is read whole, also if it has gone on since the end of the stream was fixed.
            reached = {
                bucket: max(position.offset, self._targets.get(bucket, 0)) for bucket, position in positions.items()
            }
            self._targets = {**self._targets, **reached}
        return replace(self._at(positions), is_initial=True, lake=begin.files)

    def _startup_view(self) -> ReadView:
        """Return what a stream begins with: all that a table has, or its changes since some time."""
        if self._options.startup_mode != "full":
            return "changelog"
        return "rows" if self.table.info.has_primary_key() else "log"

    def _startup_positions(self, positions: dict[TableBucket, int]) -> dict[TableBucket, BucketPosition]:
        """Return where to begin, given the beginnings of all logs."""
        match self._options.startup_mode:
            case "full" if self._startup_view() == "rows":
                return {bucket: BucketPosition(latest, has_rows=latest > 0) for bucket, latest in self._latest.items()}
            case "latest":
                positions = dict(self._latest)
            case "timestamp":
                assert self._options.startup_timestamp_ms is not None, "checked with the options"
                found = self.table.offsets(positions, OffsetSpec.timestamp(self._options.startup_timestamp_ms))
                positions = {bucket: min(offset, self._latest[bucket]) for bucket, offset in found.items()}
            case "offsets":
                positions |= self._given_offsets()
        return {bucket: BucketPosition(offset) for bucket, offset in positions.items()}

    def _given_offsets(self) -> dict[TableBucket, int]:
        """Return the offsets of ``scan.startup.offsets`` by bucket; FlussError for a bucket or an offset not there."""
        name = self.table.known.partition_name
        by_key = {format_bucket(name(bucket), bucket.bucket_id): bucket for bucket in self._latest}
        found = {}
        for key, offset in (self._options.startup_offsets or {}).items():
            bucket = by_key.get(key)
            if bucket is None:
                raise FlussError(
                    f"'scan.startup.offsets' has '{key}', but there is no such bucket of {self._options.table.path} "
                    f"that is read; there are {', '.join(sorted(by_key)[:_SHOWN_MAX])}"
                )
            if offset > self._latest[bucket]:
                raise FlussError(
                    f"'scan.startup.offsets' begins at {offset} in '{key}', but the log of this bucket of "
                    f"{self._options.table.path} ends at {self._latest[bucket]}"
                )
            found[bucket] = offset
        return found

    def fix_targets(self) -> None:
        """Read no further than the logs go now, and only in the buckets there are now."""
        self._targets = self.table.offsets(self.table.discovered().chosen, OffsetSpec.latest())

    def next(self, start: StreamOffset, *, rows_max: int | None = None, bytes_max: int | None = None) -> StreamOffset:
        """Return where the batch ends that begins at ``start``: the same offset if there is nothing to read.

        While there is nothing, calls take a little longer, so that servers are not asked all the time.
        """
        self._backoff.before_poll()
        end = self._next(start, rows_max, bytes_max)
        self._backoff.after_poll(found=end is not start)
        if end is not start:
            end = replace(end, task_count=max(1, len(self._divided_batch(start, end))))
        self._planned = end
        return end

    def _next(self, start: StreamOffset, rows_max: int | None, bytes_max: int | None) -> StreamOffset:
        self.table.expect(start)
        if start.lake is not None and not start.lake.is_done:
            return self._next_files(start, start.lake, rows_max, bytes_max)
        seen = self.table.look(start, self._targets)
        self._latest = latest = seen.latest
        positions, losses = resume(start, seen, rows_first=self._startup_view() == "rows")
        self.table.accept(losses)
        waiting = unread_rows(positions, latest)
        if bytes_max is not None:
            rows_max = rows_within(bytes_max, self._bytes_per_row(_largest_log(waiting, latest)))
        snapshots = take_whole(unread_snapshots(positions, latest).items(), rows_max)
        rows_left = None if rows_max is None else max(0, rows_max - sum(snapshots.values()))
        changes = self._admission.divide(waiting, rows_left)
        known = self.table.known
        return advance(
            start,
            positions,
            latest,
            changes,
            snapshots,
            names=known.names,
            newest_partition_id=known.newest_partition_id,
        )

    def _next_files(
        self, start: StreamOffset, files: LakeFiles, rows_max: int | None, bytes_max: int | None
    ) -> StreamOffset:
        """Return where a batch ends that reads the next files of the lake, at least one of them."""
        if bytes_max is not None:
            rows_max = rows_within(bytes_max, self._bytes_per_row(None))
        counts = enumerate(self._lake.file_rows(self.table.table, files))
        taken = len(take_whole(counts, rows_max))
        read = files._replace(first=files.stop, stop=files.stop + taken)
        return replace(start, lake=read, is_initial=False, task_count=None, begun={}, shown=())

    def latest(self) -> StreamOffset | None:
        """Return where the logs ended when they were looked at last; it shows those where the most is to be read."""
        if not self._latest:
            return None
        ends = self._at({bucket: BucketPosition(offset) for bucket, offset in self._latest.items()})
        return replace(ends, shown=worst_of(unread(self._reached(), self._latest)))

    def lag(self) -> Json:
        """Return how far the end of the last batch that was planned is behind the ends of the logs, for reports."""
        reached = self._reached()
        return measured_lag(self.table.table, reached, unread(reached, self._latest), self.table.known.names)

    def _reached(self) -> StreamOffset:
        return self.initial() if self._planned is None else self._planned

    def _at(self, positions: Mapping[TableBucket, BucketPosition]) -> StreamOffset:
        known, info = self.table.known, self.table.info
        return StreamOffset(
            info.table_id,
            positions,
            table=str(info.table_path),
            names=names_of(positions, known.names),
            newest_partition_id=known.newest_partition_id,
        )

    # What is read

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[Task]:
        """Divide what is between two offsets among tasks. The buckets of a table with keys stay whole, and in order.

        A batch that is repeated is divided as before: the sizes of rows, the options and the machine may be others.
        """
        self.table.expect(end)
        if end.lake is not None:
            # Spark may show a source the offset that it has seen last.
            splits = [] if end == start else self._lake.splits(self.table.table, end)
            return divide(splits, end.task_count or cores_of(self._options), may_split=False)
        reads = reads_between(start, end)
        if end != self._planned:
            # An earlier run of the query has planned this, maybe long ago.
            reads, losses = self.table.still_there(reads)
            self.table.accept(losses)
        if end.task_count is None:
            return self._divided(reads)
        return divide(self._splits(reads), end.task_count, may_split=not self.table.info.has_primary_key())

    def lake_rows(self, end: StreamOffset) -> LakeRows | None:
        """Return what reads the files of the lake, if the batch that ends there reads some."""
        return None if end.lake is None else self._lake.rows(self.table.table, end.lake)

    @cached_property
    def _lake(self) -> StreamLake:
        info, view = self.table.info, self.table.view
        return StreamLake(self._options, self._columns, table_filter(view_filter(self._options, info, view), info))

    def _divided_batch(self, start: StreamOffset, end: StreamOffset) -> list[Task]:
        if end.lake is None:
            return self._divided(reads_between(start, end))
        return self._packed(self._lake.splits(self.table.table, end), None, may_split=False)

    def _divided(self, reads: Sequence[PlannedRead]) -> list[Task]:
        """Divide what a batch reads as the options want it now."""
        may_split = not self.table.info.has_primary_key()
        return self._packed(self._splits(reads), _largest_read(reads), may_split=may_split)

    def _packed(self, splits: Sequence[Split], largest: LogRange | None, *, may_split: bool) -> list[Task]:
        cores = cores_of(self._options)
        bytes_per_row = self._bytes_per_row(largest, sum(split.weight for split in splits))
        return pack(
            splits,
            # A batch that is read again is divided by rows: nothing tells then what they took.
            [bytes_per_row] * len(splits),
            target_task_bytes=self._options.target_task_bytes,
            tasks_max=self._options.max_tasks or _TASKS_PER_CORE * cores,
            may_split=may_split,
            task_rows_max=self._options.max_records_per_partition,
            cores=cores,
        )

    def _splits(self, reads: Sequence[PlannedRead]) -> list[Split]:
        name = self.table.known.partition_name
        return [split_of(read, name(read.bucket)) for read in reads]

    @cached_property
    def _columns(self) -> list[str]:
        info, view = self.table.info, self.table.view
        return table_columns(self._schema, view, view_filter(self._options, info, view), info)

    def _bytes_per_row(self, log: LogRange | None, row_count: int | None = None) -> float:
        """Return what a row takes, measured on a log. A guess will do for so few rows that one task reads them all."""
        columns = self._columns
        guessed = estimated_row_bytes(self.table.info.schema, columns)
        if log is None or (row_count is not None and row_count * guessed < self._options.target_task_bytes):
            return guessed
        if self._row_bytes is None or self._clock() - self._row_bytes[1] > _ROW_BYTES_AGE_S_MAX:
            self._row_bytes = measured_row_bytes(self.table.table, [log], columns)[0] or guessed, self._clock()
        return self._row_bytes[0]


def _largest_log(waiting: Mapping[TableBucket, int], latest: Mapping[TableBucket, int]) -> LogRange | None:
    bucket = max(waiting, key=waiting.__getitem__, default=None)
    return None if bucket is None else LogRange(bucket, latest[bucket] - waiting[bucket], latest[bucket])


def _largest_read(reads: Sequence[PlannedRead]) -> LogRange | None:
    logs = [LogRange(read.bucket, read.start, read.stop) for read in reads if read.kind == "log"]
    return max(logs, key=lambda log: log.stop - log.start, default=None)


def split_of(read: PlannedRead, partition_name: str | None) -> Split:
    """Return what a batch reads of a bucket as a part of a table."""
    partition_id, bucket_id = read.bucket.partition_id, read.bucket.bucket_id
    if read.kind == "rows":
        return Split(partition_id, partition_name, bucket_id, 0, read.stop, "rows", row_count=read.stop)
    return Split(partition_id, partition_name, bucket_id, read.start, read.stop)


def read_of(split: Split, table_id: int) -> PlannedRead:
    """Return a part of a table as what a batch reads of a bucket."""
    assert split.kind in ("rows", "log"), "files of a lake are read in batches of their own"
    if split.kind == "rows":
        return PlannedRead(split.bucket(table_id), "rows", split.stop, split.stop)
    return PlannedRead(split.bucket(table_id), "log", split.start, split.stop)


# How much one micro-batch may read


class Admission(Generic[BucketT]):
    """Divides limits, and remembers which buckets got nothing the last times. Belongs to one query."""

    def __init__(self) -> None:
        # How many times in a row a bucket with a backlog was left out.
        self._waits: dict[BucketT, int] = {}

    def divide(self, backlogs: Mapping[BucketT, int], rows_max: int | None) -> dict[BucketT, int]:
        """Say how many rows of each bucket are read now; buckets that get none are missing.

        Backlogs are given from the oldest bucket to the newest. Together the shares are ``rows_max`` rows, or
        everything if that is less or ``rows_max`` is None: unless it is 0, at least one bucket gets something.
        """
        waiting = {bucket: rows for bucket, rows in backlogs.items() if rows > 0}
        total = sum(waiting.values())
        if rows_max is None or total <= rows_max:
            self._waits.clear()
            return waiting
        shares = {bucket: rows * rows_max // total for bucket, rows in waiting.items()}
        rest = rows_max - sum(shares.values())

        def claim(bucket: BucketT) -> tuple[int, int]:
            waits = self._waits.get(bucket, 0) if shares[bucket] == 0 else 0
            return waits, waiting[bucket] * rows_max % total

        # The sort is stable: of equals, the oldest comes first.
        for bucket in sorted(waiting, key=claim, reverse=True)[:rest]:
            shares[bucket] += 1
        self._waits = {bucket: self._waits.get(bucket, 0) + 1 for bucket, share in shares.items() if share == 0}
        return {bucket: share for bucket, share in shares.items() if share > 0}


def take_whole(sizes: Iterable[tuple[BucketT, int]], rows_max: int | None) -> dict[BucketT, int]:
    """Take things that cannot be cut, in their order, as long as all of them together are within the limit.

    The first one is taken whatever its size, so that there is always progress.
    """
    taken: dict[BucketT, int] = {}
    total = 0
    for bucket, rows in sizes:
        total += rows
        if taken and rows_max is not None and total > rows_max:
            break
        taken[bucket] = rows
    return taken


def rows_within(bytes_max: int, bytes_per_row: float) -> int:
    """Return how many rows a limit of bytes stands for; at least one."""
    return max(1, int(bytes_max / max(bytes_per_row, 1.0)))


# How often servers are asked while there is nothing new


class PollBackoff:
    """Makes a query that polls all the time poll less often while there is nothing new.

    A pause is a share of the time for which nothing has come, within limits, and so long that polling takes no more
    than a share of the time. A poll after a pause still sees everything that was there when the pause began.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        # Since when nothing has come; None if something has.
        self._idle_since_s: float | None = None
        self._poll_not_before_s = 0.0
        self._poll_begun_s = 0.0

    def before_poll(self) -> None:
        """Wait until it is time to poll."""
        wait_s = self._poll_not_before_s - self._clock()
        if wait_s > 0:
            self._sleep(wait_s)
        self._poll_begun_s = self._clock()

    def after_poll(self, *, found: bool) -> None:
        """Decide when to poll again."""
        if found:
            self._idle_since_s = None
            self._poll_not_before_s = 0.0
            return
        now_s = self._clock()
        if self._idle_since_s is None:
            self._idle_since_s = self._poll_begun_s
        idle_pause_s = (now_s - self._idle_since_s) * _IDLE_PAUSE_SHARE
        polling_pause_s = (now_s - self._poll_begun_s) * (1 / _POLLING_SHARE_MAX - 1)
        pause_s = max(min(max(idle_pause_s, _IDLE_PAUSE_S_MIN), _IDLE_PAUSE_S_MAX), polling_pause_s)
        self._poll_not_before_s = now_s + pause_s
