"""The command, with a server to talk to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss.embedded import EmbeddedServer
from tests.cli.runner import FlussCommand


@pytest.fixture(scope="session")
def _forked_commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussCommand]:
    command = FlussCommand(tmp_path_factory.mktemp("home"))
    yield command
    command.close()


@pytest.fixture
def fluss(
    _forked_commands: FlussCommand, fluss_server: EmbeddedServer, fluss_database: str, tmp_path: Path
) -> FlussCommand:
    """The command in a directory of its own, connected to a server in the test run."""
    command = _forked_commands
    command.home = tmp_path
    command.environment = {"FLUSS_BOOTSTRAP_SERVERS": fluss_server.bootstrap_servers}
    return command
