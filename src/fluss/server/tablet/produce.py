"""ProduceLog: batches of many buckets into their logs, answered when they are as safe as the writer wants.

Everything up to the append of the last bucket happens before anything is waited for, so batches are in a log in the
order in which they arrived, as idempotent writers with several requests in flight need it. Every bucket is answered
by itself. Nothing fails as a whole: some clients repeat a request that does, for ever.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from fluss.errors import RETRIABLE_CODES, ErrorCode, FlussError
from fluss.net.listener import RequestContext
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.records import BucketRecords, ProduceLogRequest
from fluss.schema.acl import AclOperation
from fluss.server.tablet.access import BucketAccess
from fluss.server.tablet.buckets import HostedTable
from fluss.server.tablet.disk_guard import DiskGuard
from fluss.server.tablet.fetch_wait import FetchPark
from fluss.server.tablet.settings import TabletSettings
from fluss.storage.log.append_result import AppendResult
from fluss.storage.log.tablet import LogTablet

ACKS_ALL = -1
_ACKS = (ACKS_ALL, 0, 1)
_NO_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT)


@dataclass(slots=True)
class _Append:
    """What has become of the records of one bucket."""

    records: BucketRecords
    log: LogTablet | None = None
    result: AppendResult | None = None
    # Whether it is as safe as the writer wants it to be.
    is_safe: bool = False
    failure: FlussError | None = None


class LogProducer:
    """Answers produce requests. Belongs to the event loop."""

    def __init__(self, access: BucketAccess, disk_guard: DiskGuard, park: FetchPark, settings: TabletSettings) -> None:
        self._access = access
        self._disk_guard = disk_guard
        self._park = park
        self._settings = settings

    def produce(
        self, context: RequestContext, request: ProduceLogRequest
    ) -> pb.ProduceLogResponse | Awaitable[pb.ProduceLogResponse]:
        """Append at once; answer at once if nothing is left to wait for."""
        appends = self._append_all(context, request)
        codes = {append.failure.error_code if append.failure else 0 for append in appends}
        if codes and codes <= RETRIABLE_CODES:
            return self._answer_later(appends)
        if any(append.result is not None for append in appends):
            return self._answer_when_safe(request, appends)
        return _response(appends)

    # Append

    def _append_all(self, context: RequestContext, request: ProduceLogRequest) -> list[_Append]:
        appends = [_Append(records) for records in request.buckets]
        try:
            table = self._writable_table(context, request)
        except FlussError as error:
            for append in appends:
                append.failure = error
            return appends
        for append in appends:
            try:
                self._append(table, request.table_id, append)
            except FlussError as error:
                append.failure = error
        return appends

    def _writable_table(self, context: RequestContext, request: ProduceLogRequest) -> HostedTable | None:
        """Return the table, None if it is not here; refuse what holds for every bucket of the request."""
        if request.acks not in _ACKS:
            raise FlussError(
                f"Invalid required acks {request.acks}: write -1 (all), 1 or 0", ErrorCode.INVALID_REQUIRED_ACKS
            )
        table = self._access.table(context, request.table_id, AclOperation.WRITE)
        if table is not None and table.table.has_primary_key:
            raise FlussError(
                f"Table {table.table.path} has a primary key: its log is written by upserts and deletes (PutKv) only",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        self._disk_guard.check_write()
        return table

    def _append(self, table: HostedTable | None, table_id: int, append: _Append) -> None:
        records = append.records
        log = self._access.bucket(table, table_id, records.partition_id, records.bucket_id).log()
        assert table is not None, "a table that is not here has no buckets"
        view = records.records_view
        table.batch_check.check(view)
        append.result = log.append(view)
        append.log = log

    # Answer

    async def _answer_later(self, appends: Sequence[_Append]) -> pb.ProduceLogResponse:
        """Hold back an answer that says nothing but "try again"."""
        await self._park.pause(self._settings.retry_answer_delay_ms)
        return _response(appends)

    async def _answer_when_safe(self, request: ProduceLogRequest, appends: Sequence[_Append]) -> pb.ProduceLogResponse:
        try:
            async with asyncio.timeout(max(request.timeout_ms, 0) / 1000):
                for append in appends:
                    await self._wait(append, request.acks)
        except TimeoutError:
            for append in appends:
                self._time_out(append, request.timeout_ms)
        return _response(appends)

    async def _wait(self, append: _Append, acks: int) -> None:
        """Wait until the records are safe. Buckets wait one after the other, which takes as long as the slowest."""
        if append.log is None or append.result is None:
            return
        try:
            if acks == ACKS_ALL:
                await append.log.wait_durable(append.result)
            else:
                await append.log.wait_written(append.result)
        except FlussError as error:
            append.failure = error
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_SPACE_ERRORS:
                self._disk_guard.out_of_space()
        else:
            append.is_safe = True

    def _time_out(self, append: _Append, timeout_ms: int) -> None:
        if append.log is None or append.result is None or append.is_safe or append.failure is not None:
            return
        if not append.log.is_durable(append.result):
            append.failure = FlussError(
                f"The records were not on disk within {timeout_ms} ms; they may still be written",
                ErrorCode.REQUEST_TIME_OUT,
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
            assert append.result is not None
            answer.base_offset = append.result.offset_base
    return response
