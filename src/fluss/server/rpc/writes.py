"""ProduceLog and PutKv: batches of many buckets into their logs and stores.

    begin    every batch goes to its log, or to the queue of its key-value bucket, before anything is waited for
    wait     until all are as safe as the writer wants, or its timeout is over
    answer   every bucket by itself

Batches are carried out in the order in which they arrived, as idempotent writers with several requests in flight need
it. A request never fails as a whole: some clients repeat a request that does, for ever.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from fluss.errors import ErrorCode, FlussError
from fluss.metrics import Counter
from fluss.net.request_handler import RequestContext
from fluss.protocol.bulk_messages import BucketRecords, ProduceLogRequest, PutKvRequest
from fluss.protocol.convert import set_failure
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.kv_batch import announced_record_count
from fluss.schema.acl import AclOperation
from fluss.server.kv.batches import ACKS_ALL, KvPut, KvPutResult
from fluss.server.kv.bucket import KvBucket
from fluss.server.merge.engines import check_targets
from fluss.server.rpc.bucket_access import BucketAccess, check_acks, check_key_version, is_try_again
from fluss.server.tablet.buckets import HostedBucket, HostedTable
from fluss.server.tablet.disk_guard import DiskGuard
from fluss.server.tablet.purgatory import FetchPurgatory
from fluss.storage.log.append_result import AppendResult
from fluss.storage.log.tablet import LogTablet
from fluss.storage.vfs import is_out_of_space

# The value of ``agg_mode`` that bypasses the merge engine; all others mean to merge.
_OVERWRITE: Final = 1
# Clients of older versions do not know the code that asks them to slow down.
_BACKPRESSURE_KNOWN_VERSION: Final = 2


# What both have in common


class WriteRequest(Protocol):
    """ProduceLogRequest and PutKvRequest."""

    acks: int
    table_id: int
    timeout_ms: int
    buckets: Sequence[BucketRecords]


class BucketWrite(ABC):
    """What becomes of the records of one bucket."""

    __slots__ = ("_begun", "failure", "is_safe", "records")

    def __init__(self, records: BucketRecords) -> None:
        self.records = records
        # Whether it is as safe as the writer wants it to be.
        self.is_safe = False
        self.failure: FlussError | None = None
        # Set if the log of the bucket has to be opened first; done when the write has begun, or failed.
        self._begun: asyncio.Future[None] | None = None

    def begin_when_open(self, table: HostedTable, bucket: HostedBucket) -> None:
        """Begin to write when the log of the bucket is open; writes to one bucket begin in the order of the calls."""
        self._begun = asyncio.get_running_loop().create_future()
        bucket.when_open(partial(self._begin_late, self._begun, table, bucket))

    def _begin_late(self, begun: asyncio.Future[None], table: HostedTable, bucket: HostedBucket) -> None:
        if begun.done() or self.failure is not None:
            return  # The writer was told that it has taken too long.
        try:
            self.begin(table, bucket)
        except FlussError as error:
            self.failure = error.with_traceback(None)
        except Exception as error:
            begun.set_exception(error)
            return
        begun.set_result(None)

    @property
    def has_begun(self) -> bool:
        return self._begun is None or (self._begun.done() and not self._begun.cancelled())

    async def wait_begun(self) -> None:
        """Wait until the write has begun, or has failed."""
        if self._begun is not None:
            await self._begun

    @abstractmethod
    def begin(self, table: HostedTable, bucket: HostedBucket) -> None:
        """Begin to write. Raises what is wrong with the records or the bucket."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait until the records are as safe as the writer wants, or raise why they never will be."""

    @abstractmethod
    def is_safe_by_now(self) -> bool:
        """Tell whether there is nothing to wait for any more, without waiting."""


W = TypeVar("W", bound=BucketWrite)
R = TypeVar("R")


class Writes:
    """Carries out requests to write. Belongs to the event loop."""

    def __init__(self, access: BucketAccess, disk_guard: DiskGuard, purgatory: FetchPurgatory) -> None:
        self._access = access
        self._disk_guard = disk_guard
        self._purgatory = purgatory
        # Rows that were taken: appended to logs, or upserted and deleted.
        self.appended_rows = Counter()
        self.put_rows = Counter()

    def carry_out(
        self,
        context: RequestContext,
        request: WriteRequest,
        writes: Sequence[W],
        check_table: Callable[[HostedTable], None],
        respond: Callable[[Sequence[W]], R],
    ) -> R | Awaitable[R]:
        """Begin all writes at once, one for each bucket of the request; answer at once if nothing is to be waited for.

        ``check_table`` refuses what holds for all buckets.
        """
        self._begin_all(context, request, writes, check_table)
        if all(write.failure is not None for write in writes):
            return self._answer_later(writes, respond) if _are_try_again(writes) else respond(writes)
        if all(write.failure is None and write.has_begun and write.is_safe_by_now() for write in writes):
            for write in writes:
                write.is_safe = True
            return respond(writes)
        return self._answer_when_safe(request, writes, respond)

    def _begin_all(
        self,
        context: RequestContext,
        request: WriteRequest,
        writes: Sequence[BucketWrite],
        check_table: Callable[[HostedTable], None],
    ) -> None:
        try:
            table = self._writable_table(context, request, check_table)
        except FlussError as error:
            for write in writes:
                write.failure = error
            return
        for write in writes:
            try:
                records = write.records
                bucket = self._access.bucket(table, request.table_id, records.partition_id, records.bucket_id)
                assert table is not None, "a table that is not here has no buckets"
                if bucket.is_settled:
                    write.begin(table, bucket)
                else:
                    write.begin_when_open(table, bucket)
            except FlussError as error:
                # There may be very many of them, and the traceback would keep everything that was looked at.
                write.failure = error.with_traceback(None)

    def _writable_table(
        self, context: RequestContext, request: WriteRequest, check_table: Callable[[HostedTable], None]
    ) -> HostedTable | None:
        """Return the table, None if it is not here; refuse what holds for every bucket of the request."""
        check_acks(request.acks)
        table = self._access.table(context, request.table_id, AclOperation.WRITE)
        if table is not None:
            check_table(table)
        self._disk_guard.check_write()
        return table

    async def _answer_later(self, writes: Sequence[W], respond: Callable[[Sequence[W]], R]) -> R:
        await self._purgatory.hold_back()
        return respond(writes)

    async def _answer_when_safe(
        self, request: WriteRequest, writes: Sequence[W], respond: Callable[[Sequence[W]], R]
    ) -> R:
        try:
            async with asyncio.timeout(max(request.timeout_ms, 0) / 1000):
                # One after the other, which takes as long as the slowest.
                for write in writes:
                    if write.failure is None and write.has_begun and write.is_safe_by_now():
                        write.is_safe = True
                    else:
                        await self._wait(write)
        except TimeoutError:
            for write in writes:
                _time_out(write, request.timeout_ms)
        return await self._answer_later(writes, respond) if _are_try_again(writes) else respond(writes)

    async def _wait(self, write: BucketWrite) -> None:
        if write.failure is None:
            await write.wait_begun()
        if write.failure is not None:
            return
        try:
            await write.wait()
        except FlussError as error:
            write.failure = error
            if isinstance(error.__cause__, OSError) and is_out_of_space(error.__cause__):
                self._disk_guard.out_of_space()
        else:
            write.is_safe = True


def _time_out(write: BucketWrite, timeout_ms: int) -> None:
    if write.failure is None and not write.is_safe and not (write.has_begun and write.is_safe_by_now()):
        write.failure = FlussError(
            f"The records were not on disk within {timeout_ms} ms; they may still be written",
            ErrorCode.REQUEST_TIME_OUT,
        )


def _are_try_again(writes: Sequence[BucketWrite]) -> bool:
    return is_try_again(write.failure for write in writes)


# ProduceLog


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
        self._result = log.append(view, table.batch_check.check(view))
        self._log = log

    @property
    def result(self) -> AppendResult:
        assert self._result is not None, "it was appended"
        return self._result

    @property
    def row_count(self) -> int:
        """How many rows it has added to the log."""
        result = self.result
        return 0 if result.is_duplicate else result.offset_next - result.offset_base

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
        """Append at once; answer when the records are as safe as the writer wants."""
        appends = [_Append(records, request.acks) for records in request.buckets]
        return self._writes.carry_out(context, request, appends, _check_log_table, self._response)

    def _response(self, appends: Sequence[_Append]) -> pb.ProduceLogResponse:
        self._writes.appended_rows.add(sum(append.row_count for append in appends if append.failure is None))
        return _produce_response(appends)


def _check_log_table(table: HostedTable) -> None:
    if table.table.has_primary_key:
        raise FlussError(
            f"Table {table.table.path} has a primary key: its log is written by upserts and deletes (PutKv) only",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )


def _produce_response(appends: Sequence[_Append]) -> pb.ProduceLogResponse:
    response = pb.ProduceLogResponse()
    for append in appends:
        answer = response.buckets_resp.add(bucket_id=append.records.bucket_id)
        if append.records.partition_id is not None:
            answer.partition_id = append.records.partition_id
        if append.failure is not None:
            set_failure(answer, append.failure)
        else:
            answer.base_offset = append.result.offset_base
    return response


# PutKv


class _Put(BucketWrite):
    """A batch of upserts and deletes on its way into one bucket."""

    __slots__ = ("_answer", "_kv", "_request", "_targets")

    def __init__(self, records: BucketRecords, request: PutKvRequest, targets: tuple[int, ...]) -> None:
        super().__init__(records)
        self._request = request
        self._targets = targets
        self._kv: KvBucket | None = None
        self._answer: asyncio.Future[KvPutResult] | None = None

    def begin(self, table: HostedTable, bucket: HostedBucket) -> None:
        self._kv = bucket.key_values()
        request = self._request
        self._answer = self._kv.put(
            KvPut(
                _detached(self.records.records_view),
                self._targets,
                request.agg_mode == _OVERWRITE,
                request.acks,
            )
        )

    async def wait(self) -> None:
        assert self._answer is not None, "it was begun"
        if not self._answer.done():
            # A writer that stops waiting must not stop the batch.
            await asyncio.shield(self._answer)
        self._answer.result()

    def is_safe_by_now(self) -> bool:
        assert self._answer is not None, "it was begun"
        return self._answer.done() and self._answer.exception() is None

    @property
    def log_end_offset(self) -> int:
        assert self._answer is not None, "it was begun"
        return self._answer.result().log_end_offset

    @property
    def pressure(self) -> float:
        return 0.0 if self._kv is None else self._kv.pressure


class KvPutter:
    """Answers put requests. Belongs to the event loop."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes

    def put_kv(self, context: RequestContext, request: PutKvRequest) -> pb.PutKvResponse | Awaitable[pb.PutKvResponse]:
        """Queue the batches at once; answer when lookups find their rows, or earlier if the writer wants that."""
        # Once for all buckets: both lists can be long.
        targets = tuple(dict.fromkeys(request.target_columns))
        puts = [_Put(records, request, targets) for records in request.buckets]
        version = context.api_version
        check_table = partial(_check_key_table, version, targets, request.agg_mode == _OVERWRITE)
        return self._writes.carry_out(context, request, puts, check_table, partial(self._response, version))

    def _response(self, api_version: int, puts: Sequence[_Put]) -> pb.PutKvResponse:
        self._writes.put_rows.add(
            sum(announced_record_count(put.records.records_view) for put in puts if put.failure is None)
        )
        return _put_response(api_version, puts)


def _detached(batch: memoryview) -> memoryview:
    """Return a batch that does not keep a much larger request in memory: it may outlive the answer."""
    with memoryview(batch.obj) as request:
        return memoryview(bytes(batch)) if 2 * batch.nbytes < request.nbytes else batch


def _check_key_table(api_version: int, targets: tuple[int, ...], is_overwrite: bool, table: HostedTable) -> None:
    if not table.table.has_primary_key:
        raise FlussError(
            f"Table {table.table.path} has no primary key: append to it (ProduceLog)",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )
    check_key_version(table.table, api_version)
    check_targets(table.table, targets, is_overwrite=is_overwrite)


def _put_response(api_version: int, puts: Sequence[_Put]) -> pb.PutKvResponse:
    response = pb.PutKvResponse()
    for put in puts:
        answer = response.buckets_resp.add(bucket_id=put.records.bucket_id)
        if put.records.partition_id is not None:
            answer.partition_id = put.records.partition_id
        if put.failure is not None:
            answer.error_code = _told_code(put.failure, api_version)
            answer.error_message = put.failure.public_message
        else:
            answer.log_end_offset = put.log_end_offset
        if put.pressure > 0.0:
            answer.pressure = put.pressure
    return response


def _told_code(failure: FlussError, api_version: int) -> int:
    code = failure.error_code
    if code == ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION and api_version < _BACKPRESSURE_KNOWN_VERSION:
        return ErrorCode.KV_STORAGE_EXCEPTION
    return ErrorCode.UNKNOWN_SERVER_ERROR if code == ErrorCode.CLIENT_ERROR else code
