"""A server is gone with its disk, at a random moment, and another one is restored from its backup; again and again.

    python -m tests.chaos.disaster --rounds 50 --seed 1

Writers keep a ledger: what they sent, and when it was acknowledged. What was acknowledged before the last backup point
was begun has to be on the restored server; nothing may be there that was not sent; nothing twice, nothing out of order.
In every second round the restore is killed a few times before it is through.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

import fluss
from fluss import blocking
from fluss.errors import FlussError
from fluss.server.restore import verify
from fluss.storage.backup.points import newest_point
from fluss.storage.remote.objects import DirectoryObjects
from fluss.storage.remote.store import RemoteStore, RemoteTraffic
from fluss.storage.vfs import OsFiles
from fluss.testing.forked_servers import ForkedServer, ServerForks
from fluss.testing.waiting import eventually

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("number", pa.int64())])
KEY_COUNT = 7
OPTIONS = {
    "log.segment.file-size": "1kb",
    "remote.log.task-interval-duration": "50ms",
    "backup.interval": "30ms",
    "durability": "os",
}


@dataclass
class Ledger:
    """What a writer has sent to a table of one bucket: the numbers 0, 1, 2, ... in this order."""

    path: fluss.TablePath
    has_keys: bool
    sent: int = 0
    # When each number was acknowledged, as epoch milliseconds.
    acknowledged_ms: list[int] = field(default_factory=list)

    def required(self, time_ms: int) -> int:
        """Return how many were acknowledged before a time."""
        return sum(acknowledged < time_ms for acknowledged in self.acknowledged_ms)

    def create(self, connection: blocking.FlussConnection) -> None:
        keys = ["id"] if self.has_keys else None
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA, primary_keys=keys), bucket_count=1)
        connection.get_admin().create_table(self.path, descriptor)

    def write(self, connection: blocking.FlussConnection, is_over: threading.Event) -> None:
        """Write until it is over, or the server is gone."""
        table = connection.get_table(self.path)
        writer = table.new_upsert().create_writer() if self.has_keys else table.new_append().create_writer()
        write = writer.upsert if self.has_keys else writer.append
        with suppress(FlussError):
            while not is_over.is_set():
                self.sent += 1
                write({"id": (self.sent - 1) % KEY_COUNT, "number": self.sent - 1})
                writer.flush()
                self.acknowledged_ms.append(time.time_ns() // 1_000_000)

    def check(self, connection: blocking.FlussConnection, time_ms: int) -> None:
        """Compare a restored table with what was written; from now on what is there is what was written."""
        table = connection.get_table(self.path)
        if self.has_keys:
            found = {row["id"]: row["number"] for row in table.new_scan().to_arrow().to_pylist()}
            count = max(found.values(), default=-1) + 1
            expected = {number % KEY_COUNT: number for number in range(count)}
            assert found == expected, f"{self.path}: {found} is not the state after {count} writes"
        else:
            numbers = table.new_scan().to_arrow()["number"].to_pylist()
            count = len(numbers)
            assert numbers == list(range(count)), f"{self.path}: {numbers[:50]}... are not the first {count} rows"
        required = self.required(time_ms)
        assert required <= count <= self.sent, (
            f"{self.path}: {count} writes are there, {required} were acknowledged before the backup, {self.sent} sent"
        )
        self.sent = count
        self.acknowledged_ms = [0] * count


@dataclass
class Disaster:
    """One round: a server and those that replace it."""

    forks: ServerForks
    directory: Path
    seed: int

    def run(self, generations: int = 2) -> int:
        """Return how many writes were acknowledged."""
        rng = random.Random(self.seed)
        self.directory.mkdir(parents=True)
        remote = self.directory / "remote"
        files = OsFiles()
        store = RemoteStore(DirectoryObjects(remote, files), RemoteTraffic())
        ledgers = [Ledger(fluss.TablePath("fluss", f"log{number}"), has_keys=False) for number in range(2)]
        ledgers.append(Ledger(fluss.TablePath("fluss", "keyed"), has_keys=True))
        server = self._start(0, {"remote.data.dir": str(remote)})
        total = 0
        with _connected(server) as connection:
            for ledger in ledgers:
                ledger.create(connection)
        for generation in range(1, generations + 1):
            self._write_until_gone(server, ledgers, store, rng)
            total += sum(len(ledger.acknowledged_ms) for ledger in ledgers)
            shutil.rmtree(self.directory / f"data{generation - 1}")
            found = verify(store)
            assert not found.problems, f"seed {self.seed}: {found.problems}"
            server = self._restore(generation, remote, rng)
            time_ms = found.point.time_ms
            with _connected(server) as connection:
                for ledger in rng.sample(ledgers, len(ledgers)):
                    ledger.check(connection, time_ms)
        server.kill()
        # What was read is kept open otherwise, round for round.
        files.forget(remote)
        shutil.rmtree(self.directory)
        return total

    def _write_until_gone(
        self, server: ForkedServer, ledgers: list[Ledger], store: RemoteStore, rng: random.Random
    ) -> None:
        is_over = threading.Event()
        with _connected(server) as connection:
            threads = [threading.Thread(target=ledger.write, args=(connection, is_over)) for ledger in ledgers]
            counts = [len(ledger.acknowledged_ms) for ledger in ledgers]
            for thread in threads:
                thread.start()
            try:
                # The round is worth having: something of this server is in the backup, and of each writer.
                eventually(lambda: all(len(e.acknowledged_ms) > c for e, c in zip(ledgers, counts, strict=True)))
                now_ms = time.time_ns() // 1_000_000
                eventually(lambda: (point := newest_point(store)) is not None and point.time_ms > now_ms)
                time.sleep(rng.uniform(0, 0.8))
            finally:
                server.kill()
                is_over.set()
                for thread in threads:
                    thread.join()

    def _restore(self, generation: int, remote: Path, rng: random.Random) -> ForkedServer:
        options = {"backup.restore-from": str(remote)}
        for _ in range(rng.choice((0, 1, 3))):
            server = self._start(generation, options, is_awaited=False)
            time.sleep(rng.uniform(0, 0.3))
            server.kill()
        return self._start(generation, options)

    def _start(self, generation: int, options: dict[str, str], *, is_awaited: bool = True) -> ForkedServer:
        log_file = self.directory / f"server{generation}.log"
        data_dir = self.directory / f"data{generation}"
        server = self.forks.start(data_dir, {**OPTIONS, **options}, log_file=log_file)
        return server.wait_until_ready() if is_awaited else server


def _connected(server: ForkedServer) -> blocking.FlussConnection:
    # A writer whose server is gone gives up soon.
    options = {"bootstrap.servers": f"127.0.0.1:{server.port}", "writer.retries": 2, "writer.batch-timeout-ms": 0}
    return blocking.FlussConnection.create(fluss.Config(options))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    arguments = parser.parse_args()
    # That servers are gone is what is wanted here.
    logging.getLogger("fluss").setLevel(logging.CRITICAL)
    print(f"disasters from seed {arguments.seed}", flush=True)
    total = 0
    with ServerForks() as forks, tempfile.TemporaryDirectory(prefix="flussbett-disaster-") as directory:
        for number in range(arguments.rounds):
            seed = arguments.seed + number
            count = Disaster(forks, Path(directory) / f"seed-{seed}", seed).run()
            total += count
            print(f"round {number + 1:>3}, seed {seed}: ok, {count:,} writes acknowledged", flush=True)
    print(f"{arguments.rounds} servers were lost with their disks, twice each: nothing was lost that was backed up")
    return 0


if __name__ == "__main__":
    sys.exit(main())
