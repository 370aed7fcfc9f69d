"""Clients read what is in an object store there, with credentials that the server gives, and through failures.
Shown with a server that speaks S3 and a proxy before it that fails; directories are in test_remote_log.py."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import blocking, embedded
from fluss.testing.waiting import eventually
from tests.s3_server import KEYS, FaultyProxy, faulty_proxy, new_bucket, s3_server

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
EVENTS = fluss.TablePath("fluss", "events")
ROWS = [{"id": number, "text": f"row {number}"} for number in range(40)]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture
def proxy(endpoint: str) -> Iterator[FaultyProxy]:
    with faulty_proxy(endpoint) as running:
        yield running


@pytest.fixture
def server(proxy: FaultyProxy, endpoint: str, tmp_path: Path) -> Iterator[embedded.EmbeddedServer]:
    """A server with a table of which all but the newest two segments are in the store."""
    options = {
        **KEYS,
        "remote.data.dir": f"s3://{new_bucket(endpoint)}/server",
        "s3.endpoint": proxy.endpoint,
        "log.segment.file-size": "120b",
        "remote.log.task-interval-duration": "100ms",
        "durability": "os",
    }
    with embedded.start(options, data_dir=tmp_path / "data") as running:
        with blocking.connect(running.bootstrap_servers) as connection:
            connection.get_admin().create_table(EVENTS, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1))
            writer = connection.get_table(EVENTS).new_append().create_writer()
            for row in ROWS:
                writer.append(row)
                writer.flush()
        eventually(lambda: len(list(tmp_path.glob("data/fluss/events-*/log-0/*.log"))) <= 2, timeout_s=600)
        yield running


def test_a_scan_goes_through_the_store_into_the_server(server: embedded.EmbeddedServer, proxy: FaultyProxy) -> None:
    with blocking.connect(server.bootstrap_servers) as connection:
        table = connection.get_table(EVENTS)
        proxy.request_count = 0
        assert table.to_arrow().to_pylist() == ROWS
        # The server's disk has two segments; the others were read here.
        assert proxy.request_count >= len(ROWS) - 2
        assert table.to_arrow(["text"]).to_pylist() == [{"text": row["text"]} for row in ROWS]
        assert table.to_arrow(filter="id >= 7 AND id < 9").to_pylist() == ROWS[7:9]


def test_what_fails_for_a_while_is_read_again(
    server: embedded.EmbeddedServer, proxy: FaultyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "fluss")
    with blocking.connect(server.bootstrap_servers) as connection:
        table = connection.get_table(EVENTS)
        assert table.to_arrow().num_rows == len(ROWS)
        proxy.methods = "GET HEAD"
        proxy.faults = [500, "close", 403, "truncate", 503]
        assert table.to_arrow().to_pylist() == ROWS
        assert not proxy.faults
    assert "cannot be read right now" in caplog.text
    # Neither the keys of the server nor those that it gave away.
    assert "testing" not in caplog.text
    assert "security_token" not in caplog.text


def test_without_credentials_of_the_server_those_of_the_machine_count(
    server: embedded.EmbeddedServer, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    # The token service refuses, so the server has none to give.
    proxy.methods, proxy.faults = "POST", [403] * 100
    with blocking.connect(server.bootstrap_servers) as connection:
        assert connection.get_table(EVENTS).to_arrow().to_pylist() == ROWS
