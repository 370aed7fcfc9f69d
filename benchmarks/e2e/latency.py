"""How long one row takes from ``append`` in one thread to ``poll`` in another, through the server's disk."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import numpy as np

import fluss
from benchmarks.e2e.workload import SCHEMA
from fluss import embedded

ROWS = 2000
# Rows that do not count: the first ones in a process load what the others find ready.
WARM_UP_ROWS = 200
PAUSE_S = 0.002


def measure() -> Iterator[tuple[str, float, str, str]]:
    for durability in ("fsync", "os"):
        with embedded.start(process=True, options={"durability": durability}) as server:
            latencies_ms = asyncio.run(_latencies_ms(server.bootstrap_servers))
        for percentile in (50, 99, 99.9):
            value = float(np.percentile(latencies_ms, percentile))
            yield (
                f"append to poll, p{percentile:g} of {ROWS - WARM_UP_ROWS:,} rows (durability={durability})",
                value,
                "ms",
                "",
            )


async def _latencies_ms(bootstrap_servers: str) -> list[float]:
    config = fluss.Config({"bootstrap.servers": bootstrap_servers, "writer.batch-timeout-ms": 0})
    async with await fluss.FlussConnection.create(config) as connection:
        path = fluss.TablePath("fluss", "latency")
        await connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1))
        table = await connection.get_table(path)
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        sent_at = [0.0] * ROWS
        seen_at = [0.0] * ROWS

        def read() -> None:
            seen = 0
            while seen < ROWS:
                for record in scanner.poll(5000):
                    seen_at[record.row["id"]] = time.perf_counter()
                    seen += 1

        reader = threading.Thread(target=read)
        reader.start()
        writer = table.new_append().create_writer()
        for number in range(ROWS):
            sent_at[number] = time.perf_counter()
            writer.append([number, "customer", 1.0, 1, True])
            await asyncio.sleep(PAUSE_S)
        await asyncio.to_thread(reader.join)
    latencies_ms = [(seen - sent) * 1e3 for sent, seen in zip(sent_at, seen_at, strict=True)]
    return latencies_ms[WARM_UP_ROWS:]
