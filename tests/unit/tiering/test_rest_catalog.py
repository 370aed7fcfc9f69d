"""A lake whose catalog is a service: with a token that servers do not tell, away for a while, and losing answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import FlussError, embedded
from fluss.client.bulk import reopened, wait_for
from fluss.errors import ErrorCode
from fluss.lake import catalogs
from fluss.retry import RetryPolicy
from fluss.tiering.rounds import tier
from fluss.tiering.verification import verify
from tests.rest_catalog import TOKEN, RestCatalogServer
from tests.unit.tiering.lakes import LakeCluster

EVENTS = pa.schema([("id", pa.int64()), ("name", pa.string())])
OWN = {"token": TOKEN}


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestCatalogServer]:
    with RestCatalogServer(tmp_path / "warehouse") as server:
        yield server


@pytest.fixture
def cluster(rest: RestCatalogServer, tmp_path: Path) -> Iterator[LakeCluster]:
    lake = {f"datalake.iceberg.{key}": value for key, value in {**rest.properties, **OWN}.items()}
    with (
        embedded.start({"datalake.format": "iceberg", **lake}, data_dir=tmp_path / "data") as server,
        LakeCluster(server.bootstrap_servers) as connected,
    ):
        yield connected


def append(cluster: LakeCluster, first: int, stop: int) -> None:
    ids = range(first, stop)
    cluster.append("fluss.t", pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=EVENTS))


def test_a_catalog_that_is_a_service(
    cluster: LakeCluster, rest: RestCatalogServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "LAKE_CATALOGS", RetryPolicy(0.01, 0.1, retries_max=5))
    table = cluster.create("fluss.t", EVENTS)
    append(cluster, 0, 10)
    told = reopened(table).get_table_info()
    assert told.properties["table.datalake.iceberg.uri"] == rest.properties["uri"]
    assert TOKEN not in repr(told.properties)
    with pytest.raises(FlussError, match="a token is needed") as refused:
        tier(table)
    assert refused.value.error_code == ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION
    assert TOKEN not in str(refused.value)
    assert tier(table, lake_properties=OWN).rows == 10

    append(cluster, 10, 20)
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "client.lake.properties": f"token={TOKEN}"}
    with wait_for(fluss.FlussConnection.create(fluss.Config(settings))) as connection:
        reader = wait_for(connection.get_table("fluss.t"))
        rest.away_count = 3
        assert sorted(reader.to_arrow().column("id").to_pylist()) == [*range(20)]
        assert rest.away_count == 0, "readers have asked again"
        wait_for(cluster.admin.alter_table("fluss.t", add_columns=[pa.field("more", pa.int32())]))

        # The catalog has made the commit, and its answer is lost: the next round finds that out.
        rest.lost_commits = 1
        with pytest.raises(FlussError, match="which may have happened"):
            tier(table, lake_properties=OWN)
        assert tier(table, lake_properties=OWN).rows == 0
        assert verify(table, lake_properties=OWN).is_right
        assert sorted(wait_for(connection.get_table("fluss.t")).to_arrow().column("id").to_pylist()) == [*range(20)]

    rest.away_count = 1_000_000
    asked = rest.request_count
    with pytest.raises(FlussError, match=r"(does not answer|cannot be opened).*away"):
        tier(table, lake_properties=OWN)
    assert rest.request_count - asked < 50
