"""Tables brought to the lake by tasks of a Spark session, read by others."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fluss.errors import FlussError
from fluss.spark import FlussSpark
from fluss.testing.cluster import ServerProcess
from fluss.tiering.progress import RoundProgress
from tests.unit.tiering.lakes import LakeCluster, lake_table


@pytest.fixture(scope="module")
def cluster(lake_server: ServerProcess) -> Iterator[LakeCluster]:
    with LakeCluster(f"127.0.0.1:{lake_server.port}") as opened:
        yield opened


@pytest.fixture
def fs(spark: SparkSession, cluster: LakeCluster) -> FlussSpark:
    return FlussSpark(spark, bootstrap_servers=cluster.bootstrap_servers)


@pytest.fixture(autouse=True)
def plain_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let polars plan with what is installed; otherwise it warns that another planner would be faster."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


@pytest.fixture
def name() -> str:
    return f"fluss.t_{secrets.token_hex(6)}"


EVENTS = pa.schema([("id", pa.int64()), ("text", pa.string()), ("day", pa.string())])


def test_log_tables_are_tiered_by_tasks(fs: FlussSpark, cluster: LakeCluster, name: str) -> None:
    table = cluster.create(name, EVENTS, partition_keys=["day"], buckets=2)
    for day in ("1", "2"):
        fs.catalog.add_partition(name, {"day": day})
    told: list[RoundProgress] = []
    for first in (0, 1000):
        ids = range(first, first + 1000)
        rows = pa.table({"id": ids, "text": [f"event {n}" for n in ids], "day": [str(1 + n % 2) for n in ids]})
        cluster.append(name, rows)
        report = fs.tier(name, task_rows=300, progress=told.append)
        assert report.rows == 1000
        assert report.rounds[0].report is not None
        assert report.rounds[0].report.tasks > 1
    assert [progress.state for progress in told] == ["tiered", "tiered"]
    assert fs.tier([name]).rows == 0
    lake = pl.scan_iceberg(lake_table(table)).collect()
    assert sorted(lake["id"].to_list()) == list(range(2000))
    ranges = lake.group_by("day", "__bucket").agg(pl.col("__offset").n_unique().alias("n"), pl.col("__offset").max())
    assert all(row["n"] == row["__offset"] + 1 for row in ranges.to_dicts())
    with pytest.raises(FlussError, match="does not exist"):
        fs.tier("fluss.no_such_table")
