"""Raw requests about primary-key tables: what a client would hide, from the bytes of a batch to whole answers.

Rows are tuples of internal values, ``Delete(row)`` deletes the key of a row. Answers come back as they were sent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fluss import TableInfo, embedded
from fluss.client.kernel.runtime import wait_for
from fluss.net.channel import Channel
from fluss.protocol import api as apis
from fluss.protocol.api import Api, VersionRange
from fluss.protocol.bulk_messages import BucketRecords, PutKvRequest
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.record.arrow_batch import decode_arrow_batch
from fluss.record.kv_batch import encode_kv_batch
from fluss.record.log_batch import NO_BATCH_SEQUENCE, NO_WRITER_ID, LogBatch, iter_batches
from fluss.record.value_batch import decode_value_batch
from fluss.row import compacted
from fluss.row.encoded import EncodedRows
from fluss.row.key import KeyEncoder, primary_key_encoder
from fluss.row.values import internal_from_arrow
from fluss.schema.offsets import ChangeType
from fluss.schema.schema import Schema

Row: TypeAlias = tuple[Any, ...]

# Kinds of offsets.
EARLIEST, LATEST = 0, 1
_TIMEOUT_S = 300
_FETCH_BYTES = 2**24


@dataclass(frozen=True)
class Delete:
    """A delete of the key of a row; only the key columns of the row matter."""

    row: Row


class Change(NamedTuple):
    """A record of a changelog."""

    offset: int
    change: str
    row: Row


class Requests:
    """A connection that sends messages as they are."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def ask(self, api: Api[Any, Any], message: Any, *, version: int | None = None) -> Any:
        """Send a request in the newest version, or in an older one, and return the answer."""
        return self.ask_all(api, [message], version=version)[0]

    def ask_all(self, api: Api[Any, Any], messages: Sequence[Any], *, version: int | None = None) -> list[Any]:
        """Send requests one right after the other, and return the answers in their order."""
        if version is not None:
            api = replace(api, versions=VersionRange(version, version))

        async def gathered() -> list[Any]:
            calls = (self.channel.request(api, message, timeout_s=_TIMEOUT_S) for message in messages)
            return await asyncio.gather(*calls)

        return wait_for(gathered())


@contextmanager
def requests_to(server: embedded.EmbeddedServer, credentials: Credentials | None = None) -> Iterator[Requests]:
    channel = wait_for(Channel.connect("127.0.0.1", server.port, credentials=credentials))
    try:
        yield Requests(channel)
    finally:
        wait_for(channel.close())


class KeyTable:
    """One primary-key table in the COMPACTED format, whose changelog is in the ARROW format."""

    def __init__(self, requests: Requests, info: TableInfo, older: dict[int, Schema] | None = None) -> None:
        self.requests = requests
        self.info = info
        self._schemas = {**(older or {}), info.schema_id: info.schema}

    # Bytes

    def key(self, row: Row) -> bytes:
        """Return the key bytes of a row."""
        return self._key_encoder().encode([row[self.info.schema.index_of(name)] for name in self._key_names])

    def batch(
        self,
        *rows: Row | Delete,
        writer: int = NO_WRITER_ID,
        sequence: int = NO_BATCH_SEQUENCE,
        schema_id: int | None = None,
    ) -> bytearray:
        """Return the batch that a client would send."""
        schema_id = self.info.schema_id if schema_id is None else schema_id
        types = [
            data_type.with_nullable(True) for data_type in self._schemas.get(schema_id, self.info.schema).data_types
        ]
        keys = [self.key(row.row if isinstance(row, Delete) else row) for row in rows]
        encoded = [b"" if isinstance(row, Delete) else compacted.encode_row(types, row) for row in rows]
        return encode_kv_batch(
            EncodedRows.from_list(keys),
            EncodedRows.from_list(encoded),
            np.array([isinstance(row, Delete) for row in rows], np.bool_),
            schema_id=schema_id,
            writer_id=writer,
            batch_sequence=sequence,
        )

    def row(self, value: bytes) -> Row:
        """Return a stored value as a row of the newest schema."""
        row = compacted.decode_row(self._schemas[schema_id_of(value)].data_types, value[2:])
        return row + (None,) * (len(self.info.schema.columns) - len(row))

    # Writing

    def put_request(
        self, *batches: BucketRecords, acks: int = -1, targets: Sequence[int] = (), **more: Any
    ) -> PutKvRequest:
        return PutKvRequest(acks, self.info.table_id, 30_000, list(targets), batches, **more)

    def put_answers(self, *batches: BucketRecords, version: int | None = None, **more: Any) -> list[Any]:
        answer = self.requests.ask(apis.PUT_KV, self.put_request(*batches, **more), version=version)
        return list(answer.buckets_resp)

    def put_answer(
        self,
        *rows: Row | Delete,
        bucket: int = 0,
        partition: int | None = None,
        writer: int = NO_WRITER_ID,
        sequence: int = NO_BATCH_SEQUENCE,
        schema_id: int | None = None,
        **more: Any,
    ) -> Any:
        """Write rows to one bucket, as one batch, and return its answer."""
        batch = self.batch(*rows, writer=writer, sequence=sequence, schema_id=schema_id)
        (answer,) = self.put_answers(BucketRecords(bucket, batch, partition), **more)
        return answer

    def put(self, *rows: Row | Delete, **more: Any) -> int:
        """Write rows that must be accepted; return where they end in the changelog."""
        answer = self.put_answer(*rows, **more)
        assert not answer.HasField("error_code"), answer
        return int(answer.log_end_offset)

    def put_code(self, *rows: Row | Delete, **more: Any) -> int:
        """Write rows that must be refused; return the code."""
        answer = self.put_answer(*rows, **more)
        assert answer.HasField("error_code"), "it was not refused"
        assert answer.error_message, "it says why"
        return int(answer.error_code)

    # Reading

    def lookup_request(
        self, *keys: bytes, bucket: int = 0, partition: int | None = None, **more: Any
    ) -> pb.LookupRequest:
        entry = pb.PbLookupReqForBucket(bucket_id=bucket, partition_id=partition, keys=keys)
        return pb.LookupRequest(table_id=self.info.table_id, buckets_req=[entry], **more)

    def lookup_answer(self, *keys: bytes, version: int | None = None, **more: Any) -> Any:
        (answer,) = self.requests.ask(apis.LOOKUP, self.lookup_request(*keys, **more), version=version).buckets_resp
        return answer

    def lookup(self, *rows: Row, **more: Any) -> list[Row | None]:
        """Look up the keys of some rows; None for those that are not there."""
        return self.rows_of(self.lookup_answer(*map(self.key, rows), **more))

    def rows_of(self, lookup_answer: Any) -> list[Row | None]:
        assert not lookup_answer.HasField("error_code"), lookup_answer
        values = lookup_answer.values
        return [self.row(value.values) if value.HasField("values") else None for value in values]

    def prefix_answer(
        self, *prefixes: bytes, bucket: int = 0, partition: int | None = None, version: int | None = None
    ) -> Any:
        entry = pb.PbPrefixLookupReqForBucket(bucket_id=bucket, partition_id=partition, keys=prefixes)
        request = pb.PrefixLookupRequest(table_id=self.info.table_id, buckets_req=[entry])
        (answer,) = self.requests.ask(apis.PREFIX_LOOKUP, request, version=version).buckets_resp
        return answer

    def limit_scan_answer(self, limit: int, bucket: int = 0, partition: int | None = None) -> Any:
        request = pb.LimitScanRequest(
            table_id=self.info.table_id, partition_id=partition, bucket_id=bucket, limit=limit
        )
        return self.requests.ask(apis.LIMIT_SCAN, request)

    def limit_scan(self, limit: int, **more: Any) -> list[Row]:
        answer = self.limit_scan_answer(limit, **more)
        assert answer.error_code is None, answer
        return self.values_of(answer)

    def values_of(self, answer: Any) -> list[Row]:
        """Return the rows of a value batch."""
        return [self.row(value) for value in decode_value_batch(answer.records_view).to_list()]

    def stats_answers(self, *buckets: int, partition: int | None = None) -> list[Any]:
        request = pb.GetTableStatsRequest(table_id=self.info.table_id)
        for bucket in buckets:
            request.buckets_req.add(bucket_id=bucket, partition_id=partition)
        return list(self.requests.ask(apis.GET_TABLE_STATS, request).buckets_resp)

    def row_counts(self, *buckets: int, **more: Any) -> list[int]:
        return [answer.row_count for answer in self.stats_answers(*buckets, **more)]

    def scan(self, **fields: Any) -> Any:
        """Send a request of a scan with these fields."""
        return self.requests.ask(apis.SCAN_KV, pb.ScanKvRequest(**fields))

    def open_scan(
        self, *, bucket: int = 0, partition: int | None = None, limit: int | None = None, bytes_max: int = 2**20
    ) -> Any:
        wanted = pb.PbScanReqForBucket(
            table_id=self.info.table_id, partition_id=partition, bucket_id=bucket, limit=limit
        )
        return self.scan(bucket_scan_req=wanted, call_seq_id=0, batch_size_bytes=bytes_max)

    # The changelog

    def log_batches(self, offset: int = 0, *, bucket: int = 0, partition: int | None = None) -> list[LogBatch]:
        """Fetch the batches of the changelog from an offset on."""
        request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=_FETCH_BYTES)
        wanted = request.tables_req.add(table_id=self.info.table_id, projection_pushdown_enabled=False)
        wanted.buckets_req.add(
            partition_id=partition, bucket_id=bucket, fetch_offset=offset, max_fetch_bytes=_FETCH_BYTES
        )
        ((fetched,),) = (table.buckets for table in self.requests.ask(apis.FETCH_LOG, request).tables)
        assert not fetched.error_code, fetched
        return list(iter_batches(fetched.records_view))

    def changelog(self, offset: int = 0, **more: Any) -> list[Change]:
        """Fetch the records of the changelog from the batch of an offset on."""
        changes: list[Change] = []
        for batch in self.log_batches(offset, **more):
            if not batch.header.record_count:
                continue
            schema = self._schemas[batch.header.schema_id]
            rows = decode_arrow_batch(batch, schema.to_arrow())
            columns = map(internal_from_arrow, rows.columns, schema.data_types)
            offsets = itertools.count(batch.header.base_offset)
            changes += map(Change, offsets, change_texts(batch), zip(*columns, strict=True))
        return changes

    def shown(self, offset: int = 0, **more: Any) -> list[tuple[str, Row]]:
        """The changelog without offsets."""
        return [(change.change, change.row) for change in self.changelog(offset, **more)]

    def offset(self, kind: int, bucket: int = 0, *, partition: int | None = None) -> int:
        """Ask for the EARLIEST or LATEST offset."""
        request = pb.ListOffsetsRequest(
            follower_server_id=-1,
            offset_type=kind,
            table_id=self.info.table_id,
            partition_id=partition,
            bucket_id=[bucket],
        )
        (answer,) = self.requests.ask(apis.LIST_OFFSETS, request).buckets_resp
        assert not answer.HasField("error_code"), answer
        return int(answer.offset)

    def offset_end(self, bucket: int = 0, *, partition: int | None = None) -> int:
        return self.offset(LATEST, bucket, partition=partition)

    @property
    def _key_names(self) -> list[str]:
        return self.info.physical_primary_keys

    def _key_encoder(self) -> KeyEncoder:
        properties = self.info.properties
        return primary_key_encoder(
            [self.info.schema.column(name).data_type for name in self._key_names],
            properties.get("table.datalake.format"),
            int(properties.get("table.kv.format-version", "1")),
            self.info.bucket_keys == self._key_names,
        )


def change_texts(batch: LogBatch) -> list[str]:
    """Return the kinds of the changes in a batch of a changelog."""
    if not batch.header.record_count:
        return []
    assert batch.change_types is not None, "all are changes"
    return [ChangeType(kind).short_string() for kind in batch.change_types]


def schema_id_of(value: bytes) -> int:
    """Return the schema that a stored value was written with."""
    return int.from_bytes(value[:2], "little")
