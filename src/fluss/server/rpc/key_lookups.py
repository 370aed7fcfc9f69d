"""Lookup and PrefixLookup: the stored values of keys in many buckets, in the order of the keys.

    prepare   every bucket of the request becomes a read, or a failure that is answered
    read      in a reader thread, which also encodes what it finds
    insert    if wanted, rows for the keys that a lookup did not find, which are then read again
    answer    every bucket by itself, in the order of the request

A lookup of a few keys that are all in memory is carried out at once: a detour through a thread would take longer than
the lookup. A request never fails as a whole. What answers hold in memory is counted from the read on until they have
left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any, Final, TypeAlias

import numpy as np

from fluss.buffers import BytesLike, byte_view
from fluss.errors import RETRIABLE_CODES, ErrorCode, FlussError, KvDamagedError
from fluss.net.request_handler import Answer, RequestContext
from fluss.protocol.codec import EncodedMessage
from fluss.protocol.lookup_messages import (
    LookupAnswer,
    encode_value_columns,
    encode_value_lists,
    encode_values,
    lookup_response,
    prefix_lookup_response,
)
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.row.hashed_keys import HashedKeys
from fluss.schema.acl import AclOperation
from fluss.schema.table import TableBucket
from fluss.server.kv.batches import KvPut, KvPutResult
from fluss.server.kv.bucket import KvBucket
from fluss.server.merge.engines import check_targets
from fluss.server.merge.key_only_rows import KeyOnlyRows
from fluss.server.model import CatalogView, Partition, Table
from fluss.server.rpc.bucket_access import ReadResources, check_acks, check_key_version, is_try_again
from fluss.server.tablet.buckets import HostedTable, NotOpenError, not_open, open_all, unknown_bucket
from fluss.server.tablet.disk_guard import DiskGuard
from fluss.server.tablet.fetch_memory import no_memory
from fluss.storage.kv.store import KvStore
from fluss.storage.kv.store_lookups import find_in_stores, get_in_stores

# What a key is expected to find, and what a request takes of the memory at most before it knows better.
_EXPECTED_BYTES_PER_KEY: Final = 1024
_TAKEN_BYTES_MAX: Final = 4 * 1024 * 1024
# Stores that are opened at the same time.
_OPENED_AT_ONCE: Final = 64
# What is read by one job of a thread: so many buckets, and more of them as long as they have few keys together.
_BUCKETS_PER_JOB: Final = 64
_FEW_KEYS_PER_JOB: Final = 2048
# Codes that clients do not know in answers to lookups, and what they are told instead.
_TOLD_CODES: Final[dict[int, int]] = {
    ErrorCode.CLIENT_ERROR: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION: ErrorCode.KV_STORAGE_EXCEPTION,
}
# From so many keys of a bucket on it is faster not to look at them one by one in a memtable. What comes from RocksDB
# comes as objects anyway.
_MANY_KEYS_MIN: Final = 32
# What is looked up on the event loop: a few microseconds for each key, and values that are quickly copied.
_KEYS_AT_ONCE_MAX: Final = 128
_BYTES_AT_ONCE_MAX: Final = 256 * 1024


# What both have in common


@dataclass(slots=True, eq=False)
class BucketLookup:
    """What becomes of the keys of one bucket."""

    bucket_id: int
    partition_id: int | None
    keys: list[bytes]
    # The table as it was when the request came, and the rows of the bucket. Both are there unless it has failed.
    table: Table | None = None
    kv: KvBucket | None = None
    store: KvStore | None = None
    # What was found, as it is sent.
    encoded: BytesLike = b""
    failure: FlussError | None = None

    def refuse(self, error: FlussError) -> None:
        """Note what is wrong with the read, if nothing else is."""
        if self.failure is None or isinstance(self.failure, NotOpenError):
            self.failure = error

    @property
    def answer(self) -> LookupAnswer:
        if self.failure is None:
            return LookupAnswer(self.bucket_id, self.partition_id, encoded=self.encoded)
        code = self.failure.error_code
        return LookupAnswer(self.bucket_id, self.partition_id, _TOLD_CODES.get(code, code), self.failure.public_message)


@dataclass(slots=True, eq=False)
class ReadRequest:
    """One request on its way to its answer."""

    # The connection that waits for it, and holds the memory of what is read.
    owner: str
    reads: list[BucketLookup]
    # What was read and is counted as held in memory.
    byte_count: int = 0


# Looks for the keys of a bucket in its store and returns what is found, encoded; more than so many bytes raise 13.
ReadKeys: TypeAlias = Callable[[KvStore, BucketLookup, int], BytesLike]
# Does that for many buckets, of which some may have been read, and returns how many bytes there are in the answer.
ReadAll: TypeAlias = Callable[[Sequence[BucketLookup], int], int]
Respond: TypeAlias = Callable[[Sequence[LookupAnswer]], EncodedMessage]


class KeyReads:
    """Carries out reads. Belongs to the event loop; stores are read by reader threads."""

    def __init__(self, resources: ReadResources, bytes_max: int) -> None:
        """``bytes_max`` is what one answer may hold; a request for more is refused."""
        self._resources = resources
        self._bytes_max = bytes_max

    # Prepare

    def prepare(
        self, context: RequestContext, table_id: int, wanted: Iterable[Any], *operations: AclOperation
    ) -> ReadRequest:
        """Find the buckets of a request, which are PbLookupReqForBuckets or PbPrefixLookupReqForBuckets."""
        reads = [
            BucketLookup(
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
                bucket = self._resources.access.bucket(table, table_id, read.partition_id, read.bucket_id)
                assert table is not None, "a table that is not here has no buckets"
                read.table = table.table
                read.kv = bucket.key_values()
            except FlussError as error:
                # There may be very many of them, and the traceback would keep everything that was looked at.
                read.failure = error.with_traceback(None)
        return request

    def _table(self, context: RequestContext, table_id: int, operations: Sequence[AclOperation]) -> HostedTable | None:
        table: HostedTable | None = None
        for operation in operations:
            table = self._resources.access.table(context, table_id, operation)
        if table is not None:
            check_key_version(table.table, context.api_version)
        return table

    # Read

    async def read(self, request: ReadRequest, reads: Iterable[BucketLookup], read_keys: ReadKeys) -> None:
        """Carry out some of the reads of a request: those among them that have not failed."""
        await self.read_all(request, reads, partial(_read_all, read_keys))

    async def read_all(self, request: ReadRequest, reads: Iterable[BucketLookup], read_all: ReadAll) -> None:
        """Do the same with what reads many buckets at once."""
        for job in _jobs([read for read in reads if read.failure is None]):
            await self._read(request, job, read_all)

    async def _read(self, request: ReadRequest, reads: Sequence[BucketLookup], read_all: ReadAll) -> None:
        unopened = [read for read in reads if not _is_open(read)]
        for first in range(0, len(unopened), _OPENED_AT_ONCE):
            await asyncio.gather(*map(_open, unopened[first : first + _OPENED_AT_ONCE]))
        key_count = sum([len(read.keys) for read in reads])
        granted = await self._resources.turns.begin(
            min(_TAKEN_BYTES_MAX, _EXPECTED_BYTES_PER_KEY * max(1, key_count)), request.owner
        )
        if granted is None:
            for read in reads:
                read.failure = read.failure or no_memory()
            return
        bytes_max = self._bytes_max - request.byte_count
        read_bytes = 0
        try:
            read_bytes = await asyncio.get_running_loop().run_in_executor(
                self._resources.readers, read_all, reads, bytes_max
            )
        finally:
            request.byte_count += read_bytes
            self._resources.turns.end(granted, read_bytes, request.owner)
        _report_damage(reads)

    # Answer

    async def serve(
        self, request: ReadRequest, work: Callable[[], Awaitable[None]], respond: Respond
    ) -> Answer | EncodedMessage:
        """Open the buckets that are not open, do the work, and answer with what has become of the reads."""
        try:
            if unopened := not_open(read.failure for read in request.reads):
                await open_all(unopened)
                _find_stores(request.reads)
            await work()
            if is_try_again(read.failure for read in request.reads):
                await self._resources.purgatory.hold_back()
        except BaseException:
            self._resources.memory.give_back(request.byte_count, request.owner)
            raise
        response = respond([read.answer for read in request.reads])
        if not request.byte_count:
            return response
        return Answer(response, partial(self._resources.memory.give_back, request.byte_count, request.owner))


def _find_stores(reads: Iterable[BucketLookup]) -> None:
    """Find the rows by key of the buckets that were not open before."""
    for read in reads:
        if isinstance(read.failure, NotOpenError):
            try:
                read.kv = read.failure.bucket.key_values()
                read.failure = None
            except FlussError as error:
                read.failure = error.with_traceback(None)


def _is_open(read: BucketLookup) -> bool:
    """Give a read its store, if that needs no waiting."""
    assert read.kv is not None, "it has failed otherwise"
    read.store = read.kv.open_store()
    return read.store is not None


async def _open(read: BucketLookup) -> None:
    assert read.kv is not None, "it has failed otherwise"
    try:
        read.store = await read.kv.store()
    except FlussError as error:
        read.failure = error


def _jobs(reads: Sequence[BucketLookup]) -> Iterator[Sequence[BucketLookup]]:
    """Cut reads into what is read by one job of a thread."""
    first, key_count = 0, 0
    for index, read in enumerate(reads):
        if index - first >= _BUCKETS_PER_JOB and key_count + len(read.keys) > _FEW_KEYS_PER_JOB:
            yield reads[first:index]
            first, key_count = index, 0
        # A bucket without keys is some work, too.
        key_count += len(read.keys) or 1
    if reads:
        yield reads[first:]


def _read_all(read_keys: ReadKeys, reads: Sequence[BucketLookup], bytes_max: int) -> int:
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


def _report_damage(reads: Sequence[BucketLookup]) -> None:
    for read in reads:
        if isinstance(read.failure, KvDamagedError) and read.kv is not None and read.store is not None:
            read.kv.store_failed(read.store, read.failure)


# Lookup


# The keys that were not found, each once.
Missing: TypeAlias = dict[BucketLookup, list[bytes]]


class KvLookup:
    """Answers lookups. Belongs to the event loop."""

    def __init__(self, reads: KeyReads, insertion: KeyInsertion) -> None:
        self._reads = reads
        self._insertion = insertion

    def lookup(
        self, context: RequestContext, request: pb.LookupRequest
    ) -> EncodedMessage | Awaitable[Answer | EncodedMessage]:
        """Answer at once if everything is in memory and nothing is to be inserted."""
        if request.insert_if_not_exists:
            return self._look_up_or_insert(context, request)
        wanted = self._reads.prepare(context, request.table_id, request.buckets_req, AclOperation.READ)
        # A bucket without keys is some work, too.
        key_count = sum(max(1, len(read.keys)) for read in wanted.reads)
        if key_count <= _KEYS_AT_ONCE_MAX and all(map(_is_answered, wanted.reads)):
            return lookup_response([read.answer for read in wanted.reads])
        work = partial(self._reads.read_all, wanted, wanted.reads, _look_up_all)
        return self._reads.serve(wanted, work, lookup_response)

    def _look_up_or_insert(
        self, context: RequestContext, request: pb.LookupRequest
    ) -> Awaitable[Answer | EncodedMessage]:
        operations = AclOperation.READ, AclOperation.WRITE
        wanted = self._reads.prepare(context, request.table_id, request.buckets_req, *operations)
        try:
            _check_insertion(request)
        except FlussError as error:
            for read in wanted.reads:
                read.refuse(error)
        return self._reads.serve(wanted, partial(self._read_or_insert, wanted, request.timeout_ms), lookup_response)

    async def _read_or_insert(self, wanted: ReadRequest, timeout_ms: int) -> None:
        missing: Missing = {}
        await self._reads.read(wanted, wanted.reads, partial(_look_up_noting, missing))
        if missing:
            await self._insertion.insert(missing, timeout_ms)
            await self._reads.read(wanted, missing, _look_up)


def _look_up_all(reads: Sequence[BucketLookup], bytes_max: int) -> int:
    """Look up the keys of some buckets, as many as possible at once, and encode what there is. Runs in any thread."""
    many: list[BucketLookup] = []
    few: list[BucketLookup] = []
    for read in reads:
        if read.store is not None:
            is_many = len(read.keys) >= _MANY_KEYS_MIN and read.store.has_memtable_rows
            (many if is_many else few).append(read)
    byte_count = _look_up_columns(many, bytes_max) if many else 0
    return byte_count + _look_up_values(few, bytes_max - byte_count)


def _look_up_columns(reads: Sequence[BucketLookup], bytes_max: int) -> int:
    """Look up many keys of some buckets without an object for each value."""
    stores = [(read.store, ()) for read in reads if read.store is not None]
    key_ends = list(accumulate(len(read.keys) for read in reads))
    keys = HashedKeys.from_list(list(chain.from_iterable(read.keys for read in reads)))
    try:
        found = find_in_stores(stores, keys, key_ends, bytes_max)
    except FlussError:
        # Each of them says by itself what is wrong.
        return _read_all(_look_up, reads, bytes_max)
    encoded = encode_value_columns(*found.by_key(len(keys)))
    view = byte_view(encoded.data)
    value_ends = [0, *encoded.ends[np.array(key_ends) - 1].tolist()]
    for read, (start, end) in zip(reads, pairwise(value_ends), strict=True):
        read.encoded = view[start:end]
    return len(view)


def _look_up_values(reads: Sequence[BucketLookup], bytes_max: int) -> int:
    """Look up the keys of some buckets, which have stores, those of one database at once."""
    # A single one gains nothing.
    found: list[list[bytes | None] | None] = [None]
    if len(reads) > 1:
        asked = [(read.store, read.keys) for read in reads if read.store is not None]
        found = get_in_stores(asked, bytes_max=bytes_max)
    byte_count = 0
    left: list[BucketLookup] = []
    for read, values in zip(reads, found, strict=False):
        if values is None:
            left.append(read)
        else:
            read.encoded = encode_values(values)
            byte_count += len(read.encoded)
    return byte_count + _read_all(_look_up, left, bytes_max - byte_count)


def _look_up(store: KvStore, read: BucketLookup, bytes_max: int) -> BytesLike:
    """Look up the keys of a bucket, and encode what there is. Runs in any thread."""
    return encode_values(store.get_many(read.keys, bytes_max=bytes_max))


def _look_up_noting(missing: Missing, store: KvStore, read: BucketLookup, bytes_max: int) -> bytes:
    """Look up the keys of a bucket; if some are missing, note them, each once, and keep nothing else."""
    values = store.get_many(read.keys, bytes_max=bytes_max)
    if None not in values:
        return encode_values(values)
    missing[read] = list(dict.fromkeys(key for key, value in zip(read.keys, values, strict=True) if value is None))
    return b""


def _is_answered(read: BucketLookup) -> bool:
    """Look up the keys of a bucket if they are in memory; return whether that is all there is to do."""
    if read.failure is not None:
        # A client that may try again is made to wait first.
        return read.failure.error_code not in RETRIABLE_CODES
    store = None if read.kv is None else read.kv.open_store()
    if store is None:
        return False
    try:
        values = store.get_cached(read.keys, bytes_max=_BYTES_AT_ONCE_MAX)
    except FlussError:
        return False
    if values is None:
        return False
    read.encoded = encode_values(values)
    return True


def _check_insertion(request: pb.LookupRequest) -> None:
    """Refuse a request that does not say what an insertion needs."""
    if not (request.HasField("acks") and request.HasField("timeout_ms")):
        raise FlussError("A lookup that inserts missing keys needs acks and timeout_ms", ErrorCode.UNKNOWN_SERVER_ERROR)
    check_acks(request.acks)


class KeyInsertion:
    """Inserts rows for keys that a lookup did not find. Belongs to the event loop; rows are made by ``readers``.

    An insertion is a partial update of nothing but the primary key. It changes nothing where there is a row, so two
    lookups may insert the same key at the same time.
    """

    def __init__(self, catalog: CatalogView, disk_guard: DiskGuard, readers: Executor) -> None:
        self._catalog = catalog
        self._disk_guard = disk_guard
        self._readers = readers

    async def insert(self, missing: Mapping[BucketLookup, list[bytes]], timeout_ms: int) -> None:
        """Insert a row for every key, and wait until all can be found. What goes wrong is noted in the reads.

        Whatever acks a client wants: rows can be read when they are on the disk.
        """
        puts: dict[asyncio.Future[KvPutResult], BucketLookup] = {}
        for read, keys in missing.items():
            try:
                self._disk_guard.check_write()
                puts[await self._put(read, keys)] = read
            except FlussError as error:
                read.failure = error
        if not puts:
            return
        done, late = await asyncio.wait(puts, timeout=max(timeout_ms, 0) / 1000)
        for put in done:
            try:
                put.result()
            except FlussError as error:
                puts[put].failure = error
        for put in late:
            puts[put].failure = FlussError(
                f"The rows were not on disk within {timeout_ms} ms; they may still be written",
                ErrorCode.REQUEST_TIME_OUT,
            )

    async def _put(self, read: BucketLookup, keys: list[bytes]) -> asyncio.Future[KvPutResult]:
        table, kv = read.table, read.kv
        assert table is not None, "it has failed otherwise"
        assert kv is not None, "it has failed otherwise"
        rows = KeyOnlyRows(table, self._partition(table, read))
        check_targets(table, rows.targets)
        batch = await asyncio.get_running_loop().run_in_executor(self._readers, rows.batch, keys)
        return kv.put(KvPut(memoryview(batch), rows.targets))

    def _partition(self, table: Table, read: BucketLookup) -> Partition | None:
        if read.partition_id is None:
            return None
        partition = self._catalog.partition_by_id(read.partition_id)
        if partition is None:
            raise unknown_bucket(TableBucket.new_with_partition(table.table_id, read.partition_id, read.bucket_id))
        return partition


# PrefixLookup


class KvPrefixLookup:
    """Answers prefix lookups. Belongs to the event loop."""

    def __init__(self, reads: KeyReads) -> None:
        self._reads = reads

    def prefix_lookup(
        self, context: RequestContext, request: pb.PrefixLookupRequest
    ) -> Awaitable[Answer | EncodedMessage]:
        """Answer with one list for each prefix, empty if there is no such key."""
        wanted = self._reads.prepare(context, request.table_id, request.buckets_req, AclOperation.READ)
        for read in wanted.reads:
            if b"" in read.keys:
                read.refuse(
                    FlussError(
                        "A prefix lookup needs the first columns of a key; to read a whole bucket, scan it",
                        ErrorCode.UNKNOWN_SERVER_ERROR,
                    )
                )
        work = partial(self._reads.read, wanted, wanted.reads, _look_up_prefixes)
        return self._reads.serve(wanted, work, prefix_lookup_response)


def _look_up_prefixes(store: KvStore, read: BucketLookup, bytes_max: int) -> bytes:
    """Look up the prefixes of a bucket, and encode what there is. Runs in any thread."""
    lists = []
    for prefix in read.keys:
        values = store.prefix_values(prefix, bytes_max=bytes_max)
        bytes_max -= sum(map(len, values))
        lists.append(values)
    return encode_value_lists(lists)
