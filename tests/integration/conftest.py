"""What integration tests share: the server that the package offers to every pytest run, and one that is a process.

With ``--java-cluster`` both are a cluster of Apache Fluss. Tests that start servers of their own are left out then, and
those marked ``only_here`` are skipped with the reason that the marker gives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fluss
from fluss import embedded
from fluss.protocol import api as apis
from fluss.protocol.api import ApiKey
from fluss.server.rpc.tablet_service import TabletService
from tests.integration.keyed_tables import Tables, tables_of
from tests.java.cluster import JavaCluster
from tests.java.jars import JavaUnavailableError


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--java-cluster"):
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_here = Path(__file__).parent in item.path.parents
        (left_out if is_here and "java_cluster" not in item.fixturenames else kept).append(item)  # type: ignore[attr-defined]  # functions have them
        marker = item.get_closest_marker("only_here")
        if marker is not None:
            item.add_marker(pytest.mark.skip(reason=marker.args[0]))
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture(scope="session")
def java_cluster(request: pytest.FixtureRequest) -> Iterator[JavaCluster | None]:
    """The cluster of Apache Fluss to test with instead of our server, if that was asked for."""
    if not request.config.getoption("--java-cluster"):
        yield None
        return
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    try:
        made = JavaCluster(factory.mktemp("java-cluster"))
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    with made, made.noticing_tables():
        yield made


@pytest.fixture(scope="session")
def fluss_server(
    request: pytest.FixtureRequest, java_cluster: JavaCluster | None
) -> JavaCluster | embedded.EmbeddedServer:
    """The server of the package, unless there is a cluster."""
    return request.getfixturevalue("fluss_server") if java_cluster is None else java_cluster


@pytest.fixture(scope="session", autouse=True)
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The loop that the programs of most users have."""
    return asyncio.new_event_loop


@pytest.fixture(scope="session")
def server(fluss_server: embedded.EmbeddedServer) -> embedded.EmbeddedServer:
    """A server inside this process. Tests use tables of names that no other test has."""
    return fluss_server


@pytest.fixture(scope="session")
def server_process(java_cluster: JavaCluster | None) -> Iterator[JavaCluster | embedded.EmbeddedServer]:
    """A server that shares neither interpreter nor event loop with its clients."""
    if java_cluster is not None:
        yield java_cluster
        return
    with embedded.start({"durability": "os"}, process=True) as running:
        yield running


@pytest.fixture
def connection(fluss_connection: fluss.FlussConnection) -> fluss.FlussConnection:
    return fluss_connection


@pytest.fixture(scope="module")
def tables(server: embedded.EmbeddedServer) -> Iterator[Tables]:
    """Makes tables with a primary key, unless told otherwise, through one connection for all tests of a module."""
    with tables_of(server) as made:
        yield made


@pytest.fixture(scope="module")
def tables_without_scans() -> Iterator[Tables]:
    """Tables of a server that does not know scans of rows, like those before version 1.0."""
    handlers = TabletService.handlers
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            TabletService,
            "handlers",
            lambda self: {key: handler for key, handler in handlers(self).items() if key != ApiKey.SCAN_KV},
        )
        running = embedded.start({"durability": "os"})
    with running, tables_of(running) as made:
        scan = made.create().new_scan()
        assert not scan._runtime.run(scan._cluster.offers(0, apis.SCAN_KV))
        yield made
