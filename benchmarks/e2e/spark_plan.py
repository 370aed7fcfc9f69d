"""Plans of Spark reads of tables with many partitions: what a driver waits for before the first task of a query.

Plans are made by the functions that Spark's planning process calls, without Spark itself, right after a start of the
server (when no log is open) and again. Beside the time of the clock stands what client and server worked, which no
other program of the machine makes longer. ``BENCH_PARTITIONS`` adds a larger table, such as 20000.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from typing import Any, Final

import psutil
import pyarrow as pa

import fluss
from fluss import embedded
from fluss.client.bulk import wait_for
from fluss.spark.connections import open_table
from fluss.spark.query_options import ReadOptions, read_options
from fluss.spark.read.limited_stream_reader import LimitedStreamReader
from fluss.spark.read.planner import plan_batch
from fluss.spark.type_mapping import view_schema

Line = tuple[str, float, str, str]
BUCKETS: Final = 4
SCHEMA: Final = pa.schema([("id", pa.int64()), ("day", pa.string())])
ROWS_PER_PARTITION: Final = 10
CREATED_AT_ONCE: Final = 64
FILL_TIMEOUT_MS: Final = 600_000


def measure() -> Iterator[Line]:
    yield from _measure(200, 2000)
    if "BENCH_PARTITIONS" in os.environ:
        yield from _measure(int(os.environ["BENCH_PARTITIONS"]), None)


def _measure(partitions: int, target_ms: int | None) -> Iterator[Line]:
    options = {"durability": "os", "max.partition.num": "1000000", "server.max-buckets": "2000000"}
    with embedded.start(options, process=True) as server:
        wait_for(_fill(server, partitions))
        server.restart()
        read = read_options({"bootstrap.servers": server.bootstrap_servers, "table": "fluss.days"}, is_stream=False)
        what = f"{partitions:,} partitions x {BUCKETS} buckets"
        for when in ("after a start of the server", "again"):
            yield _timed(server, f"Spark plan, {what}, {when}", target_ms, lambda: _plan(read))
        yield from _stream(server, what)


async def _fill(server: embedded.EmbeddedServer, partitions: int) -> None:
    """Make a table, and write some rows to each of its partitions."""
    # Whatever else the machine does, this is not what is measured.
    config = fluss.Config({"bootstrap.servers": server.bootstrap_servers, "request-timeout": FILL_TIMEOUT_MS})
    connection = await fluss.FlussConnection.create(config)
    path = fluss.TablePath("fluss", "days")
    admin = connection.get_admin()
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), partition_keys=["day"], bucket_count=BUCKETS)
    await admin.create_table(path, descriptor)
    turns = asyncio.Semaphore(CREATED_AT_ONCE)
    days = [f"day-{number:06d}" for number in range(partitions)]

    async def create(day: str) -> None:
        async with turns:
            await admin.create_partition(path, {"day": day})

    await asyncio.gather(*map(create, days))
    writer = (await connection.get_table(path)).new_append().create_writer()
    row_days = [day for day in days for _ in range(ROWS_PER_PARTITION)]
    writer.write_arrow(pa.table({"id": range(len(row_days)), "day": row_days}, schema=SCHEMA))
    await writer.flush()
    await connection.close()


def _plan(options: ReadOptions) -> None:
    table = open_table(options.connection, options.table.path)
    plan_batch(table, options, SCHEMA.names)


def _stream(server: embedded.EmbeddedServer, what: str) -> Iterator[Line]:
    """Plan the first micro-batch of a stream, and one after a single row was written."""
    texts = {"bootstrap.servers": server.bootstrap_servers, "table": "fluss.days", "maxRowsPerTrigger": "1000000"}
    options = read_options(texts, is_stream=True)
    table = open_table(options.connection, options.table.path)
    reader = LimitedStreamReader(options, view_schema(table.get_table_info().schema, options.view, None))
    offsets: list[dict[str, Any]] = [reader.initialOffset()]

    def micro_batch() -> None:
        offsets.append(json.loads(json.dumps(reader.latestOffset(offsets[-1], reader.getDefaultReadLimit()))))
        reader.partitions(offsets[-2], offsets[-1])

    yield _timed(server, f"Spark stream, {what}, first micro-batch", None, micro_batch)
    writer = table.new_append().create_writer()
    writer.write_arrow(pa.table({"id": [0], "day": ["day-000000"]}, schema=SCHEMA))
    wait_for(writer.flush())
    yield _timed(server, f"Spark stream, {what}, one row more", None, micro_batch)
    yield f"Spark stream, {what}, offset in the checkpoint", len(json.dumps(offsets[-1])) / 1000, "KB", ""


def _timed(server: embedded.EmbeddedServer, what: str, target_ms: int | None, work: Any) -> Line:
    client, tablet = psutil.Process(), psutil.Process(server.process_id)

    def processor_s(process: psutil.Process) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    before_s, client_s, server_s = time.perf_counter(), processor_s(client), processor_s(tablet)
    work()
    took_s = time.perf_counter() - before_s
    client_ms, server_ms = 1000 * (processor_s(client) - client_s), 1000 * (processor_s(tablet) - server_s)
    worked = f"client worked {client_ms:,.0f} ms, server {server_ms:,.0f} ms"
    return what, 1000 * took_s, "ms", worked if target_ms is None else f"target {target_ms:,}; {worked}"
