"""What tests of writers share: a server that keeps what is written to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.write_server import WriteServer


@pytest.fixture
def server() -> Iterator[WriteServer]:
    with WriteServer() as running:
        yield running
