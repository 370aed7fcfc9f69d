"""A server that answers lookups from memory, and fails when and how a test wants it to.

Rows are stored by the tests, under keys and in buckets that
are chosen here, with the functions of ``fluss.row`` alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fluss.errors import ErrorCode
from fluss.net.request_handler import RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.value_batch import encode_value
from fluss.row.bucketing import bucket_for
from fluss.row.compacted import encode_fields, encode_row
from fluss.row.python_values import to_internal
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.serde import schema_to_json
from fluss.schema.table import TablePath
from tests.fakes.faulty_server import Fault, FaultyServer

PATH = TablePath("fluss", "users")
USERS = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])


@dataclass
class KeyedTable:
    """What the server knows about a table."""

    table_id: int
    schema: Schema
    schema_id: int
    bucket_count: int
    bucket_keys: Sequence[str]
    key: Sequence[str]


class LookupServer(FaultyServer):
    """One tablet server with tables in memory."""

    def __init__(self, server_id: int = 0) -> None:
        self.values: dict[tuple[int, int | None, int], dict[bytes, bytes]] = defaultdict(dict)
        self.tables: dict[TablePath, KeyedTable] = {}
        self.schemas: dict[tuple[TablePath, int], Schema] = {}
        self.requests: list[pb.LookupRequest | pb.PrefixLookupRequest] = []
        # Answers with more bytes than this are refused.
        self.answer_bytes_max = 2**31
        super().__init__(server_id)

    def handlers(self) -> dict[ApiKey, Any]:
        return {
            ApiKey.LOOKUP: self._lookup,
            ApiKey.PREFIX_LOOKUP: self._prefix_lookup,
            ApiKey.GET_TABLE_SCHEMA: self._table_schema,
        }

    # What tests do

    def add_table(
        self,
        schema: Schema = USERS,
        *,
        path: TablePath = PATH,
        table_id: int = 1,
        schema_id: int = 1,
        bucket_count: int = 1,
        leaders: list[int | None] | None = None,
        partition_keys: tuple[str, ...] = (),
        bucket_keys: tuple[str, ...] = (),
    ) -> None:
        """Let a table exist, or have another schema."""
        descriptor = TableDescriptor(
            schema, bucket_count=bucket_count, partition_keys=partition_keys, bucket_keys=bucket_keys or None
        )
        key = [name for name in schema.get_primary_keys() if name not in partition_keys]
        self.tables[path] = KeyedTable(table_id, schema, schema_id, bucket_count, bucket_keys or key, key)
        self.schemas[path, schema_id] = schema
        self.describe(path, table_id, descriptor, schema_id=schema_id, leaders=leaders)

    def add_partition(self, name: str, partition_id: int, *, path: TablePath = PATH) -> None:
        leaders: list[int | None] = [0] * self.tables[path].bucket_count
        self.scripted.add_partition(path, name, partition_id, leaders=leaders)

    def drop_partition(self, name: str, *, path: TablePath = PATH) -> None:
        del self.scripted.partitions[path, name]

    def put(self, row: dict[str, Any], *, path: TablePath = PATH, partition_id: int | None = None) -> None:
        """Store a row with the schema that its table has now."""
        table = self.tables[path]
        internal = {c.name: to_internal(row.get(c.name), c.data_type, c.name) for c in table.schema.columns}
        key, bucket_key = (self._encoded(table, internal, names) for names in (table.key, table.bucket_keys))
        stored = encode_row(table.schema.data_types, list(internal.values()))
        bucket_id = bucket_for(bucket_key, table.bucket_count)
        self.values[table.table_id, partition_id, bucket_id][key] = encode_value(table.schema_id, stored)

    def _encoded(self, table: KeyedTable, internal: dict[str, Any], names: Sequence[str]) -> bytes:
        return encode_fields([table.schema.column(n).data_type for n in names], [internal[n] for n in names])

    def put_users(self, ids: Sequence[int]) -> None:
        for number in ids:
            self.put({"id": number, "name": f"user {number}"})

    @property
    def request_sizes(self) -> list[int]:
        """How many keys each request had."""
        return [sum(len(bucket.keys) for bucket in request.buckets_req) for request in self.requests]

    # What clients ask

    async def _lookup(self, context: RequestContext, request: pb.LookupRequest) -> pb.LookupResponse:
        self.requests.append(request)
        response = pb.LookupResponse()
        async with self.answering(request.table_id) as fault:
            for bucket in request.buckets_req:
                entry = response.buckets_resp.add(bucket_id=bucket.bucket_id)
                stored = self._bucket(request.table_id, bucket, entry, fault)
                if stored is not None:
                    for key in bucket.keys:
                        entry.values.add(values=stored.get(key))
        self._finish(response, fault)
        return response

    async def _prefix_lookup(self, context: RequestContext, request: pb.PrefixLookupRequest) -> pb.PrefixLookupResponse:
        self.requests.append(request)
        response = pb.PrefixLookupResponse()
        async with self.answering(request.table_id) as fault:
            for bucket in request.buckets_req:
                entry = response.buckets_resp.add(bucket_id=bucket.bucket_id)
                stored = self._bucket(request.table_id, bucket, entry, fault)
                if stored is not None:
                    for prefix in bucket.keys:
                        entry.value_lists.add(values=[stored[key] for key in sorted(stored) if key.startswith(prefix)])
        self._finish(response, fault)
        return response

    def _bucket(self, table_id: int, bucket: Any, entry: Any, fault: Fault) -> dict[bytes, bytes] | None:
        """Return the values of a bucket, or None if there is an error in the answer already."""
        partition_id = None
        if bucket.HasField("partition_id"):
            partition_id = entry.partition_id = bucket.partition_id
        code = fault.bucket_code
        known = [partition.partition_id for partition in self.scripted.partitions.values()]
        if partition_id is not None and partition_id not in known:
            code = ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        stored = self.values[table_id, partition_id, bucket.bucket_id]
        if sum(len(stored.get(key, b"")) for key in bucket.keys) > self.answer_bytes_max:
            code = ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        if code:
            entry.error_code, entry.error_message = code, f"refused with {code}"
            return None
        return stored

    def _finish(self, response: pb.LookupResponse | pb.PrefixLookupResponse, fault: Fault) -> None:
        if fault.is_omitted:
            del response.buckets_resp[:]
        if fault.is_short:
            for entry in response.buckets_resp:
                assert isinstance(entry, pb.PbLookupRespForBucket)
                del entry.values[-1]

    def _table_schema(self, context: RequestContext, request: pb.GetTableSchemaRequest) -> pb.GetTableSchemaResponse:
        path = TablePath(request.table_path.database_name, request.table_path.table_name)
        schema = self.schemas[path, request.schema_id]
        return pb.GetTableSchemaResponse(schema_id=request.schema_id, schema_json=schema_to_json(schema))
