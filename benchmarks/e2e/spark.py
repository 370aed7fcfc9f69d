"""Spark on a Fluss table: batch and streaming, beside the plain client in one process and Spark's own Parquet.

Server, Spark's JVM, its Python workers and the plain client share the same cores, so a figure says what a machine with
these cores gives in total. All three see the same rows, in the same run.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fluss import blocking, embedded
from fluss.spark import FlussSpark, session

Line = tuple[str, float, str, str]
ROWS: Final = 2_000_000
FILES: Final = 8
BUCKETS: Final = 4
TURNS: Final = 3
DATABASE: Final = "bench"
ONE_COLUMN: Final = "user"
# Micro-batches whose duration is measured, after as many that warm everything up.
MICRO_BATCHES: Final = 60
MICRO_BATCH_PAUSE_S: Final = 0.01
SCHEMA: Final = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field(ONE_COLUMN, pa.int32()),
        pa.field("amount", pa.float64()),
        pa.field("price", pa.decimal128(15, 2)),
        pa.field("at", pa.timestamp("us")),
        pa.field("city", pa.string()),
        pa.field("product", pa.string()),
        pa.field("note", pa.string()),
    ]
)


def rows(first_id: int, row_count: int) -> pa.RecordBatch:
    """Return rows with made-up but reproducible values: about 137 bytes each."""
    ids = np.arange(first_id, first_id + row_count)
    cities = pa.array([f"city no. {number:04d}" for number in range(1000)])
    products = pa.array([f"product {number:06d} of the catalogue" for number in range(10_000)])
    notes = pa.array([f"note {number:05d}: to be delivered between 8" for number in range(50_000)])
    columns = [
        pa.array(ids),
        pa.array((ids * 7919 % 100_003).astype(np.int32)),
        pa.array((ids * 104_729 % 1_000_003) / 100),
        pa.array(ids * 31 % 1_000_000).cast(pa.decimal128(19, 0)).cast(pa.decimal128(15, 2)),
        pa.array(ids * 1000 + 1_700_000_000_000_000).cast(pa.timestamp("us")),
        cities.take(pa.array(ids % 1000)),
        products.take(pa.array(ids * 17 % 10_000)),
        notes.take(pa.array(ids * 13 % 50_000)),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def measure() -> Iterator[Line]:
    # Spark measures itself, not the disk: nothing waits for it anywhere, as Parquet files do not.
    with (
        tempfile.TemporaryDirectory() as directory,
        embedded.start({"durability": "os"}, process=True) as server,
        blocking.FlussConnection.create(server.config()) as connection,
    ):
        spark = session("fluss-bench")
        try:
            fs = FlussSpark(spark, bootstrap_servers=server.bootstrap_servers)
            bench = _Bench(fs, connection, Path(directory))
            yield from bench.reads()
            yield from bench.pushed_reads()
            yield from bench.writes()
            yield from bench.streaming_writes()
            yield from bench.micro_batches()
        finally:
            spark.stop()


class _Bench:
    def __init__(self, fs: FlussSpark, connection: blocking.FlussConnection, directory: Path) -> None:
        self._fs = fs
        self._spark = fs.spark
        self._connection = connection
        self._directory = directory
        self._parquet = directory / "rows"
        self._parquet.mkdir()
        self._table_count = 0
        per_file = ROWS // FILES
        for number in range(FILES):
            pq.write_table(pa.table(rows(number * per_file, per_file)), self._parquet / f"{number}.parquet")
        connection.get_admin().create_database(DATABASE)
        self._rows = self._new_table()
        table = self._table(self._rows)
        with table.new_append().create_writer() as writer:
            for number in range(FILES):
                writer.write_arrow(rows(number * per_file, per_file))

    # Reading

    def reads(self) -> Iterator[Line]:
        for what, columns, target, share in (
            ("8 columns", None, 1500, 0.7),
            ("1 of 8 columns", [ONE_COLUMN], 4000, None),
        ):
            ours, plain, parquet = _best_of_turns(
                lambda columns=columns: drain(self._fs.read(self._rows, columns=columns)),  # type: ignore[misc]  # mypy does not see the default
                lambda columns=columns: self._table(self._rows).to_arrow(columns),  # type: ignore[misc]  # the same
                lambda columns=columns: drain(self._spark.read.parquet(str(self._parquet)).select(columns or ["*"])),  # type: ignore[misc]  # the same
            )
            yield _line(f"Spark batch read, {what}", ours, plain, parquet, target, share)

    def pushed_reads(self) -> Iterator[Line]:
        """Measure reads that are not told what they need: Spark tells them."""
        by_select, named, counted, everything = _best_of_turns(
            lambda: drain(self._fs.read(self._rows).select(ONE_COLUMN)),
            lambda: drain(self._fs.read(self._rows, columns=[ONE_COLUMN])),
            lambda: self._fs.read(self._rows).count(),
            lambda: drain(self._fs.read(self._rows)),
        )
        remark = f"{named / by_select:.2f} times naming it (target 0.90)"
        yield "Spark batch read, 1 of 8 columns by select", ROWS / by_select / 1e3, "krows/s", remark
        remark = f"{counted / everything:.3f} of the time of reading 8 columns (target 0.100)"
        yield "Spark count(*) of a log table", counted * 1e3, "ms", remark

    # Writing

    def writes(self) -> Iterator[Line]:
        frame = self._spark.read.parquet(str(self._parquet))
        plain_turn = self._plain_load
        ours, plain, parquet = _best_of_turns(
            lambda: self._fs.write(frame, self._new_table()), plain_turn, lambda: self._parquet_write(frame)
        )
        yield _line("Spark batch write", ours, plain, parquet, 500, 0.9)
        ours, plain, parquet = _best_of_turns(
            lambda: self._fs.bulk_load(str(self._parquet), self._new_table()),
            plain_turn,
            lambda: self._parquet_write(frame),
        )
        yield _line("Spark bulk load", ours, plain, parquet, 1500)

    def streaming_writes(self) -> Iterator[Line]:
        def stream(write: Callable[[Any, str], Any]) -> None:
            source = self._spark.readStream.schema(self._spark.read.parquet(str(self._parquet)).schema)
            frame = source.option("maxFilesPerTrigger", FILES // 2).parquet(str(self._parquet))
            query = write(frame, str(self._new_directory()))
            query.awaitTermination()

        ours, plain, parquet = _best_of_turns(
            lambda: stream(
                lambda frame, checkpoint: self._fs.write_stream(
                    frame, self._new_table(), checkpoint=checkpoint, trigger="available-now"
                )
            ),
            self._plain_load,
            lambda: stream(
                lambda frame, checkpoint: (
                    frame.writeStream.format("parquet")
                    .option("checkpointLocation", checkpoint)
                    .trigger(availableNow=True)
                    .start(str(self._new_directory()))
                )
            ),
        )
        yield _line("Spark streaming write, exactly once, two micro-batches", ours, plain, parquet, 500)

    def micro_batches(self) -> Iterator[Line]:
        """Measure the duration of micro-batches of a few rows each."""
        name = self._new_table()
        query = (
            self._fs.read_stream(name, startup="earliest")
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._new_directory()))
            .start()
        )
        durations: dict[int, float] = {}
        deadline_s = time.monotonic() + 60
        try:
            with self._table(name).new_append().create_writer() as writer:
                while len(durations) < 2 * MICRO_BATCHES and time.monotonic() < deadline_s:
                    writer.write_arrow_batch(rows(0, 100)).wait()
                    time.sleep(MICRO_BATCH_PAUSE_S)
                    for progress in query.recentProgress:
                        report = json.loads(progress.json)
                        if report["numInputRows"]:
                            durations[report["batchId"]] = report["durationMs"]["triggerExecution"]
        finally:
            query.stop()
        measured = [durations[batch_id] for batch_id in sorted(durations)][-MICRO_BATCHES:]
        for percentile in (50, 99):
            remark = f"target 200; {len(measured)} micro-batches of about 100 rows" if percentile == 50 else ""
            yield f"Spark micro-batch, p{percentile}", float(np.percentile(measured, percentile)), "ms", remark
        yield "Spark micro-batch, mean", statistics.mean(measured), "ms", ""

    # What is compared with

    def _plain_load(self) -> None:
        """Read the Parquet files and append them in this process, without Spark."""
        with self._table(self._new_table()).new_append().create_writer() as writer:
            for path in sorted(self._parquet.iterdir()):
                writer.write_arrow(pq.read_table(path, use_threads=True))

    def _parquet_write(self, frame: Any) -> None:
        frame.write.parquet(str(self._new_directory()))

    # Names

    def _new_table(self) -> str:
        self._table_count += 1
        path = blocking.TablePath(DATABASE, f"rows_{self._table_count}")
        descriptor = blocking.TableDescriptor(blocking.Schema(SCHEMA), bucket_count=BUCKETS)
        self._connection.get_admin().create_table(path, descriptor)
        return str(path)

    def _new_directory(self) -> Path:
        self._table_count += 1
        return self._directory / f"directory_{self._table_count}"

    def _table(self, name: str) -> blocking.FlussTable:
        return self._connection.get_table(blocking.TablePath(*name.split(".")))


def drain(frame: Any) -> None:
    """Have Spark compute all rows and throw them away."""
    frame.write.format("noop").mode("overwrite").save()


def _best_of_turns(*turns: Callable[[], object]) -> list[float]:
    """Call all of them in turn, several times; return the least seconds of each. The first round only warms up."""
    seconds = [float("inf")] * len(turns)
    for number in range(TURNS + 1):
        for index, turn in enumerate(turns):
            started = time.perf_counter()
            turn()
            if number:
                seconds[index] = min(seconds[index], time.perf_counter() - started)
    return seconds


def _line(
    what: str, ours_s: float, plain_s: float, parquet_s: float, target: int, parquet_target: float | None = None
) -> Line:
    remark = (
        f"target {target:,}; {plain_s / ours_s:.2f} times the plain client ({ROWS / plain_s / 1e3:,.0f}), "
        f"{parquet_s / ours_s:.2f} times Spark's Parquet ({ROWS / parquet_s / 1e3:,.0f})"
    )
    if parquet_target is not None:
        remark += f" (target {parquet_target:.2f})"
    return what, ROWS / ours_s / 1e3, "krows/s", remark
