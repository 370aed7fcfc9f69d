"""One hundred thousand orders through every format, and over a socket. Run it with ``make run``.

Nothing here is a simulation: the bytes are those of the Apache Fluss protocol, and every step is checked against the
rows it started from. The server at the end keeps its log in memory; it is there to show the network layer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

import fluss
from fluss.net.channel import Channel
from fluss.net.listener import Listener, ListenerSettings, RequestContext
from fluss.net.transport import run
from fluss.protocol import api
from fluss.protocol.api import ApiKey
from fluss.protocol.bulk_messages import BucketRecords, FetchedBucket, FetchedTable, FetchLogResponse, ProduceLogRequest
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials, UserTable
from fluss.record.arrow_batch import ColumnProjection, decode_arrow_batch, encode_arrow_batch, project_batch
from fluss.record.compression import ArrowCompression
from fluss.record.kv_batch import KvBatch, encode_kv_batch
from fluss.record.log_batch import assign_offset, iter_batches, read_batch, verify_crc
from fluss.row.bucketing import buckets_for
from fluss.row.compacted_columns import decode_rows, encode_keys, encode_rows
from fluss.schema.serde import table_to_json
from fluss.schema.table_options import CompressionType

ROWS = 100_000
BUCKETS = 3
SCHEMA_ID = 1
TABLE_ID = 1

T = TypeVar("T")


def main() -> None:
    orders, table = make_orders()
    show_table(table)
    log_batch = show_log_batches(orders)
    show_projection(orders, log_batch)
    show_rows_and_keys(orders, table)
    show_damage(log_batch)
    run(show_network(orders, log_batch))
    print("\nEvery step gave back the rows it started from.")


def make_orders() -> tuple[pa.RecordBatch, fluss.TableDescriptor]:
    """Describe a primary-key table and fill one batch of it."""
    schema = fluss.Schema(
        pa.schema(
            [
                pa.field("order_id", pa.int64()),
                pa.field("customer", pa.string()),
                pa.field("amount", pa.decimal128(12, 2)),
                pa.field("express", pa.bool_()),
                pa.field("placed_at", pa.timestamp("ms", tz="UTC")),
                pa.field("tags", pa.list_(pa.string())),
            ]
        ),
        primary_keys=["order_id"],
    )
    table = fluss.TableDescriptor(schema, bucket_count=BUCKETS, comment="orders of a small shop")
    rng = np.random.default_rng(1)
    cents = pa.array(rng.integers(100, 500_000, ROWS)).cast(pa.decimal128(19, 0))
    columns = [
        pa.array(np.arange(ROWS)),
        pa.array([f"customer-{number}" for number in rng.integers(0, 5000, ROWS)]),
        pa.array([value.scaleb(-2) for value in cents.to_pylist()], pa.decimal128(12, 2)),
        pa.array(rng.random(ROWS) < 0.2),
        pa.array(1_760_000_000_000 + np.arange(ROWS) * 37).cast(pa.timestamp("ms", tz="UTC")),
        pa.array([["new"] if i % 3 else None for i in range(ROWS)], pa.list_(pa.string())),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema.to_arrow()), table


def show_table(table: fluss.TableDescriptor) -> None:
    headline("The table")
    print(f"  {table.get_schema()}")
    print(f"  as the protocol's JSON: {len(table_to_json(table))} bytes")


def show_log_batches(orders: pa.RecordBatch) -> bytearray:
    """Encode the batch for a log table with each compression; return the one with the default."""
    headline(f"Log batches: {ROWS:,} rows, {orders.nbytes / 1e6:.1f} MB in memory")
    encoded: dict[CompressionType, bytearray] = {}
    for compression in map(ArrowCompression, CompressionType):
        batch, write_s = timed(lambda c=compression: encode_arrow_batch(orders, schema_id=SCHEMA_ID, compression=c))
        verify_crc(read_batch(batch))
        decoded, read_s = timed(lambda b=batch: decode_arrow_batch(read_batch(b), orders.schema))
        check(decoded.equals(orders), "a decoded log batch has the same rows")
        encoded[compression.type] = batch
        print(
            f"  {compression.type:<10} {len(batch) / 1e6:6.2f} MB   "
            f"encode {ROWS / write_s / 1e6:5.1f} M rows/s   decode {ROWS / read_s / 1e6:5.1f} M rows/s"
        )
    return encoded[CompressionType.ZSTD]


def show_projection(orders: pa.RecordBatch, log_batch: bytearray) -> None:
    """Cut two columns out of the stored bytes, as a server does for a scan that asks for no more."""
    wanted = [0, 4]
    projection = ColumnProjection.of(orders.schema, wanted)
    projected, seconds = timed(lambda: b"".join(project_batch(read_batch(log_batch), projection)))
    schema = pa.schema([orders.schema.field(index) for index in wanted])
    check(
        decode_arrow_batch(read_batch(projected), schema).equals(orders.select(wanted)), "projected columns are right"
    )
    print(
        f"  projected to {schema.names} without decoding: {len(log_batch) / 1e6:.2f} MB -> "
        f"{len(projected) / 1e6:.2f} MB in {seconds * 1000:.2f} ms"
    )


def show_rows_and_keys(orders: pa.RecordBatch, table: fluss.TableDescriptor) -> None:
    """Encode the same rows for a primary-key table: compacted rows, keys, buckets, a KV batch."""
    headline("Rows and keys, a column at a time")
    types = [column.data_type for column in table.get_schema().columns]
    # Lists take the plain codec, value by value; the other columns show the columnar one.
    flat_types, flat_columns = types[:5], orders.columns[:5]
    rows, write_s = timed(lambda: encode_rows(flat_columns, flat_types))
    columns, read_s = timed(lambda: decode_rows(rows, flat_types))
    check(all(a.equals(b) for a, b in zip(columns, flat_columns, strict=True)), "decoded rows are the encoded ones")
    print(
        f"  compacted rows, {rows.data.nbytes / ROWS:.1f} bytes each: encode {ROWS / write_s / 1e6:.1f} M rows/s, "
        f"decode {ROWS / read_s / 1e6:.1f} M rows/s"
    )
    keys = encode_keys(flat_columns[:1], flat_types[:1])
    java, hash_s = timed(lambda: buckets_for(keys, BUCKETS))
    rust = buckets_for(keys, BUCKETS, hash_variant="rust")
    print(
        f"  keys hashed into {BUCKETS} buckets: {np.bincount(java).tolist()} rows, {ROWS / hash_s / 1e6:.1f} M keys/s; "
        f"the released pyfluss puts {(java != rust).mean():.0%} of them elsewhere"
    )
    batch, kv_s = timed(lambda: encode_kv_batch(keys, rows, schema_id=SCHEMA_ID))
    received = KvBatch.parse(batch)
    received.verify_crc()
    found = received.records()
    check(found.keys.to_list()[-1] == keys.row(ROWS - 1), "a KV batch holds the keys")
    print(f"  KV batch of all of them: {len(batch) / 1e6:.2f} MB, {ROWS / kv_s / 1e6:.1f} M records/s")


def show_damage(log_batch: bytearray) -> None:
    headline("Damage is noticed")
    damaged = bytearray(log_batch)
    damaged[len(damaged) // 2] ^= 0x10
    print(f"  one bit flipped: {refusal(lambda: verify_crc(read_batch(damaged)))}")
    print(f"  last byte lost:  {refusal(lambda: read_batch(log_batch[:-1]))}")


class MemoryLog:
    """The log of one bucket, in memory: what a server does with produce and fetch requests, and no more."""

    def __init__(self) -> None:
        self._batches: list[memoryview] = []
        self._offset_next = 0

    def produce(self, context: RequestContext, request: ProduceLogRequest) -> pb.ProduceLogResponse:
        response = pb.ProduceLogResponse()
        for bucket in request.buckets:
            answer = response.buckets_resp.add(bucket_id=bucket.bucket_id, base_offset=self._offset_next)
            try:
                self._append(bytearray(bucket.records_view))
            except fluss.FlussError as error:
                answer.ClearField("base_offset")
                answer.error_code, answer.error_message = error.error_code, error.message
        return response

    def _append(self, records: bytearray) -> None:
        batches = list(iter_batches(records))
        for batch in batches:
            verify_crc(batch)
        position = 0
        for batch in batches:
            assign_offset(records, self._offset_next, int(time.time() * 1000), position)
            self._offset_next += batch.header.last_offset_delta + 1
            position += batch.header.size
        self._batches.append(memoryview(records))

    def fetch(self, context: RequestContext, request: pb.FetchLogRequest) -> FetchLogResponse:
        wanted = request.tables_req[0].buckets_req[0].fetch_offset
        found = [b for b in self._batches if read_batch(b).header.offset_last >= wanted][:1]
        bucket = FetchedBucket(0, high_watermark=self._offset_next, log_start_offset=0, records=found)
        return FetchLogResponse([FetchedTable(TABLE_ID, [bucket])])


async def show_network(orders: pa.RecordBatch, log_batch: bytearray) -> None:
    """Send the batch to a server over loopback, with a password, and read it back."""
    headline("Over a socket, with SASL")
    log = MemoryLog()
    handlers = {ApiKey.PRODUCE_LOG: log.produce, ApiKey.FETCH_LOG: log.fetch}
    settings = ListenerSettings("CLIENT", check_credentials=UserTable({"alice": "alice-secret"}))
    async with Listener(settings, handlers) as listener:
        wrong = Credentials("alice", "a guess")
        try:
            await Channel.connect("127.0.0.1", listener.port, credentials=wrong)
        except fluss.FlussError as error:
            print(f"  {wrong!r} is refused: {error}")
        credentials = Credentials("alice", "alice-secret")
        async with await Channel.connect("127.0.0.1", listener.port, credentials=credentials) as channel:
            await produce_and_fetch(channel, orders, log_batch)


async def produce_and_fetch(channel: Channel, orders: pa.RecordBatch, log_batch: bytearray) -> None:
    copies = 20
    request = ProduceLogRequest(acks=-1, table_id=TABLE_ID, timeout_ms=30_000, buckets=[BucketRecords(0, log_batch)])
    start = time.perf_counter()
    answers = await asyncio.gather(
        *(channel.request(api.PRODUCE_LOG, request, timeout_s=30) for _ in range(copies)),
    )
    write_s = time.perf_counter() - start
    offsets = [answer.buckets_resp[0].base_offset for answer in answers]
    check(offsets == [ROWS * i for i in range(copies)], "batches get consecutive offsets")

    start = time.perf_counter()
    rows = 0
    while rows < copies * ROWS:
        fetch = pb.FetchLogRequest(follower_server_id=-1, max_bytes=16 << 20)
        table = fetch.tables_req.add(table_id=TABLE_ID, projection_pushdown_enabled=False)
        table.buckets_req.add(bucket_id=0, fetch_offset=rows, max_fetch_bytes=16 << 20)
        response = await channel.request(api.FETCH_LOG, fetch, timeout_s=30)
        for batch in iter_batches(response.tables[0].buckets[0].records_view):
            check(decode_arrow_batch(batch, orders.schema).equals(orders), "fetched rows are the produced ones")
            rows += batch.header.record_count
    read_s = time.perf_counter() - start
    megabytes = copies * len(log_batch) / 1e6
    print(f"  produced {rows:,} rows ({megabytes:.0f} MB) in {write_s * 1000:.0f} ms: {megabytes / write_s:,.0f} MB/s")
    print(f"  fetched and decoded them in {read_s * 1000:.0f} ms: {rows / read_s / 1e6:.1f} M rows/s")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return a result and the best of three times: the first one also pays for cold caches."""
    result, best_s = work(), float("inf")
    for _ in range(3):
        start = time.perf_counter()
        result = work()
        best_s = min(best_s, time.perf_counter() - start)
    return result, best_s


def refusal(work: Callable[[], Any]) -> str:
    try:
        work()
    except fluss.FlussError as error:
        return str(error)
    raise SystemExit("damage went unnoticed")


def check(holds: bool, claim: str) -> None:
    if not holds:
        raise SystemExit(f"not true: {claim}")


def headline(text: str) -> None:
    print(f"\n{text}")


if __name__ == "__main__":
    main()
