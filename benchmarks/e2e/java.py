"""Our server and an Apache Fluss server, each with our client and pyfluss, in turns: medians side by side.

Both servers have one replica and leave it to the operating system when rows reach the disk; a second one of ours, which
syncs before it acknowledges, is there for acknowledgements. The Apache Fluss server is one coordinator and one tablet
server with a heap of 2 GB. It needs a JDK 17 and Maven, as `make interop-java` does.

    make bench SUITES=java                              rows, as of all benchmarks
    python -m benchmarks.e2e.java --page PAGE           the same, and the table of a page in Markdown written anew
    python -m benchmarks.e2e.java --turns 1             quicker, to see whether it works
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa

from benchmarks.e2e.clients import pythons_of_clients, run_client
from benchmarks.e2e.workload import BATCH_ROWS, LOOKUP_KEYS, LOOKUPS_IN_FLIGHT, SCHEMA, order_batch
from fluss import Config, Schema, TableDescriptor, TablePath, blocking, embedded
from tests.java.cluster import JavaCluster

Line = tuple[str, float, str, str]
TURNS: Final = 5
BATCHES: Final = 64
# About 8 MB.
FIRST_BATCHES: Final = 4
ROWS: Final = 50_000
ACKNOWLEDGED_ROWS: Final = 1000
# What takes its time after a start is not what is compared: a JVM needs some seconds of work to be quick.
WARM_UP_TURNS: Final = 2
OUR_SERVER, JAVA_SERVER, OURS = "our server", "Apache Fluss 0.9.1", "ours"
SYNCING_SERVER: Final = "our server with fsync"
KEYED_TABLE: Final = "looked_up"
# As people run it: everything compiled with all care.
_JVM_OPTIONS: Final = ("-XX:+UseG1GC",)
_JAVA_OPTIONS: Final = {
    "log.replica.min-in-sync-replicas-number": 1,
    "log.segment.file-size": "1gb",
    "remote.log.task-interval-duration": "0s",
    "kv.snapshot.interval": "10min",
}
# Between these lines of a page.
_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclass(frozen=True, slots=True)
class Task:
    """What a client does, and how its seconds are shown."""

    arguments: Mapping[str, Any]
    unit: str
    # Shown is this divided by seconds; without one, milliseconds.
    amount: float | None
    clients: frozenset[str] | None = None
    servers: frozenset[str] = frozenset({OUR_SERVER, JAVA_SERVER})
    # Clients that cannot do as much in the time.
    arguments_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def shown(self, seconds: float) -> float:
        return seconds * 1e3 if self.amount is None else self.amount / seconds


def tasks() -> dict[str, Task]:
    megabytes = BATCHES * order_batch(BATCH_ROWS).nbytes / 1e6
    # It has a tenth of a second for each lookup, and lets none overtake another.
    few = {"pyfluss 1.0.0": {"alone": 10, "together": 50}}
    return {
        "bulk": Task({"compression": "ZSTD", "batches": BATCHES}, "MB/s", megabytes),
        "first_write": Task({"batches": FIRST_BATCHES}, "MB/s", megabytes * FIRST_BATCHES / BATCHES),
        "rows": Task({"rows": ROWS}, "k rows/s", ROWS / 1e3),
        "upserts": Task({"rows": ROWS, "as_arrow": False}, "k rows/s", ROWS / 1e3),
        "acknowledgements": Task(
            {"rows": ACKNOWLEDGED_ROWS, "settings": {"writer.batch-timeout-ms": 0}},
            "ms",
            None,
            servers=frozenset({OUR_SERVER, JAVA_SERVER, SYNCING_SERVER}),
            arguments_of={"pyfluss 1.0.0": {"settings": {"writer.batch-timeout-ms": "0"}}},
        ),
        "lookups": Task(
            {"keyed_table": KEYED_TABLE, "alone": 1000, "together": LOOKUPS_IN_FLIGHT},
            "k/s",
            1e-3,
            arguments_of=few,
        ),
        "many_lookups": Task({"keyed_table": KEYED_TABLE}, "k/s", LOOKUP_KEYS / 1e3, frozenset({OURS})),
    }


_NAMES: Final = {"alone": "lookup, one at a time", "together": f"lookup, {LOOKUPS_IN_FLIGHT:,} in flight"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One part of a task: the medians of all pairs of a server and a client."""

    what: str
    task: Task
    seconds: Mapping[tuple[str, str], float]

    def lines(self) -> Iterator[Line]:
        ours = self.seconds[OUR_SERVER, OURS]
        for (server, client), measured in self.seconds.items():
            remark = "" if (server, client) == (OUR_SERVER, OURS) else f"{ours / measured:.2f} of ours on ours"
            yield f"{self.what}, {client} on {server}", self.task.shown(measured), self.task.unit, remark


def measure() -> Iterator[Line]:
    for comparison in compare(TURNS, WARM_UP_TURNS):
        yield from comparison.lines()


def compare(turns: int, warm_up_turns: int, names: Collection[str] | None = None) -> Iterator[Comparison]:
    """Measure everything, or the tasks of these names, one after the other."""
    pythons = {who: python for who, python in pythons_of_clients().items() if who != "pyfluss 0.1.0"}
    with (
        tempfile.TemporaryDirectory() as directory,
        embedded.start({"durability": "os"}, process=True) as ours,
        embedded.start({"durability": "fsync"}, process=True) as syncing,
        JavaCluster(
            Path(directory), _JAVA_OPTIONS, tablet_servers=1, heap_mb=2048, jvm_options=_JVM_OPTIONS
        ) as cluster,
        # Clients create their tables themselves, and one that the coordinator misses would be waited for in vain.
        cluster.noticing_tables_of_others(),
    ):
        all_servers = {
            OUR_SERVER: ours.bootstrap_servers,
            JAVA_SERVER: cluster.bootstrap_servers,
            SYNCING_SERVER: syncing.bootstrap_servers,
        }
        for name in (OUR_SERVER, JAVA_SERVER):
            _load(all_servers[name])
        for name, task in tasks().items():
            if names is not None and name not in names:
                continue
            servers = {server: addresses for server, addresses in all_servers.items() if server in task.servers}
            clients = {who: python for who, python in pythons.items() if task.clients is None or who in task.clients}
            seconds = _medians(servers, clients, name, task, turns, warm_up_turns)
            for what in next(iter(seconds.values())):
                if not what.endswith("processor"):
                    yield Comparison(
                        _NAMES.get(what, what), task, {pair: found[what] for pair, found in seconds.items()}
                    )


def _load(addresses: str) -> None:
    """Make the table in which keys are looked up."""
    with blocking.connect(Config({"bootstrap.servers": addresses})) as connection:
        path = TablePath("fluss", KEYED_TABLE)
        schema = Schema(SCHEMA, primary_keys=["id"])
        connection.get_admin().create_table(path, TableDescriptor(schema, bucket_count=1))
        with connection.get_table(path).new_upsert().create_writer() as writer:
            writer.upsert_arrow(pa.Table.from_batches([order_batch(LOOKUP_KEYS)]))


def _medians(
    servers: Mapping[str, str],
    pythons: Mapping[str, str],
    name: str,
    task: Task,
    turns: int,
    warm_up_turns: int,
) -> dict[tuple[str, str], dict[str, float]]:
    """Return the median seconds of each part of a task, by server and client, all of which take turns."""
    pairs = [(server, client) for server in servers for client in pythons]
    found: dict[tuple[str, str], list[dict[str, float]]] = {pair: [] for pair in pairs}
    for turn in range(warm_up_turns + turns):
        for server, client in pairs:
            arguments = {"task": name, **task.arguments, **task.arguments_of.get(client, {})}
            measured = run_client(pythons[client], {**arguments, "bootstrap": servers[server]}, client)
            if turn >= warm_up_turns:
                found[server, client].append(measured)
    return {pair: {what: median(each[what] for each in turns) for what in turns[0]} for pair, turns in found.items()}


# The page


def table_of(comparisons: list[Comparison], turns: int, load: float) -> str:
    """Return the figures as a table in Markdown, with the date, the machine, and its load before."""
    pairs = list(dict.fromkeys(pair for comparison in comparisons for pair in comparison.seconds))
    heads = [f"{'our client' if client == OURS else client} on {server}" for server, client in pairs]
    rows = [
        f"| {comparison.what} | {comparison.task.unit} | "
        + " | ".join(
            f"{comparison.task.shown(comparison.seconds[pair]):,.2f}" if pair in comparison.seconds else ""
            for pair in pairs
        )
        + " |"
        for comparison in comparisons
    ]
    return "\n".join(
        [
            f"Measured on {datetime.now(UTC):%d %B %Y}, {_machine()}; medians of {turns} turns; "
            f"load average before they began: {load:.1f}.",
            "",
            f"| | | {' | '.join(heads)} |",
            f"|---|---{'|--:' * len(pairs)}|",
            *rows,
        ]
    )


def _machine() -> str:
    """Say what machine this is."""
    cpu = platform.machine()
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        model = re.search(r"^model name\s*: (.+)$", cpu_info.read_text(encoding="utf-8"), re.MULTILINE)
        cpu = model[1].strip() if model else cpu
    return f"{os.cpu_count()} cores ({cpu}), Linux, Python {platform.python_version()}"


def write_into(page: Path, table: str) -> None:
    """Put a table where the page has its figures."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise SystemExit(f"{page} has no lines {_BEGIN} and {_END} for the figures")
    page.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.e2e.java", description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=TURNS, help=f"how often each pair has its turn ({TURNS})")
    parser.add_argument("--tasks", nargs="+", choices=list(tasks()), help="only these (all)")
    parser.add_argument("--page", type=Path, help="the page whose table is written anew")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    comparisons = []
    for comparison in compare(options.turns, min(WARM_UP_TURNS, options.turns), options.tasks):
        comparisons.append(comparison)
        for name, value, unit, remark in comparison.lines():
            print(f"{name:<76} {value:>12,.3f} {unit:<9} {remark}", flush=True)
    table = table_of(comparisons, options.turns, load)
    print(f"\n{table}")
    if options.page is not None:
        write_into(options.page, table)


if __name__ == "__main__":
    main()
