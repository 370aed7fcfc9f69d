"""Metrics of clients, OpenTelemetry, the dashboard, the page of metrics, and logs as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import embedded, telemetry
from fluss.server.process import JsonFormatter
from fluss.web.load_history import upstream_metrics
from tests.pages import ROOT
from tools import generate_metrics_page

DASHBOARD = ROOT / "docs" / "operations" / "grafana-dashboard.json"


async def test_a_connection_counts_what_it_does(tmp_path: Path) -> None:
    with embedded.start(data_dir=tmp_path) as server:
        async with await fluss.FlussConnection.create(server.config()) as connection:
            metrics = connection.metrics()
            assert metrics is connection.metrics()
            admin = connection.get_admin()
            await admin.create_table("fluss.t", fluss.TableDescriptor(fluss.Schema(pa.schema([("a", pa.int64())]))))
            with pytest.raises(fluss.FlussError):
                await admin.drop_table("fluss.nothing")
            writer = (await connection.get_table("fluss.t")).new_append_writer()
            writer.write_arrow(pa.table({"a": range(10_000)}))
            await writer.flush()
            values = metrics.values()
            assert values["fluss_client_requests_total", (("api", "createTable"),)] == 1
            assert values["fluss_client_request_errors_total", (("api", "createTable"),)] == 0
            assert values["fluss_client_request_errors_total", (("api", "dropTable"),)] == 1
            assert values["fluss_client_sent_bytes_total", (("api", "produceLog"),)] > 100
            assert values["fluss_client_received_bytes_total", (("api", "produceLog"),)] > 0
            assert values["fluss_client_connections", ()] >= 1
            assert values["fluss_client_unsent_bytes", ()] == 0
            assert 'fluss_client_request_seconds_bucket{api="produceLog",le="+Inf"}' in metrics.text()
        # They can still be read when the connection is closed.
        assert metrics.values()["fluss_client_connections", ()] == 0


class FakeMeter:
    """What the hook needs of a meter."""

    def __init__(self) -> None:
        self.instruments: dict[str, tuple[str, object]] = {}

    def create_observable_counter(self, name, callbacks, description):
        self.instruments[name] = ("counter", callbacks[0])

    def create_observable_gauge(self, name, callbacks, description):
        self.instruments[name] = ("gauge", callbacks[0])


async def test_a_meter_of_opentelemetry_sees_them(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.metrics", reason="opentelemetry-api is not installed")
    meter = FakeMeter()
    with embedded.start(data_dir=tmp_path) as server:
        async with await fluss.FlussConnection.create(server.config()) as connection:
            telemetry.observe(connection.metrics(), meter)
            await connection.get_admin().list_databases()
            kind, read = meter.instruments["fluss_client_requests_total"]
            seen = {observation.attributes["api"]: observation.value for observation in read(None)}
            assert (kind, seen["listDatabases"]) == ("counter", 1)
            kind, read = meter.instruments["fluss_client_connections"]
            assert (kind, [observation.attributes for observation in read(None)]) == ("gauge", [{}])
            _, read = meter.instruments["fluss_client_request_seconds_count"]
            assert sum(observation.value for observation in read(None)) >= 2
            # A real meter without an exporter takes them, too.
            telemetry.observe(connection.metrics())


def test_the_page_of_metrics_is_up_to_date() -> None:
    wanted = generate_metrics_page.page()
    assert generate_metrics_page.PAGE.read_text(encoding="utf-8") == wanted, "run `make docs`"


def test_every_metric_of_the_dashboard_exists() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard["templating"]["list"]]
    named = {name for query in queries for name in re.findall(r"\bfluss_\w+", query)}
    reference = generate_metrics_page.PAGE.read_text(encoding="utf-8")
    known = set(re.findall(r"`(fluss_\w+)`", reference)) | set(upstream_metrics())
    missing = {name for name in named if name not in known and re.sub("_(bucket|sum|count)$", "", name) not in known}
    assert len(queries) > 20
    assert missing == set()


def test_logs_as_json(tmp_path: Path) -> None:
    # What is wrong is found after the log has begun, so nothing has to be started.
    command = [sys.executable, "-m", "fluss.server", "--data-dir", str(tmp_path), "--log-format", "json"]
    environment = {"FLUSS_DATA_DIRR": "x", "PATH": ""}
    done = subprocess.run(
        [*command, "--print-config"], capture_output=True, text=True, check=True, timeout=300, env=environment
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {line["level"] for line in lines} == {"warning"}
    assert "FLUSS_DATA_DIRR" in lines[0]["message"]
    assert lines[0]["logger"] == "__main__"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", lines[0]["time"])


def test_an_exception_is_part_of_its_line() -> None:
    import logging

    try:
        raise ValueError("what went wrong\nin two lines")
    except ValueError:
        record = logging.LogRecord("fluss.x", logging.ERROR, "", 1, "it %s", ("failed",), sys.exc_info())
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert line["message"] == "it failed"
    assert "in two lines" in line["exception"]
