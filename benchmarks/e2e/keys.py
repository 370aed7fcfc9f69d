"""Ten million keys in one bucket: what they cost in memory, in time to start again, and per lookup."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator

import numpy as np
import psutil

import fluss
from benchmarks.e2e.workload import SCHEMA, order_batch
from fluss import embedded

Line = tuple[str, float, str, str]
KEYS = 10_000_000
STEP = 500_000
# Latencies are measured when so many keys are there.
STATIONS = (1_000_000, 5_000_000, 10_000_000)
LOOKUPS = 2000
PATH = fluss.TablePath("fluss", "ten_million")


def measure() -> Iterator[Line]:
    with embedded.start(process=True) as server:
        yield from asyncio.run(_load(server))
        # First the kill: what was loaded last is then only in memory, and comes back from the changelog.
        for how in ("killed", "stopped"):
            started = time.perf_counter()
            if how == "killed":
                server.kill()
            server.restart()
            asyncio.run(_first_lookup(server))
            seconds = time.perf_counter() - started
            yield f"{how} and started again with {KEYS:,} keys, until a lookup is answered", seconds, "s", "target 10"
        milliseconds = asyncio.run(_lookups(server, KEYS))
        yield from _latency(milliseconds, f"{KEYS:,} keys after the restart")
        megabytes = psutil.Process(server.process_id).memory_info().rss / 1e6
        yield "server: resident memory after the restart and these lookups", megabytes, "MB", "bounded by its options"


async def _load(server: embedded.EmbeddedServer) -> list[Line]:
    process = psutil.Process(server.process_id)
    lines: list[Line] = []
    most = 0.0
    async with await fluss.FlussConnection.create(server.config()) as connection:
        schema = fluss.Schema(SCHEMA, primary_keys=["id"])
        await connection.get_admin().create_table(PATH, fluss.TableDescriptor(schema, bucket_count=1))
        writer = (await connection.get_table(PATH)).new_upsert().create_writer()
        seconds = 0.0
        for first in range(0, KEYS, STEP):
            batch = order_batch(STEP, first)
            started = time.perf_counter()
            writer.upsert_arrow(batch)
            await writer.flush()
            seconds += time.perf_counter() - started
            most = max(most, process.memory_info().rss / 1e6)
            count = first + STEP
            if count in STATIONS:
                lines += _latency(await _lookups(server, count), f"{count:,} keys")
                name = f"server: most resident memory until {count:,} keys"
                lines.append((name, most, "MB", "bounded by its options"))
    lines.append((f"upsert_arrow of {KEYS:,} new keys", KEYS / seconds / 1e3, "krows/s", ""))
    return lines


async def _first_lookup(server: embedded.EmbeddedServer) -> None:
    async with await fluss.FlussConnection.create(server.config()) as connection:
        lookuper = (await connection.get_table(PATH)).new_lookup().create_lookuper()
        row = await lookuper.lookup({"id": KEYS - 1})
        assert row is not None


async def _lookups(server: embedded.EmbeddedServer, key_count: int) -> list[float]:
    """Look keys up all over the table, one after the other."""
    rng = random.Random(key_count)
    milliseconds = []
    async with await fluss.FlussConnection.create(server.config()) as connection:
        lookuper = (await connection.get_table(PATH)).new_lookup().create_lookuper()
        for _ in range(LOOKUPS):
            key = rng.randrange(key_count)
            started = time.perf_counter()
            row = await lookuper.lookup({"id": key})
            milliseconds.append((time.perf_counter() - started) * 1e3)
            assert row is not None
            assert row["id"] == key
    return milliseconds


def _latency(milliseconds: list[float], where: str) -> list[Line]:
    return [
        (f"one lookup among {where}, p{percentile}", float(np.percentile(milliseconds, percentile)), "ms", "flat")
        for percentile in (50, 99)
    ]
