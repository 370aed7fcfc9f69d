"""``make chaos-tiering``: services that bring tables to the lake are killed, again and again; nothing is lost or twice.

A writer appends to a log table, and upserts and deletes in a table with a primary key, while services tier both:

| fault | what is killed |
|---|---|
| driver | a Spark application, with its JVM and all its workers, at any moment |
| worker | a Python process of an executor, while tasks run |
| step | a service without Spark, right after a step of its round that was chosen at random |
| moment | the same, at any moment |

Several services run at the same time, so they are also in each other's way. In the end a last round is run, and the
lake must have exactly what was written: each record once, each key with its last row; by a reader that knows nothing
of Fluss, and by the verification of the library.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, get_args

import psutil
import pyarrow as pa

from fluss import FlussTable
from fluss.testing.cluster import ServerProcess
from fluss.tiering.round_commit import Step
from fluss.tiering.rounds import tier
from fluss.tiering.verification import verify
from tests.spark.sessions import JAVA_OPTIONS, make_home
from tests.unit.tiering.lakes import LakeCluster, lake_table

KINDS: Final = {"driver": 1, "worker": 3, "step": 4, "moment": 4}
LOG, KEYED = "fluss.chaos_log", "fluss.chaos_keys"
KEYS: Final = 500
_ROWS_PER_WRITE: Final = 200
_PROGRAM: Final = "tests.spark.tiering_rounds"
# Longer than a start on a busy machine; ends what hangs, and nothing else.
_START_TIMEOUT_S: Final = 300.0


@dataclass
class TieringChaosReport:
    """What a run did, and what it found wrong."""

    kills: Counter[str] = field(default_factory=Counter)
    log_rows: int = 0
    key_changes: int = 0
    snapshots: int = 0
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.kills.items()))
        head = (
            f"{self.kills.total()} kills ({kills}); {self.log_rows:,} records and {self.key_changes:,} changes of keys "
            f"in {self.snapshots} snapshots: "
        )
        return head + ("all exact" if not self.findings else "\n  ".join(["WRONG", *self.findings]))


class _Writer:
    """Writes to both tables, and knows what must be in them. A context manager."""

    def __init__(self, cluster: LakeCluster, seed: int) -> None:
        self._cluster = cluster
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.log_rows = 0
        self.changes = 0
        self.rows: dict[int, int] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            ids = range(self.log_rows, self.log_rows + _ROWS_PER_WRITE)
            self._cluster.append(LOG, pa.table({"id": ids}))
            self.log_rows += _ROWS_PER_WRITE
            upserts = {self._rng.randrange(KEYS): self._rng.randrange(1 << 30) for _ in range(20)}
            deletes = {self._rng.randrange(KEYS) for _ in range(5)} - upserts.keys()
            rows = [{"id": key, "value": value} for key, value in upserts.items()]
            self._cluster.upsert(KEYED, rows, deletes=[{"id": key} for key in deletes])
            self.rows.update(upserts)
            for key in deletes:
                self.rows.pop(key, None)
            self.changes += len(upserts) + len(deletes)


class _Service:
    """A process that tiers, with all processes that it starts."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        # Those of Spark are in process groups of their own.
        self._children: set[int] = set()

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def workers(self) -> list[psutil.Process]:
        """Return the Python processes of executors."""
        return [each for each in self._descendants() if any("pyspark" in part for part in _command(each))]

    def _descendants(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            found = psutil.Process(self.process.pid).children(recursive=True)
            self._children |= {each.pid for each in found}
            return found
        return []

    def kill(self) -> None:
        for each in self._descendants():
            with suppress(psutil.Error):
                each.kill()
        self.process.kill()
        self.process.wait()


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def run(directory: Path, *, kill_count: int, seed: int, with_spark: bool = True) -> TieringChaosReport:
    """Let kills happen, and return what they did to the lake."""
    report = TieringChaosReport()
    options = ["durability=os", "datalake.format=iceberg", f"datalake.iceberg.warehouse={directory / 'warehouse'}"]
    arguments = [argument for option in options for argument in ("-D", option)]
    with (
        ServerProcess(directory / "data", *arguments) as server,
        LakeCluster(f"127.0.0.1:{server.port}") as cluster,
    ):
        fresh = {"table.datalake.freshness": "50 ms", "table.datalake.auto-compaction": "true"}
        log = cluster.create(LOG, pa.schema([("id", pa.int64())]), buckets=3, properties=fresh)
        columns = pa.schema([pa.field("id", pa.int32(), nullable=False), ("value", pa.int64())])
        keyed = cluster.create(KEYED, columns, primary_keys=["id"], buckets=2, properties=fresh)
        with _Writer(cluster, seed) as writer:
            _Chaos(directory, cluster.bootstrap_servers, random.Random(seed), report, with_spark).run(kill_count)
        report.log_rows, report.key_changes = writer.log_rows, writer.changes
        _check(report, log, keyed, writer)
    return report


class _Chaos:
    def __init__(
        self, directory: Path, servers: str, rng: random.Random, report: TieringChaosReport, with_spark: bool
    ) -> None:
        self._directory = directory
        self._servers = servers
        self._rng = rng
        self._report = report
        self._kinds = KINDS if with_spark else {kind: KINDS[kind] for kind in ("step", "moment")}
        self._environment: dict[str, str] = {}
        if with_spark:
            home = directory / "spark-home"
            home.mkdir()
            self._environment = {
                "SPARK_HOME": str(make_home(home)),
                "SPARK_SUBMIT_OPTS": JAVA_OPTIONS,
                "PYSPARK_PYTHON": sys.executable,
            }
        self._driver: _Service | None = None

    def run(self, kill_count: int) -> None:
        try:
            while self._report.kills.total() < kill_count:
                kind = self._rng.choices(list(self._kinds), list(self._kinds.values()))[0]
                getattr(self, f"_kill_{kind}")()
        finally:
            if self._driver is not None:
                self._driver.kill()

    def _spark_driver(self) -> _Service:
        if self._driver is None or not self._driver.is_alive:
            command = ["-m", "fluss.spark.tier", "--bootstrap-servers", self._servers, "--cores", "2"]
            command += ["--table", LOG, "--table", KEYED, "--poll-interval", "0.1", "--task-rows", "100"]
            self._driver = _Service(command, self._directory / "driver.log", self._environment)
        return self._driver

    def _kill_driver(self) -> None:
        driver = self._spark_driver()
        # Some are killed while they start, most while they work.
        self._await_workers(driver, self._rng.choice([self._rng.uniform(1, 10), *[_START_TIMEOUT_S] * 3]))
        time.sleep(self._rng.uniform(0, 3))
        driver.kill()
        self._driver = None
        self._report.kills["driver"] += 1

    def _kill_worker(self) -> None:
        driver = self._spark_driver()
        workers = self._await_workers(driver, _START_TIMEOUT_S)
        if not workers:
            return
        time.sleep(self._rng.uniform(0, 1))
        with suppress(psutil.Error):
            self._rng.choice(workers).kill()
            self._report.kills["worker"] += 1

    def _await_workers(self, driver: _Service, timeout_s: float) -> list[psutil.Process]:
        deadline_s = time.monotonic() + timeout_s
        while not (workers := driver.workers()) and time.monotonic() < deadline_s and driver.is_alive:
            time.sleep(0.1)
        return workers

    def _kill_step(self) -> None:
        step = self._rng.choice(get_args(Step))
        service = self._plain("--die-after", step, "--rounds-before", str(self._rng.randrange(3)))
        with suppress(subprocess.TimeoutExpired):
            service.process.wait(timeout=_START_TIMEOUT_S)
        service.kill()
        self._report.kills["step"] += 1

    def _kill_moment(self) -> None:
        service = self._plain()
        time.sleep(self._rng.uniform(0.5, 6))
        service.kill()
        self._report.kills["moment"] += 1

    def _plain(self, *arguments: str) -> _Service:
        command = ["-m", _PROGRAM, self._servers, LOG, KEYED, *arguments]
        return _Service(command, self._directory / "rounds.log", {})


def _check(report: TieringChaosReport, log: FlussTable, keyed: FlussTable, writer: _Writer) -> None:
    for table in (log, keyed):
        # What a service was killed over is taken over, and then the rest is tiered.
        while not tier(table).is_complete:
            pass
        report.snapshots += len(lake_table(table).metadata.snapshots)
        report.findings += verify(table).problems
    found = Counter(lake_table(log).scan().to_arrow()["id"].to_pylist())
    twice = [number for number, count in found.items() if count > 1]
    missing = writer.log_rows - len(found)
    if twice or missing:
        report.findings.append(f"{len(twice)} records are there twice, {missing} are missing")
    rows = lake_table(keyed).scan().to_arrow()
    values: list[tuple[Any, Any]] = list(zip(rows["id"].to_pylist(), rows["value"].to_pylist(), strict=True))
    if len(values) != len(writer.rows) or dict(values) != writer.rows:
        wrong = set(dict(values).items()) ^ set(writer.rows.items())
        report.findings.append(f"{len(values)} rows for {len(writer.rows)} keys, {len(wrong)} of them wrong")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None, help="repeats the same choices")
    parser.add_argument("--without-spark", action="store_true", help="only services that run their tasks themselves")
    given = parser.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        report = run(Path(directory), kill_count=given.kills, seed=seed, with_spark=not given.without_spark)
        print(report)
        for name in ("driver.log", "rounds.log") if report.findings else ():
            log = Path(directory, name)
            if log.exists():
                print(f"--- {name}\n{log.read_text(errors='replace')[-20_000:]}")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
