"""GetTableStats: how many rows the buckets of a table hold."""

from __future__ import annotations

from fluss.errors import FlussError
from fluss.net.listener import RequestContext
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.acl import AclOperation
from fluss.server.tablet.access import BucketAccess, primary_key_table_not_served
from fluss.server.tablet.buckets import HostedTable


class TableStats:
    """Counts rows, from what is in memory. Belongs to the event loop."""

    def __init__(self, access: BucketAccess) -> None:
        self._access = access

    def get_table_stats(self, context: RequestContext, request: pb.GetTableStatsRequest) -> pb.GetTableStatsResponse:
        """Answer for every bucket: in a log table every visible offset is a row."""
        response = pb.GetTableStatsResponse()
        refusal: FlussError | None = None
        try:
            table = self._readable_table(context, request.table_id)
        except FlussError as error:
            refusal = error
        for wanted in request.buckets_req:
            answer = response.buckets_resp.add(bucket_id=wanted.bucket_id)
            partition_id = None
            if wanted.HasField("partition_id"):
                answer.partition_id = partition_id = wanted.partition_id
            try:
                if refusal is not None:
                    raise refusal
                log = self._access.bucket(table, request.table_id, partition_id, wanted.bucket_id).log()
            except FlussError as error:
                answer.error_code, answer.error_message = error.error_code, error.message
            else:
                answer.row_count = log.offset_high_watermark - log.offset_start
        return response

    def _readable_table(self, context: RequestContext, table_id: int) -> HostedTable | None:
        table = self._access.table(context, table_id, AclOperation.READ)
        if table is not None and table.table.has_primary_key:
            raise primary_key_table_not_served(table, "Cannot count the rows of")
        return table
