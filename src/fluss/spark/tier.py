"""``python -m fluss.spark.tier``: a tiering service, or one round of every table."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from fluss.errors import FlussError
from fluss.spark.session import check_pyspark, session

if TYPE_CHECKING:
    from fluss.spark.lake.tiering_query import TieringQuery
    from fluss.tiering.progress import RoundProgress
    from fluss.tiering.tiering_metrics import TieringMetrics

_PROGRAM: Final = "python -m fluss.spark.tier"
_DEFAULT_SERVERS: Final = "127.0.0.1:9123"
_SERVERS_VARIABLE: Final = "FLUSS_BOOTSTRAP_SERVERS"
_LAKE_PREFIX: Final = "lake."
_DESCRIPTION: Final = """\
Bring tables to their lake: what has come to a Fluss table since the last time becomes a snapshot of its Iceberg table,
which every engine can read. Tables take part that have the property table.datalake.enabled = true.

Without --once the service goes on until it is stopped (Ctrl-C or SIGTERM; a round that is not at its commit yet is
given up, and nothing of it stays). It takes the tables that the coordinator hands out, each one
table.datalake.freshness after its last round. Start it several times, on one machine or many, and they share the
tables. Every record arrives in the lake exactly once, whichever of them is killed at whichever moment.
"""
_EPILOG: Final = f"""\
examples:
  Keep all lakes of a cluster fresh, with the cores of this machine:
    {_PROGRAM} --bootstrap-servers localhost:9123

  Bring everything to the lake now, and end (for cron, CI, notebooks):
    {_PROGRAM} --once

  Only these tables, and two at a time:
    {_PROGRAM} --once --table sales.orders --table sales.items --max-concurrent-tables 2

  On a Spark cluster, with more memory for executors:
    {_PROGRAM} --master spark://master:7077 --conf spark.executor.memory=4g

  Log in, and open a lake in S3 (the file tier.properties; secrets do not belong on a command line):
    client.security.protocol = SASL
    client.security.sasl.username = tiering
    client.security.sasl.password = ...
    lake.s3.access-key-id = ...
    lake.s3.secret-access-key = ...
  and:
    {_PROGRAM} --config tier.properties

each round is a line:
  sales.orders: 120,000 rows in 4 files (9.1 MB) in 1.2 s, 100 k rows/s, behind: 530 rows, 0.4 s
  "behind" is what has come meanwhile, and how old the newest record was that the lake has now. With --json it is an
  object of all figures. --metrics-port shows them to Prometheus.

exit status: 0 if all went well, 1 if rounds failed (with --once) or the service cannot go on, 2 for wrong arguments.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, tell what went wrong, and return its exit status."""
    try:
        return run(arguments)
    except (FlussError, ImportError) as error:
        message = error.message if isinstance(error, FlussError) else str(error)
        print(f"{_PROGRAM}: {message}", file=sys.stderr)
        return 1


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return its exit status; what it cannot begin with is a FlussError or an ImportError."""
    given = _parser().parse_args(arguments)
    logging.basicConfig(level=given.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    check_pyspark()
    options, lake_properties = _settings(given)
    return _run(given, options, lake_properties)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        _PROGRAM, description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--bootstrap-servers",
        metavar="HOST:PORT",
        help=f"the cluster (default: {_SERVERS_VARIABLE}, else {_DEFAULT_SERVERS})",
    )
    add(
        "--table",
        metavar="DB.TABLE",
        action="append",
        help="only this table, whatever the coordinator's schedule says; may be repeated",
    )
    add("--once", action="store_true", help="tier what is there now, and end")
    add("--max-concurrent-tables", metavar="N", type=int, default=4, help="rounds at a time (default: 4)")
    add(
        "--task-rows",
        metavar="N",
        type=int,
        default=None,
        help="about how many rows a Spark task takes (default: 4,000,000)",
    )
    add(
        "--poll-interval",
        metavar="SECONDS",
        type=float,
        default=30.0,
        help="how often the coordinator is asked (default: 30)",
    )
    add("--cores", metavar="N", type=int, help="cores of this machine (default: all)")
    add("--master", metavar="URL", help="a Spark cluster instead of this machine")
    add("--conf", metavar="KEY=VALUE", action="append", default=[], help="a setting of Spark; may be repeated")
    add(
        "-D",
        metavar="KEY=VALUE",
        dest="options",
        action="append",
        default=[],
        help="an option of the Fluss client, or lake.KEY=VALUE for one of the lake's catalog",
    )
    add("--config", metavar="FILE", help="a file of such options, one KEY = VALUE a line")
    add(
        "--expire-snapshots",
        action="store_true",
        help="remove old snapshots of all tables, not only where table.datalake.auto-expire-snapshot is on",
    )
    add(
        "--snapshot-min-age",
        metavar="SECONDS",
        type=float,
        default=3600.0,
        help="how long snapshots stay for those who read them (default: 3600)",
    )
    add("--metrics-port", metavar="PORT", type=int, help="show metrics at http://127.0.0.1:PORT/metrics")
    add("--json", action="store_true", help="a JSON object for each round instead of a line")
    add(
        "--log-level",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        default="WARNING",
        help="what goes to standard error (default: WARNING)",
    )
    return parser


def _settings(given: argparse.Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of the client, and those of the lake."""
    merged: dict[str, str] = {}
    if given.config is not None:
        try:
            with open(given.config, encoding="utf-8") as file:
                lines = [line.strip() for line in file]
        except OSError as error:
            raise FlussError(f"The file {given.config!r} cannot be read: {error.strerror}") from None
        merged |= _pairs([line for line in lines if line and not line.startswith("#")], f"the file {given.config!r}")
    merged |= _pairs(given.options, "-D")
    servers = given.bootstrap_servers or merged.pop("bootstrap.servers", None)
    merged["bootstrap.servers"] = servers or os.environ.get(_SERVERS_VARIABLE) or _DEFAULT_SERVERS
    lake = {key.removeprefix(_LAKE_PREFIX): value for key, value in merged.items() if key.startswith(_LAKE_PREFIX)}
    return {key: value for key, value in merged.items() if not key.startswith(_LAKE_PREFIX)}, lake


def _pairs(texts: Sequence[str], where: str) -> dict[str, str]:
    pairs = {}
    for number, text in enumerate(texts, 1):
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            # The value may be a secret: it is not repeated.
            raise FlussError(f"Entry {number} of {where} is not KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def _run(given: argparse.Namespace, options: Mapping[str, str], lake_properties: Mapping[str, str]) -> int:
    from fluss.spark.fluss_spark import FlussSpark
    from fluss.spark.lake.tiering import warn_unless_fair

    config = {"spark.scheduler.mode": "FAIR", **_pairs(given.conf, "--conf")}
    spark = session("fluss-tiering", cores=given.cores, master=given.master, config=config)
    fs = FlussSpark(spark, **dict(options))
    warn_unless_fair(fs)
    common: dict[str, Any] = {
        "progress": _print_json if given.json else _print_line,
        "lake_properties": lake_properties,
        "max_concurrent_tables": given.max_concurrent_tables,
        "poll_interval_s": given.poll_interval,
        "expire_snapshots": given.expire_snapshots,
        "snapshot_min_age_s": given.snapshot_min_age,
    }
    if given.task_rows is not None:
        common["task_rows"] = given.task_rows
    if given.once:
        report = fs.tier(given.table, **common)
        _print_summary(report, given.json)
        return 1 if report.errors else 0
    with fs.start_tiering(given.table, **common) as query:
        server = None if given.metrics_port is None else _serve_metrics(query.metrics, given.metrics_port)
        try:
            _wait(query)
        finally:
            query.stop()
            if server is not None:
                server.shutdown()
            _print_summary(query.report(), given.json)
    return 0


def _wait(query: TieringQuery) -> None:
    """Wait for a signal, or for the error that ends the service."""
    stopped = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not stopped.wait(0.2) and query.isActive:
            pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not stopped.is_set():
        query.awaitTermination()


def _print_line(progress: RoundProgress) -> None:
    print(progress, flush=True)


def _print_json(progress: RoundProgress) -> None:
    print(progress.json, flush=True)


def _print_summary(report: Any, as_json: bool) -> None:
    print(json.dumps({"summary": report.to_dict()}) if as_json else report, flush=True)


def _serve_metrics(metrics: TieringMetrics, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = metrics.text().encode() if self.path == "/metrics" else b"the metrics are at /metrics\n"
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise FlussError(f"Metrics cannot be shown at port {port}: {error.strerror}; choose another one") from None
    threading.Thread(target=server.serve_forever, name="fluss-tiering-metrics", daemon=True).start()
    return server


if __name__ == "__main__":
    sys.exit(main())
