"""Tables brought to the lake by tasks of a Spark session, read by others."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from fluss.errors import FlussError
from fluss.spark import FlussSpark, tier
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
    compacted = fs.lake.compact(name)
    assert (compacted.rows, compacted.files_after) == (2000, 4)
    verified = fs.lake.verify(name)
    assert verified.is_right, verified.problems
    assert verified.compared_rows == 2000
    with pytest.raises(FlussError, match="does not exist"):
        fs.tier("fluss.no_such_table")


# The session of the tests is running already, and divides its cores in another way.
@pytest.mark.filterwarnings("ignore:A Spark session is running already")
def test_tables_with_keys_are_tiered_by_the_command(
    spark: SparkSession, cluster: LakeCluster, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    table = cluster.create(name, columns, primary_keys=["id"])
    command = ["--once", "--bootstrap-servers", cluster.bootstrap_servers, "--table", name]
    cluster.upsert(name, [{"id": n, "text": "old"} for n in range(100)])
    assert tier.main(command) == 0
    cluster.upsert(name, [{"id": n, "text": "new"} for n in range(50, 120)], deletes=[{"id": n} for n in range(10)])
    assert tier.main([*command, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{name}: 100 rows in 2 files (")
    told = json.loads(lines[-2])
    assert (told["numOutputRows"], told["numDeletedRows"], told["lagRows"]) == (70, 60, 0)
    assert json.loads(lines[-1])["summary"]["rows"] == 70
    lake = pl.scan_iceberg(lake_table(table)).collect()
    found = dict(zip(lake["id"].to_list(), lake["text"].to_list(), strict=True))
    assert found == {n: "old" if n < 50 else "new" for n in range(10, 120)}
    assert len(lake) == len(found)
    fs = FlussSpark(spark, bootstrap_servers=cluster.bootstrap_servers)
    assert fs.lake.compact(name).delete_files > 0
    assert fs.lake.verify(name).is_right
    assert tier.main([*command, "-D", "secret"]) == 1
    assert "Entry 1 of -D is not KEY=VALUE" in capsys.readouterr().err


def test_a_service_in_the_background(fs: FlussSpark, cluster: LakeCluster, name: str) -> None:
    table = cluster.create(name, EVENTS, buckets=1, properties={"table.datalake.freshness": "100 ms"})
    cluster.append(name, pa.table({"id": [1], "text": ["a"], "day": ["x"]}))
    with fs.start_tiering(name, poll_interval_s=0.1) as query:
        while query.lastProgress is None:
            assert not query.awaitTermination(0.05)
        cluster.append(name, pa.table({"id": [2], "text": ["b"], "day": ["x"]}))
        while query.report().rows < 2:
            assert not query.awaitTermination(0.05)
        assert query.isActive
    assert not query.isActive
    assert query.exception() is None
    assert {progress.state for progress in query.recentProgress} <= {"tiered", "idle", "lost"}
    assert f'fluss_tiering_rows_total{{table="{name}"}} 2' in query.metrics.text()
    assert sorted(lake_table(table).scan().to_arrow()["id"].to_pylist()) == [1, 2]
