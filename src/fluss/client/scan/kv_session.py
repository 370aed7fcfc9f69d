"""One scan session: the rows of one bucket as they were at one moment, batch after batch.

    open -> a snapshot at ``log_offset``, and its first rows
    next -> further rows, as long as ``has_more``; after the last ones the server has closed the session by itself
    close -> gives the snapshot up before its end

A session lives on the server that opened it. After an error it cannot be continued: the server counts the calls, and
one whose answer is lost cannot be repeated. The exception is a server that has no memory for an answer just now: it
says so with one of ``BUSY_CODES``, and has not counted the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from fluss.client.kernel.cluster import Cluster
from fluss.errors import CorruptMessageError, ErrorCode, FlussError, error_for_code
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.records import ScanKvResponse
from fluss.schema.table import TableBucket

# After these the same call may be made again. If it was a lost answer after all, the server refuses it.
BUSY_CODES: Final = frozenset({ErrorCode.REQUEST_TIME_OUT, ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION})
# A server that does not answer forgets an abandoned session by itself, after some minutes.
_CLOSE_TIMEOUT_S: Final = 5.0

logger = logging.getLogger(__name__)


class KvSession:
    """A session of one bucket. Belongs to the loop of the cluster; one call at a time."""

    def __init__(self, cluster: Cluster, leader_id: int, bucket: TableBucket) -> None:
        self._cluster = cluster
        self._leader_id = leader_id
        self._bucket = bucket
        self._scanner_id: bytes | None = None
        self._call_count = 0
        # Set by ``open``: every change before this offset is in the rows, and none from it on.
        self.log_offset = 0
        self.has_more = False

    async def open(self, *, bytes_max: int, row_limit: int | None = None) -> memoryview:
        """Pin the rows of now and return the first of them, about ``bytes_max`` bytes but at least one row.

        ``row_limit`` is for the whole session. The result is empty for an empty bucket. Raises 12, 20, 69 and the like.
        """
        request = pb.ScanKvRequest(
            bucket_scan_req=pb.PbScanReqForBucket(
                table_id=self._bucket.table_id,
                partition_id=self._bucket.partition_id,
                bucket_id=self._bucket.bucket_id,
                limit=row_limit,
            ),
            call_seq_id=0,
            batch_size_bytes=bytes_max,
        )
        opening = asyncio.ensure_future(self._ask(request))
        try:
            response = await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The server opens the session all the same, and has room for few of them.
            with contextlib.suppress(FlussError):
                self._accept(await opening)
            await self.close()
            raise
        records = self._accept(response)
        if response.log_offset is None or response.log_offset < 0:
            raise CorruptMessageError(f"a server has opened {self._bucket} without saying at which offset")
        self.log_offset = response.log_offset
        return records

    async def next(self, *, bytes_max: int) -> memoryview:
        """Return further rows; only while ``has_more``. After an error the session is gone, except for BUSY_CODES."""
        assert self._scanner_id is not None, "there is nothing more"
        request = pb.ScanKvRequest(
            scanner_id=self._scanner_id, call_seq_id=self._call_count + 1, batch_size_bytes=bytes_max
        )
        try:
            response = await self._ask(request)
        except FlussError as error:
            if error.error_code not in BUSY_CODES:
                self._scanner_id = None
            raise
        self._call_count += 1
        return self._accept(response)

    async def close(self) -> None:
        """Tell the server, if it still keeps the session, that nobody needs it. Never fails; may be called again."""
        scanner_id, self._scanner_id = self._scanner_id, None
        self.has_more = False
        if scanner_id is None:
            return
        request = pb.ScanKvRequest(scanner_id=scanner_id, close_scanner=True)
        try:
            await self._cluster.request(self._leader_id, apis.SCAN_KV, request, timeout_s=_CLOSE_TIMEOUT_S)
        except FlussError as error:
            logger.debug("the scan session of %s was not closed: %s", self._bucket, error.message)

    async def _ask(self, request: pb.ScanKvRequest) -> ScanKvResponse:
        response = await self._cluster.request(self._leader_id, apis.SCAN_KV, request)
        if response.error_code:
            raise error_for_code(response.error_code, response.error_message)
        return response

    def _accept(self, response: ScanKvResponse) -> memoryview:
        self.has_more = bool(response.has_more_results)
        if response.scanner_id is not None:
            self._scanner_id = bytes(response.scanner_id)
        records = response.records_view
        if not self.has_more:
            self._scanner_id = None
        elif self._scanner_id is None or not records:
            # Without this, a broken server could be asked for ever.
            raise CorruptMessageError(f"a server has announced more rows of {self._bucket} and sent none")
        return records
