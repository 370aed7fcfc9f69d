"""What one round brings to the lake: splits of logs, from the offsets that Fluss knows, on one state of the lake table.

| table | known offset | log ends | split |
|---|---|---|---|
| any | any | at it, or at 0 | none |
| log | none | behind 0 | the log from its beginning |
| log | yes | behind it | the log from there |
| primary key | none | behind 0 | its rows at the end of the log; a short log is read from its beginning |
| primary key | yes | behind it | the changes from there, at most ``CHANGES_MAX`` |
| log | yes | begins behind it | the log from its beginning; what is between them is lost to the lake |
| primary key | yes | begins behind it | its rows at the end of the log, in place of all that the lake has of it |

A log begins behind the known offset if records expired while the lake was switched off: then they do not wait for it.

The order of the questions matters. Offsets are asked for first: records before them were written with schemas that the
table had by then, so the table, asked for next, has all their columns, and so has the lake table, to which columns are
added first. The lake table is loaded once, and the commit is made on that state or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from fluss import FlussTable
from fluss.client.bulk import (
    TieringCalls,
    admin_of,
    lake_snapshot_of,
    named_buckets_of,
    offsets_of,
    reopened,
    tiering_calls_of,
)
from fluss.errors import ErrorCode, FlussError
from fluss.lake.catalogs import catalog_properties
from fluss.lake.commits import OFFSETS_KEY, latest_tiered_snapshot, offsets_table_id
from fluss.lake.lake_tables import LakeTables
from fluss.lake.scans import LakeFile, LakeScan
from fluss.lake.schema_mapping import SYSTEM_COLUMNS
from fluss.schema.offsets import LakeSnapshot, OffsetSpec
from fluss.schema.table import TableBucket, TableInfo, spec_of_partition_name
from fluss.schema.table_options import LAKE_ENABLED, LAKE_FORMAT

# Changes of one bucket that a round takes at most: a task holds them in memory, one for each key.
CHANGES_MAX: Final = 4_000_000
# A bucket that was never tiered is read from its log if that is complete and no longer than this; then its rows have
# their true offsets. Otherwise its rows are asked for, which come without, but in any number.
_SHORT_LOG: Final = 1_000_000
# How often a plan is begun again because partitions are dropped while it is made, or the lake was ahead.
_TRIES_MAX: Final = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TieringSplit:
    """A part of a bucket that one task brings to the lake: records from ``start`` up to and without ``stop``.

    Of the kind ``rows`` it is the rows after all changes before ``stop``; of the kind ``anew`` the same, in place of
    all that the lake has of the bucket.
    """

    bucket: TableBucket
    partition_values: tuple[str, ...]
    start: int
    stop: int
    kind: Literal["log", "changes", "rows", "anew"] = "log"
    # What the lake has of the bucket, for kinds that delete older rows.
    lake_files: tuple[LakeFile, ...] = ()

    @property
    def weight(self) -> int:
        """About how many rows there are."""
        return self.stop - self.start


@dataclass(frozen=True)
class RoundPlan:
    """One round of one table, before anything of it is done."""

    table: FlussTable
    lake_table: IcebergTable
    known: LakeSnapshot | None
    splits: tuple[TieringSplit, ...]
    # Where the logs of all buckets ended.
    latest: Mapping[TableBucket, int]
    # Where those begin that have something new.
    earliest: Mapping[TableBucket, int]
    # Whether some bucket has more than this round takes.
    leaves_rest: bool

    @property
    def info(self) -> TableInfo:
        return self.table.get_table_info()

    def known_offset(self, bucket: TableBucket) -> int | None:
        """Return the offset up to which the lake had a bucket when the round was planned."""
        return None if self.known is None else self.known.get_bucket_offset(bucket)

    def expired(self, bucket: TableBucket) -> tuple[int, int] | None:
        """Return from where to where the log of a bucket had expired before a round came to it, None if nothing had."""
        known, earliest = self.known_offset(bucket), self.earliest.get(bucket, 0)
        return None if known is None or earliest <= known else (known, earliest)


def lake_tables_of(info: TableInfo, own: Mapping[str, str] | None = None) -> LakeTables:
    """Open the catalog of a table's lake; ``own`` are credentials and whatever else the server does not tell."""
    lake_format = LAKE_FORMAT.of(info.properties)
    if lake_format is None or lake_format != "iceberg":
        raise FlussError(
            f"The lake of {info.table_path} has the format {lake_format or 'none'}; only iceberg can be tiered here",
            ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
        )
    return LakeTables.open(catalog_properties(info.properties, own))


def plan_round(table: FlussTable, own: Mapping[str, str] | None = None) -> RoundPlan:
    """Plan a round of a table as it is now. A lake that is ahead of Fluss is registered first.

    Raises a FlussError: code 7 if the table is gone or its lake table is, 40 if it has no lake.
    """
    table_id = table.get_table_info().table_id
    for _ in range(_TRIES_MAX):
        try:
            plan = _Planner(table, own).plan()
        except FlussError as error:
            # A partition was dropped between two questions.
            if error.error_code != ErrorCode.PARTITION_NOT_EXISTS:
                raise
            continue
        if plan is None:
            continue
        if plan.info.table_id != table_id:
            raise FlussError(
                f"{table.table_path} was dropped and created again; tier the new table", ErrorCode.TABLE_NOT_EXIST
            )
        return plan
    raise FlussError(f"{table.table_path} changes faster than a round of tiering can be planned; try again")


class _Planner:
    def __init__(self, table: FlussTable, own: Mapping[str, str] | None) -> None:
        self._before = table
        self._own = own

    def plan(self) -> RoundPlan | None:
        """Return the plan, None if the lake was ahead and all has to be asked again."""
        names = named_buckets_of(self._before)
        latest = offsets_of(self._before, list(names), OffsetSpec.latest())
        table = reopened(self._before)
        info = table.get_table_info()
        if not LAKE_ENABLED.of(info.properties):
            raise FlussError(
                f"{info.table_path} has no lake; set its property '{LAKE_ENABLED.key}' to true",
                ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION,
            )
        known = lake_snapshot_of(table)
        lake_table = lake_tables_of(info, self._own).load(info.table_path)
        if recovered(tiering_calls_of(admin_of(table)), info, lake_table, known):
            return None
        _check_columns(info, lake_table)
        plan = RoundPlan(table, lake_table, known, (), latest, {}, False)
        due = {
            bucket: plan.known_offset(bucket)
            for bucket, end in latest.items()
            if end > (plan.known_offset(bucket) or 0)
        }
        # From remote storage on, as far as a log is there.
        earliest = offsets_of(table, list(due), OffsetSpec.earliest()) if due else {}
        plan = replace(plan, earliest=earliest)
        keys = info.partition_keys
        values = {
            bucket: () if name is None else tuple(spec_of_partition_name(name, keys).spec_map.values())
            for bucket, name in names.items()
            if bucket in due
        }
        splits = self._key_splits(plan, due, values) if info.has_primary_key() else self._log_splits(plan, due, values)
        leaves_rest = any(split.stop < latest[split.bucket] for split in splits)
        return replace(plan, splits=tuple(splits), leaves_rest=leaves_rest)

    def _log_splits(
        self,
        plan: RoundPlan,
        due: Mapping[TableBucket, int | None],
        values: Mapping[TableBucket, tuple[str, ...]],
    ) -> list[TieringSplit]:
        return [
            TieringSplit(bucket, values[bucket], start, plan.latest[bucket])
            for bucket, known in due.items()
            if (start := max(known or 0, plan.earliest[bucket])) < plan.latest[bucket]
        ]

    def _key_splits(
        self,
        plan: RoundPlan,
        due: Mapping[TableBucket, int | None],
        values: Mapping[TableBucket, tuple[str, ...]],
    ) -> list[TieringSplit]:
        files = _files_by_bucket(plan.lake_table) if due else {}
        splits = []
        for bucket, known in due.items():
            place, stop = values[bucket], plan.latest[bucket]
            lake_files = tuple(files.get((place, bucket.bucket_id), ()))
            if plan.expired(bucket) is not None:
                splits.append(TieringSplit(bucket, place, 0, stop, "anew", lake_files))
            elif known is None and (plan.earliest[bucket] > 0 or stop > _SHORT_LOG):
                splits.append(TieringSplit(bucket, place, 0, stop, "rows", lake_files))
            else:
                start = known or 0
                splits.append(TieringSplit(bucket, place, start, min(stop, start + CHANGES_MAX), "changes", lake_files))
        return splits


def _check_columns(info: TableInfo, lake_table: IcebergTable) -> None:
    present = {field.name for field in lake_table.schema().fields}
    missing = [name for name in [*info.schema.column_names, *SYSTEM_COLUMNS] if name not in present]
    former = {field.name for schema in lake_table.metadata.schemas for field in schema.fields}
    if missing and missing[0] in former:
        raise FlussError(
            f"The lake table of {info.table_path} has no column '{missing[0]}' any more: it was removed or renamed "
            "there. Give a renamed one its name again. One that was removed and is added again is null in all rows "
            "that the lake has; to have their values, drop the lake table and switch 'table.datalake.enabled' off and "
            "on, which begins a new one with everything that Fluss still has"
        )
    if missing:
        raise FlussError(
            f"The lake table of {info.table_path} has no column '{missing[0]}'; add it there, with its type and behind "
            "the columns of the table. It is null in the rows that the lake has already"
        )
    known = {*info.schema.column_names, *SYSTEM_COLUMNS}
    foreign = [field.name for field in lake_table.schema().fields if field.required and field.name not in known]
    if foreign:
        raise FlussError(
            f"The lake table of {info.table_path} has a column '{foreign[0]}' that must have values, and Fluss has "
            "none for it; make it optional"
        )


def _files_by_bucket(lake_table: IcebergTable) -> dict[tuple[tuple[str, ...], int], list[LakeFile]]:
    found: dict[tuple[tuple[str, ...], int], list[LakeFile]] = {}
    for file in LakeScan(lake_table).files():
        found.setdefault((file.partition_values, file.bucket_id), []).append(file)
    return found


# Recovery


def recovered(calls: TieringCalls, info: TableInfo, lake_table: IcebergTable, known: LakeSnapshot | None) -> bool:
    """Register the newest snapshot that a tiering service made, if Fluss does not know it; return whether it was so.

    A service has died between its commit to the lake and that to Fluss, or is about to make the second. Its snapshot
    says in which file its offsets are.
    """
    tiered = latest_tiered_snapshot(lake_table)
    if known is not None:
        if tiered is not None and known.snapshot_id == tiered.snapshot_id:
            return False
        snapshot = _known_snapshot(info, lake_table, known)
        if tiered is None or (tiered.sequence_number or 0) <= (snapshot.sequence_number or 0):
            return False
    if tiered is None:
        return False
    path = (tiered.summary or {}).get(OFFSETS_KEY)
    if path is None or "{" in path:
        raise FlussError(
            f"The lake snapshot {tiered.snapshot_id} of {info.table_path} does not say in which file its offsets are; "
            "it was made by a service before 0.9, whose interrupted rounds cannot be taken over",
            ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        )
    if offsets_table_id(path) not in (None, info.table_id):
        raise FlussError(
            f"The lake table of {info.table_path} has the rows of another table of this name, which was dropped; move "
            f"the lake table away, then switch '{LAKE_ENABLED.key}' off and on",
            ErrorCode.LAKE_TABLE_ALREADY_EXIST,
        )
    calls.commit(info.table_id, tiered.snapshot_id, path)
    logger.warning(
        "the lake has snapshot %d of %s, which Fluss did not know: a service was interrupted; it is registered now",
        tiered.snapshot_id,
        info.table_path,
    )
    return True


def _known_snapshot(info: TableInfo, lake_table: IcebergTable, known: LakeSnapshot) -> Snapshot:
    """Return the snapshot that Fluss has as the newest. Raises code 53 if the lake table has lost it.

    What a round adds goes behind the current state of the lake table. If that is older than what Fluss knows, because
    somebody went back to an earlier snapshot, records in between would be in neither of them.
    """
    metadata = lake_table.metadata
    wanted = metadata.snapshot_by_id(known.snapshot_id)
    if wanted is None:
        raise FlussError(
            f"Fluss has the lake snapshot {known.snapshot_id} of {info.table_path} as its newest, and the lake table "
            "does not have it: it was expired, or the lake table is another one. To begin the lake anew, move the lake "
            f"table away, then switch '{LAKE_ENABLED.key}' off and on",
            ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        )
    snapshot = metadata.current_snapshot()
    while snapshot is not None and (snapshot.sequence_number or 0) > (wanted.sequence_number or 0):
        parent_id = snapshot.parent_snapshot_id
        parent = None if parent_id is None else metadata.snapshot_by_id(parent_id)
        if parent is None and parent_id is not None:
            # Expired, so that it cannot be told any more.
            return wanted
        snapshot = parent
    if snapshot is None or snapshot.snapshot_id != wanted.snapshot_id:
        raise FlussError(
            f"The lake table of {info.table_path} was set back behind the snapshot {known.snapshot_id}, which Fluss "
            "has as its newest: records would be missing. Set its branch main to that snapshot again",
            ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        )
    return wanted


# Tasks


def packed(splits: Sequence[TieringSplit], parallelism: int, *, task_rows: int) -> list[tuple[TieringSplit, ...]]:
    """Share splits out among tasks of about ``task_rows`` rows, or as many as there are cores, whichever is more.

    A task has a price of its own, so small splits share one. Ranges of logs are laid end to end and cut; what must stay
    whole goes to the task that has the least so far, the largest first.
    """
    total = sum(split.weight for split in splits)
    if not splits:
        return []
    count = max(-(-total // task_rows), min(parallelism, -(-total // _SMALL_TASK_ROWS)))
    if count > parallelism:
        count = -(-count // parallelism) * parallelism
    if all(split.kind == "log" for split in splits):
        return _cut(splits, -(-total // count))
    tasks: list[list[TieringSplit]] = [[] for _ in range(min(count, len(splits)))]
    weights = [0] * len(tasks)
    for split in sorted(splits, key=lambda each: -each.weight):
        lightest = weights.index(min(weights))
        tasks[lightest].append(split)
        weights[lightest] += split.weight
    return [tuple(task) for task in tasks if task]


# A task takes tens of milliseconds to begin; with fewer rows than this for each it is better to have fewer tasks.
_SMALL_TASK_ROWS: Final = 100_000


def _cut(splits: Sequence[TieringSplit], rows: int) -> list[tuple[TieringSplit, ...]]:
    tasks: list[tuple[TieringSplit, ...]] = []
    task: list[TieringSplit] = []
    left = rows
    for split in splits:
        start = split.start
        while start < split.stop:
            stop = min(split.stop, start + left)
            task.append(TieringSplit(split.bucket, split.partition_values, start, stop))
            left -= stop - start
            start = stop
            if not left:
                tasks.append(tuple(task))
                task, left = [], rows
    if task:
        tasks.append(tuple(task))
    return tasks
