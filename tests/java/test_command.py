"""The command ``fluss`` with a cluster of Apache Fluss: the session of its guide, loads, rights, and copies both ways.
Shown as a user sees it: every command is a process of its own, with its output and its exit code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss import blocking, embedded
from tests.cli.runner import FlussCommand
from tests.java.cluster import USERS, JavaCluster

TRIPS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int32()),
        "city": ["Bonn", "Kiel", "Kiel", "Jena"],
        "km": [3.5, 12.0, 8.0, 1.5],
    }
)


@pytest.fixture
def fluss(cluster: JavaCluster, database: str, tmp_path: Path) -> Iterator[FlussCommand]:
    """The command, whose server is the cluster, in an empty directory."""
    command = FlussCommand(tmp_path)
    command.environment = {"FLUSS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
    try:
        with cluster.noticing_tables_of_others():
            yield command
    finally:
        command.close()


def test_a_session_of_the_guide(fluss: FlussCommand, database: str) -> None:
    pq.write_table(TRIPS, fluss.home / "trips.parquet")
    trips = f"{database}.trips"
    fluss("table", "create", trips, "--from", "trips.parquet", "--primary-key", "id", "--buckets", "2")
    assert fluss("table", "ls", database, "-f", "json").rows[0]["table"] == trips
    assert fluss("load", "trips.parquet", trips).out == f"Loaded 4 rows into {trips}.\n"
    shown = fluss("table", "show", trips, "-f", "json").rows[0]
    assert (shown["kind"], shown["buckets"]) == ("primary-key table", 2)
    far = fluss("head", trips, "--filter", "km > 2", "--format", "csv", "--columns", "city,km").lines
    assert (far[0], sorted(far[1:])) == ("city,km", ["Bonn,3.5", "Kiel,12.0", "Kiel,8.0"])
    assert fluss("get", trips, "2", "-f", "json").rows == [{"id": 2, "city": "Kiel", "km": 12.0}]
    fluss("put", trips, "id=5", "city=Ulm", "km=0.5")
    fluss("delete", trips, "1")
    # The newest of two buckets, which the clock orders.
    assert sorted(fluss("tail", trips, "-n", "2", "--format", "csv").lines[1:]) == ["+I,5,Ulm,0.5", "-D,1,Bonn,3.5"]
    by_city = fluss("sql", f"SELECT city, sum(km) AS km FROM {trips} GROUP BY city ORDER BY city", "-f", "json").rows
    assert by_city == [{"city": "Jena", "km": 1.5}, {"city": "Kiel", "km": 20.0}, {"city": "Ulm", "km": 0.5}]
    assert fluss("sql", f"SELECT city FROM {trips} WHERE id = 2", "-f", "csv").lines == ["city", "Kiel"]
    assert fluss("dump", trips, "out.jsonl").out == f"Wrote 4 rows of {trips} to out.jsonl.\n"
    assert sum(row["rows"] for row in fluss("table", "stats", trips, "-f", "json").rows) == 4
    assert sum(row["records"] for row in fluss("offsets", trips, "-f", "json").rows) == 6
    fluss("table", "drop", trips, "--yes")
    missing = fluss.run("get", trips, "2")
    assert (missing.code, missing.err.count("\n")) == (3, 1)
    assert f"{trips}' does not exist" in missing.err or f"{trips} does not exist" in missing.err


def test_records_are_followed_and_their_readers_shown(
    fluss: FlussCommand, database: str, connection: blocking.FlussConnection
) -> None:
    log = f"{database}.log"
    fluss("table", "create", log, "-c", "id INT", "--buckets", "2")
    following = fluss.start("tail", log, "-f", "--from", "earliest", "--format", "json")
    fluss("append", log, text='{"id": 1}\n{"id": 2}\n{"id": 3}\n')
    following.read_until('{"id": 3}')
    following.interrupt()
    assert following.wait().code == 130
    with connection.get_table(log).consumer("billing", auto_commit=False) as consumer:
        while not consumer.epochs():
            consumer.poll(timeout_ms=1000)
    shown = fluss("consumers", log, "-f", "json").rows
    assert [(row["consumer"], row["lag"]) for row in shown] == [("billing", 3)]
    assert sum(row["lag"] for row in fluss("lag", log, "billing", "-f", "json").rows) == 3
    fluss("consumers", log, "--drop", "billing", "--yes")


def test_a_load_goes_on_where_it_was(fluss: FlussCommand, database: str) -> None:
    """A line in its middle does not fit; what was stored before that ended it is not loaded again."""
    log = f"{database}.log"
    fluss("table", "create", log, "-c", "id INT", "--buckets", "1")
    lines = [f'{{"id": {number}}}' for number in range(20_000)]
    file = fluss.home / "rows.jsonl"
    file.write_text("\n".join([*lines[:10_000], '{"id": "x"}', *lines[10_000:]]) + "\n")
    stopped = fluss.run("load", "rows.jsonl", log, "--resume", "state")
    assert (stopped.code, "rows.jsonl" in stopped.err) == (6, True)
    resumed = fluss.run("load", "rows.jsonl", log, "--resume", "state", "--rejects", "bad.jsonl")
    assert (resumed.code, "1 did not fit" in resumed.out) == (6, True)
    counted = fluss("sql", f"SELECT count(*) AS rows, count(DISTINCT id) AS ids FROM {log}", "-f", "json").rows
    assert counted == [{"rows": 20_000, "ids": 20_000}]
    assert "x" in (fluss.home / "bad.jsonl").read_text()


def test_the_cluster_is_shown_and_rights_are_given(fluss: FlussCommand, cluster: JavaCluster, database: str) -> None:
    health = fluss("health", "-f", "json")
    roles = [server["role"] for server in health.rows[0]["servers"]]
    assert sorted(roles) == ["CoordinatorServer", *["TabletServer"] * 3]
    assert "these servers cannot tell" in health.err
    fluss("config", "get")
    secret = f"{database}.secret"
    fluss("table", "create", secret, "-c", "id INT", "--buckets", "1")
    fluss.environment = {"FLUSS_BOOTSTRAP_SERVERS": cluster.sasl_bootstrap_servers, "FLUSS_PASSWORD": USERS["admin"]}
    fluss("acl", "grant", "alice", "read,describe", "--table", secret, "--user", "admin")
    listed = fluss("acl", "ls", "--for", "alice", "--user", "admin", "-f", "json").rows
    assert sorted(row["operation"] for row in listed) == ["describe", "read"]
    assert "Revoked 2 rights" in fluss("acl", "revoke", "alice", "--user", "admin").out
    wrong = fluss.run("db", "ls", "--user", "alice", environment={"FLUSS_PASSWORD": "not-hers"})
    assert (wrong.code, "not-hers" in wrong.err, "Traceback" in wrong.err) == (5, False, False)


def test_a_database_is_copied_up_and_down(
    fluss: FlussCommand, cluster: JavaCluster, database: str, our_server: embedded.EmbeddedServer
) -> None:
    here, there = our_server.bootstrap_servers, cluster.bootstrap_servers
    fluss.environment = {"FLUSS_BOOTSTRAP_SERVERS": here}
    fluss("db", "create", database)
    fluss("table", "create", f"{database}.log", "-c", "id INT", "-c", "t STRING", "--buckets", "2")
    fluss("table", "create", f"{database}.keyed", "-c", "id INT", "-c", "t STRING", "-k", "id", "--buckets", "2")
    lines = "".join(f'{{"id": {number}, "t": "{number}"}}\n' for number in range(5000))
    fluss("append", f"{database}.log", text=lines)
    fluss("put", f"{database}.keyed", text=lines)
    up = fluss("copy", database, "--to", there, "-f", "json").rows
    assert {row["target"]: row["rows"] for row in up} == {f"{database}.log": 5000, f"{database}.keyed": 5000}
    again = fluss("copy", database, "--to", there, "-f", "json").rows
    assert [row["rows"] - row["copied_before"] for row in again] == [0, 0], "it was all there"
    down = fluss("copy", database, f"{database}_back", "--from", there, "--to", here, "-f", "json").rows
    assert {row["target"]: row["rows"] for row in down} == {
        f"{database}_back.{name}": 5000 for name in ("log", "keyed")
    }
    for name in (database, f"{database}_back"):
        fluss("db", "drop", name, "--cascade", "--yes")
