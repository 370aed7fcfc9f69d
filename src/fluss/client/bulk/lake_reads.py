"""Reads of lakes for pipelines: what of a table is in its lake, and the rows of a bucket that is in both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from fluss.client.bulk.ranges import LogRange, read_ranges, scan_columns
from fluss.client.bulk.table_facts import offsets_of, partitions_and_dropped_of
from fluss.client.fluss_table import FlussTable, context_of
from fluss.client.kernel.decode import ScanColumns
from fluss.client.scan.changed_rows import ChangedRows, chosen_columns
from fluss.client.scan.changelog_fold import ChangelogFold
from fluss.client.scan.union_plan import UnionPlan, has_lake, lake_catalog, lake_rows, lake_table, plan_union
from fluss.errors import ErrorCode, FlussError
from fluss.row.arrow_arrays import narrowest_column
from fluss.schema.offsets import OffsetSpec
from fluss.schema.schema import shown_names
from fluss.schema.table import PartitionSpec, TableBucket, TableInfo

if TYPE_CHECKING:
    from fluss.filter.row_filter import RowFilter
    from fluss.lake.fluss_rows import LakeRows
    from fluss.lake.scans import LakeFile


def union_plan_of(
    table: FlussTable,
    columns: Sequence[str],
    row_filter: RowFilter | None = None,
    partitions: Sequence[str | PartitionSpec] | None = None,
) -> UnionPlan | None:
    """Plan a read of a table and its lake; None if it has no lake, or the lake nothing yet.

    Times are meant to be cut to microseconds. Columns are those of ``plan.lake``, behind which is the primary key.
    """
    context = context_of(table)
    if not has_lake(context.cluster, context.info):
        return None
    wanted = _columns(context.info, columns, row_filter)
    planning = plan_union(context.cluster, context.runtime, context.info, wanted, partitions, is_cut=True)
    return context.runtime.run(planning)


class OnlyInLake(NamedTuple):
    """What the lake of a table has and Fluss has not (any more)."""

    # Names of partitions that Fluss does not have.
    partitions: Sequence[str] = ()
    # And of those that were dropped and created again: the lake may have their rows of before.
    recreated: Sequence[str] = ()
    # Buckets of a log table whose oldest records Fluss does not have.
    buckets: Sequence[TableBucket] = ()

    def __str__(self) -> str:
        names = [*self.partitions, *self.recreated]
        if names:
            return f"rows of the partition{'s' if len(names) > 1 else ''} {shown_names(names)}"
        return "its oldest records"

    def __bool__(self) -> bool:
        return any(map(bool, self._asdict().values()))


def only_in_lake_of(table: FlussTable) -> OnlyInLake:
    """Look for what only the lake of a table has; nothing with ``client.lake.read`` = off.

    Not every server tells which partitions were created again.
    """
    info = context_of(table).info
    if info.has_primary_key() and not info.is_partitioned():
        # A bucket that is there has all its rows.
        return OnlyInLake()
    plan = union_plan_of(table, [narrowest_column(info.schema)])
    if plan is None:
        return OnlyInLake()
    partitions = sorted("$".join(values) for values in plan.partitions if values not in plan.partition_ids)
    recreated: list[str] = []
    if info.is_partitioned():
        dropped = {each.info.partition_name for each in partitions_and_dropped_of(table, 0)[1]}
        recreated = sorted({"$".join(file.partition_values) for file in plan.files} & dropped - set(partitions))
    if info.has_primary_key():
        return OnlyInLake(partitions, recreated)
    earliest = offsets_of(table, plan.latest, OffsetSpec.earliest())
    buckets: dict[TableBucket, None] = {}
    for file in plan.files:
        bucket = plan.bucket_of(file)
        if bucket is not None and _first_offset(plan.lake, file) < earliest[bucket]:
            buckets[bucket] = None
    return OnlyInLake(partitions, recreated, list(buckets))


def _first_offset(lake: LakeRows, file: LakeFile) -> int:
    """Return the lowest offset of the records in a file: 0 if the file does not tell."""
    from fluss.lake.schema_mapping import OFFSET_COLUMN

    bounds = lake.number_bounds(file, OFFSET_COLUMN)
    return 0 if bounds is None else bounds[0]


def lake_rows_of(
    table: FlussTable, snapshot_id: int, columns: Sequence[str], row_filter: RowFilter | None = None
) -> LakeRows:
    """Open the lake of a table at a snapshot; code 53 if it has no such snapshot (any more)."""
    context = context_of(table)
    catalog = context.runtime.run(lake_catalog(context.cluster, context.info))
    return lake_rows(catalog, context.info, _columns(context.info, columns, row_filter), snapshot_id)


def lake_snapshot_at(table: FlussTable, time_ms: int) -> int:
    """Return the snapshot that the lake of a table had at a time; code 53 if it had none, or has forgotten it."""
    context = context_of(table)
    catalog = context.runtime.run(lake_catalog(context.cluster, context.info))
    snapshot = lake_table(catalog, context.info).snapshot_as_of_timestamp(time_ms)
    if snapshot is None:
        raise FlussError(
            f"The lake of {table.table_path} has no snapshot of {time_ms} ms or before (any more)",
            ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        )
    return int(snapshot.snapshot_id)


def rows_with_changes(
    table: FlussTable,
    lake: LakeRows,
    files: Iterable[LakeFile],
    changes: LogRange,
    columns: Sequence[str],
    *,
    idle_timeout_s: float | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a bucket of a primary-key table: what files of the lake have, with changes since applied."""
    info = context_of(table).info
    wanted = scan_columns(info, columns)
    key_names = info.physical_primary_keys
    with_keys = wanted.with_columns(key_names)
    fold = ChangelogFold(wanted, with_keys, key_names, keeps_deletes=True)
    names = [column.name for column in with_keys.columns]
    for run in read_ranges(table, [changes], columns=names, idle_timeout_s=idle_timeout_s):
        fold.add(run)
    changed = ChangedRows(fold, changes.bucket, with_keys, key_names)
    if changed.number_key is None:
        yield from changed.unchanged(lake.batches(files), wanted)
    else:
        unchanged = lake.batches(files, finder=lambda _: lambda rows, _: changed.find(rows))
        yield from (chosen_columns(rows, wanted) for rows in unchanged)
    yield from changed.rows(wanted)


def last_rows(
    table: FlussTable, changes: Sequence[LogRange], columns: Sequence[str], *, idle_timeout_s: float | None = None
) -> tuple[pa.Table, pa.Table]:
    """Return the primary keys that have changed in buckets, also of rows that are deleted, and the rows that are there.

    ``changes`` are parts of the changelog of a primary-key table, one for each bucket; all of them are in memory.
    """
    info = context_of(table).info
    wanted = scan_columns(info, columns)
    with_keys = wanted.with_columns(info.primary_keys)
    fold = ChangelogFold(wanted, with_keys, info.physical_primary_keys, keeps_deletes=True)
    names = [column.name for column in with_keys.columns]
    for run in read_ranges(table, changes, columns=names, idle_timeout_s=idle_timeout_s):
        fold.add(run)
    key_schema = pa.schema([with_keys.arrow_schema.field(name) for name in info.primary_keys])
    keys = [key_schema.empty_table()]
    rows: list[pa.RecordBatch] = []
    for each in changes:
        changed = fold.changes(each.bucket)
        if changed is not None:
            key_columns = changed.select([str(names.index(name)) for name in info.primary_keys])
            keys.append(pa.Table.from_arrays(key_columns.columns, schema=key_schema))
        rows += ChangedRows(fold, each.bucket, with_keys, info.physical_primary_keys).rows(wanted)
    return pa.concat_tables(keys), pa.Table.from_batches(rows, wanted.arrow_schema)


def _columns(info: TableInfo, columns: Sequence[str], row_filter: RowFilter | None) -> ScanColumns:
    positions = [info.schema.index_of(name) for name in columns]
    return ScanColumns(info.schema_id, info.schema, positions, row_filter)
