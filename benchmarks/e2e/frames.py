"""Two of twenty columns, a hundredth of the rows: a table as a lazy frame against the same rows in a Parquet file.

A file on the same machine needs no server and no socket, and has its columns apart: what is shown is what the way
through a server costs. In turns; by the clock, and by the processor time of both ends together, which says more on a
busy machine.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from fluss import blocking, embedded

ROWS = 1_000_000
BATCH_ROWS = 50_000
COLUMNS = 20
TURNS = 7
SHARE = 0.01
PARQUET, LAZY = "polars, scan_parquet", "polars, scan_polars"
DUCKDB_PARQUET, DUCKDB = "duckdb, read_parquet", "duckdb, to_duckdb"
WHOLE_PARQUET, WHOLE = "polars, scan_parquet, all", "polars, to_polars, all"
# What each is compared with.
BASES = {LAZY: PARQUET, DUCKDB: DUCKDB_PARQUET, WHOLE: WHOLE_PARQUET}


def measure() -> Iterator[tuple[str, float, str, str]]:
    rows = _rows()
    with (
        embedded.start({"durability": "os"}, process=True) as server,
        blocking.connect(server.bootstrap_servers) as connection,
        tempfile.TemporaryDirectory() as directory,
    ):
        process = psutil.Process(server.process_id)
        for compression in ("NONE", "ZSTD"):
            file = Path(directory) / f"{compression}.parquet"
            pq.write_table(rows, file, compression=compression, row_group_size=BATCH_ROWS)
            table = _table(connection, rows, compression)
            yield from _figures(compression, *_times(_reads(table, file), process))


def _rows() -> pa.Table:
    """Return rows of ten integers, five floats and five texts; ``value0`` is spread evenly between 0 and 1."""
    rng = np.random.default_rng(0)
    columns: dict[str, pa.Array] = {f"key{n}": pa.array(rng.integers(0, 1 << 40, ROWS)) for n in range(10)}
    columns |= {f"value{n}": pa.array(rng.random(ROWS)) for n in range(5)}
    words = pa.array([f"word number {n}" for n in range(1000)])
    columns |= {f"word{n}": words.take(pa.array(rng.integers(0, 1000, ROWS))) for n in range(5)}
    assert len(columns) == COLUMNS
    return pa.table(columns)


def _table(connection: blocking.FlussConnection, rows: pa.Table, compression: str) -> blocking.FlussTable:
    name = f"fluss.frames_{compression.lower()}"
    properties = {"table.log.arrow.compression.type": compression}
    descriptor = blocking.TableDescriptor(blocking.Schema(rows.schema), bucket_count=1, properties=properties)
    connection.get_admin().create_table(name, descriptor)
    table = connection.get_table(name)
    with table.new_append().create_writer() as writer:
        for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
            writer.write_arrow(batch)
    return table


def _reads(table: blocking.FlussTable, file: Path) -> dict[str, Callable[[], int]]:
    con = duckdb.connect()
    relation = table.to_duckdb(con)
    relation.create_view("rows")

    def few(frame: pl.LazyFrame) -> int:
        return frame.filter(pl.col("value0") < SHARE).select("key0").collect().height

    def counted(source: str) -> int:
        query = f"SELECT count(key0) FROM {source} WHERE value0 < {SHARE}"
        (found,) = con.execute(query).fetchall()
        return int(found[0])

    return {
        PARQUET: lambda: few(pl.scan_parquet(file)),
        LAZY: lambda: few(table.scan_polars()),
        DUCKDB_PARQUET: lambda: counted(f"'{file}'"),
        DUCKDB: lambda: counted("rows"),
        WHOLE_PARQUET: lambda: pl.scan_parquet(file).collect().height,
        WHOLE: lambda: table.to_polars().height,
    }


def _times(
    reads: dict[str, Callable[[], int]], server: psutil.Process
) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, int]]:
    """Return for each read its times on the clock and of the processors, in all turns, and its rows."""
    clock, processor = defaultdict(list), defaultdict(list)
    rows: dict[str, int] = {}
    for _ in range(TURNS):
        for what, read in reads.items():
            before = time.process_time() + sum(server.cpu_times()[:2])
            started = time.perf_counter()
            rows[what] = read()
            clock[what].append(time.perf_counter() - started)
            processor[what].append(time.process_time() + sum(server.cpu_times()[:2]) - before)
    for what, base in BASES.items():
        assert rows[what] == rows[base], f"{what} and {base} have different rows"
    return clock, processor, rows


def _figures(
    compression: str, clock: dict[str, list[float]], processor: dict[str, list[float]], rows: dict[str, int]
) -> Iterator[tuple[str, float, str, str]]:
    for what, times in clock.items():
        note = f"{rows[what]:,} rows"
        if what in BASES:
            base = BASES[what]
            ratios = [
                statistics.median(one / other for one, other in zip(measured[base], measured[what], strict=True))
                for measured in (clock, processor)
            ]
            note += f"; {ratios[0]:.2f} of {base} by the clock, {ratios[1]:.2f} by the processors"
        yield f"{what} ({compression})", ROWS / statistics.median(times) / 1e6, "Mrows/s", note
