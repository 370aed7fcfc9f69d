"""Lake tables: rows to data files, and commits over many rounds, in a directory. Without pyiceberg there is nothing."""

from __future__ import annotations

import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.micro.timing import best_seconds
from fluss.schema.descriptor import TableDescriptor
from fluss.schema.schema import Schema
from fluss.schema.table import TablePath

ROW_COUNT = 500_000
BATCH_ROWS = 10_000
ROUNDS = 300
ROUNDS_COMPARED = 50


def measure() -> list[tuple[str, float, str, str]]:
    """Return (what, value, unit, target) per path."""
    if find_spec("pyiceberg") is None:
        return []
    from fluss.lake.lake_tables import LakeTables

    with tempfile.TemporaryDirectory() as directory:
        lake = LakeTables.open({"warehouse": directory})
        return [*_measure_files(lake, Path(directory)), *_measure_commits(lake)]


def _rows() -> pa.RecordBatch:
    rng = np.random.default_rng(1)
    columns = {
        "id": pa.array(np.arange(ROW_COUNT)),
        "quantity": pa.array(rng.integers(0, 1000, ROW_COUNT, dtype=np.int32)),
        "price": pa.array(rng.random(ROW_COUNT)),
        "name": pa.array([f"name {number % 1000}" for number in range(ROW_COUNT)]),
        "time": pa.array(np.arange(ROW_COUNT) * 1000).cast(pa.timestamp("ms")),
        "kind": pa.array((np.arange(ROW_COUNT) % 100).astype(np.int16)),
        "weight": pa.array(rng.random(ROW_COUNT).astype(np.float32)),
        "user": pa.array([f"user {number % 77}" for number in range(ROW_COUNT)]),
    }
    return pa.record_batch(columns)


def _measure_files(lake: Any, directory: Path) -> list[tuple[str, float, str, str]]:
    """Compare with pyarrow writing the same rows, which are in the types of the lake already, at once."""
    from fluss.lake.arrow_conversion import lake_batch
    from fluss.lake.data_files import DataFileWriter, FileLayout

    rows = _rows()
    layout = FileLayout.of(
        lake.create(TablePath("bench", "rows"), TableDescriptor(Schema(rows.schema), bucket_count=1))
    )
    batches = [rows.slice(first, BATCH_ROWS) for first in range(0, ROW_COUNT, BATCH_ROWS)]

    def converted(index: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        return lake_batch(batch, layout.arrow_schema, bucket_id=0, offsets=index * BATCH_ROWS, timestamps_ms=1)

    def write() -> None:
        with DataFileWriter(layout, layout.partition((), 0)) as writer:
            for index, batch in enumerate(batches):
                writer.write(converted(index, batch))

    ready = pa.Table.from_batches([converted(index, batch) for index, batch in enumerate(batches)])
    plain = best_seconds(lambda: pq.write_table(ready, str(directory / "plain.parquet"), compression="zstd"))
    seconds = best_seconds(write)
    return [
        ("lake data files, rows of 8 columns in batches of 10,000", ROW_COUNT / seconds / 1e6, "M rows/s", "> 1.5"),
        ("  / pyarrow, the same rows at once", plain / seconds, "x", "> 0.7"),
    ]


def _measure_commits(lake: Any) -> list[tuple[str, float, str, str]]:
    """Commit a file a round, and expire snapshots as a service does; the last rounds must not be slower."""
    from fluss.lake.arrow_conversion import lake_batch
    from fluss.lake.commits import commit_files
    from fluss.lake.data_files import DataFileWriter, FileLayout
    from fluss.lake.maintenance import expire_snapshots

    schema = pa.schema({"id": pa.int64()})
    table = lake.create(TablePath("bench", "rounds"), TableDescriptor(Schema(schema), bucket_count=1))
    layout = FileLayout.of(table)
    row = lake_batch(pa.record_batch([[1]], schema), layout.arrow_schema, bucket_id=0, offsets=0, timestamps_ms=1)
    times_s: list[float] = []
    for number in range(1, ROUNDS + 1):
        with DataFileWriter(layout, layout.partition((), 0)) as writer:
            writer.write(row)
        start = time.process_time()
        commit_files(table, added=writer.files)
        times_s.append(time.process_time() - start)
        if number % ROUNDS_COMPARED == 0:
            expire_snapshots(table, older_than_ms=1 << 62, keep_count=10)
    first, last = median(times_s[:ROUNDS_COMPARED]), median(times_s[-ROUNDS_COMPARED:])
    return [
        ("lake commit of one file, processor time", last * 1000, "ms", "< 50"),
        (f"  rounds {ROUNDS - ROUNDS_COMPARED} to {ROUNDS} / first rounds", last / first, "x", "< 2"),
    ]
