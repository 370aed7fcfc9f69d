"""What tests of lookups share: a server with tables in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.lookup_server import LookupServer


@pytest.fixture
def server() -> Iterator[LookupServer]:
    with LookupServer() as running:
        yield running
