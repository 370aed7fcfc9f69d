"""Fixtures for tests of programs that use Fluss tables: a real server in the test run, and a connection to it.

Installing the package makes them available to pytest, with nothing to configure:

    async def test_rows_come_back(fluss_connection, fluss_database): ...
    def test_rows_come_back_without_awaits(fluss_blocking_connection, fluss_database): ...

| fixture | what it is | lifetime |
|---|---|---|
| ``fluss_server_options`` | server options as a dictionary; override it in a ``conftest.py`` | the test run |
| ``fluss_server`` | a ``fluss.embedded.EmbeddedServer`` on a free port with an empty data directory | the test run |
| ``fluss_connection`` | a ``fluss.FlussConnection`` to it | one test |
| ``fluss_blocking_connection`` | a ``fluss.blocking.FlussConnection`` to it, without awaits | one test |
| ``fluss_database`` | the name of an empty database, dropped with everything in it afterwards | one test |

pytest loads this module in every run, whether or not the fixtures are used. It is therefore not part of the package
``fluss``, and imports that one only when a fixture is asked for.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fluss import FlussConnection, blocking
    from fluss.embedded import EmbeddedServer


@pytest.fixture(scope="session")
def fluss_server_options() -> dict[str, str]:
    """Server options. Data of tests does not have to survive a loss of power, so nothing waits for the disk."""
    return {"durability": "os"}


@pytest.fixture(scope="session")
def fluss_server(fluss_server_options: dict[str, str]) -> Iterator[EmbeddedServer]:
    """Start a server inside the test run; it is stopped and its data removed at the end."""
    from fluss.embedded import EmbeddedServer

    with EmbeddedServer(fluss_server_options) as server:
        yield server


@pytest.fixture
def fluss_connection(fluss_server: EmbeddedServer) -> Iterator[FlussConnection]:
    """Connect to the server. The connection may be used on any event loop and on none."""
    from fluss import FlussConnection
    from fluss.net.transport import run

    with run(FlussConnection.create(fluss_server.config())) as connection:
        yield connection


@pytest.fixture
def fluss_blocking_connection(fluss_server: EmbeddedServer) -> Iterator[blocking.FlussConnection]:
    """Connect to the server for a test that awaits nothing: every method blocks until it is done."""
    from fluss import blocking

    with blocking.FlussConnection.create(fluss_server.config()) as connection:
        yield connection


@pytest.fixture
def fluss_database(fluss_connection: FlussConnection) -> Iterator[str]:
    """Create a database of its own for a test."""
    from fluss.net.transport import run

    name = f"test_{secrets.token_hex(6)}"
    admin = fluss_connection.get_admin()
    run(admin.create_database(name))
    yield name
    run(admin.drop_database(name, ignore_if_not_exists=True, cascade=True))
