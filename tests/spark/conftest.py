"""What the tests with Spark share: one session and one server for the whole run, and a database for each test."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fluss import blocking
from fluss.testing.cluster import ServerProcess
from tests.spark.sessions import JAVA_OPTIONS, SparkSessions, make_home


@pytest.fixture(scope="session", autouse=True)
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where Spark is and how its Java runs, for the sessions of tests and of the programs that they run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(make_home(tmp_path_factory.mktemp("spark-home"))))
        for name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
            patch.setenv(name, JAVA_OPTIONS)
        yield


@pytest.fixture(scope="session")
def spark_sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSessions]:
    sessions = SparkSessions(tmp_path_factory.mktemp("spark") / "warehouse")
    yield sessions
    sessions.stop()


@pytest.fixture
def spark(spark_sessions: SparkSessions, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A session that works. Streams that a test leaves behind are ended; after a timeout nothing is reused."""
    yield spark_sessions.get()
    if _timed_out in request.node.stash:
        spark_sessions.discard()
    else:
        spark_sessions.stop_queries()


_timed_out = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    # A call to the JVM that was cut off by the clock leaves a connection, and often a job, behind.
    if call.excinfo is not None and "Timeout" in call.excinfo.exconly():
        item.stash[_timed_out] = True
    return (yield)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server in a process of its own. What tests write does not have to survive a loss of power."""
    with ServerProcess(tmp_path_factory.mktemp("server"), "-D", "durability=os") as running:
        yield running


@pytest.fixture(scope="session")
def lake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose tables can have a lake, in a directory."""
    pytest.importorskip("pyiceberg", reason="lake tables need pyiceberg")
    directory = tmp_path_factory.mktemp("lake")
    options = [
        "durability=os",
        "datalake.format=iceberg",
        f"datalake.iceberg.warehouse={directory / 'warehouse'}",
    ]
    arguments = [argument for option in options for argument in ("-D", option)]
    with ServerProcess(directory / "data", *arguments) as running:
        yield running


@pytest.fixture(scope="session")
def bootstrap_servers(server: ServerProcess) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.fixture(scope="session")
def connection(bootstrap_servers: str) -> Iterator[blocking.FlussConnection]:
    with blocking.FlussConnection.create(blocking.Config({"bootstrap.servers": bootstrap_servers})) as opened:
        yield opened


@pytest.fixture
def database(connection: blocking.FlussConnection) -> Iterator[str]:
    """The name of an empty database, dropped with everything in it afterwards."""
    name = f"test_{secrets.token_hex(6)}"
    admin = connection.get_admin()
    admin.create_database(name)
    yield name
    admin.drop_database(name, ignore_if_not_exists=True, cascade=True)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Where one streaming query of a test keeps its progress."""
    return str(tmp_path / "checkpoint")
