"""Fetch requests and responses of one scan, with as little work as possible for buckets where nothing happens.

A request lists every bucket, and a response answers for every bucket, also for the thousands that have nothing new.
So the part of a request that belongs to a bucket is encoded when its offset changes, and entries of a response are
decoded unless they are byte for byte what was found to say nothing before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from fluss.buffers import BytesLike, byte_view
from fluss.config import Config
from fluss.protocol import api as apis
from fluss.protocol import protowire
from fluss.protocol.api import Api
from fluss.protocol.bulk_messages import FETCHED_BUCKET, FetchedBucket, fetched_entries
from fluss.protocol.codec import Parts
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.predicates import encoded_within_limits
from fluss.schema.predicate import BoundPredicate
from fluss.schema.table import TableBucket

# What clients put where followers name themselves.
_NOT_A_FOLLOWER: Final = -1
_REMOTE_FIRST: Final = 1
# An entry without records is some thirty bytes.
_SILENT_ENTRY_BYTES_MAX: Final = 128
# More than the buckets of any scan; at the limit everything is forgotten and learned anew.
_SILENT_ENTRIES_MAX: Final = 65_536


class _EncodedRequest:
    """The codec of requests that are encoded already."""

    message_name: Final = "FetchLogRequest"
    keeps_body: Final = True

    def encode(self, message: Parts) -> Parts:
        return list(message)

    def decode(self, body: BytesLike) -> Parts:
        return [body]


class _EncodedResponse:
    """The codec of responses that are decoded elsewhere."""

    message_name: Final = "FetchLogResponse"
    keeps_body: Final = True

    def encode(self, message: memoryview) -> Parts:
        return [message]

    def decode(self, body: BytesLike) -> memoryview:
        return byte_view(body)


# FetchLog with its messages as bytes.
ENCODED_FETCH_LOG: Final[Api[Parts, memoryview]] = Api(
    apis.FETCH_LOG.key,
    _EncodedRequest(),
    _EncodedResponse(),
    apis.FETCH_LOG.served_by,
    apis.FETCH_LOG.is_public,
    apis.FETCH_LOG.versions,
)


class RequestForm(NamedTuple):
    """Whether a request asks for some columns only, and whether it lets servers skip batches."""

    is_projected: bool
    is_filtered: bool


class FetchRequests:
    """Encodes the requests of one scan.

    ``pushdown`` are the columns a server is asked to cut out, none for all. It can be given up once and for all, for
    servers that cannot cut columns out of batches that lack some of them. So can the ``predicate``, by which servers
    skip batches: one that is larger than servers take is not sent. Its rows are looked at here anyway.
    """

    def __init__(
        self,
        config: Config,
        table_id: int,
        *,
        pushdown: tuple[int, ...] = (),
        predicate: BoundPredicate | None = None,
        schema_id: int = 0,
    ) -> None:
        self._table_id = table_id
        self._pushdown = pushdown
        encoded = None if predicate is None else encoded_within_limits(predicate)
        self._filter = None if encoded is None else (encoded, schema_id)
        self._bytes_max_for_bucket = config.scanner_log_fetch_max_bytes_for_bucket
        self._request_head = pb.FetchLogRequest(
            follower_server_id=_NOT_A_FOLLOWER,
            max_bytes=config.scanner_log_fetch_max_bytes,
            min_bytes=config.scanner_log_fetch_min_bytes,
            max_wait_ms=config.scanner_log_fetch_wait_max_time_ms,
            # Servers that do not know it read from their disk first.
            read_preference=_REMOTE_FIRST if config.scanner_log_read_preference == "remote_first" else None,
        ).SerializeToString()
        self._table_head = self._encode_table_head()

    @property
    def form(self) -> RequestForm:
        """What requests ask for now. By the time of an answer it may have changed."""
        return RequestForm(bool(self._pushdown), self._filter is not None)

    def stop_projecting(self) -> None:
        self._pushdown = ()
        self._table_head = self._encode_table_head()

    def stop_filtering(self) -> None:
        self._filter = None
        self._table_head = self._encode_table_head()

    def _encode_table_head(self) -> bytes:
        head = pb.PbFetchLogReqForTable(
            table_id=self._table_id,
            projection_pushdown_enabled=bool(self._pushdown),
            projected_fields=self._pushdown,
        )
        if self._filter is not None:
            head.filter_predicate, head.filter_schema_id = self._filter
        return head.SerializeToString()

    def entry(self, bucket: TableBucket, offset: int) -> bytes:
        """Return the part of a request that asks for a bucket from an offset on."""
        entry = pb.PbFetchLogReqForBucket(
            partition_id=bucket.partition_id,
            bucket_id=bucket.bucket_id,
            fetch_offset=offset,
            max_fetch_bytes=self._bytes_max_for_bucket,
        )
        # A table with this bucket and nothing else: written after other parts of the table, it adds the bucket.
        return pb.PbFetchLogReqForTable(buckets_req=[entry]).SerializePartialToString()

    def request(self, entries: Sequence[bytes]) -> Parts:
        """Return the request for the buckets of these entries, in this order."""
        size = len(self._table_head) + sum(map(len, entries))
        tables = pb.FetchLogRequest.TABLES_REQ_FIELD_NUMBER
        return [b"".join((self._request_head, protowire.length_prefix(tables, size), self._table_head, *entries))]


class FetchResponses:
    """Decodes responses to requests for the same buckets, and remembers which entries said nothing.

    ``forget`` is to be called when another bucket joins in, because to that one nothing was said yet.
    """

    def __init__(self) -> None:
        self._silent_entries: set[bytes] = set()
        self._silent_body = b""

    def decode(self, body: memoryview) -> list[tuple[FetchedBucket, memoryview]]:
        """Return the buckets of a response, each with its entry, except those known to say nothing.

        Raises CorruptMessageError.
        """
        if len(body) == len(self._silent_body) and body.tobytes() == self._silent_body:
            return []
        return [(FETCHED_BUCKET.decode(entry), entry) for entry in fetched_entries(body) if not self._is_silent(entry)]

    def _is_silent(self, entry: memoryview) -> bool:
        return len(entry) <= _SILENT_ENTRY_BYTES_MAX and entry.tobytes() in self._silent_entries

    def remember_silent(self, entries: Iterable[memoryview], body: memoryview, *, is_all: bool) -> None:
        """Take note of entries that said nothing, and whether that is true of the whole response."""
        if len(self._silent_entries) >= _SILENT_ENTRIES_MAX:
            self._silent_entries.clear()
        self._silent_entries.update(entry.tobytes() for entry in entries if len(entry) <= _SILENT_ENTRY_BYTES_MAX)
        if is_all:
            self._silent_body = body.tobytes()

    def forget(self) -> None:
        self._silent_entries.clear()
        self._silent_body = b""
