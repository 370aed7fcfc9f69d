"""A writer that lives through the crashes of its server: a process of its own, started by the harness.

It appends rows (writer, n) with n = 0, 1, 2, ... and notes every acknowledged n in a file before it goes on, with
fdatasync. It stops at SIGTERM, flushes, and leaves with 0 only if no write failed.
"""

from __future__ import annotations

import asyncio
import random
import sys

import pyarrow as pa

import fluss
from tests.crash.writer_process import AckFile, open_table, stop_event, writer_options

IN_FLIGHT_MAX = 400
ARROW_ROWS_MAX = 40
# One write in so many is an Arrow batch; the others are single rows.
ARROW_EVERY = 5
PAUSE_S_MAX = 0.004
WRITES_PER_PAUSE = 8


async def append_until_stopped(
    writer: fluss.AppendWriter, name: str, rng: random.Random, stop: asyncio.Event, sent: asyncio.Queue[object]
) -> None:
    """Put (handle, numbers) into the queue for every write; None at the end."""
    number = 0
    writes = 0
    while not stop.is_set():
        if rng.randrange(ARROW_EVERY) == 0:
            count = rng.randint(1, ARROW_ROWS_MAX)
            numbers = list(range(number, number + count))
            columns = [pa.array([name] * count), pa.array(numbers, pa.int64()), pa.array([payload(n) for n in numbers])]
            handle = writer.write_arrow_batch(pa.record_batch(columns, names=["writer", "n", "payload"]))
        else:
            numbers = [number]
            handle = writer.append({"writer": name, "n": number, "payload": payload(number)})
        number += len(numbers)
        await sent.put((handle, numbers))
        writes += 1
        if writes % WRITES_PER_PAUSE == 0:
            await asyncio.sleep(rng.uniform(0, PAUSE_S_MAX))
    await sent.put(None)


def payload(number: int) -> str:
    """Return a text that tells whether a row came back whole."""
    return f"{number}:" + "ab" * (number % 97)


async def main() -> int:
    options = writer_options(__doc__)
    stop = stop_event()
    connection, table = await open_table(options)
    sent: asyncio.Queue[object] = asyncio.Queue(IN_FLIGHT_MAX)
    writer = table.new_append().create_writer()
    producer = asyncio.create_task(append_until_stopped(writer, options.name, random.Random(options.seed), stop, sent))
    with AckFile(options.acks_file) as acks:
        while (item := await sent.get()) is not None:
            handle, numbers = item  # type: ignore[misc]  # The queue holds pairs and one None.
            await handle.wait()
            acks.note(f"{number}\n" for number in numbers)
    await producer
    await connection.close()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
