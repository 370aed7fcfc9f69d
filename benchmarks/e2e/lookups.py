"""Lookups one after the other and a thousand at a time: ours and the official clients', on the same server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import numpy as np

import fluss
from benchmarks.e2e.clients import best_of_turns, pythons_of_clients
from benchmarks.e2e.workload import LOOKUP_KEYS, LOOKUPS_IN_FLIGHT, SCHEMA, order_batch
from fluss import embedded

Line = tuple[str, float, str, str]
TABLE = "looked_up"
TURNS = 2
# Fewer for the client that needs a tenth of a second for each and lets none overtake another.
COUNTS = {
    "ours": {"alone": 2000, "together": LOOKUPS_IN_FLIGHT},
    "pyfluss 0.1.0": {"alone": 1000, "together": LOOKUPS_IN_FLIGHT},
    "pyfluss 1.0.0": {"alone": 10, "together": 50},
}
LATENCIES = 2000
MANY_REPEATS = 5


def measure() -> Iterator[Line]:
    with embedded.start(process=True) as server:
        asyncio.run(_load(server))
        seconds = {}
        for who, python in pythons_of_clients().items():
            task = {"task": "lookups", "bootstrap": server.bootstrap_servers, "keyed_table": TABLE, **COUNTS[who]}
            seconds.update(best_of_turns({who: python}, task, TURNS))
        for how, text in (("alone", "one at a time"), ("together", f"{LOOKUPS_IN_FLIGHT:,} in flight")):
            for who, measured in seconds.items():
                times = measured[how] / seconds["ours"][how]
                remark = "" if who == "ours" else f"ours is {times:,.1f} times as fast"
                if who == "pyfluss 1.0.0":
                    remark += f" (target 20); measured with {COUNTS[who][how]}"
                yield f"lookup, {text}, {who}", 1 / measured[how] / 1e3, "k/s", remark
        yield from asyncio.run(_ours(server))


async def _load(server: embedded.EmbeddedServer) -> None:
    async with await fluss.FlussConnection.create(server.config()) as connection:
        path = fluss.TablePath("fluss", TABLE)
        schema = fluss.Schema(SCHEMA, primary_keys=["id"])
        await connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        writer = (await connection.get_table(path)).new_upsert().create_writer()
        writer.upsert_arrow(order_batch(LOOKUP_KEYS))
        await writer.flush()


async def _ours(server: embedded.EmbeddedServer) -> list[Line]:
    """What only this client has: how long one lookup takes, and a table of keys at once."""
    async with await fluss.FlussConnection.create(server.config()) as connection:
        lookuper = (await connection.get_table(fluss.TablePath("fluss", TABLE))).new_lookup().create_lookuper()
        milliseconds = []
        for number in range(LATENCIES):
            started = time.perf_counter()
            await lookuper.lookup({"id": number * 37 % LOOKUP_KEYS})
            milliseconds.append((time.perf_counter() - started) * 1e3)
        keys = order_batch(LOOKUP_KEYS).select(["id"])
        seconds = []
        for _ in range(MANY_REPEATS):
            started = time.perf_counter()
            found = await lookuper.lookup_many(keys)
            seconds.append(time.perf_counter() - started)
            assert found.num_rows == LOOKUP_KEYS
    lines: list[Line] = [
        (f"one lookup, p{percentile:g}", float(np.percentile(milliseconds, percentile)), "ms", "target: median below 1")
        for percentile in (50, 99)
    ]
    return [*lines, (f"lookup_many of {LOOKUP_KEYS:,} keys", LOOKUP_KEYS / min(seconds) / 1e3, "k/s", "")]
