"""PutKv: upserts and deletes for many buckets, answered when whoever asks for the rows finds them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

from fluss.errors import ErrorCode, FlussError
from fluss.net.listener import RequestContext
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.records import BucketRecords, PutKvRequest
from fluss.server.kv.batches import KvPut, KvPutResult
from fluss.server.kv.bucket import KvBucket
from fluss.server.kv.key_versions import check_key_version
from fluss.server.merge.engines import check_targets
from fluss.server.tablet.buckets import HostedBucket, HostedTable
from fluss.server.tablet.writes import BucketWrite, Writes

# Values of ``agg_mode``; all others mean to merge.
_OVERWRITE: Final = 1
# Clients of older versions do not know the code that asks them to slow down.
_BACKPRESSURE_KNOWN_VERSION: Final = 2


class _Put(BucketWrite):
    """A batch on its way into one bucket."""

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
                table.table,
                _on_its_own(self.records.records_view),
                self._targets,
                request.agg_mode == _OVERWRITE,
                request.acks,
            )
        )

    async def wait(self) -> None:
        assert self._answer is not None, "it was begun"
        # Who stops waiting must not stop the batch.
        await asyncio.wait((self._answer,))
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
        """Take the batches in at once; answer when they are in their stores, or as the writer wants."""
        # Once for all buckets: both lists can be long.
        targets = tuple(dict.fromkeys(request.target_columns))
        puts = [_Put(records, request, targets) for records in request.buckets]
        version = context.api_version
        check_table = partial(_check_table, version, targets, request.agg_mode == _OVERWRITE)
        return self._writes.carry_out(context, request, puts, check_table, partial(_response, version))


def _on_its_own(batch: memoryview) -> memoryview:
    """Return a batch that does not keep a much larger request in memory: it may outlive the answer."""
    with memoryview(batch.obj) as request:
        return memoryview(bytes(batch)) if 2 * batch.nbytes < request.nbytes else batch


def _check_table(api_version: int, targets: tuple[int, ...], is_overwrite: bool, table: HostedTable) -> None:
    if not table.table.has_primary_key:
        raise FlussError(
            f"Table {table.table.path} has no primary key: append to it (ProduceLog)",
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
        )
    check_key_version(table.table, api_version)
    check_targets(table.table, targets, is_overwrite=is_overwrite)


def _response(api_version: int, puts: Sequence[_Put]) -> pb.PutKvResponse:
    response = pb.PutKvResponse()
    for put in puts:
        answer = response.buckets_resp.add(bucket_id=put.records.bucket_id)
        if put.records.partition_id is not None:
            answer.partition_id = put.records.partition_id
        if put.failure is not None:
            answer.error_code = _told_code(put.failure, api_version)
            answer.error_message = put.failure.message
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
