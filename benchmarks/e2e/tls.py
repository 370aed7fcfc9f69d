"""What TLS costs: the same work over a plaintext and a TLS listener of one server, in turns, and connecting by each.

Measured in processor time of both ends together: on a busy machine the time on the clock says little.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil

from benchmarks.e2e.workload import BATCH_ROWS, order_batch
from fluss import EARLIEST_OFFSET, blocking, embedded
from fluss.testing.certificates import ThrowawayCa

BATCHES = 60
TURNS = 5
PINGS = 500
CONNECTIONS = 20
PLAINTEXT, TLS = "plaintext", "TLS"


def measure() -> Iterator[tuple[str, float, str, str]]:
    with tempfile.TemporaryDirectory() as directory:
        ca = ThrowawayCa(Path(directory))
        options = {
            "durability": "os",
            "bind.listeners": "PLAIN://127.0.0.1:0,SECRET://127.0.0.1:0",
            "security.protocol.map": "SECRET:SSL",
            **ca.issue("server", names=["127.0.0.1"]).server_options,
        }
        with embedded.start(options, process=True) as server:
            configs = {
                PLAINTEXT: server.config("PLAIN"),
                TLS: server.config("SECRET", security_protocol="ssl", security_ssl_ca=str(ca.certificate_file)),
            }
            yield from _rows(_processor_seconds(configs, psutil.Process(server.process_id)))


def _rows(seconds: Counter[tuple[str, str]]) -> Iterator[tuple[str, float, str, str]]:
    megabytes = order_batch(BATCH_ROWS).nbytes * BATCHES * TURNS / 1e6
    for what in ("append", "scan"):
        ratio = seconds[what, PLAINTEXT] / seconds[what, TLS]
        for who in (PLAINTEXT, TLS):
            remark = f"{ratio:.2f} of plaintext" if who == TLS else ""
            yield (
                f"{what} per processor second of both ends, {who} (NONE)",
                megabytes / seconds[what, who],
                "MB/s",
                remark,
            )
    for what, count in (("request", PINGS), ("connect", CONNECTIONS)):
        ratio = seconds[what, TLS] / seconds[what, PLAINTEXT]
        for who in (PLAINTEXT, TLS):
            remark = f"{ratio:.2f} times plaintext" if who == TLS else ""
            yield f"{what}, processor time of both ends, {who}", seconds[what, who] / count / TURNS * 1e6, "us", remark


def _processor_seconds(configs: dict[str, blocking.Config], server: psutil.Process) -> Counter[tuple[str, str]]:
    """Return the seconds that each kind of work took in all turns, by work and listener."""
    spent: Counter[tuple[str, str]] = Counter()

    def count(what: str, who: str, work: Callable[[], object]) -> None:
        before = time.process_time() + sum(server.cpu_times()[:2])
        work()
        spent[what, who] += time.process_time() + sum(server.cpu_times()[:2]) - before  # type: ignore[assignment]

    batch = order_batch(BATCH_ROWS)
    connections = {who: blocking.FlussConnection.create(config) for who, config in configs.items()}
    for turn in range(TURNS):
        for who, connection in connections.items():
            path = blocking.TablePath("fluss", f"tls_{who.lower()}_{turn}")
            admin = connection.get_admin()
            properties = {"table.log.arrow.compression.type": "NONE"}
            admin.create_table(path, blocking.TableDescriptor(blocking.Schema(batch.schema), properties=properties))
            table = connection.get_table(path)
            count("append", who, partial(_append, table, batch))
            count("scan", who, partial(_scan, table))
            count("request", who, partial(_ask, admin))
            count("connect", who, partial(_connect, configs[who]))
            admin.drop_table(path)
    for connection in connections.values():
        connection.close()
    return spent


def _ask(admin: blocking.FlussAdmin) -> None:
    for _ in range(PINGS):
        admin.database_exists("fluss")


def _append(table: blocking.FlussTable, batch: object) -> None:
    with table.new_append().create_writer() as writer:
        for _ in range(BATCHES):
            writer.write_arrow_batch(batch)


def _scan(table: blocking.FlussTable) -> None:
    scanner = table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe(0, EARLIEST_OFFSET)
    assert scanner.to_arrow().num_rows == BATCHES * BATCH_ROWS


def _connect(config: blocking.Config) -> None:
    for _ in range(CONNECTIONS):
        blocking.FlussConnection.create(config).close()
