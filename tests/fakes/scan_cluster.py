"""Servers with logs for tests of scanners: real sockets and frames, logs in memory, answers that tests can change.

All servers of a cluster share one ``ScanCluster``; which of them leads a bucket is up to the test.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from fluss.client.kernel.cluster import Cluster
from fluss.client.kernel.runtime import runtime
from fluss.client.scan.table_scan import TableScan
from fluss.errors import ErrorCode, FlussError
from fluss.net.request_handler import Handler, RequestContext
from fluss.protocol.api import ApiKey
from fluss.protocol.bulk_messages import (
    FetchedBucket,
    FetchedTable,
    FetchLogResponse,
    LimitScanResponse,
    ScanKvResponse,
)
from fluss.protocol.convert import pb_partition_spec
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.arrow_batch import ColumnProjection, encode_arrow_batch, project_batch
from fluss.record.compression import NO_COMPRESSION, ArrowCompression
from fluss.record.log_batch import assign_offset, build_batch, encode_row_body, read_batch
from fluss.record.value_batch import encode_value_batch, prefix_schema_id
from fluss.row import compacted_columns, indexed
from fluss.row.encoded import EncodedRows
from fluss.row.values import internal_from_arrow
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.serde import schema_to_json
from fluss.schema.table import TableBucket, TableInfo, TablePath, spec_of_partition_name
from fluss.schema.table_options import KvFormat, LogFormat
from tests.fakes.faulty_server import ServerThread
from tests.fakes.scripted_server import ScriptedServer

T = TypeVar("T")

PATH = TablePath("fluss", "events")
TABLE_ID = 7
SCHEMA = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]))
# A bucket of the one table: partition id and bucket id.
Key = tuple[int | None, int]


class StoredBatch(NamedTuple):
    """A batch, and what the server remembers of it even when the test damages its bytes."""

    offset_last: int
    schema_id: int
    data: bytes


@dataclass(slots=True)
class ScanSession:
    """A snapshot of the rows of a bucket, and how far it has been read."""

    server_id: int
    values: list[bytes]
    read_count: int = 0
    call_seq_id: int = 0


class ScanCluster(ServerThread):
    """The state of a cluster with one table. It belongs to the thread of the servers; see ``run`` and ``call``."""

    def __init__(self, schema: Schema = SCHEMA, *, bucket_count: int = 1, **descriptor: Any) -> None:
        self.schemas = {1: schema}
        # The schema that a table has when it is looked up.
        self.schema_id = 1
        self.descriptor = TableDescriptor(schema, bucket_count=bucket_count, **descriptor)
        self.partitions: dict[int, str] = {}
        self.servers: dict[int, ScriptedServer] = {}
        self.leaders: dict[Key, int] = {}
        # Batches per bucket, the offset after them, and where the log begins.
        self.logs: dict[Key, list[StoredBatch]] = {}
        self.offsets_next: dict[Key, int] = {}
        self.offsets_start: dict[Key, int] = {}
        # What the next fetches of a bucket are answered with, instead of records; the last answer is repeated if it
        # is marked as such.
        self.answers: dict[Key, deque[FetchedBucket]] = {}
        self.standing_answers: dict[Key, FetchedBucket] = {}
        self.request_error: FlussError | None = None
        # Whether the last batch of an answer may be cut, and how many batches an answer has at most.
        self.cuts_batches = False
        self.batches_per_answer_max = 1000
        self.waits = True
        self.refuses_new_columns = False
        self.limit_scan_answer: LimitScanResponse | None = None
        # Current rows of a table with a primary key, as stored values in key order, and the sessions over them.
        self.values: dict[Key, list[bytes]] = {}
        self.sessions: dict[bytes, ScanSession] = {}
        self.scans: list[pb.ScanKvRequest] = []
        # What the next scan requests are answered with instead; None lets one pass.
        self.scan_answers: deque[ScanKvResponse | FlussError | None] = deque()
        self.rows_per_scan_max = 1000
        # Holds answers to scans back while it is not set.
        self.scan_gate = asyncio.Event()
        self.scan_gate.set()
        # Whether servers that are started know scans at all.
        self.offers_scans = True
        # The last snapshot of a bucket in remote storage: its offset, and files by the name they are to have.
        self.snapshots: dict[Key, tuple[int, dict[str, str]]] = {}
        self.fetches: list[pb.FetchLogRequest] = []
        self.list_offsets = self._list_offsets
        # What is said about the ends of logs, where it is not the truth.
        self.latest_answers: dict[Key, int] = {}
        self.schema_requests: list[int] = []
        self._news = asyncio.Event()
        super().__init__()

    # For the thread of the test

    def call(self, function: Callable[[], T]) -> T:
        """Change or read something on the thread of the servers, and let waiting fetches look again."""

        def announced() -> T:
            result = function()
            self.announce()
            return result

        return super().call(announced)

    def start_server(self, server_id: int = 0, port: int = 0) -> ScriptedServer:
        async def start() -> ScriptedServer:
            handlers: dict[ApiKey, Handler] = {
                ApiKey.FETCH_LOG: lambda context, request: self._fetch(server_id, request),
                ApiKey.LIST_OFFSETS: lambda context, request: self.list_offsets(context, request),
                ApiKey.GET_TABLE_SCHEMA: self._get_schema,
                ApiKey.LIMIT_SCAN: self._limit_scan,
                ApiKey.LIST_PARTITION_INFOS: self._list_partitions,
                ApiKey.GET_LATEST_KV_SNAPSHOTS: self._latest_snapshots,
                ApiKey.GET_KV_SNAPSHOT_METADATA: self._snapshot,
            }
            if self.offers_scans:
                handlers[ApiKey.SCAN_KV] = lambda context, request: self._scan_kv(server_id, request)
            server = ScriptedServer(server_id, port=port, handlers=handlers)
            await server.start()
            self.servers[server_id] = server
            self.publish()
            return server

        return self.run(start())

    def stop_server(self, server_id: int = 0) -> None:
        async def stop() -> None:
            await self.servers.pop(server_id).stop()
            self.sessions = {key: scan for key, scan in self.sessions.items() if scan.server_id != server_id}
            self.publish()

        self.run(stop())

    def close(self) -> None:
        for server_id in list(self.servers):
            self.stop_server(server_id)
        super().close()

    def append(
        self,
        rows: Sequence[dict[str, Any]] | pa.RecordBatch,
        *,
        bucket: int = 0,
        partition: int | None = None,
        **facts: Any,
    ) -> None:
        """Append one batch. ``facts`` may say the schema id, change types, the compression, and the timestamp."""
        encoded = self.encode(rows, **facts)
        self.call(lambda: self.append_encoded(encoded, (partition, bucket)))

    def encode(
        self,
        rows: Sequence[dict[str, Any]] | pa.RecordBatch,
        *,
        schema_id: int = 1,
        change_types: Sequence[int] | None = None,
        compression: ArrowCompression = NO_COMPRESSION,
        timestamp_ms: int = 0,
    ) -> bytearray:
        schema = self.schemas[schema_id]
        batch = rows if isinstance(rows, pa.RecordBatch) else pa.RecordBatch.from_pylist(list(rows), schema.to_arrow())
        changes = None if change_types is None else np.array(change_types, np.uint8)
        if self.descriptor.log_format is LogFormat.ARROW:
            return encode_arrow_batch(
                batch, schema_id, compression, change_types=changes, commit_timestamp=timestamp_ms
            )
        return self._encode_rows(batch, schema, schema_id, changes, timestamp_ms)

    def _encode_rows(
        self, batch: pa.RecordBatch, schema: Schema, schema_id: int, changes: Any, timestamp_ms: int
    ) -> bytearray:
        types = schema.data_types
        if self.descriptor.log_format is LogFormat.COMPACTED:
            encoded = compacted_columns.encode_rows(batch.columns, types)
        else:
            encoded = _indexed_rows(batch, schema)
        body = encode_row_body(encoded, np.zeros(batch.num_rows, np.uint8) if changes is None else changes)
        return build_batch(
            [body],
            schema_id=schema_id,
            record_count=batch.num_rows,
            append_only=changes is None,
            commit_timestamp=timestamp_ms,
        )

    def put_rows(
        self,
        rows: Sequence[dict[str, Any]],
        *,
        bucket: int = 0,
        partition: int | None = None,
        schema_id: int = 1,
    ) -> None:
        """Let a bucket have these rows, too; they are not in its log."""
        schema = self.schemas[schema_id]
        batch = pa.RecordBatch.from_pylist(list(rows), schema.to_arrow())
        if self.descriptor.kv_format is KvFormat.INDEXED:
            encoded = _indexed_rows(batch, schema)
        else:
            encoded = compacted_columns.encode_rows(batch.columns, schema.data_types)
        values = prefix_schema_id(encoded, schema_id).to_list()
        self.call(lambda: self.values.setdefault((partition, bucket), []).extend(values))

    # For the thread of the servers

    def append_encoded(self, encoded: bytearray, key: Key = (None, 0), offset: int | None = None) -> None:
        base_offset = self.offsets_next.get(key, 0) if offset is None else offset
        header = read_batch(encoded).header
        assign_offset(encoded, base_offset, header.commit_timestamp)
        stored = StoredBatch(base_offset + header.last_offset_delta, header.schema_id, bytes(encoded))
        self.logs.setdefault(key, []).append(stored)
        self.offsets_next[key] = base_offset + header.last_offset_delta + 1

    def publish(self) -> None:
        """Tell all servers what their metadata is now."""
        for server in self.servers.values():
            server.peers = {server_id: peer.port for server_id, peer in self.servers.items()}
            server.add_table(
                PATH,
                TABLE_ID,
                leaders=self._leaders_of(None),
                descriptor=self.descriptor,
                schema_id=self.schema_id,
            )
            server.partitions.clear()
            for partition_id, name in self.partitions.items():
                server.add_partition(PATH, name, partition_id, leaders=self._leaders_of(partition_id))

    def _leaders_of(self, partition_id: int | None) -> list[int | None]:
        assert self.descriptor.bucket_count is not None
        default = next(iter(self.servers), 0)
        return [self.leaders.get((partition_id, number), default) for number in range(self.descriptor.bucket_count)]

    def announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _fetch(self, server_id: int, request: pb.FetchLogRequest) -> FetchLogResponse:
        self.fetches.append(request)
        deadline_s = time.monotonic() + request.max_wait_ms / 1000
        while True:
            if self.request_error is not None:
                raise self.request_error
            news = self._news
            (table,) = request.tables_req
            buckets = [self._answer(server_id, table, bucket) for bucket in table.buckets_req]
            remaining_s = deadline_s - time.monotonic()
            is_quiet = not any(
                b.error_code or b.remote_log_fetch_info or b.filtered_end_offset or len(b.records_view) for b in buckets
            )
            if not is_quiet or remaining_s <= 0 or not self.waits:
                return FetchLogResponse([FetchedTable(table.table_id, buckets)])
            try:
                async with asyncio.timeout(remaining_s):
                    await news.wait()
            except TimeoutError:
                pass

    def _answer(
        self, server_id: int, table: pb.PbFetchLogReqForTable, wanted: pb.PbFetchLogReqForBucket
    ) -> FetchedBucket:
        partition_id = wanted.partition_id if wanted.HasField("partition_id") else None
        key = partition_id, wanted.bucket_id
        if self.answers.get(key):
            return self.answers[key].popleft()
        if key in self.standing_answers:
            return self.standing_answers[key]
        if self.leaders.get(key, server_id) != server_id:
            return FetchedBucket(wanted.bucket_id, partition_id, ErrorCode.NOT_LEADER_OR_FOLLOWER, "not the leader")
        start, end = self.offsets_start.get(key, 0), self.offsets_next.get(key, 0)
        offset = start if wanted.fetch_offset == -2 else wanted.fetch_offset
        if not start <= offset <= end:
            text = f"offset {offset} is not between {start} and {end}"
            return FetchedBucket(wanted.bucket_id, partition_id, ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION, text)
        try:
            records = self._records(key, offset, table)
        except FlussError as error:
            return FetchedBucket(wanted.bucket_id, partition_id, error.error_code, error.message)
        return FetchedBucket(
            wanted.bucket_id, partition_id, high_watermark=end, log_start_offset=0, records=b"".join(records)
        )

    def _records(self, key: Key, offset: int, table: pb.PbFetchLogReqForTable) -> list[Any]:
        found = [stored for stored in self.logs.get(key, ()) if stored.offset_last >= offset]
        if not table.projection_pushdown_enabled:
            records: list[Any] = [stored.data for stored in found[: self.batches_per_answer_max]]
            if self.cuts_batches and len(records) > 1:
                records[-1] = records[-1][:-5]
            return records
        records = []
        for stored in found[: self.batches_per_answer_max]:
            schema = self.schemas[stored.schema_id]
            columns = [field for field in table.projected_fields if field < len(schema.columns)]
            if self.refuses_new_columns and len(columns) < len(table.projected_fields):
                raise FlussError("a column does not exist yet", ErrorCode.INVALID_COLUMN_PROJECTION)
            batch = read_batch(stored.data)
            records += project_batch(batch, ColumnProjection.of(schema.to_arrow(), columns), recompute_crc=False)
        return records

    def _list_offsets(self, context: RequestContext, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        response = pb.ListOffsetsResponse()
        partition_id = request.partition_id if request.HasField("partition_id") else None
        for bucket_id in request.bucket_id:
            offsets = self.offsets_start if request.offset_type == 0 else self.offsets_next | self.latest_answers
            response.buckets_resp.add(bucket_id=bucket_id, offset=offsets.get((partition_id, bucket_id), 0))
        return response

    def _get_schema(self, context: RequestContext, request: pb.GetTableSchemaRequest) -> pb.GetTableSchemaResponse:
        self.schema_requests.append(request.schema_id)
        schema = self.schemas.get(request.schema_id)
        if schema is None:
            raise FlussError(f"schema {request.schema_id} does not exist", ErrorCode.SCHEMA_NOT_EXIST)
        return pb.GetTableSchemaResponse(schema_id=request.schema_id, schema_json=schema_to_json(schema))

    def _limit_scan(self, context: RequestContext, request: pb.LimitScanRequest) -> LimitScanResponse:
        if self.limit_scan_answer is not None:
            return self.limit_scan_answer
        key = request.partition_id if request.HasField("partition_id") else None, request.bucket_id
        first = self.offsets_next.get(key, 0) - request.limit
        found = [stored.data for stored in self.logs.get(key, ()) if stored.offset_last >= first]
        return LimitScanResponse(is_log_table=True, records=b"".join(found))

    def _list_partitions(
        self, context: RequestContext, request: pb.ListPartitionInfosRequest
    ) -> pb.ListPartitionInfosResponse:
        response = pb.ListPartitionInfosResponse()
        for partition_id, name in self.partitions.items():
            spec = spec_of_partition_name(name, self.descriptor.partition_keys)
            response.partitions_info.add(partition_id=partition_id, partition_spec=pb_partition_spec(spec))
        return response

    def _latest_snapshots(
        self, context: RequestContext, request: pb.GetLatestKvSnapshotsRequest
    ) -> pb.GetLatestKvSnapshotsResponse:
        names = {name: partition_id for partition_id, name in self.partitions.items()}
        partition_id = names[request.partition_name] if request.HasField("partition_name") else None
        response = pb.GetLatestKvSnapshotsResponse(table_id=TABLE_ID, partition_id=partition_id)
        for bucket_id in range(self.descriptor.bucket_count or 1):
            snapshot = self.snapshots.get((partition_id, bucket_id))
            if snapshot is None:
                response.latest_snapshots.add(bucket_id=bucket_id)
            else:
                response.latest_snapshots.add(bucket_id=bucket_id, snapshot_id=snapshot[0], log_offset=snapshot[0])
        return response

    def _snapshot(
        self, context: RequestContext, request: pb.GetKvSnapshotMetadataRequest
    ) -> pb.GetKvSnapshotMetadataResponse:
        key = request.partition_id if request.HasField("partition_id") else None, request.bucket_id
        offset, files = self.snapshots[key]
        if request.snapshot_id != offset:
            raise FlussError("there is a newer snapshot", ErrorCode.KV_SNAPSHOT_NOT_EXIST)
        response = pb.GetKvSnapshotMetadataResponse(log_offset=offset)
        for name, path in files.items():
            response.snapshot_files.add(remote_path=path, local_file_name=name)
        return response

    async def _scan_kv(self, server_id: int, request: pb.ScanKvRequest) -> ScanKvResponse:
        self.scans.append(request)
        await self.scan_gate.wait()
        answer = self.scan_answers.popleft() if self.scan_answers else None
        if isinstance(answer, FlussError):
            raise answer
        if answer is not None:
            return answer
        if request.close_scanner:
            self.sessions.pop(request.scanner_id, None)
            return ScanKvResponse()
        if not request.HasField("scanner_id"):
            return self._open_scan(server_id, request)
        session = self.sessions.get(request.scanner_id)
        if session is None or session.server_id != server_id:
            return ScanKvResponse(error_code=ErrorCode.UNKNOWN_SCANNER_ID, error_message="no such session")
        if request.call_seq_id != session.call_seq_id + 1:
            return ScanKvResponse(error_code=ErrorCode.INVALID_SCAN_REQUEST, error_message="calls out of order")
        session.call_seq_id += 1
        return self._next_rows(request.scanner_id, session)

    def _open_scan(self, server_id: int, request: pb.ScanKvRequest) -> ScanKvResponse:
        wanted = request.bucket_scan_req
        key = wanted.partition_id if wanted.HasField("partition_id") else None, wanted.bucket_id
        if self.leaders.get(key, server_id) != server_id:
            return ScanKvResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message="not the leader")
        values = self.values.get(key, [])[: wanted.limit if wanted.HasField("limit") else None]
        session_id = f"{key}-{len(self.scans)}".encode()
        session = self.sessions[session_id] = ScanSession(server_id, values)
        response = self._next_rows(session_id, session)
        response.log_offset = self.offsets_next.get(key, 0)
        return response

    def _next_rows(self, session_id: bytes, session: ScanSession) -> ScanKvResponse:
        start, end = session.read_count, session.read_count + self.rows_per_scan_max
        session.read_count = end
        has_more = end < len(session.values)
        if not has_more:
            del self.sessions[session_id]
        found = session.values[start:end]
        records = encode_value_batch(EncodedRows.from_list(found)) if found else None
        return ScanKvResponse(scanner_id=session_id, has_more_results=has_more, records=records)


def _indexed_rows(batch: pa.RecordBatch, schema: Schema) -> EncodedRows:
    types = schema.data_types
    columns = [internal_from_arrow(column, each) for column, each in zip(batch.columns, types, strict=True)]
    return EncodedRows.from_list([indexed.encode_row(types, row) for row in zip(*columns, strict=True)])


@contextmanager
def scan_cluster(schema: Schema = SCHEMA, **options: Any) -> Iterator[ScanCluster]:
    """A cluster with one server that leads everything."""
    with ScanCluster(schema, **options) as cluster:
        cluster.start_server()
        yield cluster


class Client:
    """A client of a ``ScanCluster``, as far as scans need one."""

    def __init__(self, servers: ScanCluster, **options: Any) -> None:
        named = {name.replace("__", "-").replace("_", "."): value for name, value in options.items()}
        config = next(iter(servers.servers.values())).config()
        for name, value in {"scanner.log.fetch.wait-max-time-ms": 200, **named}.items():
            config._set(name, value)
        self.cluster = runtime().run(Cluster.connect(config))
        runtime().run(self.cluster.refresh([PATH]))
        info = self.cluster.table_info(PATH)
        assert info is not None
        self.info: TableInfo = info

    def scan(self) -> TableScan:
        return TableScan(self.cluster, runtime(), self.info)

    def records(self) -> Any:
        return runtime().run(self.scan().create_log_scanner())

    def batches(self) -> Any:
        return runtime().run(self.scan().create_record_batch_log_scanner())

    def changes(self) -> Any:
        return runtime().run(self.scan().create_changelog_scanner())

    def bucket(self, bucket_id: int = 0, partition_id: int | None = None) -> TableBucket:
        return TableBucket.new_with_partition(TABLE_ID, partition_id, bucket_id)

    def close(self) -> None:
        runtime().run(self.cluster.close())


@contextmanager
def client_of(servers: ScanCluster, **options: Any) -> Iterator[Client]:
    client = Client(servers, **options)
    try:
        yield client
    finally:
        client.close()


def poll_patiently(poll: Callable[[int], Sequence[T]], count: int, *, passing_code: int) -> list[T]:
    """Poll until there are so many results; errors with one code may occur on the way."""
    results: list[T] = []
    deadline_s = time.monotonic() + 120
    while len(results) < count and time.monotonic() < deadline_s:
        try:
            results += poll(100)
        except FlussError as error:
            if error.error_code != passing_code:
                raise
    return results


def poll_until_it_fails(poll: Callable[[int], object], text: str = "") -> FlussError:
    """Poll until there is an error, with this text in it."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        try:
            poll(100)
        except FlussError as error:
            if text in error.message:
                return error
    raise AssertionError(f"no poll has failed with {text!r}")


def poll_rows(scanner: Any, count: int, timeout_s: float = 120.0) -> list[dict[str, Any]]:
    """Poll until there are so many rows."""
    return [record.row for record in poll_records(scanner, count, timeout_s)]


def poll_records(scanner: Any, count: int, timeout_s: float = 120.0) -> list[Any]:
    records: list[Any] = []
    deadline_s = time.monotonic() + timeout_s
    while len(records) < count and time.monotonic() < deadline_s:
        records += scanner.poll(100)
    return records
