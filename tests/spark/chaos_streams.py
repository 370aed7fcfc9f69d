"""``make chaos-spark``: streams that write exactly once while their server is killed and its network is bad.

A writer appends numbers to a table. One stream copies them into another log table; a second one adds them up in a table
whose rows are sums, where a row that is written twice counts twice. Meanwhile faults from a seed befall the server and
the way to it. At the end every number must be there once, and every sum must be exact.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from fluss import blocking
from fluss.errors import FlussError
from fluss.spark import FlussSpark
from fluss.testing.forked_servers import ServerForks
from fluss.testing.waiting import eventually
from tests.chaos.machine import Disk, Fault, Machine
from tests.spark.sessions import SparkSessions, make_home

FAULTS: Final = (
    Fault.KILL,
    Fault.KILL_IN_RECOVERY,
    Fault.POWER,
    Fault.STOP,
    Fault.PAUSE,
    Fault.NETWORK_CUT,
    Fault.NETWORK_STALL,
    Fault.NETWORK_REFUSAL,
)
_SOURCE, _COPY, _SUMS = "chaos.numbers", "chaos.copies", "chaos.sums"
_GROUPS: Final = 50
_ROWS_PER_WRITE: Final = 200
# A micro-batch on a busy machine, with a start of Python and all retries; ends what hangs, and nothing else.
_BATCH_TIMEOUT_S: Final = 900.0


@dataclass
class StreamReport:
    """What a run did, and what it found wrong."""

    row_count: int = 0
    fault_counts: dict[str, int] = field(default_factory=dict)
    # Queries that gave up and were started again from their checkpoints, with what they said.
    restarts: list[str] = field(default_factory=list)
    # Micro-batches in which rows were written, while faults happened.
    batch_count: int = 0
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0


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
                writer = connection.get_table(_path(_SOURCE)).new_append().create_writer()
                while not self._is_stopping.is_set():
                    numbers = np.arange(self.count, self.count + _ROWS_PER_WRITE)
                    writer.write_arrow_batch(pa.record_batch({"n": numbers})).wait()
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


class Streams:
    """The two queries, which are started again when they have failed."""

    def __init__(self, fs: FlussSpark, checkpoints: Path, report: StreamReport) -> None:
        self._fs = fs
        self._checkpoints = checkpoints
        self._report = report
        self._starts: dict[str, Callable[[], StreamingQuery]] = {"copy": self._start_copy, "sums": self._start_sums}
        self._queries = {name: start() for name, start in self._starts.items()}

    def _start_copy(self) -> StreamingQuery:
        return self._fs.write_stream(
            self._fs.read_stream(_SOURCE), _COPY, checkpoint=str(self._checkpoints / "copy"), trigger="500 milliseconds"
        )

    def _start_sums(self) -> StreamingQuery:
        rows = self._fs.read_stream(_SOURCE)
        summands = rows.select((f.col("n") % _GROUPS).alias("g"), f.col("n").alias("total"), f.lit(1).alias("amount"))
        summands = summands.withColumn("amount", f.col("amount").cast("bigint"))
        return self._fs.write_stream(
            summands, _SUMS, checkpoint=str(self._checkpoints / "sums"), trigger="500 milliseconds"
        )

    def revive(self) -> None:
        """Start again what has failed, from where it was."""
        for name, query in self._queries.items():
            if not query.isActive:
                self._report.restarts.append(f"{name}: {str(query.exception())[:300]}")
                self._queries[name] = self._starts[name]()

    def wait_for_rows(self) -> None:
        """Wait until each query has written rows since this was called, whatever it takes."""
        before = self._rows_written()
        eventually(lambda: self._have_written_since(before), "the next micro-batch", timeout_s=_BATCH_TIMEOUT_S)

    def _have_written_since(self, before: dict[str, tuple[str, int]]) -> bool:
        self.revive()
        time.sleep(0.1)
        return all(now != before[name] for name, now in self._rows_written().items())

    def _rows_written(self) -> dict[str, tuple[str, int]]:
        """Return for each query the run and the last micro-batch of it that had rows."""
        written = {}
        for name, query in self._queries.items():
            batches = [progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]]
            written[name] = (str(query.runId) if batches else "", max(batches, default=-1))
        return written

    def finish(self) -> None:
        """Wait until everything that was written has arrived."""
        for name, start in self._starts.items():
            while True:
                try:
                    self._queries[name].processAllAvailable()
                    break
                except Exception as error:
                    self._report.restarts.append(f"{name}: {str(error)[:300]}")
                    self._queries[name] = start()
            progress = self._queries[name].lastProgress
            self._report.batch_count += 0 if progress is None else int(progress["batchId"]) + 1
            self._queries[name].stop()


def run(spark: SparkSession, directory: Path, *, fault_count: int, seed: int, quiet_s: float) -> StreamReport:
    """Let faults happen to running streams, and compare what they wrote with what they were given."""
    report, rng, began_s = StreamReport(), random.Random(seed), time.monotonic()
    with (
        ServerForks() as forks,
        Machine(directory / "server", forks, rng, disk=Disk.LOSING, has_proxy=True, options={}) as machine,
    ):
        fs = FlussSpark(spark, bootstrap_servers=machine.bootstrap_servers)
        fs.sql("CREATE DATABASE fluss.chaos")
        for name in (_SOURCE, _COPY):
            fs.sql(f"CREATE TABLE fluss.{name} (n BIGINT) TBLPROPERTIES ('bucket.num' = '2')")
        _create_sums(machine.bootstrap_servers)
        streams = Streams(fs, directory / "checkpoints", report)
        feeder = Feeder(machine.bootstrap_servers)
        feeder.start()
        for number in range(fault_count):
            # Some faults come in quick succession, and the others when the streams are at work again.
            if number % 3 == 0:
                streams.wait_for_rows()
            time.sleep(rng.uniform(0, 2 * quiet_s))
            fault = rng.choice(FAULTS)
            asyncio.run(machine.suffer(fault))
            streams.revive()
            print(f"{number + 1:>4} {fault}, {feeder.count:,} rows in", flush=True)
        report.row_count = feeder.stop()
        streams.finish()
        report.fault_counts = {str(fault): count for fault, count in sorted(machine.counts.items())}
        report.findings = _differences(machine.bootstrap_servers, report.row_count)
    report.seconds = time.monotonic() - began_s
    return report


def _path(name: str) -> blocking.TablePath:
    return blocking.TablePath(*name.split("."))


def _create_sums(bootstrap_servers: str) -> None:
    types = blocking.DataTypes
    builder = blocking.Schema.builder().column("g", types.bigint()).primary_key(["g"])
    for name in ("total", "amount"):
        builder = builder.column(name, types.bigint(), aggregation="sum")
    descriptor = blocking.TableDescriptor(
        builder.build(), bucket_count=2, properties={"table.merge-engine": "aggregation"}
    )
    with blocking.FlussConnection.create(blocking.Config({"bootstrap.servers": bootstrap_servers})) as connection:
        connection.get_admin().create_table(_path(_SUMS), descriptor)


def _differences(bootstrap_servers: str, count: int) -> list[str]:
    """Return what is not exactly once, one sentence each."""
    findings = []
    with blocking.FlussConnection.create(blocking.Config({"bootstrap.servers": bootstrap_servers})) as connection:
        for name in (_SOURCE, _COPY):
            numbers = connection.get_table(_path(name)).to_arrow()["n"].to_numpy()
            times = np.bincount(numbers, minlength=count)
            lost, doubled = np.flatnonzero(times == 0), np.flatnonzero(times > 1)
            if lost.size or doubled.size or times.size != count:
                findings.append(
                    f"{name}: {lost.size} rows are missing, such as {lost[:5]}, {doubled.size} are there more than "
                    f"once, such as {doubled[:5]}, and {times.size - count} were never written"
                )
        rows = connection.get_table(_path(_SUMS)).to_arrow().to_pylist()
    found = {row["g"]: (row["total"], row["amount"]) for row in rows}
    for group in range(_GROUPS):
        numbers_of_group = range(group, count, _GROUPS)
        expected = sum(numbers_of_group), len(numbers_of_group)
        if found.get(group) != expected:
            findings.append(f"{_SUMS}: the sum and number of group {group} should be {expected}: {found.get(group)}")
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.chaos_streams", description=__doc__)
    parser.add_argument("--faults", type=int, default=50, help="how many (default 50)")
    parser.add_argument("--seed", type=int, default=None, help="repeat the faults of an earlier run")
    parser.add_argument("--quiet-ms", type=float, default=1000, help="time before a fault, on average (default 1000)")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"{options.faults} faults, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="flussbett-chaos-spark-") as temporary:
        directory = Path(temporary)
        (directory / "home").mkdir()
        os.environ["SPARK_HOME"] = str(make_home(directory / "home"))
        sessions = SparkSessions(directory / "warehouse")
        try:
            report = run(
                sessions.get(), directory, fault_count=options.faults, seed=seed, quiet_s=options.quiet_ms / 1000
            )
        finally:
            sessions.discard()
    print(
        f"{report.row_count:,} rows through {sum(report.fault_counts.values())} faults and {report.batch_count} "
        f"micro-batches in {report.seconds:.0f} s; queries started again {len(report.restarts)} times"
    )
    print("faults: " + ", ".join(f"{fault} {count}" for fault, count in report.fault_counts.items()))
    for line in (*report.restarts, *report.findings):
        print(line)
    print(f"FAILED: repeat with SEED={seed}" if report.findings else "every row is there once, and every sum is exact")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
