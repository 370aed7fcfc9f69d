"""LimitScan: some rows of a bucket, without looking for them.

Of a log table the newest rows: whole batches, the first of which may start before the wanted rows; the client cuts
those off. Of a primary-key table the first rows in the order of their keys' bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import Executor
from functools import partial

from fluss.buffers import BytesLike
from fluss.errors import RETRIABLE_CODES, ErrorCode, FlussError
from fluss.net.listener import Answer, RequestContext
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.records import LimitScanResponse
from fluss.record.log_batch import MAGIC_V0, downgrade_to_v0, iter_batches
from fluss.record.value_batch import encode_value_batch
from fluss.row.encoded import EncodedRows
from fluss.schema.acl import AclOperation
from fluss.server.tablet.access import BucketAccess
from fluss.server.tablet.buckets import HostedBucket
from fluss.server.tablet.fetch_memory import FetchMemory, no_memory
from fluss.server.tablet.fetch_read import find_whole_batches
from fluss.server.tablet.fetch_wait import FetchPark
from fluss.server.tablet.read_turns import ReadTurns
from fluss.server.tablet.settings import TabletSettings
from fluss.storage.kv.store import KvStore
from fluss.storage.log.tablet import LogTablet

_READ_BYTES = 4 * 1024 * 1024


class LimitScanner:
    """Answers limit scans. Belongs to the event loop; logs and stores are read by ``readers``."""

    def __init__(
        self,
        access: BucketAccess,
        memory: FetchMemory,
        turns: ReadTurns,
        park: FetchPark,
        readers: Executor,
        settings: TabletSettings,
    ) -> None:
        self._access = access
        self._memory = memory
        self._turns = turns
        self._park = park
        self._readers = readers
        self._settings = settings

    def limit_scan(
        self, context: RequestContext, request: pb.LimitScanRequest
    ) -> LimitScanResponse | Awaitable[Answer | LimitScanResponse]:
        """Read the rows, or say in the body of the answer why not."""
        try:
            hosted = self._bucket(context, request)
        except FlussError as error:
            return self._answer_error(error)
        return self._scan(hosted, request.limit, context.peer_address)

    def _bucket(self, context: RequestContext, request: pb.LimitScanRequest) -> HostedBucket:
        table = self._access.table(context, request.table_id, AclOperation.READ)
        if request.limit < 0:
            raise FlussError(
                f"The limit of a scan cannot be negative, got {request.limit}", ErrorCode.INVALID_SCAN_REQUEST
            )
        partition_id = request.partition_id if request.HasField("partition_id") else None
        hosted = self._access.bucket(table, request.table_id, partition_id, request.bucket_id)
        hosted.log()
        return hosted

    async def _scan(self, hosted: HostedBucket, row_count: int, owner: str) -> Answer | LimitScanResponse:
        try:
            if hosted.kv is not None:
                # Who waits for a store to be opened does so before it is his turn.
                await hosted.kv.store()
        except FlussError as error:
            return await self._answer_error(error)
        granted = await self._turns.begin(_READ_BYTES, owner)
        if granted is None:
            return await self._answer_error(no_memory())
        byte_count = 0
        try:
            records = await self._read(hosted, row_count)
            byte_count = sum(map(len, records))
        except FlussError as error:
            failure = error
        else:
            response = LimitScanResponse(is_log_table=hosted.kv is None, records=records)
            return Answer(response, partial(self._memory.give_back, byte_count, owner))
        finally:
            self._turns.end(granted, byte_count, owner)
        return await self._answer_error(failure)

    async def _read(self, hosted: HostedBucket, row_count: int) -> Sequence[BytesLike]:
        log, kv, bytes_max = hosted.log(), hosted.kv, self._settings.limit_scan_bytes_max
        if kv is not None:
            return await kv.read(self._readers, partial(first_rows, row_count=row_count, bytes_max=bytes_max))
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, newest_batches, log, row_count, bytes_max
        )

    async def _answer_error(self, error: FlussError) -> LimitScanResponse:
        if error.error_code in RETRIABLE_CODES:
            await self._park.pause(self._settings.retry_answer_delay_ms)
        return LimitScanResponse(error_code=error.error_code, error_message=error.message)


def first_rows(store: KvStore, row_count: int, bytes_max: int) -> list[BytesLike]:
    """Return the first ``row_count`` rows of a store as one value batch. Runs in any thread.

    More than ``bytes_max`` bytes are refused.
    """
    values = store.first_values(row_count, bytes_max=bytes_max)
    return [encode_value_batch(EncodedRows.from_list(values))]


def newest_batches(log: LogTablet, row_count: int, bytes_max: int) -> list[BytesLike]:
    """Return the batches that hold the newest ``row_count`` visible rows. Runs in any thread.

    One read returns bytes of one segment, so there are as many reads as it takes. More than ``bytes_max`` bytes are
    refused: a scan that silently returned fewer rows than there are would be wrong.
    """
    offset_end = log.offset_high_watermark
    offset = max(log.offset_start, offset_end - row_count)
    batches: list[BytesLike] = []
    byte_count = 0
    while offset < offset_end:
        view = log.read(offset, _READ_BYTES, at_least_one_batch=True)
        whole = find_whole_batches(view)
        if not whole.byte_count:
            break
        view = view[: whole.byte_count]
        offset = whole.offset_next(view)
        byte_count += len(view)
        if byte_count > bytes_max:
            raise FlussError(
                f"The newest {row_count} rows have more than {bytes_max} bytes: scan with a lower limit, or read the "
                "log from an offset on",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )
        if whole.magic_highest == MAGIC_V0:
            batches.append(view)
        else:
            batches += [downgrade_to_v0(batch) for batch in iter_batches(view)]
    return batches
