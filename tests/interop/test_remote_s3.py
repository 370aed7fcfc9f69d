"""Tables whose data is mostly in an object store are read by the official clients, with credentials of the server.

A real server copies its segments to a server that speaks S3, and asks its token service for clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss import embedded
from tests.interop.client import Client
from tests.interop.conftest import OFFICIAL, Libraries
from tests.interop.samples import EVENTS, event_batch, events
from tests.interop.test_remote_log import wait_until_remote
from tests.s3_server import KEYS, new_bucket, s3_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    data_dir = tmp_path_factory.mktemp("tiered-s3")
    with s3_server() as endpoint:
        options = {
            **KEYS,
            "remote.data.dir": f"s3://{new_bucket(endpoint)}/fluss",
            "s3.endpoint": endpoint,
            "log.segment.file-size": "16kb",
            "remote.log.task-interval-duration": "100 ms",
        }
        with embedded.start(options, data_dir=data_dir / "data", process=True) as running:
            yield running.bootstrap_servers, data_dir / "data"


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_official_clients_read_from_the_object_store(
    libraries: Libraries, name: str, table: str, tiered: tuple[str, Path]
) -> None:
    client = Client(libraries[name], tiered[0])
    client.create_table(table, EVENTS)
    for first in range(0, 20_000, 2_000):
        client.write_batches(table, event_batch(first, first + 1_999))
    wait_until_remote(tiered[1], table)
    assert client.read_table(table).to_pylist() == events(0, 19_999)
    assert client.read_table(table, columns=["name"]).column("name").to_pylist()[-1] == "name-19999"
