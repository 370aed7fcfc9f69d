"""Five thousand buckets in which nothing happens, and a scanner that is subscribed to all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import psutil

import fluss
from benchmarks.e2e.workload import SCHEMA
from fluss import embedded

BUCKETS = 5000
SECONDS = 10.0


def measure() -> Iterator[tuple[str, float, str, str]]:
    with embedded.start(process=True, options={"max.bucket.num": str(BUCKETS)}) as server:
        yield from asyncio.run(_measure(server))


async def _measure(server: embedded.EmbeddedServer) -> list[tuple[str, float, str, str]]:

    processes = {"server": psutil.Process(server.process_id), "client": psutil.Process()}
    lines = []
    async with await fluss.FlussConnection.create(server.config()) as connection:
        path = fluss.TablePath("fluss", "idle")
        before = _resident_megabytes(processes)
        started = time.perf_counter()
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=BUCKETS)
        await connection.get_admin().create_table(path, descriptor)
        lines.append((f"create a table with {BUCKETS:,} buckets", (time.perf_counter() - started) * 1e3, "ms", ""))
        table = await connection.get_table(path)
        scanner = await table.new_scan().create_record_batch_log_scanner()
        started = time.perf_counter()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        await scanner.poll_record_batch_async(0)
        lines.append((f"subscribe to {BUCKETS:,} buckets", (time.perf_counter() - started) * 1e3, "ms", ""))
        await scanner.poll_record_batch_async(1000)
        used = _cpu_seconds(processes)
        deadline = time.perf_counter() + SECONDS
        while time.perf_counter() < deadline:
            assert not await scanner.poll_record_batch_async(1000)
        for who, seconds in _cpu_seconds(processes).items():
            share = (seconds - used[who]) / SECONDS * 100
            lines.append(
                (f"{who}: share of one core while {BUCKETS:,} buckets are idle", share, "%", "next to nothing")
            )
        for who, megabytes in _resident_megabytes(processes).items():
            lines.append((f"{who}: memory for {BUCKETS:,} buckets", megabytes - before[who], "MB", "next to nothing"))
        lines.append(await _latency_among_idle(table, scanner))
    return lines


async def _latency_among_idle(table: fluss.FlussTable, scanner: fluss.LogScanner) -> tuple[str, float, str, str]:
    """One row into one of the buckets: how long until the scanner has it."""
    writer = table.new_append().create_writer()
    started = time.perf_counter()
    writer.append([1, "customer", 1.0, 1, True])
    await writer.flush()
    while not await scanner.poll_record_batch_async(5000):
        pass
    milliseconds = (time.perf_counter() - started) * 1e3
    return f"one row among {BUCKETS:,} idle buckets, append to poll", milliseconds, "ms", ""


def _cpu_seconds(processes: dict[str, psutil.Process]) -> dict[str, float]:
    used = {who: process.cpu_times() for who, process in processes.items()}
    return {who: times.user + times.system for who, times in used.items()}


def _resident_megabytes(processes: dict[str, psutil.Process]) -> dict[str, float]:
    return {who: process.memory_info().rss / 1e6 for who, process in processes.items()}
