"""A filtered scan gives the same whether or not other threads decode its batches ahead, and what goes wrong there does
so again in its place. Readers of buffers that were filled by hand, with one processor and with several."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from fluss.client.kernel.decode import BatchDecoder, DecodedBatch, ScanColumns, ValueDecoder
from fluss.client.scan.fetch.buffer import Chunk, Frame, ScanBuffer, Subscription
from fluss.client.scan.fetch.polling import BufferReader
from fluss.filter.row_filter import RowFilter
from fluss.record.arrow_batch import encode_arrow_batch
from fluss.record.compression import NO_COMPRESSION, ArrowCompression
from fluss.record.log_batch import LogBatch
from fluss.schema.schema import Schema
from fluss.schema.table import TableBucket
from fluss.schema.table_options import CompressionType, KvFormat, LogFormat

SCHEMA = Schema(pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())]))
COMPRESSIONS = [NO_COMPRESSION, ArrowCompression(), ArrowCompression(CompressionType.LZ4_FRAME)]
# Random prices make a batch of so many rows large enough to be decoded ahead.
LARGE, SMALL = 20_000, 10


@pytest.fixture(params=[1, 2, 5])
def thread_count(request: pytest.FixtureRequest) -> Iterator[int]:
    before = pa.cpu_count()
    pa.set_cpu_count(request.param)
    yield request.param
    pa.set_cpu_count(before)


class Log:
    """Batches of one bucket, one behind the other."""

    def __init__(self, bucket_id: int) -> None:
        self.subscription = Subscription(TableBucket(1, bucket_id), 0)
        self.rng = np.random.default_rng(bucket_id)
        self.offset_next = 0
        self.expected: list[tuple[int, int]] = []

    def batch(self, row_count: int, compression: ArrowCompression, schema_id: int = 1) -> bytearray:
        prices = self.rng.random(row_count)
        ids = np.arange(self.offset_next, self.offset_next + row_count)
        columns = [pa.array(ids), pa.array([f"name {number % 7}" for number in ids]), pa.array(prices)]
        rows = pa.RecordBatch.from_arrays(columns, schema=SCHEMA.to_arrow())
        self.expected += [(self.subscription.bucket.bucket_id, int(row_id)) for row_id in ids[prices < 0.01]]
        encoded = encode_arrow_batch(rows, schema_id, compression, base_offset=self.offset_next)
        self.offset_next += row_count
        return encoded


def fill(buffer: ScanBuffer, log: Log, *batches: bytearray) -> None:
    records = memoryview(b"".join(batches))
    frame = Frame(len(records))
    buffer.hold(frame)
    buffer.put([Chunk(log.subscription, frame, records, log.offset_next, is_projected=False)])


def new_buffer() -> ScanBuffer:
    return ScanBuffer(1 << 30, lambda: None)


def columns_of(condition: str) -> ScanColumns:
    return ScanColumns(1, SCHEMA, [0, 1], RowFilter.of([condition], SCHEMA))


def new_reader(buffer: ScanBuffer, decoder: BatchDecoder | None = None) -> BufferReader:
    columns = columns_of("price < 0.01")
    log_decoder = decoder or BatchDecoder(columns, LogFormat.ARROW, lambda _: SCHEMA)
    values = ValueDecoder(columns, KvFormat.COMPACTED, lambda _: SCHEMA)
    return BufferReader(buffer, log_decoder, values, on_damage=lambda _: None)


def read(reader: BufferReader) -> list[tuple[int, int]]:
    """Return bucket and offset of every row, which has the id and the name that belong to it."""
    found = []
    while (step := reader.next_run()) is not None:
        _, run = step
        if run is not None:
            assert run.offsets is not None
            rows = run.rows()
            assert [row["id"] for row in rows] == run.offsets.tolist()
            assert all(row["name"] == f"name {row['id'] % 7}" for row in rows)
            found += [(run.bucket.bucket_id, row["id"]) for row in rows]
    return found


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda compression: compression.type)
def test_rows_are_the_same_and_in_their_order_however_many_threads_there_are(
    thread_count: int, compression: ArrowCompression
) -> None:
    buffer, first, second = new_buffer(), Log(0), Log(1)
    reader = new_reader(buffer)
    for sizes in ([LARGE] * 3, [LARGE, SMALL, LARGE], [SMALL], [LARGE]):
        fill(buffer, first, *(first.batch(size, compression) for size in sizes))
        # Other schemas are loaded when their turn has come.
        fill(buffer, second, *(second.batch(size, compression, schema_id=2) for size in sizes))
    found = read(reader)
    assert [row for row in found if row[0] == 0] == first.expected
    assert [row for row in found if row[0] == 1] == second.expected
    # And again, with what comes later.
    first.expected.clear()
    fill(buffer, first, *(first.batch(LARGE, compression) for _ in range(5)))
    assert read(reader) == first.expected
    assert buffer.bytes_held == 0


def test_damage_comes_up_where_it_is(thread_count: int) -> None:
    buffer, damaged, other = new_buffer(), Log(0), Log(1)
    reader = new_reader(buffer)
    good = [damaged.batch(LARGE, COMPRESSIONS[1]) for _ in range(3)]
    good_rows, good_end = list(damaged.expected), damaged.offset_next
    bad, behind = damaged.batch(LARGE, COMPRESSIONS[1]), damaged.batch(LARGE, COMPRESSIONS[1])
    bad[-100] ^= 1
    fill(buffer, damaged, *good, bad)
    fill(buffer, damaged, behind)
    fill(buffer, other, *(other.batch(LARGE, COMPRESSIONS[1]) for _ in range(3)))
    assert read(reader) == good_rows + other.expected
    assert damaged.subscription.is_damaged
    assert damaged.subscription.position == good_end
    failure = buffer.failure()
    assert failure is not None
    assert f"at offset {good_end} cannot be read: The log batch at offset {good_end} has the checksum" in str(failure)


def test_a_bucket_that_is_no_longer_read_is_passed_over(thread_count: int) -> None:
    buffer, ended, other = new_buffer(), Log(0), Log(1)
    reader = new_reader(buffer)
    for log in (ended, other, ended, other):
        fill(buffer, log, *(log.batch(LARGE, COMPRESSIONS[1]) for _ in range(2)))
    for _ in range(2):
        assert reader.next_run() is not None
    ended.subscription.is_active = False
    buffer.drop_ended()
    assert read(reader) == other.expected


class MeetingDecoder(BatchDecoder):
    """Decodes one batch, and then always two at the same time."""

    barrier = threading.Barrier(2, timeout=120)
    is_first = True

    def decode(self, batch: LogBatch, *, is_projected: bool, aligned: bool = True) -> DecodedBatch:
        if not self.is_first:
            self.barrier.wait()
        self.is_first = False
        return super().decode(batch, is_projected=is_projected, aligned=aligned)


@pytest.mark.parametrize("thread_count", [2], indirect=True)
def test_several_batches_are_decoded_at_the_same_time(thread_count: int) -> None:
    buffer, log = new_buffer(), Log(0)
    reader = new_reader(buffer, MeetingDecoder(columns_of("price < 0.01"), LogFormat.ARROW, lambda _: SCHEMA))
    for _ in range(3):
        fill(buffer, log, *(log.batch(LARGE, COMPRESSIONS[1]) for _ in range(3)))
    assert read(reader) == log.expected
