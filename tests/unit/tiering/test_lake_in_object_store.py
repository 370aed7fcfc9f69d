"""A lake whose files are in an object store and whose catalog is a database: clients bring the keys of the store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import embedded
from fluss.client.bulk import reopened, wait_for
from fluss.tiering.compaction import compact
from fluss.tiering.rounds import tier
from fluss.tiering.upkeep import expire, remove_orphans
from fluss.tiering.verification import verify
from tests.s3_server import new_bucket, s3_server
from tests.unit.tiering.lakes import LakeCluster

pytestmark = pytest.mark.slow

OWN = {"s3.access-key-id": "testing", "s3.secret-access-key": "testing"}
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def test_tables_are_tiered_to_a_store_kept_in_shape_and_read(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    with s3_server() as endpoint:
        lake = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"s3://{new_bucket(endpoint)}/lake",
            "s3.endpoint": endpoint,
            "s3.region": "us-east-1",
            **OWN,
        }
        options = {"datalake.format": "iceberg", **{f"datalake.iceberg.{key}": value for key, value in lake.items()}}
        with (
            embedded.start(options, data_dir=tmp_path / "data") as server,
            LakeCluster(server.bootstrap_servers) as cluster,
        ):
            _tier_and_read(cluster)


def _tier_and_read(cluster: LakeCluster) -> None:
    log = cluster.create("fluss.log", COLUMNS)
    keys = cluster.create("fluss.keys", COLUMNS, primary_keys=["id"])
    told = reopened(log).get_table_info().properties
    assert "table.datalake.iceberg.s3.endpoint" in told
    assert not {f"table.datalake.iceberg.{key}" for key in OWN} & told.keys(), "servers tell no keys"
    for version in range(3):
        rows = pa.table({"id": range(100), "name": [f"v{version}"] * 100}, schema=COLUMNS)
        cluster.append("fluss.log", rows)
        cluster.upsert("fluss.keys", rows.to_pylist(), deletes=[{"id": version}])
        assert tier(log, lake_properties=OWN).rows == 100
        tier(keys, lake_properties=OWN)
    compact(keys, lake_properties=OWN)
    assert expire(keys, lake_properties=OWN, min_age_s=0).snapshots == 3
    assert remove_orphans(keys, lake_properties=OWN).files == ()
    for table in (log, keys):
        report = verify(table, lake_properties=OWN)
        assert report.is_right, report
    cluster.append("fluss.log", pa.table({"id": [100], "name": ["tail"]}, schema=COLUMNS))
    cluster.upsert("fluss.keys", [{"id": 5, "name": "tail"}])
    own = ",".join(f"{key}={value}" for key, value in OWN.items())
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "client.lake.properties": own}
    with wait_for(fluss.FlussConnection.create(fluss.Config(settings))) as connection:
        assert wait_for(connection.get_table("fluss.log")).to_arrow().num_rows == 301
        found = wait_for(connection.get_table("fluss.keys")).to_arrow(filter="id < 7").to_pylist()
    assert sorted((row["id"], row["name"]) for row in found) == [
        *((number, "v2") for number in range(5) if number != 2),
        (5, "tail"),
        (6, "v2"),
    ]
