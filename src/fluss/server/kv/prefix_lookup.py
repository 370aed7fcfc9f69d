"""PrefixLookup: the stored values of all keys that start with some bytes, in the order of the keys."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from fluss.errors import ErrorCode, FlussError
from fluss.net.listener import Answer, RequestContext
from fluss.protocol.codec import EncodedMessage
from fluss.protocol.lookups import encode_value_lists, prefix_lookup_response
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.schema.acl import AclOperation
from fluss.server.kv.bucket_reads import BucketRead, BucketReads
from fluss.storage.kv.store import KvStore


class KvPrefixLookup:
    """Answers prefix lookups. Belongs to the event loop."""

    def __init__(self, reads: BucketReads) -> None:
        self._reads = reads

    def prefix_lookup(
        self, context: RequestContext, request: pb.PrefixLookupRequest
    ) -> Awaitable[Answer | EncodedMessage]:
        """Answer with one list for each prefix, empty if there is no such key."""
        wanted = self._reads.prepare(context, request.table_id, request.buckets_req, AclOperation.READ)
        for read in wanted.reads:
            if b"" in read.keys:
                read.failure = read.failure or FlussError(
                    "A prefix lookup needs the first columns of a key; to read a whole bucket, scan it",
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                )
        work = partial(self._reads.read, wanted, wanted.reads, look_up_prefixes)
        return self._reads.serve(wanted, work, prefix_lookup_response)


def look_up_prefixes(store: KvStore, read: BucketRead, bytes_max: int) -> bytes:
    """Look up the prefixes of a bucket, and encode what there is. Runs in any thread."""
    lists = []
    for prefix in read.keys:
        values = store.prefix_values(prefix, bytes_max=bytes_max)
        bytes_max -= sum(map(len, values))
        lists.append(values)
    return encode_value_lists(lists)
