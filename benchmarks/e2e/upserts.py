"""Upserts by rows and by Arrow, what the server alone can take, and the changelog beside a log of the same rows."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pyarrow as pa
import pyarrow.compute as pc

import fluss
from benchmarks.e2e.clients import best_of_turns, pythons_of_clients, ratio
from benchmarks.e2e.workload import SCHEMA, order_batch
from fluss import embedded

Line = tuple[str, float, str, str]
ROWS = 200_000
SERVER_ROWS = 1_000_000
TURNS = 2
OFFICIAL = "pyfluss 1.0.0"
SCANS = 5

# Loads before and after a restart, and the rows of each: enough of both that either life pays for flushes of its own.
RESTART_LOADS = 4
RESTART_ROWS = 500_000


def measure() -> Iterator[Line]:
    with embedded.start(process=True) as server:
        yield from _clients(server.bootstrap_servers)
        yield from asyncio.run(_server_alone(server))
        yield from asyncio.run(_changelog(server))
    yield from _restart()


def _clients(bootstrap: str) -> Iterator[Line]:
    """Compare clients on one server, which limits all of them; what a client itself needs is shown, too."""
    pythons = pythons_of_clients()
    task = {"task": "upserts", "bootstrap": bootstrap, "rows": ROWS, "as_arrow": False}
    rows = best_of_turns(pythons, task, TURNS)
    arrow = best_of_turns({"ours": pythons["ours"]}, {**task, "as_arrow": True}, TURNS)["ours"]
    for what in ("insert", "update"):
        for who, seconds in rows.items():
            remark = ratio(rows["ours"][what], seconds[what], who)
            yield f"upsert(dict), {what}, {who} (fsync)", ROWS / seconds[what] / 1e3, "krows/s", remark
        times = rows[OFFICIAL][what] / arrow[what]
        remark = f"{times:.1f} times {OFFICIAL} (target 5)"
        yield f"upsert_arrow, {what}, ours (fsync)", ROWS / arrow[what] / 1e3, "krows/s", remark
    key = "insert processor"
    for who, seconds in {**rows, "ours, upsert_arrow": arrow}.items():
        times = rows[OFFICIAL][key] / seconds[key]
        remark = "" if who == OFFICIAL else f"{times:.1f} times {OFFICIAL}"
        yield f"rows per second of the client's processor time, {who}", ROWS / seconds[key] / 1e3, "krows", remark


async def _server_alone(server: embedded.EmbeddedServer) -> list[Line]:
    """Keep the server on one core and the client on the others, so that the server is what is measured."""
    process, client = psutil.Process(server.process_id), psutil.Process()
    cores = list(range(os.cpu_count() or 1))
    lines = []
    batch = order_batch(SERVER_ROWS)
    async with await fluss.FlussConnection.create(server.config()) as connection:
        table = await _table(connection, "server_alone", ["id"])
        writer = table.new_upsert().create_writer()
        _pin(process, cores[:1])
        _pin(client, cores[1:] or cores)
        try:
            for what in ("insert", "update"):
                used, started = _cpu_seconds(process), time.perf_counter()
                writer.upsert_arrow(batch)
                await writer.flush()
                seconds = time.perf_counter() - started
                per_cpu = SERVER_ROWS / (_cpu_seconds(process) - used) / 1e3
                remark = f"target 150; {per_cpu:,.0f} krows per second of its processor time"
                lines.append((f"server on one core, {what} (fsync)", SERVER_ROWS / seconds / 1e3, "krows/s", remark))
        finally:
            _pin(process, cores)
            _pin(client, cores)
    return lines


def _restart() -> Iterator[Line]:
    """Load new keys into a store that has some, before and after a clean restart of the server."""
    batch = order_batch(RESTART_ROWS)
    seconds = {}
    with tempfile.TemporaryDirectory() as data_dir:
        for life, when in enumerate(("before", "after")):
            with embedded.start(data_dir=data_dir, process=True) as server:
                if life == 0:
                    asyncio.run(_load_new_keys(server, batch, 0))
                first = 1 + life * RESTART_LOADS
                loads = range(first, first + RESTART_LOADS)
                seconds[when] = sum(asyncio.run(_load_new_keys(server, batch, number)) for number in loads)
    for when, taken_s in seconds.items():
        remark = f"takes {taken_s / seconds['before']:.2f} times as long" if when == "after" else ""
        rate = RESTART_LOADS * RESTART_ROWS / taken_s / 1e3
        yield f"insert new keys {when} a restart (fsync)", rate, "krows/s", remark


async def _load_new_keys(server: embedded.EmbeddedServer, batch: pa.RecordBatch, number: int) -> float:
    """Upsert rows whose keys no other number has; return the seconds that took."""
    ids = pc.add(batch.column("id"), pa.scalar(number * RESTART_ROWS, batch.schema.field("id").type))
    index = batch.schema.get_field_index("id")
    rows = batch.set_column(index, batch.schema.field(index), ids)
    async with await fluss.FlussConnection.create(server.config()) as connection:
        if number == 0:
            table = await _table(connection, "restarted", ["id"])
        else:
            table = await connection.get_table(fluss.TablePath("fluss", "restarted"))
        writer = table.new_upsert().create_writer()
        started = time.perf_counter()
        writer.upsert_arrow(rows)
        await writer.flush()
        return time.perf_counter() - started


async def _changelog(server: embedded.EmbeddedServer) -> list[Line]:
    """Read as many records from a log and from a changelog."""
    batch = order_batch(ROWS)
    seconds: dict[str, float] = {}
    async with await fluss.FlussConnection.create(server.config()) as connection:
        log = await _table(connection, "same_rows_log", [])
        appender = log.new_append().create_writer()
        keyed = await _table(connection, "same_rows_keyed", ["id"])
        upserter = keyed.new_upsert().create_writer()
        for _ in range(3):
            appender.write_arrow(batch)
        upserter.upsert_arrow(batch)
        await upserter.flush()
        upserter.upsert_arrow(batch)
        await upserter.flush()
        for _ in range(SCANS):
            for what, table in (("log", log), ("changelog", keyed)):
                scan = table.new_scan()
                is_log = what == "log"
                scanner = await (scan.create_record_batch_log_scanner() if is_log else scan.create_changelog_scanner())
                scanner.subscribe(0, fluss.EARLIEST_OFFSET)
                started = time.perf_counter()
                found = await scanner.to_arrow_async()
                took = time.perf_counter() - started
                assert found.num_rows == 3 * ROWS, found.num_rows
                seconds[what] = min(took, seconds.get(what, took))
            started = time.perf_counter()
            current = await keyed.to_arrow_async()
            took = time.perf_counter() - started
            assert current.num_rows == ROWS
            seconds["rows"] = min(took, seconds.get("rows", took))
    slower = seconds["changelog"] / seconds["log"]
    return [
        ("scan of a log", 3 * ROWS / seconds["log"] / 1e3, "krows/s", ""),
        (
            "scan of a changelog with as many records",
            3 * ROWS / seconds["changelog"] / 1e3,
            "krows/s",
            f"takes {slower:.2f} times as long (target: less than 2)",
        ),
        ("to_arrow() of all current rows", ROWS / seconds["rows"] / 1e3, "krows/s", ""),
    ]


async def _table(connection: fluss.FlussConnection, name: str, primary_keys: list[str]) -> fluss.FlussTable:
    path = fluss.TablePath("fluss", name)
    schema = fluss.Schema(SCHEMA, primary_keys=primary_keys)
    await connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
    return await connection.get_table(path)


def _pin(process: psutil.Process, cores: list[int]) -> None:
    """Keep all threads of a process on some cores; threads that they begin stay there, too."""
    for thread in process.threads():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread.id, cores)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
