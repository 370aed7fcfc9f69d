"""What integration tests share: the server that the package offers to every pytest run, and one that is a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

import fluss
from fluss import embedded
from fluss.protocol import api as apis
from fluss.protocol.api import ApiKey
from fluss.server.rpc.tablet_service import TabletService
from tests.integration.keyed_tables import Tables, tables_of


@pytest.fixture(scope="session", autouse=True)
def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The loop that the programs of most users have."""
    return asyncio.new_event_loop


@pytest.fixture(scope="session")
def server(fluss_server: embedded.EmbeddedServer) -> embedded.EmbeddedServer:
    """A server inside this process. Tests use tables of names that no other test has."""
    return fluss_server


@pytest.fixture(scope="session")
def server_process() -> Iterator[embedded.EmbeddedServer]:
    """A server that shares neither interpreter nor event loop with its clients."""
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
