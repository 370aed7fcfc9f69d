"""Upserts and lookups in a table of 64 buckets and in one of 4,096, all of them in use: what a row costs in both.

The first rows of a bucket open its log and its store, so they are measured by themselves. Processor time of client and
server together says more than the clock on a machine that does other things as well.

So many rows in so many buckets are small batches, and every batch has a cost of its own, wherever it goes. What
the number of buckets alone costs is seen beside the same rows in as many batches in the few buckets, and the same keys
in as many groups. A long load has larger batches: while a server is busy, a client collects what it has for each
bucket; and whoever looks for many keys at once has many for each bucket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pyarrow as pa

import fluss
from benchmarks.e2e.workload import SCHEMA, order_batch
from fluss import embedded

Line = tuple[str, float, str, str]
FEW, MANY = 64, 4096
ROWS = 100_000
LOAD_ROWS = 1_000_000
LOOKUPS = 20_000
TARGET = 2.0
SMALL_BATCHES = f"upserts in {MANY:,} batches"
SMALL_LOOKUPS = f"lookups in {MANY:,} groups"


def measure() -> Iterator[Line]:
    measured = {}
    for bucket_count in (FEW, MANY):
        # A server that stops does not slow down the next one.
        with embedded.start(process=True) as server:
            measured[bucket_count] = asyncio.run(_measure(server, bucket_count))
    for in_few, in_many in ((SMALL_BATCHES, "upserts"), (SMALL_LOOKUPS, "lookups")):
        few, many = measured[FEW].pop(in_few), measured[MANY][in_many]
        yield f"{in_few} at {FEW} buckets, processor time", few.us_each, "us each", ""
        remark = f"{many.processor_s / few.processor_s:.1f} times that of {in_few} at {FEW} (target {TARGET:.0f})"
        yield f"{in_many} at {MANY:,} buckets, as many, processor time", many.us_each, "us each", remark
    for what in measured[FEW]:
        few, many = measured[FEW][what], measured[MANY][what]
        remark = f"{many.processor_s / few.processor_s:.1f} times the processor time of {FEW}"
        if not what.startswith("first"):
            remark += f", {many.wall_s / few.wall_s:.1f} times as long (target {TARGET:.0f})"
        for bucket_count, cost in ((FEW, few), (MANY, many)):
            name = f"{what} at {bucket_count:,} buckets"
            yield name, cost.count / cost.wall_s / 1e3, "k/s", remark if bucket_count == MANY else ""
            yield f"{name}, processor time", cost.us_each, "us each", ""


class _Cost:
    """What something costs, from here to ``end``: time, and processor time of this process and of the server."""

    def __init__(self, server: embedded.EmbeddedServer, count: int) -> None:
        self.count = count
        self._processes = [psutil.Process(), psutil.Process(server.process_id)]
        self.wall_s = self.processor_s = 0.0
        self._began = time.perf_counter(), self._processor_time_s()

    def end(self) -> _Cost:
        self.wall_s = time.perf_counter() - self._began[0]
        self.processor_s = self._processor_time_s() - self._began[1]
        return self

    @property
    def us_each(self) -> float:
        return self.processor_s / self.count * 1e6

    def _processor_time_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)


async def _upsert(server: embedded.EmbeddedServer, writer: fluss.UpsertWriter, rows: pa.RecordBatch) -> _Cost:
    cost = _Cost(server, rows.num_rows)
    writer.upsert_arrow(rows)
    await writer.flush()
    return cost.end()


async def _measure(server: embedded.EmbeddedServer, bucket_count: int) -> dict[str, _Cost]:
    async with await fluss.FlussConnection.create(server.config()) as connection:
        path = fluss.TablePath("fluss", "rows")
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA, primary_keys=["id"]), bucket_count=bucket_count)
        await connection.get_admin().create_table(path, descriptor)
        table = await connection.get_table(path)
        writer = table.new_upsert().create_writer()
        rows = order_batch(ROWS)
        shuffled = rows.take(pa.array(np.random.default_rng(7).permutation(ROWS)))
        costs = {}
        for what in ("first upserts", "upserts"):
            costs[what] = await _upsert(server, writer, shuffled)
        if bucket_count == FEW:
            cost = _Cost(server, ROWS)
            for first in range(0, ROWS, ROWS * FEW // MANY):
                writer.upsert_arrow(shuffled.slice(first, ROWS * FEW // MANY))
                await writer.flush()
            costs[SMALL_BATCHES] = cost.end()
        load = order_batch(LOAD_ROWS).take(pa.array(np.random.default_rng(8).permutation(LOAD_ROWS)))
        await _upsert(server, writer, load)
        costs["upserts of a long load"] = await _upsert(server, writer, load)
        lookuper = table.new_lookup().create_lookuper()
        keys = shuffled.slice(0, LOOKUPS).select(["id"])
        for what in ("first lookups", "lookups"):
            cost = _Cost(server, LOOKUPS)
            found = await lookuper.lookup_many(keys)
            costs[what] = cost.end()
            assert len(found) == LOOKUPS
        if bucket_count == FEW:
            cost = _Cost(server, LOOKUPS)
            for first in range(0, LOOKUPS, LOOKUPS * FEW // MANY):
                await lookuper.lookup_many(keys.slice(first, LOOKUPS * FEW // MANY))
            costs[SMALL_LOOKUPS] = cost.end()
        cost = _Cost(server, LOAD_ROWS)
        found = await lookuper.lookup_many(load.select(["id"]))
        costs[f"lookups of {LOAD_ROWS:,} keys"] = cost.end()
        assert len(found) == LOAD_ROWS
        ids = keys.column("id").to_pylist()
        await asyncio.gather(*(lookuper.lookup({"id": number}) for number in ids[:1000]))
        cost = _Cost(server, LOOKUPS)
        for first in range(0, LOOKUPS, 1000):
            await asyncio.gather(*(lookuper.lookup({"id": number}) for number in ids[first : first + 1000]))
        costs["lookups, 1,000 in flight,"] = cost.end()
        return costs
