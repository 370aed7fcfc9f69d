"""The cluster from the command line: health, options, rights, users, what it is doing, and a short measurement."""

from __future__ import annotations

import re
import socket
import stat
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from fluss import Schema, blocking, embedded
from fluss.cli.cluster.live import Activity, bars, metrics_of, metrics_url_of, server_facts, table_rates
from fluss.embedded import EmbeddedServer
from tests.cli.runner import FlussCommand
from tests.ports import free_port


def test_health_shows_servers_and_replicas(fluss: FlussCommand) -> None:
    shown = fluss("health", "-f", "json").rows[0]
    assert shown["status"] == "green"
    assert {each["role"] for each in shown["servers"]} == {"CoordinatorServer", "TabletServer"}
    assert "green" in fluss("health", terminal=True).out


def test_options_are_shown_changed_and_explained(fluss: FlussCommand) -> None:
    shown = {row["key"]: row["value"] for row in fluss("config", "get", "-f", "json").rows}
    assert shown["durability"] == "os"
    assert "durability" in fluss("config", "get", "durab", terminal=True).out
    assert fluss.run("config", "get", "no.such").code == 3
    refused = fluss.run("config", "set", "durability=fsync")
    assert (refused.code, "durability" in refused.err) == (1, True)
    key = "datalake.format"
    before = shown.get(key)
    changed = fluss.run("config", "set", f"{key}=iceberg")
    if changed.code == 0:
        fluss("config", "set", "--reset", key, terminal=True)
        assert {row["key"]: row["value"] for row in fluss("config", "get", "-f", "json").rows}.get(key) == before
    assert fluss("config", "explain", "table.log.ttl", "-f", "json").rows[0]["of"] == "table"
    found = fluss("config", "explain", "timeout", "--of", "client", "-f", "json").rows
    assert {"connect-timeout", "request-timeout"} <= {row["key"] for row in found}
    assert "How long to wait" in fluss("config", "explain", "request-timeout", terminal=True).out
    assert fluss.run("config", "explain", "nonsense-word").code == 3


def test_top_shows_what_tables_do(fluss: FlussCommand, fluss_database: str) -> None:
    table = f"{fluss_database}.t"
    fluss("table", "create", table, "-c", "id INT")
    fluss("append", table, text='{"id": 1}\n')
    shown = fluss("top", fluss_database, "--count", "1", "-f", "json").rows[0]
    assert [(each["table"], each["records"]) for each in shown["tables"]] == [(table, 1)]
    assert fluss("top", fluss_database, "--every", "0.1").lines[1].split()[:2] == [table, "1"]
    live = fluss.start("top", fluss_database, terminal=True)
    live.read_until("Ctrl-C ends this")
    live.interrupt()
    ended = live.wait()
    assert (ended.code, table in ended.out, "http.listener" in ended.out) == (130, True, True)
    assert table in fluss("top", fluss_database, "--count", "1", terminal=True).out


def test_top_itself_causes_no_errors(fluss: FlussCommand) -> None:
    port = free_port()
    with embedded.start({"http.listener": port, "durability": "os"}) as server:
        with blocking.connect(server.config()) as connection:
            admin = connection.get_admin()
            schema = Schema(pa.schema([("id", pa.int64())]))
            for number in range(50):
                admin.create_table(f"fluss.t{number:02}", blocking.TableDescriptor(schema, bucket_count=1))
        arguments = ("top", "--every", "0.1", "--server", server.bootstrap_servers)
        shown = fluss(*arguments).out
        for fact in ("requests", "errors", "in", "out", "memory", "connections"):
            assert re.search(rf"^{fact}  +[0-9]", shown, re.MULTILINE), shown
        assert re.search(r"^errors  +0/s$", shown, re.MULTILINE), shown
        # A terminal of 40 lines: the last one is seen, and so is that there is more.
        live = fluss.start(*arguments, terminal=True)
        live.read_until("Ctrl-C ends this")
        live.interrupt()
        assert "quieter tables are not shown" in live.wait().out


def test_top_waits_for_a_server_that_is_restarted(fluss: FlussCommand, tmp_path: Path) -> None:
    port = free_port()
    with embedded.start({"durability": "os"}, data_dir=tmp_path / "data", port=port) as server:
        address = server.bootstrap_servers
        options = ("-o", "request-timeout=500", "-o", "connect-timeout=500")
        live = fluss.start("top", "--every", "0.1", "--server", address, *options, terminal=True)
        live.read_until("Ctrl-C ends this")
    live.read_until("no answer, trying again")
    seen = len(live.read_some())
    with embedded.start({"durability": "os"}, data_dir=tmp_path / "data", port=port):
        while "Ctrl-C ends this" not in live.read_some()[seen:]:
            pass
        live.interrupt()
        assert live.wait().code == 130


@pytest.mark.parametrize(
    ("options", "servers", "url"),
    [
        ({}, "localhost:9123", None),
        ({"http.listener": "off"}, "localhost:9123", None),
        ({"http.listener": "9180"}, "localhost:9123", "http://127.0.0.1:9180/metrics"),
        ({"http.listener": "https://[::1]:9180/"}, "127.0.0.1:9123", "https://[::1]:9180/metrics"),
        # What is shown to the other machine alone is not what is shown on this one.
        ({"http.listener": "9180"}, "streams.example.org:9123", None),
        ({"http.listener": "127.0.0.1:9180"}, "streams.example.org:9123,b:9123", None),
        ({"http.listener": "0.0.0.0:9180"}, "streams.example.org:9123", "http://streams.example.org:9180/metrics"),
        ({"http.listener": "10.0.0.7:80"}, "streams.example.org:9123", "http://10.0.0.7:80/metrics"),
        ({"metrics.reporter.prometheus.port": "0"}, "localhost:9123", None),
        ({"metrics.reporter.prometheus.port": "9249"}, "localhost:9123", "http://127.0.0.1:9249/metrics"),
    ],
)
def test_metrics_are_read_where_the_server_is(options: dict[str, str | None], servers: str, url: str | None) -> None:
    assert metrics_url_of(options, servers) == url


def test_what_is_no_http_server_has_no_metrics() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"no such protocol\r\n")

        other = threading.Thread(target=answer)
        other.start()
        assert metrics_of(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics") is None
        other.join()


def test_plots_are_as_high_as_a_line() -> None:
    assert bars([]) == ""
    assert bars([0.0, 0.0]) == "▁▁"
    assert bars([0.0, 50.0, 100.0]) == "▁▅█"


def test_rates_are_differences_over_time() -> None:
    first = Activity(10.0, {"a": 5, "b": 1}, {}, {"fluss_requests_total": 100.0})
    metrics = {"fluss_requests_total": 300.0, "fluss_connections": 3.0, "fluss_sent_bytes_total": 8.0}
    second = Activity(12.0, {"a": 25, "b": 1, "c": 7}, {"a": 4}, metrics)
    assert [tuple(line) for line in table_rates(first, second)] == [
        ("a", 25, 10.0, 4),
        ("b", 1, 0.0, None),
        ("c", 7, None, None),
    ]
    assert server_facts(first, second) == {"requests_per_s": 100.0, "bytes_out_per_s": 4.0, "connections": 3.0}
    assert server_facts(None, Activity(1.0)) == {}


@pytest.mark.slow
def test_a_short_measurement_leaves_nothing_behind(fluss: FlussCommand) -> None:
    figures = fluss("bench", "--seconds", "0.1", "--keys", "1000", "-f", "json").rows
    assert len(figures) == 6
    assert all(figure["rows_per_s"] > 0 for figure in figures)
    assert "acknowledged" in fluss("bench", "--seconds", "0.1", "--keys", "1000", terminal=True).out
    assert not [row for row in fluss("table", "ls", "-f", "json").rows if "bench_" in row["table"]]


@pytest.fixture
def guarded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The options of a server that asks who comes in; users have their passwords in a file."""
    return {
        "durability": "os",
        "bind.listeners": "CLIENT://127.0.0.1:0",
        "security.protocol.map": "CLIENT:SASL",
        "security.sasl.plain.credentials": "admin:admin-secret",
        "security.sasl.users.file": str(tmp_path_factory.mktemp("users") / "users"),
        "authorizer.enabled": "true",
        "super.users": "User:admin",
    }


def test_users_come_in_and_get_rights(fluss: FlussCommand, guarded: dict[str, str]) -> None:
    path = guarded["security.sasl.users.file"]
    assert fluss("user", "add", "alice", "--file", path, text="alice-secret\n").out == f"Added alice to {path}.\n"
    asked = fluss.start("user", "add", "bob", "--file", path, terminal=True)
    asked.type_hidden("Password of bob", "bob-secret\n")
    asked.type_hidden("Repeat", "bob-secret\n")
    assert "bob-secret" not in asked.wait().ok().out
    assert [row["user"] for row in fluss("user", "ls", "--file", path, "-f", "json").rows] == ["alice", "bob"]
    fluss("user", "rm", "bob", "--file", path, terminal=True)
    assert stat.S_IMODE((fluss.home / path).stat().st_mode) == 0o600
    assert fluss("user", "hash", "eve", text="eve-secret\n").out.startswith("eve:SCRAM-SHA-256$")

    with EmbeddedServer(guarded) as server:
        fluss.environment = {"FLUSS_BOOTSTRAP_SERVERS": server.bootstrap_servers}
        (fluss.home / "admin").write_text("admin-secret\n")
        admin = ["--user", "admin", "--password-file", "admin"]
        alice = {"FLUSS_PASSWORD": "alice-secret"}
        assert fluss.run("db", "ls").code in (1, 4, 5), "nobody comes in without a name"
        wrong = fluss.run("db", "ls", "--user", "alice", environment={"FLUSS_PASSWORD": "wrong-secret"})
        assert (wrong.code, "--password-file" in wrong.err, "wrong-secret" in wrong.err) == (5, True, False)
        fluss("table", "create", "t", "-c", "id INT", *admin)
        hidden = fluss.run("table", "show", "t", "--user", "alice", environment=alice)
        assert hidden.code in (3, 5)
        assert fluss("acl", "ls", *admin).err == "nobody has been granted anything like that\n"
        fluss("acl", "grant", "alice", "read,describe", "--table", "t", *admin)
        fluss("table", "show", "t", "--user", "alice", environment=alice)
        refused = fluss.run("append", "t", "--user", "alice", environment=alice, text='{"id": 1}\n')
        assert (refused.code, "fluss acl grant" in refused.err) == (5, True)
        listed = fluss("acl", "ls", "--for", "alice", "-f", "json", *admin).rows
        assert sorted(row["operation"] for row in listed) == ["describe", "read"]
        assert "alice" in fluss("acl", "ls", *admin, terminal=True).out
        assert "Revoked 2 rights" in fluss("acl", "revoke", "alice", *admin).out
        assert fluss.run("acl", "revoke", "alice", *admin).code == 3
        granted = fluss("acl", "grant", "alice", "read", "--table", "t", *admin, terminal=True).out
        assert "alice" in granted
        assert "Revoked 1 right" in fluss("acl", "revoke", "alice", *admin, terminal=True).out
