"""A server that answers lookups from memory, and fails when and how a test wants it to.

It runs on a thread of its own, so that tests may block. Rows are stored by the tests, under keys and in buckets that
are chosen here, with the functions of ``fluss.row`` alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from fluss.config import Config
from fluss.errors import ErrorCode, FlussError
from fluss.net.listener import RequestContext
from fluss.net.transport import new_event_loop
from fluss.protocol.api import ApiKey
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.value_batch import encode_value
from fluss.row.bucketing import bucket_for
from fluss.row.compacted import encode_fields, encode_row
from fluss.row.python_values import to_internal
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.serde import schema_to_json, table_to_json
from fluss.schema.table import TablePath
from tests.unit.client.scripted_server import ScriptedServer

T = TypeVar("T")

PATH = TablePath("fluss", "users")
USERS = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), primary_keys=["id"])


@dataclass
class Fault:
    """What goes wrong with one request."""

    # An error for every bucket, or for the request as a whole.
    bucket_code: int = 0
    request_code: int = 0
    # Close the connection instead of answering.
    is_cut: bool = False
    # Leave the buckets out of the answer, or the last value of each.
    is_omitted: bool = False
    is_short: bool = False


@dataclass
class KeyedTable:
    """What the server knows about a table."""

    table_id: int
    schema: Schema
    schema_id: int
    bucket_count: int
    bucket_keys: Sequence[str]
    key: Sequence[str]


class KeyServer:
    """One tablet server with tables in memory."""

    def __init__(self, server_id: int = 0) -> None:
        self.server_id = server_id
        self.values: dict[tuple[int, int | None, int], dict[bytes, bytes]] = defaultdict(dict)
        self.tables: dict[TablePath, KeyedTable] = {}
        self.schemas: dict[tuple[TablePath, int], Schema] = {}
        self.requests: list[pb.LookupRequest | pb.PrefixLookupRequest] = []
        self.faults: deque[Fault] = deque()
        # Used for every request that has no fault of its own.
        self.default_fault = Fault()
        # Answers with more bytes than this are refused.
        self.answer_bytes_max = 2**31
        self.in_progress = 0
        self.in_progress_max = 0
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="key-server")
        self._thread.start()
        self._gate = asyncio.Event()
        self._gate.set()
        self.scripted = self._call(self._make(0))

    async def _make(self, port: int) -> ScriptedServer:
        handlers: dict[ApiKey, Any] = {
            ApiKey.LOOKUP: self._lookup,
            ApiKey.PREFIX_LOOKUP: self._prefix_lookup,
            ApiKey.GET_TABLE_SCHEMA: self._table_schema,
        }
        server = ScriptedServer(self.server_id, port=port, handlers=handlers)
        await server.start()
        return server

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    # What tests do

    def config(self, **options: str | int | bool) -> Config:
        """Return a config with options named like ``lookup__queue_size``."""
        named = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
        return Config({"bootstrap.servers": self.scripted.address, **named})

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
        table = pb.PbTableMetadata(
            table_path=pb.PbTablePath(database_name=path.database_name, table_name=path.table_name),
            table_id=table_id,
            schema_id=schema_id,
            table_json=table_to_json(descriptor),
            created_time=1,
            modified_time=schema_id,
        )
        if not partition_keys:
            for bucket_id, leader_id in enumerate(leaders if leaders is not None else [0] * bucket_count):
                table.bucket_metadata.add(bucket_id=bucket_id, leader_id=leader_id)
        key = [name for name in schema.get_primary_keys() if name not in partition_keys]
        self.tables[path] = KeyedTable(table_id, schema, schema_id, bucket_count, bucket_keys or key, key)
        self.schemas[path, schema_id] = schema
        self.scripted.tables[path] = table

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

    def hold(self) -> None:
        """Answer no lookups until ``release``."""
        self._loop.call_soon_threadsafe(self._gate.clear)
        self._call(asyncio.sleep(0))

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._gate.set)

    @property
    def request_sizes(self) -> list[int]:
        """How many keys each request had."""
        return [sum(len(bucket.keys) for bucket in request.buckets_req) for request in self.requests]

    def stop_listening(self) -> None:
        self._call(self.scripted.stop())

    def listen_again(self) -> None:
        """Come back at the same port, with everything that was stored."""
        old = self.scripted
        self.scripted = self._call(self._make(old.port))
        self.scripted.tables, self.scripted.partitions = old.tables, old.partitions

    def close(self) -> None:
        self.release()
        self.stop_listening()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    # What clients ask

    async def _lookup(self, context: RequestContext, request: pb.LookupRequest) -> pb.LookupResponse:
        response = pb.LookupResponse()
        fault = await self._begin(request)
        for bucket in request.buckets_req:
            entry = response.buckets_resp.add(bucket_id=bucket.bucket_id)
            stored = self._bucket(request.table_id, bucket, entry, fault)
            for key in bucket.keys if stored is not None else ():
                assert stored is not None
                entry.values.add(values=stored.get(key))
        self._finish(response, fault)
        return response

    async def _prefix_lookup(self, context: RequestContext, request: pb.PrefixLookupRequest) -> pb.PrefixLookupResponse:
        response = pb.PrefixLookupResponse()
        fault = await self._begin(request)
        for bucket in request.buckets_req:
            entry = response.buckets_resp.add(bucket_id=bucket.bucket_id)
            stored = self._bucket(request.table_id, bucket, entry, fault)
            for prefix in bucket.keys if stored is not None else ():
                assert stored is not None
                entry.value_lists.add(values=[stored[key] for key in sorted(stored) if key.startswith(prefix)])
        self._finish(response, fault)
        return response

    async def _begin(self, request: pb.LookupRequest | pb.PrefixLookupRequest) -> Fault:
        self.requests.append(request)
        fault = self.faults.popleft() if self.faults else self.default_fault
        self.in_progress += 1
        self.in_progress_max = max(self.in_progress, self.in_progress_max)
        try:
            await self._gate.wait()
        finally:
            self.in_progress -= 1
        if fault.is_cut:
            for connection in list(self.scripted._listener._connections):
                connection.abort()
        if fault.request_code:
            raise FlussError(f"refused with {fault.request_code}", fault.request_code)
        return fault

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


@contextmanager
def key_server(server_id: int = 0) -> Iterator[KeyServer]:
    server = KeyServer(server_id)
    try:
        yield server
    finally:
        server.close()
