"""What a query reads of the lake of a table, and what of Fluss: decided once, on the driver.

| ``scan.mode`` | log table | table with a primary key |
|---|---|---|
| union | files of the lake, and the log behind them | files, merged with the changes behind them |
| lake, or ``t$lake`` | files of the lake | the same |
| fluss | the log | the rows in Fluss |

``scan.lake.snapshot-id`` and ``scan.as-of.timestamp`` choose an older snapshot of the lake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from fluss import FlussTable
from fluss.client.bulk import (
    checked_choices,
    lake_rows_of,
    lake_snapshot_at,
    lake_snapshot_of,
    only_in_lake_of,
    partitions_of,
    union_plan_of,
)
from fluss.errors import ErrorCode, FlussError
from fluss.schema.schema import shown_names
from fluss.schema.table import PartitionSpec, TableBucket, TableInfo
from fluss.spark.query_options import ReadOptions
from fluss.spark.read.snapshot import LakePart, Snapshot

if TYPE_CHECKING:
    from fluss.filter.row_filter import RowFilter
    from fluss.lake.fluss_rows import LakeRows
    from fluss.lake.scans import LakeFile


def reads_only_lake(options: ReadOptions) -> bool:
    """Whether a query is about the lake alone."""
    return options.view == "lake" or options.mode == "lake"


def reads_union(options: ReadOptions) -> bool:
    """Whether a query is about a table as it is now, wherever that is kept."""
    is_now = options.incremental_start_ms is None and options.as_of_ms is None and options.as_of_offsets is None
    return options.mode == "union" and not options.view and is_now


def lake_snapshot(table: FlussTable, options: ReadOptions) -> Snapshot:
    """Decide what is read of a lake alone; a FlussError if there is nothing to read."""
    info = table.get_table_info()
    readable = lake_snapshot_of(table)
    if readable is None:
        raise FlussError(
            f"The lake has nothing of {table.table_path}: set 'table.datalake.enabled' and tier it, or read it with "
            "'scan.mode'=fluss",
            ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        )
    snapshot_id = readable.snapshot_id
    if options.lake_snapshot_id is not None:
        snapshot_id = options.lake_snapshot_id
    elif options.as_of_ms is not None:
        snapshot_id = lake_snapshot_at(table, options.as_of_ms)
    return Snapshot(info.table_id, {}, {}, LakePart(snapshot_id, _chosen(table, options, snapshot_id)))


def _chosen(table: FlussTable, options: ReadOptions, snapshot_id: int) -> frozenset[tuple[str, ...]] | None:
    """Return the partitions that were chosen; code 36 for a choice that the lake has nothing of."""
    info = table.get_table_info()
    choices = checked_choices(info, options.partitions)
    if choices is None:
        return None
    columns = info.schema.column_names[:1]
    existing = {file.partition_values for file in lake_rows_of(table, snapshot_id, columns).files()}
    chosen: set[tuple[str, ...]] = set()
    for choice in choices:
        fitting = {values for values in existing if _fits(info, values, choice)}
        if not fitting:
            raise FlussError(
                f"The lake of {table.table_path} has no partition {choice!r}", ErrorCode.PARTITION_NOT_EXISTS
            )
        chosen |= fitting
    return frozenset(chosen)


def _fits(info: TableInfo, values: Sequence[str], choice: str | PartitionSpec) -> bool:
    if isinstance(choice, str):
        return "$".join(values) == choice
    return choice.is_contained_in(PartitionSpec(dict(zip(info.partition_keys, values, strict=True))))


def union_snapshot(
    table: FlussTable,
    options: ReadOptions,
    columns: Sequence[str],
    row_filter: RowFilter | None,
    bucket_ids: Collection[int],
) -> Snapshot | None:
    """Decide what is read of a lake and of Fluss; None if all of it is in Fluss."""
    info = table.get_table_info()
    plan = union_plan_of(table, columns, row_filter, checked_choices(info, options.partitions))
    if plan is None:
        return None
    everywhere = {**plan.tails, **{bucket: (0, plan.latest[bucket]) for bucket in plan.in_fluss}}
    ranges = {bucket: both for bucket, both in everywhere.items() if bucket.bucket_id in bucket_ids}
    names = {id_: "$".join(values) if values else None for values, id_ in plan.partition_ids.items()}
    part = LakePart(plan.snapshot_id, frozenset(plan.partitions), frozenset(plan.in_fluss))
    return Snapshot(info.table_id, ranges, names, part)


def lake_files(
    table: FlussTable,
    snapshot: Snapshot,
    columns: Sequence[str],
    row_filter: RowFilter | None,
    bucket_ids: Collection[int],
) -> tuple[LakeRows, dict[TableBucket | tuple[tuple[str, ...], int], list[LakeFile]]]:
    """Return the files that are read, by bucket; those of partitions that Fluss does not have by values and number."""
    part, info = snapshot.lake, table.get_table_info()
    assert part is not None, "it is a snapshot of a lake"
    lake = lake_rows_of(table, part.snapshot_id, columns, row_filter)
    ids = {tuple(name.split("$")) if name else (): id_ for id_, name in snapshot.partition_names.items()}
    files: dict[TableBucket | tuple[tuple[str, ...], int], list[LakeFile]] = {}
    for file in lake.files():
        values = file.partition_values
        is_read = (part.partitions is None or values in part.partitions) and file.bucket_id in bucket_ids
        if not is_read or (row_filter is not None and not _may_match(info, values, row_filter)):
            continue
        if values not in ids:
            files.setdefault((values, file.bucket_id), []).append(file)
            continue
        bucket = TableBucket.new_with_partition(info.table_id, ids[values], file.bucket_id)
        if bucket not in part.in_fluss:
            files.setdefault(bucket, []).append(file)
    return lake, files


def _may_match(info: TableInfo, values: Sequence[str], row_filter: RowFilter) -> bool:
    return row_filter.may_match(dict(zip(info.partition_keys, values, strict=True)))


def check_not_in_lake(
    table: FlussTable, options: ReadOptions, is_log: bool, earliest: Mapping[TableBucket, int]
) -> None:
    """Refuse a table of which older records, or whole partitions, are only in its lake."""
    snapshot = lake_snapshot_of(table)
    if snapshot is None:
        return
    partition_ids: set[int | None] = {None}
    if table.get_table_info().is_partitioned():
        partition_ids = {partition.partition_id for partition in partitions_of(table)}
    for bucket in snapshot.get_table_buckets():
        # Partitions that were chosen by name exist: that was checked.
        is_gone = options.partitions is None and bucket.partition_id not in partition_ids
        if is_gone or (is_log and earliest.get(bucket, 0) > 0):
            missing = f"partition {bucket.partition_id}" if is_gone else f"the oldest records of {bucket}"
            raise FlussError(
                f"{table.table_path} has {missing} in its lake only, where this query cannot look for them; set "
                "'scan.mode'=fluss to read what Fluss still has, or lake to read the lake"
            )


def check_past_in_fluss(table: FlussTable, options: ReadOptions) -> None:
    """Refuse to read a table as it was if partitions of it are only in its lake.

    The tiered offsets of a lake name a partition that was dropped until the next round only, its files for ever.
    """
    if options.mode != "union" or options.view or options.partitions is not None:
        return
    names = only_in_lake_of(table).partitions
    if names:
        raise FlussError(
            f"{table.table_path} has partitions in its lake only, where a read of the past cannot look for them: "
            f"{shown_names(names)}; set 'scan.mode'=fluss to read what Fluss still has, or lake to read the lake"
        )
