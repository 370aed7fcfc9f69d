"""What many buckets cost a server: to create, to have at a start, to drop. ``make measure-buckets``.

The server is a process of its own. While tables are created and dropped, another client asks for something small again
and again; the longest of its waits is what everybody else notices. Beside it stands the longest wait of a quiet second:
on a busy machine that is not zero either.

    python tools/measure_buckets.py create --partitions 100
    python tools/measure_buckets.py start --buckets 1000000 --on-disk 0
    python tools/measure_buckets.py start --buckets 1000000 --on-disk 1000000
    python tools/measure_buckets.py drop --buckets 100000 --used
    python tools/measure_buckets.py collect --buckets 100000

The last one has the server in its own process, and tells how long garbage collections hold it up.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa

import fluss
from fluss import embedded, memory
from fluss.net.transport import run
from fluss.record.arrow_batch import encode_arrow_batch
from fluss.record.compression import NO_COMPRESSION
from fluss.record.log_batch import assign_offset
from fluss.server.options.server_options import ServerOptions
from fluss.server.process import FlussServer
from fluss.storage.log.file_names import RECOVERY_POINT_CHECKPOINT

BUCKETS_PER_PARTITION: Final = 4096
SCHEMA: Final = pa.schema([("id", pa.int32()), ("hour", pa.string())])
PATH: Final = fluss.TablePath("fluss", "many")
# A file has room for no more names than this on common file systems.
_LINKS_MAX: Final = 60_000
_PROBE_INTERVAL_S: Final = 0.002
_REQUEST_TIMEOUT_MS: Final = 600_000


def report(what: str, value: float, unit: str) -> None:
    print(f"{what:<76} {value:>12,.1f} {unit}", flush=True)


def serve(data_dir: Path) -> embedded.EmbeddedServer:
    options = {"max.partition.num": "100000"}
    if any(option.key == "server.max-buckets" for option in ServerOptions.options()):
        options["server.max-buckets"] = "2000000"
    return embedded.EmbeddedServer(options, data_dir=data_dir, process=True)


async def connect(server: embedded.EmbeddedServer) -> fluss.FlussConnection:
    config = fluss.Config({"bootstrap.servers": server.bootstrap_servers, "request-timeout": _REQUEST_TIMEOUT_MS})
    return await fluss.FlussConnection.create(config)


def resident_megabytes(server: embedded.EmbeddedServer) -> float:
    return psutil.Process(server.process_id).memory_info().rss / 1e6


def processor_seconds(server: embedded.EmbeddedServer) -> float:
    """Return what the server has worked so far: unlike times of the clock, no other program makes it longer."""
    times = psutil.Process(server.process_id).cpu_times()
    return times.user + times.system


def report_server(server: embedded.EmbeddedServer) -> None:
    report("  processor time of the server", processor_seconds(server), "s")
    report("  memory of the server", resident_megabytes(server), "MB")


@contextmanager
def timed(what: str) -> Iterator[None]:
    began_s = time.perf_counter()
    yield
    report(what, time.perf_counter() - began_s, "s")


class Probe:
    """A client that asks for something small again and again."""

    def __init__(self, server: embedded.EmbeddedServer, admin: fluss.FlussAdmin) -> None:
        self._server = server
        self._admin = admin
        self._is_over = False
        self._waits_s: list[float] = []

    async def during(self, what: str, work: Callable[[], Awaitable[object]]) -> None:
        self._is_over, self._waits_s = False, []
        probing = asyncio.create_task(self._ask())
        began_s, worked_s = time.perf_counter(), processor_seconds(self._server)
        try:
            await work()
        finally:
            self._is_over = True
            await probing
        report(what, time.perf_counter() - began_s, "s")
        report("  processor time of the server", processor_seconds(self._server) - worked_s, "s")
        waits_ms = sorted(1e3 * wait_s for wait_s in self._waits_s)
        if not waits_ms:
            # It was over at once.
            return
        report("  others wait, median", waits_ms[len(waits_ms) // 2], "ms")
        report(f"  others wait, longest of {len(waits_ms):,}", waits_ms[-1], "ms")

    async def _ask(self) -> None:
        while not self._is_over:
            began_s = time.perf_counter()
            await self._admin.list_databases()
            self._waits_s.append(time.perf_counter() - began_s)
            await asyncio.sleep(_PROBE_INTERVAL_S)


def descriptor() -> fluss.TableDescriptor:
    return fluss.TableDescriptor(
        fluss.Schema(SCHEMA), partition_keys=["hour"], bucket_keys=["id"], bucket_count=BUCKETS_PER_PARTITION
    )


async def create_partitions(admin: fluss.FlussAdmin, count: int) -> None:
    await admin.create_table(PATH, descriptor())
    for number in range(count):
        await admin.create_partition(PATH, {"hour": f"{number:06d}"})


# Create


async def create(server: embedded.EmbeddedServer, partitions: int) -> None:
    async with (
        await connect(server) as connection,
        await connect(server) as other,
    ):
        probe = Probe(server, other.get_admin())
        await probe.during("a quiet second", lambda: asyncio.sleep(1.0))
        before = resident_megabytes(server)
        hourly = {
            "table.auto-partition.enabled": "true",
            "table.auto-partition.time-unit": "HOUR",
            "table.auto-partition.num-precreate": str(partitions),
        }
        table = fluss.TableDescriptor(
            fluss.Schema(SCHEMA),
            partition_keys=["hour"],
            bucket_keys=["id"],
            bucket_count=BUCKETS_PER_PARTITION,
            properties=hourly,
        )
        admin = connection.get_admin()
        await probe.during(
            f"create a table of {BUCKETS_PER_PARTITION} buckets with {partitions} partitions",
            lambda: admin.create_table(PATH, table),
        )
        report("  memory of the server for it", resident_megabytes(server) - before, "MB")
        await probe.during("drop it", lambda: admin.drop_table(PATH))
        await asyncio.sleep(2)
        report("  memory of the server that is left of it", resident_megabytes(server) - before, "MB")


def run_create(options: argparse.Namespace, data_dir: Path) -> None:
    with serve(data_dir) as server:
        asyncio.run(create(server, options.partitions))
        began_s = time.perf_counter()
    report("stop", time.perf_counter() - began_s, "s")


# Start


def run_start(options: argparse.Namespace, data_dir: Path) -> None:
    partitions = -(-options.buckets // BUCKETS_PER_PARTITION)

    async def prepare() -> None:
        async with await connect(server) as connection:
            await create_partitions(connection.get_admin(), partitions)

    server = serve(data_dir)
    with timed("start with nothing"):
        server.start()
    report_server(server)
    asyncio.run(prepare())
    server.stop()
    forge_logs(data_dir, options.on_disk)
    server = serve(data_dir)
    buckets = f"{partitions * BUCKETS_PER_PARTITION:,} idle buckets, {options.on_disk:,} of them with rows"
    with timed(f"start with {buckets}"):
        server.start()
    try:
        report_server(server)
        asyncio.run(first_use(server))
        report("  memory of the server then", resident_megabytes(server), "MB")
    finally:
        with timed("  stop"):
            server.stop()
    with timed("start again"):
        server.start()
    report_server(server)
    server.kill()
    with timed("start after kill -9"):
        server.restart()
    report_server(server)
    with timed("  stop"):
        server.stop()


async def first_use(server: embedded.EmbeddedServer) -> None:
    async with await connect(server) as connection:
        admin = connection.get_admin()
        with timed("  where one bucket ends, as the first question"):
            await admin.list_partition_offsets(PATH, "000000", [0], fluss.OffsetSpec.latest())


def forge_logs(data_dir: Path, count: int) -> None:
    """Give so many buckets a log with one batch, as a server would have left it after a clean stop."""
    if not count:
        return
    batch = encode_arrow_batch(pa.record_batch({"id": pa.array([1], pa.int32()), "hour": ["x"]}), 1, NO_COMPRESSION)
    assign_offset(batch, 0, 1_700_000_000_000)
    lines = []
    source = data_dir / "source"
    number = 0
    for group in sorted((data_dir / "fluss").glob("*-*/*-p*")) or group_directories(data_dir):
        table_id, partition_id = group.parent.name.rpartition("-")[2], group.name.rpartition("-p")[2]
        for bucket in range(min(BUCKETS_PER_PARTITION, count - number)):
            if number % _LINKS_MAX == 0:
                source.unlink(missing_ok=True)
                source.write_bytes(batch)
            directory = group / f"log-{bucket}"
            directory.mkdir(parents=True, exist_ok=True)
            os.link(source, directory / "00000000000000000000.log")
            lines.append(f"{table_id} {partition_id} {bucket} 1\n")
            number += 1
    source.unlink()
    (data_dir / RECOVERY_POINT_CHECKPOINT).write_text(f"0\n{len(lines)}\n{''.join(lines)}", encoding="ascii")


def group_directories(data_dir: Path) -> list[Path]:
    """Return where partitions will be that have nothing on the disk: the first table has id 0, so has the first of
    its partitions."""
    partitions = range(10**6)
    return [data_dir / "fluss" / "many-0" / f"{number:06d}-p{number}" for number in partitions[:100_000]]


async def open_all(admin: fluss.FlussAdmin, partitions: int) -> None:
    """Ask where all buckets end, so that their logs are open."""
    for number in range(partitions):
        await admin.list_partition_offsets(
            PATH, f"{number:06d}", list(range(BUCKETS_PER_PARTITION)), fluss.OffsetSpec.latest()
        )


# Drop


async def drop(server: embedded.EmbeddedServer, data_dir: Path, partitions: int, *, is_used: bool) -> None:
    async with (
        await connect(server) as connection,
        await connect(server) as other,
    ):
        admin, probe = connection.get_admin(), Probe(server, other.get_admin())
        if is_used:
            await probe.during("open them", lambda: open_all(admin, partitions))
        report("memory of the server before", resident_megabytes(server), "MB")
        await probe.during("a quiet second", lambda: asyncio.sleep(1.0))
        await probe.during(f"drop {partitions * BUCKETS_PER_PARTITION:,} buckets", lambda: admin.drop_table(PATH))

        async def wait_until_gone() -> None:
            while (data_dir / "fluss").exists():
                await asyncio.sleep(0.1)

        await probe.during("until their directories are gone", wait_until_gone)
        await asyncio.sleep(2)
        report("memory of the server after", resident_megabytes(server), "MB")
        if is_used:
            # The server counts its open logs every half a minute.
            await asyncio.sleep(40)
            report("memory of the server a while later", resident_megabytes(server), "MB")


def run_drop(options: argparse.Namespace, data_dir: Path) -> None:
    partitions = -(-options.buckets // BUCKETS_PER_PARTITION)

    async def prepare() -> None:
        async with await connect(server) as connection:
            await create_partitions(connection.get_admin(), partitions)

    with serve(data_dir) as server:
        asyncio.run(prepare())
    forge_logs(data_dir, options.on_disk)
    server = serve(data_dir)
    server.start()
    try:
        asyncio.run(drop(server, data_dir, partitions, is_used=options.used))
    finally:
        with timed("stop"):
            server.stop()


# Garbage collections


async def collect(data_dir: Path, partitions: int) -> None:
    pauses_ms: list[float] = []
    began_s = 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal began_s
        if phase == "start":
            began_s = time.thread_time()
        elif info["generation"] == 2:
            pauses_ms.append((time.thread_time() - began_s) * 1e3)

    def report_pauses(what: str) -> None:
        report(f"{what}: full garbage collections", len(pauses_ms), "")
        report("  the longest, in processor time", max(pauses_ms, default=0.0), "ms")
        report("  memory", (memory.resident_bytes() or 0) / 1e6, "MB")
        pauses_ms.clear()

    options = {
        "data.dir": str(data_dir),
        "bind.listeners": "FLUSS://127.0.0.1:0",
        "max.partition.num": "100000",
        "server.max-buckets": "2000000",
        "server.max-open-logs": "2000000",
    }
    async with FlussServer(ServerOptions(options)) as server:
        config = fluss.Config({"bootstrap.servers": f"127.0.0.1:{server.listeners[0].port}"})
        async with await fluss.FlussConnection.create(config) as connection:
            admin = connection.get_admin()
            await create_partitions(admin, partitions)
            gc.callbacks.append(note)
            report_pauses("before")
            worked_s = time.process_time()
            await open_all(admin, partitions)
            report(
                f"open {partitions * BUCKETS_PER_PARTITION:,} logs, processor time", time.process_time() - worked_s, "s"
            )
            report_pauses("opening")
            gc.collect()
            report_pauses("then")
            await admin.drop_table(PATH)
            while server.metrics.values()["fluss_buckets", ()] or list(data_dir.rglob("*.deleted")):
                await asyncio.sleep(0.1)
            # The server counts its open logs every half a minute.
            await asyncio.sleep(35)
            memory.trim()
            report_pauses("dropping")
            gc.callbacks.remove(note)


def run_collect(options: argparse.Namespace, data_dir: Path) -> None:
    # As in a process that is nothing but a server.
    memory.limit_arenas()
    if not options.embedded:
        memory.serve_alone()
    run(collect(data_dir, -(-options.buckets // BUCKETS_PER_PARTITION)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("create", "start", "drop", "collect"))
    parser.add_argument("--partitions", type=int, default=100, help="of the table that is created")
    parser.add_argument("--buckets", type=int, default=100_000, help="that there are at a start, or are dropped")
    parser.add_argument("--on-disk", type=int, default=0, help="how many of the buckets have rows")
    parser.add_argument("--used", action="store_true", help="ask where all buckets end before they are dropped")
    parser.add_argument("--embedded", action="store_true", help="collect as if the process were not the server's own")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fluss-buckets-") as directory:
        commands = {"create": run_create, "start": run_start, "drop": run_drop, "collect": run_collect}
        commands[options.what](options, Path(directory) / "data")


if __name__ == "__main__":
    main()
