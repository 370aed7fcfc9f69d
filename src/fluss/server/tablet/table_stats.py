"""GetTableStats: how many rows the buckets of a table hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from fluss.errors import RETRIABLE_CODES, ErrorCode, FlussError
from fluss.net.listener import RequestContext
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.acl import AclOperation
from fluss.schema.table_options import CHANGELOG_IMAGE, ChangelogImage
from fluss.server.kv.bucket import KvBucket
from fluss.server.tablet.access import BucketAccess
from fluss.server.tablet.buckets import HostedTable
from fluss.server.tablet.fetch_wait import FetchPark
from fluss.server.tablet.settings import TabletSettings


@dataclass(slots=True, eq=False)
class _Count:
    """The rows of one bucket: how many, or why that is not known, or who is still to be asked."""

    bucket_id: int
    partition_id: int | None
    row_count: int = 0
    failure: FlussError | None = None
    kv: KvBucket | None = None


class TableStats:
    """Counts rows. Belongs to the event loop."""

    def __init__(self, access: BucketAccess, park: FetchPark, settings: TabletSettings) -> None:
        self._access = access
        self._park = park
        self._settings = settings

    def get_table_stats(
        self, context: RequestContext, request: pb.GetTableStatsRequest
    ) -> pb.GetTableStatsResponse | Awaitable[pb.GetTableStatsResponse]:
        """Answer for every bucket: in a log table every visible offset is a row, primary-key tables count theirs."""
        counts = [
            _Count(wanted.bucket_id, wanted.partition_id if wanted.HasField("partition_id") else None)
            for wanted in request.buckets_req
        ]
        try:
            table = self._countable_table(context, request.table_id)
        except FlussError as error:
            for count in counts:
                count.failure = error
            return _response(counts)
        for count in counts:
            try:
                self._begin(table, request.table_id, count)
            except FlussError as error:
                count.failure = error
        if any(count.kv is not None for count in counts):
            return self._ask_stores(counts)
        return _response(counts)

    def _countable_table(self, context: RequestContext, table_id: int) -> HostedTable | None:
        hosted = self._access.table(context, table_id, AclOperation.READ)
        if hosted is None or not hosted.table.has_primary_key:
            return hosted
        if CHANGELOG_IMAGE.of(hosted.table.descriptor.properties) is ChangelogImage.WAL:
            raise FlussError(
                f"The rows of table {hosted.table.path} are not counted: with '{CHANGELOG_IMAGE.key}' = "
                f"'{ChangelogImage.WAL}' nothing tells new rows from changed ones; scan the table instead",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        return hosted

    def _begin(self, table: HostedTable | None, table_id: int, count: _Count) -> None:
        hosted = self._access.bucket(table, table_id, count.partition_id, count.bucket_id)
        log = hosted.log()
        count.kv = hosted.kv
        count.row_count = log.offset_high_watermark - log.offset_start

    async def _ask_stores(self, counts: Sequence[_Count]) -> pb.GetTableStatsResponse:
        """Ask the stores of all buckets, which are opened if they are not open."""
        await asyncio.gather(*(_ask_store(count, count.kv) for count in counts if count.kv is not None))
        codes = {0 if count.failure is None else count.failure.error_code for count in counts}
        if codes <= RETRIABLE_CODES:
            await self._park.pause(self._settings.retry_answer_delay_ms)
        return _response(counts)


async def _ask_store(count: _Count, kv: KvBucket) -> None:
    try:
        row_count = await kv.row_count()
    except FlussError as error:
        count.failure = error
        return
    assert row_count is not None, "all tables are counted but those that were refused"
    count.row_count = row_count


def _response(counts: Sequence[_Count]) -> pb.GetTableStatsResponse:
    response = pb.GetTableStatsResponse()
    for count in counts:
        answer = response.buckets_resp.add(bucket_id=count.bucket_id, partition_id=count.partition_id)
        if count.failure is not None:
            answer.error_code, answer.error_message = count.failure.error_code, count.failure.message
        else:
            answer.row_count = count.row_count
    return response
