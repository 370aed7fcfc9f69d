"""Tables read together with their lakes, beside the same files read alone: by Python, and by Spark.

``BENCH_LAKE_KEYS`` says how many rows a table has (default: 1,000,000); a hundredth more of them, or changed ones, are
only in Fluss. ``BENCH_LAKE_SPARK=0`` leaves Spark out.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from benchmarks.e2e.spark import BUCKETS, ONE_COLUMN, SCHEMA, rows
from fluss import FlussTable, TableDescriptor, blocking, embedded
from fluss.client.scan import union_read
from fluss.client.scan.known_keys import KnownKeys
from fluss.schema.schema import Schema

Line = tuple[str, float, str, str]
TURNS: Final = 5
ROWS: Final = int(os.environ.get("BENCH_LAKE_KEYS", "1000000"))
TAIL: Final = ROWS // 100
STEP: Final = 250_000
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
        tables = {"log": _log_table(connection), "keys": _key_table(connection)}
        for kind, table in tables.items():
            yield from _python(kind, table)
        if os.environ.get("BENCH_LAKE_SPARK", "1") != "0":
            yield from _spark(server.bootstrap_servers, tables)


def _log_table(connection: blocking.FlussConnection) -> Any:
    table = _created(connection, "fluss.union_log", [])
    with table.new_append().create_writer() as writer:
        for first in range(0, ROWS, STEP):
            writer.write_arrow(rows(first, min(STEP, ROWS - first)))
    _tier(table)
    with table.new_append().create_writer() as writer:
        writer.write_arrow(rows(ROWS, TAIL))
    return table


def _key_table(connection: blocking.FlussConnection) -> Any:
    table = _created(connection, "fluss.union_keys", ["id"])
    with table.new_upsert().create_writer() as writer:
        for first in range(0, ROWS, STEP):
            writer.upsert_arrow_batch(rows(first, min(STEP, ROWS - first)))
    _tier(table)
    ids = np.sort(np.random.default_rng(5).choice(ROWS, TAIL, replace=False))
    changed = rows(0, TAIL)
    with table.new_upsert().create_writer() as writer:
        writer.upsert_arrow_batch(changed.set_column(0, changed.schema.field(0), pa.array(ids)))
    return table


def _created(connection: blocking.FlussConnection, name: str, keys: list[str]) -> Any:
    schema = SCHEMA.set(0, pa.field("id", pa.int64(), nullable=False)) if keys else SCHEMA
    descriptor = TableDescriptor(Schema(schema, primary_keys=keys), bucket_count=BUCKETS, properties=LAKE)
    connection.get_admin().create_table(name, descriptor)
    return connection.get_table(name)


def _inner(table: Any) -> FlussTable:
    inner: FlussTable = table._inner
    return inner


def _tier(table: Any) -> None:
    from fluss.tiering.rounds import tier

    assert tier(_inner(table)).rows == ROWS


def _python(kind: str, table: Any) -> Iterator[Line]:
    """Compare with pyarrow's own read of the same files."""
    from fluss.client.bulk import lake_snapshot_of, union_plan_of

    plan = union_plan_of(_inner(table), SCHEMA.names)
    assert plan is not None
    assert lake_snapshot_of(_inner(table)) is not None
    paths = [file.data.file_path.removeprefix("file://") for file in plan.files]
    row_count = ROWS + TAIL if kind == "log" else ROWS

    def alone(columns: list[str]) -> Callable[[], int]:
        return lambda: sum(batch.num_rows for batch in ds.dataset(paths).to_batches(columns=columns))

    def union(columns: list[str]) -> Callable[[], int]:
        return lambda: sum(batch.num_rows for batch in table.to_arrow_batch_reader(columns))

    for columns in (SCHEMA.names, [SCHEMA.names[0]], [ONE_COLUMN]):
        what = f"{len(columns)} columns" if len(columns) > 1 else f"column '{columns[0]}'"
        for state in ("",) if kind == "log" else (", first read", ", read again"):
            # From the second read on, the keys of the files are in memory. With no room for them, each read is a first.
            vars(union_read)["KNOWN_KEYS"] = KnownKeys(bytes_max=0) if state == ", first read" else KnownKeys()
            files, both = _in_turns((alone(columns), ROWS), (union(columns), row_count))
            ratio, of_processor = files.wall_s / both.wall_s, files.processor_s / both.processor_s
            remark = (
                f"{ratio * row_count / ROWS:.2f} times pyarrow's read of the files ({ROWS / files.wall_s / 1e3:,.0f}) "
                f"(target 0.80), {of_processor * row_count / ROWS:.2f} by processor time"
            )
            name = f"union read, Python, {kind}, {what}, 1 % not in the lake{state}"
            yield name, row_count / both.wall_s / 1e3, "krows/s", remark


@dataclass(frozen=True)
class _Best:
    """The shortest of several turns, by the clock and by the processor."""

    wall_s: float
    processor_s: float


def _in_turns(*sides: tuple[Callable[[], int], int]) -> list[_Best]:
    """Measure the sides in alternation, so that both have the same neighbours on the machine."""
    turns: list[list[tuple[float, float]]] = [[] for _ in sides]
    for _ in range(TURNS + 1):
        for found, (work, expected) in zip(turns, sides, strict=True):
            begun_s, used_s = time.perf_counter(), time.process_time()
            count = work()
            found.append((time.perf_counter() - begun_s, time.process_time() - used_s))
            assert count == expected, f"{count} rows, expected {expected}"
    # The first turn only warms up.
    return [_Best(*(min(each) for each in zip(*found[1:], strict=True))) for found in turns]


def _spark(bootstrap_servers: str, tables: dict[str, Any]) -> Iterator[Line]:
    """Compare with a read of the lake alone."""
    from fluss.spark import FlussSpark, session

    spark = session("fluss-bench-union")
    try:
        fs = FlussSpark(spark, bootstrap_servers=bootstrap_servers)
        for kind, table in tables.items():
            name = str(table.table_path)

            def read(mode: str, name: str = name) -> Callable[[], None]:
                return lambda: fs.read(name, mode=mode).write.format("noop").mode("overwrite").save()  # type: ignore[arg-type]

            lake_s, union_s = _best_in_turns(read("lake"), read("union"))
            row_count = ROWS + TAIL if kind == "log" else ROWS
            ratio = lake_s / ROWS / (union_s / row_count)
            remark = f"{ratio:.2f} times the lake alone ({ROWS / lake_s / 1e3:,.0f}) (target 0.80)"
            yield (
                f"union read, Spark, {kind}, 8 columns, 1 % not in the lake",
                row_count / union_s / 1e3,
                "krows/s",
                remark,
            )
    finally:
        spark.stop()


def _best_in_turns(*works: Callable[[], Any]) -> list[float]:
    """Measure in alternation: Spark becomes quicker with every query, whichever it is."""
    best = [float("inf")] * len(works)
    for turn in range(TURNS + 1):
        for number, work in enumerate(works):
            begun = time.perf_counter()
            work()
            # The first turn only warms up.
            if turn:
                best[number] = min(best[number], time.perf_counter() - begun)
    return best
