"""Plans of reads: which splits of a table are read, up to which offsets, and by how many tasks.

A plan is made once, on the driver. From then on it says exactly which records or rows are read, however much the
table grows.

    view       of                     splits                                   a bucket may be cut
    log        log tables             the log                                  yes
    changelog  all tables             the log, with what each record means     yes
    binlog     primary-key tables     the log, updates as one record           yes
    rows       primary-key tables     the rows after all changes so far        no
    upserts    primary-key tables     the last changes of keys in a time       no

1. Pruning: the partitions that were chosen, and the partitions and buckets in which the filter may hold.
2. Offsets: where the log of each bucket begins and ends. With a time range (``scan.incremental``) only those records
   count whose commit time is in it. Where it begins and ends in the logs is asked of the servers, whose answer may be
   too early; so the start is exact only because tasks look at the time of every record, and the end is checked here
   against the record that is there.
   What comes out of these two is a snapshot. Every other read of the same DataFrame is given it, and prunes further,
   by what Spark has told it.
3. Sizes: what a row costs, measured on a few rows if it decides about the number of tasks.
4. Packing: a task costs 30 to 100 ms before its first row, so small splits share one. More tasks than cores are a
   multiple of the cores, so that none is idle while the last tasks run. Splits of logs may be cut anywhere: they are
   laid end to end and cut into pieces of the same number of bytes. What must stay whole, such as the rows of a bucket
   with a primary key, is given to the task that has the least so far, the largest splits first.
"""

from __future__ import annotations

import heapq
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, get_args

from fluss import FlussTable
from fluss.client.bulk import (
    LogRange,
    checked_choices,
    chosen_partitions,
    lake_format,
    offsets_of,
    partitions_of,
    read_ranges,
    row_counts_of,
)
from fluss.errors import ErrorCode, FlussError
from fluss.row.arrow_arrays import estimated_row_bytes, narrowest_column
from fluss.row.bucketing import HashVariant, bucket_for
from fluss.row.key import bucket_key_encoder
from fluss.row.values import internal_from_arrow
from fluss.schema.offsets import OffsetSpec
from fluss.schema.table import PartitionInfo, PartitionSpec, TableBucket, TableInfo
from fluss.schema.table_options import LOG_TTL
from fluss.schema.types import TypeRoot
from fluss.spark.query_options import ReadOptions
from fluss.spark.read.lake_part import (
    check_not_in_lake,
    check_past_in_fluss,
    lake_files,
    lake_snapshot,
    reads_only_lake,
    reads_union,
    union_snapshot,
)
from fluss.spark.read.past import ended_at, given_stops, stops_after
from fluss.spark.read.snapshot import Snapshot, partition_may_match

if TYPE_CHECKING:
    from fluss.filter.row_filter import RowFilter
    from fluss.lake.fluss_rows import LakeRows
    from fluss.lake.scans import LakeFile

Task: TypeAlias = "tuple[Split, ...]"
ReadView: TypeAlias = Literal["rows", "log", "upserts", "changelog", "binlog"]
# Unless an option limits them: so many tasks for each core, or more if tasks would otherwise be larger than so many
# times their target size.
_TASKS_PER_CORE: Final = 16
_TASK_SIZE_MAX: Final = 8
# For the sake of cores that would be idle, tasks may be smaller than their target size: down to this share of it.
_TASK_SIZE_MIN: Final = 0.25
# What a row costs Spark besides its bytes, as a number of bytes.
_ROW_COST_BYTES: Final = 24
# How many times larger rows may be than their types suggest.
_GUESS_FACTOR_MAX: Final = 16
# How often a plan is begun again because partitions are dropped while it is made.
_TRIES_MAX: Final = 3
# With more keys than this that a filter names, all buckets are read.
_KEYS_MAX: Final = 1000


# Types of which equal values have equal keys. Times may have more digits than they show, and zeros two signs.
_EXACT_ROOTS: Final = frozenset(
    {
        TypeRoot.BOOLEAN,
        TypeRoot.TINYINT,
        TypeRoot.SMALLINT,
        TypeRoot.INTEGER,
        TypeRoot.BIGINT,
        TypeRoot.CHAR,
        TypeRoot.STRING,
        TypeRoot.BINARY,
        TypeRoot.BYTES,
        TypeRoot.DECIMAL,
        TypeRoot.DATE,
    }
)


# Rows that are measured at most, together, and the parts that they are taken of.
_SAMPLE_ROWS: Final = 1000
_SAMPLES_MAX: Final = 4
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a table that is read by one task, always with the same result.

    Of the kind ``log`` it is the records of a bucket from the offset ``start`` up to and without ``stop``; of the kind
    ``rows`` it is the rows of a bucket after all changes before ``stop``, whatever ``start`` is. Of the kind ``lake``
    it is what ``files`` of the lake have, and of the kind ``merged`` the same with the changes from ``start`` up to
    ``stop`` applied. ``row_count`` tells how many rows that may be, where the offsets do not tell.
    """

    partition_id: int | None
    partition_name: str | None
    bucket_id: int
    start: int
    stop: int
    kind: Literal["log", "rows", "lake", "merged"] = "log"
    row_count: int | None = None
    files: tuple[LakeFile, ...] = ()

    @property
    def weight(self) -> int:
        """About how many rows there are."""
        return self.stop - self.start if self.row_count is None else self.row_count

    def bucket(self, table_id: int) -> TableBucket:
        return TableBucket.new_with_partition(table_id, self.partition_id, self.bucket_id)


class PlannedBucket(NamedTuple):
    """A bucket that is read, and the name of its partition if it has one."""

    bucket: TableBucket
    partition_name: str | None


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A read of a table: what its tasks read."""

    table_id: int
    view: ReadView
    tasks: tuple[Task, ...]
    # Everything that the DataFrame has, of which the tasks may read only a part.
    snapshot: Snapshot
    # How many rows the tasks return; None if that is not known without reading.
    row_count: int | None
    # Reads the files that tasks are given.
    lake: LakeRows | None = None


def read_view(info: TableInfo, options: ReadOptions) -> ReadView:
    """Return what is read of a table; FlussError for what this table does not have."""
    has_key = info.has_primary_key()
    match options.view:
        case "changelog":
            return "changelog"
        case "binlog" if has_key:
            return "binlog"
        case "binlog":
            raise FlussError(f"{info.table_path} is a log table: its rows never change, so it has no $binlog")
    if not has_key:
        return "log"
    return "rows" if options.incremental_start_ms is None else "upserts"


def plan_batch(
    table: FlussTable,
    options: ReadOptions,
    columns: Sequence[str],
    row_filter: RowFilter | None = None,
    *,
    hint: RowFilter | None = None,
    snapshot: Snapshot | None = None,
    clock: Callable[[], float] = time.time,
) -> TablePlan:
    """Plan a batch read of these columns. ``row_filter`` and ``hint`` are on columns of the table.

    With a ``snapshot`` those records are read that it says. Only the tasks, and not the snapshot, leave out what the
    ``hint`` rules out.
    """
    info = table.get_table_info()
    view = read_view(info, options)
    if snapshot is None:
        snapshot = _snapshot(table, options, view, columns, row_filter, clock)
    splits = _splits(table, view, snapshot, hint)
    lake, whole = None, list[Split]()
    if snapshot.lake is not None:
        both = row_filter if hint is None else hint.both(row_filter, hint)
        lake, whole = _lake_splits(table, snapshot, columns, both)
        with_files = {split.bucket(info.table_id) for split in whole if split.kind == "merged"}
        splits = [split for split in splits if split.bucket(info.table_id) not in with_files]
    row_count = None
    if view == "log" and options.returns_every_row:
        # How many rows a log has is not known: batches without rows, as exactly-once writes leave them, have offsets.
        if not splits and not any(file.has_deletes for split in whole for file in split.files):
            row_count = sum(split.weight for split in whole)
        if options.hinted_limit is not None:
            splits, whole = _first_rows(splits, whole, options.hinted_limit)
    may_split = view in ("log", "changelog", "binlog")
    tasks: list[Task] = []
    for parts, can_be_cut in ((splits, may_split), (whole, False)):
        row_bytes = _row_bytes(table, parts, columns, options.target_task_bytes)
        tasks += pack(
            parts,
            row_bytes,
            target_task_bytes=options.target_task_bytes,
            tasks_max=options.max_tasks or _default_tasks_max(parts, row_bytes, options),
            may_split=can_be_cut,
            task_rows_max=options.max_records_per_partition,
            cores=cores_of(options),
        )
    return TablePlan(info.table_id, view, tuple(tasks), snapshot, row_count, lake)


def _first_rows(logs: list[Split], files: Sequence[Split], limit: int) -> tuple[list[Split], list[Split]]:
    """Return files that have so many rows, and logs as they are if that are all files: their rows are not known."""
    kept: list[Split] = []
    for split in files:
        if limit <= 0:
            break
        kept.append(split)
        # How many rows are deleted from a file is not known.
        limit -= 0 if any(file.has_deletes for file in split.files) else split.weight
    return logs if limit > 0 else [], kept


# Pruning


def planned_buckets(
    table: FlussTable, options: ReadOptions, row_filter: RowFilter | None = None
) -> list[PlannedBucket]:
    """Return the buckets that have to be read now: of the partitions chosen, and where the filter may hold."""
    info = table.get_table_info()
    bucket_ids = matching_buckets(info, row_filter)
    if not info.is_partitioned():
        # A table without partitions refuses a choice of them.
        matching_partitions(info, [], options.partitions, None)
        return [PlannedBucket(TableBucket(info.table_id, bucket_id), None) for bucket_id in bucket_ids]
    partitions = matching_partitions(info, partitions_of(table), options.partitions, row_filter)
    return [
        PlannedBucket(
            TableBucket.with_partition(info.table_id, partition.partition_id, bucket_id), partition.partition_name
        )
        for partition in partitions
        for bucket_id in bucket_ids
    ]


def matching_partitions(
    info: TableInfo,
    existing: Sequence[PartitionInfo],
    choices: Iterable[str | PartitionSpec] | None,
    row_filter: RowFilter | None,
) -> list[PartitionInfo]:
    """Return the partitions that were chosen and may have rows for which the filter holds.

    A choice that no partition fits is a FlussError (code 36); a filter that fits none leaves none.
    """
    chosen = chosen_partitions(info, existing, checked_choices(info, choices))
    if row_filter is None:
        return chosen
    return [each for each in chosen if row_filter.may_match(each.get_partition_spec().spec_map)]


def matching_buckets(info: TableInfo, row_filter: RowFilter | None) -> list[int]:
    """Return the buckets that may have rows for which the filter holds.

    These are all of them, unless the filter says what the columns of the bucket key are equal to.
    """
    everywhere = list(range(info.num_buckets))
    keys = info.bucket_keys
    if row_filter is None or not keys:
        return everywhere
    types = [info.schema.column(name).data_type for name in keys]
    choices = row_filter.choices()
    if any(name not in choices for name in keys) or any(each.root not in _EXACT_ROOTS for each in types):
        return everywhere
    values = [internal_from_arrow(choices[name].drop_null(), type_) for name, type_ in zip(keys, types, strict=True)]
    if prod(map(len, values)) > _KEYS_MAX:
        return everywhere
    lake = lake_format(info)
    encode = bucket_key_encoder(types, lake).encode
    encoded = [encode(key) for key in product(*values)]
    # Writers of other languages hash differently, and a table does not say which writers it had.
    variants = get_args(HashVariant)
    return sorted({bucket_for(key, info.num_buckets, lake, variant) for key in encoded for variant in variants})


# Offsets


def fluss_ranges(
    table: FlussTable, options: ReadOptions, view: ReadView, buckets: Collection[TableBucket]
) -> dict[TableBucket, tuple[int, int]]:
    """Decide what of a table is read from Fluss: from where to where in the log of each bucket.

    All there is to read has to come from Fluss, so that whatever is only in a lake is a FlussError instead of rows
    that are missing. What is read of a lake as well is decided before, by ``lake_part``.
    """
    path = table.table_path
    if reads_only_lake(options):
        raise FlussError(f"The lake alone is no stream; read {path} itself, which begins with what its lake has")
    if options.mode == "snapshot":
        raise FlussError(f"'scan.mode'=snapshot reads what was saved of a table, which cannot be read yet; read {path}")
    latest = offsets_of(table, buckets, OffsetSpec.latest())
    earliest = offsets_of(table, buckets, OffsetSpec.earliest())
    if options.mode == "union" and view in ("log", "rows") and options.incremental_start_ms is None:
        check_not_in_lake(table, options, view == "log", earliest)
    return {bucket: (min(earliest[bucket], stop), stop) for bucket, stop in latest.items()}


def _snapshot(
    table: FlussTable,
    options: ReadOptions,
    view: ReadView,
    columns: Sequence[str],
    row_filter: RowFilter | None,
    clock: Callable[[], float],
) -> Snapshot:
    info = table.get_table_info()
    if reads_only_lake(options):
        return lake_snapshot(table, options)
    if options.as_of_ms is not None or options.as_of_offsets is not None:
        check_past_in_fluss(table, options)
    for tries_left in reversed(range(_TRIES_MAX)):
        if reads_union(options):
            try:
                union = union_snapshot(table, options, columns, row_filter, matching_buckets(info, row_filter))
            except FlussError as error:
                if error.error_code != ErrorCode.PARTITION_NOT_EXISTS or not tries_left:
                    raise
                continue
            if union is not None:
                return union
        planned = dict(planned_buckets(table, options, row_filter))
        try:
            ranges = fluss_ranges(table, options, view, planned)
            if options.incremental_start_ms is not None:
                _warn_of_expired(table, options.incremental_start_ms, clock)
                ranges = _in_time(table, ranges, options.incremental_start_ms, options.incremental_end_ms)
            if options.as_of_ms is not None:
                ranges = ended_at(ranges, stops_after(table, ranges, options.as_of_ms))
            if options.as_of_offsets is not None:
                ranges = ended_at(ranges, given_stops(table, planned, ranges, options.as_of_offsets))
        except FlussError as error:
            # A partition that is dropped right now is not read; one that is missing for good was not chosen.
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS or not tries_left:
                raise
            continue
        names = {bucket.partition_id: name for bucket, name in planned.items()}
        return Snapshot(info.table_id, ranges, names)
    raise AssertionError("the last try returns or raises")


def _splits(table: FlussTable, view: ReadView, snapshot: Snapshot, hint: RowFilter | None) -> list[Split]:
    """Return what of a snapshot has to be read if only rows matter for which a filter may hold."""
    info = table.get_table_info()
    bucket_ids = set(matching_buckets(info, hint))
    names = {id_: name for id_, name in snapshot.partition_names.items() if partition_may_match(info, name, hint)}
    ranges = {
        bucket: (start, stop)
        for bucket, (start, stop) in snapshot.ranges.items()
        if bucket.partition_id in names and bucket.bucket_id in bucket_ids
        if (stop if view == "rows" else stop - start) > 0
    }
    counts = row_counts_of(table, ranges) if view == "rows" and ranges else {}
    kind: Literal["rows", "log"] = "rows" if view == "rows" else "log"
    return [
        Split(bucket.partition_id, names[bucket.partition_id], bucket.bucket_id, start, stop, kind, counts.get(bucket))
        for bucket, (start, stop) in ranges.items()
    ]


def _lake_splits(
    table: FlussTable, snapshot: Snapshot, columns: Sequence[str], row_filter: RowFilter | None
) -> tuple[LakeRows, list[Split]]:
    """Return what of a lake has to be read: each file by itself, or those of a bucket that are merged with changes."""
    info = table.get_table_info()
    lake, files = lake_files(table, snapshot, columns, row_filter, set(matching_buckets(info, row_filter)))
    assert snapshot.lake is not None, "it is a snapshot of a lake"
    if snapshot.lake.is_rest:
        files = {place: [file for file in found if not lake.is_plain(file)] for place, found in files.items()}
        if info.has_primary_key():
            # Of these buckets the rows that have changed are left, whether or not there are files.
            missing = snapshot.ranges.keys() - files.keys() - snapshot.lake.in_fluss
            files |= {bucket: [] for bucket in missing}
    splits: list[Split] = []
    for place, found in files.items():
        if isinstance(place, TableBucket):
            id_, bucket_id, name = place.partition_id, place.bucket_id, snapshot.partition_names[place.partition_id]
            start, stop = snapshot.ranges.get(place, (0, 0))
        else:
            (values, bucket_id), id_, start, stop = place, None, 0, 0
            name = "$".join(values) or None
        if info.has_primary_key() and start < stop:
            row_count = stop - start + sum(file.data.record_count for file in found)
            splits.append(Split(id_, name, bucket_id, start, stop, "merged", row_count, tuple(found)))
            continue
        splits += [Split(id_, name, bucket_id, 0, 0, "lake", file.data.record_count, (file,)) for file in found]
    return lake, splits


def _in_time(
    table: FlussTable, ranges: Mapping[TableBucket, tuple[int, int]], start_ms: int, end_ms: int | None
) -> dict[TableBucket, tuple[int, int]]:
    """Narrow ranges to those records whose time may be in a range of times."""
    starts = offsets_of(table, ranges, OffsetSpec.timestamp(start_ms))
    stops = {bucket: stop for bucket, (_, stop) in ranges.items()}
    if end_ms is not None:
        stops |= _stops_at(table, stops, end_ms)
    return {
        bucket: (max(start, starts[bucket]), max(start, starts[bucket], stops[bucket]))
        for bucket, (start, _) in ranges.items()
    }


def _stops_at(table: FlussTable, latest: Mapping[TableBucket, int], end_ms: int) -> dict[TableBucket, int]:
    """Return for each bucket an offset from which on everything is of a time or later, and as little else as may be."""
    try:
        stops = offsets_of(table, latest, OffsetSpec.timestamp(end_ms))
    except FlussError as error:
        if error.error_code != ErrorCode.INVALID_TIMESTAMP_EXCEPTION:
            raise
        # The time is yet to come.
        return {}
    probes = [LogRange(bucket, stop, stop + 1) for bucket, stop in stops.items() if stop < latest[bucket]]
    columns = [narrowest_column(table.get_table_info().schema)]
    times_ms = {run.bucket: run.timestamp_ms for run in read_ranges(table, probes, columns=columns)}
    # An offset that was found in a coarse index may have older records behind it.
    return {bucket: stop if times_ms.get(bucket, 0) >= end_ms else latest[bucket] for bucket, stop in stops.items()}


def _warn_of_expired(table: FlussTable, start_ms: int, clock: Callable[[], float]) -> None:
    ttl_ms = LOG_TTL.of(table.get_table_info().properties)
    if ttl_ms > 0 and start_ms < clock() * 1000 - ttl_ms:
        logger.warning(
            "records of %s are kept for %d ms ('%s'); of those since %d ms some may be gone",
            table.table_path,
            ttl_ms,
            LOG_TTL.key,
            start_ms,
        )


# Sizes


def _row_bytes(
    table: FlussTable, splits: Sequence[Split], columns: Sequence[str], target_task_bytes: int
) -> list[float]:
    """Return what a row of each split costs, measured if it decides about the number of tasks.

    The largest splits are measured, one by one; the rows of the others count as much as theirs on average.
    """
    guessed = estimated_row_bytes(table.get_table_info().schema, columns)
    if sum(split.weight for split in splits) * guessed * _GUESS_FACTOR_MAX < target_task_bytes:
        return [guessed + _ROW_COST_BYTES] * len(splits)
    table_id = table.get_table_info().table_id
    logs_of = [number for number, split in enumerate(splits) if split.start < split.stop]
    largest = heapq.nlargest(_SAMPLES_MAX, logs_of, key=lambda number: splits[number].weight)
    logs = [LogRange(splits[number].bucket(table_id), splits[number].start, splits[number].stop) for number in largest]
    measured = measured_row_bytes(table, logs, columns)
    known = dict(zip(largest, measured, strict=True))
    found = [size for size in measured if size is not None]
    average = sum(found) / len(found) if found else guessed
    return [(known.get(number) or average) + _ROW_COST_BYTES for number in range(len(splits))]


def measured_row_bytes(table: FlussTable, logs: Sequence[LogRange], columns: Sequence[str]) -> list[float | None]:
    """Return what the last rows of each of these logs take on average; None for those that cannot be read now."""
    rows_max = max(1, _SAMPLE_ROWS // max(1, len(logs)))
    lasts = [log._replace(start=max(log.start, log.stop - rows_max)) for log in logs]
    rows, sizes = Counter[TableBucket](), Counter[TableBucket]()
    try:
        for run in read_ranges(table, lasts, columns=columns):
            assert run.batch is not None, "rows are read, not counted"
            rows[run.bucket] += run.batch.num_rows
            sizes[run.bucket] += run.batch.nbytes
    except FlussError:
        return [None] * len(logs)
    return [sizes[log.bucket] / rows[log.bucket] if rows[log.bucket] else None for log in logs]


def cores_of(options: ReadOptions) -> int:
    """Return how many tasks run at the same time; as many as the driver has processors, unless an option says it."""
    return options.cores or os.cpu_count() or 1


def _default_tasks_max(splits: Sequence[Split], row_bytes: Sequence[float], options: ReadOptions) -> int:
    row_count = sum(split.weight for split in splits)
    by_size = round(_byte_count(splits, row_bytes) / (options.target_task_bytes * _TASK_SIZE_MAX))
    by_rows = -(-row_count // (options.max_records_per_partition or row_count or 1))
    return max(_TASKS_PER_CORE * cores_of(options), by_size, by_rows)


def _byte_count(splits: Sequence[Split], row_bytes: Sequence[float]) -> float:
    return sum(split.weight * bytes_ for split, bytes_ in zip(splits, row_bytes, strict=True))


def pack(
    splits: Sequence[Split],
    row_bytes: Sequence[float],
    *,
    target_task_bytes: int,
    tasks_max: int,
    may_split: bool,
    task_rows_max: int | None = None,
    cores: int = 1,
) -> list[Task]:
    """Give parts to tasks of about ``target_task_bytes`` each, but to no more than ``tasks_max`` of them.

    ``row_bytes`` says for each part what a row of it takes. Every row is in exactly one task. Only with ``may_split``
    is a part cut. Then no task has more than ``task_rows_max`` rows, unless that took more than ``tasks_max`` tasks.
    """
    row_count = sum(split.weight for split in splits)
    byte_count = _byte_count(splits, row_bytes)
    task_count = task_count_for(byte_count, target_task_bytes, cores)
    if may_split and task_rows_max is not None:
        task_count = max(task_count, -(-row_count // task_rows_max))
        # Rows are limited, so tasks have the same number of them.
        row_bytes = [1] * len(splits)
    task_count = max(1, min(task_count, tasks_max))
    return divide(splits, task_count, may_split=may_split, row_bytes=row_bytes)


def task_count_for(byte_count: float, target_task_bytes: int, cores: int) -> int:
    """Return how many tasks read so many bytes: of about the target size, and such that no core has less to do.

    More tasks than cores are a multiple of the cores. Fewer become as many as there are cores, as long as that does
    not make them too small to be worth it.
    """
    wanted = round(byte_count / target_task_bytes)
    if wanted <= 1:
        return 1
    if wanted > cores:
        return -(-wanted // cores) * cores
    return max(wanted, min(cores, int(byte_count / (target_task_bytes * _TASK_SIZE_MIN))))


def divide(
    splits: Sequence[Split], task_count: int, *, may_split: bool, row_bytes: Sequence[float] | None = None
) -> list[Task]:
    """Give parts to so many tasks, or fewer if there is not enough; the same parts always in the same way.

    Tasks have the same number of rows, or of bytes if it is known what a row of each part takes.
    """
    weights = [1] * len(splits) if row_bytes is None else [max(1, round(bytes_)) for bytes_ in row_bytes]
    weighed = [
        (split, weight)
        for split, weight in zip(splits, weights, strict=True)
        if split.start < split.stop or split.kind != "log"
    ]
    if not weighed:
        return []
    if not may_split:
        return _distributed(weighed, min(task_count, len(weighed)))
    return _cut(weighed, min(task_count, sum(split.weight for split, _ in weighed)))


def _cut(splits: Sequence[tuple[Split, int]], task_count: int) -> list[Task]:
    """Cut parts of logs, laid end to end, into pieces whose weights differ by one row at most.

    Each part comes with what a row of it weighs.
    """
    total = sum(split.weight * weight for split, weight in splits)
    ends = [total * (number + 1) // task_count for number in range(task_count)]
    tasks: list[Task] = []
    task: list[Split] = []
    before = number = 0
    for split, weight in splits:
        start = split.start
        while start < split.stop:
            # The row that reaches over the end of a task is still its own.
            stop = min(split.stop, start - (before - ends[number]) // weight)
            task.append(replace(split, start=start, stop=stop))
            before += (stop - start) * weight
            start = stop
            if before >= ends[number]:
                tasks.append(tuple(task))
                task = []
                # A row may be so large that it takes the place of several tasks.
                while number < task_count - 1 and before >= ends[number]:
                    number += 1
    return tasks


def _distributed(splits: Sequence[tuple[Split, int]], task_count: int) -> list[Task]:
    """Give each part to a task as a whole."""
    shares = balanced([split.weight * weight for split, weight in splits], task_count)
    return [tuple(splits[number][0] for number in share) for share in shares]


def balanced(weights: Sequence[int], task_count: int) -> list[list[int]]:
    """Give things by their weights to tasks: each, the heaviest first, to the task that has the least so far.

    Returns the numbers of the things of each task, in this order; no task has nothing.
    """
    shares: list[list[int]] = [[] for _ in range(task_count)]
    loads = [(0, task) for task in range(task_count)]
    for number in sorted(range(len(weights)), key=lambda number: weights[number], reverse=True):
        load, task = heapq.heappop(loads)
        shares[task].append(number)
        # An empty split costs time, too.
        heapq.heappush(loads, (load + max(weights[number], 1), task))
    return [share for share in shares if share]
