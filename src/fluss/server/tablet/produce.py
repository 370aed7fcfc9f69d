"""ProduceLog: batches of many buckets into their logs, answered when they are as safe as the writer wants."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from fluss.errors import ErrorCode, FlussError
from fluss.net.listener import RequestContext
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.records import BucketRecords, ProduceLogRequest
from fluss.server.tablet.buckets import HostedBucket, HostedTable
from fluss.server.tablet.writes import ACKS_ALL, BucketWrite, Writes
from fluss.storage.log.append_result import AppendResult
from fluss.storage.log.tablet import LogTablet


class _Append(BucketWrite):
    """Records on their way into the log of one bucket."""

    __slots__ = ("_acks", "_log", "_result")

    def __init__(self, records: BucketRecords, acks: int) -> None:
        super().__init__(records)
        self._acks = acks
        self._log: LogTablet | None = None
        self._result: AppendResult | None = None

    def begin(self, table: HostedTable, bucket: HostedBucket) -> None:
        log = bucket.log()
        view = self.records.records_view
        table.batch_check.check(view)
        self._result = log.append(view)
        self._log = log

    @property
    def result(self) -> AppendResult:
        assert self._result is not None, "it was appended"
        return self._result

    async def wait(self) -> None:
        assert self._log is not None, "it was appended"
        if self._acks == ACKS_ALL:
            await self._log.wait_durable(self.result)
        else:
            await self._log.wait_written(self.result)

    def is_safe_by_now(self) -> bool:
        assert self._log is not None, "it was appended"
        return self._log.is_durable(self.result)


class LogProducer:
    """Answers produce requests. Belongs to the event loop."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def produce(
        self, context: RequestContext, request: ProduceLogRequest
    ) -> pb.ProduceLogResponse | Awaitable[pb.ProduceLogResponse]:
        """Append at once; answer at once if nothing is left to wait for."""
        appends = [_Append(records, request.acks) for records in request.buckets]
        return self._writes.carry_out(context, request, appends, _check_table, _response)


def _check_table(table: HostedTable) -> None:
    if table.table.has_primary_key:
        raise FlussError(
            f"Table {table.table.path} has a primary key: its log is written by upserts and deletes (PutKv) only",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )


def _response(appends: Sequence[_Append]) -> pb.ProduceLogResponse:
    response = pb.ProduceLogResponse()
    for append in appends:
        answer = response.buckets_resp.add(bucket_id=append.records.bucket_id)
        if append.records.partition_id is not None:
            answer.partition_id = append.records.partition_id
        if append.failure is not None:
            answer.error_code = append.failure.error_code
            answer.error_message = append.failure.message
        else:
            answer.base_offset = append.result.offset_base
    return response
