"""Reads of keys in many buckets: what lookups and prefix lookups have in common.

    prepare   every bucket of the request becomes a read, or a failure that is answered
    read      in a reader thread, which also encodes what it finds
    answer    every bucket by itself, in the order of the request

Nothing fails as a whole. What answers hold in memory is counted from the read on until they have left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from fluss.errors import RETRIABLE_CODES, ErrorCode, FlussError
from fluss.net.listener import Answer, RequestContext
from fluss.protocol.codec import EncodedMessage
from fluss.protocol.lookups import LookupAnswer
from fluss.schema.acl import AclOperation
from fluss.server.kv.bucket import KvBucket
from fluss.server.kv.key_versions import check_key_version
from fluss.server.model import Table
from fluss.server.tablet.access import BucketAccess
from fluss.server.tablet.buckets import HostedTable
from fluss.server.tablet.fetch_memory import FetchMemory, no_memory
from fluss.server.tablet.fetch_wait import FetchPark
from fluss.server.tablet.read_turns import ReadTurns
from fluss.server.tablet.settings import TabletSettings
from fluss.storage.damage import KvDamagedError
from fluss.storage.kv.store import KvStore

# What a key is expected to find, and what a request takes of the memory at most before it knows better.
_EXPECTED_BYTES_PER_KEY: Final = 1024
_TAKEN_BYTES_MAX: Final = 4 * 1024 * 1024
# Buckets that are read by one job of a thread, and stores that are opened at the same time.
_BUCKETS_PER_JOB: Final = 64
# Codes that those who look rows up do not know, and what they are told instead.
_TOLD_CODES: Final[dict[int, int]] = {
    ErrorCode.CLIENT_ERROR: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION: ErrorCode.KV_STORAGE_EXCEPTION,
}


@dataclass(slots=True, eq=False)
class BucketRead:
    """What becomes of the keys of one bucket."""

    bucket_id: int
    partition_id: int | None
    keys: list[bytes]
    # The table as it was when the request came, and the rows of the bucket. Both are there unless it has failed.
    table: Table | None = None
    kv: KvBucket | None = None
    store: KvStore | None = None
    # What was found, as it is sent.
    encoded: bytes = b""
    failure: FlussError | None = None

    @property
    def answer(self) -> LookupAnswer:
        if self.failure is None:
            return LookupAnswer(self.bucket_id, self.partition_id, encoded=self.encoded)
        code = self.failure.error_code
        return LookupAnswer(self.bucket_id, self.partition_id, _TOLD_CODES.get(code, code), self.failure.message)


@dataclass(slots=True, eq=False)
class ReadRequest:
    """One request on its way to its answer."""

    # The connection that waits for it, and holds the memory of what is read.
    owner: str
    reads: list[BucketRead]
    # What was read and is counted as held in memory.
    byte_count: int = 0


# Looks for the keys of a bucket in its store and returns what is found, encoded; more than so many bytes raise 13.
ReadKeys: TypeAlias = Callable[[KvStore, BucketRead, int], bytes]
Respond: TypeAlias = Callable[[Sequence[LookupAnswer]], EncodedMessage]


class BucketReads:
    """Carries out reads. Belongs to the event loop; stores are read by ``readers``."""

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

    # Prepare

    def prepare(
        self, context: RequestContext, table_id: int, wanted: Iterable[Any], *operations: AclOperation
    ) -> ReadRequest:
        """Find the buckets of a request, which are PbLookupReqForBuckets or PbPrefixLookupReqForBuckets."""
        reads = [
            BucketRead(
                entry.bucket_id, entry.partition_id if entry.HasField("partition_id") else None, list(entry.keys)
            )
            for entry in wanted
        ]
        request = ReadRequest(context.peer_address, reads)
        try:
            table = self._table(context, table_id, operations)
        except FlussError as error:
            for read in reads:
                read.failure = error
            return request
        for read in reads:
            try:
                read.kv = self._access.bucket(table, table_id, read.partition_id, read.bucket_id).key_values()
            except FlussError as error:
                # There may be very many of them, and the traceback would keep everything that was looked at.
                read.failure = error.with_traceback(None)
            else:
                assert table is not None, "a table that is not here has no buckets"
                read.table = table.table
        return request

    def _table(self, context: RequestContext, table_id: int, operations: Sequence[AclOperation]) -> HostedTable | None:
        table: HostedTable | None = None
        for operation in operations:
            table = self._access.table(context, table_id, operation)
        if table is not None:
            check_key_version(table.table, context.api_version)
        return table

    # Read

    async def read(self, request: ReadRequest, reads: Iterable[BucketRead], read_keys: ReadKeys) -> None:
        """Carry out some of the reads of a request: those among them that have not failed."""
        possible = [read for read in reads if read.failure is None]
        for first in range(0, len(possible), _BUCKETS_PER_JOB):
            await self._read(request, possible[first : first + _BUCKETS_PER_JOB], read_keys)

    async def _read(self, request: ReadRequest, reads: Sequence[BucketRead], read_keys: ReadKeys) -> None:
        await asyncio.gather(*(_open(read) for read in reads if not _is_open(read)))
        key_count = sum(len(read.keys) for read in reads)
        granted = await self._turns.begin(
            min(_TAKEN_BYTES_MAX, _EXPECTED_BYTES_PER_KEY * max(1, key_count)), request.owner
        )
        if granted is None:
            for read in reads:
                read.failure = read.failure or no_memory()
            return
        bytes_max = self._settings.kv.lookup_bytes_max - request.byte_count
        read_bytes = 0
        try:
            read_bytes = await asyncio.get_running_loop().run_in_executor(
                self._readers, _read_all, reads, read_keys, bytes_max
            )
        finally:
            request.byte_count += read_bytes
            self._turns.end(granted, read_bytes, request.owner)
        _report_damage(reads)

    # Answer

    async def serve(
        self, request: ReadRequest, work: Callable[[], Awaitable[None]], respond: Respond
    ) -> Answer | EncodedMessage:
        """Do the work, and answer with what has become of the reads."""
        try:
            await work()
            codes = {0 if read.failure is None else read.failure.error_code for read in request.reads}
            if codes and codes <= RETRIABLE_CODES:
                await self._park.pause(self._settings.retry_answer_delay_ms)
        except BaseException:
            self._memory.give_back(request.byte_count, request.owner)
            raise
        response = respond([read.answer for read in request.reads])
        if not request.byte_count:
            return response
        return Answer(response, partial(self._memory.give_back, request.byte_count, request.owner))


def _is_open(read: BucketRead) -> bool:
    """Give a read its store, if that needs no waiting."""
    assert read.kv is not None, "it has failed otherwise"
    read.store = read.kv.open_store()
    return read.store is not None


async def _open(read: BucketRead) -> None:
    assert read.kv is not None, "it has failed otherwise"
    try:
        read.store = await read.kv.store()
    except FlussError as error:
        read.failure = error


def _read_all(reads: Sequence[BucketRead], read_keys: ReadKeys, bytes_max: int) -> int:
    """Read some buckets and return how many bytes they have in the answer. Runs in any thread."""
    byte_count = 0
    for read in reads:
        if read.store is None:
            continue
        try:
            read.encoded = read_keys(read.store, read, bytes_max - byte_count)
        except FlussError as error:
            read.failure = error
        else:
            byte_count += len(read.encoded)
    return byte_count


def _report_damage(reads: Sequence[BucketRead]) -> None:
    for read in reads:
        if isinstance(read.failure, KvDamagedError) and read.kv is not None and read.store is not None:
            read.kv.store_failed(read.store, read.failure)
