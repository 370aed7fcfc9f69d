"""``fluss top``: what a cluster is doing, again and again."""

from __future__ import annotations

import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
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
_EVERY_ADDRESS: Final = ("0.0.0.0", "[::]")
_BARS: Final = "▁▂▃▄▅▆▇█"
# So many looks are drawn, the newest at the right.
_HISTORY_LOOKS: Final = 60
# What is shown of a server, in its order on the screen: the fact, its name, its unit, whether it is drawn over time.
_SHOWN_FACTS: Final = (
    ("requests_per_s", "requests", "/s", True),
    ("errors_per_s", "errors", "/s", True),
    ("bytes_in_per_s", "in", "B/s", True),
    ("bytes_out_per_s", "out", "B/s", True),
    ("memory_bytes", "memory", "B", True),
    ("connections", "connections", "", False),
)
# Lines of the screen that are not tables: facts, blanks, the head, what is left out, how it ends.
_OTHER_LINES: Final = len(_SHOWN_FACTS) + 7


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
    # How many tables there are beside those that were looked at.
    more_tables: int = 0


def metrics_of(url: str) -> dict[str, float] | None:
    """Read the metrics of a server, each name with the sum of its values; None if there is nothing to read."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            text = answer.read(_ANSWER_BYTES_MAX).decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException):
        return None
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is not None:
            found[sample["name"]] = found.get(sample["name"], 0.0) + float(sample["value"])
    return found


def metrics_url_of(options: Mapping[str, str | None], servers: str) -> str | None:
    """Return where a server with these options shows its metrics to this machine; None if it does not."""
    host_of_server = servers.partition(",")[0].rpartition(":")[0]
    listener = options.get("http.listener") or "off"
    port_alone = options.get("metrics.reporter.prometheus.port") or "0"
    if listener != "off":
        scheme, _, address = listener.rstrip("/").rpartition("://")
        host, _, port = address.rpartition(":")
    elif port_alone != "0":
        scheme, host, port = "http", options.get("metrics.reporter.prometheus.host") or "", port_alone
    else:
        return None
    if host in _EVERY_ADDRESS:
        host = host_of_server
    elif (not host or _is_this_machine(host)) and not _is_this_machine(host_of_server):
        # It shows them to its own machine, where something else may have the same port.
        return None
    return f"{scheme or 'http'}://{host or '127.0.0.1'}:{port}/metrics"


def _is_this_machine(host: str) -> bool:
    return host in ("localhost", "[::1]") or host.startswith("127.")


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
        return metrics_url_of(options, self._session.config().bootstrap_servers)

    def look(self) -> Activity:
        """Ask for everything once."""
        admin = self._session.admin
        seen = Activity(self._clock())
        names = [
            f"{database}.{table}"
            for database in self._databases or sorted(admin.list_databases())
            for table in sorted(admin.list_tables(database))
        ]
        seen.more_tables = max(len(names) - _TABLES_MAX, 0)
        has_consumers = self._has_consumers()
        for name in names[:_TABLES_MAX]:
            # A table may be dropped meanwhile.
            try:
                seen.ends[name] = self._end(name)
                consumers = self._session.table(name).consumers() if has_consumers else []
                if consumers:
                    seen.lags[name] = max(each.lag for each in consumers)
            except FlussError as error:
                if error.is_retriable:
                    raise
        if self.metrics_url is not None:
            seen.metrics = metrics_of(self.metrics_url)
        return seen

    def _has_consumers(self) -> bool:
        """Return whether there have been any: asking for a table that is not there is an error in the metrics."""
        database, _, table = self._session.config().consumer_table.partition(".")
        admin = self._session.admin
        return database in admin.list_databases() and table in admin.list_tables(database)

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
    lines, facts = table_rates(before, now), server_facts(before, now)
    if session.out.format == "json":
        tables = [line._asdict() for line in lines]
        session.out.record({"server": facts, "tables": tables})
        return
    if session.out.format == "table" and facts:
        session.out.record(
            {name: scaled(facts.get(fact), unit) for fact, name, unit, _ in _SHOWN_FACTS if fact in facts}
        )
        session.out.say("")
    session.out.rows(("table", "records", "records/s", "lag"), [_cells(line) for line in lines], empty="no tables yet")
    if now.more_tables:
        session.out.note(_left_out(now.more_tables))


def _cells(line: TableRate) -> tuple[Any, ...]:
    rate = None if line.rate is None else round(line.rate, 1)
    return line.table, line.records, rate, line.lag


def _left_out(count: int) -> str:
    return f"{count:,} more tables are not looked at; name a database to see its tables"


def _show_live(session: Session, watch: ClusterWatch, every: float, count: int | None) -> None:
    from rich.live import Live

    screen = Screen(session.config().bootstrap_servers, watch.metrics_url)
    before: Activity | None = None
    looks = 0
    with Live(auto_refresh=False, screen=count is None, transient=False) as live:
        while True:
            try:
                now = watch.look()
            except FlussError as error:
                # A server that is restarted is waited for; one that was never there is not.
                if before is None or count is not None or not error.is_retriable:
                    raise
                live.update(screen.without_answer(error.message, live.console.height), refresh=True)
            else:
                live.update(screen.drawn(before, now, live.console.height), refresh=True)
                before, looks = now, looks + 1
            if count is not None and looks >= count:
                return
            time.sleep(every)


class Screen:
    """What a person sees: facts of the server with their last minutes, tables below, as many as there is room for."""

    def __init__(self, servers: str, metrics_url: str | None) -> None:
        self._servers = servers
        self._metrics_url = metrics_url
        self._history: dict[str, deque[float]] = {
            fact: deque(maxlen=_HISTORY_LOOKS) for fact, _, _, is_drawn in _SHOWN_FACTS if is_drawn
        }
        self._last: tuple[Activity | None, Activity] | None = None
        # rich leaves only colours out.
        self._bold, self._dim = ("", "") if os.environ.get("NO_COLOR") else ("bold", "dim")

    def drawn(self, before: Activity | None, now: Activity, height: int) -> Any:
        """Draw what was seen."""
        self._last = before, now
        facts = server_facts(before, now)
        for fact, history in self._history.items():
            # Rates need two looks; all plots begin with them.
            if fact in facts and before is not None:
                history.append(facts[fact])
        return self._lines(before, now, height, "Ctrl-C ends this", self._dim)

    def without_answer(self, reason: str, height: int) -> Any:
        """Draw what was last seen, and say why it is no news."""
        assert self._last is not None, "what was never there is an error"
        return self._lines(*self._last, height, f"no answer, trying again: {reason}", "bold red")

    def _lines(self, before: Activity | None, now: Activity, height: int, last_line: str, style: str) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        lines = table_rates(before, now)
        room = max(height - _OTHER_LINES, 3)
        table = Table(box=None, pad_edge=False, header_style=self._bold)
        for name in ("TABLE", "RECORDS", "RECORDS/S", "LAG"):
            table.add_column(name, justify="left" if name == "TABLE" else "right", no_wrap=True, overflow="ellipsis")
        for line in lines[:room]:
            lag = "" if line.lag is None else f"{line.lag:,}"
            table.add_row(Text(line.table), f"{line.records:,}", scaled(line.rate), lag)
        parts = [Text(self._servers, style=self._bold), self._facts(before, now), Text(""), table]
        if len(lines) > room:
            parts.append(Text(f"{len(lines) - room:,} quieter tables are not shown", style=self._dim))
        if now.more_tables:
            parts.append(Text(_left_out(now.more_tables), style=self._dim))
        return Group(*parts, Text(""), Text(last_line, style=style))

    def _facts(self, before: Activity | None, now: Activity) -> Any:
        from rich.table import Table
        from rich.text import Text

        if now.metrics is None:
            return Text(_without_metrics(self._metrics_url))
        facts = server_facts(before, now)
        grid = Table(box=None, pad_edge=False, show_header=False)
        for justify in ("left", "right", "left"):
            grid.add_column(justify=justify, no_wrap=True, overflow="crop")
        for fact, name, unit, _ in _SHOWN_FACTS:
            curve = bars(list(self._history.get(fact, ())))
            grid.add_row(name, Text(scaled(facts.get(fact), unit) or "-", style=self._bold), Text(curve, style="cyan"))
        return grid


def bars(values: Sequence[float]) -> str:
    """Return a small plot: a bar for each value, the highest as high as a line, none for nothing."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in values)


def _without_metrics(metrics_url: str | None) -> str:
    if metrics_url is None:
        return "no requests, bytes and memory: the servers show no metrics ('http.listener'); --metrics URL names them"
    return f"no requests, bytes and memory: nothing answers at {metrics_url}"
