"""Lake tables kept in shape: compaction, expiry and forgotten files, for a Fluss table, on demand or after its rounds.

Expiry keeps the snapshot that Fluss has as the newest, and everything younger than a minimum age: readers that began
before it was replaced go on with the snapshot that they began with.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fluss import FlussTable
from fluss.amounts import format_count
from fluss.client.bulk import lake_snapshot_of, reopened
from fluss.errors import FlussError
from fluss.lake.maintenance import ORPHAN_AGE_MS, expire_snapshots
from fluss.lake.maintenance import remove_orphans as remove_orphan_files
from fluss.schema.table_options import LAKE_AUTO_COMPACTION, LAKE_AUTO_EXPIRE_SNAPSHOT
from fluss.tiering.compaction import CompactionReport, compact
from fluss.tiering.round_plan import lake_tables_of
from fluss.tiering.task_runners import TaskRunner

MIN_AGE_S: Final = 3600.0
ORPHAN_AGE_S: Final = ORPHAN_AGE_MS / 1000
# Files of younger ones may belong to a round that is about to commit.
_ORPHAN_AGE_S_MIN: Final = 3600.0
# After rounds it is done for so many at a time: each time costs a look at all manifests.
_EXPIRE_AT_ONCE: Final = 20

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """What an expiry has removed."""

    table: str
    snapshots: int
    files: int

    def __str__(self) -> str:
        snapshots, files = format_count(self.snapshots, "snapshot"), format_count(self.files, "file")
        return f"{self.table}: {snapshots} expired, {files} deleted"


@dataclass(frozen=True, slots=True)
class OrphanReport:
    """Files that belong to no snapshot. With ``is_dry_run`` they are still there."""

    table: str
    files: tuple[str, ...]
    is_dry_run: bool

    def __str__(self) -> str:
        done = "found" if self.is_dry_run else "deleted"
        return f"{self.table}: {format_count(len(self.files), 'forgotten file')} {done}"


@dataclass(frozen=True, slots=True)
class UpkeepOptions:
    """What is done after rounds. Compaction and expiry are on by options of each table, expiry also for all of them."""

    expires: bool = False
    min_age_s: float = MIN_AGE_S


def expire(
    table: FlussTable,
    *,
    lake_properties: Mapping[str, str] | None = None,
    min_age_s: float = MIN_AGE_S,
    at_least: int = 1,
) -> ExpiryReport:
    """Remove the snapshots of a table's lake that are older than ``min_age_s``, and the files that only they had.

    Kept are the newest, that which Fluss knows, and those of branches and tags. With fewer than ``at_least`` to remove
    nothing is done.
    """
    if min_age_s < 0:
        raise FlussError(f"min_age_s must not be negative, got {min_age_s:g}")
    info = reopened(table).get_table_info()
    known = lake_snapshot_of(table)
    lake_table = lake_tables_of(info, lake_properties).load(info.table_path)
    older_than_ms = int((time.time() - min_age_s) * 1000)
    if sum(snapshot.timestamp_ms < older_than_ms for snapshot in lake_table.metadata.snapshots) < at_least:
        return ExpiryReport(str(info.table_path), 0, 0)
    keep_ids = () if known is None else (known.snapshot_id,)
    expired = expire_snapshots(lake_table, older_than_ms=older_than_ms, keep_ids=keep_ids)
    return ExpiryReport(str(info.table_path), len(expired.snapshot_ids), len(expired.deleted_files))


def remove_orphans(
    table: FlussTable,
    *,
    lake_properties: Mapping[str, str] | None = None,
    min_age_s: float = ORPHAN_AGE_S,
    dry_run: bool = False,
) -> OrphanReport:
    """Delete files of a table's lake that belong to no snapshot, such as those of rounds whose service was killed.

    Those younger than ``min_age_s`` are left alone: they may belong to a round that is about to commit.
    """
    if min_age_s < _ORPHAN_AGE_S_MIN and not dry_run:
        raise FlussError(
            f"min_age_s must be at least {_ORPHAN_AGE_S_MIN:g}, got {min_age_s:g}: younger files may belong to a round "
            "that is about to commit"
        )
    info = reopened(table).get_table_info()
    lake_table = lake_tables_of(info, lake_properties).load(info.table_path)
    files = remove_orphan_files(lake_table, age_ms=int(min_age_s * 1000), dry_run=dry_run)
    return OrphanReport(str(info.table_path), files, dry_run)


def after_round(
    table: FlussTable,
    options: UpkeepOptions,
    *,
    lake_properties: Mapping[str, str] | None = None,
    run_tasks: TaskRunner | None = None,
    still_ours: Callable[[], None] = lambda: None,
) -> CompactionReport | None:
    """Do what the options of a table ask for. What fails is logged, and tried again after the next round."""
    properties = table.get_table_info().properties
    report = None
    try:
        if LAKE_AUTO_COMPACTION.of(properties):
            report = compact(
                table,
                lake_properties=lake_properties,
                run_tasks=run_tasks,
                everything=False,
                still_ours=still_ours,
            )
            if report.snapshot_id is not None:
                logger.info("compacted %s", report)
        if options.expires or LAKE_AUTO_EXPIRE_SNAPSHOT.of(properties):
            expiry = expire(
                table, lake_properties=lake_properties, min_age_s=options.min_age_s, at_least=_EXPIRE_AT_ONCE
            )
            if expiry.snapshots:
                logger.info("%s", expiry)
    except Exception as error:
        logger.warning("the lake table of %s could not be maintained: %s", table.table_path, error)
    return report
