"""What a memory costs: a consumer that commits, against a scanner that forgets; and how long a commit and joining take.

Reads are compared in processor time of the whole client, in turns; the table is the same. A commit is compared with an
upsert that is awaited, of which it is made: it also waits until it has read its own record.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import TypeAlias

from benchmarks.e2e.workload import BATCH_ROWS, SCHEMA, order_batch
from fluss import EARLIEST_OFFSET, blocking, embedded

Line: TypeAlias = tuple[str, float, str, str]

BATCHES = 40
ROWS = BATCHES * BATCH_ROWS
TURNS = 7
COMMITS = 200
BUCKETS = 4


def measure() -> Iterator[Line]:
    with (
        embedded.start({"durability": "os"}, process=True) as server,
        blocking.FlussConnection.create(server.config()) as connection,
    ):
        path = blocking.TablePath("fluss", "consumed")
        descriptor = blocking.TableDescriptor(blocking.Schema(SCHEMA), bucket_count=BUCKETS)
        connection.get_admin().create_table(path, descriptor)
        table = connection.get_table(path)
        with table.new_append().create_writer() as writer:
            for _ in range(BATCHES):
                writer.write_arrow(order_batch(BATCH_ROWS))
        yield from _reads(table)
        yield from _commits(connection, table)
        yield from _joins(table)


def _reads(table: blocking.FlussTable) -> Iterator[Line]:
    scanned, consumed = [], []
    for turn in range(TURNS):
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), EARLIEST_OFFSET))
        scanned.append(_seconds(scanner.poll_arrow))
        scanner.close()
        with table.consumer(f"reads {turn}") as consumer:
            consumer.poll_arrow(0)
            consumed.append(_seconds(consumer.poll_arrow))
    base, seconds = statistics.median(scanned), statistics.median(consumed)
    yield "rows read by a scanner, per second of processor time", ROWS / base, "rows/s", ""
    yield (
        "rows read by a consumer, per second of processor time",
        ROWS / seconds,
        "rows/s",
        f"{base / seconds:.2f} of a scanner",
    )


def _seconds(poll: Callable[[int], Sized]) -> float:
    count, started = 0, time.process_time()
    while count < ROWS:
        count += len(poll(1000))
    return time.process_time() - started


def _commits(connection: blocking.FlussConnection, table: blocking.FlussTable) -> Iterator[Line]:
    with table.consumer("commits", auto_commit=False) as consumer:
        while not consumer.positions():
            consumer.poll_arrow(1000)
        bucket = next(iter(consumer.positions()))
        seconds = [_timed(partial(consumer.commit, {bucket: number})) for number in range(COMMITS)]
    upsert = connection.get_table(blocking.TablePath("fluss", "consumers")).new_upsert().create_writer()
    base = [_timed(partial(_upsert, upsert, number)) for number in range(COMMITS)]
    yield "an upsert, awaited", statistics.median(base) * 1000, "ms", ""
    ratio = statistics.median(seconds) / statistics.median(base)
    yield "a commit", statistics.median(seconds) * 1000, "ms", f"{ratio:.1f} times an upsert"


def _upsert(writer: blocking.UpsertWriter, number: int) -> None:
    writer.upsert({"table_name": "other", "consumer": "none", "entry": "none", "number": number})
    writer.flush()


def _joins(table: blocking.FlussTable) -> Iterator[Line]:
    seconds = []
    for _ in range(TURNS):
        consumer = table.consumer("joins")
        seconds.append(_timed(partial(consumer.poll_arrow, 0)))
        consumer.close()
    yield "joining a group, alone", statistics.median(seconds) * 1000, "ms", "until the first poll has its buckets"


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
