"""A cluster of Apache Fluss for all tests of this directory, and clients of both kinds.

They are not among the default tests: `make interop-java` runs them. Without Java or Maven they are skipped.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fluss import Config, blocking, embedded
from tests.java.cluster import JavaCluster
from tests.java.jars import JavaUnavailableError, class_path, program_class_path
from tests.java.peer import JavaPeer

OURS, JAVA = "flussbett", "java"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # Starting a cluster takes a minute, and a server that is taken for dead half a minute more.
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session", autouse=True)
def jars() -> None:
    """Have the jars before anything is started, or skip."""
    try:
        class_path("server")
        program_class_path()
    except JavaUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaCluster]:
    """One coordinator and three tablet servers."""
    with JavaCluster(tmp_path_factory.mktemp("java-cluster")) as made, made.noticing_tables():
        yield made


@pytest.fixture
def config(cluster: JavaCluster) -> Config:
    return Config({"bootstrap.servers": cluster.bootstrap_servers})


@pytest.fixture
def connection(config: Config) -> Iterator[blocking.FlussConnection]:
    with blocking.FlussConnection.create(config) as opened:
        yield opened


@pytest.fixture
def database(connection: blocking.FlussConnection) -> Iterator[str]:
    """The name of a database that is dropped with all that is in it."""
    name = f"test_{secrets.token_hex(4)}"
    admin = connection.get_admin()
    admin.create_database(name)
    yield name
    admin.drop_database(name, cascade=True)


@pytest.fixture(scope="session")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedServer]:
    """A server of this project, in a process of its own."""
    with embedded.start({"durability": "os"}, data_dir=tmp_path_factory.mktemp("ours"), process=True) as running:
        yield running


@pytest.fixture(params=[JAVA, OURS])
def addresses(request: pytest.FixtureRequest) -> str:
    """Where the servers of each kind are, in turn."""
    if request.param == JAVA:
        made: JavaCluster = request.getfixturevalue("cluster")
        return made.bootstrap_servers
    running: embedded.EmbeddedServer = request.getfixturevalue("our_server")
    return running.bootstrap_servers


@pytest.fixture(scope="session")
def new_peer() -> Iterator[Callable[[str], JavaPeer]]:
    """Return the Java client of a cluster, which is started once: a JVM takes its time."""
    peers: dict[str, JavaPeer] = {}
    with ExitStack() as stack:

        def peer(bootstrap_servers: str) -> JavaPeer:
            if bootstrap_servers not in peers:
                peers[bootstrap_servers] = stack.enter_context(JavaPeer(bootstrap_servers))
            return peers[bootstrap_servers]

        yield peer


@pytest.fixture
def java(addresses: str, new_peer: Callable[[str], JavaPeer]) -> JavaPeer:
    """The Java client, connected to servers of each kind in turn."""
    return new_peer(addresses)


@pytest.fixture
def have_noticed(cluster: JavaCluster, addresses: str) -> Callable[[int], None]:
    """Wait until the servers know a table that another process has created: see ``JavaCluster.noticing_tables``."""
    return cluster.have_noticed if addresses == cluster.bootstrap_servers else lambda table_id: None


@pytest.fixture
def ours(addresses: str) -> Iterator[blocking.FlussConnection]:
    """Our client, connected to the same servers."""
    with blocking.FlussConnection.create(Config({"bootstrap.servers": addresses})) as opened:
        yield opened


@pytest.fixture
def table_name() -> str:
    """Return a name that no other table of a run has."""
    return f"t_{secrets.token_hex(4)}"
