"""Bulk append, full scan, projected scan and row append: ours, the official clients', and the raw limits."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from benchmarks.e2e.clients import best_of_turns, pythons_of_clients, ratio
from benchmarks.e2e.limits import copy_and_write_seconds, loopback_seconds
from benchmarks.e2e.workload import BATCH_ROWS, order_batch, order_rows
from fluss import embedded

BATCHES = 120
ROWS = 100_000
REPEATS = 2


def measure() -> Iterator[tuple[str, float, str, str]]:
    pythons = pythons_of_clients()
    for durability in ("fsync", "os"):
        with embedded.start(process=True, options={"durability": durability}) as server:
            for compression in ("NONE", "ZSTD"):
                yield from _bulk(server.bootstrap_servers, pythons, compression, durability)
            yield from _rows(server.bootstrap_servers, pythons, durability)


def _bulk(
    bootstrap: str, pythons: dict[str, str], compression: str, durability: str
) -> Iterator[tuple[str, float, str, str]]:
    batch = order_batch(BATCH_ROWS)
    piece = batch.serialize().to_pybytes()
    megabytes = len(piece) * BATCHES / 1e6
    limits = {
        "append": min(copy_and_write_seconds(piece, BATCHES, sync=durability == "fsync") for _ in range(REPEATS)),
        "scan": min(loopback_seconds(piece, BATCHES) for _ in range(REPEATS)),
    }
    task = {"task": "bulk", "bootstrap": bootstrap, "compression": compression, "batches": BATCHES}
    best = best_of_turns(pythons, task, REPEATS)
    setting = f"{compression}, durability={durability}"
    for what in ("append", "scan", "scan 2 of 5"):
        limit = limits.get(what)
        if limit is not None:
            name = "copy + write" if what == "append" else "loopback transfer"
            yield f"limit for {what}: {name} of the same {megabytes:.0f} MB ({setting})", megabytes / limit, "MB/s", ""
        for who, seconds in best.items():
            remark = ratio(best["ours"][what], seconds[what], who)
            if who == "ours" and limit is not None and compression == "NONE":
                remark = f"{limit / seconds[what]:.2f} of the limit (target 0.5)"
            yield f"{what}, {who} ({setting})", megabytes / seconds[what], "MB/s", remark


def _rows(bootstrap: str, pythons: dict[str, str], durability: str) -> Iterator[tuple[str, float, str, str]]:
    data = order_rows(ROWS)
    limit = min(_from_pylist_seconds(data) for _ in range(REPEATS))
    yield "limit for rows: RecordBatch.from_pylist of the same dicts", ROWS / limit / 1e3, "krows/s", ""
    task = {"task": "rows", "bootstrap": bootstrap, "rows": ROWS}
    best = {who: seconds["rows"] for who, seconds in best_of_turns(pythons, task, REPEATS).items()}
    for who, seconds in best.items():
        remark = f"{limit / seconds:.2f} of the limit (target 0.4)"
        if who != "ours":
            remark = ratio(best["ours"], seconds, who)
        yield f"append(dict), {who} (durability={durability})", ROWS / seconds / 1e3, "krows/s", remark


def _from_pylist_seconds(data: list[dict[str, object]]) -> float:
    started = time.perf_counter()
    pa.RecordBatch.from_pylist(data, schema=order_batch(1).schema)
    return time.perf_counter() - started
