"""Kill a server with SIGKILL again and again while it is written to and read, then look at every row.

Three kinds of witnesses: writers, processes of their own, note on disk what was acknowledged to them; a reader that
goes on through all crashes remembers what it saw at which offset; at the end everything is read from the beginning.
Afterwards, per writer:

- every acknowledged row is there exactly once, and no other row is there twice;
- the rows of a writer in a bucket are in the order in which they were written;
- offsets have no gap, and what a reader saw once is still at its offset.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import fluss
from tests.crash.writer import payload

READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 60.0
BUCKETS = 3
TABLE = "crash.events"


@dataclass
class CrashReport:
    """What a run did, and what it found wrong."""

    cycles: int = 0
    acknowledged_rows: int = 0
    rows: int = 0
    rows_seen_live: int = 0
    start_seconds_max: float = 0.0
    findings: list[str] = field(default_factory=list)


def free_port() -> int:
    """Return a port that the server will get each time it starts again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """The server under attack, always on the same data directory and port."""

    def __init__(self, directory: Path, options: dict[str, str]) -> None:
        self.port = free_port()
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        self._directory = directory
        self._options = [f"-D{key}={value}" for key, value in options.items()]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Start, wait until it answers, and return how long that took."""
        started = time.monotonic()
        command = [sys.executable, "-m", "fluss.server", "--data-dir", str(self._directory / "data")]
        command += ["--port", str(self.port), *self._options]
        with open(self._directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            log_text = (self._directory / "server.log").read_text(encoding="utf-8", errors="replace")
            raise AssertionError(f"the server did not start again:\n{log_text[-3000:]}")
        return time.monotonic() - started

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._finish()

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._finish()

    def _finish(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        code = self._process.wait(STOP_TIMEOUT_S)
        self._process.stdout.close()
        self._process = None
        return code

    @property
    def is_running(self) -> bool:
        return self._process is not None


class LiveReader:
    """Reads along, crash or no crash, and remembers (bucket, offset) -> (writer, n)."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self.seen: dict[tuple[int, int], tuple[str, int]] = {}
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": self._bootstrap_servers}))
        async with connection:
            scanner = await open_scanner(connection)
            while not self._stop.is_set():
                for batch in await scanner.poll_record_batch_async(200):
                    remember(batch, self.seen)


async def open_scanner(connection: fluss.FlussConnection) -> fluss.LogScanner:
    table = await connection.get_table(table_path())
    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
    return scanner


def table_path() -> fluss.TablePath:
    database, _, name = TABLE.partition(".")
    return fluss.TablePath(database, name)


def remember(batch: fluss.RecordBatch, seen: dict[tuple[int, int], tuple[str, int]]) -> None:
    columns = batch.batch.to_pydict()
    rows = zip(columns["writer"], columns["n"], columns["payload"], strict=True)
    for offset, (writer, number, text) in enumerate(rows, start=batch.base_offset):
        assert text == payload(number), f"row {number} of {writer} came back damaged: {text!r}"
        seen[(batch.bucket.bucket_id, offset)] = (writer, number)


async def read_everything(bootstrap_servers: str) -> dict[tuple[int, int], tuple[str, int]]:
    """Read every bucket from the beginning to its latest offset, by a new connection."""
    found: dict[tuple[int, int], tuple[str, int]] = {}
    connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": bootstrap_servers}))
    async with connection:
        admin = connection.get_admin()
        ends = await admin.list_offsets(table_path(), list(range(BUCKETS)), fluss.OffsetSpec.latest())
        scanner = await open_scanner(connection)
        while len(found) < sum(ends.values()):
            batches = await scanner.poll_record_batch_async(5000)
            if not batches:
                raise AssertionError(f"no more rows after {len(found)} of {sum(ends.values())}")
            for batch in batches:
                remember(batch, found)
    return found


async def create_table(bootstrap_servers: str) -> None:
    connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": bootstrap_servers}))
    async with connection:
        admin = connection.get_admin()
        await admin.create_database(table_path().database_name, ignore_if_exists=True)
        schema = (
            fluss.Schema.builder()
            .column("writer", fluss.DataTypes.string())
            .column("n", fluss.DataTypes.bigint())
            .column("payload", fluss.DataTypes.string())
            .build()
        )
        descriptor = fluss.TableDescriptor(
            schema, bucket_count=BUCKETS, properties={"table.log.arrow.compression.type": "NONE"}
        )
        await admin.create_table(table_path(), descriptor, ignore_if_exists=True)


def start_writer(directory: Path, bootstrap_servers: str, name: str, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.crash.writer", "--bootstrap", bootstrap_servers, "--table", TABLE]
    command += ["--name", name, "--acks-file", str(directory / f"{name}.acks"), "--seed", str(seed)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"})


async def wait_for_first_ack(writer: subprocess.Popen[bytes], acks: Path) -> None:
    """Wait until a writer is at work: a client that has never reached its server is not what is tested here."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not (acks.exists() and acks.stat().st_size):
        if writer.poll() is not None or time.monotonic() > deadline:
            _, errors = await asyncio.to_thread(writer.communicate)
            raise AssertionError(f"a writer did not begin: {errors.decode()[-2000:]}")
        await asyncio.sleep(0.02)


async def run(
    directory: Path, *, cycles: int, seed: int, writer_count: int = 2, options: dict[str, str] | None = None
) -> CrashReport:
    """Crash the server ``cycles`` times and return what was found."""
    rng = random.Random(seed)
    report = CrashReport()
    server = ServerProcess(directory, {"log.segment.file-size": "256kb", **(options or {})})
    server.start()
    writers: dict[str, subprocess.Popen[bytes]] = {}
    reader: LiveReader | None = None
    reading: asyncio.Task[None] | None = None
    try:
        await create_table(server.bootstrap_servers)
        reader = LiveReader(server.bootstrap_servers)
        reading = asyncio.create_task(reader.run())
        for number in range(writer_count):
            name = f"writer-{number}"
            writers[name] = start_writer(directory, server.bootstrap_servers, name, rng.getrandbits(32))
            await wait_for_first_ack(writers[name], directory / f"{name}.acks")
        for _ in range(cycles):
            await asyncio.sleep(rng.uniform(0.05, 0.6))
            await asyncio.to_thread(server.kill)
            report.start_seconds_max = max(report.start_seconds_max, await asyncio.to_thread(server.start))
            report.cycles += 1
        for name, writer in writers.items():
            writer.terminate()
            _, errors = await asyncio.to_thread(writer.communicate, timeout=STOP_TIMEOUT_S)
            if writer.returncode != 0:
                report.findings.append(f"{name} ended with {writer.returncode}: {errors.decode()[-2000:]}")
        await asyncio.to_thread(server.kill)
        report.start_seconds_max = max(report.start_seconds_max, await asyncio.to_thread(server.start))
        found = await read_everything(server.bootstrap_servers)
        reader.stop()
        await reading
        acknowledged = {name: read_acks(directory / f"{name}.acks") for name in writers}
        report.rows = len(found)
        report.rows_seen_live = len(reader.seen)
        report.acknowledged_rows = sum(map(len, acknowledged.values()))
        report.findings += differences(found, reader.seen, acknowledged)
        code = await asyncio.to_thread(server.stop)
        if code != 0:
            report.findings.append(f"the server ended with {code} when asked to stop")
    finally:
        for writer in writers.values():
            if writer.poll() is None:
                writer.kill()
                writer.communicate()
        if reading is not None and not reading.done():
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if server.is_running:
            server.kill()
    return report


def read_acks(path: Path) -> list[int]:
    return [int(line) for line in path.read_text(encoding="ascii").splitlines()]


def differences(
    found: dict[tuple[int, int], tuple[str, int]],
    seen_live: dict[tuple[int, int], tuple[str, int]],
    acknowledged: dict[str, list[int]],
) -> list[str]:
    """Return what contradicts the promises above, one sentence each."""
    findings = []
    places: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for place, row in sorted(found.items()):
        places.setdefault(row, []).append(place)
    for row, at in places.items():
        if len(at) > 1:
            findings.append(f"{row} is there {len(at)} times, at (bucket, offset) {at}")
    for writer, numbers in acknowledged.items():
        lost = [number for number in numbers if (writer, number) not in places]
        if lost:
            findings.append(f"{len(lost)} acknowledged rows of {writer} are lost, the first is {lost[0]}")
    latest: dict[tuple[int, str], int] = {}
    for (bucket, offset), (writer, number) in sorted(found.items()):
        if number < latest.get((bucket, writer), -1):
            findings.append(f"{writer}: {number} at offset {offset} of bucket {bucket} follows a later row")
        latest[(bucket, writer)] = number
    for bucket in {bucket for bucket, _ in found}:
        offsets = [offset for at, offset in found if at == bucket]
        if sorted(offsets) != list(range(len(offsets))):
            findings.append(f"the offsets of bucket {bucket} have gaps")
    for place, row in seen_live.items():
        if found.get(place) != row:
            findings.append(f"a reader saw {row} at {place}; now {found.get(place)} is there")
    return findings
