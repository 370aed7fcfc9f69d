"""What a filter costs the reader: a hundredth of the rows, spread over all batches, against all rows of the same table.

Servers can skip no batch, so that all bytes travel in both cases; where batches have bounds they try. In turns; by the
clock, and by the processor time of both ends together, which says more on a busy machine.

Reads of one process get the memory that earlier ones have let go of. A program that reads a table once has the system
hand out memory for every row that it keeps, so both are also measured in processes of their own.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import psutil
import pyarrow.compute as pc

from benchmarks.e2e.workload import BATCH_ROWS, order_batch
from fluss import blocking, col, embedded

BATCHES = 60
TURNS = 9
# Amounts are spread evenly below 10,000.
AMOUNT_MAX = 100.0
ALL = "all rows"
FIRST_READ = "1 % of the rows, in a process of its own"
TWO_COLUMNS = "two of five columns, all rows"
READS: dict[str, Callable[[blocking.FlussTable], int]] = {
    ALL: lambda table: table.to_arrow().num_rows,
    "1 % of the rows, by col()": lambda table: table.to_arrow(filter=col("amount") <= AMOUNT_MAX).num_rows,
    "1 % of the rows, by a text": lambda table: table.to_arrow(filter=f"amount <= {AMOUNT_MAX}").num_rows,
    "1 % of the rows, by pyarrow": lambda table: table.to_arrow(filter=pc.field("amount") <= AMOUNT_MAX).num_rows,
    "all rows, by a filter that all pass": lambda table: table.to_arrow(filter="amount >= 0").num_rows,
    TWO_COLUMNS: lambda table: table.to_arrow(["id", "amount"]).num_rows,
    "one column, 1 % of the rows by another": lambda table: (
        table.to_arrow(["id"], filter=f"amount <= {AMOUNT_MAX}").num_rows
    ),
}
# By the clock and by the processor, in a process that has read a few rows before.
ONE_READ = """
import sys, time
from fluss import blocking
with blocking.connect(sys.argv[1]) as connection:
    table = connection.get_table(sys.argv[2])
    table.to_arrow(filter="id >= 0", limit=1)
    condition = sys.argv[3] or None
    started, before = time.perf_counter(), time.process_time()
    rows = table.to_arrow(filter=condition)
    print(time.perf_counter() - started, time.process_time() - before)
"""
# What each is compared with.
BASES = {"one column, 1 % of the rows by another": TWO_COLUMNS}


def measure() -> Iterator[tuple[str, float, str, str]]:
    with (
        embedded.start({"durability": "os"}, process=True) as server,
        blocking.FlussConnection.create(server.config()) as connection,
    ):
        process = psutil.Process(server.process_id)
        for compression, columns in (("NONE", ""), ("ZSTD", ""), ("ZSTD", "*")):
            table = _table(connection, compression, columns)
            kind = f"{compression}, with bounds" if columns else compression
            yield from _rows(kind, *_times(table, process))
            yield _first_reads(kind, server.bootstrap_servers, str(table.table_path), process)


def _table(connection: blocking.FlussConnection, compression: str, columns_with_bounds: str) -> blocking.FlussTable:
    path = blocking.TablePath("fluss", f"filtered_{compression.lower()}{'_bounds' if columns_with_bounds else ''}")
    properties = {"table.log.arrow.compression.type": compression}
    if columns_with_bounds:
        properties["table.statistics.columns"] = columns_with_bounds
    schema = blocking.Schema(order_batch(1).schema)
    connection.get_admin().create_table(path, blocking.TableDescriptor(schema, properties=properties))
    table = connection.get_table(path)
    with table.new_append().create_writer() as writer:
        for number in range(BATCHES):
            writer.write_arrow_batch(order_batch(BATCH_ROWS, number * BATCH_ROWS))
    return table


def _times(
    table: blocking.FlussTable, server: psutil.Process
) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, int]]:
    """Return for each read its times on the clock and of the processors, in all turns, and its rows."""
    clock, processor = defaultdict(list), defaultdict(list)
    rows: dict[str, int] = {}
    for _ in range(TURNS):
        for what, read in READS.items():
            before = time.process_time() + sum(server.cpu_times()[:2])
            started = time.perf_counter()
            rows[what] = read(table)
            clock[what].append(time.perf_counter() - started)
            processor[what].append(time.process_time() + sum(server.cpu_times()[:2]) - before)
    return clock, processor, rows


def _first_reads(kind: str, address: str, table: str, server: psutil.Process) -> tuple[str, float, str, str]:
    """Read once in each of many processes."""
    conditions = {ALL: "", FIRST_READ: f"amount <= {AMOUNT_MAX}"}
    clock, processor = defaultdict(list), defaultdict(list)
    for _ in range(TURNS):
        for what, condition in conditions.items():
            before = sum(server.cpu_times()[:2])
            program = [sys.executable, "-c", ONE_READ, address, table, condition]
            done = subprocess.run(program, capture_output=True, text=True, check=True)
            clock_s, processor_s = map(float, done.stdout.split())
            clock[what].append(clock_s)
            processor[what].append(processor_s + sum(server.cpu_times()[:2]) - before)
    return _row(kind, FIRST_READ, ALL, clock, processor)


def _rows(
    kind: str, clock: dict[str, list[float]], processor: dict[str, list[float]], rows: dict[str, int]
) -> Iterator[tuple[str, float, str, str]]:
    for what in READS:
        base = BASES.get(what, ALL)
        yield _row(kind, what, base, clock, processor, f"{rows[what]:,} rows; ")


def _row(
    kind: str,
    what: str,
    base: str,
    clock: dict[str, list[float]],
    processor: dict[str, list[float]],
    begins: str = "",
) -> tuple[str, float, str, str]:
    faster = [_median_ratio(times[base], times[what]) for times in (clock, processor)]
    return (
        f"{what} ({kind})",
        BATCHES * BATCH_ROWS / statistics.median(clock[what]) / 1e6,
        "Mrows/s",
        f"{begins}{faster[0]:.2f} of {base} by the clock, {faster[1]:.2f} by the processors",
    )


def _median_ratio(base: list[float], times: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(base, times, strict=True))
