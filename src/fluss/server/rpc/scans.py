"""LimitScan and ScanKv: some rows of a bucket, or all rows of a bucket of a primary-key table.

LimitScan reads the newest rows of a log table: whole batches, the first of which may start before the wanted rows; the
client cuts those off. Of a primary-key table it reads the first rows in the order of their keys' bytes.

ScanKv reads all rows as they are at one moment, in as many answers as it takes. The first call names a bucket and opens
a session, further calls name the session. The first answer tells the offset up to which the changelog is in the rows: a
client that reads the changelog from there on misses nothing and sees nothing twice. After an error the session is gone,
unless the client may just try again.

Errors of both are in the body of the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final, NamedTuple

from fluss.buffers import BytesLike
from fluss.errors import RETRIABLE_CODES, ErrorCode, FlussError, KvDamagedError
from fluss.net.request_handler import Answer, RequestContext
from fluss.protocol.bulk_messages import LimitScanResponse, ScanKvResponse
from fluss.protocol.convert import partition_id
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.value_batch import encode_value_batch
from fluss.row.encoded import EncodedRows
from fluss.schema.acl import AclOperation
from fluss.server.rpc.bucket_access import ReadResources
from fluss.server.tablet.buckets import HostedBucket
from fluss.server.tablet.fetch_memory import RemoteTurns, no_memory
from fluss.server.tablet.log_reads import newest_batches
from fluss.server.tablet.remote.remote_logs import RemoteLogs
from fluss.server.tablet.scan_sessions import NO_LIMIT, ScanSession, ScanSessions
from fluss.storage.kv.store import KvSnapshot, KvStore

# What a limit scan takes of the memory before it knows what it will find.
_TAKEN_BYTES: Final = 4 * 1024 * 1024
# Limit scans that read remote storage at the same time, each in a thread.
_REMOTE_SCANS_MAX: Final = 4
# Rows of one answer, whatever they weigh: while it is made, small rows take more memory than they have bytes.
_ROWS_MAX: Final = 262_144


# LimitScan


class LimitScanner:
    """Answers limit scans. Belongs to the event loop; logs and stores are read by reader threads."""

    def __init__(self, resources: ReadResources, bytes_max: int, remote: RemoteLogs | None = None) -> None:
        """``bytes_max`` is what one answer may hold; a scan of more is refused."""
        self._resources = resources
        self._bytes_max = bytes_max
        self._remote = remote
        self._remote_turns = RemoteTurns(resources.memory, _REMOTE_SCANS_MAX)

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
        table = self._resources.access.table(context, request.table_id, AclOperation.READ)
        if request.limit < 0:
            raise FlussError(
                f"The limit of a scan cannot be negative, got {request.limit}", ErrorCode.INVALID_SCAN_REQUEST
            )
        return self._resources.access.bucket(table, request.table_id, partition_id(request), request.bucket_id)

    async def _scan(self, hosted: HostedBucket, row_count: int, owner: str) -> Answer | LimitScanResponse:
        try:
            hosted = await hosted.open()
            log = hosted.log()
            if hosted.kv is not None:
                # A store that has to be opened is waited for before the turn is taken, not during it.
                await hosted.kv.store()
        except FlussError as error:
            return await self._answer_error(error)
        is_remote = hosted.kv is None and hosted.is_remote(max(0, log.offset_high_watermark - row_count))
        # Remote storage may take its time, and readers of the disk must not wait for it.
        turns = self._remote_turns if is_remote else self._resources.turns
        granted = await turns.begin(_TAKEN_BYTES, owner)
        if granted is None:
            return await self._answer_error(no_memory())
        byte_count = 0
        try:
            records = await self._read(hosted, row_count, is_remote=is_remote)
            byte_count = sum(map(len, records))
        except FlussError as error:
            failure = error
        else:
            response = LimitScanResponse(is_log_table=hosted.kv is None, records=records)
            return Answer(response, partial(self._resources.memory.give_back, byte_count, owner))
        finally:
            turns.end(granted, byte_count, owner)
        return await self._answer_error(failure)

    async def _read(self, hosted: HostedBucket, row_count: int, *, is_remote: bool) -> Sequence[BytesLike]:
        log, kv, bytes_max = hosted.log(), hosted.kv, self._bytes_max
        if kv is not None:
            return await kv.read(
                self._resources.readers, partial(_first_rows, row_count=row_count, bytes_max=bytes_max)
            )
        if is_remote and self._remote is not None:
            archive = self._remote.archive(log)
            return await asyncio.to_thread(newest_batches, log, row_count, bytes_max, archive)
        return await asyncio.get_running_loop().run_in_executor(
            self._resources.readers, newest_batches, log, row_count, bytes_max
        )

    async def _answer_error(self, error: FlussError) -> LimitScanResponse:
        if error.error_code in RETRIABLE_CODES:
            await self._resources.purgatory.hold_back()
        return LimitScanResponse(error_code=error.error_code, error_message=error.public_message)


def _first_rows(store: KvStore, row_count: int, bytes_max: int) -> list[BytesLike]:
    """Return the first ``row_count`` rows of a store as one value batch. Runs in any thread.

    More than ``bytes_max`` bytes are refused.
    """
    values = store.first_values(row_count, bytes_max=bytes_max)
    return [encode_value_batch(EncodedRows.from_list(values))]


# ScanKv


class _Piece(NamedTuple):
    """Some rows of a bucket, and whether there are more."""

    records: bytearray
    row_count: int
    has_more: bool


class KvScanner:
    """Answers scans. Belongs to the event loop; stores are read by reader threads."""

    def __init__(self, resources: ReadResources, sessions: ScanSessions, bytes_max: int) -> None:
        """``bytes_max`` is what one answer may hold; a client that wants more gets less at a time."""
        self._resources = resources
        self._sessions = sessions
        self._bytes_max = bytes_max

    async def scan_kv(self, context: RequestContext, request: pb.ScanKvRequest) -> Answer | ScanKvResponse:
        """Open a session, go on with one, or close one."""
        try:
            if request.HasField("scanner_id") == request.HasField("bucket_scan_req"):
                raise _invalid("name either a bucket, which opens a session, or a session")
            if request.close_scanner:
                return self._close(context, request)
            if request.HasField("bucket_scan_req"):
                return await self._open(context, request)
            return await self._continue(context, request)
        except FlussError as error:
            return await self._answer_error(error)

    async def _answer_error(self, error: FlussError) -> ScanKvResponse:
        if error.error_code in RETRIABLE_CODES:
            await self._resources.purgatory.hold_back()
        return ScanKvResponse(error_code=error.error_code, error_message=error.public_message)

    # Open, continue, close

    async def _open(self, context: RequestContext, request: pb.ScanKvRequest) -> Answer | ScanKvResponse:
        if not request.HasField("call_seq_id") or request.call_seq_id != 0:
            raise _invalid("the call that opens a session has the call_seq_id 0")
        bytes_target = self._bytes_target(request)
        wanted = request.bucket_scan_req
        hosted = await self._bucket(context, wanted).open()
        kv = hosted.key_values()
        self._sessions.claim(hosted.bucket)
        session: ScanSession | None = None
        try:
            pinned = await kv.read(self._resources.readers, _pin)
            if not pinned.has_rows:
                return ScanKvResponse(has_more_results=False, log_offset=pinned.snapshot.state.applied_offset)
            rows_left = wanted.limit if wanted.limit > 0 else NO_LIMIT
            session = self._sessions.add(hosted, context, pinned.store, pinned.snapshot, rows_left)
        finally:
            if session is None:
                self._sessions.give_up_claim(hosted.bucket)
        return await self._read(context, session, bytes_target)

    def _bucket(self, context: RequestContext, wanted: pb.PbScanReqForBucket) -> HostedBucket:
        table = self._resources.access.table(context, wanted.table_id, AclOperation.READ)
        return self._resources.access.bucket(table, wanted.table_id, partition_id(wanted), wanted.bucket_id)

    async def _continue(self, context: RequestContext, request: pb.ScanKvRequest) -> Answer | ScanKvResponse:
        session = self._sessions.find(request.scanner_id, context)
        try:
            if session.is_busy:
                raise _invalid("a session carries out one call at a time")
            if not request.HasField("call_seq_id") or request.call_seq_id != session.call_seq_id + 1:
                raise _invalid(f"the next call has the call_seq_id {session.call_seq_id + 1}")
            bytes_target = self._bytes_target(request)
            self._resources.access.table(context, session.hosted.bucket.table_id, AclOperation.READ)
        except FlussError:
            self._sessions.close(session)
            raise
        session.is_busy = True
        session.call_seq_id += 1
        return await self._read(context, session, bytes_target)

    def _bytes_target(self, request: pb.ScanKvRequest) -> int:
        if request.batch_size_bytes <= 0:
            raise _invalid("batch_size_bytes, the size of an answer, must be set and greater than 0")
        return min(request.batch_size_bytes, self._bytes_max)

    def _close(self, context: RequestContext, request: pb.ScanKvRequest) -> ScanKvResponse:
        if request.HasField("bucket_scan_req"):
            raise _invalid("a call cannot open and close a session")
        try:
            session = self._sessions.find(request.scanner_id, context)
        except FlussError:
            # It is what the client wants, however that has come about.
            return ScanKvResponse(has_more_results=False)
        self._sessions.close(session)
        return ScanKvResponse(has_more_results=False)

    # Read

    async def _read(self, context: RequestContext, session: ScanSession, bytes_target: int) -> Answer | ScanKvResponse:
        """Carry out one call of a session, which is marked as busy."""
        owner = context.peer_address
        is_first, is_over = session.call_seq_id == 0, True
        byte_count = 0
        try:
            granted = await self._resources.memory.take(bytes_target, owner)
            if granted is None:
                # The same call may be made again, unless the client does not even know the session.
                is_over = is_first
                session.call_seq_id -= 1
                raise no_memory()
            try:
                piece = await self._read_piece(session, granted)
                byte_count = len(piece.records)
            finally:
                self._resources.memory.settle(granted, byte_count, owner)
            session.rows_left -= piece.row_count
            is_over = not piece.has_more or session.rows_left <= 0
        finally:
            was_closed = session.is_closed
            self._sessions.call_ended(session)
            if is_over:
                self._sessions.close(session)
        give_back = partial(self._resources.memory.give_back, byte_count, owner)
        if was_closed:
            give_back()
            raise self._sessions.why_gone(session.session_id)
        response = ScanKvResponse(
            scanner_id=session.session_id,
            has_more_results=not is_over,
            records=piece.records,
            log_offset=session.snapshot.state.applied_offset if is_first else None,
        )
        return Answer(response, give_back)

    async def _read_piece(self, session: ScanSession, bytes_target: int) -> _Piece:
        rows_max = min(session.rows_left, _ROWS_MAX)
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._resources.readers, _read_rows, session.snapshot, bytes_target, rows_max
            )
        except FlussError as error:
            # Whatever it is, the rows as they were then cannot be had any more.
            self._sessions.abandon(session)
            kv = session.hosted.kv
            if isinstance(error, KvDamagedError) and kv is not None:
                kv.store_failed(session.store, error)
            raise self._sessions.why_gone(session.session_id) from error


class _Pinned(NamedTuple):
    """A bucket as it is, and the store it is in."""

    store: KvStore
    snapshot: KvSnapshot
    has_rows: bool


def _pin(store: KvStore) -> _Pinned:
    """Take a snapshot; one without rows is closed at once. Runs in any thread."""
    snapshot = store.snapshot()
    has_rows = snapshot.has_more
    if not has_rows:
        snapshot.close()
    return _Pinned(store, snapshot, has_rows)


def _read_rows(snapshot: KvSnapshot, bytes_target: int, rows_max: int) -> _Piece:
    """Read the next rows, at least one. Runs in any thread."""
    values = snapshot.read(bytes_target, rows_max)
    return _Piece(encode_value_batch(EncodedRows.from_list(values)), len(values), snapshot.has_more)


def _invalid(reason: str) -> FlussError:
    return FlussError(f"This is no way to scan: {reason}", ErrorCode.INVALID_SCAN_REQUEST)
