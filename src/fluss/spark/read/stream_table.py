"""The table of a stream as its servers describe it, over and over: its buckets, and where their logs begin and end.

Servers may be away for a while. Every question is asked again until ``request-timeout`` has passed since it failed
first; the tasks of a stream wait as long for their records.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fluss import FlussTable
from fluss.client.bulk import offsets_of, partitions_and_dropped_of
from fluss.errors import ErrorCode, FlussError
from fluss.schema.offsets import OffsetSpec
from fluss.schema.table import DroppedPartition, PartitionInfo, TableBucket, TableInfo
from fluss.spark.connections import Retry, open_table, wait_limit
from fluss.spark.query_options import PartitionChoice, ReadOptions
from fluss.spark.read.planner import ReadView, fluss_ranges, matching_buckets, matching_partitions, read_view
from fluss.spark.read.split_read import table_filter, view_filter
from fluss.spark.read.stream_offsets import DROPPED, Loss, ObservedTable, PlannedRead, StreamOffset, log_begins_at

if TYPE_CHECKING:
    from fluss.filter.row_filter import RowFilter


# How long the beginnings of logs are believed. If records expire in this time, the task that reads them notices.
_BEGINNINGS_AGE_S_MAX: Final = 5.0
# A bucket without a leader, or whose partition has just been dropped.
_RETRIABLE_CODES: Final = frozenset({ErrorCode.CLIENT_ERROR, ErrorCode.PARTITION_NOT_EXISTS})

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamBuckets:
    """The buckets that a table has at a moment: all of them, and those that a query reads."""

    existing: frozenset[TableBucket]
    chosen: tuple[TableBucket, ...]
    # The names of partitions by their ids, also of former ones.
    names: Mapping[int, str]
    # The newest partition that there is or was; None if there was none.
    newest_partition_id: int | None

    def partition_name(self, bucket: TableBucket) -> str | None:
        """Return the name of the partition of a bucket, None if it has none, or one that is not known."""
        return None if bucket.partition_id is None else self.names.get(bucket.partition_id)

    def name(self, bucket: TableBucket) -> str:
        """Return a bucket as messages call it."""
        if bucket.partition_id is None:
            return f"bucket {bucket.bucket_id}"
        partition = self.partition_name(bucket) or f"with the id {bucket.partition_id}"
        return f"bucket {bucket.bucket_id} of partition {partition}"


class StreamTable:
    """Asks about one table, which stays the same one: a table that was dropped and created again is a FlussError.

    ``clock`` and ``sleep`` are for pauses, and for how old what is known about partitions may be.
    """

    def __init__(
        self,
        options: ReadOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._clock = clock
        limit_s, limit_key = wait_limit(options.connection)
        what = f"The cluster of {options.table.path}"
        self.retry = Retry(what, limit_s, limit_key=limit_key, clock=clock, sleep=sleep)
        self._table: FlussTable | None = None
        self._buckets: StreamBuckets | None = None
        self._names: dict[int, str] = {}
        self._dropped: dict[int, DroppedPartition] = {}
        # Partitions that may have been dropped since they were asked for last have this id or a greater one.
        self._first_dropped_id = 0
        self._newest_dropped_id = -1
        # Losses that were told already.
        self._told: set[Loss] = set()
        self._discovered_s = -math.inf
        self._beginnings: dict[TableBucket, int] = {}
        self._beginnings_s = -math.inf

    @property
    def table(self) -> FlussTable:
        if self._table is None:
            self.discovered()
        assert self._table is not None, "a discovery sets it or raises"
        return self._table

    @property
    def info(self) -> TableInfo:
        return self.table.get_table_info()

    @property
    def view(self) -> ReadView:
        """What tasks read: of a table with keys the last state of each key that has changed, if not every change."""
        view = read_view(self.info, self._options)
        return "upserts" if view == "rows" else view

    def expect(self, offset: StreamOffset) -> None:
        """Make sure that an offset of a checkpoint is one of this table."""
        path, now = self._options.table.path, self.info.table_id
        self._names.update(offset.names)
        if offset.table is not None and offset.table != str(path):
            raise FlussError(
                f"The checkpoint is that of a stream from {offset.table}, and this one reads {path}; give every query "
                "a checkpoint of its own",
                ErrorCode.TABLE_NOT_EXIST,
            )
        if offset.table is None and offset.table_id != now:
            raise FlussError(
                f"The checkpoint is that of a stream from the table with the id {offset.table_id}, and {path} has the "
                f"id {now}: it belongs to another table, or {path} was dropped and created again; begin with a new "
                "checkpoint",
                ErrorCode.TABLE_NOT_EXIST,
            )
        self._check_id(offset.table_id, now)

    def _check_id(self, before: int, now: int) -> None:
        if before != now:
            raise FlussError(
                f"{self._options.table.path} was dropped and created again: the stream has read the table with the id "
                f"{before}, and now it has the id {now}; begin with a new checkpoint to read the new table",
                ErrorCode.TABLE_NOT_EXIST,
            )

    # Buckets

    def buckets(self) -> StreamBuckets:
        """Return the buckets there are, looked up again from time to time (``scan.partition.discovery.interval``)."""
        age_s = self._clock() - self._discovered_s
        is_old = self.info.is_partitioned() and age_s >= self._options.partition_discovery_interval_s
        return self.discovered() if is_old else self.known

    def discovered(self) -> StreamBuckets:
        """Return the buckets there are now."""
        self.retry.call(lambda _: self._discover())
        return self.known

    @property
    def known(self) -> StreamBuckets:
        """The buckets there were at the last discovery."""
        if self._buckets is None:
            self.discovered()
        assert self._buckets is not None, "a discovery sets them or raises"
        return self._buckets

    def _discover(self) -> None:
        table = open_table(self._options.connection, self._options.table.path)
        info = table.get_table_info()
        if self._table is None:
            # This refuses a table of which something can only be read from a lake.
            fluss_ranges(table, self._options, "changelog", ())
        else:
            self._check_id(self._table.get_table_info().table_id, info.table_id)
        self._table = table
        self._buckets = self._look_up_buckets(table, info)
        self._discovered_s = self._clock()

    def _look_up_buckets(self, table: FlussTable, info: TableInfo) -> StreamBuckets:
        row_filter = self._filter(info)
        partitions = self._look_up_partitions(table) if info.is_partitioned() else []
        chosen = _chosen_partitions(info, partitions, self._options.partitions, row_filter)
        ids = [partition.partition_id for partition in partitions]
        chosen_ids = [partition.partition_id for partition in chosen]
        return StreamBuckets(
            existing=frozenset(_buckets(info, ids, range(info.num_buckets))),
            chosen=tuple(_buckets(info, chosen_ids, matching_buckets(info, row_filter))),
            names=self._names,
            newest_partition_id=max([*ids, self._newest_dropped_id]) if info.is_partitioned() else None,
        )

    def _filter(self, info: TableInfo) -> RowFilter | None:
        return table_filter(view_filter(self._options, info, read_view(info, self._options)), info)

    def _look_up_partitions(self, table: FlussTable) -> list[PartitionInfo]:
        partitions, dropped = partitions_and_dropped_of(table, self._first_dropped_id)
        self._dropped |= {each.info.partition_id: each for each in dropped}
        self._newest_dropped_id = max([self._newest_dropped_id, *(each.info.partition_id for each in dropped)])
        self._first_dropped_id = min(
            (partition.partition_id for partition in partitions), default=self._newest_dropped_id + 1
        )
        # Also partitions that have been dropped since have a name.
        for partition in (*partitions, *(each.info for each in dropped)):
            self._names[partition.partition_id] = partition.partition_name
        return partitions

    def _log_ends(self, start: StreamOffset) -> dict[TableBucket, int | None]:
        """Return where logs of dropped partitions ended that a stream has read, or would have."""
        if not self._dropped:
            return {}
        ends = {
            bucket: self._dropped[bucket.partition_id].log_end(bucket.bucket_id)
            for bucket in start.positions
            if bucket.partition_id in self._dropped
        }
        newest = start.newest_partition_id
        if newest is None or newest >= self._newest_dropped_id:
            return ends
        info, row_filter = self.info, self._filter(self.info)
        unseen = [dropped.info for id_, dropped in self._dropped.items() if id_ > newest]
        chosen = _chosen_partitions(info, unseen, self._options.partitions, row_filter)
        ids = [partition.partition_id for partition in chosen]
        for bucket in _buckets(info, ids, matching_buckets(info, row_filter)):
            assert bucket.partition_id is not None, "it is one of a partition"
            ends[bucket] = self._dropped[bucket.partition_id].log_end(bucket.bucket_id)
        return ends

    # Offsets

    def ranges(self, view: ReadView) -> dict[TableBucket, tuple[int, int]]:
        """Return from where to where the logs of all buckets that are read can be read; FlussError if that is not all.

        ``view`` is what a stream begins with: the rows of a table, or changes.
        """

        def ask(is_again: bool) -> dict[TableBucket, tuple[int, int]]:
            buckets = self.discovered() if is_again else self.buckets()
            return fluss_ranges(self.table, self._options, view, buckets.chosen)

        return self.retry.call(ask, {ErrorCode.PARTITION_NOT_EXISTS})

    def look(self, start: StreamOffset, targets: Mapping[TableBucket, int] | None) -> ObservedTable:
        """Look at what there is to read from an offset on, up to the targets if there are any."""
        chosen = self.buckets().chosen
        latest = self._latest(start, chosen) if targets is None else targets
        earliest = self._earliest([bucket for bucket, end in latest.items() if start.may_have_unread(bucket, end)])
        # The questions above may have shown that some of the buckets are gone.
        known = self.known
        still_there = {bucket: end for bucket, end in latest.items() if bucket in known.existing}
        return ObservedTable(known.existing, still_there, earliest, self._log_ends(start))

    def _latest(self, start: StreamOffset, chosen: Collection[TableBucket]) -> dict[TableBucket, int]:
        """Return the ends of logs. One that is before what has been read is believed after a while only.

        A leader that has just taken over may not know yet how far its log was readable.
        """
        latest: dict[TableBucket, int] = {}

        def is_plausible() -> bool:
            latest.clear()
            latest.update(self.offsets(chosen, OffsetSpec.latest()))
            return not start.is_beyond(latest)

        self.retry.wait_until(is_plausible)
        return latest

    def _earliest(self, unread: Sequence[TableBucket]) -> dict[TableBucket, int]:
        """Return the beginnings of logs, as they were not long ago."""
        now_s = self._clock()
        if now_s - self._beginnings_s > _BEGINNINGS_AGE_S_MAX:
            self._beginnings, self._beginnings_s = {}, now_s
        unknown = [bucket for bucket in unread if bucket not in self._beginnings]
        self._beginnings |= self.offsets(unknown, OffsetSpec.earliest())
        return self._beginnings

    def offsets(self, buckets: Collection[TableBucket], spec: OffsetSpec) -> dict[TableBucket, int]:
        """Look up an offset in each bucket. Those of partitions that have been dropped are missing in the answer."""
        wanted = list(buckets)

        def ask(is_again: bool) -> dict[TableBucket, int]:
            if is_again:
                self._discover()
            there = [bucket for bucket in wanted if bucket in self.known.existing]
            return offsets_of(self.table, there, spec)

        return self.retry.call(ask, _RETRIABLE_CODES) if wanted else {}

    def still_there(self, reads: Iterable[PlannedRead]) -> tuple[list[PlannedRead], list[Loss]]:
        """Compare what was planned some time ago with what servers still have; return what is left, and what is not.

        Of rows at an offset whose changelog is gone, later ones are left.
        """
        planned = list(reads)
        earliest = self.offsets([read.bucket for read in planned], OffsetSpec.earliest())
        left, losses = [], []
        for read in planned:
            first = earliest.get(read.bucket)
            if first is None:
                losses.append(Loss(read.bucket, read.start, read.stop, DROPPED))
                continue
            if first > read.start:
                losses.append(Loss(read.bucket, read.start, min(first, read.stop), log_begins_at(first)))
            start = max(first, read.start)
            if read.kind == "rows":
                left.append(read._replace(start=start, stop=start))
            elif start < read.stop:
                left.append(read._replace(start=start))
        return left, losses

    def accept(self, losses: Collection[Loss]) -> None:
        """Raise because of what was lost, or say it in the log, as ``scan.on-data-loss`` wants it."""
        mode = self._options.on_data_loss
        fatal = [loss for loss in losses if mode == "fail" or (mode == "fail-if-known" and loss.is_certain)]
        # What is known to be lost is more important than what may be.
        for loss in sorted(fatal, key=lambda loss: not loss.is_certain):
            more = f" ({len(fatal) - 1} other buckets have lost records, too)" if len(fatal) > 1 else ""
            advice = (
                "'scan.on-data-loss'=skip to go on without it"
                if loss.is_certain
                else "'scan.on-data-loss'=fail-if-known to go on wherever nothing is known to be lost, or skip"
            )
            raise FlussError(
                f"{self._lost(loss)}{more}. Set {advice}, or begin with a new checkpoint",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
        for loss in [each for each in losses if each not in self._told]:
            logger.warning("%s; the stream goes on without it", self._lost(loss))
        self._told.update(losses)

    def _lost(self, loss: Loss) -> str:
        bucket = f"{self._options.table.path}, {self.known.name(loss.bucket)}"
        if not loss.is_certain:
            return (
                f"{bucket}: {loss.reason}, and the server does not tell where its log ended: the stream has read it up "
                f"to offset {loss.start}, and rows behind that are lost if there were any"
            )
        end = "" if loss.stop is None else f" up to {loss.stop}"
        return f"{bucket}: what was not read yet, from offset {loss.start}{end}, is gone, because {loss.reason}"


def _buckets(info: TableInfo, partition_ids: Iterable[int], bucket_ids: Iterable[int]) -> Iterator[TableBucket]:
    ids: list[int | None] = [*partition_ids] if info.is_partitioned() else [None]
    numbers = list(bucket_ids)
    for partition_id in ids:
        for bucket_id in numbers:
            yield TableBucket.new_with_partition(info.table_id, partition_id, bucket_id)


def _chosen_partitions(
    info: TableInfo,
    partitions: Sequence[PartitionInfo],
    choices: Sequence[PartitionChoice] | None,
    row_filter: RowFilter | None,
) -> list[PartitionInfo]:
    """Return the partitions that are read. One that is not there may come, or has been dropped."""
    if choices is None or not info.is_partitioned():
        return matching_partitions(info, partitions, choices, row_filter)
    chosen: dict[int, PartitionInfo] = {}
    for choice in choices:
        try:
            fitting = matching_partitions(info, partitions, [choice], row_filter)
        except FlussError as error:
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            continue
        chosen |= {partition.partition_id: partition for partition in fitting}
    return list(chosen.values())
