"""What is read from the lake of a table, and what from Fluss, so that together it is the whole table once.

The lake has the state of each bucket before one offset, its tiered offset. What comes after is read from Fluss:

| bucket | log table | table with a primary key |
|---|---|---|
| has a tiered offset | files, and the log from it on | files, and the changes from it on |
| has none | the log from its beginning | its rows in Fluss |
| its partition is only in the lake | files | files |
| changes since the tiered offset are gone | | its rows in Fluss |

The lake has times in microseconds. Where columns are wanted that are finer, Fluss is read as far back as it goes: all
rows of a primary key, and the whole log that is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.decode import ScanColumns
from fluss.client.kernel.leaders import find_unknown_leaders
from fluss.client.kernel.runtime import Runtime
from fluss.client.kernel.table_calls import (
    bucket_offsets,
    fresh_table_info,
    partitions_and_dropped,
    partitions_of,
    readable_lake_snapshot,
)
from fluss.client.scan.table_buckets import chosen_partitions
from fluss.config_option import parsed_properties
from fluss.errors import FlussError
from fluss.schema.offsets import LakeSnapshot, OffsetSpec
from fluss.schema.table import PartitionInfo, PartitionSpec, TableBucket, TableInfo
from fluss.schema.table_options import LAKE_ENABLED, LAKE_FORMAT, LakeFormat

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

    from fluss.lake.fluss_rows import LakeRows
    from fluss.lake.scans import LakeFile

# How often a plan is made anew when the lake has gone on so far meanwhile that Fluss no longer has what came after.
_ATTEMPTS: Final = 3
# A partition that is only in the lake has no id.
_NO_PARTITION_ID: Final = -1


@dataclass(frozen=True)
class UnionPlan:
    """A read of one table: of its lake at one snapshot, and of Fluss up to now."""

    info: TableInfo
    snapshot_id: int
    lake: LakeRows
    # In the order in which they are to be read, those of a bucket together.
    files: Sequence[LakeFile]
    # Logs and changelogs to be read, from where to where; those with nothing in them are left out.
    tails: Mapping[TableBucket, tuple[int, int]]
    # Buckets whose rows Fluss has and the lake has not.
    in_fluss: Sequence[TableBucket] = ()
    # Where the lake has rows that are read from Fluss nevertheless: files are read up to these offsets only.
    offset_stops: Mapping[TableBucket, int] = field(default_factory=dict)
    # Where the logs of all buckets end that Fluss has.
    latest: Mapping[TableBucket, int] = field(default_factory=dict)
    # The values of all partitions that are read, whether or not Fluss has them.
    partitions: Collection[tuple[str, ...]] = ((),)
    # Partition values of those that there are in Fluss, with their ids.
    partition_ids: Mapping[tuple[str, ...], int | None] = field(default_factory=dict)

    def bucket_of(self, file: LakeFile) -> TableBucket | None:
        """Return the bucket that a file belongs to, None if Fluss does not have it any more."""
        if file.partition_values not in self.partition_ids:
            return None
        partition_id = self.partition_ids[file.partition_values]
        return TableBucket.new_with_partition(self.info.table_id, partition_id, file.bucket_id)


def has_lake(cluster: Cluster, info: TableInfo) -> bool:
    """Whether reads of a table ask what its lake has."""
    return cluster.config.lake_read == "union" and bool(LAKE_ENABLED.of(info.properties))


async def plan_union(
    cluster: Cluster,
    runtime: Runtime,
    info: TableInfo,
    columns: ScanColumns,
    partitions: Collection[str | PartitionSpec] | None = None,
    *,
    is_cut: bool = False,
) -> UnionPlan | None:
    """Plan a read of a table that has a lake; None if all of it is in Fluss. On the loop of the cluster.

    ``columns`` are those that are wanted, with the filter of the rows. Raises code 36 for a chosen partition that is
    neither in Fluss nor in the lake, and code 40 or 53 if the lake cannot be opened. ``is_cut`` says that the reader
    cuts times to microseconds anyway, as the lake does.
    """
    planner = _Planner(cluster, runtime, info, columns, partitions, is_cut)
    for _ in range(_ATTEMPTS - 1):
        try:
            return await planner.plan()
        except _LakeMovedError:
            continue
    return await planner.plan(is_last=True)


class _LakeMovedError(Exception):
    """Records behind the snapshot are not in Fluss any more. There may be a newer snapshot that has them."""


@dataclass
class _Planner:
    cluster: Cluster
    runtime: Runtime
    info: TableInfo
    columns: ScanColumns
    choices: Collection[str | PartitionSpec] | None
    is_cut: bool

    async def plan(self, *, is_last: bool = False) -> UnionPlan | None:
        info = self.info
        # Before the snapshot: a partition that is dropped in between is in one of the answers.
        existing = await partitions_of(self.cluster, info) if info.is_partitioned() else []
        obstacle = self._obstacle()
        if obstacle is not None:
            snapshot = await readable_lake_snapshot(self.cluster, info.table_path)
            if snapshot is not None:
                await self._require_all_in_fluss(existing, snapshot, obstacle)
            return None
        snapshot, catalog = await asyncio.gather(
            readable_lake_snapshot(self.cluster, info.table_path), lake_catalog(self.cluster, info)
        )
        if snapshot is None:
            return None
        opening = self.runtime.offload(self._open_lake, catalog, snapshot.snapshot_id)
        if info.is_partitioned():
            lake, files, places = await opening
            partition_ids = self._chosen(existing, places)
            earliest, latest = await self._offsets(partition_ids)
        else:
            partition_ids = self._chosen(existing, ())
            (lake, files, _), (earliest, latest) = await asyncio.gather(opening, self._offsets(partition_ids))
        plan = UnionPlan(
            info,
            snapshot.snapshot_id,
            lake,
            [file for file in files if file.partition_values in partition_ids],
            {},
            latest=latest,
            partitions=list(partition_ids),
            partition_ids={values: id_ for values, id_ in partition_ids.items() if id_ != _NO_PARTITION_ID},
        )
        tiered = {bucket: snapshot.get_bucket_offset(bucket) for bucket in latest}
        for bucket, offset in tiered.items():
            if offset is not None and offset < earliest[bucket] and not is_last:
                raise _LakeMovedError
            if offset is not None and offset > latest[bucket]:
                raise FlussError(
                    f"The lake has {bucket} of {info.table_path} up to offset {offset}, and its log ends at "
                    f"{latest[bucket]}: records of Fluss are lost. Set 'client.lake.read' to off to read what is there"
                )
        if info.has_primary_key():
            return self._with_changes(plan, tiered, earliest, latest)
        return self._with_logs(plan, tiered, earliest, latest)

    async def _offsets(
        self, partition_ids: Mapping[tuple[str, ...], int | None]
    ) -> tuple[dict[TableBucket, int], dict[TableBucket, int]]:
        """Ask where the logs of all buckets begin and end that Fluss has of these partitions."""
        info = self.info
        buckets = [
            TableBucket.new_with_partition(info.table_id, partition_id, bucket_id)
            for partition_id in partition_ids.values()
            if partition_id != _NO_PARTITION_ID
            for bucket_id in range(info.num_buckets)
        ]
        await find_unknown_leaders(self.cluster, info.table_path, buckets)
        ends = (OffsetSpec.earliest(), OffsetSpec.latest())
        earliest, latest = await asyncio.gather(
            *(bucket_offsets(self.cluster, info.table_path, buckets, end) for end in ends)
        )
        # In the order of the buckets, which is that of the rows.
        return earliest, {bucket: latest[bucket] for bucket in buckets}

    def _with_logs(
        self,
        plan: UnionPlan,
        tiered: Mapping[TableBucket, int | None],
        earliest: Mapping[TableBucket, int],
        latest: Mapping[TableBucket, int],
    ) -> UnionPlan:
        starts = {bucket: max(offset or 0, earliest[bucket]) for bucket, offset in tiered.items()}
        stops: dict[TableBucket, int] = {}
        if not self._is_exact():
            stops = {bucket: at for bucket, at in earliest.items() if at < starts[bucket]}
            starts |= stops
        tails = {bucket: (start, latest[bucket]) for bucket, start in starts.items() if start < latest[bucket]}
        return _changed(plan, tails=tails, offset_stops=stops)

    def _with_changes(
        self,
        plan: UnionPlan,
        tiered: Mapping[TableBucket, int | None],
        earliest: Mapping[TableBucket, int],
        latest: Mapping[TableBucket, int],
    ) -> UnionPlan:
        with_files = {plan.bucket_of(file) for file in plan.files}
        tails: dict[TableBucket, tuple[int, int]] = {}
        in_fluss: list[TableBucket] = []
        for bucket, offset in tiered.items():
            # A partition that was dropped and created again has rows in the lake that are older than itself.
            start = 0 if offset is None and bucket in with_files else offset
            if start is None or start < earliest[bucket] or not self._is_exact():
                in_fluss.append(bucket)
            elif start < latest[bucket]:
                tails[bucket] = start, latest[bucket]
        replaced = set(in_fluss)
        files = [file for file in plan.files if plan.bucket_of(file) not in replaced]
        return _changed(plan, tails=tails, in_fluss=in_fluss, files=files)

    def _is_exact(self) -> bool:
        """Whether the lake has the values of all columns that are read as Fluss has them."""
        from fluss.lake.schema_mapping import is_exact

        needed = () if self.is_cut else self.columns.with_filter_columns().columns
        keys = [self.info.schema.column(name) for name in self.info.primary_keys]
        return all(is_exact(column.data_type) for column in (*needed, *keys))

    # The lake

    def _obstacle(self) -> str | None:
        """Return why the lake cannot be read here, None if it can."""
        lake_format = LAKE_FORMAT.of(self.info.properties)
        if lake_format not in (None, LakeFormat.ICEBERG):
            return f"its lake is of the format {lake_format}, which cannot be read here"
        if find_spec("pyiceberg") is None:
            return 'reading a lake needs pyiceberg: pip install "flussbett[lake]"'
        return None

    def _open_lake(
        self, properties: Mapping[str, str], snapshot_id: int
    ) -> tuple[LakeRows, list[LakeFile], set[tuple[str, ...]]]:
        """Open the lake table, and return its files and the partitions that it has. Blocks."""
        lake = lake_rows(properties, self.info, self.columns, snapshot_id)
        files = lake.files()
        # A partition may exist and have no file in which the filter could find something.
        all_files = files
        if self.choices is not None and self.columns.row_filter is not None:
            all_files = lake_rows(properties, self.info, self.columns, snapshot_id, is_filtered=False).files()
        return lake, files, {file.partition_values for file in all_files}

    def _chosen(
        self, existing: Sequence[PartitionInfo], places: Collection[tuple[str, ...]]
    ) -> dict[tuple[str, ...], int | None]:
        """Return the values of the partitions that are to be read, with their ids."""
        keys = self.info.partition_keys
        if not keys:
            return {(): None}
        by_values = {tuple(each.get_partition_spec().spec_map[key] for key in keys): each for each in existing}
        for values in sorted(place for place in places if place not in by_values):
            spec = PartitionSpec(dict(zip(keys, values, strict=True)))
            by_values[values] = PartitionInfo._create(_NO_PARTITION_ID - len(by_values), spec, keys)
        chosen = {each.partition_id for each in chosen_partitions(self.info, list(by_values.values()), self.choices)}
        row_filter = self.columns.row_filter
        return {
            values: max(each.partition_id, _NO_PARTITION_ID)
            for values, each in by_values.items()
            if each.partition_id in chosen
            and (row_filter is None or row_filter.may_match(each.get_partition_spec().spec_map))
        }

    async def _require_all_in_fluss(
        self, existing: Sequence[PartitionInfo], snapshot: LakeSnapshot, obstacle: str
    ) -> None:
        """Refuse a table of which something is only in the lake, which cannot be read."""
        info, path = self.info, self.info.table_path
        ids: list[int | None] = [each.partition_id for each in existing] if info.is_partitioned() else [None]
        missing = ""
        if info.is_partitioned():
            known = {bucket.partition_id for bucket in snapshot.get_table_buckets()}
            _, dropped = await partitions_and_dropped(self.cluster, path, info.partition_keys, 0)
            missing = "partitions" if known - set(ids) or dropped else ""
        if not missing and not info.has_primary_key():
            buckets = [
                TableBucket.new_with_partition(info.table_id, partition_id, bucket_id)
                for partition_id in ids
                for bucket_id in range(info.num_buckets)
            ]
            await find_unknown_leaders(self.cluster, path, buckets)
            earliest = await bucket_offsets(self.cluster, path, buckets, OffsetSpec.earliest())
            missing = "older records" if any(earliest.values()) else ""
        if missing:
            raise FlussError(
                f"{path} has {missing} that are only in its lake, and {obstacle}. Or set 'client.lake.read' to off, to "
                "read what Fluss has"
            )


async def lake_catalog(cluster: Cluster, info: TableInfo) -> dict[str, str]:
    """Return what the catalog of a table's lake is opened with."""
    from fluss.lake.catalogs import catalog_properties

    # What a table was opened with does not say where its lake is.
    told = await fresh_table_info(cluster, info.table_path)
    return catalog_properties(told.properties, parsed_properties(cluster.config.lake_properties))


def lake_rows(
    catalog: Mapping[str, str], info: TableInfo, columns: ScanColumns, snapshot_id: int, *, is_filtered: bool = True
) -> LakeRows:
    """Open the lake of a table at a snapshot, for columns, their filter and the primary key. Blocks."""
    from fluss.lake.fluss_rows import LakeRows, reading_lake

    table = lake_table(catalog, info)
    needed = columns.with_filter_columns().with_columns(info.physical_primary_keys)
    fields = ScanColumns(needed.schema_id, needed.schema, _unique_positions(needed)).arrow_schema
    row_filter = columns.row_filter if is_filtered else None
    predicate = None if row_filter is None else row_filter.bound_predicate()
    with reading_lake(table):
        return LakeRows(table, snapshot_id, info.schema, fields, predicate)


def lake_table(catalog: Mapping[str, str], info: TableInfo) -> IcebergTable:
    """Return the lake table of a table as it is now. Blocks."""
    return _lake_tables(tuple(sorted(catalog.items()))).load(info.table_path)


def _changed(plan: UnionPlan, **changes: Any) -> UnionPlan:
    return UnionPlan(**{**plan.__dict__, **changes})


def _unique_positions(columns: ScanColumns) -> list[int] | None:
    return None if columns.positions is None else list(dict.fromkeys(columns.positions))


@lru_cache(maxsize=8)
def _lake_tables(properties: tuple[tuple[str, str], ...]) -> Any:
    """Return the tables of a catalog, which is opened once: a service may have to be asked, or logged in to."""
    from fluss.lake.lake_tables import LakeTables

    return LakeTables.open(dict(properties))
