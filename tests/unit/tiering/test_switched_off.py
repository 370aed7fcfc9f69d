"""Lakes that are switched off and on again: what expired in between stops no round, and is not left out silently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from fluss import FlussTable, embedded
from fluss.client.bulk import wait_for
from fluss.schema.offsets import OffsetSpec
from fluss.testing.waiting import eventually
from fluss.tiering.progress import RoundProgress
from fluss.tiering.rounds import tier
from fluss.tiering.verification import verify
from tests.unit.tiering.lakes import LAKE, LakeCluster, lake_rows, ordered
from tests.unit.tiering.test_key_rounds import Pickled

OFF = {"table.datalake.enabled": "false"}
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])


@pytest.fixture(scope="module")
def expiring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeCluster]:
    """A server that looks for expired records all the time, in segments of a few records."""
    directory = tmp_path_factory.mktemp("expiring")
    options = {
        "datalake.format": "iceberg",
        "datalake.iceberg.warehouse": str(directory / "warehouse"),
        "log.segment.file-size": "1kb",
        "log.retention.check-interval": "20ms",
    }
    with (
        embedded.start(options, data_dir=directory / "data") as server,
        LakeCluster(server.bootstrap_servers) as cluster,
    ):
        yield cluster


def rows(first: int, stop: int, version: int = 1) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"row {number}, version {version}"} for number in range(first, stop)]


def alter(cluster: LakeCluster, name: str, properties: dict[str, str]) -> None:
    wait_for(cluster.admin.alter_table(name, set_properties=properties))


def expire(cluster: LakeCluster, name: str, behind: int, partition: str | None = None) -> None:
    """Have records expire until the log begins behind an offset. A few more may go when it returns."""
    path = cluster.table(name).table_path

    def earliest() -> int:
        if partition is None:
            return wait_for(cluster.admin.list_offsets(path, [0], OffsetSpec.earliest()))[0]
        return wait_for(cluster.admin.list_partition_offsets(path, partition, [0], OffsetSpec.earliest()))[0]

    alter(cluster, name, {"table.log.ttl": "1ms"})
    eventually(lambda: earliest() > behind, "the end of the records")
    alter(cluster, name, {"table.log.ttl": "0ms"})


def read(table: FlussTable) -> list[dict[str, Any]]:
    return ordered(table.to_arrow().to_pylist())


def test_a_log_goes_on_where_it_begins_now(expiring: LakeCluster, name: str, caplog: pytest.LogCaptureFixture) -> None:
    table = expiring.create(name, COLUMNS, buckets=1)
    expiring.append(name, pa.Table.from_pylist(rows(0, 10), COLUMNS))
    assert tier(table).expired_rows == 0
    alter(expiring, name, OFF)
    for first in range(10, 100, 10):
        expiring.append(name, pa.Table.from_pylist(rows(first, first + 10), COLUMNS))
    expire(expiring, name, behind=10)
    alter(expiring, name, LAKE)
    table = expiring.table(name)
    found = read(table)
    assert found == ordered([*rows(0, 10), *rows(110 - len(found), 100)]), "the lake and what the log still has"
    report = tier(table)
    earliest = 10 + report.expired_rows
    assert earliest > 10
    assert (report.rows, report.lag_rows) == (100 - earliest, 0)
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "fluss.tiering.rounds"]
    assert f"{earliest - 10} records of {name} had expired" in warning
    assert f"offsets 10 to {earliest - 1}" in warning
    assert "the lake is without them" in warning
    assert f"{earliest - 10} rows expired before" in str(RoundProgress.of(report))
    assert RoundProgress.of(report).to_dict()["numExpiredRows"] == earliest - 10
    assert lake_rows(table) == read(table) == ordered([*rows(0, 10), *rows(earliest, 100)])
    expiring.append(name, pa.Table.from_pylist(rows(100, 110), COLUMNS))
    after = tier(table)
    assert (after.rows, after.expired_rows) == (10, 0), "it is told once"
    assert lake_rows(table) == read(table) == ordered([*rows(0, 10), *rows(earliest, 110)])
    (problem,) = verify(table).problems
    assert f"offset {earliest} follows 9" in problem
    assert "expired while the lake was switched off" in problem


def test_a_bucket_with_keys_is_brought_to_the_lake_anew(
    expiring: LakeCluster, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    columns = COLUMNS.append(pa.field("day", pa.string(), nullable=False))
    keys = ["id", "day"]
    table = expiring.create(name, columns, primary_keys=keys, partition_keys=["day"], buckets=1, bucket_keys=["id"])

    def of(day: str, some: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "day": day} for row in some]

    for day in ("a", "b"):
        wait_for(expiring.admin.create_partition(name, {"day": day}))
        expiring.upsert(name, of(day, rows(0, 20)))
    tier(table)
    # Some of what is to be deleted is deleted already.
    expiring.upsert(name, of("a", rows(0, 5, 2)))
    tier(table)
    alter(expiring, name, OFF)
    expiring.upsert(name, of("a", rows(10, 15, 2)), deletes=[{"id": number, "day": "a"} for number in range(15, 20)])
    for version in range(1, 12):
        expiring.upsert(name, of("a", rows(100, 110, version)))
    expire(expiring, name, behind=30, partition="a")
    expiring.upsert(name, of("b", rows(0, 3, 2)))
    alter(expiring, name, LAKE)
    table = expiring.table(name)
    left = of("a", [*rows(0, 5, 2), *rows(5, 10), *rows(10, 15, 2), *rows(100, 110, 11)])
    left += of("b", [*rows(0, 3, 2), *rows(3, 20)])
    assert read(table) == ordered(left)
    report = tier(table, run_tasks=Pickled())
    assert (report.rows, report.deleted_rows) == (25 + 3, 20 + 3), "all of the one, and the changes of the other"
    assert (report.expired_rows, report.lag_rows, report.is_complete) == (0, 0, True)
    assert "brought to the lake anew" in caplog.text
    assert lake_rows(table) == read(table) == ordered(left)
    assert verify(table).is_right
    caplog.clear()
    expiring.upsert(name, of("a", rows(200, 201)), deletes=[{"id": 0, "day": "a"}])
    after = tier(table)
    assert (after.rows, after.deleted_rows, caplog.text) == (1, 1, "")
    assert lake_rows(table) == read(table) == ordered([*left[1:], *of("a", rows(200, 201))])
    assert verify(table).is_right
