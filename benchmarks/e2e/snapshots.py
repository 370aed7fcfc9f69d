"""Snapshots of rows by key: what it takes to begin with one, and to read a table from the files of one.

A store is lost, and a new server has to be ready for lookups: once with a changelog as long as there are keys, once with
one several times as long, and once without snapshots, from the whole of it. ``BENCH_KEYS=10_000_000`` is the size that
is promised; the default is one that takes a minute.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

import fluss
from benchmarks.e2e.workload import BATCH_ROWS, SCHEMA, order_batch
from fluss import blocking
from fluss.client.scan.kv_files import KvFileSession
from fluss.client.scan.snapshot_fetcher import KvSession
from fluss.protocol import api as apis
from fluss.protocol.messages import fluss_pb2 as pb
from fluss.testing.cluster import ServerProcess
from fluss.testing.waiting import eventually

KEYS: Final = int(os.environ.get("BENCH_KEYS", "500_000"))
# How often all keys are written again for the longer changelog.
UPDATES: Final = 3
READ_TURNS: Final = 3
PIECE_BYTES: Final = 8 * 1024 * 1024
PATH: Final = fluss.TablePath("fluss", "orders")
# Changelogs stay on the disk: this is about rows.
COMMON: Final = ("durability=os", "remote.log.task-interval-duration=0s")


def measure() -> Iterator[tuple[str, float, str, str]]:
    with tempfile.TemporaryDirectory(prefix="flussbett-bench-") as directory:
        bench = _Bench(Path(directory))
        with bench.running(snapshots=True) as server:
            bench.fill(server)
            bench.wait_for_snapshot(server)
            yield from bench.read(server)
        short_s, short_bytes = bench.ready_seconds(snapshots=True), bench.changelog_bytes
        note = f"{KEYS:,} keys, changelog of {short_bytes >> 20} MB"
        yield "a lost store is ready, from its snapshot", short_s, "s", note
        with bench.running(snapshots=True) as server:
            for _ in range(UPDATES):
                bench.fill(server)
            bench.wait_for_snapshot(server)
        long_s = bench.ready_seconds(snapshots=True)
        note = f"changelog of {bench.changelog_bytes >> 20} MB"
        yield "the same, all keys changed several times", long_s, "s", note
        yield (
            "how much longer that takes",
            long_s / short_s,
            "x",
            f"changelog {bench.changelog_bytes / short_bytes:.1f} x",
        )
        whole_s = bench.ready_seconds(snapshots=False)
        yield "the same without snapshots, from the whole changelog", whole_s, "s", ""
        yield "how much longer that takes than with one", whole_s / long_s, "x", ""


class _Bench:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def changelog_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self._directory / "data").rglob("log-0/*.log"))

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
        with _connected(server) as connection:
            admin = connection.get_admin()
            if not admin.table_exists(PATH):
                schema = fluss.Schema(SCHEMA, primary_keys=["id"])
                admin.create_table(PATH, fluss.TableDescriptor(schema, bucket_count=1))
            with connection.get_table(PATH).new_upsert().create_writer() as writer:
                for first in range(0, KEYS, BATCH_ROWS):
                    writer.upsert_arrow_batch(order_batch(min(BATCH_ROWS, KEYS - first), first))

    def wait_for_snapshot(self, server: ServerProcess) -> None:
        with _connected(server) as connection:
            latest = connection.get_admin().list_offsets(PATH, [0], fluss.OffsetSpec.latest())[0]
            eventually(lambda: _snapshot_offset(connection) == latest, timeout_s=600)

    def ready_seconds(self, *, snapshots: bool) -> float:
        """Lose the store, start a server, and return how long it takes until a lookup is answered."""
        shutil.rmtree(self._directory / "data" / "kv.shared", ignore_errors=True)
        for path in (self._directory / "data" / "fluss").glob("orders-*/kv-*"):
            shutil.rmtree(path)
        with self.running(snapshots=snapshots) as server, _connected(server) as connection:
            lookuper = connection.get_table(PATH).new_lookup().create_lookuper()
            began_s = time.perf_counter()
            assert lookuper.lookup({"id": KEYS - 1}) is not None
            return time.perf_counter() - began_s

    def read(self, server: ServerProcess) -> Iterator[tuple[str, float, str, str]]:
        """Read all rows, undecoded, from the server and from the files of the snapshot, in turns."""
        process = psutil.Process(server.process_id)
        with _connected(server) as connection:
            table = connection.get_table(PATH)
            bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
            cluster = connection._inner._cluster
            ways: dict[str, Callable[[], KvSession | KvFileSession]] = {
                "from the server": lambda: KvSession(cluster, cluster.leader_of(bucket) or 0, bucket),
                "from the files of a snapshot": lambda: KvFileSession(cluster, PATH, bucket),
            }
            best: dict[str, tuple[float, float, float]] = {}
            for _ in range(READ_TURNS):
                for way, session in ways.items():
                    used = sum(process.cpu_times()[:2]), time.process_time()
                    began_s = time.perf_counter()
                    _run(connection, _read_all(session()))
                    seconds = time.perf_counter() - began_s
                    found = seconds, sum(process.cpu_times()[:2]) - used[0], time.process_time() - used[1]
                    best[way] = min(best.get(way, found), found)
        for way, (seconds, server_s, client_s) in best.items():
            share = f"processor time: server {server_s:.2f} s, client {client_s:.2f} s"
            yield f"read all rows by key {way}", KEYS / seconds, "rows/s", share


async def _read_all(session: KvSession | KvFileSession) -> None:
    await session.open(bytes_max=PIECE_BYTES)
    while session.has_more:
        await session.next(bytes_max=PIECE_BYTES)
    await session.close()


def _snapshot_offset(connection: blocking.FlussConnection) -> int:
    request = pb.GetLatestKvSnapshotsRequest(
        table_path=pb.PbTablePath(database_name=PATH.database_name, table_name=PATH.table_name)
    )
    cluster = connection._inner._cluster
    answer = _run(connection, cluster.request_any_tablet(apis.GET_LATEST_KV_SNAPSHOTS, request))
    return int(answer.latest_snapshots[0].log_offset)


def _run(connection: blocking.FlussConnection, work: Coroutine[Any, Any, Any]) -> Any:
    return connection._inner._runtime.run(work)


def _connected(server: ServerProcess) -> blocking.FlussConnection:
    return blocking.FlussConnection.create(fluss.Config({"bootstrap.servers": server.bootstrap_servers}))
