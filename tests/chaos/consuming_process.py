"""One member of two consumers of a table, as a process that may be killed: one copies exactly once, one at least once.

    python -m tests.chaos.consuming_process CONFIG DIRECTORY

CONFIG is JSON: the table and the options of the client. The first consumer copies into ``exact.db`` in the directory:
rows and positions in one transaction, fenced by the epochs. The other one appends a line per record to ``plain.txt``,
and leaves its commits to the polls.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import fluss
from fluss import blocking
from fluss.errors import ConsumerFencedError, FlussError
from fluss.retry import JOBS, retried

POLL_MS = 100
CONNECT_S = 300.0


class Sink:
    """A database that has every record once: what was stored and how far that is are one transaction."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=120, isolation_level=None)
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute("CREATE TABLE IF NOT EXISTS ids (id INTEGER)")
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS positions (bucket INTEGER PRIMARY KEY, epoch INTEGER, next_offset INTEGER)"
        )

    def claim(self, bucket: fluss.TableBucket, epoch: int) -> int:
        """Refuse from now on what earlier owners of the bucket store, and return where to go on."""
        with self._database as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute(
                "INSERT INTO positions VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET epoch = max(epoch, excluded.epoch)",
                (bucket.bucket_id, epoch, fluss.EARLIEST_OFFSET),
            )
            row = database.execute("SELECT next_offset FROM positions WHERE bucket = ?", (bucket.bucket_id,)).fetchone()
        return int(row[0])

    def store(self, records: fluss.ScanRecords, epochs: dict[fluss.TableBucket, int]) -> bool:
        """Store records and how far they go; False, and nothing is stored, if a bucket has a later owner."""
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        for bucket, of_bucket in records.items():
            moved = database.execute(
                "UPDATE positions SET next_offset = ? WHERE bucket = ? AND epoch = ?",
                (of_bucket[-1].offset + 1, bucket.bucket_id, epochs[bucket]),
            )
            if not moved.rowcount:
                database.execute("ROLLBACK")
                return False
            database.executemany("INSERT INTO ids VALUES (?)", [(record.row["id"],) for record in of_bucket])
        database.execute("COMMIT")
        return True


def copy_exactly(consumer: fluss.Consumer, sink: Sink) -> None:
    records = consumer.poll(POLL_MS)
    if records and sink.store(records, consumer.epochs()):
        consumer.commit()


def copy_plainly(consumer: fluss.Consumer, file: int) -> None:
    lines = "".join(f"{record.row['id']}\n" for record in consumer.poll(POLL_MS))
    # One write, so that lines of several processes do not mix.
    os.write(file, lines.encode())


def connected(options: dict[str, str]) -> blocking.FlussConnection:
    """Connect as soon as there is a server."""
    return retried(lambda: blocking.FlussConnection.create(fluss.Config(options)), JOBS, CONNECT_S)


def unless_fenced(step: Callable[[], None]) -> None:
    try:
        step()
    except ConsumerFencedError as error:
        print(f"fenced: {error.message}", flush=True)
    except FlussError as error:
        # A commit that a server which is away for long has not answered. The sink knows better.
        if not error.is_retriable:
            raise
        logging.info("goes on: %s", error.message)


def main(config_text: str, directory: Path) -> None:
    logging.basicConfig(level=logging.INFO, format=f"{os.getpid()} %(asctime)s %(name)s %(message)s")
    given = json.loads(config_text)
    sink = Sink(directory / "exact.db")
    file = os.open(directory / "plain.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    is_stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    with connected(given["options"]) as connection:
        table = retried(lambda: connection.get_table(fluss.TablePath(*given["table"])), JOBS, CONNECT_S)
        with (
            table.consumer("exact", auto_commit=False, on_assign=sink.claim) as exact,
            table.consumer("plain") as plain,
        ):
            print("begun", flush=True)
            while not is_stopping:
                unless_fenced(lambda: copy_exactly(exact, sink))
                unless_fenced(lambda: copy_plainly(plain, file))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
