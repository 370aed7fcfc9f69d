"""``fluss bench``: a short measurement of a cluster, from here, with one client."""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from fluss.cli.kernel.commands import Command
from fluss.cli.kernel.session import DEFAULT_DATABASE, SERVERS_KEY, Session, pass_session

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss import blocking

_BATCH_ROWS: Final = 10_000


class Figure(NamedTuple):
    """One line of the report."""

    what: str
    rows_per_s: float | None = None
    mb_per_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None


@click.command(cls=Command, examples=("fluss bench", "fluss bench --seconds 10 --row-bytes 1000 --format json"))
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=3.0, show_default=True, help="How long for each line."
)
@click.option(
    "--row-bytes", type=click.IntRange(min=16), default=100, show_default=True, help="About how large a row is."
)
@click.option(
    "--keys", type=click.IntRange(min=1), default=100_000, show_default=True, help="How many rows are looked up among."
)
@click.option(
    "--buckets", type=click.IntRange(min=1), default=4, show_default=True, help="How many buckets the tables have."
)
@pass_session
def bench(session: Session, seconds: float, row_bytes: int, keys: int, buckets: int) -> None:
    """Measure a cluster for a moment: writes, reads, lookups.

    Two tables are made and dropped again. It is one client on this machine: what comes out is what one program gets
    from here, acknowledged by all replicas, and no limit of the servers. A busy machine, and the network between, are
    in the figures.
    """
    from fluss import blocking

    config = session.config()
    conditions = _conditions(session, config.bootstrap_servers, seconds, row_bytes, buckets)
    figures: list[Figure] = []
    with _tables(session, buckets) as (log_path, keyed_path):
        work = _Work(seconds, row_bytes, keys)
        log_table = session.table(log_path)
        figures.append(work.append(log_table))
        figures.append(work.read(log_table))
        quick = config.copy()
        # A row that waits for others says more about the waiting than about the server.
        quick.writer_batch_timeout_ms = 0
        with blocking.connect(quick) as connection:
            figures.append(work.single_appends(connection.get_table(log_path)))
        keyed_table = session.table(keyed_path)
        figures.append(work.upsert(keyed_table))
        figures.append(work.lookups(keyed_table))
        figures.append(work.many_lookups(keyed_table))
    if session.out.format == "table":
        session.out.record(conditions)
        session.out.say("")
        rows = [tuple(_rounded(value) for value in figure) for figure in figures]
        session.out.rows(("what", "rows/s", "MB/s", "p50 ms", "p99 ms"), rows)
    else:
        session.out.rows(Figure._fields, figures)


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _conditions(session: Session, servers: str, seconds: float, row_bytes: int, buckets: int) -> dict[str, Any]:
    from fluss._version import __version__
    from fluss.errors import FlussError

    told: dict[str, str | None] = {}
    with suppress(FlussError):
        told = {entry.key: entry.value for entry in session.admin.describe_cluster_configs()}
    return {
        SERVERS_KEY: servers,
        "durability": told.get("durability") or "as the cluster has it",
        "client": f"Flussbett {__version__}, Python {platform.python_version()}, {os.cpu_count()} processors",
        "tables": f"{buckets} buckets, rows of about {row_bytes} bytes, {seconds:g} s for each line",
    }


@contextmanager
def _tables(session: Session, buckets: int) -> Iterator[tuple[str, str]]:
    import pyarrow as pa

    from fluss.schema.descriptor import TableDescriptor
    from fluss.schema.schema import Schema

    columns = pa.schema([("id", pa.int64()), ("text", pa.string())])
    mark = secrets.token_hex(4)
    paths = f"{DEFAULT_DATABASE}.bench_log_{mark}", f"{DEFAULT_DATABASE}.bench_keys_{mark}"
    admin = session.admin
    admin.create_database(DEFAULT_DATABASE, ignore_if_exists=True)
    try:
        for path, keys in zip(paths, (None, ["id"]), strict=True):
            admin.create_table(path, TableDescriptor(Schema(columns, primary_keys=keys), bucket_count=buckets))
        yield paths
    finally:
        for path in paths:
            admin.drop_table(path, ignore_if_not_exists=True)


class _Work:
    """Does one thing after the other, each for some seconds."""

    def __init__(self, seconds: float, row_bytes: int, keys: int) -> None:
        self._keys = keys
        self._seconds = seconds
        self._text_chars = max(row_bytes - 16, 1)
        self._batch_bytes = 0

    def _batch(self, first: int) -> pa.RecordBatch:
        import pyarrow as pa

        # Random texts, since equal ones would be compressed to nothing.
        random = secrets.token_bytes((self._text_chars * _BATCH_ROWS + 1) // 2).hex()
        texts = [
            random[at : at + self._text_chars] for at in range(0, _BATCH_ROWS * self._text_chars, self._text_chars)
        ]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(range(first, first + _BATCH_ROWS), pa.int64()), pa.array(texts, pa.string())],
            names=["id", "text"],
        )
        self._batch_bytes = batch.nbytes
        return batch

    def append(self, table: blocking.FlussTable) -> Figure:
        writer = table.new_append().create_writer()
        return self._written("append in batches", writer.write_arrow_batch, writer.flush, keys=None)

    def upsert(self, table: blocking.FlussTable) -> Figure:
        writer = table.new_upsert().create_writer()
        return self._written("upsert in batches", writer.upsert_arrow_batch, writer.flush, keys=self._keys)

    def _written(
        self, what: str, write: Callable[[pa.RecordBatch], Any], flush: Callable[[], Any], keys: int | None
    ) -> Figure:
        # Made before, so that it is not measured; all keys are there in the end.
        batches = [self._batch(first) for first in range(0, self._keys, _BATCH_ROWS)]
        rows = 0
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < self._seconds or (keys is not None and rows < keys):
            write(batches[rows // _BATCH_ROWS % len(batches)])
            rows += _BATCH_ROWS
        flush()
        seconds = time.monotonic() - begun_s
        return Figure(what, rows / seconds, rows / _BATCH_ROWS * self._batch_bytes / seconds / 1e6)

    def read(self, table: blocking.FlussTable) -> Figure:
        rows = byte_count = 0
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < self._seconds:
            with table.to_arrow_batch_reader() as reader:
                for batch in reader:
                    rows += batch.num_rows
                    byte_count += batch.nbytes
                    if time.monotonic() - begun_s >= self._seconds:
                        break
        seconds = time.monotonic() - begun_s
        return Figure("read everything", rows / seconds, byte_count / seconds / 1e6)

    def single_appends(self, table: blocking.FlussTable) -> Figure:
        writer = table.new_append().create_writer()
        row = {"id": 0, "text": "x" * self._text_chars}
        return self._timed("append one row, acknowledged", lambda: writer.append(row).wait())

    def lookups(self, table: blocking.FlussTable) -> Figure:
        lookuper = table.new_lookup().create_lookuper()
        return self._timed("look up one key", lambda: lookuper.lookup({"id": secrets.randbelow(self._keys)}))

    def many_lookups(self, table: blocking.FlussTable) -> Figure:
        import pyarrow as pa

        lookuper = table.new_lookup().create_lookuper()
        keys = pa.table({"id": [secrets.randbelow(self._keys) for _ in range(_BATCH_ROWS)]})
        rows = 0
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < self._seconds:
            rows += lookuper.lookup_many(keys).num_rows
        return Figure("look up 10,000 keys at once", rows / (time.monotonic() - begun_s))

    def _timed(self, what: str, work: Callable[[], Any]) -> Figure:
        work()
        times_s = []
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < self._seconds:
            before_s = time.perf_counter()
            work()
            times_s.append(time.perf_counter() - before_s)
        times_s.sort()
        seconds = time.monotonic() - begun_s
        return Figure(what, len(times_s) / seconds, None, _at(times_s, 0.5) * 1000, _at(times_s, 0.99) * 1000)


def _at(sorted_values: list[float], part: float) -> float:
    return sorted_values[min(int(len(sorted_values) * part), len(sorted_values) - 1)]
