"""A server with a lake in a directory, and a connection; without pyiceberg there is nothing to collect."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from fluss import embedded
from tests.unit.tiering.lakes import LakeCluster

collect_ignore_glob = [] if find_spec("pyiceberg") else ["test_*.py"]


@pytest.fixture(scope="session")
def lake_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeCluster]:
    directory = tmp_path_factory.mktemp("tiering")
    options = {"datalake.format": "iceberg", "datalake.iceberg.warehouse": str(directory / "warehouse")}
    with (
        embedded.start(options, data_dir=directory / "data") as server,
        LakeCluster(server.bootstrap_servers) as cluster,
    ):
        yield cluster


@pytest.fixture
def name() -> str:
    """The name of a table that no other test has."""
    return f"fluss.t_{secrets.token_hex(6)}"
