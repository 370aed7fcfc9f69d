"""A server that stores what is produced to it, and fails when and how a test wants it to.

It runs on a thread of its own, so that tests may block. Rows are kept decoded, in the order of their offsets, and
writers are checked like a real server does it: sequences without gaps, and the last five batches are recognised.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import runtime
from fluss.client.write.writer_client import WriterClient
from fluss.client.write.writers import AppendWriter, TableUpsert, WriterBase
from fluss.config import Config
from fluss.errors import ErrorCode, FlussError
from fluss.net.listener import RequestContext
from fluss.net.transport import new_event_loop
from fluss.protocol.api import ApiKey
from fluss.protocol.bulk_messages import BucketRecords, ProduceLogRequest, PutKvRequest
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.arrow_batch import decode_arrow_batch
from fluss.record.log_batch import LogBatch, LogBatchHeader, iter_batches, verify_crc
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.serde import table_to_json
from fluss.schema.table import TableInfo, TablePath
from tests.unit.client.scripted_server import ScriptedServer

T = TypeVar("T")

PATH = TablePath("fluss", "events")
SCHEMA = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
REMEMBERED_BATCHES = 5
# No code of the protocol: a batch that was stored before.
DUPLICATE = -100


@dataclass
class Fault:
    """What goes wrong with one write request."""

    # Only with requests for this table; 0 is any.
    table_id: int = 0
    # Only for this bucket of a request.
    bucket_id: int | None = None
    # Seconds before anything happens.
    delay_s: float = 0.0
    # Never answered, and not stored.
    is_lost: bool = False
    # Whether the records are stored all the same.
    is_stored: bool = False
    # An error for every bucket, or for the request as a whole; -1 is a code, 0 is none.
    bucket_code: int = 0
    request_code: int = 0
    # Close the connection instead of answering.
    is_cut: bool = False
    # Leave the bucket out of the answer.
    is_omitted: bool = False
    # How much of a burden the server says that puts are.
    pressure: float = 0.0


@dataclass
class WriterEntry:
    """What the server remembers of a writer in a bucket."""

    sequence: int = -1
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))


class LogServer:
    """One tablet server with in-memory logs."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int | None, int], list[dict[str, Any]]] = defaultdict(list)
        self.headers: dict[tuple[int, int | None, int], list[LogBatchHeader]] = defaultdict(list)
        self.requests: list[ProduceLogRequest] = []
        self.faults: deque[Fault] = deque()
        # Used for every request that has no fault of its own.
        self.default_fault = Fault()
        self.init_writer_codes: deque[int] = deque()
        self.init_writer_requests: list[pb.InitWriterRequest] = []
        self.in_progress = 0
        self.in_progress_max = 0
        self._writers: dict[tuple[int, int | None, int, int], WriterEntry] = defaultdict(WriterEntry)
        self._schemas: dict[int, pa.Schema] = {}
        self._next_writer_id = 100
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="log-server")
        self._thread.start()
        self._gate = asyncio.Event()
        self._gate.set()
        self.scripted = self._call(self._make())

    async def _make(self) -> ScriptedServer:
        server = ScriptedServer(handlers=self._handlers())
        await server.start()
        return server

    def _handlers(self) -> dict[ApiKey, Any]:
        return {ApiKey.PRODUCE_LOG: self._produce, ApiKey.INIT_WRITER: self._init_writer}

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    # What tests do

    def config(self, **options: str | int | bool) -> Config:
        """Return a config with options named like ``writer__batch_size``. Rows do not wait long, unless it says so."""
        named = {name.replace("__", ".").replace("_", "-"): value for name, value in options.items()}
        return Config({"bootstrap.servers": self.scripted.address, "writer.batch-timeout-ms": 5, **named})

    def add_table(
        self,
        path: TablePath = PATH,
        table_id: int = 1,
        *,
        schema: Schema = SCHEMA,
        schema_id: int = 1,
        bucket_count: int = 1,
        leaders: list[int | None] | None = None,
        partition_keys: tuple[str, ...] = (),
        bucket_keys: tuple[str, ...] = (),
        properties: dict[str, str] | None = None,
    ) -> None:
        descriptor = TableDescriptor(
            schema,
            bucket_count=bucket_count,
            partition_keys=partition_keys,
            bucket_keys=bucket_keys,
            properties={"table.log.arrow.compression.type": "NONE", **(properties or {})},
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
        self._schemas[table_id] = schema.to_arrow()
        self.scripted.tables[path] = table

    def add_partition(self, name: str, partition_id: int, path: TablePath = PATH, bucket_count: int = 1) -> None:
        self.scripted.add_partition(path, name, partition_id, leaders=[0] * bucket_count)

    def stored(self, bucket_id: int = 0, *, table_id: int = 1, partition_id: int | None = None) -> list[dict[str, Any]]:
        return self.rows[table_id, partition_id, bucket_id]

    def ids(self, bucket_id: int = 0, *, table_id: int = 1, partition_id: int | None = None) -> list[int]:
        return [row["id"] for row in self.stored(bucket_id, table_id=table_id, partition_id=partition_id)]

    def hold(self) -> None:
        """Store and answer nothing until ``release``; ``in_progress`` says how many requests are held."""
        self._call(self._set_gate(False))

    def release(self) -> None:
        """Answer what is held, in the order in which it came."""
        self._call(self._set_gate(True))

    async def _set_gate(self, is_open: bool) -> None:
        if is_open:
            self._gate.set()
        else:
            self._gate.clear()

    def cut_connections(self) -> None:
        self._call(self._cut())

    async def _cut(self) -> None:
        for connection in list(self.scripted._listener._connections):
            connection.abort()

    def restart(self) -> None:
        """Go away and come back at the same port, with everything that was stored."""
        self.stop_listening()
        self.scripted = self._call(self._make_again(self.scripted))

    def stop_listening(self) -> None:
        self._call(self.scripted.stop())

    async def _make_again(self, old: ScriptedServer) -> ScriptedServer:
        server = ScriptedServer(port=old.port, handlers=self._handlers())
        server.tables, server.partitions = old.tables, old.partitions
        await server.start()
        return server

    def close(self) -> None:
        self.stop_listening()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)
        self._loop.close()

    # What clients ask

    def _init_writer(self, context: RequestContext, request: pb.InitWriterRequest) -> pb.InitWriterResponse:
        self.init_writer_requests.append(request)
        if self.init_writer_codes and (code := self.init_writer_codes.popleft()):
            raise FlussError("no writer ids today", code)
        self._next_writer_id += 1
        return pb.InitWriterResponse(writer_id=self._next_writer_id)

    async def _produce(self, context: RequestContext, request: ProduceLogRequest) -> pb.ProduceLogResponse:
        self.requests.append(request)
        response = pb.ProduceLogResponse()
        await self._answer(request, response)
        return response

    def _next_fault(self, table_id: int) -> Fault:
        for fault in self.faults:
            if fault.table_id in (0, table_id):
                self.faults.remove(fault)
                return fault
        return self.default_fault

    async def _answer(
        self, request: ProduceLogRequest | PutKvRequest, response: pb.ProduceLogResponse | pb.PutKvResponse
    ) -> None:
        """Store the records of a request and say so, or do what the next fault wants."""
        fault = self._next_fault(request.table_id)
        self.in_progress += 1
        self.in_progress_max = max(self.in_progress, self.in_progress_max)
        try:
            await self._gate.wait()
            if fault.delay_s:
                await asyncio.sleep(fault.delay_s)
            if fault.is_lost:
                await asyncio.Event().wait()
            for bucket in request.buckets:
                self._answer_bucket(request, bucket, fault, response)
        finally:
            self.in_progress -= 1
        if fault.is_cut:
            await self._cut()
        if fault.request_code:
            raise FlussError(f"refused with {fault.request_code}", fault.request_code)

    def _answer_bucket(
        self,
        request: ProduceLogRequest | PutKvRequest,
        bucket: BucketRecords,
        fault: Fault,
        response: pb.ProduceLogResponse | pb.PutKvResponse,
    ) -> None:
        if fault.bucket_id not in (None, bucket.bucket_id):
            fault = Fault()
        code, offset = fault.bucket_code, 0
        is_refused = fault.bucket_code or fault.request_code or fault.is_cut
        if not is_refused or fault.is_stored:
            stored_code, offset = self._store(request.table_id, bucket)
            code = code or stored_code
        if fault.is_omitted:
            return
        entry = response.buckets_resp.add(bucket_id=bucket.bucket_id)
        if bucket.partition_id is not None:
            entry.partition_id = bucket.partition_id
        if code:
            entry.error_code, entry.error_message = code, f"refused with {code}"
        elif isinstance(entry, pb.PbPutKvRespForBucket):
            entry.log_end_offset = offset
            if fault.pressure:
                entry.pressure = fault.pressure
        else:
            entry.base_offset = offset

    def _store(self, table_id: int, bucket: BucketRecords) -> tuple[int, int]:
        key = table_id, bucket.partition_id, bucket.bucket_id
        batches = list(iter_batches(bytes(bucket.records_view)))
        assert len(batches) == 1, "a request has one batch per bucket"
        batch = batches[0]
        verify_crc(batch)
        code = self._check_sequence(key, batch.header.writer_id, batch.header.batch_sequence)
        offset = len(self.rows[key])
        if not code:
            self.headers[key].append(batch.header)
            self.rows[key] += self._decode(table_id, batch)
        return (0 if code == DUPLICATE else code), offset

    def _check_sequence(self, key: tuple[int, int | None, int], writer_id: int, sequence: int) -> int:
        if writer_id < 0:
            return 0
        entry = self._writers[(*key, writer_id)]
        if sequence in entry.recent:
            # Stored before: a success, without storing it again.
            return DUPLICATE
        if sequence != entry.sequence + 1:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
        entry.sequence = sequence
        entry.recent.append(sequence)
        return 0

    def forget_writers(self) -> None:
        """Lose track of all writers, as after expiration."""
        self._writers.clear()

    def _decode(self, table_id: int, batch: LogBatch) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = decode_arrow_batch(batch, self._schemas[table_id]).to_pylist()
        return rows


@contextmanager
def log_server() -> Iterator[LogServer]:
    server = LogServer()
    try:
        yield server
    finally:
        server.close()


class Client:
    """A writer client without the rest of a connection."""

    def __init__(self, config: Config) -> None:
        self.runtime = runtime()
        self.cluster = self.runtime.run(Cluster.connect(config))
        self.writes = WriterClient(self.cluster, self.runtime)

    def table(self, path: TablePath = PATH) -> TableInfo:
        self.runtime.run(self.cluster.refresh([path]))
        info = self.cluster.table_info(path)
        assert info is not None
        return info

    def writer(self, path: TablePath = PATH) -> AppendWriter:
        return AppendWriter(self.writes, self.table(path))

    def flush(self, writer: WriterBase | TableUpsert) -> None:
        self.runtime.run(writer.flush())

    def close(self, timeout_s: float = 120.0) -> None:
        try:
            self.runtime.run(self.writes.close(timeout_s))
        finally:
            self.runtime.run(self.cluster.close())


@contextmanager
def client_of(server: LogServer, **options: str | int | bool) -> Iterator[Client]:
    """Connect a client; closing it does not complain about failures that a test has made on purpose."""
    client = Client(server.config(**options))
    try:
        yield client
    finally:
        with suppress(FlussError):
            client.close()
