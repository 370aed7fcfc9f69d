"""A real server with a plain and a SASL listener, and the client libraries that are let loose on it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fluss import embedded
from tests.interop.client import Client
from tests.interop.peers import VERSIONS, PeerUnavailableError, peer_python
from tests.interop.remote import Api, LocalTransport, ProcessTransport

OURS = "flussbett"
OFFICIAL = {f"pyfluss-{version}": version for version in VERSIONS}
ALL = (*OFFICIAL, OURS)
# The newer generation knows nested types, limit scans, filters and asynchronous iteration; so do we.
NEWER = ("pyfluss-1.0.0", OURS)

SERVER_OPTIONS = {
    "bind.listeners": "PLAIN_CLIENT://127.0.0.1:0, CLIENT://127.0.0.1:0",
    "security.protocol.map": "CLIENT:sasl",
    "security.sasl.enabled.mechanisms": "plain",
    "security.sasl.plain.credentials": "admin:admin-secret,alice:alice-secret",
    "max.partition.num": 5,
}

_numbers = itertools.count()


@dataclass(frozen=True)
class Addresses:
    """Where the server listens: without credentials, and with."""

    plain: str
    sasl: str


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    data_dir: Path = tmp_path_factory.mktemp("interop-server")
    # A process of its own, as users run it: clients and server share neither interpreter nor event loop.
    with embedded.start(SERVER_OPTIONS, data_dir=data_dir, process=True) as running:
        yield addresses_of(running)


def addresses_of(running: embedded.EmbeddedServer) -> Addresses:
    return Addresses(running.address("PLAIN_CLIENT"), running.address("CLIENT"))


class Libraries:
    """The client libraries by name; each is started at its first use, and anew after it died."""

    def __init__(self) -> None:
        self._transports: dict[str, ProcessTransport | LocalTransport] = {}
        # One attempt to install is enough; every test that needs the library fails with the same words.
        self._unavailable: dict[str, PeerUnavailableError] = {}

    def __getitem__(self, name: str) -> Api:
        transport = self._transports.get(name)
        if transport is None or not transport.is_alive:
            if transport is not None:
                transport.close()
            transport = self._transports[name] = self._start(name)
        return Api(name, transport)

    def _start(self, name: str) -> ProcessTransport | LocalTransport:
        if name == OURS:
            return LocalTransport()
        if name in self._unavailable:
            raise self._unavailable[name]
        try:
            return ProcessTransport(peer_python(OFFICIAL[name]))
        except PeerUnavailableError as error:
            self._unavailable[name] = error
            raise

    def reset(self) -> None:
        """Close what a test has opened."""
        for name, transport in self._transports.items():
            if transport.is_alive:
                self[name].reset()

    def close(self) -> None:
        for transport in self._transports.values():
            transport.close()


@pytest.fixture(scope="session")
def all_libraries() -> Iterator[Libraries]:
    libraries = Libraries()
    yield libraries
    libraries.close()


@pytest.fixture
def libraries(all_libraries: Libraries) -> Iterator[Libraries]:
    yield all_libraries
    all_libraries.reset()


@pytest.fixture
def unique() -> str:
    """Return a name that nothing has yet."""
    return f"interop_{next(_numbers)}"


@pytest.fixture
def table(unique: str) -> str:
    return unique


@pytest.fixture
def new_client(libraries: Libraries, server: Addresses) -> Callable[..., Client]:
    """Return a function that connects a library, by name and with options, to the plain listener."""

    def connect(name: str, **options: Any) -> Client:
        return Client(libraries[name], server.plain, **options)

    return connect


@pytest.fixture(params=ALL)
def any_name(request: pytest.FixtureRequest) -> str:
    """Return the name of each library in turn, for tests that connect it in a way of their own."""
    name: str = request.param
    return name


@pytest.fixture(params=ALL)
def api(request: pytest.FixtureRequest, libraries: Libraries) -> Api:
    """Each library in turn, not connected."""
    return libraries[request.param]


@pytest.fixture(params=NEWER)
def newer_api(request: pytest.FixtureRequest, libraries: Libraries) -> Api:
    return libraries[request.param]


@pytest.fixture
def clients(new_client: Callable[..., Client]) -> dict[str, Client]:
    """All libraries at once, connected."""
    return {name: new_client(name) for name in ALL}


def _connected(names: tuple[str, ...]) -> Any:
    """Make a fixture that connects each of the named libraries in turn."""

    @pytest.fixture(params=names)
    def connected(request: pytest.FixtureRequest, new_client: Callable[..., Client]) -> Client:
        return new_client(request.param)

    return connected


# Two of them in one test make all pairs.
client = _connected(ALL)
writer = _connected(ALL)
reader = _connected(ALL)
newer_client = _connected(NEWER)
newer_reader = _connected(NEWER)
