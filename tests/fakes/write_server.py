"""A server that stores what is written to it, and fails when and how a test wants it to.

Rows of logs are kept decoded, in the order of their offsets; puts and deletes in the order of their arrival. Writers
are checked like a real server does it: sequences without gaps, and the last five batches are recognised.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import runtime
from fluss.client.write.writer_client import WriterClient
from fluss.client.write.writers import AppendWriter, TableUpsert, WriterBase
from fluss.config import Config
from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.bulk_messages import BucketRecords, ProduceLogRequest, PutKvRequest
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.arrow_batch import decode_arrow_batch
from fluss.record.kv_batch import KvBatch
from fluss.record.log_batch import LogBatchHeader, iter_batches, verify_crc
from fluss.row import compacted_columns, indexed
from fluss.row.compacted_columns import decode_keys
from fluss.row.encoded import EncodedRows
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.table import TableInfo, TablePath
from tests.fakes.faulty_server import Fault, FaultyServer

R = TypeVar("R", pb.ProduceLogResponse, pb.PutKvResponse)

PATH = TablePath("fluss", "events")
SCHEMA = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
REMEMBERED_BATCHES = 5
# A bucket: its table, its partition, its number.
Place = tuple[int, int | None, int]
# No code of the protocol: a batch that was stored before.
DUPLICATE = -100
USERS = Schema(
    pa.schema([("id", pa.int64()), ("name", pa.string()), ("age", pa.int32())]),
    primary_keys=["id"],
)


@dataclass(frozen=True)
class Change:
    """A row that was put, or the key of one that was deleted, and the columns that its request wrote."""

    row: dict[str, Any]
    is_delete: bool
    targets: tuple[int, ...]


@dataclass
class WriterEntry:
    """What the server remembers of a writer in a bucket."""

    sequence: int = -1
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))


class WriteServer(FaultyServer):
    """One tablet server with logs and tables with a primary key, in memory."""

    # Rows do not wait long, unless a test says so.
    options: ClassVar[dict[str, str | int]] = {"writer.batch-timeout-ms": 5}

    def __init__(self) -> None:
        self.rows: dict[Place, list[dict[str, Any]]] = defaultdict(list)
        self.headers: dict[Place, list[LogBatchHeader]] = defaultdict(list)
        self.requests: list[ProduceLogRequest] = []
        self.changes: dict[Place, list[Change]] = defaultdict(list)
        self.batches: dict[Place, list[KvBatch]] = defaultdict(list)
        self.puts: list[PutKvRequest] = []
        self.init_writer_codes: deque[int] = deque()
        self.init_writer_requests: list[pb.InitWriterRequest] = []
        self._writers: dict[tuple[int, int | None, int, int], WriterEntry] = defaultdict(WriterEntry)
        self._schemas: dict[int, pa.Schema] = {}
        # By table id: the schema, the names of the key columns, and whether rows are in the indexed format.
        self._keyed: dict[int, tuple[Schema, list[str], bool]] = {}
        self._next_writer_id = 100
        super().__init__()

    def handlers(self) -> dict[ApiKey, Any]:
        return {
            ApiKey.PRODUCE_LOG: self._produce,
            ApiKey.PUT_KV: self._put,
            ApiKey.INIT_WRITER: self._init_writer,
        }

    # What tests do

    def add_table(
        self,
        path: TablePath = PATH,
        table_id: int = 1,
        *,
        schema: Schema = SCHEMA,
        schema_id: int = 1,
        leaders: list[int | None] | None = None,
        properties: dict[str, str] | None = None,
        **description: Any,
    ) -> None:
        properties = {"table.log.arrow.compression.type": "NONE", **(properties or {})}
        descriptor = TableDescriptor(schema, properties=properties, **{"bucket_count": 1, **description})
        self._schemas[table_id] = schema.to_arrow()
        if schema.get_primary_keys():
            key_names = [name for name in schema.get_primary_keys() if name not in descriptor.partition_keys]
            self._keyed[table_id] = schema, key_names, properties.get("table.kv.format") == "INDEXED"
        self.describe(path, table_id, descriptor, schema_id=schema_id, leaders=leaders)

    def add_kv_table(self, path: TablePath = PATH, table_id: int = 1, **description: Any) -> None:
        self.add_table(path, table_id, **{"schema": USERS, **description})

    def add_partition(self, name: str, partition_id: int, path: TablePath = PATH, bucket_count: int = 1) -> None:
        self.scripted.add_partition(path, name, partition_id, leaders=[0] * bucket_count)

    def stored(self, bucket_id: int = 0, *, table_id: int = 1, partition_id: int | None = None) -> list[dict[str, Any]]:
        return self.rows[table_id, partition_id, bucket_id]

    def ids(self, bucket_id: int = 0, *, table_id: int = 1, partition_id: int | None = None) -> list[int]:
        return [row["id"] for row in self.stored(bucket_id, table_id=table_id, partition_id=partition_id)]

    def changes_of(self, bucket_id: int = 0, *, table_id: int = 1, partition_id: int | None = None) -> list[Change]:
        return self.changes[table_id, partition_id, bucket_id]

    def rows_put(self, bucket_id: int = 0, **where: Any) -> list[dict[str, Any]]:
        return [change.row for change in self.changes_of(bucket_id, **where) if not change.is_delete]

    def state(self, table_id: int = 1) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return what a table would hold now, by key; deletes take whole rows."""
        schema, key_names, _ = self._keyed[table_id]
        names = schema.column_names
        held: dict[tuple[Any, ...], dict[str, Any]] = {}
        for (owner, partition_id, _), changes in self.changes.items():
            for change in changes if owner == table_id else ():
                key = (partition_id, *(change.row[name] for name in key_names))
                if change.is_delete:
                    held.pop(key, None)
                    continue
                written = [names[index] for index in change.targets] or names
                held[key] = {**held.get(key, dict.fromkeys(names)), **{name: change.row[name] for name in written}}
        return held

    def forget_writers(self) -> None:
        """Lose track of all writers, as after expiration."""
        self._writers.clear()

    # What clients ask

    def _init_writer(self, context: RequestContext, request: pb.InitWriterRequest) -> pb.InitWriterResponse:
        self.init_writer_requests.append(request)
        if self.init_writer_codes and (code := self.init_writer_codes.popleft()):
            raise FlussError("no writer ids today", code)
        self._next_writer_id += 1
        return pb.InitWriterResponse(writer_id=self._next_writer_id)

    async def _produce(self, context: RequestContext, request: ProduceLogRequest) -> pb.ProduceLogResponse:
        self.requests.append(request)
        return await self._answer(request, pb.ProduceLogResponse())

    async def _put(self, context: RequestContext, request: PutKvRequest) -> pb.PutKvResponse:
        self.puts.append(request)
        return await self._answer(request, pb.PutKvResponse())

    async def _answer(self, request: ProduceLogRequest | PutKvRequest, response: R) -> R:
        """Store the records of a request and say so, or do what the next fault wants."""
        async with self.answering(request.table_id) as fault:
            for bucket in request.buckets:
                self._answer_bucket(request, bucket, fault, response)
        return response

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
            stored_code, offset = self._store(request, bucket)
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

    def _store(self, request: ProduceLogRequest | PutKvRequest, bucket: BucketRecords) -> tuple[int, int]:
        """Store one batch and return an error code and, without one, the offset."""
        key = request.table_id, bucket.partition_id, bucket.bucket_id
        if isinstance(request, PutKvRequest):
            batch = KvBatch.parse(bytes(bucket.records_view))
            batch.verify_crc()
            code = self._check_sequence(key, batch.writer_id, batch.batch_sequence)
            if not code:
                self.batches[key].append(batch)
                self.changes[key] += self._changes_in(request, batch)
            return (0 if code == DUPLICATE else code), len(self.changes[key])
        (log_batch,) = iter_batches(bytes(bucket.records_view))
        verify_crc(log_batch)
        code = self._check_sequence(key, log_batch.header.writer_id, log_batch.header.batch_sequence)
        offset = len(self.rows[key])
        if not code:
            self.headers[key].append(log_batch.header)
            self.rows[key] += decode_arrow_batch(log_batch, self._schemas[request.table_id]).to_pylist()
        return (0 if code == DUPLICATE else code), offset

    def _check_sequence(self, key: Place, writer_id: int, sequence: int) -> int:
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

    def _changes_in(self, request: PutKvRequest, batch: KvBatch) -> list[Change]:
        schema, key_names, is_indexed = self._keyed[request.table_id]
        keys, rows, is_delete = batch.records()
        key_columns = decode_keys(keys, [schema.column(name).data_type for name in key_names])
        decoded_keys = pa.RecordBatch.from_arrays(key_columns, names=key_names).to_pylist()
        codec = indexed if is_indexed else compacted_columns
        types = [data_type.with_nullable(True) for data_type in schema.data_types]
        puts = EncodedRows(rows.data, rows.starts[~is_delete], rows.ends[~is_delete])
        put_rows = pa.RecordBatch.from_arrays(codec.decode_rows(puts, types), names=schema.column_names).to_pylist()
        rows_left = iter(put_rows)
        changes = []
        for key, is_key_deleted in zip(decoded_keys, is_delete.tolist(), strict=True):
            row = key if is_key_deleted else next(rows_left)
            assert {name: row[name] for name in key_names} == key, "the key of a record is that of its row"
            changes.append(Change(row, is_key_deleted, tuple(request.target_columns)))
        return changes


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
def client_of(server: WriteServer, **options: str | int | bool) -> Iterator[Client]:
    """Connect a client; closing it does not complain about failures that a test has made on purpose."""
    client = Client(server.config(**options))
    try:
        yield client
    finally:
        with suppress(FlussError):
            client.close()


def upsert_of(client: Client, path: TablePath = PATH, **columns: Any) -> TableUpsert:
    """Return what ``FlussTable.new_upsert`` returns."""
    return TableUpsert(lambda: client.writes, client.table(path), **columns)
