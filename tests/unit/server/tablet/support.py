"""What the tests of the tablet server share: a catalog in memory, batches, and a real server on a real socket."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from fluss.net.channel import Channel
from fluss.net.listener import Listener, ListenerSettings
from fluss.protocol import api as apis
from fluss.protocol import bulk_messages
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.record.arrow_batch import decode_arrow_batch, encode_arrow_batch
from fluss.record.compression import NO_COMPRESSION, ArrowCompression
from fluss.record.log_batch import MAGIC_V1, NO_BATCH_SEQUENCE, NO_WRITER_ID, build_batch, iter_batches
from fluss.record.statistics import collect_statistics
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.table import TablePath
from fluss.server.authorizer import Authorizer
from fluss.server.model import Partition, Table
from fluss.server.rpc.tablet_service import TabletService
from fluss.server.tablet.manager import TabletManager, TabletSettings
from fluss.storage.vfs import OsFiles
from fluss.testing.waiting import eventually_async

LOCALHOST = "127.0.0.1"
TIMEOUT_S = 120
NOW_MS = 1_700_000_000_000
SCHEMA = Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]))
QUICK = TabletSettings(retry_answer_delay_ms=1)
MARKER = ".fluss_cleanshutdown"
RECOVERY = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "high-watermark-checkpoint"


class Clock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class HeldFiles(OsFiles):
    """A disk on which nothing becomes durable before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def sync(self, path):
        asyncio.run_coroutine_threadsafe(self.may_sync.wait(), self._loop).result()
        super().sync(path)


class MemoryCatalog:
    """Tables and partitions in memory: what a coordinator tells a tablet server."""

    def __init__(self, *tables: Table) -> None:
        self._tables = {table.table_id: table for table in tables}
        self._partitions: dict[int, Partition] = {}

    def add(self, table: Table) -> None:
        self._tables[table.table_id] = table

    def remove(self, table: Table) -> None:
        del self._tables[table.table_id]

    def add_partition(self, partition: Partition) -> None:
        self._partitions[partition.partition_id] = partition

    def remove_partition(self, partition: Partition) -> None:
        del self._partitions[partition.partition_id]

    def tables(self) -> Collection[Table]:
        return list(self._tables.values())

    def table_by_id(self, table_id: int) -> Table | None:
        return self._tables.get(table_id)

    def table_by_path(self, path: TablePath) -> Table | None:
        return next((table for table in self._tables.values() if table.path == path), None)

    def partition_by_id(self, partition_id: int) -> Partition | None:
        return self._partitions.get(partition_id)

    def partitions_of(self, table_id: int) -> Mapping[str, Partition]:
        return {partition.name: partition for partition in self._partitions.values() if partition.table_id == table_id}


def make_table(
    table_id: int = 1,
    name: str = "t",
    schema: Schema = SCHEMA,
    *,
    buckets: int = 1,
    log_format: str = "ARROW",
    partition_keys: Sequence[str] = (),
    bucket_keys: Sequence[str] | None = None,
    properties: Mapping[str, str] | None = None,
) -> Table:
    descriptor = TableDescriptor(
        schema,
        bucket_count=buckets,
        log_format=log_format,
        partition_keys=partition_keys,
        bucket_keys=bucket_keys,
        properties=properties,
    )
    return Table(TablePath("db", name), table_id, 1, descriptor, {1: schema}, NOW_MS, NOW_MS)


def with_schema(table: Table, schema: Schema) -> Table:
    """Return the table after an ALTER that gave it another schema."""
    schema_id = table.schema_id + 1
    old = table.descriptor
    descriptor = TableDescriptor(schema, bucket_count=old.bucket_count, properties=old.properties)
    return replace(table, schema_id=schema_id, descriptor=descriptor, schemas={**table.schemas, schema_id: schema})


def with_properties(table: Table, properties: Mapping[str, str]) -> Table:
    old = table.descriptor
    descriptor = TableDescriptor(old.schema, bucket_count=old.bucket_count, properties={**old.properties, **properties})
    return replace(table, descriptor=descriptor)


def rows(first: int, count: int, text: str = "row") -> pa.RecordBatch:
    """Return rows of SCHEMA with consecutive ids."""
    ids = range(first, first + count)
    return pa.record_batch(
        {"id": pa.array(ids, pa.int32()), "name": pa.array([f"{text} {id}" for id in ids], pa.string())}
    )


def arrow_batch(
    batch: pa.RecordBatch,
    *,
    schema_id: int = 1,
    writer_id: int = NO_WRITER_ID,
    sequence: int = NO_BATCH_SEQUENCE,
    compression: ArrowCompression = NO_COMPRESSION,
) -> bytearray:
    return encode_arrow_batch(batch, schema_id, compression, writer_id=writer_id, batch_sequence=sequence)


def batch_with_statistics(batch: pa.RecordBatch, schema: Schema = SCHEMA, *, schema_id: int = 1) -> bytearray:
    """Return a batch as writers send it whose table asks for statistics."""
    types = schema.data_types
    return build_batch(
        [batch.serialize()],
        schema_id=schema_id,
        record_count=batch.num_rows,
        append_only=True,
        magic=MAGIC_V1,
        statistics=collect_statistics(batch, types, range(len(types))),
    )


def decoded(payload: Any, schema: Schema = SCHEMA, columns: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return the rows of all whole batches, each with its offset."""
    arrow = schema.to_arrow()
    if columns is not None:
        arrow = pa.schema([arrow.field(index) for index in columns])
    found = []
    for batch in iter_batches(payload):
        for index, row in enumerate(decode_arrow_batch(batch, arrow).to_pylist()):
            found.append({"offset": batch.header.base_offset + index, **row})
    return found


def ids(payload: Any, schema: Schema = SCHEMA) -> list[int]:
    return [row["id"] for row in decoded(payload, schema)]


@dataclass
class Server:
    """A tablet server behind a listener, and a client's connection to it."""

    manager: TabletManager
    service: TabletService
    listener: Listener
    channel: Channel
    catalog: MemoryCatalog
    clock: Clock
    channels: list[Channel] = field(default_factory=list)

    async def connect(self, **options: Any) -> Channel:
        channel = await Channel.connect(LOCALHOST, self.listener.port, **options)
        self.channels.append(channel)
        return channel

    async def request(self, api: Any, message: Any) -> Any:
        return await self.channel.request(api, message, timeout_s=TIMEOUT_S)

    async def produce(
        self,
        payload: Any,
        bucket: int = 0,
        *,
        table_id: int = 1,
        partition_id: int | None = None,
        acks: int = -1,
        timeout_ms: int = 30_000,
    ) -> Any:
        """Write to one bucket and return its answer."""
        entry = bulk_messages.BucketRecords(bucket, payload, partition_id)
        request = bulk_messages.ProduceLogRequest(acks, table_id, timeout_ms, [entry])
        (answer,) = (await self.request(apis.PRODUCE_LOG, request)).buckets_resp
        return answer

    async def append(self, batch: pa.RecordBatch, bucket: int = 0, **options: Any) -> int:
        """Write rows that must be accepted, and return their first offset."""
        answer = await self.produce(arrow_batch(batch), bucket, **options)
        assert not answer.HasField("error_code"), answer
        return answer.base_offset

    async def fetch(self, *buckets: tuple[int, int], **options: Any) -> list[bulk_messages.FetchedBucket]:
        """Fetch (bucket, offset) pairs of one table and return the answers in the order of the buckets."""
        response = await self.request(apis.FETCH_LOG, fetch_request(*buckets, **options))
        (table,) = response.tables
        return sorted(table.buckets, key=lambda bucket: bucket.bucket_id)

    async def fetch_one(self, offset: int = 0, **options: Any) -> bulk_messages.FetchedBucket:
        (answer,) = await self.fetch((0, offset), **options)
        return answer

    async def offsets(self, *bucket_ids: int, type: int, timestamp: int | None = None, **options: Any) -> Any:
        request = pb.ListOffsetsRequest(
            follower_server_id=-1,
            offset_type=type,
            table_id=options.get("table_id", 1),
            partition_id=options.get("partition_id"),
            bucket_id=bucket_ids,
            startTimestamp=timestamp,
        )
        return (await self.request(apis.LIST_OFFSETS, request)).buckets_resp


def fetch_request(
    *buckets: tuple[int, int],
    table_id: int = 1,
    partition_id: int | None = None,
    max_bytes: int = 16 * 1024 * 1024,
    bucket_bytes: int = 1024 * 1024,
    min_bytes: int | None = None,
    max_wait_ms: int | None = None,
    columns: Sequence[int] | None = None,
    predicate: pb.PbPredicate | None = None,
    filter_schema_id: int | None = None,
    follower: int = -1,
) -> pb.FetchLogRequest:
    request = pb.FetchLogRequest(
        follower_server_id=follower, max_bytes=max_bytes, min_bytes=min_bytes, max_wait_ms=max_wait_ms
    )
    table = request.tables_req.add(
        table_id=table_id,
        projection_pushdown_enabled=columns is not None,
        projected_fields=columns or (),
        filter_predicate=None if predicate is None else predicate.SerializeToString(),
        filter_schema_id=filter_schema_id,
    )
    for bucket_id, offset in buckets:
        table.buckets_req.add(
            bucket_id=bucket_id, partition_id=partition_id, fetch_offset=offset, max_fetch_bytes=bucket_bytes
        )
    return request


@asynccontextmanager
async def serving(
    data_dir: Path,
    *tables: Table,
    catalog: MemoryCatalog | None = None,
    settings: TabletSettings | None = None,
    clock: Clock | None = None,
    authorizer: Authorizer | None = None,
    listener_settings: ListenerSettings | None = None,
    connect: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Server]:
    """Start a server on some tables; stop it in order at the end."""
    settings = settings or TabletSettings()
    catalog = catalog or MemoryCatalog(*tables)
    clock = clock or Clock()
    manager = TabletManager(data_dir, catalog, settings, clock=clock, **options)
    await manager.start()
    # Recovered offsets are noted in the background; tests write checkpoints of their own.
    await eventually_async(lambda: not manager._background)
    try:
        service = TabletService(
            manager, catalog, authorizer or Authorizer.disabled(), clock=clock, rng=random.Random(7)
        )
        async with service, Listener(listener_settings or ListenerSettings(), service.handlers()) as listener:
            channel = await Channel.connect(LOCALHOST, listener.port, **(connect or {}))
            server = Server(manager, service, listener, channel, catalog, clock, [channel])
            try:
                yield server
            finally:
                service.drain()
                for channel in server.channels:
                    await channel.close()
    finally:
        await manager.stop()
