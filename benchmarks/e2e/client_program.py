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

from workload import BATCH_ROWS, SCHEMA, order_batch, order_rows  # type: ignore[import-not-found]  # Beside this file.

import fluss

REPEATS = 3
# One of the clients may wait for ever when its memory for unsent batches is full, so it never is, for any of them.
BATCHES_PER_FLUSH = 24


async def settled(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


async def make_table(connection: Any, name: str, compression: str) -> tuple[Any, Any]:
    admin = await settled(connection.get_admin())
    path = fluss.TablePath("fluss", name)
    await admin.drop_table(path, ignore_if_not_exists=True)
    descriptor = fluss.TableDescriptor(
        fluss.Schema(SCHEMA), bucket_count=1, properties={"table.log.arrow.compression.type": compression}
    )
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


async def main() -> None:
    task = json.loads(sys.argv[1])
    config = fluss.Config({"bootstrap.servers": task["bootstrap"]})
    connection = await fluss.FlussConnection.create(config)
    if task["task"] == "bulk":
        result = await bulk(connection, task["table"], task["compression"], task["batches"])
    else:
        result = await rows(connection, task["table"], task["rows"])
    print(json.dumps(result))
    await settled(connection.close())


if __name__ == "__main__":
    asyncio.run(main())
