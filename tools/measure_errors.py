"""Measures how soon, and in how many lines of the log, a client says what is wrong.

    python tools/measure_errors.py

Rows of partitions that do not exist: seconds until the flush of their writer raises, and lines of the log. A server
that is killed while a writer and a scanner need it: lines of the log, by level. With the installed package, or another
one that PYTHONPATH leads to.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa

import fluss
from fluss import blocking
from fluss.testing.cluster import ServerProcess

_PARTITIONS = 40


class _Lines(logging.Handler):
    """Counts what the client logs, by level."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.counts[record.levelname] += 1

    def taken(self) -> str:
        counts, self.counts = self.counts, Counter()
        return ", ".join(f"{count} {level}" for level, count in sorted(counts.items())) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--away-s", type=float, default=5.0, help="how long the server is away (default 5)")
    away_s: float = parser.parse_args().away_s
    lines = _Lines()
    logger = logging.getLogger("fluss.client")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    with (
        tempfile.TemporaryDirectory() as directory,
        ServerProcess(Path(directory), "-D", "durability=os") as server,
        blocking.FlussConnection.create(fluss.Config({"bootstrap.servers": server.bootstrap_servers})) as connection,
    ):
        _missing_partitions(connection, lines)
        _lost_server(connection, server, lines, away_s)


def _missing_partitions(connection: blocking.FlussConnection, lines: _Lines) -> None:
    path = fluss.TablePath("fluss", "by_region")
    schema = fluss.Schema(pa.schema([("region", pa.string()), ("id", pa.int64())]))
    connection.get_admin().create_table(path, fluss.TableDescriptor(schema, partition_keys=["region"]))
    writer = connection.get_table(path).new_append().create_writer()
    began_s = time.monotonic()
    for number in range(_PARTITIONS):
        writer.append([f"region-{number}", number])
    try:
        writer.flush()
    except fluss.FlussError as error:
        taken_s = time.monotonic() - began_s
        print(f"missing partitions: {taken_s:.2f} s until code {error.error_code}; log: {lines.taken()}")


def _lost_server(connection: blocking.FlussConnection, server: ServerProcess, lines: _Lines, away_s: float) -> None:
    path = fluss.TablePath("fluss", "events")
    schema = fluss.Schema(pa.schema([("id", pa.int64())]))
    connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
    table = connection.get_table(path)
    writer = table.new_append().create_writer()
    scanner = table.new_scan().create_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    writer.append([1]).wait()
    lines.taken()
    server.kill()
    handle = writer.append([2])
    began_s = time.monotonic()
    while time.monotonic() - began_s < away_s:
        scanner.poll(100)
    print(f"lost server, {away_s:g} s: {lines.taken()}")
    server.start()
    handle.wait()
    scanner.poll(1000)
    print(f"and back: {lines.taken()}")


if __name__ == "__main__":
    main()
