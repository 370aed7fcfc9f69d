"""Five gigabytes through a client that may buffer 64 MB: neither it nor the server grows with the data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psutil

import fluss
from benchmarks.e2e.workload import BATCH_ROWS, SCHEMA, order_batch
from fluss import embedded

GIGABYTES = 5
BUCKETS = 4
SAMPLES = 20


def measure() -> Iterator[tuple[str, float, str, str]]:
    with embedded.start(process=True, options={"durability": "os", "log.segment.file-size": "256mb"}) as server:
        yield from asyncio.run(_measure(server.bootstrap_servers, psutil.Process(server.process_id)))


async def _measure(bootstrap_servers: str, server: psutil.Process) -> list[tuple[str, float, str, str]]:
    client = psutil.Process()
    config = fluss.Config({"bootstrap.servers": bootstrap_servers, "writer.buffer.memory-size": 64 * 1024 * 1024})
    async with await fluss.FlussConnection.create(config) as connection:
        path = fluss.TablePath("fluss", "memory")
        properties = {"table.log.arrow.compression.type": "NONE"}
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=BUCKETS, properties=properties)
        await connection.get_admin().create_table(path, descriptor)
        table = await connection.get_table(path)
        batch = order_batch(BATCH_ROWS)
        batch_count = GIGABYTES * 10**9 // batch.nbytes
        writing = _Samples(client, server)
        writer = table.new_append().create_writer()
        for number in range(batch_count):
            writer.write_arrow_batch(batch)
            writing.take_at(number, batch_count)
        await writer.flush()

        reading = _Samples(client, server)
        scanner = await table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        row_count = 0
        while row_count < batch_count * BATCH_ROWS:
            row_count += sum(len(item) for item in await scanner.poll_record_batch_async(5000))
            reading.take_at(row_count // BATCH_ROWS, batch_count)
    return [
        line
        for what, samples in (("written", writing), ("read", reading))
        for line in samples.lines(f"over {GIGABYTES} GB {what}")
    ]


class _Samples:
    """Resident memory of both processes along the way, in MB."""

    def __init__(self, client: psutil.Process, server: psutil.Process) -> None:
        self._processes = {"client": client, "server": server}
        self._megabytes: dict[str, list[float]] = {"client": [], "server": []}

    def take_at(self, position: int, end: int) -> None:
        """Take a sample if the next of so many steps has been reached."""
        if position * SAMPLES >= len(self._megabytes["client"]) * end:
            for who, process in self._processes.items():
                self._megabytes[who].append(process.memory_info().rss / 1e6)

    def lines(self, what: str) -> Iterator[tuple[str, float, str, str]]:
        for who, megabytes in self._megabytes.items():
            middle = len(megabytes) // 2
            growth = max(megabytes[middle:]) - max(megabytes[1:middle])
            yield f"largest resident size of the {who} {what}", max(megabytes), "MB", ""
            yield f"growth from the first to the second half, {who}", growth, "MB", "about 0"
