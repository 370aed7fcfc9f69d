"""``make chaos-spark``: streams that write exactly once while drivers, workers and their server are killed.

A writer appends numbers to a table. Five streams of one driver take them into tables of five kinds (chaos_driver):
rows that are appended, upserted, deleted, updated in part, and added up, where a row that is written twice counts
twice. Meanwhile faults from a seed befall the driver, its Python workers, the server and the way to it. At the end the
whole content of every table must be what follows from the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import numpy as np
import psutil
import pyarrow as pa

from fluss import blocking
from fluss.errors import FlussError
from fluss.testing.forked_servers import ServerForks
from fluss.testing.waiting import eventually
from tests.chaos.machine import Disk, Fault, Machine
from tests.spark.chaos_driver import (
    GROUPS,
    KEYS,
    SOURCE,
    STREAMS,
    checkpoint,
    restarts,
    target,
    tell_to_finish,
)
from tests.spark.sessions import JAVA_OPTIONS, make_home

KILL_DRIVER, KILL_WORKER = "kill-driver", "kill-worker"
# With their weights: a driver takes long to start, and of what happens to a server there are several kinds.
KILLS: Final[Mapping[str, int]] = {
    KILL_DRIVER: 2,
    KILL_WORKER: 4,
    Fault.KILL: 2,
    Fault.KILL_IN_RECOVERY: 1,
    Fault.POWER: 1,
}
OTHERS: Final[Mapping[str, int]] = {
    Fault.STOP: 1,
    Fault.PAUSE: 1,
    Fault.NETWORK_CUT: 1,
    Fault.NETWORK_STALL: 1,
    Fault.NETWORK_REFUSAL: 1,
}
_ROWS_PER_WRITE: Final = 200
# A value of the column that partial updates leave alone.
_UNTOUCHED: Final = -1
# A micro-batch on a busy machine, with a start of Python and all retries; ends what hangs, and nothing else.
_BATCH_TIMEOUT_S: Final = 900.0


@dataclass
class StreamReport:
    """What a run did, and what it found wrong."""

    row_count: int = 0
    fault_counts: Counter[str] = field(default_factory=Counter)
    # Queries that gave up and were started again from their checkpoints, and drivers that ended, with what they said.
    restarts: list[str] = field(default_factory=list)
    # Micro-batches of all streams.
    batch_count: int = 0
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def kill_count(self) -> int:
        return sum(count for fault, count in self.fault_counts.items() if fault in KILLS)


class Feeder(threading.Thread):
    """Appends numbers until it is told to stop; no write of it may fail."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(daemon=True, name="feeder")
        self._config = blocking.Config({"bootstrap.servers": bootstrap_servers, "request-timeout": 120_000})
        self._is_stopping = threading.Event()
        self._failure: BaseException | None = None
        self.count = 0

    def run(self) -> None:
        try:
            with blocking.FlussConnection.create(self._config) as connection:
                writer = connection.get_table(_path(SOURCE)).new_append().create_writer()
                while not self._is_stopping.is_set():
                    numbers = np.arange(self.count, self.count + _ROWS_PER_WRITE)
                    rows = {"n": numbers, "g": numbers % GROUPS}
                    writer.write_arrow_batch(pa.record_batch(rows)).wait()
                    self.count += _ROWS_PER_WRITE
                    self._is_stopping.wait(0.1)
        except FlussError as error:
            self._failure = error

    def stop(self) -> int:
        self._is_stopping.set()
        self.join()
        if self._failure is not None:
            raise self._failure
        return self.count


class Driver:
    """The process with the five streams. A context manager; one that has ended is started again."""

    def __init__(self, bootstrap_servers: str, directory: Path, report: StreamReport) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._directory = directory
        self._report = report
        self._log = directory / "driver.log"
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-m", "tests.spark.chaos_driver", self._bootstrap_servers, str(self._directory)]
        with self._log.open("ab") as log:
            return subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._process.poll() is None:
            # With the JVM; Python workers notice that it is gone, and may write until then.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill(self) -> None:
        # Spark does not start again from a checkpoint in which it was killed while it began with the first micro-batch.
        self._wait_for_commits(dict.fromkeys(STREAMS, 0))
        self._end()
        self._process = self._start()

    def kill_worker(self, rng: random.Random) -> None:
        """Kill one of the processes in which sources, sinks and tasks run Python."""
        workers = eventually(self._workers, "a worker", timeout_s=_BATCH_TIMEOUT_S)
        with suppress(psutil.NoSuchProcess):
            rng.choice(workers).kill()

    def _workers(self) -> list[psutil.Process]:
        self.revive()
        found = []
        for child in psutil.Process(self._process.pid).children(recursive=True):
            # Processes end while they are looked at.
            with suppress(psutil.Error):
                if "pyspark.daemon" in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
        return found

    def revive(self) -> None:
        """Start the driver again if it has ended by itself."""
        if self._process.poll() is not None:
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            self._report.restarts.append(f"the driver ended with {self._process.returncode}: {last}")
            self._process = self._start()

    def commits(self) -> dict[str, int]:
        """Return how many micro-batches of each stream Spark has noted as done."""
        counts = {}
        for name in STREAMS:
            directory = checkpoint(self._directory, name) / "commits"
            numbers = [int(path.name) for path in directory.glob("[0-9]*")] if directory.exists() else []
            counts[name] = max(numbers, default=-1) + 1
        return counts

    def wait_for_rows(self) -> None:
        """Wait until each stream has written rows since this was called, whatever it takes."""
        self._wait_for_commits(self.commits())

    def _wait_for_commits(self, before: Mapping[str, int]) -> None:
        def have_come() -> bool:
            self.revive()
            time.sleep(0.1)
            return all(count > before[name] for name, count in self.commits().items())

        eventually(have_come, "the next micro-batch", timeout_s=_BATCH_TIMEOUT_S)

    def finish(self) -> None:
        """Wait until everything that was written has arrived."""
        tell_to_finish(self._directory)

        def has_finished() -> bool:
            if self._process.poll() == 0:
                return True
            self.revive()
            time.sleep(0.1)
            return False

        eventually(has_finished, "the end of the streams", timeout_s=_BATCH_TIMEOUT_S)


def run(
    directory: Path, *, fault_count: int, seed: int, quiet_s: float, faults: Mapping[str, int] | None = None
) -> StreamReport:
    """Let faults happen to running streams, and compare what they wrote with what they were given."""
    report, rng, began_s = StreamReport(), random.Random(seed), time.monotonic()
    weights = {**KILLS, **OTHERS} if faults is None else faults
    chosen = rng.choices(list(weights), list(weights.values()), k=fault_count)
    with (
        ServerForks() as forks,
        Machine(directory / "server", forks, rng, disk=Disk.LOSING, has_proxy=True, options={}) as machine,
    ):
        _create_tables(machine.bootstrap_servers)
        feeder = Feeder(machine.bootstrap_servers)
        feeder.start()
        with Driver(machine.bootstrap_servers, directory, report) as driver:
            for number, fault in enumerate(chosen):
                # Some faults come in quick succession, and the others when the streams are at work again.
                if number % 3 == 0:
                    driver.wait_for_rows()
                time.sleep(rng.uniform(0, 2 * quiet_s))
                if fault == KILL_DRIVER:
                    driver.kill()
                elif fault == KILL_WORKER:
                    driver.kill_worker(rng)
                else:
                    asyncio.run(machine.suffer(Fault(fault)))
                report.fault_counts[str(fault)] += 1
                print(f"{number + 1:>4} {fault}, {feeder.count:,} rows in", flush=True)
            report.row_count = feeder.stop()
            driver.finish()
            report.batch_count = sum(driver.commits().values())
        report.restarts += restarts(directory)
        report.findings = _differences(machine.bootstrap_servers, report.row_count)
    report.seconds = time.monotonic() - began_s
    return report


def _path(name: str) -> blocking.TablePath:
    return blocking.TablePath(*name.split("."))


def _create_tables(bootstrap_servers: str) -> None:
    bigint, properties = blocking.DataTypes.bigint(), {"table.merge-engine": "aggregation"}

    def schema(*columns: str, key: str | None = None, aggregation: str | None = None) -> blocking.Schema:
        builder = blocking.Schema.builder()
        for name in columns:
            builder = builder.column(name, bigint, aggregation=None if name == key else aggregation)
        return (builder if key is None else builder.primary_key([key])).build()

    descriptors = {
        SOURCE: blocking.TableDescriptor(schema("n", "g"), bucket_count=2, bucket_keys=["g"]),
        target("append"): blocking.TableDescriptor(schema("n"), bucket_count=2),
        target("upsert"): blocking.TableDescriptor(schema("k", "n", key="k"), bucket_count=2),
        target("delete"): blocking.TableDescriptor(schema("k", "n", key="k"), bucket_count=2),
        target("partial"): blocking.TableDescriptor(schema("k", "n", "rest", key="k"), bucket_count=2),
        target("aggregation"): blocking.TableDescriptor(
            schema("g", "total", "amount", key="g", aggregation="sum"), bucket_count=2, properties=properties
        ),
    }
    with blocking.FlussConnection.create(blocking.Config({"bootstrap.servers": bootstrap_servers})) as connection:
        connection.get_admin().create_database(SOURCE.partition(".")[0])
        for name, descriptor in descriptors.items():
            connection.get_admin().create_table(_path(name), descriptor)
        keys = np.arange(KEYS)
        rows = {"k": keys, "n": np.full(KEYS, _UNTOUCHED), "rest": keys * 10}
        with connection.get_table(_path(target("partial"))).new_upsert().create_writer() as writer:
            writer.upsert_arrow(pa.table(rows))


def _differences(bootstrap_servers: str, count: int) -> list[str]:
    """Return what tables have that does not follow from the numbers, one sentence each."""
    last = {key: count - 1 - (count - 1 - key) % KEYS for key in range(min(KEYS, count))}
    groups = {group: range(group, count, GROUPS) for group in range(min(GROUPS, count))}
    expected: dict[str, Iterable[tuple[int | None, ...]]] = {
        SOURCE: [(number, number % GROUPS) for number in range(count)],
        target("append"): [(number,) for number in range(count)],
        target("upsert"): last.items(),
        target("delete"): [(key, number) for key, number in last.items() if number // KEYS % 2 == 0],
        target("partial"): [(key, last.get(key, _UNTOUCHED), key * 10) for key in range(KEYS)],
        target("aggregation"): [(group, sum(numbers), len(numbers)) for group, numbers in groups.items()],
    }
    findings = []
    with blocking.FlussConnection.create(blocking.Config({"bootstrap.servers": bootstrap_servers})) as connection:
        for name, rows in expected.items():
            columns = connection.get_table(_path(name)).to_arrow().columns
            wanted, found = Counter(rows), Counter(zip(*(column.to_pylist() for column in columns), strict=True))
            missing, surplus = wanted - found, found - wanted
            if missing or surplus:
                findings.append(
                    f"{name}: {missing.total()} rows are missing, such as {list(missing)[:5]}, and {surplus.total()} "
                    f"are there that should not be, such as {list(surplus)[:5]}"
                )
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.chaos_streams", description=__doc__)
    parser.add_argument("--faults", type=int, default=50, help="how many (default 50)")
    parser.add_argument("--kills", action="store_true", help="kills only: no networks that are cut, no pauses")
    parser.add_argument("--seed", type=int, default=None, help="repeat the faults of an earlier run")
    parser.add_argument("--quiet-ms", type=float, default=1000, help="time before a fault, on average (default 1000)")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"{options.faults} faults, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="flussbett-chaos-spark-") as temporary:
        directory = Path(temporary)
        (directory / "home").mkdir()
        os.environ["SPARK_HOME"] = str(make_home(directory / "home"))
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LAUNCHER_OPTS"] = os.environ["SPARK_SUBMIT_OPTS"] = JAVA_OPTIONS
        report = run(
            directory,
            fault_count=options.faults,
            seed=seed,
            quiet_s=options.quiet_ms / 1000,
            faults=KILLS if options.kills else None,
        )
    print(
        f"{report.row_count:,} rows through {report.fault_counts.total()} faults, {report.kill_count} of them kills, "
        f"and {report.batch_count} micro-batches in {report.seconds:.0f} s; queries started again "
        f"{len(report.restarts)} times"
    )
    print("faults: " + ", ".join(f"{fault} {count}" for fault, count in sorted(report.fault_counts.items())))
    for line in (*report.restarts, *report.findings):
        print(line)
    print(f"FAILED: repeat with SEED={seed}" if report.findings else "every table has exactly what it should")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
