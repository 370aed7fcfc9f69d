"""One measured client: the same program for every implementation of ``import fluss``, in a process of its own.

Run by the benchmark with the interpreter that has the implementation. Prints one JSON object with seconds per task.
The two generations of the API differ in what has to be awaited; ``settled`` hides it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import time
from typing import Any

from workload import (  # type: ignore[import-not-found]  # Beside this file.
    BATCH_ROWS,
    LOOKUP_KEYS,
    LOOKUPS_IN_FLIGHT,
    SCHEMA,
    order_batch,
    order_rows,
)

import fluss

REPEATS = 3
# One of the clients may wait for ever when its memory for unsent batches is full, so it never is, for any of them.
BATCHES_PER_FLUSH = 24
ROWS_PER_FLUSH = 100_000


async def settled(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


async def make_table(connection: Any, name: str, compression: str, *, is_keyed: bool = False) -> tuple[Any, Any]:
    admin = await settled(connection.get_admin())
    path = fluss.TablePath("fluss", name)
    await admin.drop_table(path, ignore_if_not_exists=True)
    schema = fluss.Schema(SCHEMA, primary_keys=["id"]) if is_keyed else fluss.Schema(SCHEMA)
    properties = {"table.log.arrow.compression.type": compression}
    descriptor = fluss.TableDescriptor(schema, bucket_count=1, properties=properties)
    await admin.create_table(path, descriptor)
    return path, await connection.get_table(path)


async def bulk(connection: Any, name: str, compression: str, batch_count: int) -> dict[str, float]:
    """Append ready Arrow batches, then read the table whole, and two of its five columns.

    Everything is done several times and the best counts: the first time a process touches memory says more about the
    machine than about the client.
    """
    seconds: dict[str, float] = {}
    batches = [order_batch(BATCH_ROWS, number * BATCH_ROWS) for number in range(4)]
    for _ in range(REPEATS):
        _, table = await make_table(connection, name, compression)
        writer = table.new_append().create_writer()
        writer.write_arrow_batch(batches[0].slice(0, 1))
        await writer.flush()
        started = time.perf_counter()
        for number in range(batch_count):
            writer.write_arrow_batch(batches[number % len(batches)])
            if number % BATCHES_PER_FLUSH == 0:
                await writer.flush()
        await writer.flush()
        keep_best(seconds, "append", started)
    for what, columns in (("scan", None), ("scan 2 of 5", ["id", "amount"])):
        for _ in range(REPEATS):
            scan = table.new_scan() if columns is None else table.new_scan().project_by_name(columns)
            scanner = await scan.create_record_batch_log_scanner()
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            started = time.perf_counter()
            found = await settled(scanner.to_arrow())
            keep_best(seconds, what, started)
            assert found.num_rows == batch_count * BATCH_ROWS + 1, found.num_rows
            del found
    return seconds


def keep_best(seconds: dict[str, float], what: str, started: float) -> None:
    seconds[what] = min(seconds.get(what, float("inf")), time.perf_counter() - started)


async def first_write(connection: Any, name: str, batch_count: int) -> dict[str, float]:
    """Append a few Arrow batches, the first that this process writes: what is paid once is paid here."""
    batches = [order_batch(BATCH_ROWS, number * BATCH_ROWS) for number in range(batch_count)]
    _, table = await make_table(connection, name, "NONE")
    seconds: dict[str, float] = {}
    started = time.perf_counter()
    writer = table.new_append().create_writer()
    for batch in batches:
        writer.write_arrow_batch(batch)
    await writer.flush()
    keep_best(seconds, "first 8 MB of a process", started)
    return seconds


async def rows(connection: Any, name: str, row_count: int) -> dict[str, float]:
    """Append dicts one by one."""
    seconds: dict[str, float] = {}
    data = order_rows(row_count)
    for _ in range(REPEATS):
        _, table = await make_table(connection, name, "NONE")
        writer = table.new_append().create_writer()
        writer.append(data[0])
        await writer.flush()
        started = time.perf_counter()
        for row in data:
            writer.append(row)
        await writer.flush()
        keep_best(seconds, "rows", started)
    return seconds


async def upserts(connection: Any, name: str, row_count: int, *, as_arrow: bool) -> dict[str, float]:
    """Upsert rows into an empty table, then again over the rows that are there; wall and processor seconds.

    Rows are dicts, one by one, or one Arrow batch, which only one of the clients can.
    """
    seconds: dict[str, float] = {}
    batch = order_batch(row_count)
    data = [] if as_arrow else batch.to_pylist()
    for _ in range(REPEATS):
        _, table = await make_table(connection, name, "ZSTD", is_keyed=True)
        writer = table.new_upsert().create_writer()
        for what in ("insert", "update"):
            started, processor_started = time.perf_counter(), time.process_time()
            if as_arrow:
                writer.upsert_arrow(batch)
            for number, row in enumerate(data):
                writer.upsert(row)
                if number % ROWS_PER_FLUSH == ROWS_PER_FLUSH - 1:
                    await writer.flush()
            await writer.flush()
            keep_best(seconds, what, started)
            processor = time.process_time() - processor_started
            seconds[f"{what} processor"] = min(seconds.get(f"{what} processor", processor), processor)
    return seconds


async def lookups(connection: Any, name: str, alone: int, together: int) -> dict[str, float]:
    """Look keys up one after the other, then ``together`` at the same time by one object; seconds per lookup."""
    table = await connection.get_table(fluss.TablePath("fluss", name))
    lookuper = table.new_lookup().create_lookuper()
    assert (await lookuper.lookup({"id": 0}))["id"] == 0
    seconds: dict[str, float] = {}
    for repeat in range(REPEATS):
        started = time.perf_counter()
        for number in range(alone):
            assert await lookuper.lookup({"id": number * 7 + repeat}) is not None
        seconds["alone"] = min(seconds.get("alone", float("inf")), (time.perf_counter() - started) / alone)
    keys = [{"id": number * 31 % LOOKUP_KEYS} for number in range(together)]
    for _ in range(REPEATS if together >= LOOKUPS_IN_FLIGHT else 1):
        started = time.perf_counter()
        found = await asyncio.gather(*[lookuper.lookup(key) for key in keys])
        took = (time.perf_counter() - started) / together
        seconds["together"] = min(seconds.get("together", float("inf")), took)
        assert [row["id"] for row in found] == [key["id"] for key in keys]
    return seconds


async def acknowledgements(connection: Any, name: str, row_count: int) -> dict[str, float]:
    """Append a row and wait until it is acknowledged, one after the other; seconds of the median and of the slowest."""
    _, table = await make_table(connection, name, "ZSTD")
    writer = table.new_append().create_writer()
    row = order_rows(1)[0]
    seconds: list[float] = []
    for number in range(row_count + row_count // 4):
        started = time.perf_counter()
        await settled(writer.append(row).wait())
        # The first ones load what the others find ready.
        if number >= row_count // 4:
            seconds.append(time.perf_counter() - started)
    seconds.sort()
    return {"acknowledged row, p50": seconds[row_count // 2], "acknowledged row, p99": seconds[row_count * 99 // 100]}


async def many_lookups(connection: Any, name: str) -> dict[str, float]:
    """Look all keys of a table up with one call; seconds."""
    lookuper = (await connection.get_table(fluss.TablePath("fluss", name))).new_lookup().create_lookuper()
    keys = order_batch(LOOKUP_KEYS).select(["id"])
    seconds: dict[str, float] = {}
    for _ in range(REPEATS):
        started = time.perf_counter()
        found = await lookuper.lookup_many(keys)
        keep_best(seconds, "lookup_many", started)
        assert found.num_rows == LOOKUP_KEYS
    return seconds


async def main() -> None:
    task = json.loads(sys.argv[1])
    settings = {"bootstrap.servers": task["bootstrap"], **task.get("settings", {})}
    config = fluss.Config(settings)
    connection = await fluss.FlussConnection.create(config)
    if task["task"] == "bulk":
        result = await bulk(connection, task["table"], task["compression"], task["batches"])
    elif task["task"] == "first_write":
        result = await first_write(connection, task["table"], task["batches"])
    elif task["task"] == "upserts":
        result = await upserts(connection, task["table"], task["rows"], as_arrow=task["as_arrow"])
    elif task["task"] == "lookups":
        result = await lookups(connection, task["keyed_table"], task["alone"], task["together"])
    elif task["task"] == "many_lookups":
        result = await many_lookups(connection, task["keyed_table"])
    elif task["task"] == "acknowledgements":
        result = await acknowledgements(connection, task["table"], task["rows"])
    else:
        result = await rows(connection, task["table"], task["rows"])
    print(json.dumps(result))
    await settled(connection.close())


if __name__ == "__main__":
    asyncio.run(main())
