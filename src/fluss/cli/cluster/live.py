"""``fluss top``: what a cluster is doing, again and again."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import click

from fluss.cli.kernel.commands import Command
from fluss.cli.kernel.parameters import DATABASE
from fluss.cli.kernel.session import Session, pass_session
from fluss.errors import FlussError

_SAMPLE: Final = re.compile(r"^(?P<name>fluss_[a-z0-9_]+)(?:\{[^}]*\})? (?P<value>\S+)")
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_TIMEOUT_S: Final = 3.0
# Asking a table for its offsets takes a request for each of its partitions.
_TABLES_MAX: Final = 200
_SCALES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class TableRate(NamedTuple):
    """One line: a table, the records in its logs, how many come per second, and how far consumers are behind."""

    table: str
    records: int
    rate: float | None
    lag: int | None


@dataclass
class Activity:
    """What was seen at one moment; rates are from one moment to the next."""

    taken_s: float
    ends: dict[str, int] = field(default_factory=dict)
    lags: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] | None = None


def metrics_of(url: str) -> dict[str, float] | None:
    """Read the metrics of a server, each name with the sum of its values; None if there is nothing to read."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            text = answer.read(_ANSWER_BYTES_MAX).decode(errors="replace")
    except (OSError, ValueError):
        return None
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is not None:
            found[sample["name"]] = found.get(sample["name"], 0.0) + float(sample["value"])
    return found


class ClusterWatch:
    """Looks at a cluster."""

    def __init__(
        self, session: Session, databases: Sequence[str], metrics_url: str | None, clock: Callable[[], float]
    ) -> None:
        self._session = session
        self._databases = databases
        self._clock = clock
        self.metrics_url = metrics_url or self._found_url()

    def _found_url(self) -> str | None:
        """Return where servers of this package show their metrics, if they do and say so."""
        try:
            options = {entry.key: entry.value for entry in self._session.admin.describe_cluster_configs()}
        except FlussError:
            return None
        listener = options.get("http.listener") or "off"
        if listener != "off":
            scheme, _, address = listener.rpartition("://")
            address = address if ":" in address else f"127.0.0.1:{address}"
            return f"{scheme or 'http'}://{address}/metrics"
        port = options.get("metrics.reporter.prometheus.port")
        host = options.get("metrics.reporter.prometheus.host", "127.0.0.1")
        return f"http://{host}:{port}/metrics" if port and port != "0" else None

    def look(self) -> Activity:
        """Ask for everything once."""
        admin = self._session.admin
        seen = Activity(self._clock())
        names = [
            f"{database}.{table}"
            for database in self._databases or sorted(admin.list_databases())
            for table in sorted(admin.list_tables(database))
        ]
        for name in names[:_TABLES_MAX]:
            # A table may be dropped meanwhile.
            try:
                seen.ends[name] = self._end(name)
                consumers = self._session.table(name).consumers()
                if consumers:
                    seen.lags[name] = max(each.lag for each in consumers)
            except FlussError as error:
                if error.is_retriable:
                    raise
        if self.metrics_url is not None:
            seen.metrics = metrics_of(self.metrics_url)
        return seen

    def _end(self, table: str) -> int:
        admin = self._session.admin
        info = admin.get_table_info(table)
        ids = list(range(info.num_buckets))
        if not info.is_partitioned():
            return sum(admin.list_offsets(table, ids, "latest").values())
        return sum(
            sum(admin.list_partition_offsets(table, each.partition_name, ids, "latest").values())
            for each in admin.list_partition_infos(table)
        )


def table_rates(before: Activity | None, now: Activity) -> list[TableRate]:
    """Return a line for each table, the busiest first."""
    seconds = now.taken_s - before.taken_s if before is not None else 0.0
    lines = [
        TableRate(
            name,
            end,
            (end - before.ends[name]) / seconds if before is not None and seconds > 0 and name in before.ends else None,
            now.lags.get(name),
        )
        for name, end in now.ends.items()
    ]
    return sorted(lines, key=lambda line: (-(line.rate or 0.0), line.table))


def server_facts(before: Activity | None, now: Activity) -> dict[str, float]:
    """Return what the metrics of a server say: rates of counters, and what is held now."""
    if now.metrics is None:
        return {}
    facts: dict[str, float] = {}
    seconds = now.taken_s - before.taken_s if before is not None else 0.0
    for label, name in (
        ("requests_per_s", "fluss_requests_total"),
        ("errors_per_s", "fluss_request_errors_total"),
        ("bytes_in_per_s", "fluss_received_bytes_total"),
        ("bytes_out_per_s", "fluss_sent_bytes_total"),
    ):
        if before is not None and before.metrics is not None and seconds > 0 and name in now.metrics:
            facts[label] = max(now.metrics[name] - before.metrics.get(name, 0.0), 0.0) / seconds
    for label, name in (("connections", "fluss_connections"), ("memory_bytes", "fluss_resident_memory_bytes")):
        if name in now.metrics:
            facts[label] = now.metrics[name]
    return facts


def scaled(number: float | None, unit: str = "") -> str:
    """Return a number for people: ``1.2k``."""
    if number is None:
        return ""
    for size, letter in _SCALES:
        if number >= size:
            return f"{number / size:.1f}{letter}{unit}"
    return f"{number:.0f}{unit}"


@click.command(
    cls=Command,
    examples=(
        "fluss top",
        "fluss top sales --every 1",
        "fluss top --count 2 --format json          # two looks, for a script",
    ),
)
@click.argument("databases", type=DATABASE, nargs=-1, metavar="[DATABASE]...")
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many looks.  [default: at a terminal, never]")
@click.option(
    "--metrics", "metrics_url", metavar="URL", help="Where a server shows its metrics, if it does not say so."
)
@pass_session
def top(session: Session, databases: tuple[str, ...], every: float, count: int | None, metrics_url: str | None) -> None:
    """Show what a cluster is doing, live: records per table, lag, requests, bytes, memory.

    Records and lag are known of every cluster. Requests, bytes and memory are read from the metrics of a server, which
    it shows if it has an 'http.listener'. Without a terminal it looks twice, and prints the second look.
    """
    watch = ClusterWatch(session, databases, metrics_url, time.monotonic)
    if session.out.is_terminal and session.out.format == "table":
        _show_live(session, watch, every, count)
        return
    before: Activity | None = None
    looks = 2 if count is None else count
    for number in range(looks):
        now = watch.look()
        if before is not None or looks == 1:
            _print(session, before, now)
        before = now
        if number < looks - 1:
            time.sleep(every)


def _print(session: Session, before: Activity | None, now: Activity) -> None:
    lines = table_rates(before, now)
    if session.out.format == "json":
        tables = [line._asdict() for line in lines]
        session.out.record({"server": server_facts(before, now), "tables": tables})
        return
    session.out.rows(("table", "records", "records/s", "lag"), [_cells(line) for line in lines], empty="no tables yet")


def _cells(line: TableRate) -> tuple[Any, ...]:
    rate = None if line.rate is None else round(line.rate, 1)
    return line.table, line.records, rate, line.lag


def _show_live(session: Session, watch: ClusterWatch, every: float, count: int | None) -> None:
    from rich.live import Live

    before: Activity | None = None
    looks = 0
    with Live(auto_refresh=False, screen=count is None, transient=False) as live:
        while True:
            now = watch.look()
            live.update(_screen(before, now, watch.metrics_url), refresh=True)
            before, looks = now, looks + 1
            if count is not None and looks >= count:
                return
            time.sleep(every)


def _screen(before: Activity | None, now: Activity, metrics_url: str | None) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = server_facts(before, now)
    parts = [
        f"requests {scaled(facts.get('requests_per_s'), '/s') or '-'}",
        f"errors {scaled(facts.get('errors_per_s'), '/s') or '-'}",
        f"in {scaled(facts.get('bytes_in_per_s'), 'B/s') or '-'}",
        f"out {scaled(facts.get('bytes_out_per_s'), 'B/s') or '-'}",
        f"connections {scaled(facts.get('connections')) or '-'}",
        f"memory {scaled(facts.get('memory_bytes'), 'B') or '-'}",
    ]
    head = Text("   ".join(parts), style="bold") if now.metrics is not None else Text(_without_metrics(metrics_url))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("TABLE", "RECORDS", "RECORDS/S", "LAG"):
        table.add_column(name, justify="left" if name == "TABLE" else "right")
    for line in table_rates(before, now)[:30]:
        lag = "" if line.lag is None else f"{line.lag:,}"
        table.add_row(Text(line.table), f"{line.records:,}", scaled(line.rate), lag)
    return Group(head, Text(""), table, Text(""), Text("Ctrl-C ends this", style="dim"))


def _without_metrics(metrics_url: str | None) -> str:
    if metrics_url is None:
        return "no requests, bytes and memory: the servers show no metrics ('http.listener'); --metrics URL names them"
    return f"no requests, bytes and memory: nothing answers at {metrics_url}"
