"""What the tests with Spark share: one session and one server for the whole run, and a database for each test."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fluss import blocking
from fluss.testing.cluster import ServerProcess


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores, whose tasks are tried up to four times, in a zone that is not UTC."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    directory = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.session.timeZone", "America/New_York")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
    )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server in a process of its own. What tests write does not have to survive a loss of power."""
    with ServerProcess(tmp_path_factory.mktemp("server"), "-D", "durability=os") as running:
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
