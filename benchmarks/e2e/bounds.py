"""What bounds in batches (``table.statistics.columns``) cost: appends, full reads and disk, with and without them.

In turns, by the processor time of both ends together: the clock of a busy machine says little.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.e2e.workload import BATCH_ROWS, order_batch
from fluss import blocking, embedded

BATCHES = 60
TURNS = 7
KINDS: dict[str, dict[str, str]] = {"without bounds": {}, "with bounds": {"table.statistics.columns": "*"}}


def measure() -> Iterator[tuple[str, float, str, str]]:
    with (
        TemporaryDirectory() as directory,
        embedded.start({"durability": "os", "data.dir": directory}, process=True) as server,
        blocking.FlussConnection.create(server.config()) as connection,
    ):
        process = psutil.Process(server.process_id)
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        sizes: dict[str, int] = {}
        for turn in range(TURNS):
            for kind, properties in KINDS.items():
                path = blocking.TablePath("fluss", f"bounds_{turn}_{len(properties)}")
                schema = blocking.Schema(order_batch(1).schema)
                connection.get_admin().create_table(path, blocking.TableDescriptor(schema, properties=properties))
                table = connection.get_table(path)
                before = _disk_bytes(directory)
                times["append", kind].append(_processor_s(process, partial(_append, table)))
                sizes[kind] = _disk_bytes(directory) - before
                times["read", kind].append(_processor_s(process, table.to_arrow))
                times["read one column", kind].append(_processor_s(process, partial(table.to_arrow, ["amount"])))
        rows = BATCHES * BATCH_ROWS
        for what in ("append", "read", "read one column"):
            plain, bounded = (times[what, kind] for kind in KINDS)
            ratio = statistics.median(one / other for one, other in zip(bounded, plain, strict=True))
            remark = f"{ratio:.2f} times that without bounds"
            yield f"{what}, with bounds", statistics.median(bounded) / rows * 1e9, "ns/row", remark
        plain_bytes, bounded_bytes = (sizes[kind] for kind in KINDS)
        yield (
            "disk, with bounds",
            bounded_bytes / rows,
            "B/row",
            f"{bounded_bytes / plain_bytes:.3f} times that without",
        )


def _append(table: blocking.FlussTable) -> None:
    with table.new_append().create_writer() as writer:
        for number in range(BATCHES):
            writer.write_arrow_batch(order_batch(BATCH_ROWS, number * BATCH_ROWS))


def _processor_s(server: psutil.Process, work: Callable[[], object]) -> float:
    before = time.process_time() + sum(server.cpu_times()[:2])
    work()
    return time.process_time() + sum(server.cpu_times()[:2]) - before


def _disk_bytes(directory: str) -> int:
    return sum(file.stat().st_size for file in Path(directory).rglob("*") if file.is_file())
