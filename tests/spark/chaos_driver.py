"""The driver of ``tests.spark.chaos_streams``: five streams from one table, each into a table of another kind.

    stream       into                                     what it writes of the number n
    append       a log table                              n
    upsert       a table with a primary key               n, under the key n % KEYS
    delete       the same, with a column of changes       the same, as a delete in every second round of the keys
    partial      the same, one column of two              the same, beside a value that was there before
    aggregation  a table whose rows are sums              n and 1, under the key n % GROUPS

It goes on until it is killed, or until a file tells it to finish: then it waits until all numbers have arrived.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from fluss.spark import FlussSpark

DATABASE: Final = "chaos"
SOURCE: Final = f"{DATABASE}.numbers"
GROUPS: Final = 50
# A multiple of the groups: the numbers of a key are in one bucket of the source, and so in their order.
KEYS: Final = 1000
STREAMS: Final = ("append", "upsert", "delete", "partial", "aggregation")
_TRIGGER: Final = "500 milliseconds"
_FINISH, _RESTARTS = "finish", "restarts.txt"


def target(stream: str) -> str:
    """Return the table that a stream writes to."""
    return f"{DATABASE}.{stream}_rows"


def checkpoint(directory: Path, stream: str) -> Path:
    return directory / "checkpoints" / stream


def tell_to_finish(directory: Path) -> None:
    (directory / _FINISH).touch()


def restarts(directory: Path) -> list[str]:
    """Return what the queries said that gave up and were started again."""
    notes = directory / _RESTARTS
    return notes.read_text().splitlines() if notes.exists() else []


def start(fs: FlussSpark, name: str, progress: Path) -> StreamingQuery:
    """Start a stream, from where it was."""
    numbers, by_key = fs.read_stream(SOURCE), (f.col("n") % KEYS).alias("k")
    options: dict[str, Any] = {"sequence_column": "n"}
    match name:
        case "append":
            rows, options = numbers.select("n"), {}
        case "upsert":
            rows = numbers.select(by_key, "n")
        case "delete":
            is_delete = f.floor(f.col("n") / KEYS) % 2 == 1
            rows = numbers.select(by_key, "n", f.when(is_delete, "delete").otherwise("insert").alias("change"))
            options["change_type_column"] = "change"
        case "partial":
            rows = numbers.select(by_key, "n")
            options["target_columns"] = ["k", "n"]
        case _:
            rows = numbers.select("g", f.col("n").alias("total"), f.lit(1).cast("bigint").alias("amount"))
            options = {}
    return fs.write_stream(rows, target(name), checkpoint=str(progress), trigger=_TRIGGER, **options)


class Streams:
    """The queries, which are started again when they have failed."""

    def __init__(self, fs: FlussSpark, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._queries = {name: self._start(name) for name in STREAMS}

    def _start(self, name: str) -> StreamingQuery:
        """Start a query; a server that is away for longer than a start waits is asked again."""
        while True:
            try:
                return start(self._fs, name, checkpoint(self._directory, name))
            except Exception as error:
                self._note(name, error)

    def _note(self, name: str, error: object) -> None:
        with (self._directory / _RESTARTS).open("a") as notes:
            notes.write(f"{name}: {' '.join(str(error).split())[:300]}\n")

    def revive(self) -> None:
        """Start again what has failed, from where it was."""
        for name, query in self._queries.items():
            if not query.isActive:
                self._note(name, query.exception())
                self._queries[name] = self._start(name)

    def finish(self) -> None:
        """Wait until everything that was written has arrived."""
        for name in STREAMS:
            self._process_all(name)
            self._queries[name].stop()

    def _process_all(self, name: str) -> None:
        while True:
            try:
                return self._queries[name].processAllAvailable()
            except Exception as error:
                self._note(name, error)
                self._queries[name] = self._start(name)


def main(bootstrap_servers: str, directory: Path) -> None:
    builder = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    streams = Streams(FlussSpark(spark, bootstrap_servers=bootstrap_servers), directory)
    while not (directory / _FINISH).exists():
        streams.revive()
        time.sleep(0.2)
    streams.finish()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
