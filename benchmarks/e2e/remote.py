"""What remote storage costs writers, and what readers get from it: in turns with a server that has none.

Two servers run side by side, one of which copies its segments to a directory as they are closed. Only ratios mean
something.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

import fluss
from benchmarks.e2e.turns import in_turns
from benchmarks.e2e.workload import BATCH_ROWS, SCHEMA, order_batch
from fluss import blocking
from fluss.testing.cluster import ServerProcess

APPEND_TURNS = 15
APPEND_BATCHES = 20
SCAN_TURNS = 7
SCAN_BATCHES = 200
APPENDED = fluss.TablePath("fluss", "appended")
SCANNED = fluss.TablePath("fluss", "scanned")
COMMON = ("durability=os", "log.segment.file-size=8mb")


def measure() -> Iterator[tuple[str, float, str, str]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flussbett-bench-")))
        remote = directory / "remote"
        shipping = (f"remote.data.dir={remote}", "remote.log.task-interval-duration=200ms")
        sides = [Side(stack, directory / "shipping", shipping), Side(stack, directory / "plain", ())]
        rate, ratio = in_turns(sides, Side.append, APPEND_TURNS)
        yield "append rows, without remote storage", rate, "/s", ""
        yield "append rows, while segments are copied", ratio, "x", "at least 0.9"
        for side in sides:
            side.fill()
        while len(list((directory / "shipping").glob("fluss/scanned-*/log-0/*.log"))) > 1:
            time.sleep(0.1)
        segments = sorted(remote.glob("log/fluss/scanned-*/0/*/*.log"))
        rate, ratio = in_turns(sides, Side.scan, SCAN_TURNS)
        yield "scan rows from the disk of the server", rate, "/s", ""
        yield f"scan the same rows from remote storage, {len(segments)} segments", ratio, "x", ""
        rows = SCAN_BATCHES * BATCH_ROWS
        plain = statistics.median(_seconds(lambda: _read_plainly(segments)) for _ in range(SCAN_TURNS))
        scanned = statistics.median(_seconds(sides[0].scan) for _ in range(SCAN_TURNS))
        yield "read the bytes of these segments, nothing else", rows / plain, "rows/s", ""
        yield "scan from remote storage, as a part of that", plain / scanned, "x", ""


class Side:
    """One of the two servers, and a client of it."""

    def __init__(self, stack: ExitStack, directory: Path, options: tuple[str, ...]) -> None:
        arguments = [part for option in (*COMMON, *options) for part in ("-D", option)]
        server = stack.enter_context(ServerProcess(directory, *arguments))
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers})
        self._connection = stack.enter_context(blocking.FlussConnection.create(config))
        properties = {"table.log.tiered.local-segments": "1"}
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1, properties=properties)
        for path in (APPENDED, SCANNED):
            self._connection.get_admin().create_table(path, descriptor)
        self._writer = self._connection.get_table(APPENDED).new_append().create_writer()
        self._batch = order_batch(BATCH_ROWS)

    def append(self) -> int:
        for _ in range(APPEND_BATCHES):
            self._writer.write_arrow_batch(self._batch)
        self._writer.flush()
        return APPEND_BATCHES * BATCH_ROWS

    def fill(self) -> None:
        writer = self._connection.get_table(SCANNED).new_append().create_writer()
        for _ in range(SCAN_BATCHES):
            writer.write_arrow_batch(self._batch)
        writer.flush()

    def scan(self) -> int:
        found = self._connection.get_table(SCANNED).new_scan().to_arrow().num_rows
        assert found == SCAN_BATCHES * BATCH_ROWS
        return int(found)


def _read_plainly(segments: list[Path]) -> None:
    for segment in segments:
        with pa.OSFile(str(segment)) as file:
            file.read_buffer()


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s
