"""Requests about lakes: how far they have a table, and what the service asks and tells that brings it there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.convert import pb_table_path, table_bucket, table_path
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.table import TableBucket
from fluss.server.authorizer import Authorizer, Operation, Resource
from fluss.server.coordinator.catalog import Catalog
from fluss.server.coordinator.lake_snapshots import LakeSnapshots
from fluss.server.coordinator.lake_tiering import LakeTiering
from fluss.server.coordinator.metadata.metadata_store import LakeEntry
from fluss.server.model import Table
from fluss.server.rpc.handler_group import ChangeHandler


class LakeHandlers:
    """Answers readers of lakes, and the tiering service, which needs the right to write to its tables."""

    def __init__(
        self, catalog: Catalog, authorizer: Authorizer, snapshots: LakeSnapshots, tiering: LakeTiering
    ) -> None:
        self._catalog = catalog
        self._authorizer = authorizer
        self._snapshots = snapshots
        self._tiering = tiering

    def readers(self) -> Mapping[ApiKey, Handler]:
        return {ApiKey.GET_LAKE_SNAPSHOT: self._get_snapshot, ApiKey.LAKE_TIERING_HEARTBEAT: self._heartbeat}

    def changers(self) -> Mapping[ApiKey, ChangeHandler]:
        return {ApiKey.PREPARE_LAKE_TABLE_SNAPSHOT: self._prepare, ApiKey.COMMIT_LAKE_TABLE_SNAPSHOT: self._commit}

    async def _get_snapshot(
        self, context: RequestContext, request: pb.GetLakeSnapshotRequest
    ) -> pb.GetLakeSnapshotResponse:
        path = table_path(request.table_path)
        self._authorizer.check(context, Operation.DESCRIBE, Resource.table(path))
        table = self._catalog.existing_table(path)
        snapshot_id = request.snapshot_id if request.HasField("snapshot_id") else None
        if snapshot_id is not None and request.readable:
            raise FlussError(
                "Ask for a snapshot by its id or for the newest readable one, not for both",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
        found_id, offsets = await self._snapshots.find(table, snapshot_id=snapshot_id, readable=request.readable)
        names = {each.partition_id: each.name for each in self._catalog.partitions_of(table.table_id).values()}
        return pb.GetLakeSnapshotResponse(
            table_id=table.table_id,
            snapshotId=found_id,
            bucket_snapshots=[
                pb.PbLakeSnapshotForBucket(
                    partition_id=bucket.partition_id,
                    bucket_id=bucket.bucket_id,
                    log_offset=offset,
                    partition_name=None if bucket.partition_id is None else names.get(bucket.partition_id),
                )
                for bucket, offset in offsets.items()
            ],
        )

    # The tiering service

    def _heartbeat(
        self, context: RequestContext, request: pb.LakeTieringHeartbeatRequest
    ) -> pb.LakeTieringHeartbeatResponse:
        tiering = self._tiering
        forced = frozenset(request.force_finished_tables)
        tiering.advance()
        response = pb.LakeTieringHeartbeatResponse(
            coordinator_epoch=tiering.coordinator_epoch,
            failed_table_resp=self._reported(
                context, request.failed_tables, lambda each: tiering.fail(*_round_of(each))
            ),
            tiering_table_resp=self._reported(
                context, request.tiering_tables, lambda each: tiering.renew(*_round_of(each))
            ),
            finished_table_resp=self._reported(
                context, request.finished_tables, lambda each: self._finish(each, forced)
            ),
        )
        handed = tiering.request(lambda table: self._may_write(context, table)) if request.request_table else None
        if handed is not None:
            table, epoch = handed
            response.tiering_table.CopyFrom(
                pb.PbLakeTieringTableInfo(
                    table_id=table.table_id, table_path=pb_table_path(table.path), tiering_epoch=epoch
                )
            )
        return response

    def _finish(self, report: pb.PbHeartbeatReqForTable, forced: frozenset[int]) -> None:
        stats = report.lake_tiering_stats
        self._tiering.finish(
            *_round_of(report),
            by_force=report.table_id in forced,
            file_bytes=stats.file_size if stats.HasField("file_size") else None,
            record_count=stats.record_count if stats.HasField("record_count") else None,
        )

    def _reported(
        self,
        context: RequestContext,
        reports: Iterable[pb.PbHeartbeatReqForTable],
        take: Callable[[pb.PbHeartbeatReqForTable], None],
    ) -> list[pb.PbHeartbeatRespForTable]:
        """Take reports about tables one by one; each has its own answer."""
        answers = []
        for report in reports:
            answer = pb.PbHeartbeatRespForTable(table_id=report.table_id)
            try:
                self._writable_table(context, report.table_id)
                take(report)
            except FlussError as error:
                answer.error.CopyFrom(pb.ErrorResponse(error_code=error.error_code, error_message=error.public_message))
            answers.append(answer)
        return answers

    def _may_write(self, context: RequestContext, table: Table) -> bool:
        return self._authorizer.allows(context, Operation.WRITE, Resource.table(table.path))

    def _writable_table(self, context: RequestContext, table_id: int) -> Table:
        """Return a table, or raise code 7, also for tables that the sender may not write to."""
        table = self._catalog.existing_table_by_id(table_id)
        if not self._may_write(context, table):
            raise FlussError(f"The table of id {table_id} does not exist.", ErrorCode.TABLE_NOT_EXIST)
        return table

    async def _prepare(
        self, context: RequestContext, request: pb.PrepareLakeTableSnapshotRequest
    ) -> pb.PrepareLakeTableSnapshotResponse:
        response = pb.PrepareLakeTableSnapshotResponse()
        named: set[int] = set()
        for offered in request.bucket_offsets:
            answer = response.prepare_lake_table_resp.add(table_id=offered.table_id)
            with _told(answer):
                _check_named_once(offered.table_id, named)
                table = self._writable_table(context, offered.table_id)
                if table.path != table_path(offered.table_path):
                    raise FlussError(
                        f"The table of id {offered.table_id} is not {table_path(offered.table_path)}",
                        ErrorCode.TABLE_NOT_EXIST,
                    )
                answer.lake_table_offsets_path = await self._snapshots.prepare(
                    table,
                    _offsets(table, offered.bucket_offsets),
                    ignore_previous=request.ignore_previous_table_offsets,
                )
        return response

    async def _commit(
        self, context: RequestContext, request: pb.CommitLakeTableSnapshotRequest
    ) -> pb.CommitLakeTableSnapshotResponse:
        response = pb.CommitLakeTableSnapshotResponse()
        named: set[int] = set()
        for entry in request.lake_table_snapshot_metadata:
            answer = response.table_resp.add(table_id=entry.table_id)
            with _told(answer):
                _check_named_once(entry.table_id, named)
                await self._commit_entry(self._writable_table(context, entry.table_id), entry)
        if not request.lake_table_snapshot_metadata:
            # The form of services before 0.9, which prepare nothing. In newer requests it only feeds metrics.
            for info in request.tables_req:
                answer = response.table_resp.add(table_id=info.table_id)
                with _told(answer):
                    _check_named_once(info.table_id, named)
                    await self._commit_offsets(self._writable_table(context, info.table_id), info)
        return response

    async def _commit_entry(self, table: Table, message: pb.PbLakeTableSnapshotMetadata) -> None:
        readable = message.readable_bucket_offsets_file_path
        entry = LakeEntry(
            message.snapshot_id,
            message.tiered_bucket_offsets_file_path,
            readable if message.HasField("readable_bucket_offsets_file_path") else None,
        )
        earliest = message.earliest_snapshot_id_to_keep
        is_kept = message.HasField("earliest_snapshot_id_to_keep")
        await self._snapshots.commit(table, entry, earliest_id_to_keep=earliest if is_kept else None)

    async def _commit_offsets(self, table: Table, message: pb.PbLakeTableSnapshotInfo) -> None:
        file_path = await self._snapshots.prepare(table, _offsets(table, message.buckets_req))
        await self._snapshots.commit(table, LakeEntry(message.snapshot_id, file_path, file_path))


@contextmanager
def _told(answer: pb.PbPrepareLakeTableRespForTable | pb.PbCommitLakeTableSnapshotRespForTable) -> Iterator[None]:
    """Put what goes wrong with one table into its answer."""
    try:
        yield
    except FlussError as error:
        answer.error_code, answer.error_message = error.error_code, error.public_message


def _check_named_once(table_id: int, named: set[int]) -> None:
    """Refuse a table that a request names again. Each time takes a file, and a stop of the server waits for all."""
    if table_id in named:
        raise FlussError(
            f"The table of id {table_id} is named twice; a round has one snapshot of a table, send others later",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
    named.add(table_id)


def _round_of(report: pb.PbHeartbeatReqForTable) -> tuple[int, int, int]:
    return report.table_id, report.coordinator_epoch, report.tiering_epoch


def _offsets(table: Table, messages: Iterable[Any]) -> dict[TableBucket, int]:
    """Read the ends of buckets; those that are not known are left out."""
    return {
        table_bucket(table.table_id, message): message.log_end_offset
        for message in messages
        if message.HasField("log_end_offset") and message.log_end_offset >= 0
    }
