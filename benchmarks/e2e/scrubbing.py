"""What scrubbing costs those who work meanwhile: appends and lookups with it and without, in turns.

Two servers with the same data run side by side. One of them reads all its files again without end, at the default rate.
Only the ratio means something.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil

import fluss
from benchmarks.e2e.turns import in_turns
from benchmarks.e2e.workload import BATCH_ROWS, SCHEMA, order_batch
from fluss import blocking
from fluss.testing.cluster import ServerProcess

TURNS = 41
BATCHES = 2
LOOKUPS = 200
KEYS = 50_000
HISTORY_BATCHES = 60
EVENTS = fluss.TablePath("fluss", "events")
ORDERS = fluss.TablePath("fluss", "orders")
# Read again is what was known to be on the disk at the last checkpoint.
COMMON = ("durability=os", "log.segment.file-size=1mb", "log.flush.offset.checkpoint-interval=1s")
SCRUBBED = ("server.scrub.interval=1ms",)
IDLE = ("server.scrub.interval=0s",)


def measure() -> Iterator[tuple[str, float, str, str]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flussbett-bench-")))
        sides = [Side(stack, directory / name, options) for name, options in (("scrubbed", SCRUBBED), ("idle", IDLE))]
        for what, work in (("append rows", Side.append), ("look up keys one after the other", Side.look_up)):
            rate, ratio = in_turns(sides, work, TURNS)
            yield (f"{what}, without scrubbing", rate, "/s", "")
            yield (f"{what}, while files are scrubbed at 8 MB/s", ratio, "x", "at least 0.95")
        seconds = 10.0
        used = [side.cpu_seconds() for side in sides]
        read = sides[0].read_bytes()
        time.sleep(seconds)
        shares = [(side.cpu_seconds() - before) / seconds * 100 for side, before in zip(sides, used, strict=True)]
        yield ("share of one core that scrubbing takes", shares[0] - shares[1], "%", "")
        yield ("scrubbed per second", (sides[0].read_bytes() - read) / seconds / 1e6, "MB", "8.4 allowed")


class Side:
    """One of the two servers, and a client of it."""

    def __init__(self, stack: ExitStack, directory: Path, options: tuple[str, ...]) -> None:
        arguments = [part for option in (*COMMON, *options) for part in ("-D", option)]
        server = stack.enter_context(ServerProcess(directory, *arguments))
        self._process = psutil.Process(server.process_id)
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers})
        connection = stack.enter_context(blocking.FlussConnection.create(config))
        admin = connection.get_admin()
        admin.create_table(EVENTS, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=2))
        admin.create_table(ORDERS, fluss.TableDescriptor(fluss.Schema(SCHEMA, primary_keys=["id"]), bucket_count=2))
        self._writer = connection.get_table(EVENTS).new_append().create_writer()
        for _ in range(HISTORY_BATCHES):
            self._writer.write_arrow_batch(order_batch(BATCH_ROWS))
        self._writer.flush()
        upserts = connection.get_table(ORDERS).new_upsert().create_writer()
        upserts.upsert_arrow(order_batch(KEYS))
        upserts.flush()
        self._lookuper = connection.get_table(ORDERS).new_lookup().create_lookuper()
        self._batch = order_batch(BATCH_ROWS)

    def append(self) -> int:
        for _ in range(BATCHES):
            self._writer.write_arrow_batch(self._batch)
        self._writer.flush()
        return BATCHES * BATCH_ROWS

    def look_up(self) -> int:
        for number in range(LOOKUPS):
            self._lookuper.lookup([number * 7919 % KEYS])
        return LOOKUPS

    def cpu_seconds(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def read_bytes(self) -> int:
        counters = self._process.io_counters()
        return int(counters.read_chars)
