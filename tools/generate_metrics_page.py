"""Write docs/reference/metrics.md from a server and a client that run for a moment: ``make docs``.

A test compares the page with what this program would write, so that it cannot fall behind.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import fluss
from fluss.metrics import Family
from fluss.server.options.server_options import ServerOptions
from fluss.server.process import FlussServer
from fluss.web.load_history import upstream_metrics

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "metrics.md"

TOP = """\
# Metrics

What a server shows at `/metrics` ([how](../operations/monitoring.md)), and a client with `connection.metrics()`. A
counter only grows, and begins anew with the process. Some metrics have values only for what is used.
"""

SERVER = """
## Of a server
"""

UPSTREAM = """
## Of a server, by the names of Apache Fluss

Rates and times are those of the last minute; times have a label `quantile`. They are there a few seconds after the
start.
"""

CLIENT = """
## Of a client

`connection.metrics().values()` has them by name and labels, `text()` in the format of Prometheus;
`fluss.telemetry.observe(connection.metrics(), meter)` brings them to OpenTelemetry, which takes
`pip install "flussbett[telemetry]"`.
"""


def page() -> str:
    """Return the whole page."""
    server, client = asyncio.run(_collect())
    return "".join((TOP, SERVER, _table(server), UPSTREAM, _names(upstream_metrics()), CLIENT, _table(client)))


async def _collect() -> tuple[list[Family], list[Family]]:
    with tempfile.TemporaryDirectory() as directory:
        options = {
            "data.dir": f"{directory}/data",
            "bind.listeners": "FLUSS://127.0.0.1:0",
            "http.listener": "0",
            "remote.data.dir": f"{directory}/remote",
        }
        async with (
            FlussServer(ServerOptions(options)) as server,
            await fluss.FlussConnection.create(f"127.0.0.1:{server.listeners[0].port}") as connection,
        ):
            await connection.get_admin().list_databases()
            return server.metrics.collect(), connection.metrics().collect()


def _table(families: Iterable[Family]) -> str:
    lines = ["", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for family in families:
        labelled = [sample.labels for sample in family.samples] + [sample.labels for sample in family.histograms]
        labels = sorted({name for labels in labelled for name, _ in labels})
        lines.append(f"| `{family.name}` | {family.kind} | {', '.join(labels)} | {family.meaning} |")
    return "\n".join((*lines, ""))


def _names(names: Iterable[str]) -> str:
    return "\n".join(("", *(f"- `{name}`" for name in names), ""))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.name)
    sys.exit(0)
