"""Bulk append, full scan, projected scan and row append: ours, the official clients', and the raw limits."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.e2e.limits import copy_and_write_seconds, loopback_seconds
from benchmarks.e2e.workload import BATCH_ROWS, order_batch, order_rows
from fluss import embedded
from tests.interop.peers import VERSIONS, peer_python

BATCHES = 120
ROWS = 100_000
TIMEOUT_S = 30
ATTEMPTS = 4
REPEATS = 2
PROGRAM = Path(__file__).with_name("client_program.py")


def measure() -> Iterator[tuple[str, float, str, str]]:
    pythons = {"ours": sys.executable} | {f"pyfluss {name}": str(peer_python(name)) for name in VERSIONS}
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
    best = _best(pythons, task)
    setting = f"{compression}, durability={durability}"
    for what in ("append", "scan", "scan 2 of 5"):
        limit = limits.get(what)
        if limit is not None:
            name = "copy + write" if what == "append" else "loopback transfer"
            yield f"limit for {what}: {name} of the same {megabytes:.0f} MB ({setting})", megabytes / limit, "MB/s", ""
        for who, seconds in best.items():
            remark = _ratio(best["ours"][what], seconds[what], who)
            if who == "ours" and limit is not None and compression == "NONE":
                remark = f"{limit / seconds[what]:.2f} of the limit (target 0.5)"
            yield f"{what}, {who} ({setting})", megabytes / seconds[what], "MB/s", remark


def _rows(bootstrap: str, pythons: dict[str, str], durability: str) -> Iterator[tuple[str, float, str, str]]:
    data = order_rows(ROWS)
    limit = min(_from_pylist_seconds(data) for _ in range(REPEATS))
    yield "limit for rows: RecordBatch.from_pylist of the same dicts", ROWS / limit / 1e3, "krows/s", ""
    task = {"task": "rows", "bootstrap": bootstrap, "rows": ROWS}
    best = {who: seconds["rows"] for who, seconds in _best(pythons, task).items()}
    for who, seconds in best.items():
        remark = f"{limit / seconds:.2f} of the limit (target 0.4)"
        if who != "ours":
            remark = _ratio(best["ours"], seconds, who)
        yield f"append(dict), {who} (durability={durability})", ROWS / seconds / 1e3, "krows/s", remark


def _from_pylist_seconds(data: list[dict[str, object]]) -> float:
    started = time.perf_counter()
    pa.RecordBatch.from_pylist(data, schema=order_batch(1).schema)
    return time.perf_counter() - started


def _best(pythons: dict[str, str], task: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Let every client run the program, in turns, and keep its fastest figure of each part.

    In turns, because the first one to run finds a server and a machine that have everything still to do.
    """
    best: dict[str, dict[str, float]] = {who: {} for who in pythons}
    for _ in range(REPEATS):
        for who, python in pythons.items():
            for what, seconds in _run(python, task, who).items():
                best[who][what] = min(seconds, best[who].get(what, seconds))
    return best


def _run(python: str, task: dict[str, Any], who: str) -> dict[str, float]:
    """Run the program in a process of its own. One of the clients now and then waits for ever; it is tried again."""
    arguments = json.dumps({**task, "table": f"bench_{task['task']}_{who.replace(' ', '_').replace('.', '_')}"})
    for _ in range(ATTEMPTS):
        try:
            done = subprocess.run(
                [python, str(PROGRAM), arguments], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            continue
        if done.returncode != 0:
            raise RuntimeError(f"{who} failed:\n{done.stderr}")
        seconds: dict[str, float] = json.loads(done.stdout)
        return seconds
    raise RuntimeError(f"{who} did not finish within {TIMEOUT_S} s, {ATTEMPTS} times")


def _ratio(ours: float, theirs: float, who: str) -> str:
    return "" if who == "ours" else f"ours is {theirs / ours:.1f} times as fast"
