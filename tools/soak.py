"""Let a server do everything at once for minutes, and say whether what it holds stays flat: `make soak MINUTES=10`.

The server is a process of its own. Against it run, all the time: appends, upserts, lookups, scans of whole tables,
tables that are created, filled and dropped, partitions that come and go, and clients that connect and leave. In the
first part of the run, the warm-up, it is also stopped, killed and started. Then one life of it is measured: resident
memory, descriptors, threads, bytes on the disk. At last it is killed and started once more, and every table that is
left must have what was acknowledged.

How flat is judged: work goes up and down, so what counts is the lower envelope. The measured time is cut into slices,
the smallest value of each is kept, and a line is laid through them. What that line gains from the first to the last
slice must stay below the bound of the row, which is a share of the value or an absolute size, whichever is more.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pyarrow as pa

import fluss
from fluss import blocking
from fluss.errors import ErrorCode, FlussError
from fluss.testing.cluster import ServerProcess

MIB: Final = 1024 * 1024
# Parts of the run that are not measured: first restarts, then caches and pools that fill up.
RESTARTS_SHARE: Final = 0.1
WARM_UP_SHARE: Final = 0.4
SLICES: Final = 12
SAMPLE_INTERVAL_S: Final = 0.5
KEYS: Final = 20_000
ROWS: Final = 500
EVENT_BUCKETS: Final = 4
# Old rows expire, so that the disk can be flat while rows come in.
TTL: Final = "20 s"
SERVER_OPTIONS: Final = (
    *("log.segment.file-size=2mb", "log.retention.check-interval=3s"),
    *("log.retention.roll-active-segment.enabled=true", "kv.snapshot.interval=10s"),
    *("kv.rocksdb.block.cache-size=16mb", "kv.rocksdb.writebuffer.total-size=16mb"),
)
EVENTS: Final = fluss.TablePath("fluss", "events")
VISITS: Final = fluss.TablePath("fluss", "visits")
USERS: Final = fluss.TablePath("fluss", "users")
ROW: Final = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
VISIT: Final = pa.schema([*ROW, pa.field("day", pa.string(), nullable=False)])


@dataclass(frozen=True, slots=True)
class Bound:
    """How much the lower envelope of a row may grow."""

    name: str
    unit: str
    scale: float
    share: float
    absolute: float

    def allowed(self, value: float) -> float:
        return max(self.share * value, self.absolute)


BOUNDS: Final = (
    Bound("memory", "MB", 1 / 1e6, 0.05, 8e6),
    Bound("descriptors", "", 1, 0.05, 8),
    Bound("threads", "", 1, 0.0, 2),
    Bound("disk", "MB", 1 / 1e6, 0.10, 16e6),
)


@dataclass(slots=True)
class Samples:
    """What the server held, over time."""

    times_s: list[float] = field(default_factory=list)
    rows: dict[str, list[float]] = field(default_factory=lambda: {bound.name: [] for bound in BOUNDS})

    def take(self, process: psutil.Process, data_dir: Path) -> None:
        with process.oneshot():
            values = process.memory_info().rss, process.num_fds(), process.num_threads(), disk_bytes(data_dir)
        self.times_s.append(time.monotonic())
        for bound, value in zip(BOUNDS, values, strict=True):
            self.rows[bound.name].append(float(value))


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of the table at the end."""

    bound: Bound
    first: float
    last: float
    peak: float
    growth: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.bound.allowed(self.first)


def judge(bound: Bound, times_s: Sequence[float], values: Sequence[float], slices: int = SLICES) -> Verdict:
    """Lay a line through the smallest values of slices of time, and say how much it gains."""
    times, samples = np.asarray(times_s), np.asarray(values)
    edges = np.linspace(times[0], times[-1], slices + 1)
    numbers = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, slices - 1)
    found = [number for number in range(slices) if (numbers == number).any()]
    minima = np.array([samples[numbers == number].min() for number in found])
    slope, start = np.polyfit(np.array(found, dtype=float), minima, 1) if len(found) > 1 else (0.0, minima[0])
    return Verdict(
        bound, float(start), float(start + slope * found[-1]), float(samples.max()), float(slope * found[-1])
    )


def disk_bytes(directory: Path) -> int:
    """Return what the files below a directory take; those that vanish meanwhile do not count."""
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
            except OSError:
                continue
    return total


class Work:
    """The clients: each kind of work in a thread, over and over, until it is told to stop.

    A server that is away is no failure: work that does not wait for it by itself goes on when it is back.
    """

    def __init__(self, config: fluss.Config, seed: int) -> None:
        self._config = config
        self._seed = seed
        self._is_stopped = threading.Event()
        # Set while the server is meant to be there: only then is its absence a failure.
        self.is_serving = threading.Event()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        # The newest acknowledged text of each key, written by one thread.
        self.users: dict[int, str] = {}
        self._threads = [
            threading.Thread(target=self._repeat, args=(job,), name=job.__name__)
            for job in (self.append, self.upsert, self.look_up, self.scan, self.churn_tables, self.churn_partitions)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, job: Callable[[blocking.FlussConnection, random.Random, int], None]) -> None:
        rng = random.Random(f"{self._seed} {job.__name__}")
        number = 0
        while not self._is_stopped.is_set():
            try:
                with blocking.FlussConnection.create(self._config) as connection:
                    # Now and then a client leaves, and another one comes.
                    for _ in range(50):
                        if self._is_stopped.is_set():
                            return
                        job(connection, rng, number)
                        number += 1
                        self.counts[job.__name__] += 1
            except FlussError as error:
                if not error.is_retriable and error.error_code not in _PASSING_CODES:
                    self.failures.append(f"{job.__name__}: {error}")
                    return
                time.sleep(0.1)

    def append(self, connection: blocking.FlussConnection, rng: random.Random, number: int) -> None:
        writer = connection.get_table(EVENTS).new_append().create_writer()
        writer.write_arrow(pa.table({"id": range(ROWS), "text": texts(rng, ROWS)}, schema=ROW))
        writer.flush()
        time.sleep(0.05)

    def upsert(self, connection: blocking.FlussConnection, rng: random.Random, number: int) -> None:
        keys = [rng.randrange(KEYS) for _ in range(ROWS)]
        rows = dict(zip(keys, texts(rng, ROWS), strict=True))
        writer = connection.get_table(USERS).new_upsert().create_writer()
        writer.upsert_arrow(pa.table({"id": list(rows), "text": list(rows.values())}, schema=ROW))
        writer.flush()
        self.users.update(rows)
        time.sleep(0.05)

    def look_up(self, connection: blocking.FlussConnection, rng: random.Random, number: int) -> None:
        lookuper = connection.get_table(USERS).new_lookup().create_lookuper()
        for _ in range(50):
            lookuper.lookup([rng.randrange(KEYS)])

    def scan(self, connection: blocking.FlussConnection, rng: random.Random, number: int) -> None:
        if number % 2:
            connection.get_table(USERS).new_scan().to_arrow()
        else:
            with connection.get_table(EVENTS).new_scan().create_record_batch_log_scanner() as scanner:
                scanner.subscribe_buckets(dict.fromkeys(range(EVENT_BUCKETS), fluss.LATEST_OFFSET))
                for _ in range(20):
                    scanner.poll_arrow(100)
        time.sleep(0.1)

    def churn_tables(self, connection: blocking.FlussConnection, rng: random.Random, number: int) -> None:
        admin = connection.get_admin()
        path = fluss.TablePath("fluss", f"passing_{number % 3}")
        admin.drop_table(path, ignore_if_not_exists=True)
        has_key = bool(number % 2)
        create_table(admin, path, fluss.Schema(ROW, primary_keys=["id"] if has_key else None), bucket_count=8)
        table = connection.get_table(path)
        rows = pa.table({"id": range(ROWS), "text": texts(rng, ROWS)}, schema=ROW)
        if has_key:
            upserts = table.new_upsert().create_writer()
            upserts.upsert_arrow(rows)
            upserts.flush()
        else:
            appends = table.new_append().create_writer()
            appends.write_arrow(rows)
            appends.flush()
        found = table.new_scan().to_arrow().num_rows
        if found != ROWS:
            self.failures.append(f"churn_tables: {path} has {found} rows of {ROWS}")
        admin.drop_table(path)

    def churn_partitions(self, connection: blocking.FlussConnection, rng: random.Random, number: int) -> None:
        admin = connection.get_admin()
        day = f"d{number % 5}"
        admin.create_partition(VISITS, {"day": day}, ignore_if_exists=True)
        writer = connection.get_table(VISITS).new_append().create_writer()
        writer.write_arrow(pa.table({"id": range(ROWS), "text": texts(rng, ROWS), "day": [day] * ROWS}, schema=VISIT))
        writer.flush()
        admin.drop_partition(VISITS, {"day": f"d{(number + 2) % 5}"}, ignore_if_not_exists=True)


# A table or partition that another client has dropped, or not yet created.
_PASSING_CODES: Final = frozenset(
    {
        ErrorCode.TABLE_NOT_EXIST,
        ErrorCode.TABLE_ALREADY_EXIST,
        ErrorCode.PARTITION_NOT_EXISTS,
        ErrorCode.PARTITION_ALREADY_EXISTS,
        ErrorCode.SCANNER_EXPIRED,
        ErrorCode.UNKNOWN_SCANNER_ID,
    }
)


def texts(rng: random.Random, count: int) -> list[str]:
    """Return texts that are all different, so that nothing is small by luck."""
    return [f"{rng.getrandbits(256):064x}" for _ in range(count)]


def create_table(admin: Any, path: fluss.TablePath, schema: fluss.Schema, **descriptor: Any) -> None:
    properties = {"table.log.ttl": TTL}
    admin.create_table(path, fluss.TableDescriptor(schema, properties=properties, **descriptor), ignore_if_exists=True)


def create_tables(config: fluss.Config) -> None:
    with blocking.FlussConnection.create(config) as connection:
        admin = connection.get_admin()
        create_table(admin, EVENTS, fluss.Schema(ROW), bucket_count=EVENT_BUCKETS)
        create_table(admin, USERS, fluss.Schema(ROW, primary_keys=["id"]), bucket_count=4)
        create_table(admin, VISITS, fluss.Schema(VISIT), bucket_count=2, partition_keys=["day"])


def lost_rows(config: fluss.Config, users: dict[int, str]) -> int:
    """Count acknowledged rows that are not there, or are others."""
    with blocking.FlussConnection.create(config) as connection:
        found = connection.get_table(USERS).new_scan().to_arrow().to_pydict()
    rows = dict(zip(found["id"], found["text"], strict=True))
    return sum(rows.get(key) != text for key, text in users.items())


def measure(server: ServerProcess, work: Work, until_s: float, *, says_every_s: float = 60.0) -> Samples:
    samples, said_s = Samples(), time.monotonic()
    process = psutil.Process(server.process_id)
    while time.monotonic() < until_s and not work.failures:
        samples.take(process, server.data_dir)
        if time.monotonic() - said_s >= says_every_s:
            said_s = time.monotonic()
            values = ", ".join(f"{b.name} {samples.rows[b.name][-1] * b.scale:.0f} {b.unit}".strip() for b in BOUNDS)
            print(f"  {(until_s - said_s) / 60:.1f} minutes left: {values}", flush=True)
        time.sleep(SAMPLE_INTERVAL_S)
    return samples


def restart_for(server: ServerProcess, work: Work, until_s: float) -> int:
    """Stop and kill the server in turns, and start it again; return how often."""
    count = 0
    while time.monotonic() < until_s or not count:
        time.sleep(2.0)
        server.stop() if count % 2 else server.kill()
        server.start()
        count += 1
    return count


def soak(minutes: float, directory: Path, seed: int) -> bool:
    began_s = time.monotonic()
    run_s = minutes * 60
    options = [part for option in SERVER_OPTIONS for part in ("-D", option)]
    with ServerProcess(directory / "data", *options) as server:
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers})
        create_tables(config)
        work = Work(config, seed)
        work.start()
        try:
            restarts = restart_for(server, work, began_s + run_s * RESTARTS_SHARE)
            print(
                f"soak: {restarts} restarts, then {minutes * (1 - RESTARTS_SHARE):.1f} minutes of one life", flush=True
            )
            life = measure(server, work, began_s + run_s)
        finally:
            work.stop()
        server.kill()
        server.start()
        lost = lost_rows(config, work.users)
    return report(life, work, lost, began_s + run_s * WARM_UP_SHARE)


def report(life: Samples, work: Work, lost: int, measured_from_s: float) -> bool:
    measured = [index for index, time_s in enumerate(life.times_s) if time_s >= measured_from_s]
    times_s = [life.times_s[index] for index in measured]
    print(f"work done: {', '.join(f'{name} {count}' for name, count in sorted(work.counts.items()))}")
    for failure in work.failures:
        print(f"FAILED: {failure}")
    if lost:
        print(f"FAILED: {lost} of {len(work.users)} acknowledged rows are lost")
    if len(times_s) < SLICES:
        print("the run was too short to judge: give it more MINUTES")
        return False
    minutes = (times_s[-1] - times_s[0]) / 60
    print(f"lower envelope over {minutes:.1f} minutes after the warm-up:")
    print(f"  {'':12} {'from':>9} {'to':>9} {'peak':>9} {'growth':>9} {'allowed':>9}")
    is_flat = True
    for bound in BOUNDS:
        verdict = judge(bound, times_s, [life.rows[bound.name][index] for index in measured])
        is_flat &= verdict.is_flat
        figures = (verdict.first, verdict.last, verdict.peak, verdict.growth, bound.allowed(verdict.first))
        cells = " ".join(f"{figure * bound.scale:9.1f}" for figure in figures)
        print(f"  {bound.name:12} {cells} {bound.unit:3} {'flat' if verdict.is_flat else 'RISES'}")
    return is_flat and not work.failures and not lost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the whole run takes")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flussbett-soak-") as directory:
        is_good = soak(arguments.minutes, Path(directory), arguments.seed)
    print("soak: flat" if is_good else "soak: FAILED")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
