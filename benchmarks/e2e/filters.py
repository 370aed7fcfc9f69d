"""What filters cost the server: one condition, a thousand, far too many, and greedy clients beside a modest one.

The log has thousands of small batches with statistics, none of which can match: the server looks at all of them and
returns nothing. Requests are sent as a client encodes them, one after the other, from where the last answer ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import TypeAlias

import numpy as np
import psutil
import pyarrow as pa

import fluss
from fluss import embedded
from fluss.client.scan.fetch.fetch_messages import ENCODED_FETCH_LOG, FetchRequests
from fluss.errors import FlussError, RequestTimeoutError
from fluss.net.channel import Channel
from fluss.protocol import api as apis
from fluss.protocol import bulk_messages
from fluss.record.log_batch import MAGIC_V1, build_batch, measure_batches
from fluss.record.statistics import collect_statistics
from fluss.schema.predicate import Predicate, col

Line: TypeAlias = tuple[str, float, str, str]

BATCHES = 3000
ROWS_PER_BATCH = 10
BATCHES_PER_REQUEST = 100
LEAVES = 1000
LEAVES_TOO_MANY = 40_000
GREEDY_CLIENTS = 16
MODEST_FETCHES = 300
TIMEOUT_S = 60.0
REPEATS = 5
# The clock of processor time ticks a hundred times in a second.
NEWEST_FETCHES = 400
NEWEST_TURNS = 5
SCHEMA = fluss.Schema(
    pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(30, 2)), ("at", pa.timestamp("ns"))])
)


def measure() -> Iterator[Line]:
    with embedded.start(process=True, options={"durability": "os"}) as server, asyncio.Runner() as runner:
        measuring = _measure(server)
        # Each line is shown when it is known.
        while (line := runner.run(_next(measuring))) is not None:
            yield line


async def _next(lines: AsyncIterator[Line]) -> Line | None:
    return await anext(lines, None)


async def _measure(server: embedded.EmbeddedServer) -> AsyncIterator[Line]:
    process = psutil.Process(server.process_id)
    async with await fluss.FlussConnection.create(server.config()) as connection:
        path = fluss.TablePath("fluss", "filtered")
        await connection.get_admin().create_table(path, fluss.TableDescriptor(SCHEMA, bucket_count=1))
        info = await connection.get_admin().get_table_info(path)
    host, port = server.bootstrap_servers.rsplit(":", 1)
    reader = _Reader(await Channel.connect(host, int(port)), info.table_id)
    await _write(reader.channel, info.table_id)

    async def timed(name: str, predicate: Predicate, repeats: int = REPEATS) -> Line:
        """Read the whole log several times; the best is what it costs, others were disturbed."""
        requests = reader.requests(predicate)
        times = []
        for _ in range(repeats):
            used = process.cpu_times()
            started = time.perf_counter()
            await reader.read(requests)
            seconds = time.perf_counter() - started
            now = process.cpu_times()
            times.append((seconds, now.user + now.system - used.user - used.system))
        seconds, processor = min(times)
        return name, seconds * 1e3, "ms", f"server: {processor * 1e3:,.0f} ms of processor time"

    none = f"of {BATCHES:,} batches, none wanted"
    many = _any_of(LEAVES)
    yield await timed(f"one condition on numbers, {none}", col("id") < 0)
    yield await timed(f"one condition on texts, {none}", col("name") == "zzz")
    yield await timed(f"one condition, {BATCHES:,} batches, all wanted", col("id") >= 0)
    yield await timed(f"one condition, {BATCHES:,} batches, every second wanted", col("name").starts_with("odd"))
    yield await timed(f"{LEAVES:,} conditions in an OR, {none}", many, repeats=2)
    yield await timed(f"a list of {LEAVES:,} numbers, {none}", col("id").is_in(list(range(-LEAVES, 0))), repeats=2)
    for line in await _newest(reader, process):
        yield line
    yield await _too_many(reader, port=int(port), host=host)
    for line in await _beside_greedy_clients(reader, many, host, int(port)):
        yield line
    await reader.channel.close()


def _any_of(count: int) -> Predicate:
    predicate: Predicate = col("id") == -1
    leaves = [col("id") == -number - 2 for number in range(count - 1)]
    # One by one, each step would copy what it has: pieces first.
    while len(leaves) > 1:
        leaves = [_joined(leaves[first : first + 2]) for first in range(0, len(leaves), 2)]
    return predicate | leaves[0] if leaves else predicate


def _joined(pair: list[Predicate]) -> Predicate:
    return pair[0] | pair[1] if len(pair) > 1 else pair[0]


class _Reader:
    """One client that reads the bucket from its beginning."""

    def __init__(self, channel: Channel, table_id: int) -> None:
        self.channel = channel
        self._bucket = fluss.TableBucket(table_id, 0)

    def requests(self, predicate: Predicate | None) -> FetchRequests:
        bound = None if predicate is None else predicate.bind(SCHEMA)
        # At the end of the log an answer is wanted at once.
        config = fluss.Config({"scanner.log.fetch.wait-max-time-ms": "0"})
        return FetchRequests(config, self._bucket.table_id, predicate=bound, schema_id=1)

    async def fetch(self, requests: FetchRequests, offset: int) -> bulk_messages.FetchedBucket:
        message = requests.request([requests.entry(self._bucket, offset)])
        body = await self.channel.request(ENCODED_FETCH_LOG, message, timeout_s=TIMEOUT_S)
        ((bucket,),) = (table.buckets for table in apis.FETCH_LOG.response.decode(body).tables)
        if bucket.error_code:
            raise FlussError(bucket.error_message or "", bucket.error_code)
        return bucket

    async def read(self, requests: FetchRequests) -> None:
        offset = 0
        while offset < BATCHES * ROWS_PER_BATCH:
            bucket = await self.fetch(requests, offset)
            reached = max(measure_batches(bucket.records_view).offset_next or 0, bucket.filtered_end_offset or 0)
            assert reached > offset, "every answer moves on"
            offset = reached


async def _write(channel: Channel, table_id: int) -> None:
    batches = [_batch(number) for number in range(BATCHES)]
    for first in range(0, BATCHES, BATCHES_PER_REQUEST):
        records = b"".join(batches[first : first + BATCHES_PER_REQUEST])
        entry = bulk_messages.BucketRecords(0, records, None)
        request = bulk_messages.ProduceLogRequest(-1, table_id, 30_000, [entry])
        (answer,) = (await channel.request(apis.PRODUCE_LOG, request, timeout_s=TIMEOUT_S)).buckets_resp
        assert not answer.error_code, answer


def _batch(number: int) -> bytearray:
    ids = np.arange(number * ROWS_PER_BATCH, (number + 1) * ROWS_PER_BATCH)
    names = [f"{'odd' if number % 2 else 'even'} {id:09d}" for id in ids]
    prices = pa.array(ids).cast(pa.decimal128(30, 2))
    rows = pa.record_batch(
        [pa.array(ids), pa.array(names), prices, pa.array(ids).cast(pa.timestamp("ns"))], SCHEMA.to_arrow().names
    )
    types = SCHEMA.data_types
    return build_batch(
        [rows.serialize()],
        schema_id=1,
        record_count=len(ids),
        append_only=True,
        magic=MAGIC_V1,
        statistics=collect_statistics(rows, types, range(len(types))),
    )


async def _newest(reader: _Reader, process: psutil.Process) -> list[Line]:
    """What a reader at the end of the log costs: fetches of one batch, with and without a condition, in turns."""
    newest = (BATCHES - 1) * ROWS_PER_BATCH
    cases = {
        "wanted": reader.requests(col("id") >= 0),
        "not wanted": reader.requests(col("id") < 0),
        "without a filter": reader.requests(None),
    }
    micros: dict[str, list[float]] = {case: [] for case in cases}
    for _turn in range(NEWEST_TURNS):
        for case, requests in cases.items():
            used = process.cpu_times()
            for _ in range(NEWEST_FETCHES):
                await reader.fetch(requests, newest)
            now = process.cpu_times()
            seconds = now.user + now.system - used.user - used.system
            micros[case].append(seconds * 1e6 / NEWEST_FETCHES)
    plain = float(np.median(micros["without a filter"]))
    return [
        (
            f"the newest batch, {case}",
            float(np.median(spent)),
            "us",
            f"processor time of the server; {np.median(spent) / plain:.2f} times that without a filter",
        )
        for case, spent in micros.items()
    ]


async def _too_many(reader: _Reader, host: str, port: int) -> Line:
    """A client of its own, because it may get no answer for a long time."""
    name = f"{LEAVES_TOO_MANY:,} conditions in an OR, until the answer"
    requests = reader.requests(_any_of(LEAVES_TOO_MANY))
    async with await Channel.connect(host, port) as channel:
        greedy = _Reader(channel, reader._bucket.table_id)
        started = time.perf_counter()
        try:
            await greedy.fetch(requests, 0)
            remark = "answered with records or progress"
        except RequestTimeoutError:
            remark = f"no answer within {TIMEOUT_S:g} s"
        except FlussError as error:
            remark = f"refused with code {error.error_code}"
        return name, (time.perf_counter() - started) * 1e3, "ms", remark


async def _beside_greedy_clients(reader: _Reader, greed: Predicate, host: str, port: int) -> list[Line]:
    """Small fetches without a filter, alone and while others send their thousand conditions over and over."""
    modest = _Reader(await Channel.connect(host, port), reader._bucket.table_id)
    plain = modest.requests(None)
    alone = await _latencies_ms(modest, plain)
    channels = [await Channel.connect(host, port) for _ in range(GREEDY_CLIENTS)]
    requests = reader.requests(greed)
    answers = 0

    async def ask_for_ever(channel: Channel) -> None:
        nonlocal answers
        greedy = _Reader(channel, reader._bucket.table_id)
        while True:
            await greedy.fetch(requests, 0)
            answers += 1

    tasks = [asyncio.create_task(ask_for_ever(channel)) for channel in channels]
    await asyncio.sleep(1)
    started = time.perf_counter()
    beside = await _latencies_ms(modest, plain)
    per_second = answers / (time.perf_counter() - started)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for channel in (*channels, modest.channel):
        await channel.close()
    name = f"a fetch without a filter, {GREEDY_CLIENTS} clients with {LEAVES:,} conditions beside it"
    return [
        (
            "a fetch without a filter, alone, p99",
            float(np.percentile(alone, 99)),
            "ms",
            f"p50 {np.percentile(alone, 50):.2f}",
        ),
        (
            f"{name}, p99",
            float(np.percentile(beside, 99)),
            "ms",
            f"p50 {np.percentile(beside, 50):.2f}; they get {per_second:.1f} answers/s",
        ),
    ]


async def _latencies_ms(client: _Reader, requests: FetchRequests) -> list[float]:
    latencies = []
    for _ in range(MODEST_FETCHES):
        started = time.perf_counter()
        await client.fetch(requests, (BATCHES - 10) * ROWS_PER_BATCH)
        latencies.append((time.perf_counter() - started) * 1e3)
        await asyncio.sleep(0.002)
        if sum(latencies) > TIMEOUT_S * 1e3:
            break
    return latencies
