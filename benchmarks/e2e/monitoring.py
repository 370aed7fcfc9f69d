"""What being looked at costs a server: appends, single writes and lookups with HTTP and metrics on and off, in turns.

Two servers with the same data run side by side. One of them counts its requests, and is asked for its metrics and for
what the page shows every second, far more often than usual; the other one has neither. Only the ratio means
something.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil

import fluss
from benchmarks.e2e.turns import in_turns
from benchmarks.e2e.workload import BATCH_ROWS, SCHEMA, order_batch
from fluss import blocking
from fluss.testing.cluster import ServerProcess

TURNS = 61
BATCHES = 2
LOOKUPS = 200
KEYS = 20_000
SMALL_WRITES = 50
LOOK_EVERY_S = 1.0
EVENTS = fluss.TablePath("fluss", "events")
ORDERS = fluss.TablePath("fluss", "orders")


def measure() -> Iterator[tuple[str, float, str, str]]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flussbett-bench-")))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        sides = [
            Side(stack, directory / "watched", f"http.listener={port}"),
            Side(stack, directory / "alone", "http.listener=off"),
        ]
        stack.callback(_look_at(port).set)
        for what, work in (
            ("append rows", Side.append),
            ("append single rows and wait", Side.append_small),
            ("look up keys one after the other", Side.look_up),
        ):
            before = [side.processor_seconds() for side in sides]
            rate, ratio = in_turns(sides, work, TURNS)
            watched, alone = (side.processor_seconds() - used for side, used in zip(sides, before, strict=True))
            yield (f"{what}, without HTTP and metrics", rate, "/s", "")
            yield (f"{what}, with HTTP and metrics", ratio, "x", "at least 0.98")
            yield (f"{what}, with them per processor second of the server", alone / watched, "x", "looks included")


def _look_at(port: int) -> threading.Event:
    """Ask for metrics and the overview every second, until the event is set."""
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(LOOK_EVERY_S):
            for path in ("metrics", "api/overview"):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as answer:
                    answer.read()

    threading.Thread(target=look, name="monitoring-bench", daemon=True).start()
    return is_over


class Side:
    """One of the two servers, and a client of it."""

    def __init__(self, stack: ExitStack, directory: Path, option: str) -> None:
        server = stack.enter_context(ServerProcess(directory, "-D", "durability=os", "-D", option))
        self._process = psutil.Process(server.process_id)
        config = fluss.Config({"bootstrap.servers": server.bootstrap_servers})
        connection = stack.enter_context(blocking.FlussConnection.create(config))
        admin = connection.get_admin()
        admin.create_table(EVENTS, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=2))
        admin.create_table(ORDERS, fluss.TableDescriptor(fluss.Schema(SCHEMA, primary_keys=["id"]), bucket_count=2))
        self._writer = connection.get_table(EVENTS).new_append().create_writer()
        upserts = connection.get_table(ORDERS).new_upsert().create_writer()
        upserts.upsert_arrow(order_batch(KEYS))
        upserts.flush()
        self._lookuper = connection.get_table(ORDERS).new_lookup().create_lookuper()
        self._batch = order_batch(BATCH_ROWS)
        self._row = self._batch.slice(0, 1)

    def processor_seconds(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def append(self) -> int:
        for _ in range(BATCHES):
            self._writer.write_arrow_batch(self._batch)
        self._writer.flush()
        return BATCHES * BATCH_ROWS

    def append_small(self) -> int:
        for _ in range(SMALL_WRITES):
            self._writer.write_arrow_batch(self._row)
            self._writer.flush()
        return SMALL_WRITES

    def look_up(self) -> int:
        for number in range(LOOKUPS):
            self._lookuper.lookup([number * 7919 % KEYS])
        return LOOKUPS
