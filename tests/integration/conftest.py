"""What integration tests share: the server that the package offers to every pytest run, and one that is a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

import fluss
from fluss import embedded
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
