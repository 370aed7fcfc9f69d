"""Snapshots of rows by key: what it takes to begin with one, and to read a table from the files of one.

A store is lost, and a new server has to be ready for lookups: once with a changelog as long as there are keys, once
with one several times as long, and once without snapshots, from the whole of it. Readers are processes of their own, as
tasks of Spark are, each with its share of the buckets; they take turns with the server and with files.
``BENCH_KEYS=10_000_000`` is the size that is promised; the default is one that takes a minute.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil

import fluss
from benchmarks.e2e.workload import BATCH_ROWS, SCHEMA, order_batch
from fluss import blocking
from fluss.client.bulk import rows_at
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually

KEYS: Final = int(os.environ.get("BENCH_KEYS", "500_000"))
BUCKETS: Final = 4
# How often all keys are written again for the longer changelog.
UPDATES: Final = 3
READ_TURNS: Final = 5
READERS: Final = (1, 2)
PATH: Final = fluss.TablePath("fluss", "orders")
# Changelogs stay on the disk: this is about rows. Stores are as those of large tables are, whatever the number of keys.
COMMON: Final = ("durability=os", "remote.log.task-interval-duration=0s", "kv.shared-store.max-size=0b")
SERVER_FIRST, REMOTE_FIRST = "server_first", "remote_first"


def measure() -> Iterator[tuple[str, float, str, str]]:
    with tempfile.TemporaryDirectory(prefix="flussbett-bench-") as directory:
        bench = _Bench(Path(directory))
        with bench.running(snapshots=True) as server:
            bench.fill(server)
            bench.wait_for_snapshot(server)
            for reader_count in READERS:
                yield from bench.read(server, reader_count)
        short_s, short_bytes = bench.ready_seconds(snapshots=True), bench.changelog_bytes
        note = f"{KEYS:,} keys, changelog of {short_bytes >> 20} MB"
        yield "a lost store is ready, from its snapshot", short_s, "s", note
        with bench.running(snapshots=True) as server:
            for _ in range(UPDATES):
                bench.fill(server)
            bench.wait_for_snapshot(server)
        long_s, long_bytes = bench.ready_seconds(snapshots=True), bench.changelog_bytes
        yield "the same, all keys changed several times", long_s, "s", f"changelog of {long_bytes >> 20} MB"
        yield "how much longer that takes", long_s / short_s, "x", f"changelog {long_bytes / short_bytes:.1f} x"
        whole_s = bench.ready_seconds(snapshots=False)
        yield "the same without snapshots, from the whole changelog", whole_s, "s", ""
        yield "how much longer that takes than with one", whole_s / long_s, "x", ""


class _Bench:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def changelog_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self._directory / "data").rglob("log-*/*.log"))

    @contextmanager
    def running(self, *, snapshots: bool) -> Iterator[ServerProcess]:
        options = [*COMMON]
        if snapshots:
            options += [f"remote.data.dir={self._directory / 'remote'}", "kv.snapshot.interval=1s"]
        arguments = [part for option in options for part in ("-D", option)]
        with ServerProcess(self._directory / "data", *arguments) as server:
            yield server

    def fill(self, server: ServerProcess) -> None:
        """Write every key once."""
        with _connected(server.bootstrap_servers) as connection:
            admin = connection.get_admin()
            if not admin.table_exists(PATH):
                schema = fluss.Schema(SCHEMA, primary_keys=["id"])
                admin.create_table(PATH, fluss.TableDescriptor(schema, bucket_count=BUCKETS))
            with connection.get_table(PATH).new_upsert().create_writer() as writer:
                for first in range(0, KEYS, BATCH_ROWS):
                    writer.upsert_arrow_batch(order_batch(min(BATCH_ROWS, KEYS - first), first))

    def wait_for_snapshot(self, server: ServerProcess) -> None:
        with _connected(server.bootstrap_servers) as connection:
            latest = _latest(connection)
            eventually(lambda: _snapshot_offsets(connection) == latest, timeout_s=600)

    def ready_seconds(self, *, snapshots: bool) -> float:
        """Lose the stores, start a server, and return how long it takes until lookups of all buckets are answered."""
        shutil.rmtree(self._directory / "data" / "kv.shared", ignore_errors=True)
        for path in (self._directory / "data" / "fluss").glob("orders-*/kv-*"):
            shutil.rmtree(path)
        with self.running(snapshots=snapshots) as server, _connected(server.bootstrap_servers) as connection:
            lookuper = connection.get_table(PATH).new_lookup().create_lookuper()
            began_s = time.perf_counter()
            for key in range(16 * BUCKETS):
                assert lookuper.lookup({"id": key}) is not None
            return time.perf_counter() - began_s

    def read(self, server: ServerProcess, reader_count: int) -> Iterator[tuple[str, float, str, str]]:
        """Read all rows from the server and from the files of the snapshots, in turns."""
        process = psutil.Process(server.process_id)
        rates: dict[str, list[float]] = {SERVER_FIRST: [], REMOTE_FIRST: []}
        server_s: dict[str, float] = {}
        for turn in range(READ_TURNS):
            for way in (SERVER_FIRST, REMOTE_FIRST) if turn % 2 else (REMOTE_FIRST, SERVER_FIRST):
                used_s = sum(process.cpu_times()[:2])
                rates[way].append(KEYS / _read_with(server.bootstrap_servers, way, reader_count))
                server_s[way] = sum(process.cpu_times()[:2]) - used_s
        ratios = [files / asked for files, asked in zip(rates[REMOTE_FIRST], rates[SERVER_FIRST], strict=True)]
        readers = f"{reader_count} processes" if reader_count > 1 else "one process"
        note = f"processor time of the server {server_s[SERVER_FIRST]:.2f} s"
        yield f"rows by key, {readers}, from the server", statistics.median(rates[SERVER_FIRST]), "/s", note
        note = f"processor time of the server {server_s[REMOTE_FIRST]:.2f} s"
        yield f"the same from the files of snapshots, {readers}", statistics.median(ratios), "x", note


def _read_with(bootstrap_servers: str, way: str, reader_count: int) -> float:
    """Read the whole table with so many processes, and return how long that took."""
    with ExitStack() as stack:
        readers = []
        for number in range(reader_count):
            buckets = [str(bucket) for bucket in range(number, BUCKETS, reader_count)]
            command = [sys.executable, "-m", "benchmarks.e2e.snapshots", bootstrap_servers, way, *buckets]
            reader = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            readers.append(stack.enter_context(reader))
        for reader in readers:
            assert reader.stdout is not None
            reader.stdout.readline()
        began_s = time.perf_counter()
        for reader in readers:
            print(file=reader.stdin, flush=True)
        found = sum(int(reader.stdout.readline()) for reader in readers if reader.stdout is not None)
        seconds = time.perf_counter() - began_s
        assert found == KEYS, f"{found} rows were read"
        return seconds


def read(bootstrap_servers: str, way: str, *buckets: str) -> None:
    """Read some buckets as soon as there is a line of standard input, and print how many rows they have."""
    with _connected(bootstrap_servers, way) as connection:
        offsets = _latest(connection)
        table = connection.get_table(PATH)._inner
        table_id = table.get_table_info().table_id
        print("ready", flush=True)
        sys.stdin.readline()
        batches = (
            batch for it in map(int, buckets) for batch in rows_at(table, fluss.TableBucket(table_id, it), offsets[it])
        )
        print(sum(batch.num_rows for batch in batches), flush=True)


def _latest(connection: blocking.FlussConnection) -> dict[int, int]:
    return dict(connection.get_admin().list_offsets(PATH, list(range(BUCKETS)), fluss.OffsetSpec.latest()))


def _snapshot_offsets(connection: blocking.FlussConnection) -> dict[int, int]:
    path = pb.PbTablePath(database_name=PATH.database_name, table_name=PATH.table_name)
    inner = connection._inner
    asking = inner._cluster.request_any_tablet(
        apis.GET_LATEST_KV_SNAPSHOTS, pb.GetLatestKvSnapshotsRequest(table_path=path)
    )
    return {snapshot.bucket_id: snapshot.log_offset for snapshot in inner._runtime.run(asking).latest_snapshots}


def _connected(bootstrap_servers: str, way: str = SERVER_FIRST) -> blocking.FlussConnection:
    settings = {"bootstrap.servers": bootstrap_servers, "scanner.kv.read-preference": way}
    return blocking.FlussConnection.create(fluss.Config(settings))


if __name__ == "__main__":
    read(*sys.argv[1:])
