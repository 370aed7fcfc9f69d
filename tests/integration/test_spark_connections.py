"""Tasks of one process share a connection for each set of settings, and a forked worker has its own.
Shown with a server in this process, and by a program that forks as Spark's Python daemon does."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import fluss
from fluss import FlussError, TablePath, embedded
from fluss.client.kernel.runtime import wait_for
from fluss.errors import ErrorCode
from fluss.spark import connections
from fluss.spark.connections import open_connection, open_table
from fluss.spark.query_options import write_options
from fluss.spark.write.sink import SinkPlan
from fluss.spark.write.stream_writer import FlussStreamWriter
from fluss.testing.cluster import ServerProcess


@pytest.fixture
def settings(server: embedded.EmbeddedServer) -> dict[str, str]:
    return {"bootstrap.servers": server.address()}


def test_the_same_settings_have_the_same_connection(settings: dict[str, str]) -> None:
    first = open_connection(settings)
    assert open_connection(dict(settings)) is first
    other = open_connection(settings | {"writer.acks": "all"})
    assert other is not first
    assert wait_for(other.get_admin().list_databases()) == ["fluss"]


def test_threads_that_ask_at_once_get_the_same_connection(settings: dict[str, str]) -> None:
    wanted = settings | {"request-timeout": "29000"}
    with ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(lambda _: open_connection(wanted), range(8)))
    assert len({id(connection) for connection in opened}) == 1
    assert wait_for(opened[0].get_admin().list_databases()) == ["fluss"]


def test_the_connection_that_was_not_used_for_the_longest_time_is_closed_when_there_are_too_many(
    settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_connections", {})
    monkeypatch.setattr(connections, "_CONNECTIONS_MAX", 2)
    first, second, third = (settings | {"request-timeout": str(timeout)} for timeout in (20_001, 20_002, 20_003))
    oldest, kept = open_connection(first), open_connection(second)
    open_connection(first)
    open_connection(third)
    assert open_connection(first) is oldest
    with pytest.raises(FlussError, match="the connection is closed"):
        kept.get_admin()
    assert wait_for(open_connection(second).get_admin().list_databases()) == ["fluss"]


def test_a_table_that_does_not_exist_is_an_error_with_its_code(settings: dict[str, str]) -> None:
    with pytest.raises(FlussError, match=r"Table 'fluss\.nothing' does not exist") as error:
        open_table(settings, TablePath("fluss", "nothing"))
    assert error.value.error_code == ErrorCode.TABLE_NOT_EXIST


def test_a_stream_waits_for_a_server_that_is_restarting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_connections", {})
    with ServerProcess(tmp_path / "server") as server:
        settings = {"bootstrap.servers": server.bootstrap_servers}
        admin = open_connection(settings).get_admin()
        schema = fluss.Schema(pa.schema([("id", pa.int64())]))
        wait_for(admin.create_table(TablePath("fluss", "t"), fluss.TableDescriptor(schema)))
        given = {
            "bootstrap.servers": server.bootstrap_servers,
            "table": "fluss.t",
            "sink.delivery-guarantee": "at-least-once",
        }
        options = write_options(given, is_stream=True)
        hurried = write_options({**given, "request-timeout": "100"}, is_stream=True)
        struct = StructType([StructField("id", LongType())])
        server.kill()
        # Whoever begins waits for it, too, but only so long.
        with pytest.raises(FlussError):
            SinkPlan.of(hurried, struct)
        # Spark makes a writer for each commit, in a process that knows no connection.
        monkeypatch.setattr(connections, "_connections", {})
        attempts = iter([server.start])
        original = connections.open_table

        def failing_first(given: dict[str, str], path: TablePath) -> fluss.FlussTable:
            try:
                return original(given, path)
            except FlussError:
                for start in attempts:
                    start()
                raise

        monkeypatch.setattr(connections, "open_table", failing_first)
        assert FlussStreamWriter(options, struct, False)._plan.columns == ("id",)
        for connection in connections._connections.values():
            connection.close()


def test_a_forked_worker_makes_a_connection_of_its_own(settings: dict[str, str]) -> None:
    program = f"""
        import os
        from fluss.client.kernel.runtime import wait_for
        from fluss.spark.connections import open_connection
        settings = {settings!r}
        parents = open_connection(settings)
        child = os.fork()
        if child == 0:
            own = open_connection(settings)
            print(own is parents, wait_for(own.get_admin().list_databases()), flush=True)
            raise SystemExit(0)
        os.waitpid(child, 0)
        print(open_connection(settings) is parents, wait_for(parents.get_admin().list_databases()))
    """
    answer = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert answer.stderr == ""
    assert answer.stdout == "False ['fluss']\nTrue ['fluss']\n"
