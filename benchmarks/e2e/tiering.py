"""Tables brought to the lake: a log beside Spark's own Parquet writer, updates of many keys, and a thousand commits.

Server, Spark's JVM and its Python workers share the same cores. ``BENCH_LAKE_KEYS`` says how many rows the table with
a primary key has, such as 10000000 (default: 1,000,000).
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.e2e.spark import BUCKETS, FILES, ROWS, SCHEMA, rows
from fluss import blocking, embedded
from fluss.spark import FlussSpark, session

Line = tuple[str, float, str, str]
TURNS: Final = 3
KEYS: Final = int(os.environ.get("BENCH_LAKE_KEYS", "1000000"))
# How many of a hundred keys a round changes.
CHANGED_PERCENTS: Final = (0.1, 1, 10)
ROUNDS: Final = 1000
ROUNDS_COMPARED: Final = 50
ROWS_PER_ROUND: Final = 10
LAKE: Final = {"table.datalake.enabled": "true"}


def measure() -> Iterator[Line]:
    if find_spec("pyiceberg") is None:
        return
    with (
        tempfile.TemporaryDirectory() as directory,
        embedded.start(
            {
                "durability": "os",
                "datalake.format": "iceberg",
                "datalake.iceberg.warehouse": f"{directory}/warehouse",
            },
            process=True,
        ) as server,
        blocking.FlussConnection.create(server.config()) as connection,
    ):
        spark = session("fluss-bench", config={"spark.scheduler.mode": "FAIR"})
        try:
            bench = _Bench(FlussSpark(spark, bootstrap_servers=server.bootstrap_servers), connection, Path(directory))
            yield from bench.log()
            yield from bench.keys()
        finally:
            spark.stop()
        yield from _commits(server.bootstrap_servers)


class _Bench:
    def __init__(self, fs: FlussSpark, connection: blocking.FlussConnection, directory: Path) -> None:
        self._fs = fs
        self._connection = connection
        self._directory = directory
        self._table_count = 0
        self._parquet = directory / "rows"
        self._parquet.mkdir()
        per_file = ROWS // FILES
        for number in range(FILES):
            pq.write_table(pa.table(rows(number * per_file, per_file)), self._parquet / f"{number}.parquet")

    def log(self) -> Iterator[Line]:
        ours = plain = float("inf")
        for turn in range(TURNS + 1):
            name = self._new_table(SCHEMA)
            with self._table(name).new_append().create_writer() as writer:
                for number in range(FILES):
                    writer.write_arrow(rows(number * ROWS // FILES, ROWS // FILES))
            tiered_s = _timed(lambda name=name: self._fs.tier(name))
            written_s = _timed(self._write_parquet)
            # The first turn only warms up.
            if turn:
                ours, plain = min(ours, tiered_s), min(plain, written_s)
            assert self._fs.lake.verify(name).is_right if turn == TURNS else True
        remark = (
            f"target 1,500; {plain / ours:.2f} times Spark from Parquet to Parquet ({ROWS / plain / 1e3:,.0f}) "
            "(target 0.70)"
        )
        yield "tiering, log table, 8 columns", ROWS / ours / 1e3, "krows/s", remark

    def _write_parquet(self) -> None:
        frame = self._fs.spark.read.parquet(str(self._parquet))
        frame.write.mode("overwrite").option("compression", "zstd").parquet(str(self._directory / "copy"))

    def keys(self) -> Iterator[Line]:
        schema = SCHEMA.set(0, pa.field("id", pa.int64(), nullable=False))
        name = self._new_table(schema, primary_keys=["id"])
        step = 250_000
        with self._table(name).new_upsert().create_writer() as writer:
            for first in range(0, KEYS, step):
                writer.upsert_arrow_batch(rows(first, min(step, KEYS - first)))
        seconds = _timed(lambda: self._fs.tier(name))
        yield f"tiering, {KEYS:,} rows with keys, first round", KEYS / seconds / 1e3, "krows/s", ""
        rng = np.random.default_rng(7)
        for percent in CHANGED_PERCENTS:
            ids = np.sort(rng.choice(KEYS, int(KEYS * percent / 100), replace=False))
            with self._table(name).new_upsert().create_writer() as writer:
                writer.upsert_arrow_batch(rows_of(ids))
            seconds = _timed(lambda: self._fs.tier(name))
            what = f"tiering, updates of {percent:g} % of {KEYS:,} keys"
            yield what, len(ids) / seconds / 1e3, "krows/s", f"{seconds:.2f} s for {len(ids):,} keys"
        seconds = _timed(lambda: self._fs.lake.compact(name))
        yield f"compaction of {KEYS:,} rows with keys", KEYS / seconds / 1e3, "krows/s", f"{seconds:.2f} s"

    def _new_table(self, schema: pa.Schema, primary_keys: list[str] | None = None) -> str:
        self._table_count += 1
        name = f"fluss.bench_{self._table_count}"
        descriptor = blocking.TableDescriptor(
            blocking.Schema(schema, primary_keys=primary_keys), bucket_count=BUCKETS, properties=LAKE
        )
        self._connection.get_admin().create_table(name, descriptor)
        return name

    def _table(self, name: str) -> blocking.FlussTable:
        return self._connection.get_table(name)


def rows_of(ids: np.ndarray[Any, np.dtype[np.int64]]) -> pa.RecordBatch:
    """Return rows with these ids; all other columns are those of other ids, in turn."""
    batch = rows(0, len(ids))
    return batch.set_column(0, "id", pa.array(ids))


def _timed(work: Any) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def _commits(bootstrap_servers: str) -> Iterator[Line]:
    """Measure rounds of a few rows, without Spark: the last of a thousand must cost what the first did."""
    import fluss
    from fluss.client.bulk import wait_for
    from fluss.tiering.rounds import tier

    connection = wait_for(fluss.FlussConnection.create(bootstrap_servers))
    columns = pa.schema([("id", pa.int64())])
    descriptor = fluss.TableDescriptor(fluss.Schema(columns), bucket_count=1, properties=LAKE)
    wait_for(connection.get_admin().create_table("fluss.bench_commits", descriptor))
    table = wait_for(connection.get_table("fluss.bench_commits"))
    writer = table.new_append().create_writer()
    worked: list[float] = []
    waited: list[float] = []
    for number in range(ROUNDS):
        writer.write_arrow(pa.table({"id": range(number * ROWS_PER_ROUND, (number + 1) * ROWS_PER_ROUND)}))
        wait_for(writer.flush())
        used_s = _used_s()
        report = tier(table)
        worked.append(_used_s() - used_s)
        waited.append(report.commit_s)
    connection.close()
    first, last = median(worked[:ROUNDS_COMPARED]), median(worked[-ROUNDS_COMPARED:])
    remark = f"{last / first:.2f} times the first {ROUNDS_COMPARED} of {ROUNDS:,} rounds (target 2.00 at most)"
    yield "tiering, processor time of a round of few rows", last * 1000, "ms", remark
    first, last = median(waited[:ROUNDS_COMPARED]), median(waited[-ROUNDS_COMPARED:])
    remark = f"{last / first:.2f} times the first {ROUNDS_COMPARED} of {ROUNDS:,} rounds (target 2.00 at most)"
    yield "tiering, commit of a round of few rows", last * 1000, "ms", remark


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
