"""One round of one table: planned, written by tasks, committed.

from fluss.tiering.rounds import tier

report = tier(table)        # a fluss.FlussTable; tasks run in this process
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fluss import FlussTable
from fluss.amounts import format_count
from fluss.client.bulk import offsets_of
from fluss.errors import ErrorCode, FlussError
from fluss.lake.data_files import FileLayout
from fluss.lake.scans import detached
from fluss.schema.offsets import OffsetSpec
from fluss.schema.table import TableBucket
from fluss.tiering.key_work import KeyWork
from fluss.tiering.round_commit import Collected, RoundCommit, RoundLostError, Step
from fluss.tiering.round_plan import RoundPlan, packed, plan_round
from fluss.tiering.split_result import Deadline
from fluss.tiering.split_work import RoundWork
from fluss.tiering.task_runners import RunHere, TaskRunner

# About how many rows a task brings to the lake, where there are more tasks than cores.
TASK_ROWS: Final = 4_000_000
# How often a round is planned again because another writer of the lake table was faster.
_TRIES_MAX: Final = 3
# Buckets that a warning names.
_SHOWN_MAX: Final = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What a round has done. ``snapshot_id`` is None if there was nothing to do."""

    table: str
    table_id: int
    snapshot_id: int | None
    rows: int
    """Rows that were written."""
    deleted_rows: int
    """Older rows of the same keys that were deleted."""
    data_files: int
    delete_files: int
    bytes: int
    splits: int
    tasks: int
    lag_rows: int
    """Records that have come since, or were left for the next round."""
    lag_s: float | None
    """How old the newest record was that the lake has now, None if the round had none."""
    expired_rows: int
    """Records of a log table that had expired before the round came to them: the lake is without them."""
    is_complete: bool
    """Whether everything was brought to the lake that was there when the round was planned."""
    plan_s: float
    write_s: float
    commit_s: float

    @property
    def seconds(self) -> float:
        """All of its time."""
        return self.plan_s + self.write_s + self.commit_s


def tier(
    table: FlussTable,
    *,
    lake_properties: Mapping[str, str] | None = None,
    run_tasks: TaskRunner | None = None,
    task_rows: int = TASK_ROWS,
    limit_s: float | None = None,
    still_ours: Callable[[], None] = lambda: None,
    on_step: Callable[[Step], None] = lambda step: None,
) -> RoundReport:
    """Bring to the lake what a table has got since the last round, blocking. It is safe to do so beside a service.

    ``lake_properties`` are credentials of the lake and whatever else its server does not tell. Tasks run in this
    thread, or where ``run_tasks`` takes them. After ``limit_s``
    seconds tasks stop, and what they have is committed. ``still_ours`` is called before commits, and raises
    RoundLostError if the table was given to another service. ``on_step`` is told each step when it is done.
    """
    run_tasks = run_tasks or RunHere()
    for attempt in range(_TRIES_MAX):
        started_s = time.monotonic()
        plan = plan_round(table, lake_properties)
        on_step("planned")
        tasks = packed(plan.splits, run_tasks.parallelism, task_rows=task_rows)
        planned_s = time.monotonic()
        work = _work(plan, limit_s)
        weights = [sum(split.weight for split in task) for task in tasks]
        results = run_tasks("tier", plan.table, work, tasks, weights) if tasks else []
        on_step("written")
        written_s = time.monotonic()
        collected = Collected.of(plan, results)
        still_ours()
        try:
            snapshot_id = RoundCommit(plan, collected, still_ours=still_ours, on_step=on_step).commit()
        except RoundLostError as error:
            if attempt == _TRIES_MAX - 1 or error.error_code == ErrorCode.TABLE_NOT_EXIST:
                raise
            logger.info("%s; it is planned again", error.message)
            # If it is not ours any more, this raises.
            still_ours()
            continue
        committed_s = time.monotonic()
        _warn_of_expired(plan, collected)
        seconds = (planned_s - started_s, written_s - planned_s, committed_s - written_s)
        return _report(plan, collected, snapshot_id, len(tasks), seconds)
    raise AssertionError("the last attempt returns or raises")


def _work(plan: RoundPlan, limit_s: float | None) -> RoundWork:
    info = plan.info
    layout, columns = FileLayout.of(plan.lake_table), tuple(info.schema.column_names)
    key_work = None
    if info.has_primary_key():
        key_work = KeyWork(layout, detached(plan.lake_table), columns, tuple(info.physical_primary_keys))
    deadline = Deadline(None if limit_s is None else time.time() + limit_s)
    return RoundWork(info.table_path, info.table_id, layout, columns, deadline, key_work)


def _report(
    plan: RoundPlan, collected: Collected, snapshot_id: int | None, tasks: int, seconds: tuple[float, float, float]
) -> RoundReport:
    results = collected.results
    stamps = [result.last_timestamp_ms for result in results if result.last_timestamp_ms is not None]
    plan_s, write_s, commit_s = seconds
    return RoundReport(
        table=str(plan.info.table_path),
        table_id=plan.info.table_id,
        snapshot_id=snapshot_id,
        rows=sum(result.rows for result in results),
        deleted_rows=sum(result.deleted_rows for result in results),
        data_files=sum(len(result.data_files) for result in results),
        delete_files=sum(len(result.delete_files) for result in results),
        bytes=sum(result.byte_count for result in results),
        splits=len(plan.splits),
        tasks=tasks,
        lag_rows=_lag_rows(plan, collected),
        expired_rows=0 if plan.info.has_primary_key() else _row_count(_expired(plan, collected)),
        lag_s=max(0.0, time.time() - max(stamps) / 1000) if stamps else None,
        is_complete=collected.is_complete and not plan.leaves_rest,
        plan_s=plan_s,
        write_s=write_s,
        commit_s=commit_s,
    )


def _lag_rows(plan: RoundPlan, collected: Collected) -> int:
    """Return how many records of the planned buckets are not in the lake now; those of dropped partitions are none."""
    try:
        latest = offsets_of(plan.table, list(plan.latest), OffsetSpec.latest())
    except FlussError as error:
        logger.debug("how far the lake is behind %s is not known: %s", plan.info.table_path, error.message)
        latest = dict(plan.latest)
    return sum(
        max(0, end - max(collected.ends.get(bucket, plan.known_offset(bucket) or 0), plan.earliest.get(bucket, 0)))
        for bucket, end in latest.items()
    )


# Records that have expired


def _expired(plan: RoundPlan, collected: Collected) -> dict[TableBucket, tuple[int, int]]:
    """Return what had expired of the buckets that this round has brought forward, and was not in the lake."""
    found = {bucket: plan.expired(bucket) for bucket in collected.ends}
    return {bucket: expired for bucket, expired in found.items() if expired is not None}


def _row_count(expired: Mapping[TableBucket, tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in expired.values())


def _warn_of_expired(plan: RoundPlan, collected: Collected) -> None:
    expired = _expired(plan, collected)
    if not expired:
        return
    shown = [f"{bucket}: offsets {start} to {stop - 1}" for bucket, (start, stop) in expired.items()]
    more = "" if len(shown) <= _SHOWN_MAX else f" and {len(shown) - _SHOWN_MAX} more"
    logger.warning(
        "%s of %s had expired before a round came to them, as happens while the lake is switched off (%s%s): %s",
        format_count(_row_count(expired), "record"),
        plan.info.table_path,
        "; ".join(shown[:_SHOWN_MAX]),
        more,
        "the rows of these buckets were brought to the lake anew"
        if plan.info.has_primary_key()
        else "the lake is without them",
    )
