"""Our server and an Apache Fluss server, each with our client and pyfluss, in turns: medians side by side.

Both servers have one replica and leave it to the operating system when rows reach the disk. The Apache Fluss server is
one coordinator and one tablet server with a heap of 2 GB. It needs a JDK 17 and Maven, as `make interop-java` does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.e2e.clients import pythons_of_clients, run_client
from benchmarks.e2e.workload import BATCH_ROWS, order_batch
from fluss import embedded
from tests.java.cluster import JavaCluster

Line = tuple[str, float, str, str]
TURNS: Final = 5
BATCHES: Final = 64
ROWS: Final = 50_000
# What takes its time after a start is not what is compared: a JVM needs some seconds of work to be quick.
WARM_UP_TURNS: Final = 2
# As people run it: everything compiled with all care.
_JVM_OPTIONS: Final = ("-XX:+UseG1GC",)
_JAVA_OPTIONS: Final = {
    "log.replica.min-in-sync-replicas-number": 1,
    "log.segment.file-size": "1gb",
    "remote.log.task-interval-duration": "0s",
    "kv.snapshot.interval": "10min",
}
_TASKS: Final[dict[str, dict[str, Any]]] = {
    "bulk": {"compression": "ZSTD", "batches": BATCHES},
    "rows": {"rows": ROWS},
    "upserts": {"rows": ROWS, "as_arrow": False},
}


def measure() -> Iterator[Line]:
    pythons = {who: python for who, python in pythons_of_clients().items() if who != "pyfluss 0.1.0"}
    with (
        tempfile.TemporaryDirectory() as directory,
        embedded.start({"durability": "os"}, process=True) as ours,
        JavaCluster(
            Path(directory), _JAVA_OPTIONS, tablet_servers=1, heap_mb=2048, jvm_options=_JVM_OPTIONS
        ) as cluster,
    ):
        servers = {"our server": ours.bootstrap_servers, "Apache Fluss 0.9.1": cluster.bootstrap_servers}
        for task, arguments in _TASKS.items():
            seconds = _medians(servers, pythons, {"task": task, **arguments})
            for what in next(iter(seconds.values())):
                yield from _lines(what, task, seconds)


def _medians(
    servers: dict[str, str], pythons: dict[str, str], task: dict[str, Any]
) -> dict[tuple[str, str], dict[str, float]]:
    """Return the median seconds of each part of a task, by server and client, all of which take turns."""
    pairs = [(server, client) for server in servers for client in pythons]
    found: dict[tuple[str, str], list[dict[str, float]]] = {pair: [] for pair in pairs}
    for turn in range(WARM_UP_TURNS + TURNS):
        for server, client in pairs:
            measured = run_client(pythons[client], {**task, "bootstrap": servers[server]}, client)
            if turn >= WARM_UP_TURNS:
                found[server, client].append(measured)
    return {pair: {what: median(each[what] for each in turns) for what in turns[0]} for pair, turns in found.items()}


def _lines(what: str, task: str, seconds: dict[tuple[str, str], dict[str, float]]) -> Iterator[Line]:
    if what.endswith("processor"):
        return
    ours = seconds["our server", "ours"][what]
    byte_count = BATCHES * order_batch(BATCH_ROWS).nbytes
    for (server, client), measured in seconds.items():
        if task == "bulk":
            value, unit = byte_count / measured[what] / 1e6, "MB/s"
        else:
            value, unit = ROWS / measured[what] / 1e3, "k rows/s"
        remark = "" if (server, client) == ("our server", "ours") else f"{ours / measured[what]:.2f} of ours on ours"
        yield f"{what}, {client} on {server}", value, unit, remark
