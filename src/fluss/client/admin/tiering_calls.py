"""What a tiering service asks and tells the coordinator: which table is due, and how far the lake has it now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import Runtime
from fluss.errors import FlussError, error_for_code
from fluss.protocol import api as apis
from fluss.protocol.convert import lake_snapshot, pb_table_path, raise_failure, table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.offsets import LakeSnapshot
from fluss.schema.table import TableBucket, TablePath

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class TieringAssignment:
    """A table that the coordinator has handed to this service, for one round. The epochs tell it from other rounds."""

    table_id: int
    table_path: TablePath
    coordinator_epoch: int
    tiering_epoch: int


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """A round that has ended well. ``by_force``: something was left for the next one, which is due at once."""

    assignment: TieringAssignment
    by_force: bool = False
    file_bytes: int | None = None
    record_count: int | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What the coordinator says: a table to be tiered, if there is one, and which reports it does not accept."""

    coordinator_epoch: int
    assignment: TieringAssignment | None
    refused: Mapping[int, FlussError]


class TieringCalls:
    """The calls of a tiering service. They block the calling thread, and may be made from any."""

    def __init__(self, cluster: Cluster, runtime: Runtime) -> None:
        self._cluster = cluster
        self._runtime = runtime

    def heartbeat(
        self,
        *,
        tiering: Iterable[TieringAssignment] = (),
        finished: Iterable[FinishedRound] = (),
        failed: Iterable[TieringAssignment] = (),
        request_table: bool = False,
    ) -> HeartbeatAnswer:
        """Tell which tables are being tiered, which rounds have ended and which have failed; ask for a table.

        A service that is silent for two minutes has lost its tables. Each report may be refused: with code 50 if
        another round of the table has begun since, 23 if the coordinator has started anew, 7 if the table is gone.
        """
        ended = list(finished)
        request = pb.LakeTieringHeartbeatRequest(
            tiering_tables=map(_report, tiering),
            finished_tables=map(_finished, ended),
            failed_tables=map(_report, failed),
            force_finished_tables=[each.assignment.table_id for each in ended if each.by_force],
            request_table=request_table,
        )
        response = self._ask(apis.LAKE_TIERING_HEARTBEAT, request)
        refused = {
            answer.table_id: error_for_code(answer.error.error_code, answer.error.error_message)
            for answers in (response.tiering_table_resp, response.finished_table_resp, response.failed_table_resp)
            for answer in answers
            if answer.HasField("error") and answer.error.error_code
        }
        assignment = None
        if response.HasField("tiering_table"):
            handed = response.tiering_table
            assignment = TieringAssignment(
                handed.table_id, table_path(handed.table_path), response.coordinator_epoch, handed.tiering_epoch
            )
        return HeartbeatAnswer(response.coordinator_epoch, assignment, refused)

    def prepare(self, path: TablePath, table_id: int, offsets: Mapping[TableBucket, int]) -> str:
        """Have the ends of a round written to an offsets file, and return where it is.

        Buckets that are not named keep the offsets of the newest snapshot. Code 7 if the table is gone.
        """
        table_offsets = pb.PbTableOffsets(
            table_id=table_id,
            table_path=pb_table_path(path),
            bucket_offsets=[
                pb.PbBucketOffset(partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, log_end_offset=offset)
                for bucket, offset in offsets.items()
            ],
        )
        request = pb.PrepareLakeTableSnapshotRequest(bucket_offsets=[table_offsets])
        (answer,) = self._ask(apis.PREPARE_LAKE_TABLE_SNAPSHOT, request).prepare_lake_table_resp
        raise_failure(answer)
        return answer.lake_table_offsets_path

    def commit(
        self, table_id: int, snapshot_id: int, offsets_path: str, *, earliest_id_to_keep: int | None = None
    ) -> None:
        """Register a snapshot of the lake as the newest of a table, readable from now on; again is no error.

        Without ``earliest_id_to_keep`` older ones are forgotten; with the id of one, those before it are, with -1 none.
        Code 53 if the offsets file is not there, or is none of this table.
        """
        entry = pb.PbLakeTableSnapshotMetadata(
            table_id=table_id,
            snapshot_id=snapshot_id,
            tiered_bucket_offsets_file_path=offsets_path,
            readable_bucket_offsets_file_path=offsets_path,
            earliest_snapshot_id_to_keep=earliest_id_to_keep,
        )
        request = pb.CommitLakeTableSnapshotRequest(lake_table_snapshot_metadata=[entry])
        (answer,) = self._ask(apis.COMMIT_LAKE_TABLE_SNAPSHOT, request).table_resp
        raise_failure(answer)

    def snapshot(self, path: TablePath, snapshot_id: int | None = None) -> LakeSnapshot:
        """Return the newest registered snapshot, or that of an id, with its offsets; code 53 if there is none."""
        request = pb.GetLakeSnapshotRequest(table_path=pb_table_path(path), snapshot_id=snapshot_id)
        return lake_snapshot(self._ask(apis.GET_LAKE_SNAPSHOT, request))

    def _ask(self, api: apis.Api[RequestT, ResponseT], message: RequestT) -> ResponseT:
        return self._runtime.run(self._cluster.request_coordinator(api, message))


def _report(assignment: TieringAssignment) -> pb.PbHeartbeatReqForTable:
    return pb.PbHeartbeatReqForTable(
        table_id=assignment.table_id,
        coordinator_epoch=assignment.coordinator_epoch,
        tiering_epoch=assignment.tiering_epoch,
    )


def _finished(ended: FinishedRound) -> pb.PbHeartbeatReqForTable:
    report = _report(ended.assignment)
    if ended.file_bytes is not None:
        report.lake_tiering_stats.file_size = ended.file_bytes
    if ended.record_count is not None:
        report.lake_tiering_stats.record_count = ended.record_count
    return report
