"""The end of a round: one commit to the lake, then one to Fluss, so that every record is in the lake exactly once.

| step | what happens | if the service dies behind it |
|---|---|---|
| written | all tasks have written their files | the files are orphans; the next round writes its own |
| checked | the table is the same, Fluss knows the offsets that were planned from, the round is still ours | as before |
| prepared | the coordinator has written the offsets file | one unused file more |
| committed | the lake table has the snapshot, with the path of the offsets file | the next plan registers it in Fluss |
| registered | Fluss has the snapshot: readers and retention go by it | nothing is left to do |

Two services may come to work on the same table, because one was silent for too long. Each commits on the state of the
lake table that it planned on, or not at all; so one of them is refused. One that wakes up after the other has done both
commits sees that Fluss knows other offsets than it planned from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fluss.client.bulk import TieringCalls, admin_of, reopened, tiering_calls_of
from fluss.errors import ErrorCode, FlussError
from fluss.lake.commits import LakeConflictError, commit_files, tiering_properties
from fluss.lake.data_files import delete_files
from fluss.schema.table import TableBucket
from fluss.tiering.round_plan import RoundPlan
from fluss.tiering.split_result import SplitResult, TaskResult

Step: TypeAlias = Literal["planned", "written", "checked", "prepared", "committed", "registered"]
"""What a round has done; see above."""

logger = logging.getLogger(__name__)


class RoundLostError(FlussError):
    """Another service has the table, or has tiered it meanwhile. Nothing of this round is in the lake."""


@dataclass(frozen=True)
class Collected:
    """What tasks have brought, as far as it can be committed."""

    results: tuple[SplitResult, ...]
    ends: dict[TableBucket, int]
    # Files behind a gap in their bucket.
    unused: tuple[SplitResult, ...]
    is_complete: bool

    @classmethod
    def of(cls, plan: RoundPlan, tasks: Sequence[TaskResult]) -> Collected:
        """Collect results. The pieces of a bucket count up to the first that is not complete."""
        by_bucket: dict[TableBucket, list[SplitResult]] = {}
        for task in tasks:
            for result in task.splits:
                by_bucket.setdefault(result.split.bucket, []).append(result)
        expected = {split.bucket: split for split in plan.splits}
        assert by_bucket.keys() == expected.keys(), "a result of every bucket of the plan, and of no other"
        used: list[SplitResult] = []
        unused: list[SplitResult] = []
        ends: dict[TableBucket, int] = {}
        for bucket, results in by_bucket.items():
            position: int | None = expected[bucket].start
            for result in sorted(results, key=lambda each: each.split.start):
                if position is None or result.split.start != position or result.end is None:
                    assert position is None or result.split.start >= position, "no part of a bucket twice"
                    unused.append(result)
                    position = None
                    continue
                used.append(result)
                ends[bucket] = result.end
                position = result.end if result.is_complete else None
        is_complete = all(ends.get(bucket) == split.stop for bucket, split in expected.items())
        return cls(tuple(used), ends, tuple(unused), is_complete)

    @property
    def advanced(self) -> bool:
        """Whether there is something to commit, if only an offset."""
        return any(result.files for result in self.results) or any(
            result.end != result.split.start for result in self.results
        )


class RoundCommit:
    """Commits one round. ``on_step`` is told each step when it is done, and ``still_ours`` raises if it is not."""

    def __init__(
        self,
        plan: RoundPlan,
        collected: Collected,
        *,
        still_ours: Callable[[], None] = lambda: None,
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self._plan = plan
        self._collected = collected
        self._still_ours = still_ours
        self._on_step = on_step
        self._calls: TieringCalls = tiering_calls_of(admin_of(plan.table))

    def commit(self) -> int | None:
        """Commit, and return the id of the new snapshot; None if there was nothing to commit.

        Raises RoundLostError if another service was faster: then the files of the round have been deleted. After any
        other error the commit may have happened, and they are left alone.
        """
        io = self._plan.lake_table.io
        delete_files(io, [file for result in self._collected.unused for file in result.files])
        if not self._collected.advanced:
            return None
        try:
            self._check()
            self._on_step("checked")
            offsets_path = self._calls.prepare(
                self._plan.info.table_path, self._plan.info.table_id, self._collected.ends
            )
            self._on_step("prepared")
            self._still_ours()
            snapshot_id = self._commit_to_lake(offsets_path)
        except RoundLostError:
            delete_files(io, [file for result in self._collected.results for file in result.files])
            raise
        self._on_step("committed")
        self._calls.commit(self._plan.info.table_id, snapshot_id, offsets_path)
        self._on_step("registered")
        return snapshot_id

    def _check(self) -> None:
        info = self._plan.info
        try:
            table_id = reopened(self._plan.table).get_table_info().table_id
        except FlussError as error:
            if error.error_code != ErrorCode.TABLE_NOT_EXIST:
                raise
            raise RoundLostError(f"{info.table_path} was dropped while it was tiered", error.error_code) from None
        if table_id != info.table_id:
            raise RoundLostError(
                f"{info.table_path} was dropped and created again while it was tiered", ErrorCode.TABLE_NOT_EXIST
            )
        try:
            known = self._calls.snapshot(info.table_path)
        except FlussError as error:
            if error.error_code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
                raise
            known = None
        planned = self._plan.known
        for bucket in self._collected.ends:
            if (None if known is None else known.get_bucket_offset(bucket)) != self._plan.known_offset(bucket):
                raise _lost(self._plan, "Fluss knows other offsets by now than the round began with")
        if (None if known is None else known.snapshot_id) != (None if planned is None else planned.snapshot_id):
            raise _lost(self._plan, "Fluss knows another snapshot by now than the round began with")

    def _commit_to_lake(self, offsets_path: str) -> int:
        results = self._collected.results
        try:
            return commit_files(
                self._plan.lake_table,
                added=[file for result in results for file in result.data_files],
                deletes=[file for result in results for file in result.delete_files],
                properties=tiering_properties(offsets_path),
            )
        except LakeConflictError as error:
            raise _lost(self._plan, error.message) from error


def _lost(plan: RoundPlan, why: str) -> RoundLostError:
    return RoundLostError(
        f"The round of {plan.info.table_path} was given up: {why}", ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION
    )
