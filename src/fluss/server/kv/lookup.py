"""Lookup: the stored values of keys, in the order of the keys; and, if wanted, rows for the keys that have none.

What is in memory is looked up at once, without a detour through a thread, which would take longer than the lookup.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Final

from fluss.errors import RETRIABLE_CODES, FlussError
from fluss.net.listener import Answer, RequestContext
from fluss.protocol.codec import EncodedMessage
from fluss.protocol.lookups import encode_values, lookup_response
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.acl import AclOperation
from fluss.server.kv.bucket_reads import BucketRead, BucketReads, ReadRequest
from fluss.server.kv.key_insertion import KeyInsertion, Missing, check_insertion
from fluss.storage.kv.store import KvStore

# What is looked up on the event loop: a few microseconds for each key, and values that are quickly copied.
_KEYS_AT_ONCE_MAX: Final = 128
_BYTES_AT_ONCE_MAX: Final = 256 * 1024


class KvLookup:
    """Answers lookups. Belongs to the event loop."""

    def __init__(self, reads: BucketReads, insertion: KeyInsertion) -> None:
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
        return self._reads.serve(wanted, partial(self._reads.read, wanted, wanted.reads, look_up), lookup_response)

    def _look_up_or_insert(
        self, context: RequestContext, request: pb.LookupRequest
    ) -> Awaitable[Answer | EncodedMessage]:
        operations = AclOperation.READ, AclOperation.WRITE
        wanted = self._reads.prepare(context, request.table_id, request.buckets_req, *operations)
        try:
            check_insertion(request)
        except FlussError as error:
            for read in wanted.reads:
                read.failure = read.failure or error
        return self._reads.serve(wanted, partial(self._read_or_insert, wanted, request.timeout_ms), lookup_response)

    async def _read_or_insert(self, wanted: ReadRequest, timeout_ms: int) -> None:
        missing: Missing = {}
        await self._reads.read(wanted, wanted.reads, partial(_look_up_noting, missing))
        if missing:
            await self._insertion.insert(missing, timeout_ms)
            await self._reads.read(wanted, missing, look_up)


def look_up(store: KvStore, read: BucketRead, bytes_max: int) -> bytes:
    """Look up the keys of a bucket, and encode what there is. Runs in any thread."""
    return encode_values(store.get_many(read.keys, bytes_max=bytes_max))


def _look_up_noting(missing: Missing, store: KvStore, read: BucketRead, bytes_max: int) -> bytes:
    """Look up the keys of a bucket; if some are missing, note them, each once, and keep nothing else."""
    values = store.get_many(read.keys, bytes_max=bytes_max)
    if None not in values:
        return encode_values(values)
    missing[read] = list(dict.fromkeys(key for key, value in zip(read.keys, values, strict=True) if value is None))
    return b""


def _is_answered(read: BucketRead) -> bool:
    """Look up the keys of a bucket if they are in memory; return whether that is all there is to do."""
    if read.failure is not None:
        # Those who may try again are made to wait.
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
