"""Twenty million rows through Spark, beside its own Parquet: a count needs few of them, and workers do not grow.

The resident memory of every Python process of Spark is looked at while a read and a write run. What counts is the
largest of them, early and late: workers that kept rows, or leaked them, would be larger at the end than at the
beginning. ``BENCH_ROWS`` is another number of rows.

Tables are compressed with ZSTD unless they say otherwise, Spark's Parquet with Snappy. Both are compared as they are by
default, which is what a user gets; and with the same effort: ZSTD on both sides, and LZ4, which is about as fast as
Snappy and compresses about as much, beside Snappy.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.e2e.spark import BUCKETS, SCHEMA, drain, rows
from fluss import blocking, embedded
from fluss.spark import FlussSpark, session

Line = tuple[str, float, str, str]
ROWS: Final = int(os.environ.get("BENCH_ROWS", "20_000_000"))
ROWS_PER_FILE: Final = 500_000
DATABASE: Final = "bench"
SAMPLE_INTERVAL_S: Final = 0.1
# Larger than this between the first and the second half of a job is no longer flat: about one batch of rows.
GROWTH_MB_MAX: Final = 32


def measure() -> Iterator[Line]:
    with (
        tempfile.TemporaryDirectory() as directory,
        embedded.start({"durability": "os"}, process=True) as server,
        blocking.FlussConnection.create(server.config()) as connection,
    ):
        files = _fill(connection, Path(directory) / "files")
        spark = session("fluss-bench-large")
        try:
            fs = FlussSpark(spark, bootstrap_servers=server.bootstrap_servers)
            # Whatever is started once, and code that Java compiles when it has run for a while.
            for frame in (fs.read(f"{DATABASE}.source"), spark.read.parquet(str(files))):
                drain(frame.limit(ROWS // 20))
            counted_s, _ = _watched(lambda: fs.read(f"{DATABASE}.source").count())
            read_s, reading = _watched(lambda: drain(fs.read(f"{DATABASE}.source")))
            share = f"{counted_s / read_s:.4f} of the time of reading 8 columns (target 0.1000)"
            yield f"Spark count(*) of {ROWS:,} rows", counted_s * 1e3, "ms", share
            frame = spark.read.parquet(str(files))
            parquet_s, _ = _watched(lambda: drain(frame))
            yield _line("Spark batch read, 8 columns", read_s, parquet_s, "Snappy", 0.7)
            yield from reading.lines("read")
            lz4_s, _ = _watched(lambda: drain(fs.read(f"{DATABASE}.source_lz4")))
            yield _line("Spark batch read, 8 columns, LZ4", lz4_s, parquet_s, "Snappy")
            zstd_s, _ = _watched(lambda: drain(spark.read.parquet(f"{files}-zstd")))
            yield _line("Spark batch read, 8 columns, ZSTD", read_s, zstd_s, "ZSTD")
            write_s, writing = _watched(lambda: fs.write(frame, f"{DATABASE}.target"))
            parquet_s, _ = _watched(lambda: frame.write.parquet(f"{directory}/copy"))
            yield _line("Spark batch write", write_s, parquet_s, "Snappy", 0.9)
            yield from writing.lines("written")
            lz4_s, _ = _watched(lambda: fs.write(frame, f"{DATABASE}.target_lz4"))
            yield _line("Spark batch write, LZ4", lz4_s, parquet_s, "Snappy")
            zstd_s, _ = _watched(lambda: frame.write.option("compression", "zstd").parquet(f"{directory}/copy-zstd"))
            yield _line("Spark batch write, ZSTD", write_s, zstd_s, "ZSTD")
        finally:
            spark.stop()


def _line(what: str, ours_s: float, parquet_s: float, codec: str, target: float | None = None) -> Line:
    remark = f"{parquet_s / ours_s:.2f} times Spark's Parquet with {codec} ({ROWS / parquet_s / 1e3:,.0f})"
    remark += "" if target is None else f" (target {target:.2f})"
    return f"{what}, {ROWS:,} rows", ROWS / ours_s / 1e3, "krows/s", remark


def _fill(connection: blocking.FlussConnection, directory: Path) -> Path:
    """Write the rows to tables and to Parquet files of two compressions each, and make empty tables."""
    zstd = Path(f"{directory}-zstd")
    directory.mkdir()
    zstd.mkdir()
    admin = connection.get_admin()
    admin.create_database(DATABASE)
    for name, codec in (
        ("source", "ZSTD"),
        ("target", "ZSTD"),
        ("source_lz4", "LZ4_FRAME"),
        ("target_lz4", "LZ4_FRAME"),
    ):
        properties = {"table.log.arrow.compression.type": codec}
        descriptor = blocking.TableDescriptor(blocking.Schema(SCHEMA), bucket_count=BUCKETS, properties=properties)
        admin.create_table(blocking.TablePath(DATABASE, name), descriptor)
    with ExitStack() as open_writers:
        writers = [
            open_writers.enter_context(
                connection.get_table(blocking.TablePath(DATABASE, name)).new_append().create_writer()
            )
            for name in ("source", "source_lz4")
        ]
        for first in range(0, ROWS, ROWS_PER_FILE):
            batch = rows(first, min(ROWS_PER_FILE, ROWS - first))
            for writer in writers:
                writer.write_arrow(batch)
            pq.write_table(pa.table(batch), directory / f"{first:012d}.parquet")
            pq.write_table(pa.table(batch), zstd / f"{first:012d}.parquet", compression="zstd")
    return directory


class _Workers:
    """The resident memory of the largest Python worker of Spark, again and again while a job runs."""

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Workers:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(SAMPLE_INTERVAL_S):
            sizes = [0]
            for child in psutil.Process().children(recursive=True):
                # Processes end while they are looked at.
                with suppress(psutil.Error):
                    if "pyspark.daemon" in child.cmdline():
                        sizes.append(child.memory_info().rss)
            self._samples.append(max(sizes) / 1e6)

    def lines(self, what: str) -> Iterator[Line]:
        half = len(self._samples) // 2
        early, late = (max(part, default=0.0) for part in (self._samples[:half], self._samples[half:]))
        remark = f"{late - early:+.0f} MB in the second half (target at most +{GROWTH_MB_MAX})"
        yield f"Spark, largest Python worker over {ROWS:,} rows {what}", max(early, late), "MB", remark


def _watched(job: Callable[[], object]) -> tuple[float, _Workers]:
    """Run a job; return its seconds, and what its workers had of memory."""
    with _Workers() as workers:
        began_s = time.perf_counter()
        job()
        took_s = time.perf_counter() - began_s
    return took_s, workers
